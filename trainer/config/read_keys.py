"""Which keys each built-in estimator and loss reads, and where the bounds of losses lie when the file names none.

Plain data, so that a configuration is checked without loading torch; :mod:`trainer.algorithms.estimators` and
:mod:`trainer.algorithms.losses` take it over.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ANCHORED_AT_SAMPLER", "CLIP_DEFAULTS", "ESTIMATOR_KEYS", "LOSS_KEYS", "unread_keys"]

ESTIMATOR_KEYS: dict[str, frozenset[str]] = {
    "bi_level_gae": frozenset({"token_gamma", "lam", "high_gamma", "high_lam"}),
    "dr_grpo": frozenset(),
    "gae": frozenset({"token_gamma", "lam"}),
    "gigpo": frozenset({"gamma", "normalize", "epsilon", "across_steps", "step_weight", "similarity"}),
    "gpg": frozenset(),
    "grpo": frozenset({"normalize", "epsilon", "across_steps"}),
    "hgpo": frozenset({"gamma", "normalize", "epsilon", "across_steps", "history", "history_power", "base_weight"}),
    "lite_ppo": frozenset({"epsilon"}),
    "maxrl": frozenset({"epsilon"}),
    "opo": frozenset(),
    "pass_at_k": frozenset({"normalize", "epsilon"}),
    "reinforce": frozenset({"gamma"}),
    "reinforce_pp": frozenset({"token_gamma"}),
    "reinforce_pp_baseline": frozenset(),
    "reinforce_token": frozenset({"token_gamma"}),
    "remax": frozenset(),
    "rloo": frozenset(),
    "step_reinforce": frozenset({"gamma", "normalize", "epsilon"}),
}
"""Keys of the section ``advantage`` that belong to some estimators only. Those of other packages may read all of them,
and ``advantage.kwargs``."""

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


def unread_keys(
    section: str, name: str, table: Mapping[str, frozenset[str]], changed: Mapping[str, object]
) -> list[str]:
    """A sentence for each of the ``changed`` keys of ``section`` (with defaults) that ``name`` does not read; none for
    what ``table`` does not know, which is of another package."""
    if name not in table:
        return []
    kind, kinds = {"loss": ("loss", "losses"), "advantage": ("estimator", "estimators")}[section]
    problems = []
    for key in sorted(set(changed) - table[name]):
        readers = sorted(other for other, keys in table.items() if key in keys)
        whose = f"{kinds} that read it: {', '.join(readers)}" if readers else f"it is for {kinds} of other packages"
        undo = f"leave it out, or undo it with {section}.{key}={_written(changed[key])}"
        problems.append(f"{section}.{key} is set, but {kind} {name!r} does not read it; {whose}; {undo}")
    return problems


def _written(default: object) -> str:
    """As it is written on the command line."""
    return "null" if default is None else str(default).lower()
