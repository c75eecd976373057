"""The references of configuration keys and of algorithms as Markdown, generated from the declarations in the code.

``python docs/make_reference.py`` writes ``configuration.md`` and ``algorithms.md`` beside this file.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from trainer.algorithms.losses.objective import aggregate, correction_weights, kl_loss
from trainer.algorithms.shaping import within_second_moment
from trainer.config import FORMAT
from trainer.config.keys import Key, part_keys, section_keys
from trainer.config.parts import ESTIMATORS, LOSSES, PART_SECTIONS
from trainer.config.recipes import PRESETS, Preset
from trainer.config.yaml_text import value_text
from trainer.run.folder import write_atomic

__all__ = ["algorithm_reference", "config_reference"]

_CONFIGURATION_HEAD = f"""# Configuration

<!-- Generated from trainer/config: python docs/make_reference.py -->

One YAML file describes one run and is complete by itself; `configs/` holds whole files to start from. On the command
line `key=value` overrides a key by its dotted name: `roll-train configs/frozenlake_tiny.yaml optimizer.lr=1e-3 seed=1`.
The value is read as YAML; nothing after `=` is null, and empty text is `key='""'`. Entries of a list go by their
number: `envs.0.weight=2`.

`roll-train CONFIG --dry-run` prints the resolved configuration and the plan. An unknown key is an error that names the
key, the line and the nearest valid key. `config.yaml` in the run's folder is the resolved configuration.

This is format {FORMAT}. Keys without a default must be given.
"""


_ALGORITHMS_HEAD = """# Algorithms

<!-- Generated from the code: python docs/make_reference.py -->

A training step is always the same: episodes are scored, their rewards shaped (`reward`), an *estimator* gives every
sampled token an advantage (`advantage`), a *loss* makes gradients of them (`loss`, `correction`), and one aggregation
divides by denominators of the whole step. Groups can be filtered before (`filter`) and tokens masked after (`mask`).
All keys: [configuration.md](configuration.md).

`algorithm: NAME` lays a published recipe under your file; whatever the file says itself stands, and a recipe named on
the command line (`algorithm=dapo`) goes over the file. `roll-train explain CONFIG` prints the formulas and every
setting with where it comes from.

What holds for all of them:

- Failed and cancelled episodes are in no mean, no deviation, no count and no loss.
- A group of one episode, or of equal returns, gives group-relative advantages of exactly 0, and is counted
  (`advantage/singleton_groups`, `advantage/zero_variance_groups`).
- An estimator sees the sampled tokens of an episode one after the other; what the environment said is not among them,
  so that generalised advantages skip it, also where an episode stands in several sequences.
- The gradient does not depend on micro-batches, packing, the order of sequences or masked positions. Corrections are
  constant weights that never change a denominator; masks do, since masked tokens are not learnt from.
- In a single optimiser step the ratio is taken to the policy itself (exactly 1). With `learner.minibatches` or
  `learner.epochs` above 1 it is taken to the weights before the step, recomputed (`loss.proximal: recompute`), and
  `correction` accounts for what lies between those and the sampler (decoupled PPO).
"""


def config_reference() -> str:
    """A table of keys, allowed values, defaults and descriptions for each section and each built-in part."""
    top = [key for key in section_keys().values() if len(key.path) == 1]
    parts = [_CONFIGURATION_HEAD, "## Top level\n", _table(key for key in top if not key.section)]
    for section in (key for key in section_keys().values() if key.section):
        inside = [key for key in section_keys().values() if key.path[:-1] == section.path and not key.section]
        parts += [f"## {'.'.join(section.path)}\n", f"{section.description}\n", _table(inside)]
        if section.path[0] in PART_SECTIONS:
            parts += _tables_of_parts(section.path[0])
    return "\n".join(parts)


def _tables_of_parts(section: str) -> list[str]:
    """What each built-in part reads beside the keys of its section; parts that read the same share a table."""
    kind = PART_SECTIONS[section]
    tables: dict[str, list[str]] = {}
    for name in kind.registry.built_in():
        keys = part_keys(section, kind.registry.find(name))
        tables.setdefault(_table(keys.values()) if keys else "", []).append(f"`{name}`")
    idle = tables.pop("", [])
    found = [f"With `{section}.{kind.key}` {', '.join(names)}:\n\n{table}" for table, names in tables.items()]
    return [*found, *([f"No further keys: {', '.join(idle)}.\n"] if idle else [])]


def _table(rows: Iterable[Key]) -> str:
    lines = ["| Key | Allowed | Default | Meaning |", "| --- | --- | --- | --- |"]
    for key in rows:
        default = "" if key.required else f"`{value_text(key.default)}`"
        lines.append(f"| `{'.'.join(key.path)}` | {_cell(key.allowed)} | {default} | {_cell(key.description)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def algorithm_reference() -> str:
    """Recipes, estimators and losses in their own words."""
    parts = [_ALGORITHMS_HEAD, "## Recipes\n", _recipes()]
    parts += ["## Advantage estimators\n", "`advantage.name`, one of:\n"]
    for name in ESTIMATORS.built_in():
        part = ESTIMATORS.find(name)
        needs = [
            words
            for wanted, words in (
                (part.needs_group, "groups of 2 or more (`rollout.group_size`)"),
                (part.needs_values, "a critic (`critic`)"),
                (part.needs_greedy, "one greedy episode per task, which is played beside the group"),
            )
            if wanted
        ]
        needed = [f"Needs {' and '.join(needs)}."] if needs else []
        parts.append(_entry(name, part.estimate, " ".join([*_reads("advantage", part.settings), *needed])))
    parts += ["## Policy losses\n", "`loss.name`, one of:\n"]
    for name in LOSSES.built_in():
        part = LOSSES.find(name)
        chooses = ["Chooses tokens over the whole optimiser step before it."] if part.select is not None else []
        parts.append(_entry(name, part.loss, " ".join([*_reads("loss", part.settings), *chooses])))
    parts += ["## Beside the loss\n"]
    parts += [
        _entry("correction", correction_weights, ""),
        _entry("correction.second_moment", within_second_moment, ""),
        _entry("loss.aggregation", aggregate, ""),
        _entry("loss.kl_coef", kl_loss, ""),
    ]
    return "\n".join(parts)


def _recipes() -> str:
    rows = ["| `algorithm` | In words | Sets | Source |", "| --- | --- | --- | --- |"]
    rows += [f"| `{name}` | {p.summary} | {_settings(p)} | {p.source} |" for name, p in sorted(PRESETS.items())]
    return "\n".join(rows) + "\n"


def _settings(preset: Preset) -> str:
    return " ".join(f"`{key}={value_text(value)}`" for key, value in preset.settings.items())


def _reads(section: str, settings: type) -> list[str]:
    keys = ", ".join(f"`{section}.{key}`" for key in sorted(getattr(settings, "model_fields", {})))
    return [f"Reads {keys}."] if keys else []


def _entry(name: str, function: Callable[..., object], remark: str) -> str:
    text = (inspect.getdoc(getattr(function, "func", function)) or "").replace("``", "`")
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return f"### {name}\n\n{text}\n" + (f"\n{remark}\n" if remark else "")


def _main(folder: Path) -> None:
    for name, text in (("configuration.md", config_reference()), ("algorithms.md", algorithm_reference())):
        write_atomic(folder / name, text)


if __name__ == "__main__":
    _main(Path(__file__).parent)
