"""Start a package of your own that adds an environment: it is installed, checked, played and trained on at once."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import tempfile
from pathlib import Path
from string import Template

from roll_envs.cli.common import print_json
from roll_envs.errors import ConfigError

SUMMARY = "start a package with an environment of your own"

_TEMPLATES = Path(__file__).parent / "new_package"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``NAME``."""
    parser.add_argument(
        "name", metavar="NAME", help="name of the package, such as my-game; a folder of this name is made"
    )


def run(options: argparse.Namespace) -> int:
    """Write the package into a new folder of the current one. Nothing is written where it cannot be whole.

    Raises :class:`ConfigError` for a name that is no package's, or that is taken.
    """
    name = options.name
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ConfigError(
            f"NAME is {name!r}; give small letters, digits and single hyphens between them, as in my-game"
        )
    module, folder = name.replace("-", "_"), Path(name)
    if importlib.util.find_spec(module) is not None:
        raise ConfigError(f"NAME is {name!r}, and Python has a module {module!r} already; choose another")
    if folder.exists():
        raise ConfigError(f"{folder} exists already; choose another NAME, or move it away")
    title = "".join(part.capitalize() for part in name.split("-"))
    id = f"{name}/{title}-v0"
    values = {"package": name, "module": module, "id": id, "class": f"{title}Env"}
    try:
        with tempfile.TemporaryDirectory(dir=".", prefix=f".{name}-") as made:
            for template in sorted(_TEMPLATES.glob("*.txt")):
                target = Path(made, "new", _place(template.stem, module))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(Template(template.read_text(encoding="utf-8")).substitute(values), encoding="utf-8")
            shutil.move(Path(made, "new"), folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error}") from error
    if options.json:
        print_json({"folder": str(folder), "id": id})
        return 0
    print(f"{folder}/ is a package with the environment {id}, a small game to replace by yours.\n")
    print(
        f"  pip install -e {folder}\n  roll-envs check {id}\n  roll-envs play {id}\n  roll-train {folder}/train.yaml\n"
    )
    print(f"The game is in {folder}/{module}/env.py; the guide is docs/add_an_environment.md of roll-envs.")
    return 0


def _place(name: str, module: str) -> str:
    return {"card.py": f"{module}/__init__.py", "env.py": f"{module}/env.py"}.get(name, name)
