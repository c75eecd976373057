"""What is checked of model and memory before a run's folder is made and before any weight is loaded."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from roll_envs import env_registry as registry
from roll_envs.datasets.audit import refuse_unreadable
from roll_envs.errors import ConfigError
from trainer.cluster import check_manager
from trainer.cluster.learner_ranks import check_ranks
from trainer.cluster.roles import check_role_backends
from trainer.cluster.seats import Placement, place, this_machine
from trainer.config import RunConfig
from trainer.config.parts import BACKENDS, ENGINES, part_settings
from trainer.engines import find_engine
from trainer.engines.judges import check_judges
from trainer.model.hub import find_model
from trainer.model.network import build_tokenizer, load_tokenizer, small_config, words_of
from trainer.rollout.source import side_by_side
from trainer.run.memory_plan import MemoryPlan, make_plan, read_model_config


class Ready(NamedTuple):
    """What was found."""

    config: RunConfig
    """The configuration, with the commit of a model of the hub, so that a resumed run uses the same."""
    plan: MemoryPlan
    placement: Placement
    warnings: list[str]
    """What may go wrong."""


def preflight(config: RunConfig) -> Ready:
    """Find the model, look at its chat template, and plan the memory of the run.

    Raises :class:`ConfigError` for a data set whose references cannot be graded, a model that is not there, has no
    chat template or cannot be divided over the ranks, a judge that nobody serves, a cluster that does not answer, a
    placement that cannot be met, and a run that cannot fit; what engine and learner backend miss on this machine, and
    why they cannot run this model.
    """
    placement = _check_players(config)
    for entry in config.environments:
        refuse_unreadable(entry.id, entry.kwargs)
    check_ranks(config)
    backend = BACKENDS.find(config.learner.backend)
    if config.cluster == "local":  # elsewhere each node is asked, when its rank is there
        backend.check_machine(config)
        check_role_backends(config)
    config, model = model_config(config)
    backend.check_model(config, model)
    _check_positions(config, model)
    plan = make_plan(config, model, threads=lambda numbers: side_by_side(config, numbers))
    find_engine(config.engine.name).check_model(config, model)
    return Ready(config, plan, placement, plan.check() + _warnings(config))


def check_evaluation(config: RunConfig) -> None:
    """What of :func:`preflight` holds for an evaluation, where no learner takes part, and rows that cannot be graded
    are counted apart."""
    _check_players(config)
    if find_engine(config.engine.name).prompts(config) is None:
        config, model = model_config(config)
        _check_positions(config, model)
        find_engine(config.engine.name).check_model(config, model)


def _check_players(config: RunConfig) -> Placement:
    """Who sits where; raises :class:`ConfigError` for what environments, judges and engine miss."""
    check_manager(config.rollout)
    placement = place(config, this_machine())
    check_judges(config)
    find_engine(config.engine.name).check_machine(config)
    return placement


def _check_positions(config: RunConfig, model: Any) -> None:
    """Raise :class:`ConfigError` for requests that may be longer than the model; one with scaled rotary positions takes
    longer ones than its configuration says."""
    longest = getattr(model, "max_position_embeddings", None)
    scaled = "'factor'" in str(getattr(model, "rope_parameters", None))
    if longest is not None and not scaled and config.engine.counts_tokens and config.engine.max_tokens > longest:
        raise ConfigError(
            f"engine.max_tokens {config.engine.max_tokens} is more than the model's {longest}; it has no position for "
            f"the last tokens: lower engine.max_tokens to {longest}"
        )


def _warnings(config: RunConfig) -> list[str]:
    found = []
    settings = part_settings(config.engine, ENGINES.find(config.engine.name))
    quantization = getattr(settings, "quantization", None)
    if quantization is not None and config.correction.name == "none":
        found.append(
            f"engine.quantization {quantization!r} samples by other numbers than the learner's, and nothing makes up "
            "for the difference; set correction.name to 'tis' or 'mis'"
        )
    if (processes := os.environ.get("WORLD_SIZE", "1")) != "1":
        found.append(
            f"WORLD_SIZE is {processes}, as torchrun sets it for each of several processes, and every roll-train is a "
            "run of its own; start it once, and say placement.learner.ranks"
        )
    return found


def model_config(config: RunConfig) -> tuple[RunConfig, Any]:
    """The configuration, with the commit of a model of the hub, and the Hugging Face configuration of its model.

    Raises :class:`ConfigError` for a model that is not there, or has no chat template.
    """
    model: Any
    if config.model.path is None:
        words: list[str] = []
        for entry in config.environments:
            env = registry.make_within(config.rollout.longest_make_s, entry.id, entry.kwargs)
            words += words_of(env)
            registry.discard(env)
        model = small_config(config.model, build_tokenizer(words))
    else:
        found = find_model(config.model, weights=False)
        load_tokenizer(found.folder, config.model.path)
        model = read_model_config(found.folder)
        if found.commit is not None:
            pinned = config.model.model_copy(update={"revision": found.commit})
            config = config.model_copy(update={"model": pinned})
    return config, model
