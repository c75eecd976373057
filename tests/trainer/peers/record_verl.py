"""Record what verl's own functions return, into verl.json beside this file.

verl cannot be installed where the tests run: it needs Ray and pins of its own. Its wheel can be unpacked anywhere:

    pip download --no-deps verl==0.9.1 && unzip verl-0.9.1-py3-none-any.whl -d FOLDER
    pip install --no-deps --target FOLDER ray tensordict omegaconf hydra-core antlr4-python3-runtime==4.9.3 codetiming \
        click msgpack protobuf jsonschema cachetools pyvers cloudpickle orjson requests urllib3
    PYTHONPATH=.:tests/trainer:FOLDER .venv/bin/python tests/trainer/peers/record_verl.py

The inputs are random and are recorded too, so that the tests need neither verl nor the same random numbers. Nothing
here reads our losses: options are verl's, and what they are called here stands in tests/trainer/test_losses_peers.py.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from loss_inputs import LossRow, Packed, packed, random_rows

warnings.simplefilter("ignore")
from verl.trainer.ppo import core_algos, rollout_corr_helper  # noqa: E402
from verl.workers.config import FSDPActorConfig, PolicyLossConfig  # noqa: E402

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")
ONE_MODE = ("seq-mean-token-mean",)
"""Of losses for which verl has no other."""


def lone(seed: int) -> list[LossRow]:
    """Sequences that all have sampled tokens, with one advantage each."""
    return [replace(row, advantages=row.advantages * 0 + row.advantages[0]) for row in random_rows(seed, count=7)[:-1]]


INPUTS: dict[str, list[LossRow]] = {
    "one advantage a sequence": lone(1),
    "one advantage a token": random_rows(2, count=7)[:-1],
    "sampled by the old policy": [replace(row, sampler=row.old) for row in lone(3)],
    "covariance": lone(4),
    "correction": lone(5),
    "values": lone(6),
}

# (verl's name, inputs, modes, options)
LOSSES: list[tuple[str, str, tuple[str, ...], dict[str, Any]]] = [
    ("vanilla", "one advantage a token", MODES, {"clip_ratio_high": 0.28, "clip_ratio_c": 1.5}),
    ("vanilla", "one advantage a token", ("token-mean",), {"clip_ratio_high": 0.2, "clip_ratio_c": 3.0}),
    ("gspo", "one advantage a sequence", MODES, {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2}),
    ("sapo", "one advantage a sequence", ONE_MODE, {"tau_pos": 1.0, "tau_neg": 1.05}),
    ("cispo", "one advantage a sequence", MODES, {"clip_ratio_high": 0.3}),
    ("geo_mean", "one advantage a sequence", ONE_MODE, {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2}),
    ("dppo_tv", "sampled by the old policy", MODES,
     {"clip_ratio_low": 0.05, "clip_ratio_high": 0.1, "clip_ratio_c": 1e6}),
    ("kl_cov", "covariance", ("token-mean",), {"kl_cov_ratio": 0.3, "ppo_kl_coef": 0.7}),
    # Nothing is clipped, which verl would leave out of its draw; all eligible tokens are drawn.
    ("clip_cov", "covariance", ("token-mean",),
     {"clip_ratio_low": 1.0, "clip_ratio_high": 20.0, "clip_cov_ratio": 0.9, "clip_cov_lb": 0.2, "clip_cov_ub": 0.9}),
]  # fmt: skip
CORRECTIONS = [("token", 1.3), ("sequence", 1.3), ("token", "0.7_1.3"), ("sequence", "0.7_1.3")]
KL = ("k1", "k2", "k3", "k3+")


def given(name: str) -> Packed:
    return packed(INPUTS[name], bins=len(INPUTS[name]))


def policy_loss(name: str, inputs: str, mode: str, options: dict[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in options.items() if "cov_" in key or key == "ppo_kl_coef"}
    shared = {key: value for key, value in options.items() if key not in own}
    config = FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(**own),
        **{"clip_ratio_low": 0.2, **shared},
    )
    x = given(inputs)
    loss, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=x.batch.old_logprobs,
        log_prob=x.logp,
        advantages=x.batch.advantages,
        response_mask=x.batch.label_mask.to(x.logp.dtype),
        loss_agg_mode=mode,
        config=config,
    )
    (gradient,) = torch.autograd.grad(loss, x.logp)
    found = {"value": loss.item(), "gradient": x.unpacked(gradient)}
    return {"name": name, "inputs": inputs, "mode": mode, "options": options, **found}


def correction(level: str, threshold: Any) -> dict[str, Any]:
    x = given("correction")
    log_ratio = x.batch.old_logprobs - x.batch.sampler_logprobs
    weights, _ = rollout_corr_helper.compute_rollout_correction_weights(
        log_ratio, x.batch.label_mask.to(log_ratio.dtype), rollout_is=level, rollout_is_threshold=threshold
    )
    return {"level": level, "threshold": threshold, "inputs": "correction", "weights": x.unpacked(weights)}


def kl(estimator: str) -> dict[str, Any]:
    x = given("values")
    penalty = core_algos.kl_penalty(x.logp, x.batch.reference_logprobs, estimator)
    (gradient,) = torch.autograd.grad(penalty.sum(), x.logp)
    found = {"values": x.unpacked(penalty), "gradient": x.unpacked(gradient)}
    return {"estimator": estimator, "inputs": "values", **found}


def value() -> dict[str, Any]:
    """The value loss, with log-probs as stand-ins: predictions ``logp``, returns ``old``, old values ``sampler``."""
    x = given("values")
    loss, _ = core_algos.compute_value_loss(
        vpreds=x.logp,
        returns=x.batch.old_logprobs,
        values=x.batch.sampler_logprobs,
        response_mask=x.batch.label_mask.to(x.logp.dtype),
        cliprange_value=0.2,
    )
    (gradient,) = torch.autograd.grad(loss, x.logp)
    return {"inputs": "values", "clip": 0.2, "value": loss.item(), "gradient": x.unpacked(gradient)}


def as_lists(row: LossRow) -> dict[str, Any]:
    return {name: array.tolist() for name, array in asdict(row).items()}


if __name__ == "__main__":
    recorded = {
        "source": f"verl {version('verl')}: verl/trainer/ppo/core_algos.py, verl/trainer/ppo/rollout_corr_helper.py",
        "made_by": "tests/trainer/peers/record_verl.py",
        "inputs": {name: [as_lists(row) for row in rows] for name, rows in INPUTS.items()},
        "losses": [policy_loss(name, rows, mode, o) for name, rows, modes, o in LOSSES for mode in modes],
        "corrections": [correction(*case) for case in CORRECTIONS],
        "kl": [kl(estimator) for estimator in KL],
        "value": value(),
    }
    Path(__file__).with_name("verl.json").write_text(json.dumps(recorded, indent=None, separators=(",", ":")) + "\n")
