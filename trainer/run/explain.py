"""What a configuration learns by: the formulas of its estimator and loss, and each setting with where it is from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator

from trainer.config import RunConfig
from trainer.config.algorithm import Section
from trainer.config.keys import Key, keys_of
from trainer.config.load import Resolved
from trainer.config.parts import ESTIMATORS, LOSSES
from trainer.config.recipes import find_preset
from trainer.config.yaml_text import value_text

SECTIONS = (
    "curriculum",
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
    """The explanation as plain text: recipe, formulas, and a table of settings; those that do nothing are left out."""
    return "\n".join(_lines(resolved)) + "\n"


def _lines(resolved: Resolved) -> Iterator[str]:
    config = resolved.config
    if config.algorithm is not None:
        preset = find_preset(config.algorithm)
        yield f"algorithm {config.algorithm}: {preset.summary}"
        yield f"  {preset.source}"
        yield ""
    yield f"advantage {config.advantage.name}"
    yield from _formula(ESTIMATORS.find(config.advantage.name).estimate)
    yield ""
    yield f"loss {config.loss.name}"
    yield from _formula(LOSSES.find(config.loss.name).loss)
    idle = _idle(config)
    for section in SECTIONS:
        yield ""
        if section in idle:
            yield f"{section}: not used ({idle[section]})"
            continue
        yield f"{section}:"
        chosen: Section = getattr(config, section)
        # The model of the section has the keys of the part that it chooses, too.
        yield from _table(
            (key.path[-1], getattr(chosen, key.path[-1]), _source(resolved, key))
            for key in keys_of(type(chosen), section).values()
        )
        if section == "filter":
            yield from _filters_of_entries(resolved)


def _filters_of_entries(resolved: Resolved) -> Iterator[str]:
    """What the entries of a mix say otherwise than the section filter."""
    for number, env in enumerate(resolved.config.envs):
        own = {key: value for key, value in env.filter if value is not None}
        if own:
            yield ""
            yield f"filter of {env.short_name}, otherwise as above:"
            path = ("envs", number, "filter")
            yield from _table((key, value, resolved.places.get((*path, key), "given")) for key, value in own.items())


def _table(rows: Iterable[tuple[str, object, str]]) -> Iterator[str]:
    """Names, values and sources as columns."""
    shown = [(name, value_text(value), source) for name, value, source in rows]
    names, values = max(len(name) for name, _, _ in shown), max(len(value) for _, value, _ in shown)
    for name, value, source in shown:
        yield f"  {name:<{names}}  {value:<{values}}  {source}"


def _idle(config: RunConfig) -> dict[str, str]:
    """Sections that nothing of this configuration reads, and why."""
    idle = {}
    if config.curriculum.by == "none":
        idle["curriculum"] = "curriculum.by is none" if config.envs else "there is one environment"
    if not ESTIMATORS.find(config.advantage.name).needs_values:
        idle["critic"] = f"{config.advantage.name} needs no values"
    correction = config.correction
    if not correction.weighs and not correction.second_moment:
        idle["correction"] = "correction.name is none"
    if not config.loss.kl_coef and not config.reward.kl_coef:
        idle["reference"] = "loss.kl_coef and reward.kl_coef are 0"
    return idle


def _formula(function: Callable[..., object]) -> Iterator[str]:
    """The first paragraphs of its documentation."""
    for line in (inspect.getdoc(getattr(function, "func", function)) or "(not documented)").splitlines():
        yield f"  {line}".rstrip()


def _source(resolved: Resolved, key: Key) -> str:
    if key.path in resolved.places:
        return resolved.places[key.path]
    return f"default ({key.origin})" if key.origin else "default"
