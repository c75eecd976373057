"""Verifiers: functions that judge answers, made by name.

    verifier = make_verifier("math")
    verdict = verifier("so it is \\\\boxed{1/2}", "0.5")       # a Score, or Failed when there is no verdict

``docs/verifiers.md`` lists the names. Importing this package imports no verifier; each comes with its first use.
"""

from roll_envs.verifiers.judging import ajudge, close_verifier, judge
from roll_envs.verifiers.registry import as_verifier, make_verifier, register_verifier, verifier_names
from roll_envs.verifiers.types import Failed, Score, Verdict, Verifier

__all__ = [
    "Failed",
    "Score",
    "Verdict",
    "Verifier",
    "ajudge",
    "as_verifier",
    "close_verifier",
    "judge",
    "make_verifier",
    "register_verifier",
    "verifier_names",
]
