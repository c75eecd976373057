"""Which keys of the section ``loss`` each built-in loss reads, and where their bounds lie when the file names none.

Plain data, so that a configuration is checked without loading torch; :mod:`trainer.losses` takes it over.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ANCHORED_AT_SAMPLER", "CLIP_DEFAULTS", "LOSS_KEYS", "unread_keys"]

LOSS_KEYS: dict[str, frozenset[str]] = {
    "cispo": frozenset({"clip_low", "clip_high"}),
    "clip": frozenset({"clip_low", "clip_high", "dual_clip", "ratio"}),
    "clip_cov": frozenset({"clip_low", "clip_high", "covariance_share", "covariance_low", "covariance_high"}),
    "dppo": frozenset({"divergence_low", "divergence_high", "divergence_coef"}),
    "gmpo": frozenset({"clip_low", "clip_high"}),
    "gspo": frozenset({"clip_low", "clip_high"}),
    "gspo_token": frozenset({"clip_low", "clip_high"}),
    "kimi": frozenset({"proximal_coef"}),
    "kl_cov": frozenset({"covariance_share", "covariance_coef"}),
    "raft_pp": frozenset({"clip_high"}),
    "reinforce": frozenset(),
    "sapo": frozenset({"tau_positive", "tau_negative"}),
    "topr": frozenset({"positive_weight", "negative_weight", "ratio"}),
    "vespo": frozenset({"power_positive", "decay_positive", "power_negative", "decay_negative"}),
}
"""Keys that belong to some losses only. Losses of other packages may read all of them, and ``loss.kwargs``."""

CLIP_DEFAULTS: dict[str, tuple[float, float]] = {
    "cispo": (1.0, 4.0),  # no lower bound, as in the paper; SkyRL's and TRL's upper one (a ratio of 5)
    "clip": (0.2, 0.28),  # DAPO
    "clip_cov": (0.2, 0.28),
    "gmpo": (0.4, 0.4),  # of the log-ratio: the paper's (exp(-0.4), exp(0.4))
    "gspo": (3e-4, 4e-4),  # the paper's; verl's and ROLL's general 0.2 never bites on a geometric mean
    "gspo_token": (3e-4, 4e-4),
    "raft_pp": (0.2, 0.2),
}
"""``clip_low`` and ``clip_high`` where they are null."""

ANCHORED_AT_SAMPLER = frozenset({"dppo", "vespo"})
"""Losses whose ratio is taken to the sampler, which ``correction`` would correct for a second time."""


def unread_keys(loss: str, changed: Iterable[str]) -> list[str]:
    """A sentence for each of the ``changed`` keys that ``loss`` does not read; none for losses of other packages."""
    if loss not in LOSS_KEYS:
        return []
    problems = []
    for key in sorted(set(changed) - LOSS_KEYS[loss]):
        readers = sorted(name for name, keys in LOSS_KEYS.items() if key in keys)
        whose = f"losses that read it: {', '.join(readers)}" if readers else "it is for losses of other packages"
        problems.append(f"loss.{key} is set, but loss {loss!r} does not read it; {whose}")
    return problems
