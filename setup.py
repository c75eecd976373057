"""The compiled part of the package; everything else about it is in setup.cfg.

``optional``: without a compiler the installation goes on, and Sokoban's rooms come from the pure-Python search.
"""

import sysconfig

from setuptools import Extension, setup

# One wheel for every Python from 3.11 on; free-threaded builds have no stable interface yet.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "envs.sokoban._search",
            ["envs/sokoban/_search.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE else [],
            py_limited_api=STABLE,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
