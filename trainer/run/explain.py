"""What a configuration learns by: the formulas of its estimator and loss, and each setting with where it is from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

from trainer.config import ROLES, ModelConfig, RunConfig, WarmStartConfig
from trainer.config.algorithm import Section, changed
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

_OF_STARTED_SERVERS = ("port", "venv", "arguments", "log_file", "gpus", "cpus", "gpu_memory_utilization")
_OF_RANKS = ("timeout_s", "start_timeout_s", "restarts")
"""Settings of servers that the run starts, and of ranks in processes of their own."""


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
    correction = config.correction
    if not correction.weighs and not correction.second_moment:
        idle["correction"] = "correction.name is none"
    return idle | {name: why for name in ROLES if (why := config.without(name))}


def unread(config: RunConfig) -> dict[str, str]:
    """Settings that are at neither their defaults nor what the recipe says, and that nothing of this configuration
    reads, by dotted key; and why."""
    reward, loss, optimizer, learner = config.reward, config.loss, config.optimizer, config.learner
    one_process = config.cluster == "local" and config.placement.learner.ranks == 1
    rows: list[tuple[str, Iterable[str], Any, str]] = [
        ("model", ModelConfig.model_fields.keys() - {"path", "revision"}, config.model.path, "model.path is given"),
        ("context", ["turns"], config.context.kind != "last", "context.kind is not last"),
        ("engine", _OF_STARTED_SERVERS, getattr(config.engine, "url", None), "the servers of engine.url run already"),
        ("warm_start", WarmStartConfig.model_fields, not config.warm_start.steps, "warm_start.steps is 0"),
        ("reward", ["kl_estimator"], not reward.kl_coef, "reward.kl_coef is 0"),
        ("reward", ["kl_horizon"], reward.kl_target is None, "reward.kl_target is null"),
        ("reward", ["overlong_buffer", "overlong_factor"], not reward.overlong_tokens, "overlong_tokens is null"),
        ("loss", ["kl_estimator", "kl_unbiased"], not loss.kl_coef, "loss.kl_coef is 0"),
        ("optimizer", ["lr_min_share"], optimizer.lr_schedule == "constant", "lr_schedule is constant"),
        ("optimizer", ["lr_decay_share"], optimizer.lr_schedule != "wsd", "lr_schedule is not wsd"),
        ("learner", ["lora_alpha", "lora_targets"], not getattr(learner, "lora_rank", 0), "lora_rank is 0"),
        ("placement.learner", _OF_RANKS, one_process, "the learner is in the trainer's process"),
        *((name, type(getattr(config, name)).model_fields, True, why) for name, why in _idle(config).items()),
    ]
    recipe = {} if config.algorithm is None else find_preset(config.algorithm).settings
    found = {}
    for name, keys, idle, why in rows:
        section: Any = reduce(getattr, name.split("."), config)
        if idle:
            there = changed(section, set(keys) & type(section).model_fields.keys())
            own = (key for key in there if (f"{name}.{key}", getattr(section, key)) not in recipe.items())
            found.update({f"{name}.{key}": why for key in own})
    return found


def _formula(function: Callable[..., object]) -> Iterator[str]:
    """The first paragraphs of its documentation."""
    for line in (inspect.getdoc(getattr(function, "func", function)) or "(not documented)").splitlines():
        yield f"  {line}".rstrip()


def _source(resolved: Resolved, key: Key) -> str:
    if key.path in resolved.places:
        return resolved.places[key.path]
    return f"default ({key.origin})" if key.origin else "default"
