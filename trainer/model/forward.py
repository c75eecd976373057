"""A language model over the sequences of a micro-batch: hidden states, log-probs of labels and entropies.

Sequences are run end to end without their padding (:mod:`trainer.model.attention`). What they share is run once, and so
is a label that several of them have in the same place. Only positions that have a label reach the head.

The logits of all positions never exist at once: they are taken a chunk at a time, forward and backward. When all
positions fit into one chunk, its logits are kept for the backward pass; otherwise they are computed a second time there
(a fourth product with the head where a full computation has three). All sums are in float32 or better, whatever the
weights are kept in; the result is exact, not sampled.

Shapes: B packed lines of a micro-batch, T positions, N positions that are run, n with a label, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from trainer.data.batches import Batch
from trainer.model.attention import Kind, layout_of_positions, layout_of_tree, share_prefixes

__all__ = [
    "Head",
    "head_of",
    "label_scores",
    "label_states",
    "linear_logprobs",
    "positions_within",
    "spread",
    "up_to_the_last_label",
]

BUFFERS = 2
"""Numbers held for each logit while a chunk is worked on: the logit, and its exponential."""
HALF_BLOCK = 8192
"""Rows of a half-precision head that are widened to float32 at a time, on devices without mixed products."""


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

    Raises:
        ValueError: The head is not linear, or the model scales its logits in a way that is not known here.
    """
    layer = network.get_output_embeddings()
    if not isinstance(layer, torch.nn.Linear):
        raise ValueError(
            f"the output layer of {type(network).__name__} is {type(layer).__name__}; allowed: torch.nn.Linear. "
            "Use a model whose logits are one product with the head's weights"
        )
    config = network.config
    for key in ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier_scale"):
        value = getattr(config, key, None)
        if value is not None and value != 1:
            raise ValueError(
                f"{type(network).__name__} has {key} {value}, which the learner does not apply; allowed: 1. "
                "Fold it into the head's weights, or use another model"
            )
    return Head(layer.weight, layer.bias, getattr(config, "final_logit_softcapping", None))


def positions_within(mib: float, vocabulary: int) -> int:
    """How many positions' logits, in float32 and with what is computed from them, take ``mib`` MiB; at least 1.

    256 MiB and 151,936 ids give 220.
    """
    return max(1, int(mib * 2**20) // (4 * BUFFERS * vocabulary))


def linear_logprobs(
    hidden: torch.Tensor, labels: torch.Tensor, head: Head, *, temperature: float, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of ``labels`` [N] and entropies [N] in nats of the sampling distribution after ``hidden`` [N, D].

    At least float32; both can be differentiated with respect to ``hidden`` and the head. ``chunk`` is the number of
    positions whose logits are held at once.
    """
    logp, entropy = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, labels, head.softcap, temperature, chunk
    )
    return logp, entropy


def _fine(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _Product:
    """Products with the head's weights [V, D], with results at least float32."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, self.dtype = weight, _fine(weight.dtype)
        rows = weight.shape[0]
        self._mixed = weight.dtype != self.dtype and weight.is_cuda
        step = rows if weight.dtype == self.dtype else HALF_BLOCK
        self._blocks = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    def _wide(self, block: slice) -> torch.Tensor:
        return self.weight[block].to(self.dtype)

    def logits(self, hidden: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        """``out`` [n, V] = hidden [n, D] times the weights, plus bias."""
        if self._mixed:
            out.copy_(torch.mm(hidden.to(self.weight.dtype), self.weight.T, out_dtype=self.dtype))
        else:
            hidden = hidden.to(self.dtype)
            for block in self._blocks:
                torch.mm(hidden, self._wide(block).T, out=out[:, block])
        if bias is not None:
            out.add_(bias)

    def back(self, gradient: torch.Tensor) -> torch.Tensor:
        """Gradient of the hidden states [n, D] from that of the logits [n, V]."""
        if self._mixed:
            return torch.mm(gradient.to(self.weight.dtype), self.weight, out_dtype=self.dtype)
        result = gradient[:, self._blocks[0]] @ self._wide(self._blocks[0])
        for block in self._blocks[1:]:
            result.addmm_(gradient[:, block], self._wide(block))
        return result

    def add_weight_gradient(
        self, total: torch.Tensor, gradient: torch.Tensor, hidden: torch.Tensor, *, first: bool
    ) -> None:
        """``total`` [V, D] += gradient.T times hidden; it is overwritten by the ``first`` chunk."""
        if self._mixed:
            part = torch.mm(gradient.T.to(self.weight.dtype), hidden.to(self.weight.dtype), out_dtype=self.dtype)
            total.copy_(part) if first else total.add_(part)
        else:
            total.addmm_(gradient.T, hidden.to(self.dtype), beta=0 if first else 1)


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
    ) -> tuple[torch.Tensor, torch.Tensor]:
        product, count = _Product(weight), hidden.shape[0]
        rows = min(chunk, count)
        logits = torch.empty(rows, weight.shape[0], dtype=product.dtype, device=hidden.device)
        powers = torch.empty_like(logits)
        logp = torch.empty(count, dtype=product.dtype, device=hidden.device)
        entropy, top, logsum = torch.empty_like(logp), torch.empty_like(logp), torch.empty_like(logp)
        for part in _parts(count, chunk):
            z, e = logits[: part.stop - part.start], powers[: part.stop - part.start]
            _scaled_logits(product, hidden[part], bias, softcap, temperature, z)
            top[part] = z.amax(-1)
            z.sub_(top[part, None])
            torch.exp(z, out=e)
            total = e.sum(-1)
            logsum[part] = total.log()
            logp[part] = z.gather(1, labels[part, None])[:, 0] - logsum[part]
            # The sum over p (log total - z): where p is 0, z is finite, unless the logits are not.
            entropy[part] = logsum[part] - e.mul_(z).sum(-1) / total
        ctx.set_materialize_grads(False)  # an entropy that is only watched costs nothing in backward
        ctx.softcap, ctx.temperature, ctx.chunk = softcap, temperature, chunk
        # The logits of a single chunk are kept, less their largest.
        ctx.kept = logits if 0 < count <= chunk and softcap is None and any(ctx.needs_input_grad[:3]) else None
        ctx.save_for_backward(hidden, weight, bias, labels, top, logsum, entropy)
        return logp, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_logp: torch.Tensor | None, grad_entropy: torch.Tensor | None) -> tuple[Any, ...]:
        hidden, weight, bias, labels, top, logsum, entropy = ctx.saved_tensors
        product, count = _Product(weight), hidden.shape[0]
        kept, ctx.kept = ctx.kept, None  # used up: a second backward computes the logits again
        wanted = ctx.needs_input_grad
        grad_hidden = torch.zeros(hidden.shape, dtype=product.dtype, device=hidden.device) if wanted[0] else None
        # The first chunk overwrites it.
        grad_weight = torch.empty(weight.shape, dtype=product.dtype, device=hidden.device) if wanted[1] else None
        grad_bias = torch.zeros(weight.shape[0], dtype=product.dtype, device=hidden.device) if wanted[2] else None
        if count == 0 and grad_weight is not None:
            grad_weight.zero_()
        buffer = torch.empty(
            min(ctx.chunk, count) if kept is None else 0, weight.shape[0], dtype=product.dtype, device=hidden.device
        )
        for part in _parts(count, ctx.chunk):
            slope = None
            if kept is None:
                z = buffer[: part.stop - part.start]
                _scaled_logits(product, hidden[part], bias, ctx.softcap, ctx.temperature, z)
                slope = _softcap_slope(z, ctx.softcap, ctx.temperature)
                z.sub_(top[part, None])  # not both in one: their sum has fewer digits than they have
            else:
                z = kept
            z.sub_(logsum[part, None])
            gradient = _logit_gradient(
                z,
                labels[part],
                None if grad_logp is None else grad_logp[part],
                None if grad_entropy is None else grad_entropy[part],
                entropy[part],
            )
            if slope is not None:
                gradient.mul_(slope)
            if grad_hidden is not None:
                grad_hidden[part] = product.back(gradient)
            if grad_weight is not None:
                product.add_weight_gradient(grad_weight, gradient, hidden[part], first=part.start == 0)
            if grad_bias is not None:
                grad_bias += gradient.sum(0)
        if ctx.temperature != 1.0:
            for total in (grad_hidden, grad_weight, grad_bias):
                if total is not None:
                    total.div_(ctx.temperature)
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
            *[None] * 4,
        )


def _parts(count: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, count)) for start in range(0, count, chunk)]


def _scaled_logits(
    product: _Product,
    hidden: torch.Tensor,
    bias: torch.Tensor | None,
    softcap: float | None,
    temperature: float,
    out: torch.Tensor,
) -> None:
    """``out`` = logits / temperature. Where nothing is rounded by it, the far fewer hidden numbers are divided."""
    if softcap is None and hidden.dtype == product.weight.dtype == product.dtype:
        product.logits(hidden / temperature, None if bias is None else bias / temperature, out)
        return
    product.logits(hidden, bias, out)
    if softcap is not None:
        out.div_(softcap).tanh_().mul_(softcap)
    out.div_(temperature)


def _softcap_slope(z: torch.Tensor, softcap: float | None, temperature: float) -> torch.Tensor | None:
    """Derivative of the capped logits by the plain ones, from the capped ones over the temperature."""
    return None if softcap is None else 1.0 - (z * (temperature / softcap)).square_()


def _logit_gradient(
    logp: torch.Tensor,
    labels: torch.Tensor,
    grad_logp: torch.Tensor | None,
    grad_entropy: torch.Tensor | None,
    entropy: torch.Tensor,
) -> torch.Tensor:
    """Gradient by the scaled logits; ``logp`` [n, V] holds all log-probabilities and is overwritten.

    d logp_y / dz_v = [v = y] - p_v and d H / dz_v = -p_v (log p_v + H).
    """
    if grad_entropy is None:
        if grad_logp is None:
            return logp.zero_()
        gradient = logp.exp_().mul_(-grad_logp[:, None])
    else:
        shift = grad_entropy * entropy if grad_logp is None else grad_entropy * entropy + grad_logp
        probabilities = logp.exp()
        # Where p underflows to 0, log p is still finite, and the product 0.
        gradient = logp.mul_(-grad_entropy[:, None]).sub_(shift[:, None]).mul_(probabilities)
    if grad_logp is not None:
        gradient.scatter_add_(1, labels[:, None], grad_logp[:, None])
    return gradient


def label_states(body: Any, batch: Batch, attention: Kind = "sdpa") -> torch.Tensor:
    """Hidden states [n, D] at the n positions that have a label; ``body`` is the model without its head."""
    hidden, labelled = _states(body, batch, attention)
    return hidden.index_select(0, labelled)


def _states(body: Any, batch: Batch, attention: Kind) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [M, D] of the tokens that are run, and which of them stand before the n labels, int64 [n]. With
    SDPA, beginnings that sequences of the micro-batch share are run once."""
    present = batch.segments >= 0
    ids, positions, mask = batch.ids[present], batch.positions[present], batch.label_mask[present]
    needed = up_to_the_last_label(positions, mask)
    ids, positions, labelled = ids[needed], positions[needed], mask[needed].nonzero()[:, 0]
    tree = share_prefixes(ids, positions) if attention == "sdpa" else None
    if tree is None:
        layout = layout_of_positions(positions, attention)
    else:
        layout, labelled = layout_of_tree(tree), tree.place_of_token[labelled]
        ids, positions = ids[tree.kept], positions[tree.kept]
    hidden = body(
        input_ids=ids[None],
        position_ids=positions[None],
        # Not read: where there is a mask of four dimensions, the model makes none of its own.
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=batch.ids.device),
        layout=layout,
        use_cache=False,
    ).last_hidden_state[0]
    return hidden, labelled


def up_to_the_last_label(positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """bool [N]: the tokens of each sequence up to its last label; nothing that is asked for depends on those behind it.
    All of them where there is no label at all."""
    sequence = (positions == 0).cumsum(0) - 1
    places = torch.arange(len(positions), device=positions.device)
    last = torch.full_like(places, -1).scatter_reduce(0, sequence[mask], places[mask], "amax")
    needed = places <= last[sequence]
    return needed if bool(mask.any()) else torch.ones_like(mask)


def label_scores(
    body: Any, head: Head, batch: Batch, *, temperature: float, attention: Kind, logits_mib: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the labels and entropies of their distributions at the sampling temperature, [B, T]; 0 elsewhere."""
    hidden, labelled = _states(body, batch, attention)
    vocabulary = head.weight.shape[0]
    # A label after one state is one number, however many sequences have it.
    pairs, which = torch.unique(labelled * vocabulary + batch.labels[batch.label_mask], return_inverse=True)
    scores = linear_logprobs(
        hidden.index_select(0, pairs // vocabulary),
        pairs % vocabulary,
        head,
        temperature=temperature,
        chunk=positions_within(logits_mib, vocabulary),
    )
    logp, entropy = (spread(score.index_select(0, which), batch.label_mask) for score in scores)
    return logp, entropy


def spread(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``values`` [n] at the n places where ``mask`` [B, T] is True, 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
