"""What the oracle runs: a small Llama written out plainly, and the sequences of a training step, token by token.

Float64, one sequence at a time, the logits of all positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from roll_envs.types import Group, Trajectory

Weights = dict[str, Tensor]

# -- the model ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shape:
    layers: int = 1
    heads: int = 2
    rope_theta: float = 30.0
    norm_eps: float = 1e-6


def _norm(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + shape.norm_eps).sqrt()


@cache
def _cos_and_sin(length: int, half: int, theta: float) -> tuple[Tensor, Tensor]:
    speeds = (1.0 / theta ** (torch.arange(half, dtype=torch.float) / half)).double()
    angles = torch.arange(length).double()[:, None] * speeds
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, shape: Shape) -> Tensor:
    """Rotary positions of [H, T, E]; the angles begin as float32 numbers, as in transformers."""
    half = x.shape[-1] // 2
    cos, sin = _cos_and_sin(x.shape[1], half, shape.rope_theta)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def states(weights: Weights, ids: Sequence[int], shape: Shape) -> Tensor:
    """Last hidden states [T, D] of one sequence."""
    x = weights["model.embed_tokens.weight"][torch.tensor(ids)]
    unseen = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
    for layer in range(shape.layers):
        w = {name.removeprefix(f"model.layers.{layer}."): value for name, value in weights.items()}
        h = _norm(x, w["input_layernorm.weight"], shape)
        q, k, v = (
            (h @ w[f"self_attn.{name}_proj.weight"].T).view(len(ids), shape.heads, -1).transpose(0, 1) for name in "qkv"
        )
        scores = _rotated(q, shape) @ _rotated(k, shape).transpose(1, 2) / math.sqrt(q.shape[-1])
        seen = scores.masked_fill(unseen, -math.inf).softmax(-1) @ v
        x = x + seen.transpose(0, 1).flatten(1) @ w["self_attn.o_proj.weight"].T
        h = _norm(x, w["post_attention_layernorm.weight"], shape)
        gate = torch.nn.functional.silu(h @ w["mlp.gate_proj.weight"].T)
        x = x + (gate * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    return _norm(x, weights["model.norm.weight"], shape)


def logprobs(weights: Weights, ids: Sequence[int], temperature: float, shape: Shape) -> Tensor:
    """log p [T, V] of what follows each position, at the temperature."""
    return (states(weights, ids, shape) @ weights["model.embed_tokens.weight"].T / temperature).log_softmax(-1)


# -- sequences ---------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Token:
    """A sampled id."""

    position: int
    turn: int
    sampler: float
    version: int
    learnt: bool = True
    """False where ``mask`` leaves it out."""
    policy: float = 0.0
    """Log-prob under the weights before the training step."""
    reference: float = 0.0
    value: float = 0.0
    advantage: float = 0.0
    weighted: float = 0.0
    """The advantage as the loss sees it."""
    goal: float = 0.0
    """What the critic shall predict."""


@dataclass(kw_only=True)
class TokenSequence:
    """Prompt and completions that continue each other to the letter."""

    ids: list[int]
    tokens: list[Token]
    group: int
    weight: float = 1.0

    @property
    def learnt(self) -> list[Token]:
        return [t for t in self.tokens if t.learnt and t.position > 0]


@dataclass(kw_only=True)
class Played:
    """A scored episode and its sequences."""

    group: int
    trajectory: Trajectory
    sequences: list[TokenSequence]

    @property
    def tokens(self) -> list[Token]:
        return [t for s in self.sequences for t in s.tokens]


def _sequences(trajectory: Trajectory, group: int) -> list[TokenSequence]:
    result: list[TokenSequence] = []
    for number, turn in enumerate(trajectory.turns):
        if not turn.completion.ids:
            continue
        prompt = list(turn.prompt_ids)
        if not result or prompt[: len(result[-1].ids)] != result[-1].ids:
            result.append(TokenSequence(ids=[], tokens=[], group=group))
        versions = [version for version, count in turn.completion.spans for _ in range(count)]
        result[-1].tokens += [
            Token(position=len(prompt) + i, turn=number, sampler=logp, version=versions[i])
            for i, logp in enumerate(turn.completion.logprobs)
        ]
        result[-1].ids = prompt + list(turn.completion.ids)
    return result


def played_episodes(groups: Sequence[Group]) -> list[Played]:
    return [
        Played(group=g, trajectory=t, sequences=_sequences(t, g))
        for g, group in enumerate(groups)
        for t in group.trajectories
        if t.outcome.kind in ("completed", "truncated") and t.turns
    ]
