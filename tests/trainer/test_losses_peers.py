"""Losses, gradients, corrections and aggregations against those of TRL, whose code is run, and verl, whose results
were recorded by peers/record_verl.py."""

from __future__ import annotations

import importlib
import json
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from loss_inputs import LossRow, Packed, packed, random_rows

from trainer.algorithms.losses import StepTokens
from trainer.algorithms.losses.covariance import choose_between, choose_largest
from trainer.algorithms.losses.objective import correction_weights, kl_loss, make_objective, policy_loss
from trainer.config import CorrectionConfig, LossConfig
from trainer.config.parts import LOSSES, part_settings
from trainer.learner.critic import value_loss


@pytest.fixture(scope="module")
def trl() -> Any:
    """TRL's trainer, which may warn of what it likes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("trl.trainer.grpo_trainer").GRPOTrainer
        except ImportError as error:
            pytest.skip(f"TRL cannot be imported ({error}); `make test` installs it")


def lone_rows(seed: int = 0) -> Packed:
    """One row in each line of the batch, all with tokens, each with one advantage for the whole row."""
    rows = random_rows(seed, count=7)[:-1]
    for row in rows:
        row.advantages[:] = row.advantages[0]
    return packed(rows, bins=len(rows))


def ours(given: Packed, loss: LossConfig, **correction: Any) -> tuple[float, torch.Tensor]:
    share, _ = policy_loss(
        make_objective(loss, CorrectionConfig(**correction)), given.batch, given.logp, given.denominators
    )
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
            "old_per_token_logps": batch.old_logp,
            "sampling_per_token_logps": batch.sampler_logp,
            "ref_per_token_logps": batch.reference_logp,
            "num_items_in_batch": mask.sum(),
            "importance_sampling_ratio": torch.where(mask, (batch.old_logp - batch.sampler_logp).exp(), 1.0),
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
    "off_policy_mask": ({"off_policy_mask_threshold": 0.05}, {"name": "clip"}, {"sequence_delta": 0.05}),
}


def rows_for(case: str, seed: int) -> Packed:
    """Sequences that the case is compared on: k3 stays below our bound, which TRL does not have."""
    given = lone_rows(seed)
    reference = given.batch.reference_logp
    if case == "kl" and reference is not None:
        reference.copy_(torch.minimum(reference, given.logp.detach() + 2.0))
    return given


@pytest.mark.parametrize("case", TRL_CASES)
@pytest.mark.parametrize("seed", range(3))
def test_as_in_trl(trl: Any, case: str, seed: int) -> None:
    options, loss, correction = TRL_CASES[case]
    theirs, their_gradient = trl_loss(trl, rows_for(case, seed), **options)
    value, gradient = ours(rows_for(case, seed), LossConfig(**loss), **correction)
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
    given.batch.sampler_logp.copy_(given.batch.old_logp)
    given.batch.advantages.zero_()
    _, theirs = trl_loss(trl, given, beta=0.3, use_bias_correction_kl=True)
    _, gradient = ours(given, LossConfig(kl_coef=0.3, kl_unbiased=True))
    assert torch.allclose(gradient, theirs)


# -- verl --------------------------------------------------------------------------------------------------------------

VERL: dict[str, Any] = json.loads((Path(__file__).parent / "peers" / "verl.json").read_text("utf-8"))
"""What verl's own functions returned, as peers/record_verl.py recorded it."""

# verl's name: ours, and how its options are called here.
VERL_LOSSES: dict[str, tuple[str, dict[str, str]]] = {
    "vanilla": ("clip", {"clip_ratio_low": "clip_low", "clip_ratio_high": "clip_high", "clip_ratio_c": "dual_clip"}),
    "gspo": ("gspo_token", {"clip_ratio_low": "clip_low", "clip_ratio_high": "clip_high"}),
    "sapo": ("sapo", {"tau_pos": "tau_positive", "tau_neg": "tau_negative"}),
    "cispo": ("cispo", {"clip_ratio_low": "clip_low", "clip_ratio_high": "clip_high"}),
    "geo_mean": ("gmpo", {"clip_ratio_low": "clip_low", "clip_ratio_high": "clip_high"}),
    # verl's own cap of the ratio is so high here that it is never met; ours has none.
    "dppo_tv": ("dppo", {"clip_ratio_low": "divergence_low", "clip_ratio_high": "divergence_high", "clip_ratio_c": ""}),
    "kl_cov": ("kl_cov", {"kl_cov_ratio": "covariance_share", "ppo_kl_coef": "covariance_coef"}),
    "clip_cov": (
        "clip_cov",
        {"clip_ratio_low": "clip_low", "clip_ratio_high": "clip_high", "clip_cov_ratio": "covariance_share",
         "clip_cov_lb": "covariance_low", "clip_cov_ub": "covariance_high"},
    ),
}  # fmt: skip
VERL_DEFAULTS = {"clip_ratio_low": 0.2}  # where the record says nothing else
CHOICES: dict[str, Callable[..., Any]] = {"kl_cov": choose_largest, "clip_cov": choose_between}


def recorded(name: str) -> Packed:
    rows = []
    for row in VERL["inputs"][name]:
        arrays = {key: np.array(row[key]) for key in row}
        rows.append(LossRow(**arrays))
    return packed(rows, bins=len(rows))


def flat(lists: list[list[float]]) -> Any:
    return np.concatenate([np.array(row) for row in lists])


def choose(given: Packed, name: str, config: LossConfig) -> None:
    """Mark what our rule chooses from the log-probs that verl looks at."""
    mask = given.batch.label_mask
    tokens = StepTokens(old_logp=given.logp.detach()[mask].numpy(), advantages=given.batch.advantages[mask].numpy())
    assert given.batch.selected is not None
    given.batch.selected.zero_()
    settings = part_settings(config, LOSSES.find(config.name))
    given.batch.selected[mask] = torch.from_numpy(CHOICES[name](tokens, settings, np.random.default_rng(0)))
    assert 0 < given.batch.selected.sum() < mask.sum()


@pytest.mark.parametrize("record", VERL["losses"], ids=lambda r: f"{r['name']}-{r['mode']}")
def test_as_in_verl(record: dict[str, Any]) -> None:
    name, names = VERL_LOSSES[record["name"]]
    theirs = {**VERL_DEFAULTS, **record["options"]}
    settings = {names[key]: value for key, value in theirs.items() if names.get(key)}
    if name == "dppo":
        settings["divergence_coef"] = 0.0
    config = LossConfig(name=name, aggregation=record["mode"], **settings)
    given = recorded(record["inputs"])
    if name in CHOICES:
        choose(given, name, config)
    value, gradient = ours(given, config)
    if name != "dppo":  # verl's value is that of -sg(r) A logp, which has the same gradient
        assert value == pytest.approx(record["value"], rel=1e-6)
    assert flat(given.unpacked(gradient)) == pytest.approx(flat(record["gradient"]), rel=1e-6, abs=1e-9)
    assert gradient.abs().sum() > 0
    if name == "dppo":
        assert (gradient[given.batch.label_mask] == 0).any(), "a token must be outside the bounds"


def test_every_recorded_option_of_verl_is_compared() -> None:
    for record in VERL["losses"]:
        assert record["options"].keys() <= VERL_LOSSES[record["name"]][1].keys()
    assert {record["name"] for record in VERL["losses"]} == VERL_LOSSES.keys()


@pytest.mark.parametrize("record", VERL["corrections"], ids=lambda r: f"{r['level']}-{r['threshold']}")
def test_corrections_as_in_verl(record: dict[str, Any]) -> None:
    given = recorded(record["inputs"])
    level: dict[str, Any] = {} if record["level"] == "token" else {"level": "sequence-product"}
    if isinstance(record["threshold"], str):  # two bounds: tokens or sequences outside are left out
        low, high = map(float, record["threshold"].split("_"))
        config = CorrectionConfig(name="mis" if level else "icepop", low=low, high=high, **level)
    else:
        config = CorrectionConfig(name="tis", high=record["threshold"], **level)
    weights, _ = correction_weights(given.inputs(), config)
    assert weights is not None
    assert flat(given.unpacked(weights)) == pytest.approx(flat(record["weights"]))
    assert len(set(weights[given.batch.label_mask].tolist())) >= 2


def test_values_as_in_verl() -> None:
    """With log-probs as stand-ins, as they were recorded."""
    record = VERL["value"]
    given = recorded(record["inputs"])
    batch, mask = given.batch, given.batch.label_mask
    losses, _ = value_loss(given.logp, batch.sampler_logp, batch.old_logp, mask, record["clip"])
    total = losses.sum() / mask.sum()
    assert total.item() == pytest.approx(record["value"])
    (gradient,) = torch.autograd.grad(total, given.logp)
    assert flat(given.unpacked(gradient)) == pytest.approx(flat(record["gradient"]))


@pytest.mark.parametrize("record", VERL["kl"], ids=lambda r: r["estimator"])
def test_kl_as_in_verl(record: dict[str, Any]) -> None:
    """verl's k3+ has the value of k3 and the gradient of k2, which is ours with a ratio of 1."""
    given = recorded(record["inputs"])
    assert given.batch.reference_logp is not None
    unbiased = record["estimator"].endswith("+")
    ratio = torch.ones_like(given.logp) if unbiased else None
    mine = kl_loss(given.logp, given.batch.reference_logp, record["estimator"].rstrip("+"), ratio)
    assert flat(given.unpacked(mine)) == pytest.approx(flat(record["values"]))
    (gradient,) = torch.autograd.grad(mine.sum(), given.logp)
    assert flat(given.unpacked(gradient)) == pytest.approx(flat(record["gradient"]))
