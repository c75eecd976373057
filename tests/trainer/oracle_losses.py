"""The policy loss of one sequence after the other, in float64, as the papers write it: a part of the oracle.

Vectors [n] are over the tokens of one sequence that are learnt from; autograd of these lines is the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from oracle_rewards import Settings
from torch import Tensor

CLIP_BOUNDS = {
    "cispo": (1.0, 4.0),
    "clip": (0.2, 0.28),
    "clip_cov": (0.2, 0.28),
    "gmpo": (0.4, 0.4),
    "gspo": (3e-4, 4e-4),
    "gspo_token": (3e-4, 4e-4),
    "raft_pp": (0.2, 0.2),
}
"""How far below and above 1 the ratio may be where the configuration leaves it open."""

NO_STEP_WITHOUT_ADVANTAGES = frozenset(
    {"cispo", "clip", "clip_cov", "gmpo", "gspo", "gspo_token", "raft_pp", "reinforce", "sapo", "topr", "vespo"}
)
"""Losses for which a minibatch whose advantages are all 0 is no optimiser step."""


class Undecided(Exception):
    """A choice by a number that is 0 but for rounding: either is right."""


@dataclass(kw_only=True)
class Tokens:
    """The tokens of one sequence that are learnt from."""

    logp: Tensor
    """Has the gradient."""
    entropy: Tensor
    old: Tensor
    """Under the policy that the ratio is taken to."""
    sampler: Tensor
    reference: Tensor | None
    advantages: Tensor
    turns: list[int]
    selected: Tensor
    """1.0 where the loss chose the token for its minibatch."""


def bounds(s: Settings) -> tuple[float, float]:
    low, high = CLIP_BOUNDS.get(s["loss.name"], (0.0, 0.0))
    return (
        low if s["loss.clip_low"] is None else s["loss.clip_low"],
        high if s["loss.clip_high"] is None else s["loss.clip_high"],
    )


def _over_turns(values: Tensor, turns: list[int], reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """What ``reduce`` makes of the tokens of each token's turn [n]."""
    same_turn = [[i for i, other in enumerate(turns) if other == turn] for turn in turns]
    return torch.stack([reduce(values[places]) for places in same_turn])


def ratio_at(log_ratios: Tensor, turns: list[int], level: str) -> Tensor:
    """exp of the log-ratios, of their mean or of their sum over turn or sequence [n]."""
    whole = torch.ones_like(log_ratios)
    if level == "token":
        log = log_ratios
    elif level == "turn-mean":
        log = _over_turns(log_ratios, turns, torch.mean)
    elif level == "turn-product":
        log = _over_turns(log_ratios, turns, torch.sum).clamp(-20, 20)
    elif level == "sequence-mean":
        log = whole * log_ratios.mean()
    else:
        assert level == "sequence-product"
        log = whole * log_ratios.sum().clamp(-20, 20)
    return log.exp()


def _clipped(ratio: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


def policy_losses(s: Settings, t: Tokens) -> Tensor:
    """The loss of each token before corrections [n]."""
    name, a, moved = s["loss.name"], t.advantages, (t.logp - t.old).clamp(-20, 20)
    own, whole = moved.exp(), ratio_at(moved, t.turns, "sequence-mean")
    low, high = bounds(s)
    from_sampler = (t.logp - t.sampler).clamp(-20, 20)
    losses: dict[str, Callable[[], Tensor]] = {
        "cispo": lambda: -own.clamp(1 - low, 1 + high).detach() * a * t.logp,
        "clip": lambda: _dual(s, _clipped(ratio_at(moved, t.turns, s["loss.ratio"]), a, low, high), a),
        "clip_cov": lambda: (1 - t.selected) * _clipped(own, a, low, high),
        "dppo": lambda: -_still_near(s, t) * a * from_sampler.exp() + s["loss.divergence_coef"] * from_sampler.square(),
        "gmpo": lambda: -a * _held(moved, a, low, high).mean().exp(),
        "gspo": lambda: _clipped(whole, a, low, high),
        "gspo_token": lambda: _clipped(whole.detach() * (t.logp - t.logp.detach()).exp(), a, low, high),
        "kimi": lambda: -a * t.logp + s["loss.proximal_coef"] / 2 * moved.square(),
        "kl_cov": lambda: -own * a + s["loss.covariance_coef"] * t.selected * moved.abs(),
        "raft_pp": lambda: torch.where(a > 0, -torch.minimum(own, torch.full_like(own, 1 + high)) * a, 0.0),
        "reinforce": lambda: -a * t.logp,
        "sapo": lambda: _gate(s, own, a),
        "topr": lambda: -_topr_weights(s, ratio_at(moved, t.turns, s["loss.ratio"]).detach(), a) * a * t.logp,
        "vespo": lambda: -_vespo_weight(s, from_sampler.detach().sum(), a) * a * t.logp,
    }
    return losses[name]()


def _held(moved: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    """Log-ratios cut on the side to which the advantage pushes."""
    return torch.where(a > 0, moved.clamp(max=high), torch.where(a < 0, moved.clamp(min=-low), moved))


def _dual(s: Settings, loss: Tensor, a: Tensor) -> Tensor:
    if s["loss.dual_clip"] is None:
        return loss
    return torch.where(a < 0, torch.minimum(loss, -s["loss.dual_clip"] * a), loss)


def _still_near(s: Settings, t: Tokens) -> Tensor:
    """1.0 where the probability has not moved too far in the direction of the advantage."""
    moved = t.logp.detach().exp() - t.sampler.exp()
    risen = (t.advantages > 0) & (moved > s["loss.divergence_high"])
    fallen = (t.advantages < 0) & (-moved > s["loss.divergence_low"])
    return (~(risen | fallen)).double()


def _by_sign(positive: Tensor, first: float, second: float) -> Tensor:
    return torch.tensor([first if p else second for p in positive.tolist()], dtype=torch.double)


def _gate(s: Settings, ratio: Tensor, a: Tensor) -> Tensor:
    tau = _by_sign(a > 0, s["loss.tau_positive"], s["loss.tau_negative"])
    return -4 * torch.sigmoid(tau * (ratio - 1)) / tau * a


def _topr_weights(s: Settings, ratio: Tensor, a: Tensor) -> Tensor:
    return _by_sign(a > 0, s["loss.positive_weight"], s["loss.negative_weight"]) * torch.where(
        a > 0, 1, ratio.clamp(max=1)
    )


def _vespo_weight(s: Settings, moved: Tensor, a: Tensor) -> Tensor:
    w = moved.clamp(-20, 20).exp().clamp(min=1e-8)
    k = _by_sign(a >= 0, s["loss.power_positive"], s["loss.power_negative"])
    decay = _by_sign(a >= 0, s["loss.decay_positive"], s["loss.decay_negative"])
    return (k * w.log() + decay * (1 - w)).exp()


def correction_weights(s: Settings, t: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
    """What each token's policy loss is multiplied by [n]; and which tokens each rule takes out."""
    log_w = (t.old - t.sampler).detach().clamp(-20, 20)
    weights, rules = torch.ones_like(log_w), {}
    if s["correction.name"] != "none":
        ratio = ratio_at(log_w, t.turns, s["correction.level"])
        rules["cut"] = ratio > s["correction.high"]
        if s["correction.name"] == "tis":
            weights = ratio.clamp(max=s["correction.high"])
        else:
            rules["cut"] |= ratio < s["correction.low"]
            weights = ratio * (~rules["cut"]).double()
    if s["correction.reject"] != "none":
        ratio = ratio_at(log_w, t.turns, s["correction.reject"])
        rules["rejected"] = (ratio < s["correction.reject_low"]) | (ratio > s["correction.reject_high"])
    if s["correction.veto"]:
        rules["vetoed"] = (log_w.exp() < s["correction.veto"]).any().expand(len(log_w))
    if s["correction.sequence_delta"] is not None:
        far = (t.sampler - t.logp.detach()).mean() > s["correction.sequence_delta"]
        rules["off_policy"] = far & (t.advantages < 0)
    for name in ("rejected", "vetoed", "off_policy"):
        if name in rules:
            weights = weights * (~rules[name]).double()
    return weights, rules


def kl_losses(s: Settings, t: Tokens) -> Tensor:
    """The KL to the reference of each token [n]."""
    assert t.reference is not None
    d = (t.logp - t.reference).clamp(-20, 20)
    value = {"k1": d, "k2": d.square() / 2, "k3": ((-d).exp() - 1 + d).clamp(max=10)}[s["loss.kl_estimator"]]
    if not s["loss.kl_unbiased"]:
        return value
    slope = (t.logp - t.sampler).clamp(-20, 20).exp() * d  # ratio times the derivative of d^2 / 2
    return value.detach() + slope.detach() * (t.logp - t.logp.detach())


def aggregate(s: Settings, losses: Sequence[Tensor]) -> Tensor:
    """The loss of an optimiser step from those of its sequences that have tokens, each [n]."""
    how, tokens = s["loss.aggregation"], sum(map(len, losses))
    if how == "token-mean":
        return torch.stack([loss.sum() for loss in losses]).sum() / tokens
    if how == "seq-mean-token-mean":
        return torch.stack([loss.mean() for loss in losses]).mean()
    sums = torch.stack([loss.sum() for loss in losses])
    return sums.mean() if how == "seq-mean-token-sum" else sums.mean() / s["loss.constant_tokens"]


def select(s: Settings, old: np.ndarray, advantages: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """1.0 for the tokens of an optimiser step [N] that clip_cov or kl_cov choose, by covariance."""
    chosen = np.zeros(len(old))
    if s["loss.name"] not in ("clip_cov", "kl_cov") or not s["loss.covariance_share"]:
        return chosen
    covariance = (advantages - advantages.mean()) * (old - old.mean())
    count = max(1, int(s["loss.covariance_share"] * len(old)))
    if s["loss.name"] == "kl_cov":
        order = sorted(range(len(old)), key=lambda i: -covariance[i])
        if count < len(old) and covariance[order[count - 1]] - covariance[order[count]] < 1e-12:
            raise Undecided
        chosen[order[:count]] = 1.0
        return chosen
    low, high = s["loss.covariance_low"], s["loss.covariance_high"]
    between = np.array([i for i, c in enumerate(covariance) if low < c < high], dtype=np.int64)
    chosen[rng.permutation(between)[:count]] = 1.0
    return chosen
