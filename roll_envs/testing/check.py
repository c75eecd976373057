"""check_env: the validator for text environments, as a table of named rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from roll_envs.env import AnyEnv, EnvironmentCard
from roll_envs.errors import ConfigError, RollError, UnknownNameError
from roll_envs.testing.process import Request, known_here, results
from roll_envs.testing.table import RULES, CheckResult

__all__ = ["RULES", "CheckReport", "CheckResult", "check_env"]

TIMEOUT_S = 60.0
"""How long one rule may take."""
_LONGEST_S = 1e6


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
    timeout_s: float = TIMEOUT_S,
    on_result: Callable[[CheckResult], None] | None = None,
) -> CheckReport:
    """Check a text environment against :data:`RULES`, in a process of its own.

    ``target`` is an id (of the hub or of Gymnasium) or a function that makes a new environment; ``kwargs`` go to it. A
    rule that is not done in ``timeout_s`` fails with the place where the environment was, and those after it are
    skipped; one that ends the process fails, and the next one gets a new process.
    Rules that need what only a :class:`~roll_envs.env.TextEnv` has are skipped for others, and say so. Raises
    :class:`UnknownNameError` for an unknown id, rule or argument; a broken environment never raises, it fails.
    """
    chosen = list(RULES) if rules is None else list(dict.fromkeys(rules))
    for name in chosen:
        if name not in RULES:
            raise UnknownNameError("rule", name, RULES)
    if not 0 < timeout_s < _LONGEST_S:
        raise ConfigError(f"timeout_s must be above 0 and below {_LONGEST_S:g}, not {timeout_s}")
    request = Request(
        target=target,
        kwargs=dict(kwargs or {}),
        card=card,
        known=known_here(target),
        seeds=tuple(seeds),
        rules=tuple(chosen),
        timeout_s=timeout_s,
    )
    if not request.seeds:
        raise RollError("check_env needs at least one seed")
    found = []
    for result in results(request):
        found.append(result)
        if on_result is not None:
            on_result(result)
    return CheckReport(name=request.name, results=tuple(found))
