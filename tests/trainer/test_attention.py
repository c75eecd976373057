"""Sequences end to end: each is computed as if it stood alone, whatever stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import full_logits, tiny_model
from torch.nn.functional import scaled_dot_product_attention
from transformers import FalconConfig, FalconForCausalLM, LlamaConfig, Qwen2Config, StableLmConfig, StableLmForCausalLM
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM

import trainer.model.attention as attention
from roll_envs.errors import ConfigError
from trainer.model.attention import NAME, Kind, Layout, choose_attention, layout_of_positions, use_packed_attention


def positions_of(lengths: Sequence[int]) -> torch.Tensor:
    return torch.cat([torch.arange(n) for n in lengths])


def inputs(lengths: Sequence[int], heads: int = 4, kv_heads: int = 2, width: int = 8) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(sum(lengths))
    shapes = [(1, h, sum(lengths), width) for h in (heads, kv_heads, kv_heads)]
    return [torch.randn(s, generator=random, dtype=torch.float64).requires_grad_() for s in shapes]


def alone(qkv: Sequence[torch.Tensor], lengths: Sequence[int], scale: float | None = None) -> torch.Tensor:
    """The definition: one call of SDPA for each sequence, [1, N, H, E]."""
    parts = zip(*(x.split(list(lengths), dim=2) for x in qkv), strict=True)
    outs = [scaled_dot_product_attention(*p, is_causal=True, scale=scale, enable_gqa=True) for p in parts]
    return torch.cat(outs, 2).transpose(1, 2)


def run(qkv: Sequence[torch.Tensor], layout: Layout, **keywords: Any) -> torch.Tensor:
    out, _ = attention._attention(torch.nn.Module(), *qkv, None, layout=layout, **keywords)
    return out


def test_buckets_by_hand() -> None:
    layout = layout_of_positions(positions_of([3, 3, 3]))
    assert (layout.starts.tolist(), layout.longest, layout.buckets) == ([0, 3, 6, 9], 3, ((3, 3, 3, None),))
    assert layout.query_tokens is layout.key_tokens is layout.place_of_token is None
    layout = layout_of_positions(positions_of([2, 20, 1]))  # 20 stands alone; 2 and 1 share
    assert layout.buckets == ((1, 20, 20, None), (2, 2, 2, None))
    assert layout.query_tokens is not None
    assert layout.place_of_token is not None
    assert layout.key_tokens is None  # the same ones
    assert layout.query_tokens.tolist() == [*range(2, 22), 0, 1, 22, 22]
    assert layout.place_of_token.tolist() == [20, 21, *range(20), 22]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_every_token_has_a_place_and_little_is_wasted(lengths: list[int]) -> None:
    layout = layout_of_positions(positions_of(lengths))
    places = sum(b.sequences * b.queries for b in layout.buckets)
    assert sum(b.sequences for b in layout.buckets) == len(lengths)
    assert all(b.keys == b.queries and b.mask is None for b in layout.buckets)
    assert places < sum(n + max(16, n / 7 + 1) for n in lengths)
    if layout.query_tokens is None or layout.place_of_token is None:
        assert places == sum(lengths)
        return
    assert len(layout.query_tokens) == places
    assert torch.equal(layout.query_tokens[layout.place_of_token], torch.arange(sum(lengths)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.sampled_from([None, 0.3]))
def test_each_sequence_is_computed_as_if_alone(lengths: list[int], scale: float | None) -> None:
    """Forward and backward, in float64, with fewer key heads than query heads."""
    qkv = inputs(lengths)
    found = run(qkv, layout_of_positions(positions_of(lengths)), scaling=scale)
    expected = alone(qkv, lengths, scale)
    assert found.shape == (1, sum(lengths), 4, 8)
    assert torch.allclose(found, expected, atol=1e-12)
    weights = torch.sin(torch.arange(found.numel(), dtype=torch.float64)).view(found.shape)
    a = torch.autograd.grad((found * weights).sum(), qkv)
    b = torch.autograd.grad((expected * weights).sum(), qkv)
    assert all(torch.allclose(x, y, atol=1e-11) for x, y in zip(a, b, strict=True))


def test_bfloat16_on_a_cpu_is_computed_in_float32() -> None:
    lengths = [5, 20, 7]
    half = [x.detach().bfloat16().requires_grad_() for x in inputs(lengths)]
    fine = [x.detach().float().requires_grad_() for x in half]
    layout = layout_of_positions(positions_of(lengths))
    out, expected = run(half, layout), run(fine, layout)
    assert torch.equal(out, expected.bfloat16())
    weights = torch.linspace(-1, 1, out.numel()).view_as(out).bfloat16()
    (out * weights).sum().backward()
    (expected * weights.float()).sum().backward()
    assert all(torch.equal(h.grad, f.grad.bfloat16()) for h, f in zip(half, fine, strict=True))  # type: ignore[union-attr]


def test_flex_is_the_same() -> None:
    """Its kernel is for CUDA; mask and call are tried by the plain form that torch runs elsewhere, forward only."""
    lengths = [7, 1, 20, 5]
    qkv = [x.detach().float() for x in inputs(lengths)]
    with pytest.warns(UserWarning, match="flex_attention called without torch.compile"):
        found = run(qkv, layout_of_positions(positions_of(lengths), "flex"))
    assert torch.allclose(found, alone(qkv, lengths), atol=1e-5)


@pytest.mark.parametrize("release", ["torch 2.11", "torch 2.12"])
def test_flash_is_told_where_sequences_start(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel is for CUDA; here a plain function with its signature answers, so that the wiring is tried. The older
    one takes grouped heads without being told."""
    lengths = [7, 1, 20, 5]
    qkv = inputs(lengths)
    assert qkv[0].shape[1] != qkv[1].shape[1]

    def older(
        q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, *, scale: Any, window_size: Any
    ) -> Any:
        return newer(q, k, v, cu_q, cu_k, max_q, max_k, scale=scale, window_size=window_size, enable_gqa=True)

    def newer(
        q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, *,
        scale: Any, window_size: Any, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        assert cu_q.dtype == cu_k.dtype == torch.int32
        assert (max_q, max_k) == (20, 20)
        assert (scale, window_size) == (None, (-1, 0))
        parts = [slice(a, b) for a, b in zip(cu_q[:-1].tolist(), cu_q[1:].tolist(), strict=True)]
        each = [[x[part].transpose(0, 1)[None] for x in (q, k, v)] for part in parts]
        outs = [scaled_dot_product_attention(*x, is_causal=True, enable_gqa=enable_gqa) for x in each]
        return torch.cat([out[0].transpose(0, 1) for out in outs])

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", {"torch 2.11": older, "torch 2.12": newer}[release])
    monkeypatch.setattr(attention, "_FLASH", attention._flash_kernel())
    found = run(qkv, layout_of_positions(positions_of(lengths), "flash"))
    assert torch.allclose(found, alone(qkv, lengths), atol=1e-12)


def test_the_signature_of_torchs_varlen_is_what_is_called() -> None:
    import inspect

    kernel = attention._FLASH
    if kernel is None:
        pytest.skip("this torch has no torch.nn.attention.varlen")
    names = list(inspect.signature(kernel.func).parameters)
    assert names[:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert {"scale", "window_size", "enable_gqa"} <= set(names)


SHAPE: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.4,
}  # fmt: skip


@pytest.mark.parametrize("family", [(LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)])
def test_a_model_over_packed_sequences_is_the_model_over_each(family: Any) -> None:
    lengths = [30, 4, 29, 1, 12]
    torch.manual_seed(0)
    network = family[0](family[1](**SHAPE)).double().eval()
    ids = torch.randint(0, 50, (sum(lengths),))
    with torch.inference_mode():
        expected = torch.cat([network(input_ids=part[None]).logits[0] for part in ids.split(lengths)])
        use_packed_attention(network)
        positions = positions_of(lengths)
        mark = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        found = network(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=mark,
            layout=layout_of_positions(positions),
        )
        assert torch.allclose(found.logits[0], expected, atol=1e-10)
        # Without a layout it is the model that it was, with padding masks too.
        plain = torch.cat([network(input_ids=part[None]).logits[0] for part in ids.split(lengths)])
        assert torch.equal(plain, expected)
        padded = torch.zeros(2, 30, dtype=torch.int64)
        padded[0], padded[1, 26:] = ids[:30], ids[30:34]
        shown = torch.ones(2, 30, dtype=torch.int64)
        shown[1, :26] = 0
        left = network(input_ids=padded, attention_mask=shown, position_ids=(shown.cumsum(-1) - 1).clamp(min=0))
        assert torch.allclose(left.logits[1, 26:], expected[30:34], atol=1e-10)


def test_the_engines_mask_is_left_alone() -> None:
    model = tiny_model()
    ids = (5, 6, 7, 8, 9)
    before = full_logits(model, ids)
    use_packed_attention(model.network)
    assert model.network.config._attn_implementation == NAME
    assert torch.equal(full_logits(model, ids), before)
    assert "layout" not in model.network.config.to_json_string()  # nothing of it is saved with the model


def test_what_does_not_run_here_is_refused() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_attention("auto", cpu, torch.bfloat16) == "sdpa"
    assert choose_attention("auto", cuda, torch.float32) == "sdpa"
    assert choose_attention("auto", cuda, torch.bfloat16) == ("flash" if attention._FLASH else "sdpa")
    assert choose_attention("flex", cuda, torch.float32) == "flex"
    with pytest.raises(ConfigError, match=r"'flex' needs a CUDA device, and the model is on cpu; use 'sdpa'"):
        choose_attention("flex", cpu, torch.float32)
    with pytest.raises(ConfigError, match=r"'flash' has no kernel for torch.float32; set learner.precision: bfloat16"):
        choose_attention("flash", cuda, torch.float32)


def test_the_varlen_of_torch_2_10_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_2_10(query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int) -> None: ...

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", of_2_10)
    monkeypatch.setattr(attention, "_FLASH", attention._flash_kernel())
    assert choose_attention("auto", torch.device("cuda"), torch.bfloat16) == "sdpa"


def test_no_flash_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_FLASH", None)
    assert choose_attention("auto", torch.device("cuda"), torch.bfloat16) == "sdpa"
    with pytest.raises(ConfigError, match=r"needs torch.nn.attention.varlen with a scale, which torch .* does not"):
        choose_attention("flash", torch.device("cuda"), torch.bfloat16)


@pytest.mark.parametrize("kind", ["sdpa", "flash", "flex"])
def test_what_packed_attention_does_not_know_is_refused(kind: Kind) -> None:
    qkv, layout = inputs([5, 3]), Layout(kind=kind, starts=torch.tensor([0, 5, 8]).int(), longest=5)
    with pytest.raises(ConfigError, match="asks for softcap"):
        run(qkv, layout, softcap=50.0)
    with pytest.raises(ConfigError, match=r"sequence of 5 tokens is longer than the model's sliding window of 4"):
        run(qkv, layout, sliding_window=4)


def test_a_window_that_is_not_shorter_than_the_sequences_changes_nothing() -> None:
    qkv, layout = inputs([5, 3]), layout_of_positions(positions_of([5, 3]))
    assert torch.equal(run(qkv, layout, sliding_window=5), run(qkv, layout))


def test_layers_that_mix_tokens_otherwise_are_refused() -> None:
    network = tiny_model().network
    network.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ConfigError, match=r"layers of type linear_attention; the learner packs sequences"):
        use_packed_attention(network)


SMALL = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_layers_that_do_not_say_where_sequences_start_are_refused_when_they_are_run() -> None:
    network: Any = StableLmForCausalLM(StableLmConfig(**SMALL, num_key_value_heads=2))  # they drop ``layout``
    use_packed_attention(network)
    inputs = {"input_ids": torch.arange(8)[None], "position_ids": positions_of([5, 3])[None], "use_cache": False}
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    with pytest.raises(ConfigError, match=r"does not tell its StableLmAttention where packed sequences start"):
        network.base_model(**inputs, attention_mask=mask, layout=layout_of_positions(positions_of([5, 3])))
    plain = network.base_model(input_ids=inputs["input_ids"], use_cache=False).last_hidden_state
    assert plain.isfinite().all()  # as it is called without packed sequences


def test_a_model_with_attention_of_its_own_is_refused() -> None:
    network = FalconForCausalLM(FalconConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2))
    with pytest.raises(ConfigError, match="FalconForCausalLM takes no attention of others"):
        use_packed_attention(network)
