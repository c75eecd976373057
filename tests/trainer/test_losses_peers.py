"""Losses, gradients, corrections and aggregations against the code of TRL and verl, where those are installed.

Neither is needed here: ``pip install trl`` or ``pip install verl`` beside this package makes these tests run.
"""

from __future__ import annotations

import importlib
import warnings
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from loss_inputs import Packed, packed, random_rows
from trainer.algorithms.losses.value import value_loss

from trainer.algorithms.losses import StepTokens, correction_weights, kl_loss, policy_loss
from trainer.algorithms.losses.covariance import choose_between, choose_largest
from trainer.config import CorrectionConfig, LossConfig


def peer(module: str, package: str) -> Any:
    """A module of another package, which may warn of what it likes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(module)
        except ImportError as error:
            pytest.skip(f"{package} cannot be imported ({error}); pip install {package} to compare with it")


@pytest.fixture(scope="module")
def trl() -> Any:
    return peer("trl.trainer.grpo_trainer", "trl").GRPOTrainer


@pytest.fixture(scope="module")
def verl() -> Any:
    return peer("verl.trainer.ppo.core_algos", "verl")


def lone_rows(seed: int = 0) -> Packed:
    """One row in each line of the batch, all with tokens, each with one advantage for the whole row."""
    rows = random_rows(seed, count=7)[:-1]
    for row in rows:
        row.advantages[:] = row.advantages[0]
    return packed(rows, bins=len(rows))


def ours(given: Packed, loss: LossConfig, **correction: Any) -> tuple[float, torch.Tensor]:
    share, _ = policy_loss(loss, given.batch, given.logp, given.denominators, correction=CorrectionConfig(**correction))
    return share.item(), torch.autograd.grad(share, given.logp)[0]


# -- TRL ---------------------------------------------------------------------------------------------------------------


def trl_loss(trainer: Any, given: Packed, **options: Any) -> tuple[float, torch.Tensor]:
    """What GRPOTrainer's own loss function makes of the same log-probs, and its gradient."""
    batch, mask = given.batch, given.batch.label_mask
    arguments = {
        "use_bias_correction_kl": False, "delta": None, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05,
        "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0,
        "steps_per_generation": 1,
    }  # fmt: skip
    settings = {
        "loss_type": "dapo", "importance_sampling_level": "token", "beta": 0.0, "epsilon_low": 0.2,
        "epsilon_high": 0.28, "off_policy_mask_threshold": None, "max_completion_length": 9,
    } | {name: value for name, value in options.items() if name not in arguments}  # fmt: skip
    stand_in = SimpleNamespace(
        **settings,
        args=SimpleNamespace(**arguments | {name: options[name] for name in arguments if name in options}),
        _get_per_token_logps_and_entropies=lambda *_, **__: (given.logp, torch.zeros_like(given.logp), None),
        aux_loss_enabled=False, top_entropy_quantile=1.0, use_vllm=options.get("loss_type") == "vespo",
        vllm_importance_sampling_correction=True, model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        _metrics={"train": defaultdict(list)}, get_off_policy_mask=trainer.get_off_policy_mask,
        get_gamma_weights=trainer.get_gamma_weights,
    )  # fmt: skip
    empty = torch.zeros((mask.shape[0], 0), dtype=torch.int64)
    loss = trainer._compute_loss(
        stand_in,
        None,
        {
            "prompt_ids": empty,
            "prompt_mask": empty,
            "completion_ids": batch.ids,
            "completion_mask": mask.to(given.logp.dtype),
            "advantages": batch.advantages,
            "old_per_token_logps": batch.old_logprobs,
            "sampling_per_token_logps": batch.sampler_logprobs,
            "ref_per_token_logps": batch.reference_logprobs,
            "num_items_in_batch": mask.sum(),
            "importance_sampling_ratio": torch.where(mask, (batch.old_logprobs - batch.sampler_logprobs).exp(), 1.0),
        },
    )
    return loss.item(), torch.autograd.grad(loss, given.logp)[0]


TRL_CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "dapo": ({"loss_type": "dapo"}, {"name": "clip"}, {}),
    "bnpo": ({"loss_type": "bnpo"}, {"name": "clip"}, {}),
    "grpo": ({"loss_type": "grpo"}, {"name": "clip", "aggregation": "seq-mean-token-mean"}, {}),
    "dr_grpo": ({"loss_type": "dr_grpo"}, {"name": "clip", "aggregation": "constant", "constant_tokens": 9}, {}),
    "delta": ({"delta": 1.4}, {"name": "clip", "dual_clip": 1.4}, {}),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.1, "epsilon_high": 0.2},
        {"name": "gspo", "clip_low": 0.1, "clip_high": 0.2, "aggregation": "seq-mean-token-mean"},
        {},
    ),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.3}, {"name": "cispo", "clip_high": 0.3}, {}),
    "sapo": ({"loss_type": "sapo"}, {"name": "sapo", "aggregation": "seq-mean-token-mean"}, {}),
    "vespo": ({"loss_type": "vespo"}, {"name": "vespo"}, {}),
    "kl": ({"beta": 0.3}, {"name": "clip", "kl_coef": 0.3}, {}),
    "off_policy_mask": ({"off_policy_mask_threshold": 0.05}, {"name": "clip"}, {"row_delta": 0.05}),
}


@pytest.mark.parametrize("case", TRL_CASES)
@pytest.mark.parametrize("seed", range(3))
def test_as_in_trl(trl: Any, case: str, seed: int) -> None:
    options, loss, correction = TRL_CASES[case]
    theirs, their_gradient = trl_loss(trl, lone_rows(seed), **options)
    value, gradient = ours(lone_rows(seed), LossConfig(**loss), **correction)
    assert value == pytest.approx(theirs, rel=1e-6)  # TRL has some settings in float32
    assert torch.allclose(gradient, their_gradient, rtol=1e-6, atol=1e-9)
    assert gradient.abs().sum() > 0


def test_luspo_is_gspo_with_the_sum_of_each_row(trl: Any) -> None:
    """TRL's loss has one number per row, which it multiplies by the mask: the row's length."""
    bounds = {"epsilon_low": 0.1, "epsilon_high": 0.2}
    theirs = trl_loss(trl, lone_rows(), loss_type="luspo", importance_sampling_level="sequence", **bounds)
    mine = ours(lone_rows(), LossConfig(name="gspo", clip_low=0.1, clip_high=0.2, aggregation="seq-mean-token-sum"))
    assert mine[0] == pytest.approx(theirs[0])
    assert torch.allclose(mine[1], theirs[1])


def test_the_unbiased_kl_has_the_gradient_of_trls_corrected_one(trl: Any) -> None:
    """Its ratio is to the old policy, which is therefore the sampler here; values differ by that ratio."""
    given = lone_rows()
    given.batch.sampler_logprobs.copy_(given.batch.old_logprobs)
    given.batch.advantages.zero_()
    _, theirs = trl_loss(trl, given, beta=0.3, use_bias_correction_kl=True)
    _, gradient = ours(given, LossConfig(kl_coef=0.3, kl_unbiased=True))
    assert torch.allclose(gradient, theirs)


# -- verl --------------------------------------------------------------------------------------------------------------


def verl_loss(core: Any, name: str, given: Packed, mode: str, **options: Any) -> tuple[float, torch.Tensor]:
    actor = peer("verl.workers.config", "verl")
    policy = {key: options.pop(key) for key in list(options) if "cov_" in key or key == "ppo_kl_coef"}
    config = actor.FSDPActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **{"clip_ratio_low": 0.2, **options},
        policy_loss=actor.PolicyLossConfig(**policy),
    )  # fmt: skip
    loss, _ = core.get_policy_loss_fn(name)(
        old_log_prob=given.batch.old_logprobs,
        log_prob=given.logp,
        advantages=given.batch.advantages,
        response_mask=given.batch.label_mask.to(given.logp.dtype),
        loss_agg_mode=mode,
        config=config,
    )
    return loss.item(), torch.autograd.grad(loss, given.logp)[0]


VERL_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vanilla": ({"clip_ratio_high": 0.28, "clip_ratio_c": 1.5}, {"name": "clip", "dual_clip": 1.5}),
    "gspo": (
        {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2},
        {"name": "gspo_token", "clip_low": 0.1, "clip_high": 0.2},
    ),
    "sapo": ({"tau_pos": 1.0, "tau_neg": 1.05}, {"name": "sapo"}),
    "cispo": ({"clip_ratio_high": 0.3}, {"name": "cispo", "clip_low": 0.2, "clip_high": 0.3}),
    "geo_mean": (
        {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2},
        {"name": "gmpo", "clip_low": 0.1, "clip_high": 0.2},
    ),
}


@pytest.mark.parametrize("case", VERL_CASES)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_as_in_verl(verl: Any, case: str, mode: str) -> None:
    if case in ("sapo", "geo_mean") and mode != "seq-mean-token-mean":
        pytest.skip("verl has one aggregation for this loss")
    options, loss = VERL_CASES[case]
    given = lone_rows(1)
    if case == "vanilla":  # it has no need of one advantage per row
        given.batch.advantages.copy_(packed(random_rows(2, count=7)[:-1], bins=6).batch.advantages[:, :1])
    theirs, their_gradient = verl_loss(verl, case, given, mode, **options)
    value, gradient = ours(given, LossConfig(**loss, aggregation=mode))  # type: ignore[arg-type]
    assert value == pytest.approx(theirs, rel=1e-6)
    assert torch.allclose(gradient, their_gradient, rtol=1e-6, atol=1e-9)


def test_dppo_has_verls_gradient(verl: Any) -> None:
    """verl's old policy is the anchor; its value is that of -sg(r) A logp, which has the same gradient."""
    given = lone_rows(3)
    given.batch.sampler_logprobs.copy_(given.batch.old_logprobs)
    options = {"clip_ratio_low": 0.05, "clip_ratio_high": 0.1, "clip_ratio_c": 1e6}
    _, theirs = verl_loss(verl, "dppo_tv", given, "token-mean", **options)
    loss = LossConfig(name="dppo", divergence_low=0.05, divergence_high=0.1, divergence_coef=0.0)
    _, gradient = ours(given, loss)
    assert torch.allclose(gradient, theirs, rtol=1e-6, atol=1e-9)
    assert (gradient[given.batch.label_mask] == 0).any()


def chosen(given: Packed, choose: Callable[..., Any], config: LossConfig) -> None:
    """Mark what our rule chooses from the log-probs that verl looks at."""
    mask = given.batch.label_mask
    tokens = StepTokens(old_logp=given.logp.detach()[mask].numpy(), advantages=given.batch.advantages[mask].numpy())
    assert given.batch.selected is not None
    given.batch.selected.zero_()
    given.batch.selected[mask] = torch.from_numpy(choose(tokens, config, np.random.default_rng(0)))
    assert 0 < given.batch.selected.sum() < mask.sum()


def test_kl_cov_as_in_verl(verl: Any) -> None:
    given, config = lone_rows(4), LossConfig(name="kl_cov", covariance_share=0.3, covariance_coef=0.7)
    chosen(given, choose_largest, config)
    theirs, their_gradient = verl_loss(verl, "kl_cov", given, "token-mean", kl_cov_ratio=0.3, ppo_kl_coef=0.7)
    value, gradient = ours(given, config)
    assert value == pytest.approx(theirs)
    assert torch.allclose(gradient, their_gradient)


def test_clip_cov_as_in_verl_where_all_eligible_tokens_are_drawn(verl: Any) -> None:
    """Nothing is clipped here, which verl would leave out of the draw."""
    given = lone_rows(4)
    config = LossConfig(
        name="clip_cov", clip_low=1.0, clip_high=20.0, covariance_share=0.9, covariance_low=0.2, covariance_high=0.9
    )
    chosen(given, choose_between, config)
    options = {"clip_cov_ratio": 0.9, "clip_cov_lb": 0.2, "clip_cov_ub": 0.9}
    theirs, their_gradient = verl_loss(
        verl, "clip_cov", given, "token-mean", clip_ratio_low=1.0, clip_ratio_high=20.0, **options
    )
    value, gradient = ours(given, config)
    assert value == pytest.approx(theirs)
    assert torch.allclose(gradient, their_gradient)


@pytest.mark.parametrize(
    ("level", "threshold", "correction"),
    [
        ("token", 1.3, {"name": "tis", "high": 1.3}),
        ("sequence", 1.3, {"name": "tis", "level": "row", "high": 1.3}),
        ("token", "0.7_1.3", {"name": "icepop", "low": 0.7, "high": 1.3}),
        ("sequence", "0.7_1.3", {"name": "mis", "level": "row", "low": 0.7, "high": 1.3}),
    ],
)
def test_corrections_as_in_verl(verl: Any, level: str, threshold: Any, correction: dict[str, Any]) -> None:
    helper = peer("verl.trainer.ppo.rollout_corr_helper", "verl")
    given = lone_rows(5)
    mask = given.batch.label_mask
    moved = given.batch.old_logprobs - given.batch.sampler_logprobs
    theirs, _ = helper.compute_rollout_correction_weights(
        moved, mask.to(moved.dtype), rollout_is=level, rollout_is_threshold=threshold
    )
    weights, _ = correction_weights(given.inputs(), CorrectionConfig(**correction))
    assert weights is not None
    assert torch.allclose(weights, theirs)
    assert len(set(weights[mask].tolist())) >= 2


def test_values_and_kl_as_in_verl(verl: Any) -> None:
    given = lone_rows(6)
    batch, mask = given.batch, given.batch.label_mask
    theirs, _ = verl.compute_value_loss(
        vpreds=given.logp, returns=batch.old_logprobs, values=batch.sampler_logprobs,
        response_mask=mask.to(given.logp.dtype), cliprange_value=0.2,
    )  # fmt: skip
    losses, _ = value_loss(given.logp, batch.sampler_logprobs, batch.old_logprobs, mask, 0.2)
    assert (losses.sum() / mask.sum()).item() == pytest.approx(theirs.item())
    assert batch.reference_logprobs is not None
    for estimator in ("k1", "k2", "k3"):
        mine = kl_loss(given.logp, batch.reference_logprobs, estimator)
        assert torch.allclose(mine, verl.kl_penalty(given.logp, batch.reference_logprobs, estimator))
    straight = verl.kl_penalty(given.logp, batch.reference_logprobs, "k3+")
    mine = kl_loss(given.logp, batch.reference_logprobs, "k3", torch.ones_like(given.logp))
    gradients = [torch.autograd.grad(x.sum(), given.logp)[0] for x in (mine, straight)]
    assert torch.allclose(mine, straight)
    assert torch.allclose(*gradients)
