"""The oracle: a whole training step once more in plain float64, to compare the trainer's ``update`` with.

Written from the papers' formulas and the documented semantics (docs/algorithms.md, docs/train.md), without a call of
the trainer: one sequence at a time through a small Llama written out plainly, logits of all positions, autograd of the
plain loss. Nothing is packed, cut into micro-batches, shared, merged or left out because its gradient is known to be 0.
Its parts: :mod:`oracle_sequences` (model, sequences), :mod:`oracle_rewards`, :mod:`oracle_advantages`,
:mod:`oracle_losses` and :mod:`oracle_steps` (minibatches, optimisers).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from oracle_advantages import advantages_of
from oracle_losses import (
    NO_STEP_WITHOUT_ADVANTAGES,
    Tokens,
    Undecided,
    aggregate,
    correction_weights,
    kl_losses,
    policy_losses,
    select,
)
from oracle_rewards import Episode, Memory, Settings, shape_rewards
from oracle_sequences import Played, Shape, TokenSequence, Weights, logprobs, played_episodes, states
from oracle_steps import learning_rate, minibatches, optimizer_step, optimizers
from torch import Tensor

from roll_envs.types import Group

Numbers = dict[str, float]

# -- the step ----------------------------------------------------------------------------------------------------------


class Oracle:
    """Weights, optimisers and memories; :meth:`update` is one training step."""

    def __init__(self, settings: Settings, weights: Weights, shape: Shape, adapters: Mapping[str, Tensor]) -> None:
        """``adapters`` are the first values of LoRA's matrices, as "LAYER.A" and "LAYER.B"; empty without LoRA."""
        s = self.settings = settings
        self.shape = shape
        self._base = {name: value.detach().clone().double() for name, value in weights.items()}
        self._adapters = {name: value.detach().clone().double() for name, value in adapters.items()}
        self.reference = {name: value.clone() for name, value in self._base.items()}
        width = self._base["model.norm.weight"].shape[0]
        self.critic = {name: value.clone() for name, value in self._base.items()} | {
            "head.weight": torch.zeros(1, width).double(),
            "head.bias": torch.zeros(1).double(),
        }
        self.memory = Memory(kl_coef=s["reward.kl_coef"])
        self._learnt = self._adapters or self._base
        self._optimizers = optimizers(s, self._learnt)
        for value in self.critic.values():
            value.requires_grad_()
        self._critic_optimizer = torch.optim.AdamW(
            self.critic.values(), betas=(0.9, 0.95), weight_decay=0.0, foreach=False
        )
        self._has_critic = s["advantage.name"] in ("gae", "bi_level_gae")
        self._has_reference = bool(s["reward.kl_coef"] or s["loss.kl_coef"])

    @property
    def weights(self) -> Weights:
        """With the adapters merged into the base."""
        s, result = self.settings, dict(self._base)
        for name in {name.rpartition(".")[0] for name in self._adapters}:
            change = self._adapters[f"{name}.B"] @ self._adapters[f"{name}.A"]
            result[f"{name}.weight"] = (
                result[f"{name}.weight"] + s["learner.lora_alpha"] / s["learner.lora_rank"] * change
            )
        return result

    def refresh_reference(self) -> None:
        """The reference becomes the current weights."""
        self.reference = {name: value.detach().clone() for name, value in self.weights.items()}

    def update(self, groups: Sequence[Group], *, step: int, version: int, greedy: Sequence[float | None]) -> Numbers:
        """One training step; returns what to watch, in the order in which it comes about."""
        s, played = self.settings, played_episodes(groups)
        sequences = [q for p in played for q in p.sequences]
        if not sequences:
            return {}
        self._score(sequences)
        episodes = [self._episode(p, greedy) for p in played]
        metrics = _staleness(sequences, version)
        metrics |= shape_rewards(s, episodes, self.memory)
        advantages, goals, measured = advantages_of(s, episodes)
        metrics |= measured
        for p, a_p in zip(played, advantages, strict=True):
            for token, a in zip(p.tokens, a_p, strict=True):
                token.advantage = a
        for p, g_p in zip(played, goals or [], strict=False):
            for token, goal in zip(p.tokens, g_p, strict=True):
                token.goal = goal
        metrics |= self._mask(played, groups)
        if self._has_critic:
            metrics |= self._train_critic(sequences, step)
        if not self._has_critic or step >= s["critic.warmup_steps"]:
            metrics |= self._train_policy(sequences, step)
        return metrics

    def _score(self, sequences: list[TokenSequence]) -> None:
        temperature = self.settings["sampling.temperature"]
        with torch.no_grad():
            for q in sequences:
                policy = logprobs(self.weights, q.ids, temperature, self.shape)
                reference = logprobs(self.reference, q.ids, temperature, self.shape) if self._has_reference else policy
                values = self._values(q) if self._has_critic else torch.zeros(len(q.ids))
                for t in q.tokens:
                    if t.position > 0:
                        t.policy = float(policy[t.position - 1, q.ids[t.position]])
                        t.reference = float(reference[t.position - 1, q.ids[t.position]])
                        t.value = float(values[t.position - 1])

    def _values(self, q: TokenSequence) -> Tensor:
        hidden = states(self.critic, q.ids, self.shape)
        return (hidden @ self.critic["head.weight"].T + self.critic["head.bias"])[:, 0]

    def _episode(self, p: Played, greedy: Sequence[float | None]) -> Episode:
        turns, tokens = p.trajectory.turns, p.tokens
        from_sampler = self.settings["loss.proximal"] == "sampler"
        return Episode(
            group=p.group,
            env=p.trajectory.task.env_id,
            success=p.trajectory.success,
            rewards=[t.reward for t in turns],
            lengths=[len(t.completion.ids) for t in turns],
            anchors=[t.prompt_observation if t.completion.ids else None for t in turns],
            log_ratios=[(t.sampler if from_sampler else t.policy) - t.reference for t in tokens],
            values=[t.value for t in tokens],
            greedy=greedy[p.group] if greedy else None,
        )

    # -- masks and weights

    def _mask(self, played: list[Played], groups: Sequence[Group]) -> Numbers:
        s, metrics = self.settings, {}
        lengths = [sum(len(t.completion.ids) for t in p.trajectory.turns) for p in played if p.sequences]
        before = sum(len(p.tokens) for p in played)
        for p in played:
            episode, count = p.trajectory, len(p.tokens)
            out = s["mask.truncated_episodes"] and episode.outcome.kind == "truncated"
            most = s["mask.error_max_tokens"]
            out = out or (most is not None and not episode.success and count > most)
            for t in p.tokens:
                cut = episode.turns[t.turn].completion.finish == "length"
                t.learnt = not (out or (s["mask.truncated_answers"] and cut))
            of_task = [o.trajectory.success for o in played if o.group == p.group]
            difficulty = 1 - sum(of_task) / len(of_task)
            shortness = (max(lengths) - count) / max(max(lengths) - min(lengths), 1) if p.sequences else 0.0
            for q in p.sequences:
                q.weight = (1 + s["mask.difficulty_weight"] * difficulty) * (1 + s["mask.length_weight"] * shortness)
        sequences = [q for p in played for q in p.sequences]
        kept = [q for q in sequences if any(t.learnt for t in q.tokens)]
        mean_weight = fmean(q.weight for q in kept) if kept else 1.0
        for q in sequences:
            q.weight = q.weight / mean_weight
            for t in q.tokens:
                t.weighted = t.advantage * q.weight if t.learnt else 0.0
        if s["mask.truncated_answers"] or s["mask.truncated_episodes"] or s["mask.error_max_tokens"] is not None:
            metrics["mask/tokens_share"] = sum(not t.learnt for p in played for t in p.tokens) / before
        if (s["mask.difficulty_weight"] or s["mask.length_weight"]) and kept:
            metrics["mask/weight_min"] = min(q.weight for q in kept)
            metrics["mask/weight_max"] = max(q.weight for q in kept)
        return metrics

    # -- the critic

    def _train_critic(self, sequences: list[TokenSequence], step: int) -> Numbers:
        s, metrics = self.settings, {}
        tokens = [t for q in sequences for t in q.learnt]
        spread = float(np.var([t.goal for t in tokens])) if tokens else 0.0
        if spread > 0:
            metrics["critic/explained_variance"] = 1 - float(np.var([t.goal - t.value for t in tokens])) / spread
        rng = np.random.default_rng([s["seed"], step, 1])
        taken: list[Numbers] = []
        for part in minibatches(sequences, s["critic.minibatches"], s["critic.epochs"], rng):
            count = sum(len(q.learnt) for q in part)
            if not count:
                continue
            losses, values = [], []
            for q in (q for q in part if q.learnt):
                now = self._values(q)[[t.position - 1 for t in q.learnt]]
                goals, before = (_vector(getattr(t, name) for t in q.learnt) for name in ("goal", "value"))
                error = (now - goals).square()
                if s["critic.clip"] is not None:
                    near = before + (now - before).clamp(-s["critic.clip"], s["critic.clip"])
                    error = torch.maximum(error, (near - goals).square())
                losses.append(error.sum() / 2)
                values.append(float(now.detach().sum()))
            loss = torch.stack(losses).sum() / count
            norm = optimizer_step(
                loss, list(self.critic.values()), [self._critic_optimizer], s["critic.lr"], s["critic.max_grad_norm"]
            )
            goals_mean = sum(t.goal for q in part for t in q.learnt) / count
            taken.append(
                {
                    "critic/value": sum(values) / count,
                    "critic/return": goals_mean,
                    "critic/loss": float(loss.detach()),
                    "critic/grad_norm": norm,
                }
            )
        return metrics | _means(taken)

    # -- the policy

    def _train_policy(self, sequences: list[TokenSequence], step: int) -> Numbers:
        s = self.settings
        single = s["learner.minibatches"] * s["learner.epochs"] == 1
        metrics = self._leave_out_what_moved(sequences)
        if s["loss.proximal"] == "recompute" and not single:
            metrics |= _mismatch(sequences)
        rng = np.random.default_rng([s["seed"], step])
        parts = [sequences] if single else minibatches(sequences, s["learner.minibatches"], s["learner.epochs"], rng)
        lr = learning_rate(s, step)
        everything = bool(
            s["loss.entropy_coef"] or s["loss.kl_coef"] or s["loss.name"] not in NO_STEP_WITHOUT_ADVANTAGES
        )
        taken: list[Numbers] = []
        moved = False
        for part in parts:
            tokens = [t for q in part for t in q.learnt]
            if not tokens:
                continue
            old = [t.sampler if s["loss.proximal"] == "sampler" else t.policy for t in tokens]
            chosen = select(s, np.array(old), np.array([t.weighted for t in tokens]), rng)
            if not (everything or any(t.weighted for t in tokens)):
                continue
            rounding = [0 < abs(t.weighted) < 1e-12 for t in tokens]
            by_sign = s["loss.name"] == "gmpo" or s["correction.sequence_delta"] is not None
            if all(rounding) or (by_sign and any(rounding)):
                raise Undecided
            selected = dict(zip(map(id, tokens), chosen, strict=True))
            loss, watched = self._loss(part, selected, moved)
            norm = optimizer_step(
                loss,
                list(self._learnt.values()),
                self._optimizers,
                lr,
                s["optimizer.max_grad_norm"],
                s["optimizer.skip_norm"],
            )
            # AdamW divides by what is rounding; kimi's slope of the ratio is rounding until something has moved it.
            if norm < 1e-9 and (norm or (moved and s["loss.name"] == "kimi")):
                raise Undecided
            skipped = s["optimizer.skip_norm"] is not None and norm > s["optimizer.skip_norm"]
            moved = moved or not skipped
            taken.append(
                {
                    **(watched if everything else {}),
                    **({} if s["loss.name"] == "sapo" and not everything else {"loss/total": float(loss.detach())}),
                    "learner/grad_norm": norm,
                    "learner/lr": lr,
                    "learner/skipped_steps": float(skipped),
                }
            )
        metrics |= _means(taken)
        count = sum(t["learner/skipped_steps"] for t in taken)
        return metrics | {"learner/skipped_steps": count, "learner/optimizer_steps": len(taken) - count}

    def _leave_out_what_moved(self, sequences: list[TokenSequence]) -> Numbers:
        """M2PO: the fewest tokens that moved most get advantages of 0, until the others' mean square is small."""
        limit = self.settings["correction.second_moment"]
        tokens = [t for q in sequences for t in q.learnt]
        if limit is None or not tokens:
            return {}
        squares = [(t.policy - t.sampler) ** 2 for t in tokens]
        order = sorted(range(len(tokens)), key=lambda i: -squares[i])
        out = next((n for n in range(len(tokens)) if fmean(squares[i] for i in order[n:]) <= limit), len(tokens))
        for i in order[:out]:
            tokens[i].weighted = 0.0
        return {"correction/second_moment": fmean(squares), "correction/second_moment_share": out / len(tokens)}

    def _loss(self, part: list[TokenSequence], selected: dict[int, float], moved: bool) -> tuple[Tensor, Numbers]:
        """The loss of one optimiser step, and means over its tokens."""
        s, weights = self.settings, self.weights
        losses: list[Tensor] = []
        sums: dict[str, float] = defaultdict(float)
        for q in (q for q in part if q.learnt):
            t = self._tokens(q, weights, selected, moved)
            factor, rules = correction_weights(s, t)
            policy = policy_losses(s, t) * factor
            loss = policy - s["loss.entropy_coef"] * t.entropy
            sums["loss/policy"] += float(policy.detach().sum())
            sums["loss/entropy"] += float(t.entropy.detach().sum())
            for name, out in rules.items():
                sums[f"correction/{name}_share"] += float(out.sum())
            if s["loss.kl_coef"]:
                divergence = kl_losses(s, t)
                sums["loss/reference_kl"] += float(divergence.detach().sum())
                loss = loss + s["loss.kl_coef"] * divergence
            losses.append(loss)
        count = sum(map(len, losses))
        return aggregate(s, losses), {name: value / count for name, value in sums.items()}

    def _tokens(self, q: TokenSequence, weights: Weights, selected: dict[int, float], moved: bool) -> Tokens:
        s, learnt = self.settings, q.learnt
        logp = logprobs(weights, q.ids, s["sampling.temperature"], self.shape)[[t.position - 1 for t in learnt]]
        own = logp.gather(1, torch.tensor([[q.ids[t.position]] for t in learnt]))[:, 0]
        if s["loss.proximal"] == "sampler":
            old = _vector(t.sampler for t in learnt)
        else:
            old = _vector(t.policy for t in learnt) if moved else own.detach()
        return Tokens(
            logp=own,
            entropy=-(logp.exp() * logp).sum(-1),
            old=old,
            sampler=_vector(t.sampler for t in learnt),
            reference=_vector(t.reference for t in learnt) if self._has_reference else None,
            advantages=_vector(t.weighted for t in learnt),
            turns=[t.turn for t in learnt],
            selected=_vector(selected[id(t)] for t in learnt),
        )


def _vector(values: Any) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def _means(taken: list[Numbers]) -> Numbers:
    names = dict.fromkeys(name for numbers in taken for name in numbers)
    return {name: fmean(n[name] for n in taken if name in n and math.isfinite(n[name])) for name in names}


# -- what to watch -----------------------------------------------------------------------------------------------------


def _staleness(sequences: list[TokenSequence], version: int) -> Numbers:
    lags = [version - t.version for q in sequences for t in q.tokens]
    return {
        "staleness/lag_mean": fmean(lags),
        "staleness/lag_max": float(max(lags)),
    }


def _mismatch(sequences: list[TokenSequence]) -> Numbers:
    """The policy before the step beside the sampler, over all tokens that are learnt from."""
    moved = [t.policy - t.sampler for q in sequences for t in q.learnt]
    if not moved:
        return {}
    ratios = [math.exp(m) for m in moved]
    return {
        "mismatch/kl": fmean(math.exp(m) - 1 - m for m in moved),
        "mismatch/logprob_diff_max": max(map(abs, moved)),
        "mismatch/effective_sample_share": sum(ratios) ** 2 / (len(ratios) * sum(r * r for r in ratios)),
    }
