"""Programs on slots, without a jail: which orders a slot gets, with which limits, and that it is free again after each
end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from roll_envs.errors import ConfigError, DeadlineExceededError, SandboxError
from roll_envs.sandbox import Isolation, Language, Limits, Program
from sandboxes.pool import Ended, NotBegunError
from sandboxes.programs import BINARY, ROWS, Order, Place
from sandboxes.slots import SlotSandbox

OK = {"status": 0, "wall_s": 0.0}


def ended(order: Order) -> Ended:
    """As of a program, or a compiler, that did its work."""
    return Ended(report=OK, files={BINARY: b"code"} if BINARY in order.fetch else {})


class FakeSlot:
    """Notes its orders; ``does`` says what comes of the next ones, the last for ever."""

    shape = None
    isolation = Isolation(tier="none", layers=())

    def __init__(self, notes: list[tuple[Order, float]], does: list[Callable[[Order], Ended]]) -> None:
        self.notes, self.does, self.alive = notes, does, True

    def run(self, order: Order, wall_s: float) -> Ended:
        self.notes.append((order, wall_s))
        return (self.does.pop(0) if len(self.does) > 1 else self.does[0])(order)

    def ask(self, message: Any, content: bytes | None = None) -> tuple[dict[str, Any], bytes]:
        return {"event": "open"}, b""

    def end(self) -> None: ...

    def close(self) -> None:
        self.alive = False


class FakeSandbox(SlotSandbox):
    def __init__(self) -> None:
        super().__init__(1, None)
        self.notes: list[tuple[Order, float]] = []
        self.does: list[Callable[[Order], Ended]] = [ended]
        self._place = Place(environ={"PATH": "/bin", "HOME": "/work"}, tools=TOOLS, python="python3", refuse=refuse)
        notes, does = self.notes, self.does
        self._begin(lambda shape: FakeSlot(notes, does), 1, 10.0)

    def is_free(self) -> bool:
        """Whether its one slot waits for a program, exactly once."""
        deadline = time.monotonic() + 5
        while not self._pool._idle and time.monotonic() < deadline:
            time.sleep(0.01)  # a new one is being made
        return len(self._pool._idle) == 1 and not self._pool._busy


TOOLS: dict[Language, str] = {language: "/bin/tool" for language in ROWS if language != "python"}


def refuse(language: Language) -> NoReturn:
    raise ConfigError(language)


@pytest.fixture
def sandbox() -> Iterator[FakeSandbox]:
    with FakeSandbox() as made:
        yield made


def head(order: Order) -> dict[str, Any]:
    """What the payload of an order says of it."""
    found: dict[str, Any] = json.loads(bytes(order.parts[0][1]))
    return found


def test_a_compiler_has_its_own_limits_and_the_files_of_the_program(sandbox: FakeSandbox) -> None:
    limits = Limits(wall_s=2.0, compile_s=3.0, memory_mb=4000, processes=100, output_bytes=77, files_mb=300)
    sandbox.run(Program(source="x", language="cpp", files={"a.h": b"1"}), limits=limits)
    (compiling, compile_s), (running, wall_s) = sandbox.notes
    assert (compile_s, wall_s) == (3.0, 2.0)
    assert compiling.limits == Limits(wall_s=3.0, memory_mb=4000, processes=100, output_bytes=77, files_mb=300)
    assert running.limits == limits
    assert head(compiling)["files"] == ["a.h"]
    assert head(running)["files"] == ["a.h", BINARY]
    sandbox.run(Program(source="y", language="cpp"), limits=Limits(memory_mb=64, processes=1, files_mb=1))
    roomy = sandbox.notes[2][0].limits
    assert (roomy.memory_mb, roomy.processes, roomy.files_mb) == (ROWS["cpp"].compile_mb, 64, 128)


def test_what_is_compiled_is_known_by_all_of_the_program(sandbox: FakeSandbox) -> None:
    def compilations(program: Program) -> int:
        sandbox.notes.clear()
        sandbox.run(program)
        return sum(BINARY in order.fetch for order, _ in sandbox.notes)

    first = Program(source="x", language="cpp", files={"a.h": b"1"})
    assert compilations(first) == 1
    assert compilations(first) == 0
    assert compilations(Program(source="x", language="cpp", files={"a.h": b"1"}, stdin=b"9", arguments=("b",))) == 0
    for other in (
        Program(source="y", language="cpp", files={"a.h": b"1"}),
        Program(source="x", language="rust", files={"a.h": b"1"}),
        Program(source="x", language="cpp", files={"a.h": b"2"}),
        Program(source="x", language="cpp", files={"b.h": b"1"}),
        Program(source="x", language="cpp"),
    ):
        assert compilations(other) == 1, other


def test_a_compilation_that_failed_is_not_remembered(sandbox: FakeSandbox) -> None:
    sandbox.does[:] = [lambda _: Ended(report=None, killed_for="timeout"), ended]
    program = Program(source="x", language="cpp")
    failed = sandbox.run(program)
    assert (failed.ok, failed.compile is not None and failed.compile.status) == (False, "timeout")
    assert sandbox.run(program).ok
    assert len(sandbox.notes) == 3


def test_the_deadline_is_one_for_compiling_and_running(sandbox: FakeSandbox) -> None:
    def slow(order: Order) -> Ended:
        time.sleep(0.3)
        return ended(order)

    sandbox.does[:] = [slow, ended]
    sandbox.run(Program(source="x", language="cpp"), timeout_s=5.0)
    (_, first), (_, second) = sandbox.notes
    assert 4.0 < first <= 5.0
    assert second <= first - 0.3


@pytest.mark.parametrize(
    ("end", "status", "times"),
    [
        (Ended(report={"status": signal.SIGKILL, "wall_s": 0.0}), "error", 2),
        (Ended(report={"status": signal.SIGKILL, "wall_s": 0.0}, killed_for="timeout"), "timeout", 1),
        (Ended(report={"status": signal.SIGKILL, "wall_s": 0.0}, killed_for="output"), "output", 1),
        (Ended(report={"status": signal.SIGKILL, "wall_s": 0.0}, oom=1), "memory", 1),
        (Ended(report={"status": signal.SIGSEGV, "wall_s": 0.0}), "error", 1),
        (Ended(report={"status": 1 << 8, "wall_s": 0.0}), "error", 1),
    ],
)
def test_only_an_end_that_nobody_can_explain_is_tried_again(
    sandbox: FakeSandbox, end: Ended, status: str, times: int
) -> None:
    sandbox.does[:] = [lambda _: end]
    assert sandbox.run(Program(source="x")).status == status
    assert len(sandbox.notes) == times
    assert sandbox.is_free()


def fails(error: BaseException) -> Callable[[Order], Ended]:
    def fail(order: Order) -> Ended:
        raise error

    return fail


@pytest.mark.parametrize(
    ("does", "error", "times"),
    [
        ([fails(SandboxError("it died"))], SandboxError, 1),
        ([fails(NotBegunError("not begun"))], NotBegunError, 2),
        ([fails(KeyboardInterrupt())], KeyboardInterrupt, 1),
        ([lambda _: Ended(killed_for="timeout")], DeadlineExceededError, 1),
        ([fails(NotBegunError("not begun")), ended], None, 2),
    ],
)
def test_the_slot_is_free_or_replaced_after_a_failure(
    sandbox: FakeSandbox, does: list[Any], error: type[BaseException] | None, times: int
) -> None:
    sandbox.does[:] = does
    if error is None:
        assert sandbox.run(Program(source="x"), timeout_s=5.0).ok
    else:
        with pytest.raises(error):
            sandbox.run(Program(source="x"), timeout_s=5.0)
    assert len(sandbox.notes) == times
    assert sandbox.is_free()


def test_a_session_gives_its_slot_back_once(sandbox: FakeSandbox) -> None:
    session = sandbox.session()
    session.close()
    session.close()
    assert sandbox.is_free()


def test_what_a_program_asks_for_goes_before_what_every_program_has(sandbox: FakeSandbox) -> None:
    sandbox.run(Program(source="x", environ={"HOME": "/tmp"}, arguments=("a",)))
    ((order, _),) = sandbox.notes
    assert head(order)["environ"] == {"PATH": "/bin", "HOME": "/tmp"}
    assert head(order)["arguments"] == ["a"]
