"""The reference of recipes, estimators and losses as Markdown, generated from their own words.

``python -m trainer.run.algorithm_reference docs/algorithms.md`` writes it; without an argument it is printed.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable

from trainer.algorithms.estimators import ESTIMATORS, EstimatorSpec
from trainer.algorithms.losses import LOSSES, LossSpec, aggregate, correction_weights, kl_loss, within_second_moment
from trainer.config.recipes import PRESETS, Preset
from trainer.config.yaml_text import dump_yaml
from trainer.run.folder import write_atomic

__all__ = ["algorithm_reference"]

_HEAD = """# Algorithms

<!-- Generated from the code: python -m trainer.run.algorithm_reference docs/algorithms.md -->

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
  so that generalised advantages skip it, also where an episode stands in several rows.
- The gradient does not depend on micro-batches, packing, row order or masked positions. Corrections are constant
  weights that never change a denominator; masks do, since masked tokens are not learnt from.
- In a single optimiser step the ratio is taken to the policy itself (exactly 1). With `learner.minibatches` or
  `learner.epochs` above 1 it is taken to the weights before the step, recomputed (`loss.proximal: recompute`), and
  `correction` accounts for what lies between those and the sampler (decoupled PPO).
"""


def algorithm_reference() -> str:
    """The Markdown reference."""
    parts = [_HEAD, "## Recipes\n", _recipes()]
    parts += ["## Advantage estimators\n", "`advantage.name`, one of:\n"]
    parts += [_entry(name, spec.estimate, _demands(spec)) for name, spec in sorted(ESTIMATORS.items())]
    parts += ["## Policy losses\n", "`loss.name`, one of:\n"]
    parts += [_entry(name, spec.loss, _traits(spec)) for name, spec in sorted(LOSSES.items())]
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
    words = []
    for key, value in preset.settings.items():
        text = f"{value:g}" if isinstance(value, float) else dump_yaml(value).removesuffix("...\n").strip()
        words.append(f"`{key}={text}`")
    return " ".join(words)


def _demands(spec: EstimatorSpec) -> str:
    needs = [
        words
        for wanted, words in (
            (spec.needs_group, "groups of 2 or more (`rollout.group_size`)"),
            (spec.needs_values, "a critic (`critic`)"),
            (spec.needs_greedy, "one greedy episode per task, which is played beside the group"),
        )
        if wanted
    ]
    return " ".join([*_reads("advantage", spec.keys), *([f"Needs {' and '.join(needs)}."] if needs else [])])


def _reads(section: str, keys: frozenset[str] | None) -> list[str]:
    return [f"Reads {', '.join(f'`{section}.{key}`' for key in sorted(keys))}."] if keys else []


def _traits(spec: LossSpec) -> str:
    words = _reads("loss", spec.keys)
    if spec.select is not None:
        words.append("Chooses tokens over the whole optimiser step before it.")
    return " ".join(words)


def _entry(name: str, function: Callable[..., object], remark: str) -> str:
    text = (inspect.getdoc(getattr(function, "func", function)) or "").replace("``", "`")
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return f"### {name}\n\n{text}\n" + (f"\n{remark}\n" if remark else "")


def _main() -> int:
    if len(sys.argv) > 1:
        write_atomic(sys.argv[1], algorithm_reference())
    else:
        sys.stdout.write(algorithm_reference())
    return 0


if __name__ == "__main__":
    raise SystemExit(_main())
