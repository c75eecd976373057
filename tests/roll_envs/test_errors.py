"""The exception tree: picklable, one base, messages that say what to do."""

from __future__ import annotations

import copy
import pickle

import pytest

from roll_envs import errors
from roll_envs.errors import (
    DeadlineExceededError,
    MissingExtraError,
    PluginError,
    RollError,
    UnknownNameError,
    nearest,
)

NAMES = {
    name for name, found in vars(errors).items() if isinstance(found, type) and found.__module__ == errors.__name__
}
EXAMPLES = [
    *(
        getattr(errors, name)("what happened")
        for name in sorted(NAMES)
        if name not in ("DeadlineExceededError", "UnknownNameError", "MissingExtraError")
    ),
    DeadlineExceededError("the engine's answer", 1.5),
    UnknownNameError("environment", "roll/Sokobann-v0", ["roll/SimpleSokoban-v0"], "(a hint)"),
    MissingExtraError("training", "train"),
]


def test_every_error_has_an_example() -> None:
    assert {type(e).__name__ for e in EXAMPLES} == NAMES


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_errors_cross_processes_unchanged(error: RollError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.args == error.args
        assert vars(again) == vars(error)
    assert isinstance(error, RollError)


def test_messages() -> None:
    assert str(DeadlineExceededError("the engine", 1.5)) == "gave up waiting for the engine after 1.5 s"
    assert "pip install 'roll-envs[train]'" in str(MissingExtraError("training", "train"))
    known = ["roll/SimpleSokoban-v0", "roll/FrozenLake-v0"]
    said = str(UnknownNameError("environment", "roll/Sokobann-v0", known))
    assert said.startswith("no environment 'roll/Sokobann-v0'; did you mean 'roll/SimpleSokoban-v0'")
    said = str(UnknownNameError("engine", "zzz", known))
    assert said == "no engine 'zzz'; known: 'roll/FrozenLake-v0', 'roll/SimpleSokoban-v0'"
    assert str(UnknownNameError("engine", "zzz", [])) == "no engine 'zzz'; known: none"
    assert isinstance(MissingExtraError("x", "y"), ImportError)
    assert issubclass(PluginError, RollError)


def test_nearest_ignores_case() -> None:
    assert nearest("GRPO", ["grpo", "gigpo", "ppo"])[0] == "grpo"
    assert nearest("zzz", ["grpo"]) == []
