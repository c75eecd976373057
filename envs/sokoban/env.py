"""SokobanEnv: push all boxes to targets; the room is drawn as text and every answer names one or more moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium

from envs.arguments import MAX_COUNT, check_choice, check_int, check_penalty, check_symbols
from envs.sokoban import arguments
from envs.sokoban.generator import Room, generate_room, next_seed
from envs.sokoban.search import FLOOR, TARGET, WALL
from envs.sokoban.solver import solve
from roll_envs.env import AnyText, TextEnv
from roll_envs.errors import ConfigError
from roll_envs.parsing import ActionFormat, make_action_format

__all__ = ["ACTIONS", "SokobanEnv"]

ACTIONS = ("Up", "Down", "Left", "Right")

RULES = (
    "You are solving the Sokoban puzzle. You are the player and you need to push all boxes to targets. When you are "
    "right next to a box, you can push it by moving in the same direction. You cannot push a box through a wall, and "
    "you cannot pull a box."
)

BOX_ON, BOX, PLAYER, PLAYER_ON = 3, 4, 5, 6
"""Codes of what can stand on FLOOR and TARGET (WALL, FLOOR, TARGET = 0, 1, 2); also the order of ``symbols``."""

STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0


class SokobanEnv(TextEnv):
    """Sokoban in generated rooms (see the README beside this file for the rules and every argument)."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc]
    action_format: ActionFormat

    def __init__(
        self,
        *,
        size: Sequence[int] = (6, 6),
        num_boxes: int = 1,
        search_depth: int = 300,
        max_turns: int = 10,
        symbols: str | Sequence[str] = arguments.SYMBOLS,
        action_format: str = "answer",
        max_actions_per_turn: int = 1,
        format_penalty: float = 0.0,
        invalid_counts: bool = True,
        observation_style: str = "plain",
        min_solution: int | None = None,
        max_solution: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Rooms of ``size`` (rows, columns); the other arguments are explained in the README, wrong ones raise
        :class:`~roll_envs.errors.ConfigError`."""
        self.size = arguments.check_size(size)
        self.num_boxes = check_int("num_boxes", num_boxes, 1, self.size[0] * self.size[1])
        self.search_depth = check_int("search_depth", search_depth, 3, MAX_COUNT)
        self.max_turns = check_int("max_turns", max_turns, 1, MAX_COUNT)
        self.symbols = check_symbols(symbols, arguments.MEANINGS, arguments.SYMBOLS)
        self.format_penalty = check_penalty(format_penalty)
        self.invalid_counts = bool(invalid_counts)
        self.min_solution, self.max_solution = arguments.check_solution(min_solution, max_solution)
        self.render_mode = check_choice("render_mode", render_mode, (None, "ansi"))
        style = check_choice("observation_style", observation_style, tuple(arguments.STYLES))
        self._cell_texts = tuple(arguments.STYLES[style].format(s) for s in self.symbols)
        most = check_int("max_actions_per_turn", max_actions_per_turn, 1)
        self.action_format = make_action_format(action_format, ACTIONS, max_actions=most)
        self._parse = self.action_format.parse
        self._steps = (-self.size[1], self.size[1], -1, 1)
        self.action_space = AnyText(tuple(self.action_format.format([a]) for a in range(len(ACTIONS))))
        self.observation_space = AnyText()
        self._structure = b""
        self._over = True
        self._turns = self._invalid = 0

    @property
    def instructions(self) -> str:
        """Rules, meaning of the symbols, moves and how to answer (ROLL's words, the form from ``action_format``)."""
        meaning = ", ".join(f"{s}: {m}" for s, m in zip(self.symbols, arguments.MEANINGS, strict=True))
        return (
            f"{RULES}\nThe meaning of each symbol in the state is:\n{meaning}\n"
            f"Your available actions are:\n{', '.join(ACTIONS)}\n"
            f"You have {self.max_turns} turns. {self.action_format.instructions}"
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start in the room of ``seed``; ``options`` are not used."""
        self._start(self._draw(self.episode_seed(seed)))
        self._turns = self._invalid = 0
        self._over = False
        return self.render(), {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an answer; see the README for rewards and limits."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over, or none has begun: call reset() first")
        moves = self._parse(action).actions
        # One move, the usual answer, is played below without the sums over several: this method is called most.
        if len(moves) != 1:
            return self._play_several(moves) if moves else self._play_invalid()
        self._turns += 1
        change, effective = self._move(self._steps[moves[0]])
        solved = self._on_target == self.num_boxes
        if solved:
            reward, box, bonus = STEP_REWARD + change + SOLVED_REWARD, float(change), SOLVED_REWARD
        else:
            reward, box, bonus = STEP_REWARD + change, float(change), 0.0
        self._over = over = solved or self._turns >= self._turn_limit()
        return (
            "".join(self._drawn),
            reward,
            solved,
            over and not solved,
            {
                "success": solved,
                "action_is_valid": True,
                "action_is_effective": effective,
                "format_penalty": 0.0,
                "reward_parts": {"step": STEP_REWARD, "box": box, "solved": bonus, "format": 0.0},
            },
        )

    def render(self) -> str:
        """The room as text, rows joined by newlines."""
        if not self._structure:
            return super().render()
        return "".join(self._drawn)

    def oracle(self) -> list[str] | None:
        """Answers along a shortest solution (the highest reward), or None when the turns left are too few for it.

        Raises :class:`~envs.sokoban.solver.SolverLimitError` where the search grows too large (far beyond what rooms of
        10x10 with 4 boxes take).
        """
        if self._over:
            return None
        per_turn = self.action_format.max_actions
        turns_left = self._turn_limit() - self._turns
        boxes = [i for i, b in enumerate(self._boxes) if b]
        path = solve(self._structure, self.size[1], self._player, boxes, max_moves=turns_left * per_turn)
        if path is None:
            return None
        return [self.action_format.format(path[i : i + per_turn]) for i in range(0, len(path), per_turn)]

    def snapshot(self) -> Mapping[str, Any]:
        """The room in standard symbols, the counters, and the generator of unseeded resets."""
        if not self._structure:
            raise gymnasium.error.ResetNeeded("there is nothing to take a snapshot of before reset()")
        width = self.size[1]
        codes = [self._code(cell) for cell in range(len(self._structure))]
        rows = ["".join(arguments.SYMBOLS[c] for c in codes[i : i + width]) for i in range(0, len(codes), width)]
        return {
            "room": rows,
            "turns": self._turns,
            "invalid": self._invalid,
            "over": self._over,
            "np_random": self.np_random.bit_generator.state,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        """Continue from ``snapshot``; its ``np_random`` may be missing (the generator then stays as it is)."""
        room = arguments.read_room(snapshot.get("room"), self.size, self.num_boxes)
        turns, invalid = (check_int(name, snapshot.get(name, 0), 0) for name in ("turns", "invalid"))
        if "np_random" in snapshot:
            self.np_random.bit_generator.state = snapshot["np_random"]
        self._start(room)
        self._turns, self._invalid = turns, invalid
        ended = self._on_target == self.num_boxes or self._turns >= self._turn_limit()
        self._over = ended or bool(snapshot.get("over", False))
        return self.render()

    def _draw(self, seed: int) -> Room:
        """The room of ``seed``, or of the first seed after it with a shortest solution as long as asked for."""
        lowest, highest = self.min_solution, self.max_solution
        attempt = seed
        for _ in range(arguments.MAX_DRAWS):
            room = generate_room(self.size, self.num_boxes, self.search_depth, attempt)
            if lowest is None and highest is None:
                return room
            path = solve(room.structure, room.width, room.player, room.boxes, max_moves=highest)
            if path is not None and len(path) >= (lowest or 0):
                return room
            attempt = next_seed(attempt)
        raise ConfigError(
            f"none of {arguments.MAX_DRAWS} rooms from seed {seed} has a shortest solution of {lowest or 0} to "
            f"{'any number of' if highest is None else highest} moves; widen min_solution / max_solution, or change "
            "size, num_boxes or search_depth"
        )

    def _start(self, room: Room) -> None:
        self._structure = room.structure
        self._player = room.player
        self._boxes = bytearray(len(room.structure))
        for cell in room.boxes:
            self._boxes[cell] = 1
        self._on_target = sum(room.structure[b] == TARGET for b in room.boxes)
        # Texts of the cells in reading order; the last cell of each row carries the line break.
        height, width = self.size
        ends = {(row + 1) * width - 1 for row in range(height - 1)}
        plain = self._cell_texts
        broken = tuple(text + "\n" for text in plain)
        self._texts = [broken if cell in ends else plain for cell in range(height * width)]
        # Kept from move to move: a move changes three cells at most.
        self._drawn = [self._texts[cell][self._code(cell)] for cell in range(height * width)]

    def _code(self, cell: int) -> int:
        ground = self._structure[cell]
        if cell == self._player:
            return PLAYER_ON if ground == TARGET else PLAYER
        if self._boxes[cell]:
            return BOX_ON if ground == TARGET else BOX
        return ground

    def _turn_limit(self) -> int:
        # Invalid turns are not counted with invalid_counts=False, but at most max_turns of them: else an agent that
        # never answers must not play for ever.
        return self.max_turns + (0 if self.invalid_counts else min(self._invalid, self.max_turns))

    def _move(self, step: int) -> tuple[int, bool]:
        """Move the player if possible; returns the change in boxes on targets, and whether anything moved."""
        structure, boxes, drawn = self._structure, self._boxes, self._drawn
        old = self._player
        new = old + step
        ground = structure[new]
        if ground == WALL:
            return 0, False
        change = 0
        if boxes[new]:
            beyond = new + step
            further = structure[beyond]
            if further == WALL or boxes[beyond]:
                return 0, False
            boxes[new], boxes[beyond] = 0, 1
            # FLOOR and TARGET are 1 and 2: 1 where the box comes on a target, -1 where it leaves one.
            change = further - ground
            self._on_target += change
            drawn[beyond] = self._texts[beyond][BOX if further == FLOOR else BOX_ON]
        drawn[old] = self._texts[old][structure[old]]
        drawn[new] = self._texts[new][PLAYER if ground == FLOOR else PLAYER_ON]
        self._player = new
        return change, True

    def _play_several(self, moves: Sequence[int]) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turns += 1
        step = box = 0.0
        effective = solved = False
        for move in moves:
            change, moved = self._move(self._steps[move])
            step += STEP_REWARD
            box += change
            effective |= moved
            solved = self._on_target == self.num_boxes
            if solved:
                break
        return self._outcome(step, box, solved, effective, penalty=0.0, valid=True)

    def _play_invalid(self) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turns += 1
        self._invalid += 1
        solved = self._on_target == self.num_boxes
        return self._outcome(STEP_REWARD, 0.0, solved, effective=False, penalty=self.format_penalty, valid=False)

    def _outcome(
        self, step: float, box: float, solved: bool, effective: bool, penalty: float, valid: bool
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        bonus = SOLVED_REWARD if solved else 0.0
        self._over = over = solved or self._turns >= self._turn_limit()
        info = {
            "success": solved,
            "action_is_valid": valid,
            "action_is_effective": effective,
            "format_penalty": penalty,
            "reward_parts": {"step": step, "box": box, "solved": bonus, "format": penalty},
        }
        # sum() rounds differently from Python 3.12 on; so the parts sum to the reward on every version.
        return self.render(), sum((step, box, bonus, penalty)), solved, over and not solved, info
