"""Random configurations and random episodes for the comparison of the trainer with the oracle, by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from oracle_advantages import ESTIMATORS, GAE
from oracle_rewards import Settings

from roll_envs.types import Completion, FinishReason, Group, Outcome, OutcomeKind, Task, Trajectory, Turn, VersionSpan

ESTIMATOR_NAMES = [*ESTIMATORS, *GAE]
LOSS_NAMES = (
    "clip", "gspo", "reinforce", "cispo", "kl_cov", "dppo", "topr", "sapo", "clip_cov", "gmpo", "gspo_token", "kimi",
    "raft_pp", "vespo",
)  # fmt: skip
LEVELS = ("token", "turn-product", "sequence-product", "sequence-mean")

DEFAULTS: Settings = {
    "seed": 0,
    "steps": 4,
    "sampling.temperature": 1.0,
    "reward.clip": None,
    "reward.scale": 1.0,
    "reward.shift": 0.0,
    "reward.normalize_mean": "none",
    "reward.normalize_std": "none",
    "reward.overlong_tokens": None,
    "reward.overlong_buffer": 4096,
    "reward.overlong_factor": 1.0,
    "reward.kl_coef": 0.0,
    "reward.kl_estimator": "k1",
    "reward.kl_target": None,
    "reward.kl_horizon": 10_000,
    "mask.truncated_answers": False,
    "mask.truncated_episodes": False,
    "mask.error_max_tokens": None,
    "mask.difficulty_weight": 0.0,
    "mask.length_weight": 0.0,
    "advantage.name": "grpo",
    "advantage.gamma": 1.0,
    "advantage.token_gamma": 1.0,
    "advantage.lam": 0.95,
    "advantage.high_gamma": 0.95,
    "advantage.high_lam": 1.0,
    "advantage.normalize": "mean_std",
    "advantage.across_steps": False,
    "advantage.episode_weight": 1.0,
    "advantage.step_weight": 1.0,
    "advantage.history": 2,
    "advantage.history_power": 1.0,
    "advantage.base_weight": 0.0,
    "advantage.epsilon": 1e-6,
    "advantage.whiten": False,
    "advantage.clip": None,
    "loss.name": "clip",
    "loss.proximal": "recompute",
    "loss.clip_low": None,
    "loss.clip_high": None,
    "loss.dual_clip": None,
    "loss.ratio": "token",
    "loss.aggregation": "token-mean",
    "loss.constant_tokens": 1024,
    "loss.entropy_coef": 0.0,
    "loss.kl_coef": 0.0,
    "loss.kl_estimator": "k3",
    "loss.kl_unbiased": False,
    "loss.positive_weight": 1.0,
    "loss.negative_weight": 1.0,
    "loss.tau_positive": 1.0,
    "loss.tau_negative": 1.05,
    "loss.proximal_coef": 0.1,
    "loss.divergence_low": 0.2,
    "loss.divergence_high": 0.2,
    "loss.divergence_coef": 1e-3,
    "loss.covariance_share": 2e-4,
    "loss.covariance_low": 1.0,
    "loss.covariance_high": 5.0,
    "loss.covariance_coef": 1.0,
    "loss.power_positive": 2.0,
    "loss.decay_positive": 3.0,
    "loss.power_negative": 3.0,
    "loss.decay_negative": 2.0,
    "correction.name": "none",
    "correction.level": "token",
    "correction.low": 0.5,
    "correction.high": 2.0,
    "correction.reject": "none",
    "correction.reject_low": None,
    "correction.reject_high": None,
    "correction.veto": 0.0,
    "correction.sequence_delta": None,
    "correction.second_moment": None,
    "critic.lr": 1e-4,
    "critic.clip": 0.2,
    "critic.warmup_steps": 0,
    "critic.minibatches": 1,
    "critic.epochs": 1,
    "critic.tokens_per_microbatch": 8192,
    "critic.max_grad_norm": 1.0,
    "optimizer.name": "adamw",
    "optimizer.lr": 1e-4,
    "optimizer.lr_schedule": "constant",
    "optimizer.lr_warmup_steps": 0,
    "optimizer.lr_min_share": 0.05,
    "optimizer.lr_decay_share": 0.2,
    "optimizer.betas": (0.9, 0.95),
    "optimizer.weight_decay": 0.0,
    "optimizer.decay_embeddings": True,
    "optimizer.max_grad_norm": 1.0,
    "optimizer.skip_norm": None,
    "optimizer.max_skipped": 5,
    "learner.minibatches": 1,
    "learner.epochs": 1,
    "learner.pack_tokens": 512,
    "learner.tokens_per_microbatch": 8192,
    "learner.logits_mib": 256.0,
    "learner.gradient_checkpointing": False,
    "learner.lora_rank": 0,
    "learner.lora_alpha": 32.0,
}
"""The documented defaults of docs/configuration.md."""

OF_ESTIMATOR: dict[str, dict[str, Sequence[Any]]] = {
    "gamma": dict.fromkeys(("reinforce", "step_reinforce", "gigpo", "hgpo"), (0.9, 0.5)),
    "token_gamma": dict.fromkeys(("reinforce_token", "reinforce_pp", "gae", "bi_level_gae"), (0.9, 0.8)),
    "lam": dict.fromkeys(GAE, (0.9, 0.5)),
    "high_gamma": {"bi_level_gae": (0.9, 0.5)},
    "high_lam": {"bi_level_gae": (0.9, 0.5)},
    "normalize": dict.fromkeys(("grpo", "pass_at_k", "gigpo", "hgpo", "step_reinforce"), ("mean", "mean_std")),
    "across_steps": dict.fromkeys(("grpo", "gigpo", "hgpo"), (False, True)),
    "step_weight": {"gigpo": (0.5, 2.0)},
    "episode_weight": {"gigpo": (0.0, 0.5)},
    "history": {"hgpo": (1, 2)},
    "history_power": {"hgpo": (0.5, 2.0)},
    "base_weight": {"hgpo": (0.0, 0.7)},
    "epsilon": dict.fromkeys(
        ("grpo", "pass_at_k", "gigpo", "hgpo", "step_reinforce", "lite_ppo", "maxrl"), (1e-06, 0.1)
    ),
}
"""Values that are drawn for the keys of ``advantage`` that the estimators read."""

OF_LOSS: dict[str, dict[str, Sequence[Any]]] = {
    "clip_low": dict.fromkeys(("clip", "clip_cov", "gspo", "gspo_token", "gmpo", "cispo"), (0.02, 0.1)),
    "clip_high": dict.fromkeys(("clip", "clip_cov", "gspo", "gspo_token", "gmpo", "cispo", "raft_pp"), (0.03, 0.15)),
    "dual_clip": {"clip": (None, 1.05)},
    "ratio": {
        "clip": ("token", "turn-mean", "sequence-mean", "sequence-product"),
        "topr": ("token", "turn-mean", "sequence-mean", "sequence-product"),
    },
    "positive_weight": {"topr": (0.5, 1.5)},
    "negative_weight": {"topr": (0.3, 2.0)},
    "tau_positive": {"sapo": (0.7, 2.0)},
    "tau_negative": {"sapo": (1.3, 3.0)},
    "proximal_coef": {"kimi": (0.3, 2.0)},
    "divergence_low": {"dppo": (0.01, 0.05)},
    "divergence_high": {"dppo": (0.02, 0.03)},
    "divergence_coef": {"dppo": (0.1, 1.0)},
    "covariance_share": dict.fromkeys(("clip_cov", "kl_cov"), (0.2, 0.5)),
    "covariance_low": {"clip_cov": (-1.0, 0.1)},
    "covariance_high": {"clip_cov": (0.5, 2.0)},
    "covariance_coef": {"kl_cov": (0.5, 2.0)},
    "power_positive": {"vespo": (1.5, 2.5)},
    "decay_positive": {"vespo": (2.5, 3.5)},
    "power_negative": {"vespo": (2.5, 3.5)},
    "decay_negative": {"vespo": (1.5, 2.5)},
}
"""Values that are drawn for the keys of ``loss`` that the losses read."""


def draw_settings(seed: int) -> Settings:
    """The settings that differ from :data:`DEFAULTS`. Estimators and losses come in turn, everything else at random."""
    rng = np.random.default_rng([seed, 1])

    def often(share: float = 0.5) -> bool:
        return bool(rng.random() < share)

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    found: Settings = {
        "seed": seed,
        "steps": one_of(3, 5),
        "sampling.temperature": one_of(0.7, 1.3, 1.6),
        "advantage.name": ESTIMATOR_NAMES[seed % len(ESTIMATOR_NAMES)],
        "loss.name": LOSS_NAMES[seed % len(LOSS_NAMES)],
        "loss.aggregation": one_of("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant"),
    }
    for section, table in (("advantage", OF_ESTIMATOR), ("loss", OF_LOSS)):
        for key, values in table.items():
            if found[f"{section}.name"] in values:
                found[f"{section}.{key}"] = one_of(*values[found[f"{section}.name"]])
    if found["loss.aggregation"] == "constant":
        found["loss.constant_tokens"] = 7
    found |= _rewards(often, one_of) | _learner(often, one_of)
    if often(0.3):
        found["loss.proximal"] = "sampler"
    found |= _corrections(found, often, one_of)
    if often(0.4):
        found |= {"loss.entropy_coef": one_of(0.05, -0.02)}
    if often(0.4):
        estimator, unbiased = one_of("k1", "k2", "k3"), often()
        found |= {"loss.kl_coef": 0.3, "loss.kl_estimator": estimator, "loss.kl_unbiased": unbiased}
    return found


def _rewards(often: Callable[..., bool], one_of: Callable[..., Any]) -> Settings:
    found: Settings = {}
    if often(0.3):
        found |= {"reward.clip": 0.8}
    if often():
        found |= {"reward.scale": one_of(0.5, 2.0), "reward.shift": one_of(-0.25, 0.4)}
    if often(0.4):
        found |= {"reward.overlong_tokens": 4, "reward.overlong_buffer": 3, "reward.overlong_factor": 0.6}
    if often(0.4):
        found |= {"reward.normalize_mean": one_of("batch", "group", "env", "running")}
    if often(0.4):
        found |= {"reward.normalize_std": one_of("batch", "group", "env", "running")}
    if often(0.4):
        found |= {"reward.kl_coef": 0.4, "reward.kl_estimator": one_of("k1", "k2", "k3", "abs")}
        if often():
            found |= {"reward.kl_target": one_of(0.001, 50.0), "reward.kl_horizon": one_of(4, 40)}
    if often(0.3):
        found |= {"advantage.whiten": True}
    if often(0.3):
        found |= {"advantage.clip": 0.7}
    if often(0.3):
        found |= {"mask.truncated_answers": True}
    if often(0.2):
        found |= {"mask.truncated_episodes": True}
    if often(0.2):
        found |= {"mask.error_max_tokens": 6}
    if often(0.4):
        found |= {"mask.difficulty_weight": 1.5}
    if often(0.4):
        found |= {"mask.length_weight": 0.8}
    return found


def _learner(often: Callable[..., bool], one_of: Callable[..., Any]) -> Settings:
    found: Settings = {
        "optimizer.lr": one_of(1e-3, 1e-2),
        "optimizer.lr_schedule": one_of("constant", "linear", "cosine", "wsd"),
        "optimizer.lr_warmup_steps": one_of(0, 2),
        "optimizer.lr_min_share": 0.1,
        "optimizer.lr_decay_share": 0.9,
        "optimizer.betas": one_of((0.9, 0.95), (0.8, 0.99)),
        "optimizer.weight_decay": one_of(0.0, 0.1),
        "optimizer.decay_embeddings": often(),
        "optimizer.max_grad_norm": one_of(0.05, 1.0, 100.0),
        "critic.lr": one_of(1e-3, 1e-2),
        "critic.clip": one_of(None, 0.01),
        "critic.warmup_steps": one_of(0, 1),
        "critic.minibatches": one_of(1, 2),
        "critic.epochs": one_of(1, 2),
        "critic.tokens_per_microbatch": one_of(20, 8192),
        "critic.max_grad_norm": one_of(0.1, 100.0),
        "learner.pack_tokens": one_of(8, 24, 512),
        "learner.tokens_per_microbatch": one_of(24, 60, 8192),
        "learner.logits_mib": one_of(0.001, 256.0),
        "learner.gradient_checkpointing": often(0.2),
    }
    if often(0.6):
        found |= {"learner.minibatches": one_of(1, 2, 3), "learner.epochs": one_of(1, 2)}
    if often(0.25):
        found |= {"learner.lora_rank": 2, "learner.lora_alpha": one_of(4.0, 8.0)}
    if often(0.15):
        found |= {"optimizer.name": "muon"}
    if often(0.1):
        found |= {"optimizer.skip_norm": one_of(0.3, 1.0), "optimizer.max_skipped": 1000}
    return found


def _corrections(found: Settings, often: Callable[..., bool], one_of: Callable[..., Any]) -> Settings:
    """What may go with the loss: a ratio to the sampler is corrected once only."""
    result: Settings = {}
    if often(0.2):
        result["correction.sequence_delta"] = 0.05
    if found.get("loss.proximal") == "sampler":
        return result
    if found["loss.name"] not in ("dppo", "vespo") and often(0.6):
        result["correction.name"] = one_of("tis", "mis", "icepop")
        if result["correction.name"] != "icepop":
            result["correction.level"] = one_of(*LEVELS)
        if result["correction.name"] != "tis":
            result["correction.low"] = 0.8
        result["correction.high"] = 1.2
    if often(0.2):
        result |= {"correction.reject": one_of(*LEVELS), "correction.reject_low": 0.7, "correction.reject_high": 1.3}
    if often(0.2):
        result["correction.veto"] = 0.6
    if often(0.2):
        result["correction.second_moment"] = 0.02
    return result


# -- episodes ----------------------------------------------------------------------------------------------------------

LogProbs = Callable[[Sequence[int]], np.ndarray]
"""The policy's log-probs [T, V] of what follows each id."""


def draw_groups(seed: int, step: int, version: int, vocabulary: int, policy: LogProbs) -> list[Group]:
    """Three to five groups as training may meet them, sampled near ``policy`` by versions up to ``version``.

    Turns continue the turn before or rewrite it; some have no ids, some were cut; some episodes failed, were cancelled
    or ended before their first turn; some are copies of their neighbour, or its ids with other boundaries.
    """
    rng = np.random.default_rng([seed, step, 2])
    return [_group(rng, index, version, vocabulary, policy) for index in range(rng.integers(3, 6))]


def _group(rng: np.random.Generator, index: int, version: int, vocabulary: int, policy: LogProbs) -> Group:
    task = Task(env_id=("roll/A-v0", "roll/B-v0")[index % 2], split="train", index=index, seed=index)
    start = _ids(rng, vocabulary, 1, 4)
    size = 1 if rng.random() < 0.15 else int(rng.integers(2, 5))
    alike = rng.random() < 0.15  # all returns are equal
    episodes: list[Trajectory] = []
    plans: list[list[tuple[list[int], list[int]]]] = []
    for member in range(size):
        plan = _plan(rng, start, vocabulary)
        if plans and rng.random() < 0.35:
            plan = _copy(rng, plans[-1])
        plans.append(plan)
        failed = rng.random() < 0.12
        kind: OutcomeKind = "failed" if failed else ("cancelled" if rng.random() < 0.08 else "completed")
        if kind == "completed" and rng.random() < 0.3:
            kind = "truncated"
        turns = tuple(_turn(rng, prompt, ids, alike, version, policy) for prompt, ids in plan)
        if rng.random() < 0.05:
            turns = ()
        episodes.append(Trajectory(task=task, member=member, turns=turns, outcome=Outcome(kind=kind)))
    return Group(task=task, trajectories=tuple(episodes))


def _ids(rng: np.random.Generator, vocabulary: int, low: int, high: int) -> list[int]:
    return [int(i) for i in rng.integers(0, vocabulary, rng.integers(low, high))]


def _plan(rng: np.random.Generator, start: list[int], vocabulary: int) -> list[tuple[list[int], list[int]]]:
    """Prompt and sampled ids of each turn."""
    plan: list[tuple[list[int], list[int]]] = []
    seen = start
    for turn in range(rng.integers(1, 4)):
        prompt = seen + _ids(rng, vocabulary, 0, 3) if turn and rng.random() < 0.7 else start + [turn] * min(turn, 1)
        sampled = [] if rng.random() < 0.1 else _ids(rng, vocabulary, 1, 5)
        plan.append((prompt, sampled))
        seen = prompt + sampled
    return plan


def _copy(rng: np.random.Generator, plan: list[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[int]]]:
    """The same ids: as they are, with the first answer begun later, or with it in two turns."""
    prompt, sampled = plan[0]
    how = rng.integers(3)
    if len(sampled) < 2 or how == 0:
        return plan
    if how == 1:
        return [(prompt + sampled[:1], sampled[1:]), *plan[1:]]
    return [(prompt, sampled[:1]), (prompt + sampled[:1], sampled[1:]), *plan[1:]]


def new_weights_after_one(old: int, new: int, count: int) -> tuple[VersionSpan, ...]:
    """Spans of an answer of ``count`` ids in which the weights were replaced after the first; none of a shorter one."""
    return (VersionSpan(old, 1), VersionSpan(new, count - 1)) if old < new and count > 1 else ()


def _turn(
    rng: np.random.Generator, prompt: list[int], ids: list[int], alike: bool, version: int, policy: LogProbs
) -> Turn:
    logprobs = policy([*prompt, *ids]) if ids else np.zeros((0, 0))
    lag = int(rng.integers(0, min(version, 2) + 1))
    noise = rng.normal(0.0, (0.03, 0.1, 0.4)[rng.integers(3)], len(ids))
    finish: FinishReason = ("length" if rng.random() < 0.25 else "stop") if ids else "abort"
    return Turn(
        prompt_ids=tuple(prompt),
        completion=Completion(
            ids=tuple(ids),
            logprobs=tuple(
                min(-1e-3, float(logprobs[len(prompt) + i - 1, token] + noise[i])) for i, token in enumerate(ids)
            ),
            finish=finish,
            weight_version=version - lag,
            spans=new_weights_after_one(version - lag, version, len(ids)),
        ),
        prompt_observation=f"state {rng.integers(3)}",
        text="",
        observation="",
        reward=0.0 if alike else float(rng.choice([0.0, 0.0, 1.0, -1.0, 0.5, rng.normal()])),
        terminated=False,
        truncated=False,
        info={"success": bool(rng.random() < 0.4)},
        timings={},
    )
