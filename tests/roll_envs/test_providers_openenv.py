"""Environments of OpenEnv servers, against a server that speaks their wire format."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import openenv_server
import pytest

import roll_envs
from roll_envs.cli import main
from roll_envs.testing import check_env

ID = "roll/OpenEnv-v0"


@pytest.fixture(scope="module")
def guess() -> Iterator[str]:
    with openenv_server.serving(openenv_server.Guess) as url:
        yield url


def say(env: Any, text: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] = env.step(env.action_format.write(text))
    return found


def test_a_game_is_played_to_its_end(guess: str) -> None:
    env = roll_envs.make(ID, url=guess, reset={"below": 4}, instructions="Find the number.")
    shown, info = env.reset(seed=3)
    assert (shown, info) == ("A number below 4.", {"success": False})
    assert "Find the number." in env.instructions
    assert "the number you think of" in env.instructions
    seen = []
    for number in range(4):
        shown, reward, terminated, _, info = say(env, str(number))
        seen.append((shown, reward, terminated))
        if terminated:
            break
    assert seen[-1] == ("Right.", 1.0, True)
    assert all(each == ("Higher.", 0.0, False) for each in seen[:-1])
    assert info["success"]
    assert info["reward_parts"] == {"game": 1.0, "format": 0.0}
    env.reset(seed=3)
    assert env.unwrapped._paid == 0.0  # by which a server that does not tell of success is understood
    env.close()


def test_a_seed_is_an_episode_whatever_was_played_before(guess: str) -> None:
    env, other = (roll_envs.make(ID, url=guess) for _ in range(2))
    answers: list[list[str]] = []
    for one in (env, other, env):
        one.reset(seed=8)
        answers.append([say(one, text)[0] for text in ("5", "-1", "0")])
        one.reset(seed=9)
    assert answers[0] == answers[1] == answers[2]
    begun: set[str] = set()
    for seed in range(8):
        env.reset(seed=seed)
        begun.add(say(env, "5")[0])
    assert len(begun) > 1  # the server is sent the seed
    env.close()
    other.close()


def test_what_the_server_refuses_is_an_answer_that_is_not_valid(guess: str) -> None:
    env = roll_envs.make(ID, url=guess, format_penalty=-0.5, max_turns=5)
    env.reset(seed=1)
    for text, why in (("many", "is not JSON"), ("1.5", "number: Input should be a valid integer"), ("-2", "number: ")):
        shown, reward, terminated, _, info = say(env, text)
        assert why in shown
        assert (reward, terminated, info["action_is_valid"]) == (0.0, False, False)
    shown, reward, *_ = env.step("5, I think")
    assert (reward, shown) == (-0.5, shown)
    assert env.step(env.action_format.write("no"))[3]  # five turns
    env.close()


def test_several_fields_are_a_json_object() -> None:
    with openenv_server.serving(openenv_server.Move) as url:
        env = roll_envs.make(ID, url=url)
        assert '"sure"' in env.instructions
        env.reset(seed=2)
        assert say(env, '{"number": 50, "sure": true}')[0] == "Lower."
        assert "it must be a JSON object" in say(env, "50")[0]
        assert "sure: Field required" in say(env, '{"number": 50}')[0]
        env.close()
        one = roll_envs.make(ID, url=url, action_field="number")
        one.reset(seed=2)
        assert "sure: Field required" in say(one, "50")[0]
        one.close()
        with pytest.raises(roll_envs.ConfigError, match=r"'numbr'; the action of .* has 'number', 'sure'"):
            roll_envs.make(ID, url=url, action_field="numbr")


def test_a_field_of_listed_values_is_named_and_read() -> None:
    with openenv_server.serving(openenv_server.Turn) as url:
        env = roll_envs.make(ID, url=url)
        assert "the action's field direction (where to), one of left, turn right." in env.instructions
        assert env.action_space.examples == ("<answer>left</answer>", "<answer>turn right</answer>")
        env.reset(seed=2)
        shown, _, _, _, info = say(env, "up")
        assert shown == "The action cannot be read: 'up' is not one of left, turn right"
        assert not info["action_is_valid"]
        assert say(env, "turn right")[0] == "Lower."
        env.close()
        speed = roll_envs.make(ID, url=url, action_field="speed")  # numbers, in an alternative that is a reference
        assert speed.action_space.examples == ("<answer>1</answer>", "<answer>2</answer>")
        speed.reset(seed=2)
        assert "direction: Field required" in say(speed, "2")[0]
        assert "'3' is not one of 1, 2" in say(speed, "3")[0]
        speed.close()
        gear = roll_envs.make(ID, url=url, action_field="gear")  # values whose texts are the same
        assert gear.action_space.examples == ("<answer>1</answer>", '<answer>"1"</answer>')
        assert gear.action_format.example == "1"
        gear.reset(seed=2)
        for text, value in (("1", 1), ('"1"', "1")):
            assert gear.unwrapped._action(text) == {"gear": value}
        gear.close()


@contextlib.contextmanager
def sending(*parts: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """The address of a server that sends these bytes to whoever connects, the last again and again."""
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as held:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection = held.enter_context(server.accept()[0])
                connection.recv(4096)
                for part in itertools.chain(parts, itertools.repeat(parts[-1]) if pause_s else ()):
                    connection.sendall(part)
                    time.sleep(pause_s)
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        held.close()
    thread.join(10)


@pytest.mark.parametrize("parts", [(b"HTTP/1.1 200 OK\r\n", b"x-header: 1\r\n"), (b"HTTP/1.1 200 OK\r\n\r\n", b" ")])
def test_a_schema_that_comes_in_drops_meets_the_deadline(parts: tuple[bytes, ...]) -> None:
    start = time.monotonic()
    expected = pytest.raises(roll_envs.DeadlineExceededError, match=r"the answer of .*/schema after 1 s")
    with sending(*parts, pause_s=0.05) as url, expected:
        roll_envs.make(ID, url=url, timeout_s=1.0)
    assert time.monotonic() - start < 15


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("[1]", "no schema of an action"),
        ("[" * 200_000, "no schema of an action"),
        ('{"action": null}', "no schema of an action"),
        ('{"action": {"oneOf": [{}]}}', "it has no 'properties', but 'oneOf'"),
        ('{"action": {"properties": [1]}}', "is not of type 'object'"),
        ('{"action": {"properties": {"a": 7}}}', "7 is not of type 'object', 'boolean'"),
        ('{"action": {"properties": {"a": {"enum": 7}}}}', "7 is not of type 'array'"),
        ('{"action": {"properties": {"a": {"anyOf": "x"}}}}', "'x' is not of type 'array'"),
        ('{"action": {"properties": {"a": {}}, "required": [["a"]]}}', "is not of type 'string'"),
        ('{"action": {"properties": {"a": {"$ref": "#/$defs/None"}}}}', "'#/.defs/None' leads nowhere"),
        ('{"action": {"properties": {"a": {"$ref": "#/properties/a"}}}}', "'#/properties/a' leads nowhere"),
        ('{"action": {"properties": {"a": {"$ref": "http://x/y"}}}}', "'http://x/y' leads nowhere"),
    ],
    ids=range(12),
)
def test_a_schema_that_makes_no_sense_is_a_fault(schema: str, says: str) -> None:
    reply = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + schema.encode()
    with sending(reply) as url, pytest.raises(roll_envs.EnvironmentFaultError, match=f"/schema has .*{says}"):
        roll_envs.make(ID, url=url, timeout_s=20.0)


def test_a_schema_of_free_fields_is_read() -> None:
    schema = b'{"action": {"properties": {"a": true, "b": {"allOf": [{"const": "x"}]}}, "required": ["b"]}}'
    with sending(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + schema) as url:
        assert "field b, one of x." in roll_envs.make(ID, url=url, timeout_s=20.0).instructions


def test_a_failure_of_the_environment_is_no_reward() -> None:
    with openenv_server.serving(openenv_server.Say) as url:
        env = roll_envs.make(ID, url=url)
        env.reset(seed=1)
        with pytest.raises(roll_envs.EnvironmentFaultError, match="failed at step: EXECUTION_ERROR: invalid literal"):
            say(env, "fifty")
        assert env.reset(seed=1)[0] == "A number below 10."  # a session begun anew
        assert say(env, "50")[0] == "Lower."
        env.close()
        wrong = roll_envs.make(ID, url=url, observation_field="picture")
        with pytest.raises(roll_envs.ConfigError, match=r"'picture'; the observation of .* has 'text'"):
            wrong.reset(seed=1)
        wrong.close()


def test_a_server_that_does_not_answer_is_named(guess: str) -> None:
    with pytest.raises(roll_envs.EnvironmentFaultError, match=r"127.0.0.1:9/schema does not answer"):
        roll_envs.make(ID, url="http://127.0.0.1:9", timeout_s=5.0)
    for url in ("guess", "ftp://here", "http://"):
        with pytest.raises(roll_envs.ConfigError, match="give the server's address"):
            roll_envs.make(ID, url=url)
    with pytest.raises(roll_envs.ConfigError, match="url"):
        roll_envs.make(ID)
    env = roll_envs.make(ID, url=guess, timeout_s=1.0)
    env.reset(seed=1)
    start = time.monotonic()
    with pytest.raises(roll_envs.DeadlineExceededError, match=f"the answer of {guess} to step after 1 s"):
        say(env, "999")
    assert time.monotonic() - start < 15
    assert env.reset(seed=1)[0] == "A number below 10."
    env.close()


def test_a_server_that_is_full_or_gone_says_so() -> None:
    with openenv_server.serving(openenv_server.Guess, sessions=1) as url:
        first, second = (roll_envs.make(ID, url=url.replace("http", "ws")) for _ in range(2))
        first.reset(seed=1)
        with pytest.raises(roll_envs.EnvironmentFaultError, match=r"CAPACITY_REACHED.*max_concurrent"):
            second.reset(seed=1)
        first.close()
        for _ in range(100):  # the server notices in its own time
            try:
                second.reset(seed=1)
                break
            except roll_envs.EnvironmentFaultError:
                time.sleep(0.1)
        else:
            raise AssertionError("the session was not given back")
    with pytest.raises(roll_envs.EnvironmentFaultError, match="broke at step"):
        say(second, "1")
    with pytest.raises(roll_envs.EnvironmentFaultError, match="is the server running"):
        second.reset(seed=1)
    first.close()
    second.close()


@pytest.mark.parametrize(
    "answer",
    [
        "[1]",
        "null",
        "{}",
        "[" * 200_000,
        '{"type": "observation", "data": null}',
        '{"type": "error", "data": "full"}',
        '{"type": "observation", "data": {"observation": "plain"}}',
        '{"type": "observation", "data": {"reward": "much"}}',
        '{"type": "observation", "data": {"reward": NaN}}',
        '{"type": "observation", "data": {"reward": -Infinity}}',
        f'{{"type": "observation", "data": {{"reward": 1{"0" * 400}}}}}',
        '{"type": "observation", "data": {"done": "false"}}',
    ],
    ids=range(12),
)
def test_an_answer_that_is_no_answer_is_a_fault(guess: str, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = roll_envs.make(ID, url=guess)
    env.reset(seed=1)
    with monkeypatch.context() as patch:
        patch.setattr("websockets.sync.client.ClientConnection.recv", lambda self, timeout: answer)
        with pytest.raises(roll_envs.EnvironmentFaultError, match="broke at step"):
            say(env, "5")
    with pytest.raises(gymnasium.error.ResetNeeded, match="is over"):
        say(env, "5")
    assert env.reset(seed=1)[0] == "A number below 10."
    env.close()


def test_sessions_are_played_side_by_side(guess: str) -> None:
    def solve(seed: int) -> float:
        env = roll_envs.make(ID, url=guess)
        env.reset(seed=seed)
        low, high, total = 0, 9, 0.0
        while True:
            middle = (low + high) // 2
            shown, reward, over, _, _ = say(env, str(middle))
            total += float(reward)
            if over:
                env.close()
                return total
            low, high = (middle + 1, high) if shown == "Higher." else (low, middle - 1)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(solve, range(24))) == [1.0] * 24


def test_passes_the_check(guess: str) -> None:
    report = check_env(ID, kwargs={"url": guess}, seeds=range(2))
    assert report.ok, str(report)


def test_check_all_leaves_out_what_needs_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only = [each for each in roll_envs.environments() if each.id == ID]
    monkeypatch.setattr("roll_envs.env_registry.environments", lambda **_: only)
    assert main(["check", "--all"]) == 0
    assert "it needs settings of yours (--kwargs): url" in capsys.readouterr().out
