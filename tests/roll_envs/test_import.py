"""What importing roll_envs costs and shows: light, quick, and exactly the public names."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import pkgutil

import pytest
from plugins import run_python

import roll_envs

HEAVY = ("torch", "transformers", "ray", "vllm", "pydantic", "httpx", "rich", "yaml", "envs", "trainer")


def test_nothing_heavy_is_imported() -> None:
    program = f"import sys, roll_envs; print([m for m in {HEAVY} if m in sys.modules])"
    assert run_python(program).strip() == "[]"


def test_nothing_heavy_is_imported_by_any_module_of_the_hub() -> None:
    program = (
        "import sys, pkgutil, importlib, roll_envs\n"
        "for m in pkgutil.walk_packages(roll_envs.__path__, 'roll_envs.'):\n"
        "    if not m.name.endswith('__main__'): importlib.import_module(m.name)\n"
        f"print([m for m in {HEAVY[:4] + HEAVY[-2:]} if m in sys.modules])"
    )
    assert run_python(program).strip() == "[]"


def test_the_import_adds_little_to_gymnasiums() -> None:
    program = (
        "import json, time, gymnasium\n"
        "started = time.process_time(); import roll_envs\n"
        "print(json.dumps(time.process_time() - started))"
    )
    # The promise is 0.15 s; processor time of the best of a few tries, since the machine may be busy.
    assert min(json.loads(run_python(program)) for _ in range(3)) < 0.15


def test_exported_names() -> None:
    public = {
        name for name, value in vars(roll_envs).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public | {"__version__"} == set(roll_envs.__all__)
    assert list(roll_envs.__all__) == sorted(roll_envs.__all__, key=lambda n: (not n[0].isupper(), n))


def _modules() -> list[str]:
    return [m.name for m in pkgutil.walk_packages(roll_envs.__path__, "roll_envs.") if "__main__" not in m.name]


@pytest.mark.parametrize("name", _modules())
def test_every_module_says_what_it_is_and_every_package_what_is_public(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    public = module.__all__ if hasattr(module, "__path__") else getattr(module, "__all__", ())
    assert all(hasattr(module, each) for each in public)
    assert len(set(public)) == len(public)


def test_the_version_is_the_packages() -> None:
    assert roll_envs.__version__ == importlib.metadata.version("roll-envs")
