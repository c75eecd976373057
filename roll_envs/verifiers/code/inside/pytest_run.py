"""Runs test functions and classes: plain ones directly, unittest's by unittest, those that need pytest by pytest."""

from __future__ import annotations

import asyncio
import inspect
import io
import pathlib
import tempfile
import types
import unittest
from collections.abc import Callable, Generator
from typing import Any

_HOOKS = {f"{when}_{what}" for when in ("setup", "teardown") for what in ("module", "function")}
_FOLDER = pathlib.Path.cwd()
Outcome = Callable[[str, BaseException | None], None]


def run_tests(module: types.ModuleType, outcome: Outcome) -> None:
    """Tell ``outcome`` the name of each test of the module, with what it raised."""
    values = vars(module)
    cases = [value for value in values.values() if _is_case(value)]
    functions = {n: value for n, value in values.items() if n.startswith("test") and inspect.isfunction(value)}
    classes = [n for n, value in values.items() if n.startswith("Test") and isinstance(value, type)]
    marked = any(getattr(f, "pytestmark", None) or inspect.signature(f).parameters for f in functions.values())
    fixtures = any(type(value).__module__.startswith("_pytest") for value in values.values())
    if marked or fixtures or _HOOKS & values.keys() or any(not _is_case(values[name]) for name in classes):
        _by_pytest(module, outcome)
        return
    for name, function in functions.items():
        try:
            result = function()
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except BaseException as error:
            outcome(name, error)
        else:
            outcome(name, None)
    for case in cases:
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(_Result(outcome))


def _is_case(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, unittest.TestCase) and value.__module__ == "tests"


class _Result(unittest.TestResult):
    def __init__(self, outcome: Outcome) -> None:
        super().__init__(io.StringIO())
        self._outcome = outcome
        self._failed: set[str] = set()

    def addError(self, test: Any, err: Any) -> None:
        self._failed.add(str(test))
        self._outcome(str(test).split(" ")[0], err[1])

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addError(test, err)

    def addSuccess(self, test: Any) -> None:
        if str(test) not in self._failed:
            self._outcome(str(test).split(" ")[0], None)


def _by_pytest(module: types.ModuleType, outcome: Outcome) -> None:
    import pytest

    class Module(pytest.Module):
        def _getobj(self) -> types.ModuleType:
            return module

    class Plugin:
        @pytest.fixture
        def tmp_path(self) -> pathlib.Path:
            return pathlib.Path(tempfile.mkdtemp())  # that of pytest is named after the test's arguments

        def pytest_collect_file(self, file_path: Any, parent: Any) -> Any:
            return Module.from_parent(parent, path=file_path) if file_path.name == "tests_of_row" else None

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(self, pyfuncitem: Any) -> Any:
            if not inspect.iscoroutinefunction(pyfuncitem.obj):
                return None
            names = pyfuncitem._fixtureinfo.argnames
            asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
            return True

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, Any]:
            report = yield
            if report.failed:
                outcome(item.name, call.excinfo.value if call.excinfo else AssertionError("it passed"))
            elif report.passed and call.when == "call":
                outcome(item.name, None)
            return report

        def pytest_internalerror(self, excinfo: Any) -> None:
            raise excinfo.value  # perhaps of the answer, whose objects pytest looks at while it collects

        def pytest_exception_interact(self, call: Any, report: Any) -> None:
            if report.when == "collect":
                raise call.excinfo.value

    file = _FOLDER / "tests_of_row"  # no name that pytest would import, too
    file.touch()
    options = "-q -s -p no:cacheprovider -p no:faulthandler --assert=plain --noconftest -c /dev/null"
    said = pytest.main([*options.split(), f"--rootdir={_FOLDER}", str(file)], plugins=[Plugin()])
    if said not in (0, 1):
        raise RuntimeError(f"pytest ended with {said!r}")
