"""Episodes as people and programs read them: turn by turn text, compact side-by-side boards, and JSON records."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from roll_envs.types import Trajectory, Turn

_RULE = "-" * 72
_SEEN = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}") | {ord("\r"): ""}
"""In place of control characters, which a model may well write and a terminal would obey."""


def episode_headline(trajectory: Trajectory) -> str:
    """One line: the task, how it ended, turns and return."""
    task, outcome = trajectory.task, trajectory.outcome
    result = "solved" if trajectory.success else "not solved"
    if not trajectory.scored:
        result = f"{outcome.kind} ({outcome.reason})" if outcome.reason else outcome.kind
    turns = len(trajectory.turns)
    return (
        f"{task.env_id} · {task.split} task {task.index} · {result} in {turns} turn{'' if turns == 1 else 's'} · "
        f"return {trajectory.total_reward:.4g}"
    )


def episode_text(trajectory: Trajectory) -> str:
    """The whole episode, nothing shortened: what was seen, answered and paid at each turn."""
    parts = [episode_headline(trajectory)]
    for number, turn in enumerate(trajectory.turns, start=1):
        parts += [_RULE, f"Turn {number}", turn.prompt_observation, f">>> {turn.text}", _outcome_words(turn)]
    if trajectory.turns:
        parts += [_RULE, "End", trajectory.turns[-1].observation]
    outcome = trajectory.outcome
    if outcome.answer is not None:
        parts += [_RULE, "The answer that was being played", f">>> {outcome.answer}"]
    if outcome.traceback:
        parts += [_RULE, outcome.traceback]
    return ("\n".join(parts) + "\n").translate(_SEEN)


def episode_record(trajectory: Trajectory) -> dict[str, Any]:
    """The whole episode as JSON-able data, token ids and log-probabilities included."""
    task = trajectory.task
    return {
        "task": {
            "env_id": task.env_id,
            "split": task.split,
            "index": task.index,
            "seed": task.seed,
            "kwargs": jsonable(task.kwargs),
        },
        "member": trajectory.member,
        "attempts": trajectory.attempts,
        **_attempt_record(trajectory),
        "failed_attempts": [_attempt_record(attempt) for attempt in trajectory.failed_attempts],
    }


def episode_board(trajectory: Trajectory, *, width: int = 100, max_turns: int = 24) -> list[str]:
    """Compact lines: each turn is a block (number, observation, answer, reward), blocks side by side.

    Long observations are cut to 14 lines of 36 characters, long episodes in the middle; :func:`episode_text` cuts
    nothing.
    """
    turns = list(enumerate(trajectory.turns, start=1))
    skipped = len(turns) - max_turns
    blocks = []
    for number, turn in turns:
        if skipped > 0 and max_turns // 2 < number <= max_turns // 2 + skipped:
            if number == max_turns // 2 + 1:
                blocks.append([f"({skipped} turns", "left out)"])
            continue
        blocks.append(
            [f"turn {number}", *_clip(turn.prompt_observation), f"> {_one_line(turn.text)}", _pay_words(turn)]
        )
    if trajectory.turns:
        last = trajectory.turns[-1]
        how = "solved" if trajectory.success else "terminated" if last.terminated else "stopped"
        blocks.append(["end: " + how, *_clip(last.observation)])
    return [line.translate(_SEEN) for line in _side_by_side(blocks, width)]


def _attempt_record(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "outcome": trajectory.outcome.kind,
        "reason": trajectory.outcome.reason,
        "traceback": trajectory.outcome.traceback,
        "answer": trajectory.outcome.answer,
        "success": trajectory.success,
        "return": trajectory.total_reward,
        "turns": [_turn_record(turn) for turn in trajectory.turns],
    }


def _turn_record(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_observation": turn.prompt_observation,
        "text": turn.text,
        "observation": turn.observation,
        "reward": turn.reward,
        "terminated": turn.terminated,
        "truncated": turn.truncated,
        "finish": turn.completion.finish,
        "weight_version": turn.completion.weight_version,
        "version_spans": [list(span) for span in turn.completion.spans],
        "prompt_ids": list(turn.prompt_ids),
        "completion_ids": list(turn.completion.ids),
        "logprobs": [jsonable(value) for value in turn.completion.logprobs],
        "info": jsonable(turn.info),
        "timings": jsonable(turn.timings),
    }


def _outcome_words(turn: Turn) -> str:
    words = [f"reward {turn.reward:.4g}"]
    if not turn.info.get("action_is_valid", True):
        words.append("not a valid action")
    elif not turn.info.get("action_is_effective", True):
        words.append("no effect")
    if turn.completion.finish == "length":
        words.append("answer cut at the token limit")
    return "    " + ", ".join(words)


def _pay_words(turn: Turn) -> str:
    return f"  {turn.reward:+.3g}" + ("" if turn.info.get("action_is_valid", True) else " invalid")


def _clip(text: str, lines: int = 14, columns: int = 36) -> list[str]:
    # Of a page of megabytes what may be shown is taken before it is wrapped, which would take minutes.
    wrapped = [line[: 4 * lines * columns] for line in text.splitlines()[: lines + 1]]
    if any(len(line) > columns for line in wrapped):
        wrapped = [piece for line in wrapped for piece in textwrap.wrap(line, columns) or [""]]
    return wrapped if len(wrapped) <= lines else [*wrapped[: lines - 1], "..."]


def _one_line(text: str, columns: int = 32) -> str:
    flat = " ".join(text.split()) or "(nothing)"
    return flat if len(flat) <= columns else flat[: columns - 3] + "..."


def _side_by_side(blocks: Sequence[Sequence[str]], width: int, gap: int = 3) -> list[str]:
    if not blocks:
        return ["(no turns)"]
    column = max(len(line) for block in blocks for line in block)
    per_row = max(1, (width + gap) // (column + gap))
    lines: list[str] = []
    for start in range(0, len(blocks), per_row):
        row = blocks[start : start + per_row]
        height = max(len(block) for block in row)
        for i in range(height):
            cells = [(block[i] if i < len(block) else "").ljust(column) for block in row]
            lines.append((" " * gap).join(cells).rstrip())
        lines.append("")
    return lines[:-1]


_DEEPEST = 64


def jsonable(value: Any, within: tuple[int, ...] = ()) -> Any:
    """``value`` as JSON has it, or the nearest that has a form there. What lies too deep, holds what it is held by, may
    have no end or raises an error when it is read becomes the name of its type. ``within``: ids of what holds it."""
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):  # texts of longer ones are refused by Python
        return value if value.bit_length() < 10_000 else hex(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    inner = (*within, id(value))
    with contextlib.suppress(Exception):  # of what an environment returned
        if len(within) >= _DEEPEST or id(value) in within:
            pass
        elif isinstance(value, Mapping):
            return {str(key): jsonable(item, inner) for key, item in value.items()}
        elif hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            return jsonable(value.item(), inner)
        elif hasattr(value, "tolist"):
            return jsonable(value.tolist(), inner)
        elif isinstance(value, Collection):
            return [jsonable(item, inner) for item in value]
        elif not isinstance(value, Iterable):
            return str(value)
    return f"<{type(value).__name__}>"
