"""check_env: the validator for text environments, as a table of named rules."""

from __future__ import annotations

import contextlib
import functools
import io
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from roll_envs import env_registry as registry
from roll_envs.env import AnyEnv, EnvironmentCard
from roll_envs.errors import ConfigError, RollError, UnknownNameError
from roll_envs.testing.rules import GAME_RULES, INTERFACE_RULES
from roll_envs.testing.rules_determinism import DETERMINISM_RULES
from roll_envs.testing.rules_effects import EFFECT_RULES
from roll_envs.testing.trace import Failure, MakeEnv, Rule, Skip, Subject

RULES: dict[str, Rule] = {
    rule.__name__: rule for rule in (*INTERFACE_RULES, *DETERMINISM_RULES, *EFFECT_RULES, *GAME_RULES)
}
"""Every rule by name, in the order they are applied."""

Status = Literal["pass", "fail", "skip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """What one rule found."""

    rule: str
    status: Status
    detail: str
    """What was seen, what to mend, or why the rule does not apply."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckReport:
    """What :func:`check_env` found."""

    name: str
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """No rule failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The rules that failed."""
        return tuple(r for r in self.results if r.status == "fail")

    def __str__(self) -> str:
        lines = [f"{r.status:4} {r.rule:23} {r.detail}" for r in self.results]
        return "\n".join([f"{self.name}: {'ok' if self.ok else f'{len(self.failed)} rules failed'}", *lines])


def check_env(
    target: str | Callable[[], AnyEnv],
    *,
    kwargs: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (0, 1, 2, 3, 4, 5),
    card: EnvironmentCard | None = None,
    rules: Iterable[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> CheckReport:
    """Check a text environment against :data:`RULES`.

    ``target`` is an id (of the hub or of Gymnasium) or a function that makes a new environment; ``kwargs`` go to it.
    Rules that need what only a :class:`~roll_envs.env.TextEnv` has are skipped for others, and say so. Raises
    :class:`UnknownNameError` for an unknown id, rule or argument; a broken environment never raises, it fails.
    """
    chosen = list(RULES) if rules is None else list(rules)
    for name in chosen:
        if name not in RULES:
            raise UnknownNameError("rule", name, RULES)
    name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
    found = _card_of(target, card)
    # A partial of a module's function, unlike a closure, can be pickled for another process.
    make = functools.partial(_bare, target, dict(kwargs or {}), found)
    subject = Subject(name=name, make=make, seeds=tuple(seeds), card=found, varied=card is None and bool(kwargs))
    if not subject.seeds:
        raise RollError("check_env needs at least one seed")
    _refuse_wrong_arguments(make)
    results = []
    for rule in chosen:
        results.append(_apply(rule, subject))
        if on_result is not None:
            on_result(results[-1])
    return CheckReport(name=subject.name, results=tuple(results))


def _bare(target: str | MakeEnv, kwargs: Mapping[str, Any], card: EnvironmentCard | None) -> AnyEnv:
    """A new environment without Gymnasium's checking wrappers; also called in other processes."""
    if callable(target):
        env = target(**kwargs)
    else:
        if card is not None and card.id not in registry.ENVIRONMENTS:
            registry.register(card)  # in another process, for a card that was registered in this one only
        env = registry.build(target, kwargs)
    while isinstance(env, PassiveEnvChecker | OrderEnforcing):
        env = env.env
    return env


def _refuse_wrong_arguments(make: MakeEnv) -> None:
    """An argument that does not exist or is refused is the caller's mistake, not a finding."""
    try:
        make().close()
    except (ConfigError, UnknownNameError):
        raise
    except Exception:  # code of others: the rules will find it, and say where
        return


def _card_of(target: str | MakeEnv, given: EnvironmentCard | None) -> EnvironmentCard | None:
    if given is not None or not isinstance(target, str):
        return given
    try:
        return registry.card(target)
    except UnknownNameError:
        if target.rpartition(":")[2] not in gymnasium.registry:
            raise
        return None


def _apply(name: str, subject: Subject) -> CheckResult:
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # prints and warnings of the environment are not the report's
            return CheckResult(rule=name, status="pass", detail=RULES[name](subject))
    except Failure as failure:
        return CheckResult(rule=name, status="fail", detail=str(failure))
    except Skip as why:
        return CheckResult(rule=name, status="skip", detail=str(why))
    except Exception as error:  # code of others: whatever it raises is a finding
        place = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {str(error)[:300]} (at {place.filename}:{place.lineno})"
        return CheckResult(rule=name, status="fail", detail=detail)
