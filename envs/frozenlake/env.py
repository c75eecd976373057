"""FrozenLakeEnv: walk to the goal; the lake is drawn as text and every answer names one or more moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium

from envs.arguments import MAX_COUNT, check_choice, check_int, check_penalty, check_symbols
from envs.frozenlake.lake import FROZEN, GOAL, HOLE, LETTERS, Slips, draw_map, neighbours, slip_of
from roll_envs.env import AnyText, TextEnv
from roll_envs.errors import ConfigError
from roll_envs.parsing import ActionFormat, make_action_format

__all__ = ["ACTIONS", "FrozenLakeEnv"]

ACTIONS = ("Left", "Down", "Right", "Up")
SYMBOLS = "P_OGX√"
MEANINGS = ("player", "empty", "hole", "goal", "player in hole", "player on goal")
MAX_SIDE = 100

RULES = "You are solving the FrozenLake puzzle. Avoid the holes and go to the goal."
SLIPPERY_RULE = "You may move to an unintended direction due to the slippery ice."

ON = {FROZEN: 0, HOLE: 4, GOAL: 5}
EMPTY = {FROZEN: 1, HOLE: 2, GOAL: 3}
"""What a cell holds -> which symbol draws it, with and without the player."""


class FrozenLakeEnv(TextEnv):
    """FrozenLake on random maps (see the README beside this file for the rules and every argument)."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc]
    action_format: ActionFormat

    def __init__(
        self,
        *,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = False,
        max_turns: int | None = None,
        symbols: str | Sequence[str] = SYMBOLS,
        action_format: str = "answer",
        max_actions_per_turn: int = 1,
        format_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        """Lakes of ``size`` x ``size`` cells; the other arguments are explained in the README, wrong ones raise
        :class:`~roll_envs.errors.ConfigError`."""
        self.size = check_int("size", size, 2, MAX_SIDE)
        if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 < p <= 1:
            raise ConfigError(f"p, the share of frozen cells, must be above 0 and at most 1, not {p!r}")
        self.p = float(p)
        self.is_slippery = bool(is_slippery)
        # 10 on the usual lakes, as in ROLL.
        max_turns = max(10, 5 * self.size // 2) if max_turns is None else max_turns
        self.max_turns = check_int("max_turns", max_turns, 1, MAX_COUNT)
        self.symbols = check_symbols(symbols, MEANINGS, SYMBOLS)
        self.format_penalty = check_penalty(format_penalty)
        self.render_mode = check_choice("render_mode", render_mode, (None, "ansi"))
        most = check_int("max_actions_per_turn", max_actions_per_turn, 1)
        self.action_format = make_action_format(action_format, ACTIONS, max_actions=most)
        self._parse = self.action_format.parse
        self.action_space = AnyText(tuple(self.action_format.format([a]) for a in range(len(ACTIONS))))
        self.observation_space = AnyText()
        self._neighbours = neighbours(self.size)
        self._over = True
        self._cells, self._player = b"", 0
        self._turns = self._slipped = 0
        self._slips = Slips(0)

    @property
    def instructions(self) -> str:
        """Rules, meaning of the symbols, moves and how to answer (after ROLL's, the form from ``action_format``)."""
        meaning = ", ".join(f"{s}: {m}" for s, m in zip(self.symbols, MEANINGS, strict=True))
        return (
            f"{RULES}{' ' + SLIPPERY_RULE if self.is_slippery else ''}\n"
            f"The meaning of each symbol in the state is:\n{meaning}\n"
            f"Your available actions are:\n{', '.join(ACTIONS)}\n"
            f"You have {self.max_turns} turns. {self.action_format.instructions}"
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start on the lake of ``seed``; ``options`` are not used."""
        episode = self.episode_seed(seed)
        cells, start = draw_map(self.size, self.p, episode)
        self._start(cells, start)
        self._turns, self._over = 0, False
        if self.is_slippery:
            # The first number is spent at the reset, as in gymnasium.
            self._slips, self._slipped = Slips(episode), 1
        return self.render(), {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an answer; see the README for rewards and limits."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over, or none has begun: call reset() first")
        moves = self._parse(action).actions
        self._turns += 1
        player, kind = self._player, FROZEN
        effective = False
        for move in moves:
            if self.is_slippery:
                move = (move + slip_of(self._slips[self._slipped])) % 4
                self._slipped += 1
            before, player = player, self._neighbours[player][move]
            effective = effective or player != before
            # A hole or the goal ends the episode, and with it the answer.
            kind = self._cells[player]
            if kind:
                break
        self._player = player
        success, terminated = kind == GOAL, kind != FROZEN
        goal = 1.0 if success else 0.0
        penalty = 0.0 if moves else self.format_penalty
        truncated = not terminated and self._turns >= self.max_turns
        self._over = terminated or truncated
        return (
            self._views.get(player) or self.render(),
            goal + penalty,
            terminated,
            truncated,
            {
                "success": success,
                "action_is_valid": bool(moves),
                "action_is_effective": effective,
                "format_penalty": penalty,
                "reward_parts": {"goal": goal, "format": penalty},
            },
        )

    def render(self) -> str:
        """The lake as text, rows joined by newlines."""
        if not self._cells:
            return super().render()
        view = self._views.get(self._player)
        if view is None:
            texts, player = self._texts, self._player
            ground = texts[player]
            texts[player] = self.symbols[ON[self._cells[player]]] + ("\n" if ground[-1] == "\n" else "")
            view = self._views[player] = "".join(texts)
            texts[player] = ground
        return view

    def oracle(self) -> list[str] | None:
        """Answers along a shortest path to the goal, or None when the turns left are too few for any.

        On slippery ice the slips to come are known to it (they are fixed by the seed): these answers win this episode,
        where no policy that sees only the lake can be sure to.
        """
        if self._over:
            return None
        per_turn = self.action_format.max_actions
        came_by: list[dict[int, tuple[int, int]]] = []  # per move: cell -> (cell before, move)
        reached = {self._player}
        seen = {self._player}
        for count in range((self.max_turns - self._turns) * per_turn):
            slip = slip_of(self._slips[self._slipped + count]) if self.is_slippery else 0
            layer: dict[int, tuple[int, int]] = {}
            for cell in sorted(reached):
                for move in range(len(ACTIONS)):
                    new = self._neighbours[cell][(move + slip) % 4]
                    if self._cells[new] != HOLE and new not in layer:
                        layer[new] = (cell, move)
            came_by.append(layer)
            goal = next((cell for cell in layer if self._cells[cell] == GOAL), None)
            if goal is not None:
                path = _path(came_by, goal)
                return [self.action_format.format(path[i : i + per_turn]) for i in range(0, len(path), per_turn)]
            # On dry ice a cell that was reached before is no use; on slippery ice, being there at another time is.
            reached = set(layer) if self.is_slippery else set(layer) - seen
            seen |= reached
            if not reached:
                return None
        return None

    def snapshot(self) -> Mapping[str, Any]:
        """The map (F frozen, H hole, G goal), the player's cell, counters and generators."""
        if not self._cells:
            raise gymnasium.error.ResetNeeded("there is nothing to take a snapshot of before reset()")
        letters = "".join(LETTERS[c] for c in self._cells)
        return {
            "map": [letters[i : i + self.size] for i in range(0, len(letters), self.size)],
            "player": self._player,
            "turns": self._turns,
            "over": self._over,
            "slip_seed": self._slips.seed,
            "slips_used": self._slipped,
            "np_random": self.np_random.bit_generator.state,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        """Continue from ``snapshot``; its ``np_random`` may be missing (the generator then stays as it is)."""
        rows = snapshot.get("map")
        usable = isinstance(rows, Sequence) and all(isinstance(r, str) and len(r) == self.size for r in rows)
        if not usable or len(rows) != self.size or not set("".join(rows)) <= set(LETTERS + "S"):  # type: ignore[arg-type]
            raise ConfigError(
                f"a snapshot for this environment has 'map': {self.size} strings of {self.size} letters F, H, G, not "
                f"{rows!r}; restore it into an environment with the arguments of the one it was taken from"
            )
        numbers = {n: check_int(n, snapshot.get(n, 0), 0) for n in ("player", "turns", "slip_seed", "slips_used")}
        if numbers["player"] >= self.size**2:
            raise ConfigError(f"the player's cell must be below {self.size**2}, not {numbers['player']}")
        if "np_random" in snapshot:
            self.np_random.bit_generator.state = snapshot["np_random"]
        letters = "".join(rows).replace("S", "F")  # type: ignore[arg-type]
        self._start(bytes(LETTERS.index(c) for c in letters), numbers["player"])
        self._turns = numbers["turns"]
        ended = self._cells[self._player] != FROZEN or self._turns >= self.max_turns
        self._over = ended or bool(snapshot.get("over", False))
        self._slips, self._slipped = Slips(numbers["slip_seed"]), numbers["slips_used"]
        return self.render()

    def _start(self, cells: bytes, player: int) -> None:
        self._cells, self._player = cells, player
        # Texts of the cells in reading order, without the player; the last of each row carries the line break.
        self._texts = [self.symbols[EMPTY[c]] for c in cells]
        for end in range(self.size - 1, len(cells) - 1, self.size):
            self._texts[end] += "\n"
        self._views: dict[int, str] = {}  # the lake as text with the player on a cell, drawn when first needed


def _path(came_by: Sequence[Mapping[int, tuple[int, int]]], cell: int) -> list[int]:
    moves = []
    for layer in reversed(came_by):
        cell, move = layer[cell]
        moves.append(move)
    return moves[::-1]
