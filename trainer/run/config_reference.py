"""The reference of all configuration keys as Markdown, generated from the models.

``python -m trainer.run.config_reference docs/configuration.md`` writes it; without an argument it is printed.
"""

from __future__ import annotations

import sys

from trainer.config import FORMAT
from trainer.config.keys import Key, keys
from trainer.config.yaml_text import dump_yaml
from trainer.run.folder import write_atomic

__all__ = ["config_reference"]

_HEAD = f"""# Configuration

<!-- Generated from trainer/config: python -m trainer.run.config_reference docs/configuration.md -->

One YAML file describes one run and is complete by itself; `configs/` holds whole files to start from. On the command
line `key=value` overrides a key by its dotted name: `roll-train configs/frozenlake_tiny.yaml optimizer.lr=1e-3 seed=1`.
The value is read as YAML; nothing after `=` is null, and empty text is `key='""'`.

`roll-train CONFIG --dry-run` prints the resolved configuration and the plan. An unknown key is an error that names the
key, the line and the nearest valid key. `config.yaml` in the run's folder is the resolved configuration.

This is format {FORMAT}. Keys without a default must be given.
"""


def config_reference() -> str:
    """The Markdown reference: a table of keys, allowed values, defaults and descriptions for each section."""
    top = [key for key in keys().values() if len(key.path) == 1]
    parts = [_HEAD, "## Top level\n", _table([key for key in top if not key.section])]
    for section in (key for key in top if key.section):
        inside = [key for key in keys().values() if key.path[:-1] == section.path]
        parts += [f"## {section.path[0]}\n", f"{section.description}\n", _table(inside)]
    return "\n".join(parts)


def _table(rows: list[Key]) -> str:
    lines = ["| Key | Allowed | Default | Meaning |", "| --- | --- | --- | --- |"]
    for key in rows:
        default = "" if key.required else f"`{_value(key.default)}`"
        lines.append(f"| `{'.'.join(key.path)}` | {_cell(key.allowed)} | {default} | {_cell(key.description)} |")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return dump_yaml(value).removesuffix("...\n").strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _main() -> int:
    if len(sys.argv) > 1:
        write_atomic(sys.argv[1], config_reference())
    else:
        sys.stdout.write(config_reference())
    return 0


if __name__ == "__main__":
    raise SystemExit(_main())
