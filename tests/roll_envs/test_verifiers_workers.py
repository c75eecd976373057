"""Worker processes: deadlines, deaths, recycling, what they see of the host, and that none is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from plugins import run_python

from roll_envs.errors import ConfigError
from roll_envs.verifiers import workers
from roll_envs.verifiers.workers import PoolSettings, WorkerPool, close_shared_pools, shared_pool

TASKS = """
import os, time
seen = []
def remember(value):
    seen.append(value)
    return seen
def spin(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
def write(path):
    with open(path, 'w') as file: file.write('x')
def quiet():
    print('noise on stdout'); os.write(1, b'more noise')
    return 'still here'
def hold():
    return len(bytearray(1 << 30))
def deep():
    return deep()
def run(command):
    return os.system(command)
TASKS = {
    'remember': remember, 'sleep': time.sleep, 'spin': spin, 'power': lambda n: 3 ** n % 7, 'pid': os.getpid,
    'die': lambda: os._exit(3), 'environ': lambda: dict(os.environ), 'write': write, 'quiet': quiet, 'hold': hold,
    'deep': deep, 'run': run, 'fork': os.fork, 'echo': lambda x: x, 'raise': lambda: 1 / 0,
    'files': lambda: os.listdir('/proc/self/fd'), 'ppid': os.getppid, 'nice': lambda s: (spin(s), os.nice(0))[1],
}
"""
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc, which is not here")


@pytest.fixture
def make_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WorkerPool]]:
    (tmp_path / "pool_tasks_here.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    pools: list[WorkerPool] = []

    def make(**settings: Any) -> WorkerPool:
        pools.append(WorkerPool(PoolSettings(module="pool_tasks_here", **{"workers": 1, "memory_mb": 512, **settings})))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # also one that ends between opening and reading
        return False


def gone_within(pids: list[int], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def value(pool: WorkerPool, task: str, *arguments: Any) -> Any:
    outcome = pool.call(task, list(arguments), deadline_s=5)
    assert outcome.status == "ok", outcome
    return outcome.value


def test_a_worker_stays_warm_and_is_recycled(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(uses=3)
    assert [value(pool, "remember", i) for i in range(4)] == [[0], [0, 1], [0, 1, 2], [3]]


def test_values_come_back_as_they_are(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    for sent in ("5\ud800\x00", "x" * 300_000, [1, {"a": None}], 10**100):
        assert value(pool, "echo", sent) == sent
    assert value(pool, "quiet") == "still here"


def test_an_endless_task_is_killed_even_where_no_signal_handler_runs(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    value(pool, "pid")
    outcome = pool.call("power", [10**9], deadline_s=0.5)  # minutes, if it were not
    assert (outcome.status, outcome.detail) == ("deadline", "not graded within 0.5 s of processor time")
    assert value(pool, "echo", 1) == 1


def test_slow_tasks_leave_the_processor_to_others(make_pool: Callable[..., WorkerPool]) -> None:
    pool, usual = make_pool(first_s=0.1), os.nice(0)
    assert pool.call("nice", [0.0], deadline_s=30.0).value == usual
    assert pool.call("nice", [0.3], deadline_s=30.0).value == min(19, usual + 10)
    assert pool.metrics()["slow_total"] == 1
    assert pool.call("nice", [0.0], deadline_s=30.0).value == usual  # by another worker


def test_new_tasks_have_half_a_first_pass_while_others_wait(make_pool: Callable[..., WorkerPool]) -> None:
    """What needs more than that has it when those have had their turn that may be quick."""
    pool = make_pool(first_s=1.0)
    pool.call("echo", [1], deadline_s=30.0)
    ended: list[str] = []

    def ask(name: str, seconds: float) -> None:
        assert pool.call("spin", [seconds], deadline_s=30.0, shape=name).status == "ok"
        ended.append(name)

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, "first", 0.5)]
        for waiting, (name, seconds) in enumerate({"long": 0.8, "quick": 0.0, "quick, too": 0.0}.items()):
            while pool._fast.waiting < waiting or not pool._fast._at_work["first"]:
                time.sleep(0.001)
            asked.append(threads.submit(ask, name, seconds))
        for each in asked:
            each.result()
    assert ended == ["first", "quick", "quick, too", "long"]
    assert pool.metrics()["slow_total"] == 0


def test_a_task_that_had_no_processor_time_says_nothing(
    make_pool: Callable[..., WorkerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_PATIENCE", 3)
    outcome = make_pool().call("sleep", [60], deadline_s=0.5)
    assert outcome.status == "unavailable"
    assert "too busy" in outcome.detail


@pytest.mark.parametrize("first_s", [0.1, 5.0])
def test_a_task_that_a_busy_machine_slows_is_done(
    make_pool: Callable[..., WorkerPool], first_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets a part of the processor, in either lane: it is stopped for longer than its deadline and a second more."""
    pool = make_pool(first_s=first_s)
    value(pool, "pid")
    take, taken = pool._take, []
    monkeypatch.setattr(pool, "_take", lambda: taken.append(take()) or taken[-1])
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(pool.call, "spin", [0.3], deadline_s=0.5)
        while not asked.done() and len(taken) < (2 if first_s < 1 else 1):
            time.sleep(0.001)
        os.kill(taken[-1].pid, signal.SIGSTOP)
        time.sleep(1.8)
        os.kill(taken[-1].pid, signal.SIGCONT)
        assert asked.result().status == "ok"


def test_a_task_that_kills_two_workers_did_it(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    assert pool.call("die", [], deadline_s=5).status == "died"
    assert value(pool, "echo", 1) == 1


def test_a_worker_that_died_meanwhile_is_replaced(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    os.kill(value(pool, "pid"), signal.SIGKILL)
    assert value(pool, "echo", 1) == 1


def test_a_worker_that_is_killed_from_outside_under_a_task_is_no_verdict_on_it(
    make_pool: Callable[..., WorkerPool],
) -> None:
    pool = make_pool()
    pid = value(pool, "pid")
    killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    assert pool.call("sleep", [0.6], deadline_s=20).status == "ok"


def test_errors_of_a_task_are_told(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    assert pool.call("raise", [], deadline_s=5).detail == "ZeroDivisionError: division by zero"
    assert pool.call("deep", [], deadline_s=5).detail == "it is nested too deeply"
    pid = value(pool, "pid")
    assert pool.call("hold", [], deadline_s=5).detail == "it needs more memory than a worker may use"
    assert value(pool, "pid") == pid


def test_a_worker_sees_no_secret_and_can_do_no_harm(
    make_pool: Callable[..., WorkerPool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    pool = make_pool()
    assert "SECRET_TOKEN" not in value(pool, "environ")
    for task, arguments in (("write", [str(tmp_path / "x")]), ("run", ["true"]), ("fork", [])):
        assert pool.call(task, arguments, deadline_s=5).status == "error", task
    assert not (tmp_path / "x").exists()


@needs_proc
def test_a_worker_inherits_no_open_file(make_pool: Callable[..., WorkerPool], tmp_path: Path) -> None:
    with open(tmp_path / "private", "w") as file:
        os.set_inheritable(file.fileno(), True)
        files = value(make_pool(), "files")
    assert len(files) <= 7, files  # 0 to 2, the two pipes, the null device, and the listing itself


def test_tasks_wait_for_a_free_worker_and_not_for_ever(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(queue_timeout_s=0.2, first_s=5.0)
    value(pool, "pid")
    with ThreadPoolExecutor(2) as threads:
        busy = threads.submit(pool.call, "spin", [1.0], deadline_s=20)
        time.sleep(0.1)
        waited = threads.submit(pool.call, "echo", [1], deadline_s=1)
        assert "no grading worker was free within 0.2 s" in waited.result().detail
        assert busy.result().status == "ok"


def test_waiting_for_the_slow_lane_for_too_long_says_nothing(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(queue_timeout_s=0.5, first_s=0.05)
    value(pool, "pid")
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(pool.call, "spin", [3.0], deadline_s=20)
        while not pool._slow._at_work[""] and not busy.done():
            time.sleep(0.001)
        waited = pool.call("spin", [3.0], deadline_s=20)
        assert (waited.status, "was free within 0.5 s" in waited.detail) == ("unavailable", True), waited
        assert busy.result().status == "ok"


def test_more_tasks_than_may_wait_are_refused_at_once(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(queue=1, first_s=5.0)
    value(pool, "pid")
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(pool.call, "spin", [0.6], deadline_s=20)]
        while not pool._fast._at_work[""]:
            time.sleep(0.001)
        asked.append(threads.submit(pool.call, "echo", [1], deadline_s=20))
        while not pool._fast.waiting:
            time.sleep(0.001)
        refused = pool.call("echo", [2], deadline_s=20)
        assert (refused.status, refused.detail) == ("unavailable", "1 tasks wait already")
        assert [each.result().status for each in asked] == ["ok", "ok"]


def test_more_slow_tasks_than_may_wait_are_given_up_after_their_first_pass(
    make_pool: Callable[..., WorkerPool],
) -> None:
    pool = make_pool(slow_queue=1, first_s=0.05)
    value(pool, "pid")
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(pool.call, "spin", [1.5], deadline_s=20)]
        while not pool._slow._at_work[""]:
            time.sleep(0.001)
        asked.append(threads.submit(pool.call, "spin", [0.1], deadline_s=20))
        while not pool._slow.waiting:
            time.sleep(0.001)
        refused = pool.call("spin", [0.1], deadline_s=20)
        assert (refused.status, refused.hurried) == ("deadline", True)
        assert [each.result().status for each in asked] == ["ok", "ok"]
    counts = {name: number for name, number in pool.metrics().items() if name.endswith("_total")}
    assert counts == {
        "tasks_total": 4, "slow_total": 3, "deadline_total": 1, "hurried_total": 1, "died_total": 0,
        "unavailable_total": 0,
    }  # fmt: skip


def test_many_threads_share_few_workers(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(workers=2)
    with ThreadPoolExecutor(16) as threads:
        pids = set(threads.map(lambda _: value(pool, "pid"), range(200)))
    assert len(pids) <= 2


def test_a_template_that_does_not_come_up_in_time_is_told(make_pool: Callable[..., WorkerPool]) -> None:
    outcome = make_pool(start_timeout_s=0.001).call("echo", [1], deadline_s=5)
    assert (outcome.status, outcome.detail) == ("unavailable", "a grading worker was not ready within 0.001 s")


def test_a_module_that_cannot_be_loaded_is_told() -> None:
    with contextlib.closing(WorkerPool(PoolSettings(module="no_such_module_anywhere", workers=1))) as pool:
        outcome = pool.call("x", [], deadline_s=1)
        assert outcome.status == "unavailable"
        assert "no_such_module_anywhere" in outcome.detail
        assert pool.call("x", [], deadline_s=1).status == "unavailable"


def _pids(pool: WorkerPool) -> list[int]:
    assert pool._template is not None
    template = pool._template.process.pid
    return [int(pid) for pid in Path(f"/proc/{template}/task/{template}/children").read_text().split()]


@needs_proc
def test_closing_leaves_no_process(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(workers=2)
    value(pool, "pid")
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(pool.call, "spin", [30], deadline_s=60)
        until = time.monotonic() + 30
        while not (pool.metrics()["slow_total"] and _pids(pool)) and time.monotonic() < until:
            time.sleep(0.01)  # between its first pass and the slow lane it has no worker
        pids = _pids(pool)
        assert pool._template is not None
        pids.append(pool._template.process.pid)
        assert len(pids) >= 2
        pool.close()
        assert busy.result().status in ("unavailable", "died")
    assert not any(map(alive, pids))
    assert pool.call("echo", [1], deadline_s=1).status == "unavailable"


_PARENT = """
import os, sys, threading, time
sys.path.insert(0, {folder!r})
from roll_envs.verifiers.workers import PoolSettings, WorkerPool
pool = WorkerPool(PoolSettings(module='pool_tasks_here', workers=2, memory_mb=512))
pool.call('pid', [], deadline_s=5)
threading.Thread(target=pool.call, args=('spin', [30]), kwargs={{'deadline_s': 30.0}}, daemon=True).start()
template = pool._template.process.pid
pids = []
while not (pool.metrics()["slow_total"] and pids):
    pids = open(f"/proc/{{template}}/task/{{template}}/children").read().split()
    time.sleep(0.01)
print(*pids, template, flush=True)
{end}
"""


@needs_proc
@pytest.mark.parametrize("end", ["time.sleep(60)", "os._exit(0)", "sys.exit(0)", "raise SystemError('x')"])
def test_no_worker_outlives_its_parent(make_pool: Callable[..., WorkerPool], tmp_path: Path, end: str) -> None:
    program = _PARENT.format(folder=str(tmp_path), end=end)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
        parent.wait()
    assert len(pids) >= 2
    assert gone_within(pids, 10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_its_own_workers(tmp_path: Path) -> None:
    (tmp_path / "pool_tasks_here.py").write_text(TASKS)
    program = (
        f"import os, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from roll_envs.verifiers.workers import PoolSettings, WorkerPool\n"
        "pool = WorkerPool(PoolSettings(module='pool_tasks_here', workers=1, memory_mb=512))\n"
        "mine = pool.call('pid', [], deadline_s=5).value\n"
        "parents = pool._template.process.pid\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    other = pool.call('ppid', [], deadline_s=5).value\n"
        "    os._exit(0 if parents != other == pool._template.process.pid else 1)\n"
        "status = os.waitpid(child, 0)[1]\n"
        "print(status, pool.call('pid', [], deadline_s=5).value == mine)\n"
    )
    assert run_python(program).strip() == "0 True"


def test_shared_pools_are_one_for_equal_settings() -> None:
    settings = PoolSettings(module="roll_envs.verifiers.text_tasks", workers=1, memory_mb=300)
    pool = shared_pool(settings)
    assert shared_pool(PoolSettings(module=settings.module, workers=1, memory_mb=300)) is pool
    close_shared_pools()
    again = shared_pool(settings)
    assert again is not pool
    again.close()
    assert shared_pool(settings) is not again, "one that is closed does no task"


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"uses": True}, {"memory_mb": -1}, {"start_timeout_s": 0}])
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PoolSettings(module="x", **wrong)


def test_an_interrupted_task_never_answers_the_next(
    make_pool: Callable[..., WorkerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool()
    value(pool, "echo", "warm")

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as planted:
        planted.setattr(workers.Connection, "poll", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.call("echo", ["first"], deadline_s=5)
    assert value(pool, "echo", "second") == "second"
    # An answer of the template that nobody has read is none to the next order, either.
    assert value(pool, "pid") == pool._idle[0].pid


def test_a_closed_pool_answers_at_once(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    value(pool, "echo", "warm")
    pool.close()
    started = time.monotonic()
    for _ in range(3):
        outcome = pool.call("echo", ["late"], deadline_s=5)
        assert (outcome.status, "closed" in outcome.detail) == ("unavailable", True), outcome
    assert time.monotonic() - started < 5
