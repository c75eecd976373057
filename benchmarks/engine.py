"""What the built-in engine saves where prompts begin alike: groups of FrozenLake episodes, one request per turn.

    python benchmarks/engine.py                       # a small model, and one with the shape of SmolLM2-135M
    python benchmarks/engine.py --shapes small --rounds 5

Every turn's prompt is the rules and the present map. "Kept" is the engine as it is, "apart" lets no request know of
another: each runs all of its own prompt. Moves are random, so both answer the same prompts; the sides take turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence

import torch

import roll_envs
from roll_envs.types import Message, SamplingParams
from trainer.config import ModelConfig
from trainer.engines.hf import HFEngine
from trainer.engines.prefix_cache import CachedNetwork, OpenSequence
from trainer.learner.gradients import DTYPES, cast_weights
from trainer.model.network import LanguageModel, build_model
from trainer.model.renderer import ChatRenderer

SHAPES = {
    "small": ModelConfig(),
    "135m": ModelConfig(hidden_size=576, layers=30, heads=9, mlp_ratio=1536 / 576),
}
ENV_ID = "roll/FrozenLake-v0"
ENV = {"action_format": "word", "max_turns": 6}
TIMEOUT_S = 600.0
SIDES = ("kept", "apart")


def prompts_by_turn(model: LanguageModel, groups: int, members: int) -> list[list[tuple[int, ...]]]:
    """For each turn the prompts of the episodes that are not over; the members of a group have one lake."""
    rng, renderer = random.Random(0), ChatRenderer(model.tokenizer)
    envs = [roll_envs.make(ENV_ID, **ENV) for _ in range(groups * members)]
    rules = envs[0].unwrapped.instructions
    maps = {i: env.reset(seed=i // members)[0] for i, env in enumerate(envs)}
    turns = []
    while maps:
        turns.append(
            [
                renderer.render([Message(role="system", content=rules), Message(role="user", content=text)])
                for i, text in maps.items()
            ]
        )
        after = {}
        for i in maps:
            text, _, terminated, truncated, _ = envs[i].step(rng.choice(("Up", "Down", "Left", "Right")))
            if not (terminated or truncated):
                after[i] = text
        maps = after
    return turns


class Apart(CachedNetwork):
    """Every sequence finds an empty tree."""

    def open(self, sequence: OpenSequence) -> None:
        self._following.clear()
        super().open(sequence)


def play(
    model: LanguageModel, turns: Sequence[Sequence[tuple[int, ...]]], answer: int, *, side: str
) -> tuple[float, int]:
    """Seconds, and tokens that the model was run over."""
    engine = HFEngine(model, max_running=len(turns[0]), max_tokens=1024)
    if side == "apart":
        engine._network = Apart(engine._network.network, len(turns[0]))
    try:
        started = time.perf_counter()
        for number, prompts in enumerate(turns):
            futures = [
                engine.submit(
                    p, SamplingParams(temperature=1.0, max_new_tokens=answer, seed=number), timeout_s=TIMEOUT_S
                )
                for p in prompts
            ]
            for future in futures:
                future.result(timeout=TIMEOUT_S)
        return time.perf_counter() - started, engine._network.tokens_computed
    finally:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["small", "135m"])
    parser.add_argument("--precision", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--answer", type=int, default=2, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{options.groups} groups of {options.members}, {options.precision}, {torch.get_num_threads()} threads")
    print("| Model | Beginnings | Requests | Prompt tokens | Tokens run | Seconds (median, range) |")
    print("| --- | --- | --- | --- | --- | --- |")
    for shape in options.shapes:
        model = build_model(SHAPES[shape], roll_envs.make(ENV_ID, **ENV).unwrapped, 0)
        cast_weights(model.network.eval(), DTYPES[options.precision])
        turns = prompts_by_turn(model, options.groups, options.members)
        prompts = [p for turn in turns for p in turn]
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        tokens = dict.fromkeys(SIDES, 0)
        for i in range(options.rounds + 1):
            for side in SIDES if i % 2 else SIDES[::-1]:
                seconds, tokens[side] = play(model, turns, options.answer, side=side)
                if i:  # the first round warms up
                    times[side].append(seconds)
        for side, taken in times.items():
            print(
                f"| {shape} | {side} | {len(prompts)} | {sum(map(len, prompts))} | {tokens[side]} | "
                f"{statistics.median(taken):.2f} ({min(taken):.2f}-{max(taken):.2f}) |",
                flush=True,
            )
        ratio = statistics.median(times["apart"]) / statistics.median(times["kept"])
        print(f"| {shape} | apart / kept | | | {tokens['apart'] / tokens['kept']:.2f} x | {ratio:.2f} x |", flush=True)


if __name__ == "__main__":
    main()
