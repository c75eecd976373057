"""Runs the tests of a row in a jail of their own and says what each check gave.

A check is an assert (or a statement that runs asserts) at the top of the code or of ``check(candidate)``, a test
function or method, or a call with an expected value. A check that fails does not end the others.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import json
import os
import pkgutil
import re
import signal
import sys
import types
from multiprocessing.connection import Pipe
from typing import Any

from roll_envs.verifiers.code.inside.compare import expected, plain_value, readings, shown
from roll_envs.verifiers.code.inside.proxies import Fault, Link, is_from_answer
from roll_envs.verifiers.code.inside.pytest_run import run_tests
from roll_envs.verifiers.code.inside.reading import OwnFault, prepared
from roll_envs.verifiers.code.inside.stand_ins import MOST_BYTES, Beside, Control, Diverged, Records, is_simple
from roll_envs.verifiers.code.inside.values import NODES, Unusable

_MOST_CHECKS = 20_000
_UNREACHED = "none of its asserts was reached"
SEPARATOR = "\x1e"
"""Between the requests of a batch; JSON text has no such character."""


class Template:
    """The process of the cells. Simple tests are run here, between one exchange and the next (see ``stand_ins``); each
    run of others is a fork, so that nothing of one reaches the next."""

    def __init__(self, mark: str, identity: str) -> None:
        self._mark, self._child = mark, 0
        self._channel: Any = None
        self._recorded: tuple[dict[str, Any], list[str]] | None = None
        sys.setrecursionlimit(10_000)  # for lists of nodes; JSON as deep fits the stack
        sys.set_int_max_str_digits(50_000)
        self._say(identity, "ready ")

    def start(self, identity: str, told: str, *, live: bool = False, **how: Any) -> None:
        """Run the tests of a plan, in place of those before; ``how``: see :func:`_link`. ``live``: call by call."""
        self._end()
        plan: dict[str, Any] = json.loads(told)
        requests = [] if live or how or len(told) > MOST_BYTES else _requests(plan)
        if requests:
            self._recorded = plan, requests
            self._say(identity, "batch " + SEPARATOR.join(requests))
            return
        ours, theirs = Pipe()
        self._child = os.fork()
        if not self._child:
            try:
                os.setsid()
                ours.close()
                nothing = os.open("/dev/null", os.O_RDWR)
                for fd in (1, 2):
                    os.dup2(nothing, fd)
                found = Tests(plan, _link(theirs, **how)).found()
                theirs.send_bytes(f"done {json.dumps(found)}".encode())
            finally:
                os._exit(0)
        theirs.close()
        self._channel = ours
        self._say(identity, ours.recv_bytes().decode())

    def finish(self, identity: str, replies: list[str]) -> None:
        """Print the results of the recorded tests by the replies to their requests, or that they must be run live."""
        assert self._recorded is not None
        plan, requests = self._recorded
        records = Records(requests, replies)
        found = Tests(plan, records).found()
        self._say(identity, "again " if records.diverged else f"done {json.dumps(found)}")

    def step(self, identity: str, message: str) -> None:
        """Hand over a reply, and print what is asked next, or the results."""
        self._channel.send_bytes(message.encode("utf-8", "replace"))
        self._say(identity, self._channel.recv_bytes().decode())

    def _say(self, identity: str, line: str) -> None:
        data = f"\n{self._mark}{identity}{line}\n".encode()
        while data:
            data = data[os.write(1, data) :]

    def _end(self) -> None:
        self._recorded = None
        if self._child:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            self._channel.close()
            self._child = 0


def _requests(plan: dict[str, Any]) -> list[str]:
    """What simple tests ask the answer; empty for others."""
    records = Records()
    with contextlib.suppress(OwnFault):
        if is_simple(plan):
            found = Tests(plan, records).found()
            return records.requests if records.asked and not (records.diverged or found["fault"]) else []
    return []


def _link(channel: Any, *, control: bool = False, answer: tuple[str, ...] | None = None) -> Any:
    """The answer's jail; or with ``control`` an answer that allows everything; or its source, to run beside the
    tests."""
    return Control() if control else Link(channel) if answer is None else Beside(answer)


def _ended(error: BaseException) -> tuple[str, str]:
    """Status and detail of a check that an error has ended."""
    if isinstance(error, Fault):
        return error.status, str(error)
    return "error", f"{type(error).__name__}: {shown(error)}"


class Tests:
    """The tests of one row with the answer's jail, or what stands in for it."""

    __test__ = False

    def __init__(self, plan: dict[str, Any], link: Any) -> None:
        self._plan, self.link = plan, link
        # Errors in statements of the tests; of the control, those that have nothing to do with its values.
        self.checks: list[dict[str, Any]] = []
        self._doubts: list[str] = []
        self._hard = self._counted = self._asked = 0
        self._caught = self._asserting = self._state = frozenset[str]()

    def found(self) -> dict[str, Any]:
        """Run the tests; their results, which say nothing where the link has diverged."""
        fault, refused = "", False
        streams = sys.stdin, sys.stdout, sys.stderr
        sys.stdin = sys.stdout = sys.stderr = io.StringIO()
        try:
            self._calls() if self._plan["calls"] else self._code()
        except (Unusable, OwnFault) as error:
            fault, refused = str(error)[:300], isinstance(error, Unusable)
            if len(self.checks) >= _MOST_CHECKS:  # was it the answer that gave so much to check?
                self._doubts.append(fault)
                self.checks[-1] |= {"status": "output", "detail": fault}
                fault = ""
        except BaseException as error:
            if is_from_answer(error):
                self._note("tests", *_ended(error))
            else:
                fault = f"{type(error).__name__}: {str(error)[:300]}"
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams
        if not (self.checks or fault):  # they ran without a check, for example a loop over an empty list
            self._note("tests", "wrong", "none of the checks was reached")
        bad = next((check for check in self.checks if check["status"] != "ok"), None)
        if bad and self.link.load_fault:
            bad["detail"] += f"; the code itself: {self.link.load_fault}"
        found = {"checks": self.checks, "doubts": self._doubts, "fault": fault, "refused": refused}
        return found | {"spent": self.link.left()}

    def _note(self, name: str, status: str, detail: str = "") -> None:
        """A check has ended; time, memory and operators of the answer since the last one are its."""
        self._counted = self._hard
        if len(self.checks) >= _MOST_CHECKS:
            raise OwnFault(f"the tests make more than {_MOST_CHECKS} checks")
        name = f"test {len(self.checks) + 1}" + (f", {name[:80]}" if name else "")
        check = {"name": name, "status": status, "detail": detail[:300], "inside": bool(self.link.inside)}
        self.checks.append(check | {"time_s": self.link.time_s, "memory_mb": self.link.memory_mb or None})
        self.link.time_s = self.link.memory_mb = self.link.inside = 0

    def outcome(self, name: str, error: BaseException | None) -> None:
        """A check, a test function or a method has ended, by ``error`` if one is given."""
        if error is None:
            missed = self._hard == self._counted and name.partition("[")[0] in self._asserting
            self._note(name, *(("wrong", _UNREACHED) if missed else ("ok",)))
            return
        if isinstance(error, (Unusable, OwnFault, Diverged)):
            raise error
        # pytest.fail() and pytest.raises() end with an outcome of pytest's own.
        outcomes = sys.modules.get("_pytest.outcomes")
        if is_from_answer(error):
            self._note(name, *_ended(error))
        elif isinstance(error, ImportError):
            raise OwnFault(f"module {error.name!r} is missing in the jail of the tests ({error})"[:300])
        elif isinstance(error, (AssertionError, *([outcomes.OutcomeException] if outcomes else []))):
            self._note(name, "wrong", str(error))
        elif not self.link.asked:
            raise OwnFault(f"{name}: {type(error).__name__}: {error}"[:300])
        else:
            if not self.link.touched and "Anything" not in str(error) and not self._follows(error):
                self._doubts.append(f"{name}: {type(error).__name__}")
            self._note(name, *_ended(error))

    def _follows(self, error: BaseException) -> bool:
        """Whether an error of the tests may follow from what the answer did: a file that it has not written, a name
        that a failed statement or a handler would have bound, or a value of it where only others may stand."""
        if isinstance(error, OSError) or self._state - {"seed"}:
            return True
        if isinstance(error, TypeError):
            return bool(self.link.asked > self._asked)
        unbound = re.search(r"'(\w+)'", str(error)) if isinstance(error, NameError) else None
        bad = any(check["status"] != "ok" for check in self.checks)
        return unbound is not None and (bad or unbound[1] in self._caught)

    def _calls(self) -> None:
        for call in self._plan["calls"]:
            args, named = plain_value(call["args"]), plain_value(call["kwargs"])
            wanted, loose = [plain_value(value) for value in call["expected"]], call["loose"]
            tolerance = self._plan["tolerance"]
            # JSON has no integer keys: a mapping of the row may stand for one with them.
            for each in readings(args) if loose else [args]:
                try:
                    said = self.link.call(call["function"], each, named, lists=loose)
                    if expected(said, wanted, tolerance, loose=loose):
                        status, detail = "ok", ""
                        break
                    status, detail = "wrong", f"returned {shown(said)}"
                except (Exception, Fault) as error:
                    if isinstance(error, MemoryError) or not is_from_answer(error):
                        raise
                    status, detail = _ended(error)
                    if isinstance(error, Fault):
                        break
            self._note("", status, detail)

    def _code(self) -> None:
        code = prepared(tuple(self._plan["asserts"]), self._plan["entry_point"], self._plan["helpers"])
        module = sys.modules["tests"] = types.ModuleType("tests")
        space = self.link.space = module.__dict__
        space["__file__"] = "tests.py"
        self.link.shared, self._caught, self._asserting = code.shared | set(NODES), code.caught, code.asserting
        if code.shares and not isinstance(self.link, Beside):
            raise Unusable(f"the tests use {code.shares!r}, which shares state with the answer or looks at its code")
        self._state = code.state
        if not code.harmless:
            self.link.share(code.state)
        # A reply may name others, even built-in ones, in which the tests must not find the answer's.
        found = {name: data for name, data in self.link.names(sorted(code.wanted)).items() if name in code.wanted}
        # A name that the answer lacks is looked up with each use, and missed there.
        names = {*found, *(name for name in code.wanted if not hasattr(builtins, name))}
        space.update({name: self.link.name(name, found.get(name)) for name in names})
        for name, path in code.undeclared.items():  # as if the answer had imported it
            with contextlib.suppress(ImportError, AttributeError):
                space[name] = pkgutil.resolve_name(path)
        for name, source in code.imported.items():
            if source == "*":
                space[name] = _Module(self.link)
            else:
                space[name] = space.get(source, vars(builtins).get(source))
        if not isinstance(self.link, Beside):
            space.update({each.__name__: self._only_own(each) for each in (eval, exec) if each.__name__ not in space})
        if any("allclose" in text for text in self._plan["asserts"]):
            with contextlib.suppress(ImportError):
                _close_as_tests_mean()
        space |= {"__judge__": self, "__data__": code.data}
        exec(code.code, space)
        if code.tested:
            run_tests(module, self.outcome)
        if not (code.imported or self.link.asked) and all(check["status"] == "ok" for check in self.checks):
            raise OwnFault("the tests never call the answer; a check(candidate) needs an 'entry_point'")

    def _only_own(self, run: Any) -> Any:
        """``eval`` or ``exec`` that refuses text of the answer: arithmetic and what the tests spell out are run."""

        def guarded(text: Any, *spaces: Any) -> Any:
            own = isinstance(text, str) and (
                not re.search(r"[^\W\d]", text) or any(text in each for each in self._plan["asserts"])
            )
            if self.link.asked and not own:
                raise Unusable("the tests run text that the answer may have made")
            frame = sys._getframe(1)
            return run(text, *(spaces or (frame.f_globals, frame.f_locals)))

        return guarded

    # Called by the instrumented code. ``hard`` counts asserts in functions and blocks of the tests.

    def at(self) -> None:
        self.link.touched, self._asked = 0, self.link.asked
        self.link.raises = False

    def raises(self) -> None:
        self.link.raises = True

    def hard(self) -> None:
        self._hard += 1

    def begin(self) -> tuple[int, int]:
        return self._hard, len(self.checks)

    def ok(self, name: str, before: tuple[int, int], counts: bool, must: bool) -> None:
        if must and before == self.begin():
            self._note(name, "wrong", _UNREACHED)
        # Asserts of units inside this one have been counted with them.
        elif counts or self._hard > max(before[0], self._counted):
            self._note(name, "ok")

    def bad(self, name: str) -> None:
        self.outcome(name, sys.exc_info()[1])


def _close_as_tests_mean() -> None:
    """For numpy an empty array is close to any number, to which it is stretched; a test means no such answer."""
    numpy: Any = importlib.import_module("numpy")
    real = numpy.allclose

    def allclose(said: Any, wanted: Any, *rest: Any, **named: Any) -> bool:
        said, wanted = numpy.asanyarray(said), numpy.asanyarray(wanted)
        return (not said.size) == (not wanted.size) and bool(real(said, wanted, *rest, **named))

    if real.__module__ != __name__:
        numpy.allclose = allclose


class _Module:
    """``import solution``."""

    def __init__(self, link: Any) -> None:
        self._link = link

    def __getattr__(self, name: str) -> Any:
        return self._link.name(name, self._link.names([name]).get(name))
