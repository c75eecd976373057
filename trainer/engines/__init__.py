"""The contract of inference engines, and making one by name.

An engine is a :class:`roll_envs.policy.Policy` that also takes new weights. Engines differ in what else they can do:
:attr:`Engine.capabilities` says it, and whoever needs something asks there first. Looking an engine up imports no
library of it (no torch); making it does.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from roll_envs.errors import ConfigError, EngineError, PluginError
from roll_envs.policy import Policy, Renderer
from roll_envs.settings import Part, Settings
from roll_envs.types import SamplingParams
from trainer.config import EngineConfig
from trainer.config.parts import ENGINES, part_settings

if TYPE_CHECKING:
    import torch

    from trainer.config import RunConfig
    from trainer.model.network import LanguageModel

__all__ = [
    "ENGINES",
    "HF",
    "Capabilities",
    "Engine",
    "EnginePart",
    "HFSettings",
    "MakeEngine",
    "Prompts",
    "check_can_train",
    "check_request",
    "find_engine",
    "make_engine",
    "not_trained_here",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What an engine can do beyond answering and taking weights between requests."""

    logprobs: bool = False
    """Completions carry the log-probability of each id at the sampling temperature; training needs it."""
    updates_in_flight: bool = False
    """:meth:`Engine.update_weights` may be called while requests run; they go on with the new weights."""
    version_spans: bool = False
    """A completion that several versions of the weights sampled says which ids are whose."""
    prefix_cache: bool = False
    """A prompt that begins like an earlier one pays for what is new in it."""
    pause: bool = False
    """:meth:`Engine.pause` and :meth:`Engine.resume` work."""
    abort: bool = False
    """:meth:`Engine.abort` works."""
    sleep: bool = False
    """The engine shares a device with the learner; :meth:`Engine.sleep` gives its memory back."""
    answers_asleep: bool = False
    """Some of its replicas share no device with the learner; they answer while the others sleep."""


class Engine(Policy):
    """A policy with weights that can be replaced. What an engine cannot do it leaves out, here and in
    ``capabilities``."""

    version: int = 0
    """Version of the weights in use."""
    capabilities: Capabilities = Capabilities()

    @abc.abstractmethod
    def update_weights(self, source: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take new weights: a stream of Hugging Face names and tensors in any order, read once.

        Returns when requests submitted from now on are answered by ``version``. Of tensors that the model ties, one
        name is enough. Raises :class:`EngineError` for names that are unknown or missing and for shapes that do not
        fit; the weights of before then go on; where they cannot, the engine refuses requests until an update succeeds.
        """

    def pause(self) -> None:
        """Stop sampling and keep the requests. Returns once no sampling goes on."""
        raise EngineError(f"{type(self).__name__} cannot pause; ask its capabilities first")

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        raise EngineError(f"{type(self).__name__} cannot pause; ask its capabilities first")

    def abort(self) -> None:
        """End every request with ``finish="abort"`` and what was sampled so far."""
        raise EngineError(f"{type(self).__name__} cannot abort; ask its capabilities first")

    def sleep(self) -> None:
        """Give back the memory of weights, keys and values on the learner's devices. Requests wait until
        :meth:`update_weights` or :meth:`wake`, or go to replicas that stay awake."""
        raise EngineError(f"{type(self).__name__} cannot sleep; ask its capabilities first")

    def wake(self) -> None:
        """Go on after :meth:`sleep`, with the weights of before."""
        raise EngineError(f"{type(self).__name__} cannot sleep; ask its capabilities first")

    def health(self) -> None:
        """Raise :class:`EngineError` when the engine cannot answer."""

    def close(self) -> None:
        """End every request and give back what the engine holds. May be called twice."""


class MakeEngine(Protocol):
    """Starts an engine on ``model``: a LanguageModel of this process, the Path of one in Hugging Face form, or None for
    an engine with :meth:`prompts <EnginePart.prompts>` of its own."""

    def __call__(self, model: Any, settings: Any, *, max_tokens: int, device: str) -> Engine: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """How prompts are written for an engine whose model is not the run's own."""

    renderer: Renderer
    max_tokens: int
    """Longest prompt + completion, in ids of the renderer."""


@dataclass(frozen=True, kw_only=True)
class EnginePart(Part):
    """An engine by name: its settings (keys of the section ``engine``), and how it is made of them.

    ``max_tokens`` is the longest prompt + completion, ``device`` one of auto, cpu, cuda.
    """

    make: MakeEngine

    def prompts(self, config: RunConfig) -> Prompts | None:
        """How prompts are written for an engine with a model of its own, which is not trained here; None for one that
        runs the model of ``config``, by whose chat template they are written."""
        return None

    def check_model(self, config: RunConfig, model: Any) -> None:
        """Raise :class:`ConfigError` where the engine cannot run a model of Hugging Face configuration ``model`` as
        ``config`` says. Asked before a run begins, and before a weight is loaded."""


def find_engine(name: str) -> EnginePart:
    """The engine of that name. Raises :class:`UnknownNameError` or :class:`PluginError`."""
    part = ENGINES.find(name)
    if not isinstance(part, EnginePart):
        raise PluginError(f"engine {name!r} is a {type(part).__name__}; it must be a trainer.engines.EnginePart")
    return part


def make_engine(model: LanguageModel | Path | None, config: EngineConfig) -> Engine:
    """The engine ``config.name``, started. Raises :class:`UnknownNameError` or :class:`PluginError`."""
    part = find_engine(config.name)
    return part.make(model, part_settings(config, part), max_tokens=config.max_tokens, device=config.device)


def check_can_train(name: str, engine: Engine) -> None:
    """Raise :class:`ConfigError` when what ``engine`` answers cannot be trained on."""
    if not engine.capabilities.logprobs:
        raise ConfigError(
            f"engine.name {name!r}: this engine gives no log-probabilities at the sampling temperature, and training "
            "needs them; choose another engine (it is good for evaluation)"
        )


def not_trained_here(name: str) -> ConfigError:
    """What to say where the model of an engine with prompts of its own is to be trained."""
    return ConfigError(
        f"engine.name {name!r}: the model is the server's, and training needs one here; choose another engine "
        "(this one is good for evaluation: roll-eval CONFIG)"
    )


def check_request(
    prompt_ids: Sequence[int], sampling: SamplingParams, *, vocabulary: int, max_tokens: int
) -> tuple[int, ...]:
    """The ids of the prompt. Raises :class:`EngineError` for a request that no engine with a model of ``vocabulary``
    ids and room for ``max_tokens`` can answer."""
    prompt = tuple(prompt_ids)
    if not prompt:
        raise EngineError("the prompt is empty; a request needs at least one token id")
    if not 0 <= min(prompt) <= max(prompt) < vocabulary:
        raise EngineError(
            f"the prompt has token ids from {min(prompt)} to {max(prompt)}; the model knows 0 to {vocabulary - 1}. "
            "Prompt and model must use the same tokenizer"
        )
    if sampling.max_new_tokens < 1 or not 0 <= sampling.temperature < math.inf:
        raise EngineError(
            f"max_new_tokens {sampling.max_new_tokens}, temperature {sampling.temperature}: "
            "allowed are 1 or more, and 0 or more"
        )
    if sampling.seed is not None and not 0 <= sampling.seed < 2**128:
        raise EngineError(f"the seed is {sampling.seed}; allowed: null, or 0 to 2**128 - 1")
    if len(prompt) + sampling.max_new_tokens > max_tokens:
        raise EngineError(
            f"prompt of {len(prompt)} tokens + max_new_tokens {sampling.max_new_tokens} exceed "
            f"engine.max_tokens {max_tokens}; raise it or shorten the prompt"
        )
    return prompt


class HFSettings(Settings):
    """Settings of the built-in engine."""

    max_running: int = Field(128, ge=1)
    """Requests that share one forward pass."""


def _make_hf(model: LanguageModel | Path, settings: HFSettings, *, max_tokens: int, device: str) -> Engine:
    from trainer.engines.hf import HFEngine
    from trainer.model.network import load_model

    loaded = load_model(model) if isinstance(model, Path) else model
    return HFEngine(loaded, max_running=settings.max_running, max_tokens=max_tokens, device=device)


HF = EnginePart(settings=HFSettings, make=_make_hf)
