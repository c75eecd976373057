"""Every rule by name, and the applying of one: whatever the environment's code raises is a finding."""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from dataclasses import dataclass
from typing import Literal

from roll_envs.testing.rules import INTERFACE_RULES
from roll_envs.testing.rules_answers import ANSWER_RULES
from roll_envs.testing.rules_determinism import DETERMINISM_RULES
from roll_envs.testing.rules_effects import EFFECT_RULES
from roll_envs.testing.rules_game import GAME_RULES
from roll_envs.testing.rules_tasks import TASK_RULES
from roll_envs.testing.trace import Failure, Rule, Skip, Subject

RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rules in (INTERFACE_RULES, DETERMINISM_RULES, EFFECT_RULES, TASK_RULES, ANSWER_RULES, GAME_RULES)
    for rule in rules
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


def apply(name: str, subject: Subject) -> CheckResult:
    """Apply one rule; never raises for what the environment does."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # prints and warnings of the environment are not the report's
            return CheckResult(rule=name, status="pass", detail=RULES[name](subject))
    except Failure as failure:
        return CheckResult(rule=name, status="fail", detail=str(failure))
    except Skip as why:
        return CheckResult(rule=name, status="skip", detail=str(why))
    except (Exception, SystemExit) as error:  # code of others: whatever it raises is a finding
        return CheckResult(rule=name, status="fail", detail=found_in(error))


def found_in(error: BaseException) -> str:
    """An error of others in one line, with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:300]} (at {place.filename}:{place.lineno})"
