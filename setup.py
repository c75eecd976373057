"""The compiled parts of the package; everything else about it is in setup.cfg.

``optional``: without a compiler the installation goes on; Sokoban's rooms then come from pure Python, and batches of
environments are single ones, one after the other.
"""

import sysconfig

from setuptools import Extension, setup

# One wheel for every Python from 3.11 on; free-threaded builds have no stable interface yet.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")


def compiled(name: str, source: str, *headers: str) -> Extension:
    """A module of one C file and the headers that it includes."""
    return Extension(
        name,
        [source],
        depends=["envs/_batch.h", *headers],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE else [],
        py_limited_api=STABLE,
        optional=True,
    )


setup(
    ext_modules=[
        compiled("envs.sokoban._rooms", "envs/sokoban/_rooms.c", "envs/sokoban/_search.h", "envs/sokoban/_twister.h"),
        compiled("envs.frozenlake._lakes", "envs/frozenlake/_lakes.c", "envs/frozenlake/_pcg.h"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
