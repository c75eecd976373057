"""An environment of free text that lists its actions: say the word that is asked for, then leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll_envs import AnyText, EnvironmentCard, TextEnv
from roll_envs.parsing import make_free_format


class CounterShop(TextEnv):
    """A shop counter; ``action_format`` is one of the named forms."""

    def __init__(self, action_format: str = "word", max_turns: int = 4) -> None:
        self.max_turns = max_turns
        self.action_format = make_free_format(action_format, example="say[tea]")
        self.action_space = self.observation_space = AnyText(("say[tea]",))
        self._said: list[str] = []
        self._wanted = ""

    @property
    def instructions(self) -> str:
        return f"Say what is wanted, then leave. {self.action_format.instructions}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._wanted = (options or {}).get("wanted", ("tea", "salt")[self.episode_seed(seed) % 2])
        if self._wanted not in ("tea", "salt"):
            raise ValueError(f"there is no {self._wanted!r}")
        self._said = []
        return self._look(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        read = self.action_format.read(action) or ""
        valid = read == "click[leave]" or (read.startswith("say[") and read.endswith("]"))
        left = read == "click[leave]"
        won = left and self._said[-1:] == [self._wanted]
        self._said.append(read[4:-1] if valid and not left else "")
        truncated = not left and len(self._said) >= self.max_turns
        info = {"success": won, "action_is_valid": valid, "action_is_effective": valid, **self._info()}
        return self._look(), float(won), left, truncated, info

    def snapshot(self) -> Mapping[str, Any]:
        return {"said": list(self._said), "wanted": self._wanted}

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        self._said, self._wanted = list(snapshot["said"]), snapshot["wanted"]
        return self._look()

    def oracle(self) -> list[str] | None:
        return [self.action_format.write(action) for action in (f"say[{self._wanted}]", "click[leave]")]

    def _look(self) -> str:
        return f"Wanted: {self._wanted} [SEP] You said: {' '.join(self._said) or 'nothing'} [SEP] Leave"

    def _info(self) -> dict[str, Any]:
        return {"available_actions": ["say[<words>]", "click[leave]", "click[look around]"]}


CARD = EnvironmentCard(
    id="test/CounterShop-v0",
    entry_point="counter_shop:CounterShop",
    summary="A shop counter.",
    tests="-",
    turns="-",
    reward_range=(0, 1),
    rewards="-",
    success="-",
)
