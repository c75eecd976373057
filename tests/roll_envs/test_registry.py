"""The registry: Gymnasium's ways in, roll_envs.make, and errors that name the nearest ids."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium
import pytest

import roll_envs
from roll_envs import AnyText, EnvironmentCard, registry
from roll_envs.env_registry import make_within
from roll_envs.testing import COUNTER_CARD, CounterEnv, EchoEnv

SOKOBAN = "roll/SimpleSokoban-v0"


class HalfText(gymnasium.Env[str, int]):
    """Shows texts, but takes numbers."""

    observation_space = gymnasium.spaces.Text(8)  # type: ignore[assignment]
    action_space = gymnasium.spaces.Discrete(2)  # type: ignore[assignment]
    closed = 0

    def close(self) -> None:
        HalfText.closed += 1


@pytest.fixture
def counter() -> Iterator[str]:
    roll_envs.register(COUNTER_CARD)
    yield COUNTER_CARD.id
    roll_envs.unregister(COUNTER_CARD.id)


@pytest.mark.parametrize("name", [SOKOBAN, f"roll_envs:{SOKOBAN}"])
def test_gymnasium_makes_it(name: str) -> None:
    env = gymnasium.make(name, max_turns=3, render_mode="ansi")
    observation, _ = env.reset(seed=1)
    assert observation in env.observation_space
    assert env.render() == observation
    assert env.unwrapped.max_turns == 3


def test_make_gives_the_bare_environment(counter: str) -> None:
    env = roll_envs.make(counter, highest=2)
    assert type(env) is CounterEnv
    assert env.highest == 2
    assert type(roll_envs.make(f"roll_envs:{SOKOBAN}")) is type(roll_envs.make(SOKOBAN))
    # Of one that takes no render mode, too.
    assert gymnasium.make(counter, render_mode="ansi").unwrapped.render_mode == "ansi"


def test_the_spec_is_serialisable_and_makes_the_same_environment() -> None:
    for env in (gymnasium.make(SOKOBAN, max_turns=4), roll_envs.make(SOKOBAN, max_turns=4)):
        assert env.spec is not None
        spec = gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())
        again = gymnasium.make(spec)
        assert again.unwrapped.max_turns == 4
        assert again.reset(seed=5)[0] == env.reset(seed=5)[0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Gymnasium forks
@pytest.mark.parametrize(
    ("mode", "options"),
    [("sync", {}), ("async", {}), ("async", {"context": "spawn"}), ("async", {"shared_memory": False})],
    ids=str,
)
def test_vector_environments(mode: str, options: dict[str, object]) -> None:
    envs = gymnasium.make_vec(SOKOBAN, num_envs=2, vectorization_mode=mode, vector_kwargs=options)
    single = roll_envs.make(SOKOBAN)
    try:
        first, _ = envs.reset(seed=[3, 4])
        assert tuple(first) == (single.reset(seed=3)[0], single.reset(seed=4)[0])
        answers = [single.action_format.format([a]) for a in (0, 2)]
        shown, rewards, *_ = envs.step(answers)
        single.reset(seed=3)
        assert shown[0] == single.step(answers[0])[0]
        single.reset(seed=4)
        assert shown[1] == single.step(answers[1])[0]
        assert len(rewards) == 2
        assert tuple(first) != tuple(shown)  # the first observations were copied, not views of shared memory
    finally:
        envs.close()


def test_an_unknown_id_names_the_nearest() -> None:
    with pytest.raises(roll_envs.UnknownNameError, match=f"did you mean '{SOKOBAN}'"):
        roll_envs.make("roll/Sokobann-v0")
    with pytest.raises(roll_envs.UnknownNameError, match=f"did you mean '{SOKOBAN}'"):
        roll_envs.make("SimpleSokoban")
    with pytest.raises(roll_envs.UnknownNameError, match="known: "):
        roll_envs.make("zzzzzz")
    with pytest.raises(gymnasium.error.NameNotFound, match="SimpleSokoban"):
        gymnasium.make("roll/Sokobann-v0")


def test_another_or_no_version_is_an_error_that_says_which_there_are() -> None:
    with pytest.raises(roll_envs.UnknownNameError, match=rf"{SOKOBAN}.*ids end in a version"):
        roll_envs.make("roll/SimpleSokoban")
    with pytest.raises(roll_envs.UnknownNameError, match=SOKOBAN):
        roll_envs.make("roll/SimpleSokoban-v7")
    with pytest.raises(gymnasium.error.VersionNotFound, match="`v0`"):
        gymnasium.make("roll/SimpleSokoban-v7")


def test_an_unknown_argument_names_the_nearest() -> None:
    for make in (roll_envs.make, gymnasium.make):
        with pytest.raises(
            roll_envs.UnknownNameError,
            match=f"setting of environment '{SOKOBAN}': 'max_turn'; did you mean 'max_turns'",
        ):
            make(SOKOBAN, max_turn=3)


def test_a_module_before_the_colon_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_module.py").write_text(
        "from dataclasses import replace\nimport roll_envs\nfrom roll_envs.testing import COUNTER_CARD\n"
        "roll_envs.register(replace(COUNTER_CARD, id='my/Counter-v0'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(roll_envs.make("my_module:my/Counter-v0"), CounterEnv)
    assert gymnasium.make("my_module:my/Counter-v0").reset(seed=1)
    roll_envs.unregister("my/Counter-v0")
    with pytest.raises(roll_envs.PluginError, match="cannot import 'no_such_module'"):
        roll_envs.make("no_such_module:x/Y-v0")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "beside_me.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])  # as in an installed command
    with pytest.raises(roll_envs.PluginError, match="'beside_me' is in the current folder"):
        roll_envs.make("beside_me:x/Y-v0")


def test_an_id_of_a_package_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll_envs.providers.provided", dict)
    with pytest.raises(roll_envs.UnknownNameError, match=r"the package behind textarena/\.\.\. is not installed"):
        roll_envs.make("textarena/Sudoku-easy-v0")


def test_register_refuses_a_taken_or_malformed_id(counter: str) -> None:
    roll_envs.register(COUNTER_CARD)  # the same card again is no mistake
    with pytest.raises(roll_envs.ConfigError, match="exists already"):
        roll_envs.register(replace(COUNTER_CARD, summary="another"))
    roll_envs.register(replace(COUNTER_CARD, summary="another"), replace=True)
    assert roll_envs.card(counter).summary == "another"
    with pytest.raises(roll_envs.ConfigError, match="does not fit; allowed: "):
        roll_envs.register(replace(COUNTER_CARD, id="Counter"))
    with pytest.raises(roll_envs.ConfigError, match="roll-envs"):
        roll_envs.register(replace(COUNTER_CARD, id=SOKOBAN))


def test_unregister_forgets_it(counter: str) -> None:
    roll_envs.unregister(counter)
    assert counter not in gymnasium.registry
    with pytest.raises(roll_envs.UnknownNameError):
        roll_envs.unregister(counter)
    roll_envs.register(COUNTER_CARD)


def test_a_class_that_is_missing_is_reported(counter: str) -> None:
    roll_envs.register(replace(COUNTER_CARD, entry_point="roll_envs.testing.fakes:Missing"), replace=True)
    with pytest.raises(roll_envs.PluginError, match=r"test/Counter-v0.*Missing"):
        roll_envs.make(counter)


def test_a_class_that_failed_is_listed_as_broken_until_it_can_be_loaded(
    counter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    roll_envs.register(replace(COUNTER_CARD, entry_point="late_game:Game"), replace=True)
    with pytest.raises(roll_envs.PluginError, match="No module named 'late_game'"):
        roll_envs.make(counter)
    (listed,) = [r for r in roll_envs.environments() if r.id == counter]
    assert (listed.state, listed.reason) == ("broken", "ModuleNotFoundError: No module named 'late_game'")
    (tmp_path / "late_game.py").write_text("from roll_envs.testing import CounterEnv as Game")
    importlib.invalidate_caches()
    roll_envs.make(counter)
    (listed,) = [r for r in roll_envs.environments() if r.id == counter]
    assert (listed.state, listed.reason) == ("ready", "")


def test_an_entry_point_without_a_class_is_reported(counter: str) -> None:
    roll_envs.register(replace(COUNTER_CARD, entry_point="roll_envs.testing.fakes"), replace=True)
    with pytest.raises(roll_envs.PluginError, match=r"'roll_envs.testing.fakes' names no class; write 'module:Class'"):
        roll_envs.make(counter)


def test_a_plain_gymnasium_environment_of_texts_is_made(counter: str) -> None:
    roll_envs.register(replace(COUNTER_CARD, entry_point="roll_envs.testing.fakes:EchoEnv"), replace=True)
    env = roll_envs.make(counter, max_turns=2)
    assert type(env) is EchoEnv
    env.reset(seed=1)
    assert env.step("a")[0] == "a"
    assert env.step("b")[3]
    assert not hasattr(env, "instructions")
    assert gymnasium.make(counter).reset(seed=1)


def test_an_environment_that_only_gymnasium_knows_is_made() -> None:
    gymnasium.register("only/Echo-v0", entry_point=EchoEnv, max_episode_steps=2)
    try:
        env = roll_envs.make("only/Echo-v0", max_turns=5)
        assert env.reset(seed=1) == EchoEnv().reset(seed=1)
        assert [env.step(said)[3] for said in "ab"] == [False, True]  # Gymnasium's own limit holds
        assert type(env.unwrapped) is EchoEnv
        assert env.unwrapped.max_turns == 5
        with pytest.raises(roll_envs.UnknownNameError, match="did you mean 'only/Echo-v0'"):
            roll_envs.make("only/Eco-v0")
    finally:
        gymnasium.registry.pop("only/Echo-v0")


def test_an_environment_without_texts_is_refused_with_its_spaces() -> None:
    with pytest.raises(roll_envs.ConfigError, match=r"'CartPole-v1' has the observation_space Box\(.*not text"):
        roll_envs.make("CartPole-v1")
    gymnasium.register("half/Text-v0", entry_point=HalfText)
    try:
        with pytest.raises(roll_envs.ConfigError, match=r"'half/Text-v0' has the action_space Discrete\(2\)"):
            roll_envs.make("half/Text-v0")
        assert HalfText.closed == 1
    finally:
        gymnasium.registry.pop("half/Text-v0")


def test_states() -> None:
    states = {r.id: r.state for r in roll_envs.environments(load=True)}
    assert states[SOKOBAN] == "ready"
    assert json.dumps(states)
    assert roll_envs.card(SOKOBAN).id == SOKOBAN


def test_metadata_are_looked_at_again_only_where_a_name_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(registry, "_times", lambda: looked.append(1) or (len(looked),))
    roll_envs.card(SOKOBAN)
    before = len(looked)  # 0, or 1 where sys.path is another than it was at the last look
    roll_envs.make(SOKOBAN)
    roll_envs.make_verifier("exact")
    assert len(looked) == before
    with pytest.raises(roll_envs.UnknownNameError):
        roll_envs.make("roll/NoSuchGame-v0")
    assert len(looked) > before


def test_discovering_again_changes_nothing(counter: str) -> None:
    before = roll_envs.environments()
    roll_envs.discover()
    assert roll_envs.environments() == before


def test_a_text_longer_than_the_shared_memory_names_the_way_out() -> None:
    from gymnasium.vector.utils.shared_memory import (
        create_shared_memory,
        read_from_shared_memory,
        write_to_shared_memory,
    )

    from roll_envs.env import MAX_BYTES

    space = roll_envs.AnyText()
    memory = create_shared_memory(space, n=2)
    view = read_from_shared_memory(space, memory, n=2)
    for text in ("", "é √ \ud800", "x" * MAX_BYTES, "\x00.\x00", "."):
        write_to_shared_memory(space, 1, text, memory)
        assert list(view) == ["", text]
        assert view[-1] == text
        assert type(view[-1]) is str
    assert (view[:], view[1:], copy.deepcopy(view)) == (("", "."), (".",), ("", "."))
    with pytest.raises(IndexError):
        _ = view[2]
    with pytest.raises(ValueError, match="'shared_memory': False"):
        write_to_shared_memory(space, 0, "x" * (MAX_BYTES + 1), memory)


# -- a making that hangs -----------------------------------------------------------------------------------------------


def test_a_making_that_hangs_or_fails_is_told_within_its_time() -> None:
    class Hangs(CounterEnv):
        def __init__(self, *, how: str) -> None:
            if how == "hang":
                time.sleep(60)
            if how == "late":
                raise TimeoutError("of its own")
            if how == "exit":
                sys.exit(0)
            super().__init__()

    module = types.ModuleType("hanging")
    module.Hangs = Hangs  # type: ignore[attr-defined]
    sys.modules["hanging"] = module
    card = EnvironmentCard(
        id="test/Hangs-v0", entry_point="hanging:Hangs", summary="-", tests="-", turns="-", reward_range=(0.0, 1.0),
        rewards="-", success="-",
    )  # fmt: skip
    roll_envs.register(card)
    try:
        assert isinstance(make_within(5, card.id, {"how": "well"}), CounterEnv)
        with pytest.raises(roll_envs.DeadlineExceededError, match=r"the making of test/Hangs-v0 after 0\.2 s"):
            make_within(0.2, card.id, {"how": "hang"})
        with pytest.raises(TimeoutError, match="of its own"):
            make_within(5, card.id, {"how": "late"})
        with pytest.raises(
            roll_envs.EnvironmentFaultError, match=r"the making of test/Hangs-v0 raised SystemExit\(0\)"
        ):
            make_within(5, card.id, {"how": "exit"})
        with pytest.raises(roll_envs.UnknownNameError):
            make_within(5, card.id, {"what": 1})
    finally:
        roll_envs.unregister(card.id)
        del sys.modules["hanging"]


def test_vector_environments_may_mix_environments_of_text() -> None:
    """Gymnasium compares their spaces, and examples are not part of one."""
    assert AnyText(("a",)) == AnyText(("b",)) != gymnasium.spaces.Text(5)
    assert hash(AnyText(("a",))) == hash(AnyText())
    forms = ("answer", "word")
    both = gymnasium.vector.SyncVectorEnv(
        [functools.partial(roll_envs.make, "roll/SimpleSokoban-v0", action_format=form) for form in forms]
    )
    assert len(both.reset(seed=0)[0]) == 2
    assert list(both.step(("<answer>Up</answer>", "Up"))[4]["action_is_valid"]) == [True, True]
    both.close()
