"""Published recipes by name: what ``algorithm: NAME`` sets, key by key, each below what the file says itself.

A recipe sets only what its authors settled and this trainer can do on its own; learning rates, batch sizes and lengths
are the run's. ``roll-train explain CONFIG`` shows what came from where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll_envs.errors import UnknownNameError

__all__ = ["PRESETS", "Preset", "find_preset"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A recipe."""

    summary: str
    source: str
    settings: Mapping[str, Any]
    """Dotted key -> value."""


_CLIP = {"loss.name": "clip", "loss.clip_low": 0.2, "loss.clip_high": 0.2}
_CLIP_HIGHER = {"loss.name": "clip", "loss.clip_low": 0.2, "loss.clip_high": 0.28}
_GROUP = {"advantage.name": "grpo", "advantage.normalize": "mean_std"}

PRESETS: dict[str, Preset] = {
    "cispo": Preset(
        summary="group advantages; the clipped ratio is a constant weight, so that no token loses its gradient",
        source="MiniMax-M1, arXiv:2506.13585, eq. 4-5",
        settings={**_GROUP, "loss.name": "cispo", "loss.clip_low": 1.0, "loss.clip_high": 4.0,
                  "loss.aggregation": "token-mean"},
    ),
    "clip_cov": Preset(
        summary="group advantages; a few tokens of high covariance get no gradient, so that entropy stays",
        source="Cui et al. 2025, arXiv:2505.22617, eq. 11",
        settings={**_GROUP, "loss.name": "clip_cov", "loss.covariance_share": 2e-4, "loss.covariance_low": 1.0,
                  "loss.covariance_high": 5.0, "loss.aggregation": "token-mean"},
    ),
    "dapo": Preset(
        summary="GRPO with a higher upper bound, token mean, and groups without spread replaced by fresh ones; "
        "add reward.overlong_tokens for the length of your answers",
        source="DAPO, arXiv:2503.14476, eq. 8-13",
        settings={**_GROUP, **_CLIP_HIGHER, "loss.aggregation": "token-mean", "filter.zero_variance": True,
                  "filter.refill_rounds": 10},
    ),
    "decoupled_ppo": Preset(
        summary="group advantages; the ratio is taken to the weights before the step, and the sampler's distance to "
        "those is a bounded weight",
        source="AReaL, arXiv:2505.24298, eq. 5",
        settings={**_GROUP, **_CLIP, "loss.proximal": "recompute", "learner.minibatches": 4, "correction.name": "tis",
                  "correction.level": "token", "correction.high": 5.0},
    ),
    "dppo": Preset(
        summary="group advantages; tokens whose probability has moved too far get no gradient",
        source="prime-rl's default loss",
        settings={**_GROUP, "loss.name": "dppo", "loss.divergence_low": 0.2, "loss.divergence_high": 0.2,
                  "loss.divergence_coef": 1e-3, "loss.aggregation": "token-mean"},
    ),
    "dr_grpo": Preset(
        summary="GRPO without its biases: no division by the deviation, a constant instead of each sequence's length",
        source="Liu et al. 2025, arXiv:2503.20783, section 3.2",
        settings={**_CLIP, "advantage.name": "dr_grpo", "loss.aggregation": "constant"},
    ),
    "gigpo": Preset(
        summary="group advantages of episodes, and of turns that met the same state",
        source="Feng et al. 2025, arXiv:2505.10978, eq. 3-8; KL 0.01 as in verl-agent",
        settings={**_CLIP, "advantage.name": "gigpo", "advantage.gamma": 0.95, "advantage.step_weight": 1.0,
                  "loss.kl_coef": 0.01, "loss.kl_estimator": "k3"},
    ),
    "gmpo": Preset(
        summary="group advantages; the geometric mean of a sequence's clipped ratios",
        source="Zhao et al. 2025, arXiv:2507.20673, eq. 4",
        settings={**_GROUP, "loss.name": "gmpo", "loss.clip_low": 0.4, "loss.clip_high": 0.4,
                  "loss.aggregation": "seq-mean-token-mean"},
    ),
    "grpo": Preset(
        summary="advantages within the group of one task's episodes, clipped ratios, KL to the first policy",
        source="DeepSeekMath, arXiv:2402.03300, eq. 3-4",
        settings={**_GROUP, **_CLIP, "loss.aggregation": "seq-mean-token-mean", "loss.kl_coef": 0.04,
                  "loss.kl_estimator": "k3"},
    ),
    "gspo": Preset(
        summary="group advantages; one ratio for the whole sequence",
        source="Zheng et al. 2025, arXiv:2507.18071, eq. 5-7; four minibatches as there",
        settings={**_GROUP, "loss.name": "gspo", "loss.clip_low": 3e-4, "loss.clip_high": 4e-4,
                  "loss.aggregation": "seq-mean-token-mean", "learner.minibatches": 4},
    ),
    "hgpo": Preset(
        summary="advantages of turns among those that share their last states, longer histories weighing more",
        source="HGPO, as in verl-agent's recipe",
        settings={**_CLIP, "advantage.name": "hgpo", "advantage.gamma": 0.95, "advantage.history": 2,
                  "advantage.history_power": 1.0, "loss.kl_coef": 0.01, "loss.kl_estimator": "k3"},
    ),
    "kimi": Preset(
        summary="advantages over the group's mean, held near the old policy by half the squared log-ratio",
        source="Kimi k1.5, arXiv:2501.12599, eq. 3",
        settings={"advantage.name": "dr_grpo", "loss.name": "kimi",
                  "loss.proximal_coef": 0.1, "loss.aggregation": "seq-mean-token-sum"},
    ),
    "kl_cov": Preset(
        summary="group advantages; a few tokens of high covariance are held back by a KL",
        source="Cui et al. 2025, arXiv:2505.22617, eq. 12",
        settings={**_GROUP, "loss.name": "kl_cov", "loss.covariance_share": 2e-4, "loss.covariance_coef": 1.0,
                  "loss.aggregation": "token-mean"},
    ),
    "lite_ppo": Preset(
        summary="the group's mean, the batch's deviation, token mean, no critic",
        source="Liu et al. 2025, arXiv:2508.08221, section 5",
        settings={**_CLIP, "advantage.name": "lite_ppo", "loss.aggregation": "token-mean"},
    ),
    "maxrl": Preset(
        summary="returns over the group's mean, divided by that mean",
        source="MaxRL, as in SkyRL and prime-rl",
        settings={**_CLIP_HIGHER, "advantage.name": "maxrl", "loss.aggregation": "token-mean"},
    ),
    "opo": Preset(
        summary="the length-weighted mean of the group as baseline, exactly on policy",
        source="Hao et al. 2025, arXiv:2505.23585",
        settings={"advantage.name": "opo", "loss.name": "reinforce", "loss.aggregation": "seq-mean-token-sum",
                  "learner.minibatches": 1, "learner.epochs": 1},
    ),
    "pass_at_k": Preset(
        summary="only the best of a group is pushed, by its lead over the second",
        source="pass@k estimator of verl",
        settings={**_CLIP, "advantage.name": "pass_at_k", "loss.aggregation": "token-mean"},
    ),
    "ppo": Preset(
        summary="a critic, generalised advantages over sampled tokens, clipped ratios and values",
        source="Schulman et al. 2017, arXiv:1707.06347; GAE arXiv:1506.02438",
        settings={**_CLIP, "advantage.name": "gae", "advantage.token_gamma": 1.0, "advantage.lam": 0.95,
                  "advantage.whiten": True, "critic.clip": 0.2, "loss.aggregation": "token-mean"},
    ),
    "ppo_bi_level": Preset(
        summary="PPO with a critic and advantages over turns first, then over the tokens of each turn",
        source="RAGEN, arXiv:2504.20073; turns are told by their ends, not by their rewards",
        settings={**_CLIP, "advantage.name": "bi_level_gae", "advantage.token_gamma": 1.0, "advantage.lam": 1.0,
                  "advantage.high_gamma": 0.95, "advantage.high_lam": 1.0, "advantage.whiten": True,
                  "loss.aggregation": "token-mean"},
    ),
    "raft_pp": Preset(
        summary="positive episodes alone, with importance weights and clipping",
        source="Xiong et al. 2025, arXiv:2504.11343",
        settings={"advantage.name": "reinforce", "loss.name": "raft_pp", "loss.clip_high": 0.2,
                  "loss.aggregation": "token-mean"},
    ),
    "reinforce": Preset(
        summary="the plain policy gradient of returns to go",
        source="Williams 1992",
        settings={"advantage.name": "reinforce", "loss.name": "reinforce", "loss.aggregation": "token-mean"},
    ),
    "reinforce_pp": Preset(
        summary="returns with the KL in the reward, whitened over all tokens of the batch; no groups, no critic",
        source="Hu et al. 2025, arXiv:2501.03262, eq. 7-9",
        settings={**_CLIP, "advantage.name": "reinforce_pp", "reward.kl_coef": 0.01, "reward.kl_estimator": "k1",
                  "loss.aggregation": "token-mean"},
    ),
    "reinforce_pp_baseline": Preset(
        summary="returns over the group's mean, whitened over all tokens of the batch",
        source="Hu et al. 2025, arXiv:2501.03262, section 3.2",
        settings={**_CLIP, "advantage.name": "reinforce_pp_baseline", "loss.kl_coef": 0.001, "loss.kl_estimator": "k2",
                  "loss.aggregation": "token-mean"},
    ),
    "remax": Preset(
        summary="the return of a greedy episode as baseline",
        source="Li et al. 2023, arXiv:2310.10505, algorithm 1",
        settings={"advantage.name": "remax", "loss.name": "reinforce", "loss.aggregation": "seq-mean-token-sum"},
    ),
    "rloo": Preset(
        summary="the mean return of the group's other episodes as baseline, plain policy gradient",
        source="Ahmadian et al. 2024, arXiv:2402.14740, section 3.3",
        settings={"advantage.name": "rloo", "loss.name": "reinforce", "loss.aggregation": "seq-mean-token-sum"},
    ),
    "sapo": Preset(
        summary="group advantages; a smooth gate on the ratio in the place of clipping",
        source="Gao et al. 2025, arXiv:2511.20347",
        settings={**_GROUP, "loss.name": "sapo", "loss.tau_positive": 1.0, "loss.tau_negative": 1.05,
                  "loss.aggregation": "seq-mean-token-mean"},
    ),
    "starpo": Preset(
        summary="whole trajectories with their plain returns, clipped ratios",
        source="RAGEN, arXiv:2504.20073, section 3; as in ROLL's recipe",
        settings={**_CLIP, "advantage.name": "reinforce", "reward.normalize_mean": "batch",
                  "reward.normalize_std": "batch", "loss.aggregation": "token-mean"},
    ),
    "starpo_s": Preset(
        summary="StarPO on the quarter of the groups with the most spread, a critic, a higher upper bound, no KL",
        source="RAGEN, arXiv:2504.20073, section 4.2",
        settings={**_CLIP_HIGHER, "advantage.name": "gae", "advantage.token_gamma": 1.0, "advantage.lam": 1.0,
                  "filter.top_share": 0.25, "loss.entropy_coef": 0.001, "loss.aggregation": "token-mean"},
    ),
    "topr": Preset(
        summary="positive episodes as they are, negative ones with a ratio of at most 1",
        source="Le Roux et al. 2025, arXiv:2503.14286, eq. 8",
        settings={"advantage.name": "dr_grpo", "loss.name": "topr",
                  "loss.positive_weight": 1.0, "loss.negative_weight": 1.0, "loss.aggregation": "seq-mean-token-sum"},
    ),
}  # fmt: skip
"""Recipes by the name that ``algorithm`` uses."""


def find_preset(name: str) -> Preset:
    """The recipe ``name``. Raises :class:`UnknownNameError` for a name that is not known."""
    if name not in PRESETS:
        raise UnknownNameError("algorithm", name, PRESETS)
    return PRESETS[name]
