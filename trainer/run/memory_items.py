"""What takes memory in a run, as items of a plan: formulas of what a learner and an engine hold, and when.

Weights, optimiser state and what a backward pass keeps are counted (:mod:`trainer.run.counted`). The rest are bounds,
not measurements. ``docs/gpu.md`` says how far they were from the truth. Left out: what libraries and the device's own
runtime take, and memory that an allocator holds and does not use.

Names: P parameters, T tokens of a micro-batch, V vocabulary, D width, L layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from roll_envs.errors import ConfigError
from trainer.cluster.roles import role_section
from trainer.config import RoleName, RunConfig
from trainer.config.parts import BACKENDS, ENGINES, part_settings
from trainer.engines import HFSettings
from trainer.engines.hf import DRAWN_AT_ONCE
from trainer.engines.prefix_cache import FIRST_PLACES, KEPT_LOGITS, LOGITS_BYTES, PASS_TOKENS
from trainer.engines.preflight import RemoteSettings
from trainer.learner import Shares
from trainer.model.forward import BUFFERS, positions_within
from trainer.run.counted import Counted

GIB = 2**30

ALWAYS, BACKWARD, STEP, SAMPLING, LOADING = "always", "backward", "optimiser step", "sampling", "loading"
CRITIC_BACKWARD, CRITIC_STEP = "the critic's backward", "the critic's optimiser step"

_SAMPLING_BYTES = 28
"""For each logit that is sampled from: the logit, and its log-probability, probability and their sums in float64."""


class Item(NamedTuple):
    """Something that takes memory."""

    owner: str
    """learner, engine or driver."""
    what: str
    bytes: float
    when: str = ALWAYS
    """``always``, or the phase in which it exists: backward, optimiser step, sampling, loading, and those of a critic,
    which steps before the policy."""
    keys: tuple[str, ...] = ()
    """What makes it smaller."""
    home: str = ""
    """The device that it stays on, where that is not the one which computes with it."""


def gib(size: float) -> str:
    return f"{size / GIB:.2f}" if size < 10 * GIB else f"{size / GIB:.1f}"


# -- the learner -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trained:
    """A network that is trained: policy or critic. In bytes unless it says otherwise."""

    weights: float
    whole: float
    """Weights outside of layers, and those of two layers, as they are run."""
    trained: int
    """A count."""
    masters: float
    state: float
    """Of the optimiser."""
    half: bool
    threads: int = 1
    backward: str
    step: str
    keys: tuple[str, ...]
    """What makes gradients and optimiser smaller."""
    weights_keys: tuple[str, ...]
    """What makes weights smaller."""


def _held(what: _Trained, even: Shares, counted: Counted) -> list[Item]:
    """What a rank has of a network of which it holds ``even`` shares, and what it has beside that in a step."""
    held, dealt = _on_first_stage(even, counted), counted.experts / counted.numbers
    gathered = what.whole if held.gathers and (held.weights < 1 or "weights" in held.in_cpu) else 0.0
    item, threads, smaller = partial(Item, "learner"), what.threads, what.keys
    # Replicas add to gradients of their own, and so do weights in half precision, until a micro-batch is done.
    # Of weights that are held in shares a rank has no other gradients.
    apart = what.trained * (2 if what.half else 4) * (threads if what.half or threads > 1 else 0) * held.weights
    stepped = 4 * what.trained * held.optimizer
    bucket = min(held.bucket, what.trained) * (2 if what.half and not held.keeps_gradients else 4)
    if bucket and not held.keeps_gradients:  # those of a micro-batch are in it
        apart = 0.0
    kept = ALWAYS if held.keeps_gradients else what.backward
    shares = ((1 - dealt, even.gradients), (dealt, even.gradients * even.experts))
    copied = 1.0 if held.flat else sum(part for part, share in shares if even.optimizer < share)
    weights, gradients, stepping = (
        partial(item, home="cpu" if part in held.in_cpu else "") for part in ("weights", "gradients", "optimizer")
    )
    return [
        weights("weights", what.weights * held.weights, keys=what.weights_keys),
        item("weights outside of layers, and of two layers, put together", gathered, what.backward),
        stepping("float32 copies of weights", max(what.masters * held.optimizer, stepped * held.flat), keys=smaller),
        gradients("gradients", 4 * what.trained * held.gradients, kept, smaller),
        item("bucket of gradients", bucket, kept, smaller),
        stepping("optimiser state", what.state * held.optimizer, keys=smaller),
        item(
            "gradients of micro-batches",
            apart,
            what.backward,
            (*smaller, *(("learner.threads",) if threads > 1 else ())),
        ),
        stepping(
            "gradients as the optimiser takes them", stepped * copied * (1 if kept == ALWAYS else 2), what.step, smaller
        ),
        stepping("sums of the optimiser", stepped, what.step, smaller),
    ]


def learner_items(config: RunConfig, counted: Counted, device: str, threads: int) -> list[Item]:
    """What the learner holds, and what a micro-batch and an optimiser step take beside it."""
    settings = config.learner
    half = getattr(settings, "precision", "float32") != "float32"
    lora = bool(getattr(settings, "lora_rank", 0))
    precise = () if half else ("learner.precision",)
    backend, ranks = BACKENDS.find(settings.backend), config.placement.learner.ranks
    own = part_settings(settings, backend)
    even = backend.shares(own, ranks)
    streamed = ranks > 1 and backend.fills(own)  # into the shares of a network that begins without memory
    policy = _Trained(
        weights=counted.weights,
        whole=(2 if half else 4) * (counted.outer + 2 * (counted.numbers - counted.outer) / counted.layers),
        trained=counted.trained,
        masters=counted.masters,
        state=counted.optimizer,
        half=half,
        threads=threads,
        backward=BACKWARD,
        step=STEP,
        keys=("learner.lora_rank",),
        weights_keys=precise,
    )
    items = _held(policy, even, counted)
    if not config.without("reference"):
        moves = bool(config.reference.refresh_every) or config.backend_of("reference") != settings.backend
        numbers = 0 if lora and not moves else counted.numbers * _shares_of(config, "reference", counted).weights
        items.append(
            Item(
                "learner", "reference", numbers * (2 if half else 4), keys=(*precise, "loss.kl_coef", "reward.kl_coef")
            )
        )
    if not config.without("critic"):
        items += [item._replace(what=f"critic: {item.what}") for item in _critic(config, counted)]
    items += _microbatch(config, counted, even.tokens, threads, device)
    if device != "cpu" and not streamed:
        items.append(Item("loading", "weights in float32", 4 * counted.numbers, LOADING))
    return items


def _critic(config: RunConfig, counted: Counted) -> list[Item]:
    """What the critic holds, in float32, and what a micro-batch and a step of it take beside that."""
    section = role_section(config, "critic")
    backend, body = BACKENDS.find(section.backend), counted.body
    even = backend.shares(part_settings(section, backend), config.placement.learner.ranks)
    network = _Trained(
        weights=4 * body,
        whole=4 * (counted.head + 2 * (body - counted.head) / counted.layers),
        trained=body,
        masters=0,
        state=8 * body,
        half=False,
        backward=CRITIC_BACKWARD,
        step=CRITIC_STEP,
        keys=("advantage.name",),
        weights_keys=("advantage.name",),
    )
    tokens, keys = _longest(config, "critic", config.critic.tokens_per_microbatch, even.tokens)
    again = bool(getattr(section, "gradient_checkpointing", False))
    kept = _activations(counted, counted.critic_kept, 4, tokens, again=again) + counted.critic_kept_once
    keys = (*keys, *(() if again else ("learner.gradient_checkpointing",)))
    passes = Item("learner", f"activations of {tokens:,} tokens", kept, CRITIC_BACKWARD, keys)
    return [*_held(network, even, counted), passes]


def _shares_of(config: RunConfig, name: RoleName, counted: Counted) -> Shares:
    section = role_section(config, name)
    backend = BACKENDS.find(section.backend)
    return _on_first_stage(backend.shares(part_settings(section, backend), config.placement.learner.ranks), counted)


def _on_first_stage(even: Shares, counted: Counted) -> Shares:
    """``even`` shares of all weights as the first stage of a pipeline has them, with the whole embedding, and with its
    share of the experts."""
    more = (even.stages * counted.head - counted.outer if even.stages > 1 else 0) / counted.numbers
    dealt = counted.experts / counted.numbers * (1 - even.experts)
    held = {name: (1 + more - dealt) * getattr(even, name) for name in ("weights", "gradients")}
    return replace(even, **held, optimizer=(1 + more) * even.optimizer)


def _longest(config: RunConfig, section: str, limit: int, share: float) -> tuple[int, tuple[str, ...]]:
    """Tokens of the longest micro-batch, of which a rank runs ``share``, and the keys that make it shorter. A line of
    packed sequences is never divided over micro-batches, nor a sequence over lines."""
    limits = {f"{section}.tokens_per_microbatch": limit, "learner.pack_tokens": config.learner.pack_tokens}
    if config.engine.counts_tokens:
        limits["engine.max_tokens"] = config.engine.max_tokens
    most = max(limits.values())
    return math.ceil(most * share), tuple(key for key, tokens in limits.items() if tokens == most)


def _activations(counted: Counted, kept: float, size: int, tokens: int, *, again: bool, beside: float = 0.0) -> float:
    """Bytes of a backward pass over ``tokens``, of which a forward pass keeps ``kept`` each; ``again``: a layer's
    inside is computed again, when ``beside`` bytes are free that the pass has taken elsewhere."""
    layer = kept * tokens / counted.layers
    if again:
        return counted.layers * counted.width * size * tokens + max(2 * layer - beside, 0.0)
    return kept * tokens + layer  # one layer's gradients beside it


def _microbatch(config: RunConfig, counted: Counted, share: float, threads: int, device: str) -> list[Item]:
    """What forward and backward of one micro-batch keep, and the logits."""
    settings = config.learner
    size = 2 if getattr(settings, "precision", "float32") != "float32" else 4
    tokens, keys = _longest(config, "learner", settings.tokens_per_microbatch, share)
    checkpointed = bool(getattr(settings, "gradient_checkpointing", False))
    at_once = min(tokens, positions_within(float(getattr(settings, "logits_mib", 256.0)), counted.vocabulary))
    logits = 4.0 * BUFFERS * at_once * counted.vocabulary  # gone when a layer is computed again
    kept = _activations(counted, counted.kept, size, tokens, again=checkpointed, beside=logits) + counted.kept_once
    keys = (*keys, *(() if checkpointed else ("learner.gradient_checkpointing",)))
    keys = (*keys, *(("learner.threads",) if threads > 1 else ()))
    # In float32: its gradient, and beside that of weights in half precision a product, or on a CPU the weights.
    frozen = bool(getattr(settings, "lora_rank", 0))
    head = 4 * counted.head * ((not frozen) + (size == 2 and not (frozen and device != "cpu")))
    return [
        Item("learner", f"activations of {tokens:,} tokens", threads * kept, BACKWARD, keys),
        Item(
            "learner",
            f"logits of {at_once:,} of these tokens x {counted.vocabulary:,} ids",
            threads * logits,
            BACKWARD,
            ("learner.logits_mib",),
        ),
        Item("learner", "the head's gradient and products", threads * head, BACKWARD, ("learner.lora_rank",)),
    ]


# -- the engine --------------------------------------------------------------------------------------------------------


def _places(slots: int, longest: int) -> int:
    """Tokens that the built-in engine's cache has room for in the end: it doubles until all slots can be full."""
    width, places = FIRST_PLACES, slots * FIRST_PLACES + 1
    while width < longest:
        width *= 2
    while places <= slots * width:
        places *= 2
    return places


def _hf(config: RunConfig, settings: HFSettings, counted: Counted, device: str) -> list[Item]:
    """The built-in engine: its copy of the weights has the learner's precision. Updates, growth, passes and draws come
    one after the other, so that the largest of them counts."""
    size = 2 if getattr(config.learner, "precision", "float32") != "float32" else 4
    stored = 4 if device == "cpu" else size
    slots, item = settings.max_running, partial(Item, "engine")
    cache = float(_places(slots, config.engine.max_tokens) * counted.key_values * stored)
    prompts = min(PASS_TOKENS, slots * config.engine.max_tokens)
    seen = slots * config.engine.max_tokens * counted.key_values / counted.layers * stored
    logits = slots * counted.vocabulary
    drawn = min(logits, DRAWN_AT_ONCE) if device == "cpu" else logits
    running, moment = ("engine.max_running", "engine.max_tokens"), partial(item, when=SAMPLING)
    moments = [
        moment("keys and values while their room grows", cache / 2, keys=running),
        moment(
            f"a pass over {prompts:,} new tokens",
            prompts * size * (3 * counted.inner + 5 * counted.width) + seen,
            keys=running,
        ),
        moment(
            f"sampling from {slots} x {counted.vocabulary:,} logits",
            float(drawn * _SAMPLING_BYTES + logits * 2 * size),
            keys=("engine.max_running",),
        ),
    ]
    if device == "cpu":
        moments.append(moment("weights of before, during an update", counted.numbers * size))
    return [
        item("copy of the weights", counted.numbers * size, keys=() if size == 2 else ("learner.precision",)),
        item(f"keys and values of at most {slots} x {config.engine.max_tokens:,} tokens", cache, keys=running),
        item("logits that are kept", min(LOGITS_BYTES, 4 * KEPT_LOGITS * counted.vocabulary)),
        max(moments, key=lambda each: each.bytes),
    ]


def _server(settings: RemoteSettings, counted: Counted, device: str, memory: float) -> list[Item]:
    """Servers that the run starts, on a device with so many bytes; one that runs already has its memory already, and
    one on other GPUs takes none of this one. Raises :class:`ConfigError` where a GPU has no room for the weights."""
    if settings.urls:
        return []
    item = partial(Item, "engine")
    size, cache = bytes_of_weight(settings, device), float(getattr(settings, "kv_cache_gib", 0.0))
    weights: float = counted.numbers * size - counted.matrices * (size - 1 if settings.quantization else 0)
    if device != "cpu":
        # With GPUs of their own to choose, a GPU has one of them at most.
        here = 1 if settings.gpus else settings.replicas
        taken, weights = settings.gpu_memory_utilization * memory, weights / settings.tensor_parallel_size
        if weights >= taken:
            raise ConfigError(
                f"engine.gpu_memory_utilization {settings.gpu_memory_utilization:g} of {device} are {gib(taken)} GiB, "
                f"and the weights of a server alone take {gib(weights)} GiB there; raise it or "
                f"engine.tensor_parallel_size{'' if settings.quantization else ', or set engine.quantization: fp8'}"
            )
        if settings.gpus is not None and not settings.sleepers:
            return []
        when, keys = ALWAYS if settings.colocated is False else SAMPLING, ("engine.gpu_memory_utilization",)
        return [
            item("weights of servers", here * weights, when, keys),
            item("keys and values of servers", here * (taken - weights), when, keys),
        ]
    return [
        item("copy of the weights", settings.replicas * weights, keys=("engine.dtype", "engine.quantization")),
        item("keys and values", settings.replicas * cache * GIB, keys=("engine.kv_cache_gib",)),
        item("the weights that were sent, and new ones on their way", 2 * size * counted.numbers, SAMPLING),
    ]


def bytes_of_weight(settings: RemoteSettings, device: str) -> int:
    """Of a weight that servers on ``device`` do not quantise."""
    return 4 if settings.dtype_on(gpu=device != "cpu") == "float32" else 2


def engine_items(config: RunConfig, counted: Counted, device: str, memory: float) -> list[Item]:
    """What the engine holds; nothing for one of which nothing is known."""
    settings = part_settings(config.engine, ENGINES.find(config.engine.name))
    if isinstance(settings, HFSettings):
        return _hf(config, settings, counted, device)
    return _server(settings, counted, device, memory) if isinstance(settings, RemoteSettings) else []
