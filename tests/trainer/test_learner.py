"""The PyTorch learner with a real (tiny) model. Promises 1 (what is masked is never trained on), 5 (sampler and learner
agree) and 8 (the update does not depend on how it is cut)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from episode_builders import batches_of, counted, group, scattered, trajectory, turn
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field
from tiny import full_logits, tiny_model
from torch.overrides import TorchFunctionMode

import trainer.learner.steps
from roll_envs.errors import CheckpointError, ConfigError, RollError, UnknownNameError
from roll_envs.settings import Settings
from roll_envs.types import SamplingParams
from trainer.config import CriticConfig, LearnerConfig, LossConfig, OptimizerConfig, RunConfig
from trainer.config.load import parse_config
from trainer.config.parts import BACKENDS
from trainer.data.batches import Batch
from trainer.data.table import TokenSequence, sequences_of
from trainer.engines.hf import HFEngine
from trainer.learner import BackendPart, Learner, TorchSettings, make_learner
from trainer.learner.gradients import Ranks
from trainer.learner.torch import TorchLearner
from trainer.model.forward import load_weights, up_to_the_last_label, weights_of
from trainer.model.network import LanguageModel, choose_device
from trainer.run.update import make_parts, update

CUTS = [(1, 1), (16, 16), (40, 80), (400, 4000)]
"""(pack_tokens, tokens_per_microbatch): each row alone, up to everything in one."""


def some_rows(count: int = 9, seed: int = 0) -> tuple[list[TokenSequence], list[np.ndarray]]:
    """Rows of mixed length with several sampled stretches, and advantages."""
    rng = np.random.default_rng(seed)
    rows, advantages = [], []
    for member in range(count):
        length = int(rng.integers(2, 30))
        mask = tuple(bool(m) for m in rng.random(length) < 0.5)
        rows.append(
            TokenSequence(
                ids=tuple(rng.integers(5, 250, length).tolist()), mask=mask,
                logprobs=tuple(float(x) if m else 0.0 for x, m in zip(rng.uniform(-6, -4, length), mask, strict=True)),
                turns=tuple(0 if m else -1 for m in mask), versions=tuple(0 if m else -1 for m in mask),
                group=member // 3, member=member % 3,
            )
        )  # fmt: skip
        advantages.append(np.where(mask, rng.normal(size=length), 0.0))
    return rows, advantages


def learner_of(model: LanguageModel, *, temperature: float = 0.7, lr: float = 1e-3, **loss: Any) -> TorchLearner:
    # The gradient norm is not cut and the optimiser's step is a function of the gradient alone.
    optimizer = OptimizerConfig(lr=lr, max_grad_norm=1e9)
    return TorchLearner(model, loss=LossConfig(**loss), optimizer=optimizer, temperature=temperature)


def gradients(model: LanguageModel) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.network.named_parameters() if p.grad is not None}


def gradients_of(batches: Sequence[Batch], rows: Sequence[TokenSequence], **loss: Any) -> dict[str, torch.Tensor]:
    model = tiny_model()
    learner_of(model, **loss).step(batches, counted(rows), lr=0.0)
    return gradients(model)


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], atol: float = 1e-6) -> None:
    assert a.keys() == b.keys()
    scale = max(float(x.abs().max()) for x in a.values())
    assert scale > 1e-4
    for name in a:
        assert torch.allclose(a[name], b[name], rtol=1e-4, atol=atol * max(1.0, scale)), name


# -- promise 8 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.05])
def test_the_gradient_does_not_depend_on_how_it_is_cut(aggregation: str, entropy_coef: float) -> None:
    rows, advantages = some_rows()
    found = []
    for pack, micro in CUTS:
        batches = batches_of(rows, advantages, pack_tokens=pack, tokens_per_microbatch=micro)
        found.append(gradients_of(batches, rows, aggregation=aggregation, entropy_coef=entropy_coef))
    assert len(batches_of(rows, advantages, pack_tokens=1, tokens_per_microbatch=1)) == len(rows)
    for other in found[1:]:
        assert_close(found[0], other)


def test_the_gradient_does_not_depend_on_the_order_of_rows() -> None:
    rows, advantages = some_rows()
    order = np.random.default_rng(1).permutation(len(rows))
    kwargs = {"pack_tokens": 40, "tokens_per_microbatch": 80}
    one = gradients_of(batches_of(rows, advantages, **kwargs), rows)
    shuffled = [rows[i] for i in order]
    other = gradients_of(batches_of(shuffled, [advantages[i] for i in order], **kwargs), shuffled)
    assert_close(one, other)


def test_a_row_of_several_turns_counts_as_its_turns_alone() -> None:
    """The same sampled ids after the same prefixes: one row, or one row for each turn (token-mean)."""
    a = turn((10, 11), (12, 13), logprobs=(-5.0, -5.0))
    b = turn((10, 11, 12, 13, 14), (15,), logprobs=(-5.0,))
    joined = sequences_of([group(trajectory(a, b))])
    apart = sequences_of([group(trajectory(a), trajectory(b, member=1))])
    assert (len(joined), len(apart)) == (1, 2)
    found = []
    for rows in (joined, apart):
        advantages = [np.where(r.mask, 1.0, 0.0) for r in rows]
        found.append(gradients_of(batches_of(rows, advantages, pack_tokens=99, tokens_per_microbatch=99), rows))
    assert_close(*found)


def test_the_new_weights_do_not_depend_on_how_it_is_cut() -> None:
    rows, advantages = some_rows()
    found = []
    for pack, micro in CUTS:
        model = tiny_model()
        learner = learner_of(model)
        for _ in range(3):
            batches = batches_of(rows, advantages, pack_tokens=pack, tokens_per_microbatch=micro)
            learner.step(batches, counted(rows), lr=1e-3)
        found.append({n: w.clone() for n, w in learner.weights()})
    for other in found[1:]:
        # Adam divides by the gradient's size: where that is about 0, rounding decides the direction.
        assert max(float((found[0][n] - other[n]).abs().max()) for n in other) < 2e-4


def test_packed_rows_do_not_see_each_other() -> None:
    rows, _ = some_rows()
    learner = learner_of(tiny_model())
    batches = batches_of(rows, pack_tokens=400, tokens_per_microbatch=4000)
    assert len(batches) == 1
    scored = scattered(rows, batches, learner.score(batches))
    for row, logprobs in zip(rows, scored, strict=True):
        logits = full_logits(tiny_model(), row.ids).double() / 0.7
        expected = logits.log_softmax(-1)[range(len(row.ids) - 1), list(row.ids[1:])].numpy()
        kept = np.array(row.mask[1:])
        assert np.allclose(logprobs[1:][kept], expected[kept], atol=1e-5)


def test_the_model_is_given_no_padding() -> None:
    """Rows of 3, 9 and 20 tokens in bins of 20: 40 places are in the batch, 29 tokens are run (a last one predicts
    nothing)."""
    rows = [
        TokenSequence(
            ids=tuple(range(30 - n, 30)), mask=(False, *[True] * (n - 1)), logprobs=(0.0, *[-5.0] * (n - 1)),
            turns=(-1, *[0] * (n - 1)), versions=(-1, *[0] * (n - 1)), group=0, member=n,
        )
        for n in (3, 9, 20)
    ]  # fmt: skip
    (batch,) = batches_of(rows, pack_tokens=20, tokens_per_microbatch=40)
    assert batch.ids.shape == (2, 20)
    model = tiny_model()
    seen: list[tuple[int, ...]] = []
    model.network.base_model.embed_tokens.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    learner_of(model).score([batch])
    assert seen == [(1, 29)]


# -- promise 1 ---------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_what_masked_positions_claim_changes_no_bit(seed: int) -> None:
    rows, advantages = some_rows(5, seed)
    rng = np.random.default_rng(seed)
    batches = batches_of(rows, advantages, pack_tokens=40, tokens_per_microbatch=80)
    spoilt = []
    for batch in batches:
        masked = ~batch.label_mask
        junk = torch.from_numpy(rng.normal(0, 100, batch.ids.shape)).float()
        spoilt.append(
            replace(
                batch,
                labels=torch.where(masked, torch.from_numpy(rng.integers(0, 250, batch.ids.shape)), batch.labels),
                advantages=torch.where(masked, junk, batch.advantages),
                sampler_logp=torch.where(masked, junk, batch.sampler_logp),
                old_logp=torch.where(masked, junk, batch.old_logp),
            )
        )
    if not any(row.mask[1:].count(True) for row in rows):
        return
    a, b = (gradients_of(x, rows, entropy_coef=0.01) for x in (batches, spoilt))
    assert all(torch.equal(a[n], b[n]) for n in a)


def test_masked_logits_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden states at positions that predict nothing sampled are replaced by noise before the head."""
    rows, advantages = some_rows()
    batches = batches_of(rows, advantages, pack_tokens=40, tokens_per_microbatch=400)
    clean = gradients_of(batches, rows)
    noisy_model = tiny_model()
    current: list[Batch] = []

    def spoil(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        batch = current[0]
        present = batch.segments >= 0  # rows are run end to end, without padding, up to their last label
        mask = batch.label_mask[present]
        mask = mask[up_to_the_last_label(batch.positions[present], mask)][None, :, None]
        output.last_hidden_state = torch.where(mask, output.last_hidden_state, 1e3)
        return output

    noisy_model.network.base_model.register_forward_hook(spoil, with_kwargs=True)
    learner = learner_of(noisy_model)
    forward = trainer.learner.steps.label_scores

    def watched(body: Any, head: Any, batch: Batch, **keywords: Any) -> Any:
        current[:] = [batch]
        return forward(body, head, batch, **keywords)

    monkeypatch.setattr(trainer.learner.steps, "label_scores", watched)
    learner.step(batches, counted(rows), lr=0.0)
    found = gradients(noisy_model)
    assert all(torch.equal(clean[n], found[n]) for n in clean)


def test_text_after_the_last_sampled_token_changes_no_bit() -> None:
    """An observation that nothing sampled follows: its ids may be anything."""
    found = []
    for tail in ((20, 21, 22), (99, 98, 97)):
        row = TokenSequence(
            ids=(10, 11, 12, 13, *tail), mask=(False, False, True, True, False, False, False),
            logprobs=(0.0, 0.0, -5.0, -5.0, 0.0, 0.0, 0.0), turns=(-1, -1, 0, 0, -1, -1, -1),
            versions=(-1, -1, 0, 0, -1, -1, -1), group=0, member=0,
        )  # fmt: skip
        batches = batches_of([row], [np.ones(7)], pack_tokens=9, tokens_per_microbatch=9)
        found.append(gradients_of(batches, [row]))
    # The rows of unread ids in the embedding are 0 either way.
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


def test_only_sampled_ids_are_learned() -> None:
    """Steps on a row raise the probability of its sampled ids, whatever the observation says."""
    model = tiny_model()
    learner = learner_of(model, name="reinforce", temperature=1.0)
    a = turn((10, 11), (12,), logprobs=(-5.0,))
    b = turn((10, 11, 12, 99), (15,), logprobs=(-5.0,))
    rows = sequences_of([group(trajectory(a, b))])
    batches = batches_of(rows, [np.ones(5)], pack_tokens=9, tokens_per_microbatch=9)

    def probabilities() -> list[float]:
        chances = full_logits(model, rows[0].ids).softmax(-1)
        return [float(chances[1, 12]), float(chances[3, 15]), float(chances[2, 99])]

    before = probabilities()
    for _ in range(30):
        learner.step(batches, counted(rows), lr=1e-2)
    after = probabilities()
    assert min(after[:2]) > 0.9
    assert after[2] < 0.5
    assert max(before) < 0.5


# -- promise 5 ---------------------------------------------------------------------------------------------------------


def test_sampler_and_learner_agree_at_the_temperature() -> None:
    model = tiny_model()
    engine = HFEngine(model, max_running=4, max_tokens=400)
    rng = np.random.default_rng(0)
    turns, ids = [], ()
    for number in range(4):
        prompt = (*ids, *rng.integers(5, 250, 5 + number).tolist())
        sampling = SamplingParams(temperature=0.7, max_new_tokens=8, seed=number)
        completion = engine.generate(prompt, sampling, timeout_s=30)
        turns.append(turn(prompt, completion.ids, logprobs=completion.logprobs))
        ids = (*prompt, *completion.ids)
    engine.close()
    rows = sequences_of([group(trajectory(*turns), trajectory(turns[0], member=1))])
    assert len(rows) == 2
    batches = batches_of(rows, pack_tokens=200, tokens_per_microbatch=200)
    scored = scattered(rows, batches, learner_of(model, temperature=0.7).score(batches))
    for row, logprobs in zip(rows, scored, strict=True):
        assert np.allclose(logprobs, row.logprobs, atol=1e-5)
    wrong = scattered(rows, batches, learner_of(model, temperature=1.0).score(batches))
    assert not np.allclose(wrong[0], rows[0].logprobs, atol=1e-2)


def test_scores_are_those_of_the_step_and_have_no_gradient() -> None:
    rows, advantages = some_rows()
    batches = batches_of(rows, advantages, pack_tokens=40, tokens_per_microbatch=80)
    learner = learner_of(tiny_model())
    scored = learner.score(batches)
    _, before = learner.step(batches, counted(rows), lr=1e-2)
    assert all(torch.equal(a, b) for a, b in zip(scored, before, strict=True))
    assert not any(a.requires_grad or b.requires_grad for a, b in zip(scored, before, strict=True))
    assert not torch.equal(learner.score(batches)[0], before[0])


def test_on_policy_the_ratio_is_exactly_one() -> None:
    rows, advantages = some_rows()  # sampler's log-probs are made up
    batches = batches_of(rows, advantages, pack_tokens=40, tokens_per_microbatch=80)
    metrics, _ = learner_of(tiny_model()).step(batches, counted(rows), lr=0.0, on_policy=True)
    assert metrics["loss/ratio"] == 1.0
    assert metrics["loss/clip_fraction"] == 0.0
    assert metrics["loss/old_kl"] == 0.0
    off, _ = learner_of(tiny_model()).step(batches, counted(rows), lr=0.0)
    assert off["loss/ratio"] != 1.0


def test_metrics_are_means_over_the_tokens_that_are_run() -> None:
    """Sequences that the caller leaves out count in the denominators of the loss, and have no numbers of their own."""
    rows, advantages = some_rows()
    batches = batches_of(rows, advantages, pack_tokens=40, tokens_per_microbatch=80)
    whole = counted(rows)
    more = replace(whole, tokens=3 * whole.tokens, sequences=3 * whole.sequences)
    metrics, _ = learner_of(tiny_model()).step(batches, whole, lr=0.0, on_policy=True)
    spread, _ = learner_of(tiny_model()).step(batches, more, lr=0.0, on_policy=True)
    assert spread["loss/ratio"] == 1.0
    assert spread["loss/entropy"] == pytest.approx(metrics["loss/entropy"])
    assert spread["loss/total"] == pytest.approx(metrics["loss/total"] / 3)


# -- steps -------------------------------------------------------------------------------------------------------------


def test_broken_steps_are_skipped_and_change_nothing_and_too_many_are_an_error() -> None:
    rows, advantages = some_rows()
    model = tiny_model()
    optimizer = OptimizerConfig(lr=1e-3, max_grad_norm=1e9, max_skipped=2)
    learner = TorchLearner(model, loss=LossConfig(), optimizer=optimizer, temperature=0.7)
    good = batches_of(rows, advantages, pack_tokens=40, tokens_per_microbatch=80)
    metrics, _ = learner.step(good, counted(rows), lr=1e-3)
    assert metrics["learner/skipped_steps"] == 0.0
    before = {n: w.clone() for n, w in learner.weights()}
    state = learner.optimizer_state()["parts"][0]["state"][0]["exp_avg"].clone()
    bad = [replace(b, advantages=torch.full_like(b.advantages, float("nan"))) for b in good]
    for count in (1, 2):
        metrics, logprobs = learner.step(bad, counted(rows), lr=1e-3)
        assert metrics["learner/skipped_steps"] == 1.0
        assert learner.optimizer_state()["skipped"] == count
        assert all(np.isfinite(value) for value in metrics.values())
        assert "learner/grad_norm" not in metrics
        assert len(logprobs) == len(bad)
    with pytest.raises(
        RollError, match=r"gradient norm is nan; the step was not taken, nor were the 2 before it. Lower"
    ):
        learner.step(bad, counted(rows), lr=1e-3)
    assert all(torch.equal(before[n], w) for n, w in learner.weights())
    assert torch.equal(learner.optimizer_state()["parts"][0]["state"][0]["exp_avg"], state)
    learner.step(good, counted(rows), lr=1e-3)
    assert learner.optimizer_state()["skipped"] == 0
    assert not all(torch.equal(before[n], w) for n, w in learner.weights())


def test_a_step_with_too_large_a_gradient_is_skipped() -> None:
    rows, advantages = some_rows()
    batches = batches_of(rows, advantages, pack_tokens=40, tokens_per_microbatch=80)
    norm = learner_of(tiny_model()).step(batches, counted(rows), lr=0.0)[0]["learner/grad_norm"]
    for bound, skipped in ((1.01 * norm, 0.0), (0.99 * norm, 1.0)):
        optimizer = OptimizerConfig(lr=1e-3, max_grad_norm=1e-3, skip_norm=bound)
        learner = TorchLearner(tiny_model(), loss=LossConfig(), optimizer=optimizer, temperature=0.7)
        before = {n: w.clone() for n, w in learner.weights()}
        metrics, _ = learner.step(batches, counted(rows), lr=1e-3)
        assert metrics["learner/skipped_steps"] == skipped
        assert metrics["learner/grad_norm"] == pytest.approx(norm, rel=1e-5)  # before it is cut
        assert all(torch.equal(before[n], w) for n, w in learner.weights()) == bool(skipped)


def test_skipped_steps_are_counted_over_the_optimiser_steps_of_a_training_step() -> None:
    model = tiny_model()
    config = run_config(minibatches=2, epochs=2)
    optimizer = config.optimizer.model_copy(update={"skip_norm": 1e-12})
    config = config.model_copy(update={"optimizer": optimizer})
    _, metrics = recorded(config, played_groups(model), model)
    assert metrics["learner/skipped_steps"] == 4.0
    assert metrics["learner/optimizer_steps"] == 0.0


def test_a_learning_rate_of_zero_leaves_every_bit() -> None:
    rows, advantages = some_rows()
    model = tiny_model()
    optimizer = OptimizerConfig(lr=0.0, weight_decay=0.1)
    learner = TorchLearner(model, loss=LossConfig(), optimizer=optimizer, temperature=1.0)
    before = {n: w.clone() for n, w in learner.weights()}
    for _ in range(3):
        learner.step(batches_of(rows, advantages, pack_tokens=40, tokens_per_microbatch=80), counted(rows), lr=0.0)
    assert all(torch.equal(before[n], w) for n, w in learner.weights())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_optimiser_goes_on_where_it_was_saved(name: str) -> None:
    rows, advantages = some_rows()
    batches = batches_of(rows, advantages, pack_tokens=40, tokens_per_microbatch=80)
    optimizer = OptimizerConfig(name=name, lr=1e-3)  # type: ignore[arg-type]

    def fresh() -> Learner:
        return make_learner(tiny_model(), loss=LossConfig(), optimizer=optimizer, temperature=1.0)

    through, first, second = fresh(), fresh(), fresh()
    for _ in range(4):
        through.step(batches, counted(rows), lr=1e-3)
    for _ in range(2):
        first.step(batches, counted(rows), lr=1e-3)
    load_weights(second._network, first.weights())  # type: ignore[attr-defined]
    second.load_optimizer_state(first.optimizer_state())
    for _ in range(2):
        second.step(batches, counted(rows), lr=1e-3)
    assert all(torch.equal(w, dict(second.weights())[n]) for n, w in through.weights())


def test_backends_by_name() -> None:
    with pytest.raises(UnknownNameError, match="no learner backend 'fsdp9'"):
        make_learner(
            tiny_model(),
            loss=LossConfig(),
            optimizer=OptimizerConfig(),
            temperature=1.0,
            settings=LearnerConfig(backend="fsdp9"),
        )


def test_a_backend_is_one_object_registered_by_name() -> None:
    class OwnSettings(Settings):
        shards: int = Field(1, ge=1)
        """Ranks that share a layer."""

    given: dict[str, Any] = {}

    def make(model: LanguageModel, **arguments: Any) -> Any:
        given.update(arguments, model=model)
        return "learner"

    BACKENDS.register("own", BackendPart(settings=OwnSettings, make=make))
    try:
        model = tiny_model()
        made: Any = make_learner(
            model, loss=LossConfig(), optimizer=OptimizerConfig(), temperature=0.5,
            settings=LearnerConfig(backend="own"), device="cpu",
        )  # fmt: skip
    finally:
        BACKENDS.unregister("own")
    assert made == "learner"
    assert given["model"] is model
    assert given["settings"] == OwnSettings(shards=1)
    assert (given["temperature"], given["device"], given["threads"]) == (0.5, "cpu", 1)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "adapters", "checkpointed"])
def test_threads_change_no_bit(kind: str) -> None:
    if kind == "adapters":
        pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    special = {
        "float32": TorchSettings(),
        "bfloat16": TorchSettings(precision="bfloat16"),
        "adapters": TorchSettings(lora_rank=2),
        "checkpointed": TorchSettings(gradient_checkpointing=True),
    }
    rows, advantages = some_rows(20)
    batches = batches_of(rows, advantages, pack_tokens=30, tokens_per_microbatch=30)
    assert len(batches) > 6
    found = []
    for threads in (1, 3):
        model = tiny_model()
        learner = TorchLearner(
            model, loss=LossConfig(), optimizer=OptimizerConfig(lr=1e-2), temperature=0.7, settings=special[kind],
            threads=threads,
        )  # fmt: skip
        metrics = [learner.step(batches, counted(rows), lr=1e-2)[0] for _ in range(3)]
        assert all(p.grad is None or p.requires_grad for p in model.network.parameters())
        found.append((metrics, {n: w.clone() for n, w in learner.weights()}, learner.score(batches)))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(w, found[1][1][n]) for n, w in found[0][1].items())
    assert all(torch.equal(a, b) for a, b in zip(found[0][2], found[1][2], strict=True))


class EveryDeviceNamed(TorchFunctionMode):
    """Refuses tensors that are made on the default device, whatever it is."""

    made = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        factories = {
            torch.zeros, torch.ones, torch.empty, torch.full, torch.arange, torch.tensor, torch.rand, torch.randn,
            torch.eye, torch.linspace, torch.as_tensor,
        }  # fmt: skip
        if function in factories:
            self.made += 1
            assert (kwargs or {}).get("device") is not None, f"{function.__name__} without a device"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_step_makes_no_tensor_on_a_default_device(lora_rank: int) -> None:
    """With CUDA, what is made on the CPU by default fails, or costs a copy and a wait."""
    if lora_rank:
        pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    rows, advantages = some_rows()
    batches = batches_of(
        rows, advantages, pack_tokens=40, tokens_per_microbatch=80,
        reference_logp=[np.array(r.logprobs) for r in rows],
    )  # fmt: skip
    learner = TorchLearner(
        tiny_model(), loss=LossConfig(kl_coef=0.1, entropy_coef=0.1), optimizer=OptimizerConfig(), temperature=0.7,
        settings=TorchSettings(lora_rank=lora_rank), device="cpu",
    )  # fmt: skip
    reference = learner.reference()
    critic = learner.critic(CriticConfig())
    values = batches_of(
        rows, pack_tokens=40, tokens_per_microbatch=80, value=[np.zeros(len(r.ids)) for r in rows],
        returns=[np.ones(len(r.ids)) for r in rows],
    )  # fmt: skip
    denominators = counted(rows)
    with EveryDeviceNamed() as mode:
        for scorer in (learner, reference, critic):
            scorer.score(batches)
        learner.step(batches, denominators, lr=1e-3)
        critic.step(values, denominators, lr=1e-3)
        dict(learner.weights())
    assert mode.made > 0
    with pytest.raises(AssertionError, match="zeros without a device"), EveryDeviceNamed():
        torch.zeros(2)


@pytest.mark.parametrize("name", ["cuda", "tpu"])
def test_a_device_that_is_not_there_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"device '{name}'"):
        choose_device(name)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("cuda")
    assert choose_device("cpu") == torch.device("cpu")


def test_weights_leave_and_come_back_as_a_stream() -> None:
    source, other = tiny_model(), tiny_model(seed=3)
    stream = weights_of(source.network)
    names = [name for name, _ in weights_of(source.network)]
    assert "lm_head.weight" not in names  # tied to the embedding, as in a Hugging Face folder
    assert {*names, "lm_head.weight"} == source.network.state_dict().keys()
    load_weights(other.network, stream)
    assert all(torch.equal(w, other.network.state_dict()[n]) for n, w in source.network.state_dict().items())
    assert all(w.data_ptr() == source.network.state_dict()[n].data_ptr() for n, w in weights_of(source.network))
    for spoilt, reason in (
        ({"x": torch.zeros(1)}, "no weight 'x'"),
        ({names[0]: torch.zeros(1, 2)}, rf"{names[0]} has shape \(1, 2\), the model's \("),
    ):
        with pytest.raises(CheckpointError, match=reason):
            load_weights(other.network, {**dict(weights_of(source.network)), **spoilt}.items())
    with pytest.raises(CheckpointError, match=f"{names[0]} is missing; .*and {len(names) - 4} more"):
        load_weights(other.network, list(weights_of(source.network))[:0] + list(weights_of(source.network))[-1:])


# -- update() ----------------------------------------------------------------------------------------------------------


def run_config(**learner: Any) -> RunConfig:
    lines = "".join(f"  {k}: {v}\n" for k, v in {"pack_tokens": 64, **learner}.items())
    return parse_config(
        "format: 1\nname: t\nsteps: 4\nenv: {id: roll/FrozenLake-v0}\nadvantage: {normalize: mean}\n"
        f"sampling: {{temperature: 0.7}}\noptimizer: {{lr: 1.0e-2}}\nlearner:\n{lines}"
    )


def played_groups(model: LanguageModel, *, equal: bool = False, groups: int = 4) -> list[Any]:
    """Groups of two one-turn episodes of one token, sampled by the engine at 0.7; one pays 1, the other nothing."""
    engine = HFEngine(model, max_running=8, max_tokens=50)
    made = []
    for g in range(groups):
        members = []
        for m in range(2):
            prompt = (20 + g, 30, 40)
            sampling = SamplingParams(temperature=0.7, max_new_tokens=3, seed=10 * g + m)
            completion = engine.generate(prompt, sampling, timeout_s=30)
            one = turn(prompt, completion.ids, logprobs=completion.logprobs, reward=0.0 if equal else float(m))
            members.append(trajectory(one, member=m))
        made.append(group(*members))
    engine.close()
    return made


class Recorder:
    """A learner that notes what it is given."""

    def __init__(self, inner: TorchLearner) -> None:
        self.inner, self.steps, self.scores = inner, [], 0  # type: ignore[var-annotated]

    def score(self, batches: Any) -> Any:
        self.scores += 1
        assert not self.steps, "old log-probs must be those from before the first step"
        return self.inner.score(batches)

    def step(self, batches: Any, denominators: Any, *, lr: float, on_policy: bool = False) -> Any:
        self.steps.append((batches, denominators, on_policy))
        return self.inner.step(batches, denominators, lr=lr, on_policy=on_policy)


def recorded(config: RunConfig, groups: list[Any], model: LanguageModel) -> tuple[Recorder, dict[str, float]]:
    inner = TorchLearner(model, loss=config.loss, optimizer=config.optimizer, temperature=config.sampling.temperature)
    learner = Recorder(inner)
    return learner, update(config, make_parts(config, learner), groups, step=0, version=0)


def test_one_step_is_on_policy_and_measures_the_mismatch() -> None:
    model = tiny_model()
    learner, metrics = recorded(run_config(), played_groups(model), model)
    assert [on_policy for _, _, on_policy in learner.steps] == [True]
    assert learner.scores == 0
    assert metrics["loss/ratio"] == 1.0
    assert metrics["mismatch/logprob_diff_max"] < 1e-5
    assert metrics["staleness/lag_max"] == 0.0
    assert metrics["learner/optimizer_steps"] == 1.0


def test_minibatches_and_epochs_take_the_ratio_to_the_policy_before_the_first_step() -> None:
    model = tiny_model()
    groups = played_groups(model)
    learner, metrics = recorded(run_config(minibatches=2, epochs=3), groups, model)
    assert learner.scores == 1
    assert [on_policy for _, _, on_policy in learner.steps] == [True] + [False] * 5
    assert metrics["learner/optimizer_steps"] == 6.0
    assert metrics["mismatch/logprob_diff_max"] < 1e-5
    assert metrics["loss/ratio"] != 1.0
    rows = sequences_of(groups)
    expected = {row.ids: row.logprobs for row in rows}  # the sampler's are those of the first weights
    seen: list[tuple[int, ...]] = []
    for batches, denominators, _ in learner.steps:
        assert denominators.sequences == 4
        for batch in batches:
            for b in range(batch.ids.shape[0]):
                for segment in range(int(batch.segments[b].max()) + 1):
                    here = batch.segments[b] == segment
                    ids = tuple(batch.ids[b][here].tolist())
                    seen.append(ids)
                    old = batch.old_logp[b][here].tolist()
                    assert np.allclose(old[:-1], expected[ids][1:], atol=1e-5)
    assert sorted(seen) == sorted([row.ids for row in rows] * 3)


def test_rows_without_advantage_count_in_the_denominators_only() -> None:
    model = tiny_model()
    groups = [*played_groups(model, groups=2), *played_groups(model, equal=True, groups=2)]
    learner, metrics = recorded(run_config(), groups, model)
    ((batches, denominators, _),) = learner.steps
    assert sum(int(b.sequence.max()) + 1 for b in batches) == 4
    assert (denominators.sequences, denominators.tokens) == (8, 24)
    assert metrics["loss/ratio"] == 1.0
    assert metrics["learner/sequences"] == 8.0


def test_leaving_them_out_is_the_same_as_running_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    groups = [*played_groups(model, groups=2), *played_groups(model, equal=True, groups=2)]
    found = []
    for coefficient in (0.0, 1e-30):  # an entropy bonus too small to matter makes every row run
        one = tiny_model()
        config = run_config()
        config = config.model_copy(update={"loss": config.loss.model_copy(update={"entropy_coef": coefficient})})
        recorded(config, groups, one)
        found.append({n: p.detach() for n, p in one.network.named_parameters()})
    assert max(float((found[0][n] - found[1][n]).abs().max()) for n in found[0]) < 1e-4


def test_rows_with_the_same_ids_are_run_once_with_the_sum_of_their_advantages() -> None:
    """Same gradient as running each of them, which an entropy bonus too small to matter enforces."""
    prompt, groups = (20, 30, 40), []
    for g in range(3):
        answers = ((50 + g, 1), (50 + g, 1), (60, 1), (60, 1), (60, 1))
        rewards = (1.0, 0.0, 1.0, 0.5, 0.5)
        turns = [turn(prompt, ids, logprobs=(-1.0, -1.0), reward=r) for ids, r in zip(answers, rewards, strict=True)]
        groups.append(group(*[trajectory(one, member=m) for m, one in enumerate(turns)]))
    gradients_found, rows_run = [], []
    for coefficient in (0.0, 1e-30):
        model = tiny_model()
        config = run_config()
        config = config.model_copy(update={"loss": config.loss.model_copy(update={"entropy_coef": coefficient})})
        learner, _ = recorded(config, groups, model)
        ((batches, denominators, _),) = learner.steps
        assert (denominators.sequences, denominators.tokens) == (15, 30)
        rows_run.append(sum(int(((b.positions == 0) & (b.segments >= 0)).sum()) for b in batches))
        gradients_found.append(gradients(model))
    assert rows_run == [4, 15]
    assert_close(gradients_found[0], gradients_found[1])


def test_nothing_to_learn_takes_no_step() -> None:
    model = tiny_model()
    before = {n: w.clone() for n, w in model.network.state_dict().items()}
    learner, metrics = recorded(run_config(), played_groups(model, equal=True), model)
    assert learner.steps == []
    assert metrics["learner/optimizer_steps"] == 0.0
    failed = [group(trajectory(turn(), kind="failed"))]
    assert update(run_config(), make_parts(run_config(), learner), failed, step=0, version=0) == {
        "learner/sequences": 0.0
    }
    assert all(torch.equal(before[n], w) for n, w in model.network.state_dict().items())


def test_an_update_is_a_function_of_its_rows() -> None:
    """Also in the order of groups, but for rounding."""
    groups = played_groups(tiny_model())
    found = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        model = tiny_model()
        recorded(run_config(), [groups[i] for i in order], model)
        found.append({n: w.clone() for n, w in model.network.state_dict().items()})
    assert max(float((found[0][n] - found[1][n]).abs().max()) for n in found[0]) < 1e-3


def test_the_norm_of_millions_of_numbers_is_exact_and_decides_the_cut() -> None:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.empty(shape)) for shape in ((4000, 1000), (7,), (3, 5))]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape)
    whole = torch.cat([p.grad.double().reshape(-1) for p in parameters if p.grad is not None])
    assert Ranks().clip_gradients(parameters, 1e9) == pytest.approx(float(whole.norm()), rel=1e-12)
    assert parameters[0].grad is not None
    before = parameters[0].grad.clone()
    Ranks().clip_gradients(parameters, 2.0)
    assert torch.allclose(parameters[0].grad, before * (2.0 / (float(whole.norm()) + 1e-6)))
    assert Ranks().clip_gradients(parameters, 1e9) == pytest.approx(2.0, rel=1e-6)
    assert Ranks().clip_gradients([torch.nn.Parameter(torch.ones(2))], 1.0) == 0.0
