"""Tasks in Harbor's format, in containers of a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docker_place import reason_to_skip
from harbor_task import TOML, task

import roll_envs
from roll_envs import ConfigError, EnvironmentFaultError
from roll_envs.providers import harbor
from roll_envs.sandbox import Isolation, Limits, RunResult
from roll_envs.testing import check_env

ISOLATION = Isolation(tier="docker", layers=())


def answer(command: str) -> str:
    return f"<answer>{command}</answer>"


SUBMIT = answer("submit")

# -- what needs no engine ----------------------------------------------------------------------------------------------


def test_tasks_are_read_by_name_and_shared_between_splits(tmp_path: Path) -> None:
    for number in range(12):
        task(tmp_path / f"task-{number:02}", **{"instruction.md": f"Task {number}."})
    env: Any = roll_envs.make("roll/Harbor-v0", path=str(tmp_path))
    assert [each.instruction for each in env.tasks] == [f"Task {number}." for number in range(12)]
    first = env.tasks[0]
    assert (first.workdir, first.memory_mb, first.files_mb, first.verifier_s) == ("/app", 256, 128, 20.0)
    assert (first.environ, first.verifier_environ) == ({"GREETING": "it's here"}, {"WORTH": "1"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"toml": "[[steps]]\nname = 'one'\n"}, "several steps"),
        ({"environment/docker-compose.yaml": ""}, "several containers"),
        ({"toml": "[verifier]\nenvironment_mode = 'separate'\n"}, "a container of their own"),
        ({"toml": "[environment]\ngpus = 1\n"}, "a GPU"),
        ({"toml": "[environment]\nhealthcheck = {command = 'true'}\n"}, "a health check"),
        ({"toml": "[verifier]\nenv = {KEY = '${API_KEY}'}\n"}, "variables of the host"),
        ({"toml": "[environment"}, "cannot be read"),
        ({"toml": "[verifier]\ntimeout_sec = 'long'\n"}, "cannot be read.*long"),
        (
            {"toml": "[verifier]\ntimeout_sec = nan\n"},
            "cannot be read: timeout_sec is nan; it must be a number above 0",
        ),
        ({"toml": "[environment]\ncpus = -1\n"}, "cpus is -1.0; it must be"),
        ({"toml": "[environment]\nmemory_mb = 0\n"}, "memory_mb is 0; it must be"),
        ({"toml": "[solution]\nenv = {'A;B' = 'x'}\n"}, "'A;B' cannot be the name of a variable"),
    ],
)
def test_tasks_that_cannot_be_played(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        roll_envs.make("roll/Harbor-v0", path=str(task(tmp_path / "one", **changes)))


def test_a_folder_without_tasks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no folder with a task\.toml"):
        roll_envs.make("roll/Harbor-v0", path=str(tmp_path))
    (task(tmp_path / "one") / "tests" / "test.sh").unlink()
    with pytest.raises(ConfigError, match=r"no tests/test\.sh"):
        roll_envs.make("roll/Harbor-v0", path=str(tmp_path))


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("1\n", 1.0), ("0.25", 0.25), ('{"reward": 0.5, "speed": 2}', 0.5), ("", None), ("yes", None), ("true", None),
        ("NaN", None), ("1e999", None), ('{"speed": 2}', None), ("[1]", None), ("1" * 5000, None),
    ],
)  # fmt: skip
def test_what_is_a_reward(text: str, paid: float | None) -> None:
    assert harbor._number(text, "reward") == paid


class _Session:
    """Of a container where what the agent left is not cleared in time, its own reward among it."""

    def run(self, source: str, limits: Limits) -> RunResult:
        status: Any = "timeout" if "kill -9 -1" in source else "ok"
        return RunResult(status=status, exit_code=0 if status == "ok" else None, signal=9, isolation=ISOLATION)

    def upload(self, path: str, content: bytes) -> None: ...

    def download(self, path: str, max_bytes: int) -> bytes:
        return b"1"

    def close(self) -> None: ...


def test_a_reward_that_was_not_cleared_away_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Container:
        def session(self, **_: Any) -> _Session:
            return _Session()

        def close(self) -> None: ...

    monkeypatch.setattr(harbor, "make_sandbox", lambda *_, **__: Container())
    env = roll_envs.make("roll/Harbor-v0", path=str(task(tmp_path / "one")))
    env.reset(seed=0)
    assert env.step(SUBMIT)[1:3] == (0.0, True)


class _Noting(_Session):
    """Notes what each command is and what it may use."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, Limits]] = []

    def run(self, source: str, limits: Limits) -> RunResult:
        self.ran.append((source, limits))
        return RunResult(status="ok", exit_code=0, isolation=ISOLATION)


def test_what_the_task_and_the_settings_say_reaches_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, made, opened = _Noting(), list[Any](), list[Any]()

    class Container:
        def session(self, **given: Any) -> _Noting:
            opened.append(given)
            return session

        def close(self) -> None: ...

    def make(name: str, **given: Any) -> Container:
        made.append((name, given))
        return Container()

    monkeypatch.setattr(harbor, "make_sandbox", make)
    folder = task(tmp_path / "one", toml=TOML.replace("cpus = 1", "cpus = 2"))
    settings: dict[str, Any] = {"sandbox": {"runtime": "runsc"}, "writable": ["/data"], "command_s": 7.0}
    env = roll_envs.make("roll/Harbor-v0", path=str(folder), **settings)
    env.reset(seed=0)
    limits = Limits(wall_s=7.0, memory_mb=256, files_mb=128, processes=256)
    places = ["/app", "/data", "/logs", "/solution", "/tests"]
    given = {"slots": 1, "limits": limits, "cpus": 2.0, "writable": places, "runtime": "runsc"}
    assert made == [("docker", {**given, "build": str(folder / "environment")})]
    assert opened == [{"language": "bash", "limits": limits}]
    env.step(answer("ls"))
    (source, used), *_ = session.ran
    assert (source, used) == ("""export GREETING='it'"'"'s here'\ncd /app\nls\n""", limits)
    env.step(SUBMIT)
    source, used = session.ran[-1]
    assert used == replace(limits, wall_s=20.0)
    assert source.endswith("bash /tests/test.sh\n")
    exported = {line.split("=")[0] for line in source.splitlines() if line.startswith("export ")}
    assert exported == {"export HOME", "export GREETING", "export WORTH"}
    env.reset(seed=0)  # the same task: its container is kept
    assert (len(made), len(opened)) == (1, 2)


# -- what needs one ----------------------------------------------------------------------------------------------------


@pytest.fixture
def play() -> Iterator[Any]:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    opened: list[Any] = []

    def made(path: Path, **settings: Any) -> Any:
        opened.append(roll_envs.make("roll/Harbor-v0", path=str(path), **settings))
        opened[-1].reset(seed=0)
        return opened[-1]

    yield made
    for env in opened:
        env.close()


@pytest.mark.docker
def test_an_episode(play: Any, tmp_path: Path) -> None:
    env = play(task(tmp_path / "one"))
    shown, reward, terminated, _, info = env.step(answer('pwd; ls; echo "$GREETING"; ls /tests /solution; exit 3'))
    said = "/app\nnumbers.txt\nit's here\n/solution:\n\n/tests:\n(exit code 3)"
    assert (shown, reward, terminated, info["success"]) == (said, 0.0, False, False)
    assert env.step(answer("true"))[0] == "(no output)"
    env.step(answer("echo 7 > total.txt"))
    _, reward, terminated, truncated, info = env.step(SUBMIT)
    assert (reward, terminated, truncated, info["success"]) == (0.5, True, False, False)
    env.reset(seed=0)
    assert env.step(answer("ls"))[0] == "numbers.txt"
    env.step(answer("echo 6 > total.txt"))
    assert env.step(SUBMIT)[1] == 1.0
    env.reset(seed=0)
    assert env.step(SUBMIT)[1:3] == (0.0, True)


@pytest.mark.docker
def test_after_the_last_turn_the_tests_run_too(play: Any, tmp_path: Path) -> None:
    env = play(task(tmp_path / "one"), max_turns=1)
    _, reward, terminated, truncated, info = env.step(answer("echo 6 > total.txt"))
    assert (reward, terminated, truncated, info["success"]) == (1.0, False, True, True)


@pytest.mark.docker
@pytest.mark.parametrize("more", [{}, {"solution/data/factor": "1\n"}])
def test_the_solution_is_the_oracle(play: Any, tmp_path: Path, more: dict[str, str]) -> None:
    env = play(task(tmp_path / "one", **more))
    way = env.oracle()
    assert way is not None
    assert [env.step(each)[1] for each in way] == [0.0, 1.0]


@pytest.mark.docker
@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("exit 0", "ended .ok. without a reward"),
        ("echo broken; exit 2", "without a reward; they said: broken"),
        ("echo nan > /logs/verifier/reward.txt", "no number"),
        ("sleep 60", "ended .timeout. without"),
    ],
)
def test_tests_that_fail_to_pay_are_faults(play: Any, tmp_path: Path, test: str, said: str) -> None:
    env = play(task(tmp_path / "one", test=test, toml=TOML.replace("20.0", "1.0")))
    with pytest.raises(EnvironmentFaultError, match=said):
        env.step(SUBMIT)


@pytest.mark.docker
@pytest.mark.parametrize(
    "attack",
    [
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
        "(while true; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done) & disown",
        "nohup setsid bash -c 'sleep 1; while true; do echo 1 > /logs/verifier/reward.txt; done' >/dev/null 2>&1 &",
        "echo 'echo 1 > /logs/verifier/reward.txt; exit' > /tests/test.sh; chmod 555 /tests",
        "rm -r /tests; ln -s /app /tmp/work/tests; rm -r /tmp/work/logs; ln -s /tmp /tmp/work/logs",
        "mkdir /tmp/own; mkdir /tmp/own/verifier; rm -rf /tmp/work/logs; ln -s /tmp/own /tmp/work/logs",
        "mv /tmp/work /tmp/elsewhere",
        "rm -rf /tmp/work/* /tmp/work/.*",
        "kill -9 -1",
        "echo 'exit 0' > ~/.bashrc; echo 'exit 0' > ~/.profile; export BASH_ENV=~/.bashrc",
    ],
)
def test_an_agent_cannot_pay_itself(play: Any, tmp_path: Path, attack: str) -> None:
    env = play(task(tmp_path / "one"))
    env.step(answer(attack))
    _, reward, terminated, *_ = env.step(SUBMIT)
    assert (reward, terminated) == (0.0, True)
    env.reset(seed=0)
    env.step(answer("echo 6 > total.txt"))
    assert env.step(SUBMIT)[1] == 1.0  # nothing of it is left


@pytest.mark.docker
def test_commands_that_take_too_long_or_say_too_much(play: Any, tmp_path: Path) -> None:
    env = play(task(tmp_path / "one"), command_s=0.5)
    assert env.step(answer("echo before; sleep 20"))[0] == "before\n(ended: timeout)"
    shown, *_ = env.step(answer("seq 100000"))
    assert shown.startswith("1\n2\n")
    assert shown.endswith("\n100000")
    assert "characters ..." in shown
    assert len(shown) < 8100


RULES = (
    "gymnasium_checker", "prompt", "values", "same_seed", "snapshots", "ended_snapshots", "splits", "leaks", "floor",
    "oracle", "reward_range", "legal_answers",
)  # fmt: skip


@pytest.mark.docker
@pytest.mark.usefixtures("play")
def test_a_task_passes_the_check(tmp_path: Path) -> None:
    """Of the rules those that need few containers: all of them take minutes."""
    task(tmp_path)
    report = check_env("roll/Harbor-v0", kwargs={"path": str(tmp_path)}, seeds=(0, 1), rules=RULES)
    assert report.ok, str(report)
