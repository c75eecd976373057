"""Runs the tests of a row in a jail of their own and says what each check gave.

A check is an assert (or a statement that runs asserts) at the top of the code or of ``check(candidate)``, a test
function or method, or a call with an expected value. A check that fails does not end the others.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import json
import math
import os
import symtable
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from roll_envs.verifiers.code.inside.proxies import Fault, Link, Remote, Unusable, is_from_answer

__all__ = ["Tests", "same_value"]

ANSWER_MODULES = frozenset(
    "solution answer main __main__ candidate submission code_solution my_solution your_module your_solution my_module "
    "module_under_test program student implementation".split()
)
"""Modules under which published tests import the answer."""
_KNOWN = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot", "mock": "unittest.mock"}
_MOST_CHECKS = 20_000


class Tests:
    """The tests of one row and what they found."""

    __test__ = False

    def __init__(self, mark: str, plan: dict[str, Any], *, control: bool = False, answer: str | None = None) -> None:
        self._mark, self._plan = mark, plan
        self.link: Any = _Control() if control else Link() if answer is None else _Beside(answer)
        # Errors in statements of the tests; of the control, those that have nothing to do with its values.
        self.checks: list[dict[str, Any]] = []
        self._doubts: list[str] = []
        self._hard = self._counted = 0
        self._streams: tuple[Any, Any] = (io.StringIO(), io.StringIO())
        sys.stdout, sys.stderr = self._streams
        threading.stack_size(64 << 20)
        threading.Thread(target=self._work, daemon=True).start()

    # -- in the thread of the cells ------------------------------------------------------------------------------------

    def step(self, identity: str, message: str | None = None) -> None:
        """Hand over a reply, and print what is asked next, or the results."""
        # Each cell begins with new streams; the tests may have put others in their place.
        sys.stdout, sys.stderr = self._streams
        if message is not None:
            self.link.inbox.put(message)
        said = self.link.outbox.get()
        self._streams = (sys.stdout, sys.stderr)
        kind = next(iter(said))
        data = f"\n{self._mark}{identity}{kind} {json.dumps(said[kind])}\n".encode()
        while data:
            data = data[os.write(1, data) :]

    # -- in the thread of the tests -----------------------------------------------------------------------------------

    def _work(self) -> None:
        fault, refused = "", False
        try:
            self._calls() if self._plan["calls"] else self._code()
        except Fault as error:
            self._note("tests", error.status, str(error))
        except (Unusable, _OwnFault) as error:
            fault, refused = str(error)[:300], isinstance(error, Unusable)
        except BaseException as error:
            if is_from_answer(error):
                self._note("tests", "error", f"{type(error).__name__}: {_text(error)}")
            else:
                fault = f"{type(error).__name__}: {str(error)[:300]}"
        result = {"checks": self.checks, "doubts": self._doubts, "fault": fault, "refused": refused}
        result |= {"asked": self.link.asked, "load": getattr(self.link, "load_fault", "")}
        self.link.outbox.put({"done": result})

    def _note(self, name: str, status: str, detail: str = "") -> None:
        """A check has ended; time, memory and operators of the answer since the last one are its."""
        self._counted = self._hard
        if len(self.checks) >= _MOST_CHECKS:
            raise _OwnFault(f"the tests make more than {_MOST_CHECKS} checks")
        bad = status != "ok" and len(self.checks) < _MOST_CHECKS
        entry = {"name": f"test {len(self.checks) + 1}, {name[:80]}" if name else f"test {len(self.checks) + 1}"}
        entry |= {"status": status, "detail": detail[:300] if bad else "", "inside": bool(self.link.inside)}  # type: ignore[dict-item]
        entry |= {"time_s": self.link.time_s, "memory_mb": self.link.memory_mb}
        self.checks.append(entry)
        self.link.time_s = self.link.memory_mb = self.link.inside = 0

    def _failed(self, name: str, error: BaseException) -> None:
        if isinstance(error, (Unusable, _OwnFault)):
            raise error
        if isinstance(error, Fault):
            self._note(name, error.status, str(error))
            return
        answers = is_from_answer(error)
        if isinstance(error, ImportError) and not answers:
            raise _OwnFault(f"module {error.name!r} is missing in the jail of the tests ({error})"[:300])
        # pytest.fail() and pytest.raises() end with an outcome of pytest's own.
        outcomes = sys.modules.get("_pytest.outcomes")
        failed = isinstance(error, (AssertionError, *([outcomes.OutcomeException] if outcomes else [])))
        if failed and not answers:
            text = str(error)
            self._note(name, "wrong", text)
            return
        if not answers and not self.link.asked:
            raise _OwnFault(f"{name}: {type(error).__name__}: {error}"[:300])
        if not answers and self.link.untouched and "Anything" not in str(error):
            self._doubts.append(f"{name}: {type(error).__name__}")
        self._note(name, "error", f"{type(error).__name__}: {_text(error)}")

    def _calls(self) -> None:
        for call in self._plan["calls"]:
            args, named = _value(call["args"]), _value(call["kwargs"])
            wanted, loose = _value(call["expected"]), call["loose"]
            tolerance = self._plan["tolerance"]
            good, detail = False, ""
            try:
                # JSON has no integer keys: a mapping of the row may stand for one with them.
                for each in _readings(args) if loose else [args]:
                    detail = ""
                    said = self.link.call(call["function"], each, named, lists=loose)
                    good = _expected(said, wanted, tolerance, loose, call["wrapped"])
                    if good:
                        break
                    detail = f"returned {_text(said)}"
            except Exception as error:
                if isinstance(error, MemoryError) or not is_from_answer(error):
                    raise
                self._note("", "error", f"{type(error).__name__}: {_text(error)}")
                continue
            except Fault as error:
                self._note("", error.status, str(error))
                continue
            self._note("", "ok" if good else "wrong", detail)

    def _code(self) -> None:
        plan = self._plan
        tree = _parsed(plan["asserts"])
        module = types.ModuleType("tests")
        sys.modules["tests"] = module
        space = module.__dict__
        if not isinstance(self.link, _Beside):
            _check_separable(tree)
        imported = _take_imports(tree)
        names = _free_names(ast.unparse(tree), set(imported) | {"candidate"})
        entry = plan["entry_point"]
        wanted = {*(source for source in imported.values() if source != "*"), *names, *([entry] if entry else [])}
        builtin = {name for name in wanted if hasattr(builtins, name)}
        if entry:
            wanted -= builtin - {entry}
        elif wanted - builtin:
            wanted -= builtin - set(imported.values())
        attributes = _modules_of(tree)
        libraries = {name for name in wanted if name in attributes and name not in imported}
        found = self.link.names(sorted(wanted - libraries))
        # A name that the answer lacks is looked up with each use, and missed there.
        names = {*found, *(name for name in wanted - libraries if not hasattr(builtins, name))}
        space.update({name: self.link.name(name, found.get(name)) for name in names})
        for name in libraries:  # used without an import, as if the answer had imported it
            with contextlib.suppress(ImportError):
                space[name] = __import__("importlib").import_module(_KNOWN.get(name, name))
        for name, source in imported.items():
            if source == "*":
                space[name] = _Module(self.link)
            else:
                space[name] = space.get(source, vars(builtins).get(source))
        if entry:
            space["candidate"] = space.get(entry, vars(builtins).get(entry))
        if _needs_check(tree, entry):
            tree.body.append(ast.parse(f"check({entry})").body[0])
        self._run(tree, module, entry)

    def _run(self, tree: ast.Module, module: types.ModuleType, entry: str) -> None:
        space = module.__dict__
        space["__judge__"] = self
        has_tests = _has_tests(tree)
        whole = _Checks(check=bool(entry)).visit(tree)
        exec(compile(ast.fix_missing_locations(whole), "<tests>", "exec", dont_inherit=True), space)
        if has_tests:
            from roll_envs.verifiers.code.inside.pytest_run import run_tests

            run_tests(module, self.outcome)

    def outcome(self, name: str, error: BaseException | None) -> None:
        """A test function or method has ended, by ``error`` if one is given."""
        if error is None:
            self._note(name, "ok")
        else:
            self._failed(name, error)

    # Called by the instrumented code. ``hard`` counts asserts in functions and blocks of the tests.

    def at(self) -> None:
        self.link.touched = 0

    def hard(self) -> None:
        self._hard += 1

    def begin(self) -> int:
        return self._hard

    def ok(self, name: str, before: int, counts: bool) -> None:
        # Asserts of units inside this one have been counted with them.
        if counts or self._hard > max(before, self._counted):
            self._note(name, "ok")

    def bad(self, name: str) -> None:
        error = sys.exc_info()[1]
        assert error is not None
        self._failed(name, error)


class _OwnFault(Exception):
    """The tests themselves are at fault."""


class _Module:
    """``import solution``."""

    def __init__(self, link: Any) -> None:
        self._link = link

    def __getattr__(self, name: str) -> Any:
        return self._link.name(name, self._link.names([name]).get(name))


_SHARED = frozenset(
    "open tempfile shutil mock patch MagicMock Mock monkeypatch mocker tmp_path tmpdir tmp_path_factory subprocess".split()
)
"""Names by which tests reach into the process or the files of the answer."""


def _check_separable(tree: ast.Module) -> None:
    """Raises :class:`Unusable` for tests that change files or modules that the answer is meant to see."""
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        name = node.arg if isinstance(node, ast.arg) else name
        if name in _SHARED or name == "seed":
            raise Unusable(f"the tests use {name!r}, by which they share files or state with the answer")


# -- reading test code -------------------------------------------------------------------------------------------------


def _parsed(texts: list[str]) -> ast.Module:
    body = []
    for text in texts:
        try:
            body += ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError) as error:
            raise _OwnFault(f"the test code cannot be compiled: {error}") from None
    return ast.Module(body=[n for n in body if getattr(n, "module", "") != "__future__"], type_ignores=[])


def _take_imports(tree: ast.Module) -> dict[str, str]:
    """Removes imports of the answer; returns name -> name in the answer, or ``*`` for its whole module."""
    found: dict[str, str] = {}

    class Take(ast.NodeTransformer):
        def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
            if (node.module or "").split(".")[-1] not in ANSWER_MODULES and not (node.level and not node.module):
                return node
            found.update({a.asname or a.name: a.name for a in node.names if a.name != "*"})
            return ast.copy_location(ast.Pass(), node)

        def visit_Import(self, node: ast.Import) -> ast.AST:
            ours = [a for a in node.names if a.name in ANSWER_MODULES]
            found.update({a.asname or a.name: "*" for a in ours})
            node.names = [a for a in node.names if a not in ours]
            return node if node.names else ast.copy_location(ast.Pass(), node)

    Take().visit(tree)
    return found


def _free_names(code: str, bound: set[str]) -> set[str]:
    """Names that the code reads and never binds where they are read."""
    table = symtable.symtable(code, "<tests>", "exec")
    top = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}

    def read(scope: symtable.SymbolTable) -> Iterator[str]:
        for symbol in scope.get_symbols():
            if symbol.is_referenced() and (scope is table or symbol.is_global()):
                yield symbol.get_name()
        for child in scope.get_children():
            yield from read(child)

    names = set(read(table)) - top - bound
    called = set(names)
    mine = {name for name in names if hasattr(builtins, name)}
    if called == mine:  # nothing but built-in names: the innermost call is the one that is tested
        mine = _innermost(ast.parse(code), mine)
        return mine
    return names


def _innermost(tree: ast.AST, names: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            inner = [n for part in [*node.args, *node.keywords] for n in ast.walk(part) if isinstance(n, ast.Call)]
            if not inner:
                found.add(node.func.id)
    return found


def _modules_of(tree: ast.AST) -> set[str]:
    """Names of libraries that are only read as ``name.attribute``."""
    owners = {n.value.id for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    return {name for name in owners - called if name in _KNOWN or name in sys.stdlib_module_names}


def _needs_check(tree: ast.Module, entry: str) -> bool:
    defines = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    calls = any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "check"
        for node in tree.body
        if not isinstance(node, ast.FunctionDef)
        for n in ast.walk(node)
    )
    return bool(entry) and defines and not calls


def _has_tests(tree: ast.Module) -> bool:
    return any(
        (isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name.startswith("test"))
        or (isinstance(n, ast.ClassDef) and any(getattr(m, "name", "").startswith("test") for m in n.body))
        for n in tree.body
    )


class _Checks(ast.NodeTransformer):
    """Makes each check of the top level a unit of its own, and counts asserts elsewhere."""

    def __init__(self, *, check: bool) -> None:
        self._check = check

    def visit_Module(self, node: ast.Module) -> ast.AST:
        main = [n for n in node.body if not _is_main(n)]
        node.body = self._units([*main, *(s for n in node.body if _is_main(n) for s in n.body if _is_code(s))])
        return node

    def _units(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [made for statement in body for made in self._unit(statement)]

    def _unit(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and self._check:
            node.body = self._units(node.body)
            return [node]
        if isinstance(node, (ast.For, ast.While, ast.If)) and not _jumps(node):
            node.body, node.orelse = self._units(node.body), self._units(node.orelse)
            return [self._wrapped(node, counts=False)]
        counts = isinstance(node, ast.Assert) or (
            isinstance(node, (ast.With, ast.Try)) and any(isinstance(n, (ast.Assert, ast.With)) for n in ast.walk(node))
        )
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Return, ast.Break, ast.Continue, ast.Global, ast.Pass)):
            return [_call("at"), node]
        name = ast.unparse(node)
        made = node if isinstance(node, ast.Assert) else self.generic_visit(node)
        return [_call("at"), self._wrapped(made, counts=counts, name=name)]  # type: ignore[arg-type]

    def _wrapped(self, node: ast.stmt, *, counts: bool, name: str = "") -> ast.stmt:
        name = (name or ast.unparse(node)).splitlines()[0][:80]
        shell = ast.parse(
            f"try:\n    __before__ = __judge__.begin()\n    pass\n    __judge__.ok({name!r}, __before__, {counts})\n"
            f"except BaseException:\n    __judge__.bad({name!r})"
        ).body[0]
        assert isinstance(shell, ast.Try)
        shell.body[1] = node
        if not counts and not isinstance(node, ast.Expr):
            shell.body.pop()
        return ast.copy_location(shell, node)

    def visit_Assert(self, node: ast.Assert) -> Any:
        return [_call("at"), node, _call("hard")]

    def visit_Expr(self, node: ast.Expr) -> Any:
        # A method such as assertEqual, or a library's assert_allclose.
        named = isinstance(node.value, ast.Call) and ast.unparse(node.value.func).rpartition(".")[2].startswith("assert")
        return [_call("at"), node, *([_call("hard")] if named else [])]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        self.generic_visit(node)
        return node


def _call(method: str) -> ast.stmt:
    return ast.parse(f"__judge__.{method}()").body[0]


def _is_main(node: ast.stmt) -> Any:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _is_code(node: ast.stmt) -> bool:
    return not any(word in ast.unparse(node) for word in ("unittest.main", "pytest.main"))


def _jumps(node: ast.stmt) -> bool:
    return any(isinstance(n, (ast.Yield, ast.Await, ast.AsyncFor)) for n in ast.walk(node))


# -- values ------------------------------------------------------------------------------------------------------------


def _value(data: Any) -> Any:
    from roll_envs.verifiers.code.inside.values import decode

    return decode(data, lambda _: None)


def _text(value: Any) -> str:
    if isinstance(value, Remote):
        return f"a {object.__getattribute__(value, '_facts').get('type')}"
    if isinstance(value, BaseException):
        return str(value)[:200]
    try:
        return repr(value)[:200]
    except (ValueError, Fault):
        return f"a {type(value).__name__} too large to show"


def _readings(args: Any) -> Iterator[Any]:
    integer = _with_integer_keys(args)
    if integer != args:
        yield integer
    yield args


def _with_integer_keys(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_with_integer_keys, value))
    if not isinstance(value, dict):
        return value
    whole = bool(value) and all(isinstance(k, str) and k.lstrip("-").isdecimal() for k in value)
    return {int(k) if whole else k: _with_integer_keys(v) for k, v in value.items()}


def _expected(said: Any, wanted: Any, tolerance: float, loose: bool, wrapped: bool) -> bool:
    forms = [wanted, wanted[0]] if wrapped and isinstance(wanted, list) and len(wanted) == 1 else [wanted]
    forms += [_with_integer_keys(form) for form in forms] if loose else []
    return any(same_value(said, form, tolerance=tolerance, sequences_alike=loose) for form in forms)


def same_value(said: Any, wanted: Any, *, tolerance: float = 0.0, sequences_alike: bool = False) -> bool:
    """Whether two plain values are the same.

    Unlike ``==``: ``True`` is not 1, nan is nan, and with ``tolerance`` floats may differ by it (relative to the
    larger, absolute below 1). ``sequences_alike``: a tuple may stand for a list, since JSON has no tuples.
    """
    if isinstance(said, Remote):
        return False

    def same(one: Any, other: Any) -> bool:
        return same_value(one, other, tolerance=tolerance, sequences_alike=sequences_alike)

    if type(said).__module__ == "numpy" and hasattr(said, "tolist"):
        said = said.tolist()
    # Before the numbers, since a bool is an int in Python.
    if isinstance(said, bool) or isinstance(wanted, bool):
        return said is wanted
    numbers = (int, float, complex)
    if isinstance(said, numbers) and isinstance(wanted, numbers):
        return _same_number(said, wanted, tolerance)
    if isinstance(said, (list, tuple)) and isinstance(wanted, (list, tuple)):
        alike = sequences_alike or isinstance(said, list) is isinstance(wanted, list)
        return alike and len(said) == len(wanted) and all(map(same, said, wanted))
    if isinstance(said, dict) and isinstance(wanted, dict):
        return len(said) == len(wanted) and all(key in said and same(said[key], wanted[key]) for key in wanted)
    return bool(type(said) is type(wanted) and said == wanted)


def _same_number(said: Any, wanted: Any, tolerance: float) -> bool:
    if said != said or wanted != wanted:
        return bool(said != said and wanted != wanted)
    if said == wanted:
        return True
    if not tolerance or (isinstance(said, int) and isinstance(wanted, int)):
        return False
    try:
        difference, size = abs(said - wanted), max(abs(said), abs(wanted), 1.0)
        return bool(math.isfinite(size) and difference <= tolerance * size)
    except OverflowError:
        return False


# -- the control -------------------------------------------------------------------------------------------------------


class _Control:
    """In place of the answer's jail: an answer that has every name and whose values allow everything.

    An error in a statement that did nothing with such a value is an error of the tests.
    """

    def __init__(self) -> None:
        import queue

        self.outbox: Any = queue.SimpleQueue()
        self.asked = self.inside = self.touched = 0
        self.time_s = self.memory_mb = 0.0
        self.anything = _anything(self)

    @property
    def untouched(self) -> bool:
        return not self.touched

    def names(self, names: list[str]) -> dict[str, Any]:
        return dict.fromkeys(names)

    def name(self, name: str, data: Any) -> Any:
        if name[:1].isupper():  # a class, perhaps of an exception
            return _Whatever(name, (Exception,), vars(type(self.anything)) | {"_control": self})
        return lambda *args, **named: self.call()

    def call(self, *args: Any, **named: Any) -> Any:
        self.asked += 1
        return self.anything


class _Whatever(type):
    def __getattr__(cls, name: str) -> Any:
        control = type.__getattribute__(cls, "_control")
        control.touched += 1
        return control.anything


class _Beside:
    """In place of the answer's jail: the answer's module beside the tests, which it can then cheat."""

    untouched = True

    def __init__(self, source: str) -> None:
        import queue

        self.outbox: Any = queue.SimpleQueue()
        self.inside, self.asked = 1, 1
        self.time_s = self.memory_mb = 0.0
        self._source = source
        self._module: Any = None

    def names(self, names: list[str]) -> dict[str, Any]:
        if self._module is None:
            self._module = types.ModuleType("solution")
            sys.modules.update(dict.fromkeys(ANSWER_MODULES - {"__main__"}, self._module))
            try:
                exec(compile(self._source, "<answer>", "exec", dont_inherit=True), self._module.__dict__)
            except BaseException as error:
                raise Fault("error", f"{type(error).__name__}: {error}") from None
        return {name: None for name in names if hasattr(self._module, name)}

    def name(self, name: str, data: Any) -> Any:
        try:
            return getattr(self._module, name)
        except AttributeError:
            raise Fault("error", f"NameError: the answer defines no {name!r}") from None


def _anything(control: _Control) -> Any:
    def method(result: Callable[[Any], Any]) -> Any:
        def touched(self: Any, *args: Any, **named: Any) -> Any:
            control.touched += 1
            return result(self)

        return touched

    own: dict[str, Any] = {}
    for name in "call getattr getitem add sub mul truediv floordiv mod pow radd rsub rmul rtruediv rfloordiv rmod rpow "\
            "neg pos abs invert enter and or xor rand ror rxor lshift rshift rlshift rrshift matmul rmatmul divmod".split():  # fmt: skip
        own[f"__{name}__"] = method(lambda self: self)
    for name in "eq ne lt le gt ge bool contains instancecheck".split():
        own[f"__{name}__"] = method(lambda self: True)
    for name in "setattr setitem delitem delattr exit".split():
        own[f"__{name}__"] = method(lambda self: None)
    simple = {"len": 1, "int": 1, "index": 1, "hash": 1, "float": 1.0, "bytes": b"1", "str": "1", "repr": "1", "format": "1"}
    for name, value in simple.items():
        own[f"__{name}__"] = method(lambda self, value=value: value)  # type: ignore[misc]
    own["__iter__"] = method(lambda self: iter([self]))
    return type("Anything", (), own)()
