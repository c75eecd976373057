"""Log-probs and entropies a chunk at a time are those of the full computation, forward and backward."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model

from roll_envs.errors import ConfigError
from trainer.model.forward import Head, head_of, linear_logprobs, positions_within

Numbers = tuple[torch.Tensor, torch.Tensor]


def some(
    count: int = 7, width: int = 5, vocabulary: int = 11, *, dtype: torch.dtype = torch.float64, bias: bool = False
) -> tuple[torch.Tensor, torch.Tensor, Head]:
    """Hidden states, labels and a head that are far from even, all to be differentiated."""
    random = torch.Generator().manual_seed(count + 31 * width + vocabulary)
    hidden = torch.randn(count, width, generator=random, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=random, dtype=torch.float64).to(dtype).requires_grad_()
    offset = torch.randn(vocabulary, generator=random, dtype=torch.float64).to(dtype).requires_grad_() if bias else None
    return hidden, torch.randint(0, vocabulary, (count,), generator=random), Head(weight, offset)


def full(hidden: torch.Tensor, labels: torch.Tensor, head: Head, temperature: float) -> Numbers:
    """The definition: all logits at once."""
    logits = hidden @ head.weight.T
    if head.bias is not None:
        logits = logits + head.bias
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    logp = torch.log_softmax(logits / temperature, -1)
    return logp.gather(1, labels[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def leaves(hidden: torch.Tensor, head: Head) -> list[torch.Tensor]:
    return [x for x in (hidden, head.weight, head.bias) if x is not None]


def test_by_hand() -> None:
    """Logits ln 1, ln 2, ln 5: p = 1/8, 2/8, 5/8, entropy 0.9003; at temperature 2 roots of them."""
    head = Head(torch.tensor([[0.0], [math.log(2)], [math.log(5)]]))
    hidden = torch.ones(3, 1)
    logp, entropy = linear_logprobs(hidden, torch.tensor([0, 1, 2]), head, temperature=1.0, chunk=2)
    assert logp.exp().tolist() == pytest.approx([0.125, 0.25, 0.625], abs=1e-6)
    assert entropy.tolist() == pytest.approx([0.900256] * 3, abs=1e-5)
    hot, _ = linear_logprobs(hidden, torch.tensor([0, 1, 2]), head, temperature=2.0, chunk=2)
    total = 1 + math.sqrt(2) + math.sqrt(5)
    assert hot.exp().tolist() == pytest.approx([1 / total, math.sqrt(2) / total, math.sqrt(5) / total], abs=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("bias", [False, True])
def test_derivatives_are_those_of_finite_differences(chunk: int, softcap: float | None, bias: bool) -> None:
    hidden, labels, head = some(bias=bias)

    def both(*inputs: torch.Tensor) -> Numbers:
        changed = Head(inputs[1], inputs[2] if bias else None, softcap)
        return linear_logprobs(inputs[0], labels, changed, temperature=0.7, chunk=chunk)

    # The second backward computes logits again that the first one had kept: equal but for the last digit.
    assert torch.autograd.gradcheck(both, tuple(leaves(hidden, head)), nondet_tol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 40),
    vocabulary=st.integers(2, 300),
    chunk=st.integers(1, 50),
    temperature=st.sampled_from([0.3, 1.0, 1.45]),
    softcap=st.sampled_from([None, 5.0]),
    bias=st.booleans(),
    weights=st.sampled_from([(1.0, 0.0), (0.0, 1.0), (1.0, -0.3)]),
)
def test_equal_to_the_full_computation(
    count: int,
    vocabulary: int,
    chunk: int,
    temperature: float,
    softcap: float | None,
    bias: bool,
    weights: tuple[float, float],
) -> None:
    """Forward and backward: within 1e-13 in float64 and 1e-5 in float32 (of the largest number; logits of 30 and more
    have digits no finer), or no further from the truth than thrice what the full computation is in the same type."""
    keywords = {"temperature": temperature, "chunk": chunk}
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        hidden, labels, head = some(count, 8, vocabulary, dtype=dtype, bias=bias)
        head = head._replace(softcap=softcap)
        wide_bias = None if head.bias is None else head.bias.detach().double().requires_grad_()
        wide = Head(head.weight.detach().double().requires_grad_(), wide_bias, softcap)
        wide_hidden = hidden.detach().double().requires_grad_()

        def results(outputs: Numbers, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            signs = torch.linspace(-1, 1, len(outputs[0]), dtype=outputs[0].dtype)
            loss = ((weights[0] * outputs[0] + weights[1] * outputs[1]) * signs).sum()
            return [*(x.detach() for x in outputs), *torch.autograd.grad(loss, inputs)]

        found = results(linear_logprobs(hidden, labels, head, **keywords), leaves(hidden, head))
        plain = results(full(hidden, labels, head, temperature), leaves(hidden, head))
        truth = results(full(wide_hidden, labels, wide, temperature), leaves(wide_hidden, wide))
        for a, b, c in zip(found, plain, truth, strict=True):
            assert a.dtype == dtype
            bound = tolerance * max(1.0, float(c.abs().max()))
            assert float((a - c).abs().max()) <= max(bound, 3 * float((b - c).abs().max()))


def test_only_what_is_used_is_differentiated() -> None:
    hidden, labels, head = some(count=6)
    for pick in (0, 1):
        outputs = linear_logprobs(hidden, labels, head, temperature=1.0, chunk=4)
        expected = full(hidden, labels, head, 1.0)
        a = torch.autograd.grad(outputs[pick].sum(), leaves(hidden, head))
        b = torch.autograd.grad(expected[pick].sum(), leaves(hidden, head))
        assert all(torch.allclose(x, y, atol=1e-12) for x, y in zip(a, b, strict=True))
    frozen = head._replace(weight=head.weight.detach())
    logp, _ = linear_logprobs(hidden, labels, frozen, temperature=1.0, chunk=4)
    (gradient,) = torch.autograd.grad(logp.sum(), [hidden])
    expected_logp, _ = full(hidden, labels, frozen, 1.0)
    assert torch.allclose(gradient, torch.autograd.grad(expected_logp.sum(), [hidden])[0], atol=1e-12)


def test_the_chunk_changes_no_bit_where_the_products_are_exact() -> None:
    """Whole numbers: every logit is exact in any order of summing, and the rest is done row by row."""
    random = torch.Generator().manual_seed(0)
    hidden = torch.randint(-3, 4, (23, 16), generator=random).float()
    head = Head(torch.randint(-3, 4, (97, 16), generator=random).float())
    labels = torch.randint(0, 97, (23,), generator=random)
    first = linear_logprobs(hidden, labels, head, temperature=1.0, chunk=23)
    for chunk in (1, 2, 5, 22, 24, 1000):
        again = linear_logprobs(hidden, labels, head, temperature=1.0, chunk=chunk)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_large_logits_stay_finite() -> None:
    hidden = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    head = Head(torch.tensor([[3e4], [-3e4], [0.0]], requires_grad=True))
    logp, entropy = linear_logprobs(hidden, torch.tensor([0, 0]), head, temperature=0.5, chunk=1)
    assert logp.tolist() == [0.0, -1.2e5]
    assert entropy.tolist() == [0.0, 0.0]
    gradients = torch.autograd.grad(logp.sum() + entropy.sum(), [hidden, head.weight])
    assert all(bool(g.isfinite().all()) for g in gradients)
    assert gradients[0].tolist() == [[0.0], [1.2e5]]


@pytest.mark.parametrize("chunk", [3, 100])
def test_half_precision_is_summed_in_float32(chunk: int) -> None:
    """bfloat16 inputs give what float32 gives on the same numbers; only gradients are rounded at the end."""
    hidden, labels, head = some(9, 64, 20_000, dtype=torch.bfloat16)  # more ids than are widened at a time
    logp, entropy = linear_logprobs(hidden, labels, head, temperature=0.7, chunk=chunk)
    assert logp.dtype == entropy.dtype == torch.float32
    wide_hidden = hidden.detach().float().requires_grad_()
    wide = Head(head.weight.detach().float().requires_grad_())
    expected = full(wide_hidden, labels, wide, 0.7)
    assert torch.allclose(logp, expected[0], atol=2e-5)
    assert torch.allclose(entropy, expected[1], atol=2e-5)
    a = torch.autograd.grad(logp.sum(), leaves(hidden, head))
    b = torch.autograd.grad(expected[0].sum(), leaves(wide_hidden, wide))
    for x, y in zip(a, b, strict=True):
        assert x.dtype == torch.bfloat16
        assert torch.allclose(x.float(), y, rtol=2**-8, atol=1e-3)


def test_no_positions_give_no_gradient() -> None:
    hidden, labels, head = some(count=3)
    logp, entropy = linear_logprobs(hidden[:0], labels[:0], head, temperature=1.0, chunk=2)
    assert logp.shape == entropy.shape == (0,)
    gradients = torch.autograd.grad(logp.sum() + entropy.sum(), leaves(hidden, head))
    assert [float(g.abs().sum()) for g in gradients] == [0.0, 0.0]


def test_backward_twice() -> None:
    """The kept logits are used up by the first backward; the second computes them again."""
    hidden, labels, head = some()
    logp, _ = linear_logprobs(hidden, labels, head, temperature=0.7, chunk=100)
    first = torch.autograd.grad(logp.sum(), leaves(hidden, head), retain_graph=True)
    second = torch.autograd.grad(logp.sum(), leaves(hidden, head))
    assert all(torch.allclose(a, b, atol=1e-13) for a, b in zip(first, second, strict=True))


def test_no_tensor_is_larger_than_a_chunk_of_logits() -> None:
    """Every tensor that any operation makes, forward and backward, is seen by a dispatch mode."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = [0]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else (out,):
                if isinstance(x, torch.Tensor):
                    largest[0] = max(largest[0], x.numel())
            return out

    hidden, labels, head = some(64, 4, 500, dtype=torch.float32)
    with Watch():
        logp, entropy = linear_logprobs(hidden, labels, head, temperature=0.7, chunk=8)
        (logp + entropy).sum().backward()
    assert largest[0] == 8 * 500
    with Watch():
        full(hidden, labels, head, 0.7)
    assert largest[0] == 64 * 500


def test_positions_within_a_budget() -> None:
    assert positions_within(256, 151_936) == 220  # 2**28 bytes / (8 * 151,936)
    assert positions_within(1, 64) == 2048
    assert positions_within(0.001, 151_936) == 1


def test_the_head_of_a_model() -> None:
    network = tiny_model().network
    head = head_of(network)
    assert head.weight is network.get_input_embeddings().weight  # tied
    assert (head.bias, head.softcap) == (None, None)
    network.config.final_logit_softcapping = 30.0
    assert head_of(network).softcap == 30.0
    network.config.logit_scale = 0.0625
    with pytest.raises(
        ConfigError, match=r"logit_scale 0.0625, which learner and built-in engine do not apply; allowed: 1"
    ):
        head_of(network)
    odd = SimpleNamespace(get_output_embeddings=lambda: None, config=network.config)
    with pytest.raises(ConfigError, match=r"output layer .* is NoneType; allowed: torch.nn.Linear"):
        head_of(odd)
