"""``adapt``: any Gymnasium environment as a text environment, by words for its observations and names for its actions.

cartpole = adapt(
    gymnasium.make("CartPole-v1"),
    actions=("Left", "Right"),
    describe=lambda seen: f"The pole leans {seen[2]:+.2f} rad and turns {seen[3]:+.2f} rad/s.",
    instructions="Keep the pole on the cart upright by pushing the cart.",
)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from roll_envs.env import AnyEnv, AnyText, TextEnv
from roll_envs.errors import ConfigError
from roll_envs.parsing import ActionFormat, make_action_format

__all__ = ["AdaptedEnv", "adapt"]

Describe = Callable[..., str]
"""From an observation, and the environment where it takes two arguments, to what an agent reads."""
Success = Callable[[float, bool, Mapping[str, Any]], bool]
"""From the reward of a step, ``terminated`` and ``info`` to whether the task is solved."""


class AdaptedEnv(TextEnv):
    """``adapt(env, ...)``: ``env`` as a text environment that is played by the names of its actions, one each turn.

    ``actions``: the names of a Discrete space's actions in their order, or names with the action each stands for, of
    any space. ``describe``: by default what ``env`` renders as text, else the observation itself. ``max_turns``: by
    default the limit that ``env`` was registered with. ``success``: by default ``info["success"]`` or
    ``info["is_success"]``, and never where there is neither, since a reward may be for winning or for lasting. An
    answer that names no action costs ``format_penalty`` and a turn in which ``env`` is left alone.

    Snapshots play the episode again, so ``env`` must follow its seed. Raises :class:`ConfigError` for names that do not
    fit the action space, and where no turn limit is known.
    """

    action_format: ActionFormat

    def __init__(
        self,
        env: AnyEnv,
        *,
        actions: Sequence[str] | Mapping[str, Any],
        describe: Describe | None = None,
        instructions: str = "",
        max_turns: int | None = None,
        success: Success | None = None,
        action_format: str = "answer",
        format_penalty: float = 0.0,
    ) -> None:
        self.env, self._rules = env, instructions
        named = _named(env, actions)
        limit = max_turns if max_turns is not None else _limit(env)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ConfigError(
                f"max_turns is {limit!r}; give a whole number of 1 or more, since {_name(env)} has no limit of its own"
            )
        if not format_penalty <= 0:
            raise ConfigError(f"format_penalty is {format_penalty!r}; give 0 or less")
        self.max_turns, self._penalty = limit, float(format_penalty)
        self.action_format = make_action_format(action_format, tuple(named))
        self._actions = tuple(named.values())
        self._describe = _describer(env, describe)
        self._success = success or _solved
        self.action_space = AnyText(tuple(self.legal_answers()))
        self.observation_space = AnyText()
        self._turns, self._over, self._seen = 0, True, ""

    @property
    def instructions(self) -> str:
        names = ", ".join(self.action_format.actions)
        rules = [self._rules] if self._rules else []
        asked = self.action_format.instructions
        return "\n".join([*rules, f"Your actions are: {names}. You have {self.max_turns} turns.", asked])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        seen, info = self.env.reset(seed=self.episode_seed(seed), options=options)
        self._turns, self._over, self._seen = 0, False, self._describe(seen)
        return self._seen, {"success": False, "env_info": dict(info)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() first")
        read = self.action_format.parse(action)
        self._turns += 1
        before, reward, terminated, truncated, success = self._seen, 0.0, False, False, False
        info: Mapping[str, Any] = {}
        if read.valid:
            seen, paid, terminated, truncated, info = self.env.step(self._actions[read.actions[0]])
            self._seen, reward, terminated = self._describe(seen), float(paid), bool(terminated)
            success = bool(self._success(reward, terminated, info))
        truncated = not terminated and (bool(truncated) or self._turns >= self.max_turns)
        self._over = terminated or truncated
        penalty = 0.0 if read.valid else self._penalty
        told = {
            "success": success,
            "action_is_valid": read.valid,
            "action_is_effective": read.valid and (self._seen != before or terminated),
            "format_penalty": penalty,
            "reward_parts": {"env": reward, "format": penalty},
            "env_info": dict(info),
        }
        return self._seen, reward + penalty, terminated, truncated, told

    def close(self) -> None:
        self.env.close()


adapt = AdaptedEnv


def _named(env: AnyEnv, actions: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Each name with the action that it stands for."""
    space = env.action_space
    if isinstance(actions, Mapping):
        named = dict(actions)
    elif not isinstance(space, spaces.Discrete):
        raise ConfigError(
            f"actions are {list(actions)!r}, and {_name(env)} has the action space {space}, whose actions have no "
            "order; give a dict from each name to the action that it stands for"
        )
    elif len(actions) != space.n:
        raise ConfigError(
            f"actions are {len(actions)} names ({', '.join(map(str, actions))}), and {_name(env)} has {space.n} "
            f"actions; name each of them, or give a dict from names to the actions from {space.start} that you want"
        )
    else:
        named = {name: space.start + number for number, name in enumerate(actions)}
    for name, action in named.items():
        named[name] = np.asarray(action, space.dtype) if isinstance(space, spaces.Box) else action
        if not space.contains(named[name]):
            raise ConfigError(f"actions[{name!r}] is {action!r}, which is not in {_name(env)}'s action space {space}")
    return named


def _limit(env: AnyEnv) -> int | None:
    return getattr(env.spec, "max_episode_steps", None)


def _name(env: AnyEnv) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _describer(env: AnyEnv, describe: Describe | None) -> Callable[[Any], str]:
    if describe is None:
        return (lambda _: str(env.render())) if env.render_mode == "ansi" else _plain
    needed = [
        p for p in inspect.signature(describe).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]  # fmt: skip
    return (lambda seen: describe(seen, env)) if len(needed) > 1 else describe


def _plain(seen: Any) -> str:
    """An observation in words of its own: numbers rounded, parts of a dict in lines."""
    if isinstance(seen, Mapping):
        return "\n".join(f"{key}: {_plain(value)}" for key, value in seen.items())
    if isinstance(seen, np.ndarray | np.generic):
        return np.array2string(np.asarray(seen), precision=4, suppress_small=True, threshold=10_000, max_line_width=200)
    if isinstance(seen, tuple | list):
        return ", ".join(map(_plain, seen))
    return str(seen)


def _solved(reward: float, terminated: bool, info: Mapping[str, Any]) -> bool:
    return bool(info.get("success", info.get("is_success", False)))
