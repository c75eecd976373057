"""The losses once more, one row at a time and with nothing but numpy, as their papers write them.

Each gives the losses of a row's sampled tokens as a function of ``x``, the policy's log-probs; ``fixed`` are the same
log-probs where the paper stops the gradient. At ``x == fixed`` the value is the loss, and the derivative with respect
to ``x`` its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from loss_inputs import LossRow, Numbers

Formula = Callable[[Numbers, Numbers, LossRow, Any], Numbers]


def _ratios(x: Numbers, row: LossRow, level: str) -> Numbers:
    moved, turns = x - row.old[row.mask], row.turns[row.mask]
    if level == "token":
        return np.exp(moved)
    if level == "turn-mean":
        return np.exp(np.array([moved[turns == t].mean() for t in turns]))
    return np.full(len(x), np.exp(moved.mean() if level == "sequence-mean" else moved.sum()))


def _clipped(ratio: Numbers, a: Numbers, low: float, high: float) -> Numbers:
    return -np.minimum(ratio * a, np.clip(ratio, 1 - low, 1 + high) * a)


def clip(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    a = row.advantages[row.mask]
    loss = _clipped(_ratios(x, row, c.ratio), a, c.clip_low, c.clip_high)
    return loss if c.dual_clip is None else np.where(a < 0, np.minimum(loss, -c.dual_clip * a), loss)


def reinforce(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    return -row.advantages[row.mask] * x


def raft_pp(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    a = row.advantages[row.mask]
    return np.where(a > 0, -np.minimum(_ratios(x, row, "token"), 1 + c.clip_high) * a, 0.0)


def gspo(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    return _clipped(_ratios(x, row, "sequence-mean"), row.advantages[row.mask], c.clip_low, c.clip_high)


def gspo_token(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    ratio = _ratios(fixed, row, "sequence-mean") * np.exp(x) / np.exp(fixed)
    return _clipped(ratio, row.advantages[row.mask], c.clip_low, c.clip_high)


def gmpo(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    a, low, high = row.advantages[row.mask], c.clip_low, c.clip_high
    sign = np.sign(a)
    moved = x - row.old[row.mask]
    held = sign * np.minimum(sign * moved, sign * np.clip(moved, -low, high))
    return -a * np.exp(held.mean())


def cispo(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    low, high = c.clip_low, c.clip_high
    return -np.clip(_ratios(fixed, row, "token"), 1 - low, 1 + high) * row.advantages[row.mask] * x


def topr(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    a, ratio = row.advantages[row.mask], _ratios(fixed, row, c.ratio)
    return -np.where(a > 0, c.positive_weight, c.negative_weight * np.clip(ratio, 0, 1)) * a * x


def vespo(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    a, w = row.advantages[row.mask], np.exp((fixed - row.sampler[row.mask]).sum())
    power, decay = np.where(a >= 0, [[c.power_positive], [c.decay_positive]], [[c.power_negative], [c.decay_negative]])
    return -np.exp(decay) * w**power * np.exp(-decay * w) * a * x


def sapo(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    a = row.advantages[row.mask]
    tau = np.where(a > 0, c.tau_positive, c.tau_negative)
    return -4 / tau / (1 + np.exp(-tau * (_ratios(x, row, "token") - 1))) * a


def kimi(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    return -row.advantages[row.mask] * x + c.proximal_coef / 2 * (x - row.old[row.mask]) ** 2


def dppo(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    a, mu = row.advantages[row.mask], np.exp(row.sampler[row.mask])
    risen = np.exp(fixed) - mu
    stopped = np.where(a > 0, risen > c.divergence_high, -risen > c.divergence_low)
    ratio = np.exp(x) / mu
    return np.where(stopped, 0.0, -a * ratio) + c.divergence_coef * np.log(ratio) ** 2


def clip_cov(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    loss = _clipped(_ratios(x, row, "token"), row.advantages[row.mask], c.clip_low, c.clip_high)
    return np.where(row.selected[row.mask], 0.0, loss)


def kl_cov(x: Numbers, fixed: Numbers, row: LossRow, c: Any) -> Numbers:
    penalty = c.covariance_coef * np.abs(x - row.old[row.mask])
    return -_ratios(x, row, "token") * row.advantages[row.mask] + np.where(row.selected[row.mask], penalty, 0.0)


FORMULAS: dict[str, Formula] = {
    "cispo": cispo,
    "clip": clip,
    "clip_cov": clip_cov,
    "dppo": dppo,
    "gmpo": gmpo,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "kimi": kimi,
    "kl_cov": kl_cov,
    "raft_pp": raft_pp,
    "reinforce": reinforce,
    "sapo": sapo,
    "topr": topr,
    "vespo": vespo,
}
