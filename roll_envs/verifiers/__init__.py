"""Verifiers: pure judges of answers, by name."""

from roll_envs.verifiers.types import Failed, Score, Verdict, Verifier

__all__ = ["Failed", "Score", "Verdict", "Verifier"]
