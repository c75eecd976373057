"""What a configuration learns by: the formulas of its estimator and loss, and each setting with where it is from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from trainer.config.keys import Key, keys
from trainer.config.load import Resolved
from trainer.config.parts import ESTIMATORS, LOSSES
from trainer.config.read_keys import ESTIMATOR_KEYS, LOSS_KEYS
from trainer.config.recipes import find_preset
from trainer.config.yaml_text import dump_yaml
from trainer.run.default_origins import DEFAULT_ORIGINS

__all__ = ["SECTIONS", "explain"]

SECTIONS = (
    "reward",
    "filter",
    "mask",
    "advantage",
    "loss",
    "correction",
    "critic",
    "reference",
    "learner",
    "optimizer",
)
"""Sections that say how a run learns, in the order in which a step uses them."""


def explain(resolved: Resolved) -> str:
    """The explanation as plain text: recipe, formulas, and a table of settings; those that do nothing are left out.

    Raises :class:`~roll_envs.errors.UnknownNameError` when the estimator or the loss is not known.
    """
    return "\n".join(_lines(resolved)) + "\n"


def _lines(resolved: Resolved) -> Iterator[str]:
    config = resolved.config
    if config.algorithm is not None:
        preset = find_preset(config.algorithm)
        yield f"algorithm {config.algorithm}: {preset.summary}"
        yield f"  {preset.source}"
        yield ""
    estimator, loss = ESTIMATORS.find(config.advantage.name), LOSSES.find(config.loss.name)
    yield f"advantage {config.advantage.name}"
    yield from _formula(estimator.estimate)
    yield ""
    yield f"loss {config.loss.name}"
    yield from _formula(loss.loss)
    idle = _idle(resolved)
    unread = {
        section: frozenset().union(*table.values()) - part.settings.model_fields.keys()
        for section, table, part in (("advantage", ESTIMATOR_KEYS, estimator), ("loss", LOSS_KEYS, loss))
    }
    for section in SECTIONS:
        rows = [key for key in keys().values() if key.path[:-1] == (section,)]
        others = unread.get(section, frozenset())
        rows = [key for key in rows if key.path[-1] not in others]
        if section in idle:
            yield ""
            yield f"{section}: not used ({idle[section]})"
            continue
        yield ""
        yield f"{section}:"
        shown = [(key.path[-1], _value(resolved, key), _source(resolved, key)) for key in rows]
        names, values = max(len(name) for name, _, _ in shown), max(len(value) for _, value, _ in shown)
        for name, value, source in shown:
            yield f"  {name:<{names}}  {value:<{values}}  {source}"


def _idle(resolved: Resolved) -> dict[str, str]:
    """Sections that nothing of this configuration reads, and why."""
    config = resolved.config
    idle = {}
    if not ESTIMATORS.find(config.advantage.name).needs_values:
        idle["critic"] = f"{config.advantage.name} needs no values"
    correction = config.correction
    if (
        correction.name == "none"
        and not correction.veto
        and not correction.sequence_delta
        and not correction.second_moment
    ):
        idle["correction"] = "correction.name is none"
    if not config.loss.kl_coef and not config.reward.kl_coef:
        idle["reference"] = "loss.kl_coef and reward.kl_coef are 0"
    return idle


def _formula(function: Callable[..., object]) -> Iterator[str]:
    """The first paragraphs of its documentation."""
    for line in (inspect.getdoc(getattr(function, "func", function)) or "(not documented)").splitlines():
        yield f"  {line}".rstrip()


def _value(resolved: Resolved, key: Key) -> str:
    found: Any = resolved.config
    for part in key.path:
        found = getattr(found, part)
    return f"{found:g}" if isinstance(found, float) else dump_yaml(found).removesuffix("...\n").strip()


def _source(resolved: Resolved, key: Key) -> str:
    if key.path in resolved.places:
        return resolved.places[key.path]
    origin = DEFAULT_ORIGINS.get(".".join(key.path))
    return f"default ({origin})" if origin else "default"
