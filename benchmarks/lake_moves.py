"""Which moves a language model makes on FrozenLake, where the map says which are right: does it see goal and holes?

    .venv/bin/python benchmarks/lake_moves.py configs/frozenlake_smollm2.yaml models/smollm2-135m --states 384

The prompts are those of the configuration. Of each state, reached by up to three random moves, the model's
probabilities of the four moves are compared with the lake: moves on a shortest way, moves towards the goal, and moves
into a hole where a hole lies beside the player, or where one lies towards the goal.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import gymnasium
import torch
from lake_players import MOVES, Cell, after, distance
from transformers import AutoModelForCausalLM, AutoTokenizer

import roll_envs  # noqa: F401  registers the environments
from trainer.config.load import load_config


def draw_state(env: gymnasium.Env[str, str], seed: int, draw: random.Random) -> str:
    """The text of a lake after up to three random moves that end nothing."""
    text, _ = env.reset(seed=seed)
    for _ in range(draw.randrange(4)):
        new, _, terminated, truncated, _ = env.step(draw.choice(list(MOVES)))
        if terminated or truncated:
            break
        text = new
    return text


def steps_to_goal(free: set[Cell], goal: Cell) -> dict[Cell, int]:
    """Of each cell from which the goal can be reached."""
    found, queue = {goal: 0}, [goal]
    for cell in queue:
        for new in (after(cell, move) for move in MOVES):
            if new in free and new not in found:
                found[new] = found[cell] + 1
                queue.append(new)
    return found


def kinds_of_moves(text: str, symbols: list[str]) -> list[list[bool]]:
    """Of each move: on a shortest way, towards the goal, into a hole."""
    player_mark, _, hole_mark, goal_mark = (s.strip() for s in symbols[:4])
    rows = [row.split() for row in text.split("\n")]
    cells = {(r, c): mark for r, row in enumerate(rows) for c, mark in enumerate(row)}
    player, goal = (next(cell for cell, mark in cells.items() if mark == m) for m in (player_mark, goal_mark))
    steps = steps_to_goal({cell for cell, mark in cells.items() if mark != hole_mark}, goal)
    news = [after(player, move) for move in MOVES]
    return [
        [steps.get(new, len(cells)) < steps[player] for new in news],
        [distance(new, goal) < distance(player, goal) for new in news],
        [cells.get(new) == hole_mark for new in news],
    ]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--states", type=int, default=384)
    options = parser.parse_args()
    config = load_config(options.config)
    assert config.env is not None
    env, draw = gymnasium.make(config.env.id, **config.env.kwargs), random.Random(0)
    states = [draw_state(env, 10**7 + n, draw) for n in range(options.states)]
    best, towards, hole = (
        torch.tensor(kinds, dtype=torch.float32)
        for kinds in zip(*(kinds_of_moves(s, config.env.kwargs["symbols"]) for s in states), strict=True)
    )
    beside, in_the_way = hole.any(1), (hole * towards).any(1)
    print("| Model | On a shortest way | Towards the goal | Into a hole beside | Into a hole towards the goal |")
    print("|---|---|---|---|---|")
    for folder in options.models:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        moves = [tokenizer.encode(move, add_special_tokens=False)[0] for move in MOVES]
        p = []
        for state in states:
            user = (config.context.observation_template or "{observation}").replace("{observation}", state)
            messages = [{"role": "system", "content": config.context.system_prompt}, {"role": "user", "content": user}]
            prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
            p.append(model(input_ids=ids, logits_to_keep=1).logits[0, -1].softmax(-1)[moves])
        chance = torch.stack(p)
        shares = [
            (chance * best).sum(1).mean(),
            (chance * towards).sum(1).mean(),
            (chance * hole).sum(1)[beside].mean(),
            (chance * hole).sum(1)[in_the_way].mean(),
        ]
        print(f"| {folder.name} | " + " | ".join(f"{float(share):.3f}" for share in shares) + " |", flush=True)
    counts = f"{int(beside.sum())} with a hole beside, {int(in_the_way.sum())} with one towards the goal"
    print(f"\n{len(states)} states, {counts}")


if __name__ == "__main__":
    main()
