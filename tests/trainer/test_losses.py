"""Losses and aggregation reproduce hand-worked numbers; what is masked out has no influence, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from episode_builders import batches_of, counted, group, row, trajectory, turn
from hypothesis import given
from hypothesis import strategies as st
from loss_inputs import entropy, label_logprobs, losses_of
from plugin_builders import install

from roll_envs.errors import ConfigError, PluginError, UnknownNameError
from trainer.algorithms.losses import LossInputs
from trainer.algorithms.losses.clipped import CLIP, clip
from trainer.algorithms.losses.objective import aggregate, make_objective, policy_loss
from trainer.config import LossConfig
from trainer.config.parts import LOSSES
from trainer.data.batches import Denominators, make_batches
from trainer.data.table import make_table, sequences_of

MODES = get_args(LossConfig.model_fields["aggregation"].annotation)


def inputs_of(
    logp: torch.Tensor,
    *,
    old: torch.Tensor | None = None,
    advantages: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    selected: torch.Tensor | None = None,
) -> LossInputs:
    """Inputs [B, T] with old and sampler log-probs of 0, advantages of 1, one row of one turn per line."""
    zero = torch.zeros_like(logp).detach()
    places = torch.arange(logp.shape[0])[:, None].expand(logp.shape)
    return LossInputs(
        logp=logp,
        old_logp=zero if old is None else old,
        sampler_logp=zero if old is None else old,
        advantages=zero + 1.0 if advantages is None else advantages,
        mask=torch.ones(logp.shape, dtype=torch.bool) if mask is None else mask,
        sequence=places,
        turn=torch.zeros(logp.shape, dtype=torch.int64),
        selected=torch.zeros(logp.shape, dtype=torch.bool) if selected is None else selected,
    )


def one(ratio: float, advantage: float, dual_clip: float | None = 3.0) -> tuple[float, float, dict[str, float]]:
    """Loss, gradient with respect to logp, and metrics of one token."""
    logp = torch.tensor([[ratio]], dtype=torch.float64).log().requires_grad_()
    inputs = inputs_of(logp, advantages=torch.full_like(logp, advantage).detach())
    loss, metrics = losses_of("clip", inputs, dual_clip=dual_clip)
    loss.sum().backward()
    assert logp.grad is not None
    return loss.item(), logp.grad.item(), {k: v.item() for k, v in metrics.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.5, 1.0, -1.28, 0.0),
        (1.5, -1.0, 1.5, 1.5),
        (0.5, 1.0, -0.5, -0.5),
        (0.5, -1.0, 0.8, 0.0),
        (5.0, -1.0, 3.0, 0.0),
    ],
)
def test_dual_clip_golden(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    got = one(ratio, advantage)
    assert got[:2] == pytest.approx((loss, gradient))


def test_without_dual_clip_a_negative_advantage_is_not_bounded() -> None:
    assert one(5.0, -1.0, None)[:2] == pytest.approx((5.0, 5.0))


def test_clip_metrics_count_what_was_cut() -> None:
    assert one(1.5, 1.0)[2]["loss/clip_fraction"] == 1
    assert one(1.2, 1.0)[2]["loss/clip_fraction"] == 0  # within the higher upper bound
    assert one(0.5, -1.0)[2]["loss/clip_fraction"] == 1
    assert one(5.0, -1.0)[2]["loss/dual_clip_fraction"] == 1
    assert one(2.9, -1.0)[2]["loss/dual_clip_fraction"] == 0
    assert one(0.5, 1.0)[2]["loss/ratio"] == pytest.approx(0.5)
    assert one(2.0, 0.0)[2]["loss/old_kl"] == pytest.approx(2 - 1 - 0.693147, abs=1e-6)


def test_a_huge_log_ratio_stays_finite() -> None:
    loss, _ = losses_of("clip", inputs_of(torch.tensor([[500.0]]), advantages=-torch.ones(1, 1)))
    assert loss.isfinite().all()


def test_reinforce_by_hand() -> None:
    logp = torch.tensor([[-0.5, -2.0]], requires_grad=True)
    advantages, mask = torch.tensor([[3.0, 3.0]]), torch.tensor([[True, False]])
    loss, _ = losses_of("reinforce", inputs_of(logp, advantages=advantages, mask=mask))
    assert loss.tolist() == [[1.5, 0.0]]
    (gradient,) = torch.autograd.grad(loss.sum(), logp)
    assert gradient.tolist() == [[-3.0, 0.0]]


MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
LOSS = torch.tensor([[2.0, 2.0, 7.0, float("nan")], [1.0, 1.0, 1.0, 1.0]])
ROWS = torch.tensor([[0, 0, 0, -1], [1, 1, 1, 1]])
DENOMINATORS = Denominators(tokens=6, sequences=2, sequence_tokens=torch.tensor([2, 4]))


@pytest.mark.parametrize(
    ("mode", "value"),
    [("token-mean", 4 / 3), ("seq-mean-token-mean", 1.5), ("seq-mean-token-sum", 4.0), ("constant", 1.0)],
)
def test_aggregation_golden_and_shares_add_up(mode: str, value: float) -> None:
    tokens = {"constant_tokens": 4}
    assert aggregate(LOSS, MASK, ROWS, mode, DENOMINATORS, **tokens).item() == pytest.approx(value)
    parts = [(LOSS[i : i + 1], MASK[i : i + 1], ROWS[i : i + 1]) for i in (0, 1)]
    shares = [aggregate(*part, mode, DENOMINATORS, **tokens) for part in parts]
    assert sum(s.item() for s in shares) == pytest.approx(value)


def test_unknown_names_name_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="token-mean"):
        aggregate(LOSS, MASK, ROWS, "tokenmean", DENOMINATORS)
    (batch,) = batches_of([row((1, 2), (0, 1))], pack_tokens=8, tokens_per_microbatch=8)
    with pytest.raises(UnknownNameError, match="did you mean 'clip'"):
        policy_loss(make_objective(LossConfig(name="clipp")), batch, batch.old_logp, DENOMINATORS)


def test_label_logprobs_and_entropy_by_hand() -> None:
    logits = torch.tensor([[[0.0, 0.0, 2 * torch.log(torch.tensor(2.0)).item()]]])
    assert label_logprobs(logits, torch.tensor([[2]]), 2.0).exp().item() == pytest.approx(0.5, abs=1e-3)
    assert label_logprobs(logits, torch.tensor([[2]]), 1.0).exp().item() == pytest.approx(2 / 3, abs=1e-3)
    assert entropy(logits, 2.0).item() == pytest.approx(1.5 * 0.693147, abs=1e-3)


def logit_gradients(
    logits: torch.Tensor, config: LossConfig, *, masked: float | None = None, labels: int | None = None
) -> torch.Tensor:
    """Gradient of a step's loss with respect to the logits [B, T, V], with masked-out fields optionally overwritten."""
    rows = [row((1, 2, 3, 4, 5), (0, 1, 1, 0, 1)), row((4, 3, 2), (0, 0, 1), member=1), row((5, 6), (0, 1), member=2)]
    credit = [torch.linspace(-1, 1, len(r.ids)).numpy() for r in rows]
    chosen = [np.array([0, 1, 0, 0, 0]), np.array([0, 0, 0]), np.array([0, 1])]
    (batch,) = batches_of(rows, credit, pack_tokens=5, tokens_per_microbatch=64, selected=chosen)
    out = ~batch.label_mask
    if masked is not None:
        overwritten = {
            name: getattr(batch, name).masked_fill(out, masked) for name in ("advantages", "old_logp", "sampler_logp")
        }
        overwritten["selected"] = batch.selected | out
        batch = replace(batch, **overwritten)
    if labels is not None:
        batch = replace(batch, labels=batch.labels.masked_fill(out, labels))
    leaf = logits.clone().requires_grad_()
    loss, _ = policy_loss(
        make_objective(config), batch, label_logprobs(leaf, batch.labels, 0.7), counted(rows), entropy(leaf, 0.7)
    )
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert gradient[batch.label_mask].abs().sum() > 0
    return gradient


@pytest.mark.parametrize("name", LOSSES.built_in())
@pytest.mark.parametrize("mode", MODES)
def test_what_is_masked_out_changes_no_bit_of_the_gradient(name: str, mode: str) -> None:
    dual_clip = {"dual_clip": 3.0} if name == "clip" else {}
    config = LossConfig(name=name, aggregation=mode, entropy_coef=0.01, **dual_clip)  # type: ignore[arg-type]
    logits = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    reference = logit_gradients(logits, config)
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 0, 1, 0]], dtype=torch.bool)
    assert not reference[~mask].any()
    assert torch.equal(logit_gradients(logits, config, masked=float("nan")), reference)
    assert torch.equal(logit_gradients(logits, config, labels=7), reference)
    changed = torch.where(mask[..., None], logits, 1e4 * logits.flip(-1))
    assert torch.equal(logit_gradients(changed, config), reference)


@pytest.mark.parametrize("name", LOSSES.built_in())
def test_a_masked_out_token_has_no_loss_and_no_metric_whatever_it_holds(name: str) -> None:
    mask = torch.tensor([[True, False, False]])
    chosen = torch.tensor([[False, True, True]])
    kept, lost = torch.tensor([[-0.5, -0.5, -0.5]]), torch.tensor([[-0.5, float("nan"), float("-inf")]])
    lost.requires_grad_()
    constant = lost.detach()
    loss, metrics = losses_of(name, inputs_of(lost, old=constant, advantages=constant, mask=mask, selected=chosen))
    expected, expected_metrics = losses_of(
        name, inputs_of(kept, old=kept, advantages=kept, mask=mask, selected=chosen & mask)
    )
    assert loss[0, 1:].tolist() == [0.0, 0.0]
    assert torch.equal(loss, expected)
    assert metrics == expected_metrics
    (gradient,) = torch.autograd.grad(loss.sum(), lost)
    assert gradient[0, 1:].tolist() == [0.0, 0.0]
    assert gradient.isfinite().all()


def test_entropy_bonus_needs_entropies_and_lowers_the_loss() -> None:
    rows = [row((1, 2), (0, 1))]
    (batch,) = batches_of(rows, pack_tokens=8, tokens_per_microbatch=8)
    config, denominators = LossConfig(entropy_coef=0.1), counted(rows)
    entropies = torch.full((1, 2), 2.0)
    loss, metrics = policy_loss(make_objective(config), batch, batch.old_logp, denominators, entropies)
    assert loss.item() == pytest.approx(-0.2)
    assert metrics["loss/entropy"].item() == 2.0  # the position that predicts nothing is left out
    with pytest.raises(ValueError, match="no entropies were given"):
        policy_loss(make_objective(config), batch, batch.old_logp, denominators)


def test_registered_losses_are_found_and_names_are_not_taken_twice() -> None:
    def nothing(inputs: LossInputs, settings: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return torch.zeros_like(inputs.logp), {"loss/mine": torch.ones_like(inputs.logp)}

    LOSSES.register("nothing", nothing)
    try:
        LOSSES.register("nothing", nothing)
        rows = [row((1, 2, 3), (0, 1, 1))]
        (batch,) = batches_of(rows, pack_tokens=8, tokens_per_microbatch=8)
        loss, metrics = policy_loss(make_objective(LossConfig(name="nothing")), batch, batch.old_logp, counted(rows))
        assert (loss.item(), metrics["loss/mine"].item()) == (0.0, 2)  # what is masked out is not counted
        with pytest.raises(ConfigError, match="'nothing' exists already"):
            LOSSES.register("nothing", clip)
    finally:
        LOSSES.unregister("nothing")
    assert LOSSES.find("clip") is CLIP


LOSS_OF_ANOTHER_PACKAGE = """
from roll_envs.settings import Settings
from trainer.algorithms.losses import Loss


class HalvedSettings(Settings):
    factor: float = 1.0
    "Of the loss."

def plain(inputs, settings):
    return -0.5 * inputs.advantages * inputs.logp, {}

def halved(inputs, settings):
    return -0.5 * settings.factor * inputs.advantages * inputs.logp, {}

def everything(inputs, settings):
    success, truncated = inputs.success.to(inputs.logp.dtype), inputs.truncated.to(inputs.logp.dtype)
    loss = -inputs.logp * (inputs.episode_return + 10 * success + 100 * truncated) - 1000 * inputs.entropy
    return loss * inputs.weights, {}

PART = Loss(loss=halved, settings=HalvedSettings, only_advantages=True)
EVERYTHING = Loss(loss=everything, entropy_gradient=True)
FROZEN = Loss(loss=everything)
NUMBER = 3
"""


@pytest.fixture
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOSSES, "_loaded", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    points = "\n".join(f"{name} = part_losses:{target}" for name, target in (
        ("halved", "plain"), ("halved_part", "PART"), ("halved_number", "NUMBER"), ("halved_lost", "nothing"),
        ("everything", "EVERYTHING"), ("frozen", "FROZEN"),
    ))  # fmt: skip
    install(tmp_path, "part_losses", LOSS_OF_ANOTHER_PACKAGE, points, group=LOSSES.group)


@pytest.mark.usefixtures("_package")
def test_a_loss_of_another_package_is_found_by_its_entry_point() -> None:
    theirs = {"halved", "halved_part", "halved_number", "halved_lost", "everything", "frozen"}
    assert set(LOSSES.names()) == {*LOSSES.built_in(), *theirs}
    assert not LOSSES.find("halved").only_advantages  # nothing is known of a function alone
    assert LOSSES.find("halved_part").only_advantages
    assert LOSSES.find("halved") is LOSSES.find("halved")
    rows = [row((1, 2), (0, 1))]
    (batch,) = batches_of(rows, [np.ones(2)], pack_tokens=8, tokens_per_microbatch=8)
    quadrupled = LossConfig(name="halved_part", factor=4.0)
    for config, factor in ((LossConfig(name="halved"), 1.0), (quadrupled, 4.0)):
        loss, _ = policy_loss(make_objective(config), batch, batch.old_logp, counted(rows))
        assert loss.item() == pytest.approx(-0.5 * factor * -0.02)
    with pytest.raises(PluginError, match=r"'halved_number' of part-losses .*: it is 3; it must be of .*Loss, or a"):
        LOSSES.find("halved_number")
    with pytest.raises(PluginError, match=r"'halved_lost' of part-losses 1.0 cannot be loaded: AttributeError"):
        LOSSES.find("halved_lost")
    with pytest.raises(UnknownNameError, match="did you mean 'halved"):
        LOSSES.find("halfed")


@pytest.mark.usefixtures("_package")
@pytest.mark.parametrize(("name", "gradient"), [("everything", -1000 * 2.0), ("frozen", 0.0)])
def test_a_loss_sees_entropy_return_success_truncation_and_weight(name: str, gradient: float) -> None:
    solved = trajectory(turn((1,), (2, 3), logprobs=(-0.5, -0.25), reward=2.0, info={"success": True}))
    late = trajectory(turn((1,), (4,), logprobs=(-1.0,), reward=3.0), member=1, kind="truncated")
    step = [group(solved, late)]
    sequences = sequences_of(step)
    tokens = make_table(step, sequences).tokens.with_columns(weight=np.full(3, 2.0))
    (batch,) = make_batches(sequences, tokens, (0, 1), pack_tokens=3, tokens_per_microbatch=99)
    entropies = torch.where(batch.label_mask, 0.125, float("nan")).requires_grad_()
    denominators = Denominators(tokens=1, sequences=2, sequence_tokens=torch.tensor([2, 1]))
    logp = batch.old_logp.requires_grad_()
    loss, _ = policy_loss(make_objective(LossConfig(name=name)), batch, logp, denominators, entropies)
    assert loss.item() == pytest.approx(2.0 * (0.75 * (2 + 10) + 1.0 * (3 + 100) - 1000 * 3 * 0.125))
    loss.backward()
    assert (0.0 if entropies.grad is None else entropies.grad[batch.label_mask].unique().item()) == gradient


@given(
    seed=st.integers(0, 10_000), mode=st.sampled_from(MODES), cut=st.lists(st.integers(0, 3), min_size=7, max_size=7)
)
def test_shares_add_up_for_any_cut(seed: int, mode: str, cut: list[int]) -> None:
    """Rows in any of four micro-batches, some of them empty, some rows without a token."""
    rng = np.random.default_rng(seed)
    mask = torch.from_numpy(rng.random((7, 5)) < 0.6)
    mask[3] = False
    loss = torch.from_numpy(rng.normal(size=(7, 5)))
    rows = torch.arange(7)[:, None].expand(7, 5)
    counts = mask.sum(1)
    whole = Denominators(tokens=int(counts.sum()), sequences=int((counts > 0).sum()), sequence_tokens=counts)
    total = aggregate(loss, mask, rows, mode, whole, constant_tokens=3).item()
    parts = [[i for i, part in enumerate(cut) if part == p] for p in range(4)]
    shares = [aggregate(loss[p], mask[p], rows[p], mode, whole, constant_tokens=3).item() for p in parts]
    assert sum(shares) == pytest.approx(total, rel=1e-9, abs=1e-12)
    kept = [loss[i][mask[i]] for i in range(7) if counts[i]]
    by_words = {
        "token-mean": torch.cat(kept).mean() if kept else torch.zeros(()),
        "seq-mean-token-mean": sum(k.mean() for k in kept) / max(len(kept), 1),
        "seq-mean-token-sum": sum(k.sum() for k in kept) / max(len(kept), 1),
        "constant": sum(k.sum() for k in kept) / max(len(kept), 1) / 3,
    }
    assert total == pytest.approx(float(by_words[mode]), rel=1e-9, abs=1e-12)
