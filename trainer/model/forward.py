"""A language model at work: log-probs of labels and entropies of a micro-batch, and its weights as a stream.

Sequences are run end to end without their padding (:mod:`trainer.model.attention`). What they share is run once, and so
is a label that several of them have in the same place. Only positions that have a label reach the head.

The logits of all positions never exist at once: they are taken a chunk at a time, forward and backward. When all
positions fit into one chunk, its logits are kept for the backward pass; otherwise they are computed a second time there
(a fourth product with the head where a full computation has three). All sums are in float32 or better, whatever the
weights are kept in; the result is exact, not sampled.

Shapes: B packed lines of a micro-batch, T positions, N positions that are run, n with a label, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from roll_envs.errors import CheckpointError, ConfigError, RollError, UnknownNameError
from trainer.data.batches import Batch
from trainer.model.attention import Kind, layout_of_positions, layout_of_tree, share_prefixes
from trainer.model.context import ContextRanks, TokenSlice

BUFFERS = 2
"""Numbers held for each logit while a chunk is worked on: the logit, and its exponential."""


class Head(NamedTuple):
    """The last layer of a language model."""

    weight: torch.Tensor
    """[V, D]"""
    bias: torch.Tensor | None = None
    """[V]"""
    softcap: float | None = None
    """Logits are ``softcap * tanh(logits / softcap)``, as in Gemma 2."""


def head_of(network: Any) -> Head:
    """The head of a Hugging Face causal language model; tied to the embedding or not.

    Raises :class:`ConfigError` where the head is not linear, or the model scales its logits in a way that is not known
    here.
    """
    layer = network.get_output_embeddings()
    if not isinstance(layer, torch.nn.Linear):
        raise ConfigError(
            f"the output layer of {type(network).__name__} is {type(layer).__name__}; allowed: torch.nn.Linear. "
            "Use a model whose logits are one product with the head's weights"
        )
    config = network.config
    for key in ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier_scale"):
        value = getattr(config, key, None)
        if value is not None and value != 1:
            raise ConfigError(
                f"{type(network).__name__} has {key} {value}, which learner and built-in engine do not apply; allowed: "
                "1. Fold it into the head's weights, or use another model"
            )
    return Head(layer.weight, layer.bias, getattr(config, "final_logit_softcapping", None))


def positions_within(mib: float, vocabulary: int) -> int:
    """How many positions' logits, in float32 and with what is computed from them, take ``mib`` MiB; at least 1.

    256 MiB and 151,936 ids give 220.
    """
    return max(1, int(mib * 2**20) // (4 * BUFFERS * vocabulary))


def linear_logprobs(
    hidden: torch.Tensor, labels: torch.Tensor, head: Head, *, temperature: float, chunk: int, compiled: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of ``labels`` [N] and entropies [N] in nats of the sampling distribution after ``hidden`` [N, D].

    At least float32; both can be differentiated with respect to ``hidden`` and the head. ``chunk`` is the number of
    positions whose logits are held at once. ``compiled`` puts what is done with logits together, so that memory is
    passed over fewer times.
    """
    logp, entropy = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, labels, head.softcap, temperature, chunk, compiled
    )
    return logp, entropy


def compile_layers(network: Any) -> None:
    """Have the layers of ``network`` compiled when they are first called, but for their attention; copies of it are
    not. Raises :class:`ConfigError` where there are none."""
    layers = layers_of(network)
    if not layers:
        raise ConfigError(f"learner.compile: {type(network).__name__} has no layers that are known; set it to false")
    for layer in layers:
        layer.compile(dynamic=True)


def layers_of(network: Any) -> list[Any]:
    """The transformer layers of a Hugging Face model; none where they are not marked as such."""
    return [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of logits [n, V], and others, compiled for any n."""
    # From the first call on, so that a resumed run has the bits of an unbroken one.
    run = torch.compile(function, dynamic=True)

    def call(z: torch.Tensor, *others: Any) -> Any:
        torch._dynamo.mark_static(z, 1)  # the place of a number is then found without a division by a variable
        return run(z, *others)

    return call


def _product(a: torch.Tensor, b: torch.Tensor, half: torch.dtype) -> torch.Tensor:
    """``a`` times ``b`` with a result at least float32; ``half`` is what the head's weights are kept in."""
    fine = torch.promote_types(half, torch.float32)
    if half != fine and a.is_cuda:  # CUDA multiplies half-precision numbers and sums them in float32
        return torch.mm(a.to(half), b.to(half), out_dtype=fine)
    return torch.mm(a.to(fine), b.to(fine))


def _scaled_logits(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, softcap: float | None, temperature: float
) -> torch.Tensor:
    """Logits / temperature, [n, V]. Where nothing is rounded by it, the far fewer hidden numbers are divided."""
    early = softcap is None and hidden.dtype == weight.dtype == torch.promote_types(weight.dtype, torch.float32)
    z = _product(hidden / temperature if early else hidden, weight.T, weight.dtype)
    if bias is not None:
        z.add_(bias / temperature if early else bias)
    if softcap is not None:
        z.div_(softcap).tanh_().mul_(softcap)
    return z if early or temperature == 1 else z.div_(temperature)


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        softcap: float | None,
        temperature: float,
        chunk: int,
        compiled: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        statistics = _compiled(_fused_statistics) if compiled else _statistics
        fine = torch.promote_types(weight.dtype, torch.float32)
        logp, entropy, top, logsum = torch.empty(4, len(hidden), dtype=fine, device=hidden.device)
        z = None
        for part in _parts(len(hidden), chunk):
            z = _scaled_logits(hidden[part], weight, bias, softcap, temperature)
            logp[part], entropy[part], top[part], logsum[part] = statistics(z, labels[part])
        ctx.set_materialize_grads(False)  # an entropy that is only watched costs nothing in backward
        ctx.softcap, ctx.temperature, ctx.chunk, ctx.compiled = softcap, temperature, chunk, compiled
        # The logits of a single chunk are kept: as _statistics leaves them, or as they were where it is compiled.
        ctx.kept = z if len(hidden) <= chunk and softcap is None and any(ctx.needs_input_grad[:3]) else None
        ctx.save_for_backward(hidden, weight, bias, labels, top, logsum, entropy)
        return logp, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_logp: torch.Tensor | None, grad_entropy: torch.Tensor | None) -> tuple[Any, ...]:
        hidden, weight, bias, labels, top, logsum, entropy = ctx.saved_tensors
        kept, ctx.kept = ctx.kept, None  # used up: a second backward computes the logits again
        mixed = hidden.is_cuda and weight.dtype != logsum.dtype
        fused = _compiled(_fused_gradient) if ctx.compiled else None
        # Of hidden, weight and bias, as far as they are wanted; sums in float32 or better.
        wanted: list[bool] = ctx.needs_input_grad[:3]
        by_hidden = torch.empty(hidden.shape, dtype=logsum.dtype, device=hidden.device) if wanted[0] else None
        by_weight, by_bias = (  # sums begin with the first chunk, where there is one
            torch.zeros_like(x, dtype=logsum.dtype) if want and not len(hidden) else None
            for x, want in zip((weight, bias), wanted[1:], strict=True)
        )
        for part in _parts(len(hidden), ctx.chunk):
            slope, z = None, kept
            if z is None:
                z = _scaled_logits(hidden[part], weight, bias, ctx.softcap, ctx.temperature)
                if ctx.softcap is not None:  # derivative of the capped logits by the plain ones
                    slope = 1.0 - (z * (ctx.temperature / ctx.softcap)).square_()
                if fused is None:
                    z.sub_(top[part, None])
            by_logp, by_entropy = (None if grad is None else grad[part] for grad in (grad_logp, grad_entropy))
            rest = (logsum[part], labels[part], by_logp, by_entropy, entropy[part])
            plain = slope is None and not wanted[2]
            if fused is None:
                gradient = _logit_gradient(z, *rest)
            else:
                gradient = fused(z, top[part], weight.dtype if mixed and plain else z.dtype, *rest)
            if slope is not None:
                gradient.mul_(slope)
            if wanted[2]:
                by_bias = gradient.sum(0) if by_bias is None else by_bias.add_(gradient.sum(0))
            if mixed:
                gradient = gradient.to(weight.dtype)  # as both products take it
            if by_hidden is not None:
                by_hidden[part] = _product(gradient, weight, weight.dtype)
            if wanted[1] and (mixed or by_weight is None):
                product = _product(gradient.T, hidden[part], weight.dtype)
                by_weight = product if by_weight is None else by_weight.add_(product)
            elif by_weight is not None:  # in place: it is as large as the head
                by_weight.addmm_(gradient.T, hidden[part].to(gradient.dtype))
        done = [
            None if total is None else (total if ctx.temperature == 1 else total.div_(ctx.temperature)).to(x.dtype)
            for x, total in zip((hidden, weight, bias), (by_hidden, by_weight, by_bias), strict=True)
        ]
        return *done, *[None] * 5


def _parts(count: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, count, chunk)]


def _statistics(z: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of scaled logits ``z`` [n, V], which are less their largest behind this: log-probs of the labels, entropies, the
    largest, and the logarithms of the sums of exponentials."""
    top = z.amax(-1)
    z.sub_(top[:, None])
    powers = z.exp()
    total = powers.sum(-1)
    logsum = total.log()
    logp = z.gather(1, labels[:, None])[:, 0] - logsum
    # The sum over p (log total - z): where p is 0, z is finite, unless the logits are not.
    return logp, logsum - powers.mul_(z).sum(-1) / total, top, logsum


def _logit_gradient(
    z: torch.Tensor,
    logsum: torch.Tensor,
    labels: torch.Tensor,
    grad_logp: torch.Tensor | None,
    grad_entropy: torch.Tensor | None,
    entropy: torch.Tensor,
) -> torch.Tensor:
    """Gradient by the scaled logits; ``z`` [n, V] holds them less their largest and is overwritten.

    d logp_y / dz_v = [v = y] - p_v and d H / dz_v = -p_v (log p_v + H).
    """
    logp = z.sub_(logsum[:, None])  # not with the largest in one: their sum has fewer digits than they have
    if grad_entropy is None:
        if grad_logp is None:
            return logp.zero_()
        gradient = logp.exp_().mul_(-grad_logp[:, None])
    else:
        shift = grad_entropy * entropy if grad_logp is None else grad_entropy * entropy + grad_logp
        probabilities = logp.exp()
        # Where p underflows to 0, log p is still finite, and the product 0.
        gradient = logp.mul_(-grad_entropy[:, None]).sub_(shift[:, None]).mul_(probabilities)
    if grad_logp is not None and torch.compiler.is_compiling():  # a scatter would be a pass of its own
        ids = torch.arange(z.shape[1], device=z.device)
        return gradient + torch.where(ids == labels[:, None], grad_logp[:, None], 0)
    return gradient if grad_logp is None else gradient.scatter_add_(1, labels[:, None], grad_logp[:, None])


def _fused_statistics(z: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """:func:`_statistics` for a compiler, which reads ``z`` and need not write it."""
    return _statistics(z.clone(), labels)


def _fused_gradient(z: torch.Tensor, top: torch.Tensor, dtype: torch.dtype, *others: Any) -> torch.Tensor:
    """:func:`_logit_gradient` in ``dtype`` for a compiler, from the scaled logits ``z`` [n, V] as they were."""
    return _logit_gradient(z - top[:, None], *others).to(dtype)


class LabelStates(NamedTuple):
    """The body's hidden states of the tokens that this rank runs, and which of them stand before a label."""

    hidden: torch.Tensor
    """[M, D]; [W, D] where ranks run the tokens together."""
    places: torch.Tensor
    """int64 [n]; the state before each label. On the batch's device."""
    mask: torch.Tensor
    """bool [B, T]; where the n labels are that have their state here: all, or those of this rank's slice. On the
    batch's device."""

    @property
    def chosen(self) -> torch.Tensor:
        """[n, D]; the state before each label."""
        return self.hidden.index_select(0, _sent(self.places, self.hidden.device))


def label_states(
    body: Any,
    batch: Batch,
    attention: Kind = "sdpa",
    context: ContextRanks | None = None,
    device: torch.device | None = None,
) -> LabelStates:
    """Run ``body``, the model without its head, over a micro-batch. With SDPA, beginnings that its sequences share are
    run once. The ranks of ``context`` are given the same micro-batch and run a slice of its tokens each.

    ``device`` is the model's, by default the batch's. Where the batch is on the CPU, all that depends on its numbers is
    found there, and a GPU is not waited for: it still runs the micro-batch before.
    """
    device = device or batch.ids.device
    # By index, found once for all three: a mask would be searched for each of them.
    present = (batch.segments >= 0).flatten().nonzero()[:, 0]
    ids, positions, mask = (
        x.flatten().index_select(0, present) for x in (batch.ids, batch.positions, batch.label_mask)
    )
    needed = up_to_the_last_label(positions, mask).nonzero()[:, 0]
    ids, positions, labelled = ids[needed], positions[needed], mask[needed].nonzero()[:, 0]
    tree = share_prefixes(ids, positions) if attention == "sdpa" else None
    if tree is None:
        layout = layout_of_positions(positions, attention, device)
    else:
        layout, labelled = layout_of_tree(tree, device), tree.place_of_token[labelled]
        ids, positions = ids[tree.kept], positions[tree.kept]
    labels = batch.label_mask
    if context is not None:
        mine = TokenSlice(context, len(ids))
        layout = replace(layout, token_slice=mine)
        ids, positions, own = mine.of(ids), mine.of(positions), mine.has(labelled)
        labelled, labels = labelled[own] - mine.start, labels.masked_scatter(labels, own)
    hidden = body(
        input_ids=_sent(ids, device)[None],
        position_ids=_sent(positions, device)[None],
        # Not read: where there is a mask of four dimensions, the model makes none of its own.
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
        layout=layout,
        use_cache=False,
    ).last_hidden_state[0]
    return LabelStates(hidden, labelled, labels)


def _sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, non_blocking=True)


def up_to_the_last_label(positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """bool [N]: the tokens of each sequence up to its last label; nothing that is asked for depends on those behind it.
    All of them where there is no label at all."""
    sequence = (positions == 0).cumsum(0) - 1
    places = torch.arange(len(positions), device=positions.device)
    last = torch.full_like(places, -1).scatter_reduce(0, sequence[mask], places[mask], "amax")
    needed = places <= last[sequence]
    return needed if bool(mask.any()) else torch.ones_like(mask)


def label_scores(
    body: Any,
    head: Head,
    batch: Batch,
    *,
    temperature: float,
    attention: Kind,
    logits_mib: float,
    context: ContextRanks | None = None,
    compiled: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the labels and entropies of their distributions at the sampling temperature, [B, T]; 0 elsewhere.
    All ranks of ``context`` get all of them. ``batch`` is on the model's device, or on the CPU, as for
    :func:`label_states`."""
    device, vocabulary = head.weight.device, head.weight.shape[0]
    hidden, labelled, mask = label_states(body, batch, attention, context, device)
    # A label after one state is one number, however many sequences have it.
    pairs, which = torch.unique(labelled * vocabulary + batch.labels[mask], return_inverse=True)
    scores = linear_logprobs(
        hidden.index_select(0, _sent(pairs // vocabulary, device)),
        _sent(pairs % vocabulary, device),
        head,
        temperature=temperature,
        chunk=positions_within(logits_mib, vocabulary),
        compiled=compiled,
    )
    which, mask = _sent(which, device), _sent(mask, device)
    logp, entropy = (spread(score.index_select(0, which), mask, context) for score in scores)
    return logp, entropy


def spread(values: torch.Tensor, mask: torch.Tensor, context: ContextRanks | None = None) -> torch.Tensor:
    """``values`` [n] at the n places where ``mask`` [B, T] is True, 0 elsewhere; those of the other ranks of
    ``context`` too, where there are some."""
    found = torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
    return found if context is None else context.whole(found)


def weights_of(network: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and weights (views, not copies) as in the state dict; a weight with several names comes once, by the
    first, as in a Hugging Face folder."""
    seen: set[int] = set()
    for name, value in network.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            yield name, value.detach()


@torch.no_grad()
def load_weights(
    network: Any,
    weights: Iterable[tuple[str, torch.Tensor]],
    source: str = "the checkpoint",
    *,
    error: type[RollError] = CheckpointError,
) -> None:
    """Copy a stream of weights into ``network`` in place, one at a time; a weight with several names needs one.

    Raises ``error`` for unknown names, weights that no name came for and shapes that differ; ``network`` then has some
    of the new weights and is not to be used.
    """
    own = network.state_dict(keep_vars=True)
    for name, value in fitting(network, weights, source, error=error):
        own[name].copy_(value)


def fitting(
    network: Any,
    weights: Iterable[tuple[str, torch.Tensor]],
    source: str = "the checkpoint",
    *,
    error: type[RollError] = CheckpointError,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Those of ``weights`` that fit ``network``, as they come; raises ``error`` behind the last as
    :func:`load_weights` does."""
    own = network.state_dict(keep_vars=True)
    missing = {id(value): name for name, value in reversed(own.items())}
    problems: list[str] = []
    for name, value in weights:
        if name not in own:
            problems.append(str(UnknownNameError("weight", name, own)))
            continue
        missing.pop(id(own[name]), None)
        if own[name].shape == value.shape:
            yield name, value
        else:
            problems.append(f"{name} has shape {tuple(value.shape)}, the model's {tuple(own[name].shape)}")
    problems += [f"{name} is missing" for name in missing.values()]
    if problems:
        listed = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
        raise error(f"{source} does not fit the configured model: {listed}")
