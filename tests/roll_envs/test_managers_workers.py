"""Environment workers: what is asked comes back, and the death or hang of one worker is told and mended."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
from worker_envs import OBEDIENT, obedient

import roll_envs
from roll_envs.errors import ConfigError, RollError, UnknownNameError, WorkerLostError
from roll_envs.managers import EpisodeLimits
from roll_envs.managers import host as host_module
from roll_envs.managers import workers as workers_module
from roll_envs.managers.episode import CloseRequest, ResetRequest, StepRequest, perform
from roll_envs.managers.host import EnvHost, RemoteTraceback
from roll_envs.managers.processes import ProcessLink
from roll_envs.managers.workers import EnvWorkers, WorkerEnv
from roll_envs.types import Task

WAIT_S = 30.0
LIMITS = EpisodeLimits(env_timeout_s=WAIT_S, step_timeout_s=0.2, close_timeout_s=0.2)


@pytest.fixture(scope="module")
def workers() -> Iterator[EnvWorkers]:
    with EnvWorkers(ProcessLink, 2, LIMITS) as shared:
        yield shared


@pytest.fixture
def one() -> Iterator[EnvWorkers]:
    with EnvWorkers(ProcessLink, 1, LIMITS) as alone:
        yield alone


def made(workers: EnvWorkers, task: Task | None = None) -> WorkerEnv:
    return workers.make(task or obedient()).result(WAIT_S)


def reset(env: WorkerEnv, seed: int = 7) -> int:
    """Its process id."""
    observation, _ = env.ask(ResetRequest(seed, "train")).result(WAIT_S)
    return int(observation.split()[0])


def step(env: WorkerEnv, action: str = "") -> Any:
    return env.ask(StepRequest(action)).result(WAIT_S)


def eventually(true: Callable[[], bool]) -> bool:
    until = time.monotonic() + WAIT_S
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return true()


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


# -- what is asked comes back ------------------------------------------------------------------------------------------


def test_answers_are_those_of_an_environment_in_place(workers: EnvWorkers) -> None:
    task = Task(env_id="roll/FrozenLake-v0", split="train", index=0, seed=3)
    near, far = roll_envs.make(task.env_id), made(workers, task)
    start = ResetRequest(3, "train")
    assert far.ask(start).result(WAIT_S) == perform(near, start)
    for action in ("<answer>Down</answer>", "nonsense √", "<answer>Left</answer>"):
        assert far.ask(StepRequest(action)).result(WAIT_S) == perform(near, StepRequest(action))


def test_environments_are_spread_and_kept_apart(workers: EnvWorkers) -> None:
    envs = [made(workers) for _ in range(4)]
    pids = [reset(env) for env in envs]
    assert len(set(pids)) == 2
    assert pids.count(pids[0]) == 2
    assert os.getpid() not in pids
    for count, env in enumerate(envs):
        for _ in range(count):
            step(env)
    assert [step(env)[0].split()[1] for env in envs] == ["1", "2", "3", "4"]
    for env in envs:
        env.close()


def test_errors_have_name_text_and_traceback_of_the_environment(workers: EnvWorkers) -> None:
    env = made(workers)
    reset(env)
    error = env.ask(StepRequest("raise no such thing")).exception(WAIT_S)
    assert (type(error).__name__, str(error)) == ("LookupError", "no such thing")
    assert isinstance(error, Exception)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "raise LookupError(value)\nLookupError: no such thing" in str(error.__cause__)
    left = env.ask(StepRequest("leave 3")).exception(WAIT_S)
    assert (type(left).__name__, str(left)) == ("SystemExit", "3")
    unsendable = env.ask(StepRequest("unsendable")).exception(WAIT_S)
    assert "cannot be sent to another process (TypeError: cannot pickle '_thread.lock' object)" in str(unsendable)
    assert step(env)[1] == 0.5  # it is as good as before


def test_errors_of_this_project_cross_as_they_are(workers: EnvWorkers) -> None:
    error = workers.make(Task(env_id="roll/FrozenLak-v0", split="", index=0, seed=0)).exception(WAIT_S)
    assert isinstance(error, UnknownNameError)
    assert "did you mean 'roll/FrozenLake-v0'" in str(error)
    error = workers.make(obedient(fails="no luck")).exception(WAIT_S)
    assert (type(error).__name__, str(error)) == ("ValueError", "no luck")


def test_closing_is_done_in_the_worker(workers: EnvWorkers, tmp_path: Path) -> None:
    mark = tmp_path / "closed"
    made(workers, obedient(closed=str(mark))).ask(CloseRequest(None)).result(WAIT_S)  # type: ignore[arg-type]
    assert eventually(mark.exists)


def test_an_environment_that_is_closed_counts_no_more(one: EnvWorkers) -> None:
    env = made(one)
    assert len(env._worker.slots) == 1
    env.close()
    assert not env._worker.slots


def test_an_environment_that_is_made_anew_begins_the_episode_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(host_module, "perform", lambda _, request: asked.append(request))
    EnvHost()._do(1, "remake", (OBEDIENT, pickle.dumps({}), 5, "test"))
    assert asked == [ResetRequest(5, "test")]


def test_what_is_left_open_is_closed_with_the_workers(tmp_path: Path) -> None:
    mark = tmp_path / "closed"
    with EnvWorkers(ProcessLink, 1, LIMITS) as workers:
        pid = reset(made(workers, obedient(closed=str(mark))))
    assert mark.read_text() == "closed\n"
    assert ended(pid)
    with pytest.raises(RollError, match="closed"):
        workers.make(obedient())


def test_what_environments_print_is_not_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with EnvWorkers(ProcessLink, 1, LIMITS) as workers:
        env = made(workers)
        reset(env)
        step(env, "print hello")
    assert capfd.readouterr() == ("", "hello\n")


# -- slow operations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["sleep 3600", "compute 3600"])
def test_a_slow_operation_holds_up_no_other(one: EnvWorkers, action: str) -> None:
    slow, *others = [made(one) for _ in range(4)]
    for env in (slow, *others):
        reset(env)
    hanging = slow.ask(StepRequest(action))
    started = time.monotonic()
    for _ in range(5):
        for env in others:
            step(env)
    assert time.monotonic() - started < 15
    assert not hanging.done()


@pytest.mark.parametrize(("action", "rounds"), [("sleep 0.5", 1), ("sleep 0.04", 12)])
def test_operations_that_wait_are_done_at_the_same_time(one: EnvWorkers, action: str, rounds: int) -> None:
    envs = [made(one) for _ in range(32)]
    for env in envs:
        reset(env)
    started = time.monotonic()
    for _ in range(rounds):
        for asked in [env.ask(StepRequest(action)) for env in envs]:
            asked.result(WAIT_S)
    assert time.monotonic() - started < 10  # one after the other: 15 s and more


@pytest.mark.parametrize("action", ["sleep 1", "compute 1"])
def test_an_operation_waits_a_moment_for_a_slow_one(action: str) -> None:
    """Another thread begins when one operation takes longer than 50 ms, whether it waits or computes."""
    waits = [1.0]
    while min(waits) >= 0.5 and len(waits) < 4:  # the best of three, for a machine that is busy
        host = EnvHost()
        for slot in range(2):
            host.put(pickle.dumps([(slot, slot, "make", (OBEDIENT, pickle.dumps({})))]))
            assert pickle.loads(host.take()) == [(slot, False, pickle.dumps(None))]
        started = time.monotonic()
        host.put(pickle.dumps([(2, 0, "step", action), (3, 1, "step", "")]))
        numbers = [number for number, _, _ in pickle.loads(host.take())]
        waits.append(time.monotonic() - started if numbers == [3] else 1.0)
        if numbers == [3]:
            host.take()
    assert min(waits) < 0.5


# -- death and replacement ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "how"), [("exit 3", "ended with exit code 3"), (f"kill {signal.SIGKILL:d}", "was killed by SIGKILL")]
)
def test_a_worker_that_dies_is_named_and_replaced(one: EnvWorkers, action: str, how: str) -> None:
    dying, neighbour = made(one), made(one)
    pid = reset(dying)
    assert reset(neighbour) == pid
    waiting = neighbour.ask(StepRequest("sleep 60"))
    error = dying.ask(StepRequest(action)).exception(WAIT_S)
    assert isinstance(error, WorkerLostError)
    assert str(error).startswith(f"environment worker 0 (pid {pid} on ")
    assert str(error).endswith(f") {how} during step of {OBEDIENT}")
    assert isinstance(waiting.exception(WAIT_S), WorkerLostError)
    assert isinstance(neighbour.ask(StepRequest("")).exception(WAIT_S), WorkerLostError)
    fresh = made(one)
    assert reset(fresh) != pid
    assert reset(neighbour) == reset(fresh)  # made anew


def test_a_system_without_waitid_names_what_died(one: EnvWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "waitid")
    error = made(one).ask(StepRequest("exit 3")).exception(WAIT_S)
    assert str(error).endswith(f") ended with exit code 3 during step of {OBEDIENT}")
    reset(made(one))


def test_what_an_environment_started_ends_with_its_worker(one: EnvWorkers) -> None:
    env = made(one)
    reset(env)
    child = step(env, "spawn")[4]["child"]
    assert not ended(child)
    assert isinstance(env.ask(StepRequest("exit 0")).exception(WAIT_S), WorkerLostError)
    assert eventually(lambda: ended(child))


@pytest.mark.parametrize("action", ["fork", "shell"])
def test_children_of_an_environment_do_not_hide_the_death_of_its_worker(one: EnvWorkers, action: str) -> None:
    env = made(one)
    pid = reset(env)
    step(env, action)
    dying = env.ask(StepRequest(f"kill {signal.SIGKILL:d}"))
    assert "killed by SIGKILL" in str(dying.exception(WAIT_S))
    assert reset(made(one)) != pid


def test_a_worker_that_is_killed_between_operations_is_replaced(one: EnvWorkers) -> None:
    env = made(one)
    pid = reset(env)
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: isinstance(env.ask(StepRequest("")).exception(WAIT_S), WorkerLostError))
    started = time.monotonic()
    assert reset(env) != pid
    assert time.monotonic() - started < 10


def test_the_new_worker_gets_its_share(workers: EnvWorkers) -> None:
    envs = [made(workers) for _ in range(16)]
    pids = [reset(env) for env in envs]
    os.kill(pids[0], signal.SIGKILL)
    assert eventually(lambda: len({reset(env) for env in envs if _usable(env)} - {pids[0]}) == 2)
    for env in envs:
        env.close()


def _usable(env: WorkerEnv) -> bool:
    return env.ask(ResetRequest(1, "train")).exception(WAIT_S) is None


def test_a_hung_operation_costs_the_worker_its_place_and_then_its_life(one: EnvWorkers) -> None:
    hung, neighbour, idle = made(one), made(one), made(one)
    pid = reset(hung)
    reset(neighbour)
    hanging = hung.ask(StepRequest("sleep 3600"))
    assert hanging.cancel()
    with pytest.raises(CancelledError):
        hanging.result(0)
    assert eventually(lambda: one.least_loaded() is not hung._worker)
    assert reset(made(one)) != pid
    assert reset(idle) != pid  # an episode begins elsewhere
    assert step(neighbour)[1] == 0.5  # it has some time to end its episode
    assert eventually(lambda: ended(pid))
    error = neighbour.ask(StepRequest("")).exception(WAIT_S)
    assert isinstance(error, WorkerLostError)
    assert f"was replaced, since step of {OBEDIENT} did not return" in str(error)


def test_a_retired_worker_that_dies_leaves_nothing(one: EnvWorkers) -> None:
    hung, neighbour = made(one), made(one)
    pid = reset(hung)
    child = step(neighbour, "spawn")[4]["child"]
    hung.ask(StepRequest("sleep 3600")).cancel()
    assert eventually(lambda: reset(made(one)) != pid)
    assert "was replaced" in str(neighbour.ask(StepRequest("exit 0")).exception(WAIT_S))
    assert eventually(lambda: ended(child))
    assert not Path(f"/proc/{pid}").exists()


def test_an_operation_that_is_not_needed_any_more_has_its_time() -> None:
    with EnvWorkers(ProcessLink, 1, EpisodeLimits(env_timeout_s=WAIT_S)) as workers:
        env, neighbour = made(workers), made(workers)
        pid = reset(env)
        assert env.ask(StepRequest("sleep 2.5")).cancel()
        time.sleep(2.0)  # longer than a hang takes to be noticed
        assert reset(made(workers)) == reset(neighbour) == pid


def test_a_closing_that_hangs_costs_the_worker_its_place(one: EnvWorkers) -> None:
    env = made(one, obedient(close_s=3600.0))
    pid = reset(env)
    env.close()
    assert eventually(lambda: reset(made(one)) != pid)


def test_a_closing_can_be_waited_for(one: EnvWorkers, tmp_path: Path) -> None:
    mark = tmp_path / "closed"
    env = made(one, obedient(closed=str(mark), close_s=0.1))
    env.ask(CloseRequest(env)).result(WAIT_S)
    assert mark.read_text() == "closed\n"


def test_no_environment_is_made_within_a_reset_that_is_shorter() -> None:
    with EnvWorkers(ProcessLink, 1, EpisodeLimits(make_timeout_s=WAIT_S, reset_timeout_s=1.0)) as workers:
        env = made(workers)
        step_error = env.ask(StepRequest("exit 0")).exception(WAIT_S)
        assert isinstance(step_error, WorkerLostError)
        assert isinstance(env.ask(ResetRequest(7, "train")).exception(WAIT_S), WorkerLostError)


def test_a_cancelled_operation_that_returns_costs_nothing_but_its_environment(one: EnvWorkers, tmp_path: Path) -> None:
    mark = tmp_path / "closed"
    env, neighbour = made(one, obedient(closed=str(mark))), made(one)
    pid = reset(env)
    asked = env.ask(StepRequest("sleep 0.2"))
    assert asked.cancel()
    env.close()
    assert eventually(mark.exists)
    time.sleep(1.5)  # longer than a hang takes to be noticed
    assert reset(neighbour) == reset(made(one)) == pid
    assert mark.read_text() == "closed\n"


def test_a_making_that_is_given_up_leaves_no_environment(one: EnvWorkers, tmp_path: Path) -> None:
    mark = tmp_path / "closed"
    assert one.make(obedient(closed=str(mark))).cancel()
    assert eventually(mark.exists)


def test_a_worker_serves_hundreds_that_wait(one: EnvWorkers) -> None:
    envs = [made(one) for _ in range(200)]
    started = time.monotonic()
    waiting = [env.ask(StepRequest("sleep 2")) for env in envs]
    for answer in waiting:
        answer.result(WAIT_S)
    assert time.monotonic() - started < 7  # 64 at a time: 8 s


# -- start and end of processes ----------------------------------------------------------------------------------------


def test_a_worker_that_cannot_start_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []

    def connect() -> ProcessLink:
        starts.append(1)
        return ProcessLink()

    monkeypatch.setattr(sys, "path", ["/nowhere"])
    started = time.monotonic()
    with pytest.raises(RollError, match=r"environment worker 0 ended with exit code 1 .*stderr.* before it was ready"):
        EnvWorkers(connect, 2, LIMITS)
    assert time.monotonic() - started < 15
    assert len(starts) == 2


def test_workers_that_can_no_longer_start_are_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []

    def connect() -> ProcessLink:
        starts.append(1)
        return ProcessLink()

    with EnvWorkers(connect, 1, LIMITS) as workers:
        env = made(workers)
        pid = reset(env)
        monkeypatch.setattr(sys, "path", ["/nowhere"])
        os.kill(pid, signal.SIGKILL)

        def given_up() -> bool:
            try:
                workers.make(obedient()).exception(WAIT_S)
            except RollError as error:
                return "3 in a row" in str(error)
            return False

        assert eventually(given_up)
        assert len(starts) == 4
        assert isinstance(env.ask(ResetRequest(1, "train")).exception(WAIT_S), WorkerLostError)


class Silent:
    """A link to a worker for which there is no room: it never says that it is ready."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def send(self, frame: bytes) -> None:
        pass

    def receive(self) -> bytes:
        self.over.wait()
        raise EOFError

    def ended(self) -> str:
        return "was ended"

    def end(self, wait_s: float) -> None:
        self.over.set()


def with_room_for(count: int) -> tuple[list[Any], Callable[[], Any]]:
    """Links until now, and what connects: ``count`` workers start, and none after them."""
    links: list[Any] = []

    def connect() -> Any:
        links.append(ProcessLink() if len(links) < count else Silent())
        return links[-1]

    return links, connect


def test_a_replacement_that_never_starts_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "_LEAST_START_S", 0.5)
    links, connect = with_room_for(2)
    with EnvWorkers(connect, 2, EpisodeLimits(env_timeout_s=0.6)) as workers:
        envs = [made(workers) for _ in range(4)]
        pids = {reset(env) for env in envs}
        os.kill(min(pids), signal.SIGKILL)
        assert eventually(lambda: len(links) == 5)  # three tries
        assert eventually(lambda: all(link.over.is_set() for link in links[2:]))
        time.sleep(1.0)
        assert len(links) == 5
        assert [reset(env) for env in envs] == [max(pids)] * 4
        assert reset(made(workers)) == max(pids)


def test_who_waits_for_a_replacement_is_told_that_it_never_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "_LEAST_START_S", 0.5)
    _, connect = with_room_for(1)
    with EnvWorkers(connect, 1, EpisodeLimits(env_timeout_s=0.6)) as workers:
        os.kill(reset(made(workers)), signal.SIGKILL)
        said: list[str] = []

        def broken() -> bool:
            try:
                said.append(str(workers.make(obedient()).exception(WAIT_S)))
            except RollError as error:
                return str(error).startswith("environment worker 0 did not start within 0.5 s; 3 in a row were never")
            return False

        assert eventually(broken)
        assert f"environment worker 0 did not start within 0.5 s during the making of {OBEDIENT}" in said


def test_an_environment_that_workers_cannot_make_is_told_with_the_remedy(workers: EnvWorkers, tmp_path: Path) -> None:
    mark = tmp_path / "closed"
    workers.check([obedient(closed=str(mark))], WAIT_S)
    assert eventually(lambda: mark.exists() and mark.read_text() == "closed\nclosed\n")  # on each of the two
    with pytest.raises(ConfigError, match=r"cannot be made on environment worker 0 \(pid \d+ on .*\): .*Install it"):
        workers.check([Task(env_id="nowhere:test/X-v0", split="", index=0, seed=0)], WAIT_S, "Install it")


def test_arguments_that_cannot_be_sent_are_told(workers: EnvWorkers) -> None:
    for ask in (workers.make, lambda task: workers.check([task], WAIT_S)):
        with pytest.raises(ConfigError, match=rf"arguments of {OBEDIENT} cannot be sent .*'thread'"):
            ask(obedient(fails=lambda: ""))


@pytest.mark.parametrize("action", ["sleep 3600", "lock"])
def test_workers_end_with_a_parent_that_is_killed(action: str) -> None:
    """Also one that is stuck in a call that lets no other thread of it run, and what environments have started."""
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_managers_workers import *
if __name__ == "__main__":
    workers = EnvWorkers(ProcessLink, 2, LIMITS)
    envs = [made(workers), made(workers)]
    children = [step(envs[0], "spawn")[4]["child"], step(envs[1], "fork")[4]["child"]]
    print(*[reset(env) for env in envs], *children, flush=True)
    envs[0].ask(StepRequest({action!r}))
    time.sleep(0.5)
    print("asked", flush=True)
    time.sleep(3600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 4
        assert parent.stdout.readline() == "asked\n"
        assert not any(ended(pid) for pid in pids)
        parent.kill()
        parent.wait(WAIT_S)
    assert eventually(lambda: all(ended(pid) for pid in pids))
