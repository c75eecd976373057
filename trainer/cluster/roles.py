"""Reference and critic whose backend is another one than the policy's: ``reference.backend``, ``critic.backend``.

A learner of that backend is made of the policy's weights, asked for the role, and dropped; no step is ever taken with
it. It is made by all ranks together, from a stream of which a few weights are whole at a time.

Torch is imported by what makes networks, so that a run is checked without it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from trainer.cluster.seats import learner_device
from trainer.config import ROLES, LearnerConfig, LossConfig, OptimizerConfig, RoleName, RunConfig
from trainer.config.parts import BACKENDS, part_settings
from trainer.learner import BackendPart, ComputeSettings, Learner, make_learner

if TYPE_CHECKING:
    import torch

    from trainer.learner.gradients import Ranks


def role_section(config: RunConfig, name: RoleName) -> LearnerConfig:
    """The section ``learner`` as it is for a role: the run's own, or that of another backend with the settings that all
    backends share."""
    backend = config.backend_of(name)
    if backend == config.learner.backend:
        return config.learner
    shared = BACKENDS.find(backend).settings.model_fields.keys() & ComputeSettings.model_fields.keys()
    given = {key: value for key, value in config.learner if key in shared or key in LearnerConfig.model_fields}
    return LearnerConfig(**{**given, "backend": backend})


def role_host(
    config: RunConfig, name: RoleName, policy: Learner, model_config: Any, *, ranks: Ranks | None = None
) -> Learner:
    """The learner whose ``reference`` or ``critic`` is that of the run: ``policy``, or one of another backend with its
    weights, for a network of Hugging Face configuration ``model_config``. All ``ranks`` call this together."""
    from trainer.model.forward import load_weights
    from trainer.model.network import LanguageModel

    section = role_section(config, name)
    if section.backend == config.learner.backend:
        return policy
    part: BackendPart = BACKENDS.find(section.backend)
    fills = part.fills(part_settings(section, part))
    network = network_of(model_config, empty=fills)
    if not fills:
        load_weights(network, policy.weights(), "the policy")
    device = section.device if ranks is not None else learner_device(config)
    host: Any = make_learner(
        LanguageModel(network=network, tokenizer=None),
        loss=LossConfig(),
        optimizer=OptimizerConfig(),
        temperature=config.sampling.temperature,
        settings=section,
        device=device if getattr(config.placement, name).device is None else "cpu",  # from where it is moved
        ranks=ranks,
    )
    if fills:
        host.load_weights(policy.weights())
    found: Learner = host
    return found


def check_role_backends(config: RunConfig) -> None:
    """Raise :class:`~roll_envs.errors.MissingExtraError` where the backend of a role that there is lacks its
    package."""
    for name in (role for role in ROLES if not config.without(role)):
        backend = config.backend_of(name)
        BACKENDS.find(backend).check_package(f"{name}.backend", backend)


def network_of(model_config: Any, *, empty: bool) -> Any:
    """A network whose weights are yet to be loaded, in float32; ``empty`` ones have no memory (the meta device)."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    with no_init_weights(), _without_memory() if empty else nullcontext():
        own = copy.deepcopy(model_config)  # the attention of a network is written into its configuration
        network = AutoModelForCausalLM.from_config(own, attn_implementation="sdpa").float()
    network.tie_weights()  # which waits for first weights otherwise
    return network


@contextmanager
def _without_memory() -> Iterator[None]:
    """Weights of modules that are made here are on the meta device; buffers, such as angles of positions, have their
    numbers."""
    import torch

    register = torch.nn.Module.register_parameter

    def registered(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None:
            parameter = torch.nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = registered  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
