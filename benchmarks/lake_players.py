"""What players reach on FrozenLake who see only a part of the lake: which part a learnt policy reads.

    .venv/bin/python benchmarks/lake_players.py --tasks 2000 --max-turns 6

Each player walks at random among the moves that its part of the lake leaves: all of them; those towards the goal; those
towards the goal that do not end in a hole or at the edge (or, where there is none, any other that does not).
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable

import gymnasium

import roll_envs  # noqa: F401  registers the environments

Cell = tuple[int, int]
MOVES = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}


def everything(player: Cell, goal: Cell, free: set[Cell]) -> list[str]:
    return list(MOVES)


def goal_alone(player: Cell, goal: Cell, free: set[Cell]) -> list[str]:
    return [move for move in MOVES if distance(after(player, move), goal) < distance(player, goal)]


def goal_and_next_cells(player: Cell, goal: Cell, free: set[Cell]) -> list[str]:
    safe = [move for move in MOVES if after(player, move) in free]
    return [move for move in goal_alone(player, goal, free) if move in safe] or safe or list(MOVES)


def after(cell: Cell, move: str) -> Cell:
    return cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]


def distance(one: Cell, other: Cell) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def succeeds(env: gymnasium.Env[str, str], seed: int, chosen: Callable[..., list[str]], draw: random.Random) -> bool:
    lake, _ = env.reset(seed=seed)
    while True:
        cells = {(r, c): mark for r, row in enumerate(lake.split("\n")) for c, mark in enumerate(row)}
        player, goal = (next(cell for cell, mark in cells.items() if mark == wanted) for wanted in "PG")
        free = {cell for cell, mark in cells.items() if mark != "O"}
        lake, _, terminated, truncated, info = env.step(draw.choice(chosen(player, goal, free)))
        if terminated or truncated:
            return bool(info["success"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--max-turns", type=int, default=6)
    options = parser.parse_args()
    env = gymnasium.make("roll/FrozenLake-v0", action_format="word", max_turns=options.max_turns)
    print("| Moves among | Success | 95% |\n|---|---|---|")
    for chosen in (everything, goal_alone, goal_and_next_cells):
        draw = random.Random(0)
        share = sum(succeeds(env, 10**6 + task, chosen, draw) for task in range(options.tasks)) / options.tasks
        half = 1.96 * math.sqrt(share * (1 - share) / options.tasks)
        print(f"| {chosen.__name__} | {share:.3f} | {share - half:.3f}-{share + half:.3f} |")


if __name__ == "__main__":
    main()
