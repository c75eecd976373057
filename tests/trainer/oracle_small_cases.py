"""Small cases for the comparison with the oracle, one for each thing that few random draws would meet.

Ids are written out, log-probs of the sampler are near those of the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from oracle_cases import LogProbs, new_weights_after_one
from oracle_rewards import Settings

from roll_envs.types import Completion, FinishReason, Group, Outcome, OutcomeKind, Task, Trajectory, Turn


class T(NamedTuple):
    """A turn."""

    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    reward: float = 0.0
    finish: FinishReason = "stop"


class E(NamedTuple):
    """An episode."""

    turns: tuple[T, ...]
    kind: OutcomeKind = "completed"
    success: bool = False


def one(prompt: tuple[int, ...], sampled: tuple[int, ...], reward: float, *, success: bool = False) -> E:
    """An episode of one turn."""
    return E((T(prompt, sampled, reward),), success=success)


Written = Sequence[Sequence[E]]
"""Episodes of each group."""


@dataclass(frozen=True, kw_only=True)
class Case:
    settings: Settings
    groups: Written | None = None
    """None draws them."""
    greedy: tuple[float, ...] | None = None
    steps: int = 1


SAME_IDS_OTHER_MASK: Written = [
    [E((T((1, 2, 3), (4, 5), 1.0),)), E((T((1, 2), (3,), 0.0), T((1, 2, 3, 4), (5,), -0.5)))],
    [one((6, 7), (8, 9), 0.5), one((6, 7), (9, 8), -1.0)],
]
SAME_IDS_OTHER_TURNS: Written = [
    [E((T((1, 2), (3, 4, 5), 1.0),)), E((T((1, 2), (3,), 0.0), T((1, 2, 3), (4, 5), 2.0)))],
    [one((6, 7), (8, 9), 0.5), one((6, 7), (9, 8), -1.0)],
]
SAME_IDS_OTHER_CUT: Written = [
    [
        E((T((1, 2), (3,), 0.25, "length"), T((1, 2, 3), (4,), 1.0))),
        E((T((1, 2), (3,), -1.0), T((1, 2, 3), (4,), 2.0, "length"))),
        one((1, 2), (5, 6, 7), -0.5),
    ]
]
TWINS: Written = [
    [one((1, 2), (3, 4), 1.0), one((1, 2), (3, 4), -0.5), one((1, 2), (5,), 0.25)],
    [one((1, 2), (3, 4), 2.0), one((6,), (7, 8, 9), -1.0)],
]
ALIVE_AND_IDLE: Written = [
    [one((1, 2), (3, 4), 1.0, success=True), one((1, 2), (5,), 0.0)],
    [one((6,), (7, 8, 9), 1.0), one((6,), (8,), 1.0), one((6,), (9, 9), 1.0)],
    [one((10, 11), (12,), 0.0), one((10, 11), (13, 14, 15, 16), 2.0)],
]
FIRST_IDS_SAMPLED: Written = [[one((), (3, 4, 5), 1.0), one((), (6, 7), -1.0), one((8,), (9,), 0.5)]]
TURNS_WITHOUT_TOKENS: Written = [
    [
        E((T((1,), (2, 3), 0.25), T((1, 2, 3, 4), (), 1.0, "abort"), T((1, 2, 3, 4), (5,), -0.5))),
        E((T((1,), (), 0.75, "abort"), T((1, 9), (6, 7), 0.5)), kind="truncated"),
        E((T((1,), (2,), 3.0),), kind="failed"),
        E((T((1,), (3,), 4.0),), kind="cancelled"),
        one((1,), (8, 2), -1.0, success=True),
    ],
    [one((4, 4), (2, 1), 1.5), one((4, 4), (1,), 0.0)],
]

PLAIN: Settings = {"advantage.name": "reinforce", "loss.name": "reinforce", "optimizer.lr": 1e-2}
CRITIC: Settings = {"advantage.name": "gae", "loss.name": "clip", "optimizer.lr": 1e-2, "critic.lr": 2e-2}
MINIBATCHES: Settings = {
    "advantage.name": "reinforce_token", "advantage.token_gamma": 0.8,
    "loss.name": "clip", "loss.clip_low": 0.02, "loss.clip_high": 0.03, "optimizer.lr": 2e-2,
    "learner.minibatches": 3, "learner.epochs": 2,
}  # fmt: skip

CASES: dict[str, Case] = {
    "the same ids with another mask": Case(settings=PLAIN, groups=SAME_IDS_OTHER_MASK),
    "the same ids with another mask, scored": Case(
        settings=PLAIN | {"loss.kl_coef": 0.5, "reward.kl_coef": 0.7, "loss.kl_estimator": "k2"},
        groups=SAME_IDS_OTHER_MASK,
        steps=3,
    ),
    "the same ids with another mask and a critic": Case(settings=CRITIC, groups=SAME_IDS_OTHER_MASK, steps=3),
    "the same ids in other turns": Case(
        settings={
            "advantage.name": "reinforce_token", "advantage.token_gamma": 0.5, "loss.name": "clip",
            "loss.ratio": "turn-mean", "optimizer.lr": 1e-2,
        },
        groups=SAME_IDS_OTHER_TURNS,
    ),
    "the same ids with another turn left out": Case(
        settings=PLAIN | {"mask.truncated_answers": True}, groups=SAME_IDS_OTHER_CUT
    ),
    "the same ids and another reward": Case(settings=PLAIN, groups=TWINS),
    "the same ids in two minibatches": Case(settings=PLAIN | {"learner.minibatches": 2}, groups=TWINS),
    "the same ids and other returns of a critic": Case(settings=CRITIC | {"critic.clip": 0.01}, groups=TWINS, steps=3),
    "the same ids, corrected each for itself": Case(
        settings=PLAIN | {"correction.name": "tis", "correction.high": 1.05}, groups=TWINS
    ),
    **{
        f"groups without a gradient, {how}, {count} minibatches": Case(
            settings={
                "advantage.name": "grpo", "loss.name": "clip", "loss.aggregation": how,
                **({"loss.constant_tokens": 5} if how == "constant" else {}), "optimizer.lr": 1e-2,
                "optimizer.max_grad_norm": 100.0, "learner.minibatches": count,
            },
            groups=ALIVE_AND_IDLE,
            steps=2,
        )
        for how in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant")
        for count in (1, 2)
    },
    "greedy returns of three groups": Case(
        settings={"advantage.name": "remax", "loss.name": "reinforce", "optimizer.lr": 1e-2, "reward.scale": 2.0,
                  "reward.normalize_std": "batch"},
        groups=ALIVE_AND_IDLE,
        greedy=(0.1, -0.7, 1.6),
    ),
    "first ids that were sampled": Case(
        settings=PLAIN | {"loss.kl_coef": 0.5, "reward.kl_coef": 0.7, "loss.aggregation": "seq-mean-token-mean"},
        groups=FIRST_IDS_SAMPLED,
        steps=3,
    ),
    "turns without tokens": Case(settings=CRITIC | {"advantage.token_gamma": 0.9}, groups=TURNS_WITHOUT_TOKENS),
    "turns without tokens, by turns": Case(
        settings={"advantage.name": "gigpo", "advantage.gamma": 0.8, "loss.name": "clip", "optimizer.lr": 1e-2,
                  "reward.shift": 0.3, "reward.normalize_std": "group"},
        groups=TURNS_WITHOUT_TOKENS,
    ),
    "several minibatches and a clip": Case(settings=MINIBATCHES, steps=3),
    "several minibatches, dual clip": Case(
        settings=MINIBATCHES | {"loss.dual_clip": 1.005, "loss.clip_high": 0.5, "correction.sequence_delta": 0.01},
        steps=3,
    ),
    "several minibatches and tokens by covariance": Case(
        settings=MINIBATCHES | {"loss.name": "clip_cov", "loss.covariance_share": 0.3, "loss.covariance_low": -1.0},
        steps=3,
    ),
    "a penalty on tokens by covariance": Case(
        settings={"advantage.name": "reinforce_token", "advantage.token_gamma": 0.8, "loss.name": "kl_cov",
                  "loss.covariance_share": 0.4, "optimizer.lr": 1e-2, "learner.minibatches": 2,
                  "learner.pack_tokens": 8},
        steps=3,
    ),
    "a critic in several minibatches": Case(
        settings=CRITIC
        | {"critic.clip": 0.01, "critic.minibatches": 2, "critic.epochs": 2, "critic.max_grad_norm": 0.05,
           "critic.warmup_steps": 1, "learner.minibatches": 2, "mask.truncated_answers": True},
        steps=3,
    ),
    "a rate that decays after its warm-up": Case(
        settings={"optimizer.lr": 1e-2, "optimizer.lr_schedule": "linear", "optimizer.lr_warmup_steps": 2}, steps=4
    ),
    "a critic that whitens": Case(
        settings=CRITIC | {"advantage.name": "bi_level_gae", "advantage.whiten": True, "advantage.clip": 0.7}, steps=3
    ),
    "adapters and a reference": Case(
        settings={"loss.name": "clip", "optimizer.lr": 2e-2, "learner.lora_rank": 2, "learner.lora_alpha": 8.0,
                  "loss.kl_coef": 0.3, "reward.kl_coef": 0.2, "sampling.temperature": 1.4},
        steps=3,
    ),
    "far from the reference": Case(
        settings={"advantage.name": "reinforce", "loss.name": "reinforce", "optimizer.lr": 0.2, "reward.kl_coef": 0.1,
                  "optimizer.max_grad_norm": 100.0, "reward.kl_estimator": "k3", "loss.kl_coef": 0.2},
        steps=4,
    ),
    "an adaptive coefficient": Case(
        settings=PLAIN | {"reward.kl_coef": 0.4, "reward.kl_target": 0.5, "reward.kl_horizon": 30,
                          "reward.kl_estimator": "abs"},
        steps=4,
    ),
    "weights of tasks and lengths": Case(
        settings=PLAIN | {"mask.difficulty_weight": 1.5, "mask.length_weight": 0.8}, groups=ALIVE_AND_IDLE
    ),
    **{
        f"a correction by {name} at {level}": Case(
            settings={
                "loss.name": "clip", "optimizer.lr": 1e-2, "correction.name": name, "correction.level": level,
                **({} if name == "tis" else {"correction.low": 0.95}), "correction.high": 1.04,
                "correction.veto": 0.85, "loss.kl_coef": 0.1,
            }
        )
        for name, level in (("tis", "turn-product"), ("mis", "token"), ("mis", "sequence-mean"))
    },
    "a rejection at a level of its own": Case(
        settings={
            "loss.name": "clip", "optimizer.lr": 1e-2, "correction.name": "tis", "correction.level": "token",
            "correction.reject": "sequence-product", "correction.reject_low": 0.97, "correction.reject_high": 1.03,
        },
        steps=2,
    ),
}  # fmt: skip


def written_groups(written: Written, step: int, version: int, policy: LogProbs) -> list[Group]:
    """The groups as sampled by ``version``, or the version before in every second turn."""
    rng = np.random.default_rng([step, 4])
    groups = []
    for index, episodes in enumerate(written):
        task = Task(env_id=("roll/A-v0", "roll/B-v0")[index % 2], split="train", index=index, seed=index)
        trajectories = tuple(
            Trajectory(
                task=task,
                member=member,
                turns=tuple(
                    _turn(rng, turn, n, version, episode.success, policy) for n, turn in enumerate(episode.turns)
                ),
                outcome=Outcome(kind=episode.kind),
            )
            for member, episode in enumerate(episodes)
        )
        groups.append(Group(task=task, trajectories=trajectories))
    return groups


def _turn(
    rng: np.random.Generator,
    turn: T,
    number: int,
    version: int,
    success: bool,
    policy: LogProbs,
) -> Turn:
    logprobs = policy([*turn.prompt, *turn.sampled]) if turn.sampled else np.zeros((0, 0))
    first = len(turn.prompt) - 1
    noise = rng.normal(0.0, 0.1, len(turn.sampled))
    found = [-1.0 if first + i < 0 else float(logprobs[first + i, token]) for i, token in enumerate(turn.sampled)]
    return Turn(
        prompt_ids=turn.prompt,
        completion=Completion(
            ids=turn.sampled,
            logprobs=tuple(min(-1e-3, p + float(e)) for p, e in zip(found, noise, strict=True)),
            finish=turn.finish,
            weight_version=version - number % 2,
            spans=new_weights_after_one(version - number % 2, version, len(turn.sampled)),
        ),
        prompt_observation=f"state {number % 2}",
        text="",
        observation="",
        reward=turn.reward,
        terminated=False,
        truncated=False,
        info={"success": success},
        timings={},
    )
