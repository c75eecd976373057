"""Reads the code of tests: what it takes from the answer, and which of its statements are checks."""

from __future__ import annotations

import ast
import builtins
import contextlib
import datetime
import functools
import re
import symtable
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

ANSWER_MODULES = frozenset(
    "solution answer main __main__ candidate submission code code_solution my_solution your_module your_solution "
    "my_module module_under_test program student implementation".split()
)
"""Modules under which published tests import the answer."""
_KNOWN = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot", "mock": "unittest.mock"}
"""Names that libraries usually have."""
_CONTAINERS = {
    **{name: f"collections.{name}" for name in ("Counter", "OrderedDict", "defaultdict", "deque")},
    **{"Fraction": "fractions.Fraction", "Decimal": "decimal.Decimal"},
}
"""Classes with which tests compare what functions of the answer return."""
_TOLD = frozenset(
    "open seed environ chdir tempfile shutil os pathlib Path glob tmp_path tmp_path_factory tmpdir monkeypatch patch "
    "mock Mock MagicMock"
    .split()
)  # fmt: skip
"""Names by which tests set what the answer is told of (see ``shared``)."""
_WRITING = frozenset("open chdir tempfile shutil tmp_path tmp_path_factory tmpdir".split())
"""Those after which a path that the tests spell out is one of a file; folders of the system are not shared."""
_SEEDS = ("random.seed", "numpy.random.seed")
_SHARED = frozenset(
    "seed signature stdin redirect_stderr warns deprecated_call getsource getfullargspec get_type_hints gcf gca "
    "get_fignums iscoroutinefunction is_dataclass asdict astuple symlink islink readlink"
    .split()
)  # fmt: skip
"""Names of libraries by which tests reach into the process of the answer, or look at its code."""
_OF_TESTS = frozenset(
    "monkeypatch mocker recwarn caplog assertWarns assertWarnsRegex assertLogs symlink_to hardlink_to is_symlink"
    .split()
)  # fmt: skip
"""Arguments and methods of tests by which they do."""
_RUNNING = re.compile(
    r"(_?pickle|dill|cloudpickle|marshal|joblib|torch)\.(loads?|Unpickler)|(shelve|runpy|jsonpickle|ctypes)\.\w+|"
    r"yaml\.(load|unsafe_load|full_load)(_all)?|pandas\.read_(pickle|hdf)|.*\b(load_model|allow_pickle)|"
    r"logging\.config\.\w+|importlib\.(util\.spec_from_file_location|machinery\.\w+)|"
    r"subprocess\.(run|call|check_\w+|Popen|get\w+)|os\.(system|popen|exec\w+|(posix_)?spawn\w*)|"
    r".*\bcreate_subprocess_\w+"
)
"""What runs code that bytes or files hold, which may be the answer's."""
_DATA = "__data__"


_MODULES = frozenset(
    "math cmath collections itertools functools operator re string datetime fractions heapq bisect typing copy numpy"
    .split()
)  # fmt: skip
_NODES = (
    *(ast.Module, ast.Assert, ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.FunctionDef, ast.Return, ast.If),
    *(ast.For, ast.Break, ast.Continue, ast.Pass, ast.Import, ast.ImportFrom, ast.Try, ast.Raise, ast.ExceptHandler),
    *(ast.arguments, ast.arg, ast.keyword, ast.alias, ast.comprehension, ast.expr, ast.expr_context),
    *(ast.boolop, ast.operator, ast.unaryop, ast.cmpop),
)
_DISPLAYS, _LONG = (ast.List, ast.Tuple, ast.Set, ast.Dict), 20
_NO_BUILT_IN = frozenset("open exec eval compile setattr delattr getattr input globals locals vars exit quit".split())
_NO_ATTRIBUTE = frozenset(
    "random seterr seterrcall set_printoptions save load fromfile tofile setdefault "
    "exists is_file is_dir stat iterdir glob rglob resolve read_text read_bytes"
    .split()
)  # fmt: skip


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in _MODULES and not node.level
    if isinstance(node, ast.Import):
        return all(alias.name in _MODULES for alias in node.names)
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Load) and not node.attr.startswith("_") and node.attr not in _NO_ATTRIBUTE
    if isinstance(node, ast.Name):
        return node.id == _DATA or (not node.id.startswith("__") and node.id not in _NO_BUILT_IN)
    return isinstance(node, _NODES) and not isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom))


class OwnFault(Exception):
    """The tests themselves are at fault."""


class Code(NamedTuple):
    """The tests of a row, ready to run."""

    code: types.CodeType
    """With calls of ``__judge__`` (:class:`Checks`)."""
    imported: dict[str, str]
    """Name -> name in the answer, or ``*`` for its whole module."""
    wanted: frozenset[str]
    """Names that are looked for in the answer."""
    undeclared: dict[str, str]
    """Modules, and classes of :data:`_CONTAINERS`, that they use without an import -> where they are."""
    tested: bool
    """Whether there are test functions or classes."""
    asserting: frozenset[str]
    """Test functions and methods that cannot end well without an assert (:func:`must_assert`)."""
    harmless: bool
    """Whether they change nothing outside their own module."""
    shared: frozenset[str]
    """Classes of the helpers, of which the answer has one each too."""
    caught: frozenset[str]
    """Names that are bound where an exception is handled."""
    shares: str
    """The name by which they reach into the answer's process, or run what it may have made."""
    state: frozenset[str]
    """Names by which they use files, or set what the answer is told of."""
    data: Data
    """Their long literals, as ``__data__``."""


@functools.lru_cache(32)  # a row is often judged with several answers, one after the other
def prepared(texts: tuple[str, ...], entry: str, helpers: str = "") -> Code:
    """Read test code, with the functions of ``helpers`` that it may call. Raises :class:`OwnFault` for code that cannot
    be compiled."""
    body = _helpers(helpers, entry)
    shared = frozenset(node.name for node in body if isinstance(node, ast.ClassDef))
    for text in texts:
        try:
            body += ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError) as error:
            raise OwnFault(f"the test code cannot be compiled: {error}") from None
    body = [n for n in body if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")]
    tree, data = ast.Module(body=body, type_ignores=[]), Data()
    data.visit(tree)
    imported = take_imports(tree) | ({"candidate": entry} if entry else {})
    nodes = list(ast.walk(tree))
    handlers = [each for node in nodes if isinstance(node, ast.ExceptHandler) for each in ast.walk(node)]
    caught = frozenset(n.id for n in handlers if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    names = free_names(ast.unparse(tree), {*imported, "candidate", "__file__", _DATA})
    wanted = {*(source for source in imported.values() if source != "*"), *names}
    builtin = {name for name in wanted if hasattr(builtins, name)}
    if entry or wanted - builtin:
        wanted -= builtin - set(imported.values())
    libraries = {name: path for name, path in modules_of(tree).items() if name in wanted and name not in imported}
    containers = {name for name in wanted if name in _CONTAINERS and name not in imported and name != entry}
    containers = containers if wanted - containers - libraries.keys() else set()
    if needs_check(tree, entry):
        tree.body.append(ast.parse("check(candidate)").body[0])
    shares, state = _shares(nodes)
    tested, harmless = has_tests(tree), not (libraries or state) and all(map(_is_harmless, nodes))
    functions = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    # Classes may have methods of the same name.
    asserting = {f.name for f in functions} - {f.name for f in functions if not must_assert(f.body)}
    whole = ast.fix_missing_locations(Checks(check=bool(entry)).visit(tree))
    code = compile(whole, "<tests>", "exec", dont_inherit=True)
    return Code(
        code=code,
        imported=imported,
        wanted=frozenset(wanted - libraries.keys() - containers),
        undeclared=libraries | {name: _CONTAINERS[name] for name in containers},
        tested=tested,
        asserting=frozenset(asserting),
        harmless=harmless,
        shared=shared,
        caught=caught,
        shares=shares,
        state=state,
        data=data,
    )


class Data(ast.NodeTransformer):
    """Takes long literals out of the tests: to look at each part of one would take much longer than to make it."""

    def __init__(self) -> None:
        self._codes: list[types.CodeType] = []

    def __getitem__(self, number: int) -> Any:
        return eval(self._codes[number])

    def visit(self, node: Any) -> Any:
        if len([*getattr(node, "elts", ()), *getattr(node, "values", ())]) < _LONG or not _is_data(node):
            return self.generic_visit(node)
        self._codes.append(compile(ast.Expression(node), "<tests>", "eval"))
        return ast.copy_location(ast.parse(f"{_DATA}[{len(self._codes) - 1}]", mode="eval").body, node)


def _is_data(node: Any) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.operand, ast.Constant)
    parts = [*getattr(node, "elts", ()), *getattr(node, "keys", ()), *getattr(node, "values", ())]
    return isinstance(node, ast.Constant) or (isinstance(node, _DISPLAYS) and all(map(_is_data, parts)))


def _helpers(text: str, entry: str) -> list[ast.stmt]:
    """What stands before the answer's code and is no part of it, lest the answer define it anew for the tests.

    Nothing where there are classes with bases, whose objects are the answer's.
    """
    found = given_code(text, entry)
    derived = any(isinstance(node, ast.ClassDef) and node.bases for node in found)
    return [] if derived or all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in found) else found


def given_code(text: str, entry: str) -> list[ast.stmt]:
    """Imports, definitions and constants of a prompt, without what is to be completed, which may be its end; nothing of
    another text."""
    for end in ("", "\n    pass", "\n        pass"):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return [node for node in ast.parse(text + end).body if _is_given(node, entry)]
    return []


def _is_given(node: ast.stmt, entry: str) -> bool:
    if isinstance(node, ast.ClassDef):
        return node.name != entry.partition(".")[0].removesuffix("()")
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        stub = all(isinstance(each, (ast.Expr, ast.Pass, ast.Raise)) for each in node.body)
        return node.name != entry and not stub
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Try))


def _name_of(node: ast.AST) -> str:
    fields = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg"}
    return str(getattr(node, fields.get(type(node), ""), ""))


def _shares(nodes: list[ast.AST]) -> tuple[str, frozenset[str]]:
    """The name by which tests do with the answer what is refused, and those by which they share state that it is told
    of; the answer's own functions and methods may have the same."""
    paths = dict(_KNOWN)
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            paths.update({a.asname or a.name: module + a.name for a in node.names})
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    set_by = {n.attr for n in nodes if isinstance(n, ast.Attribute) and _name_of(n.value) == "monkeypatch"}
    own = _OF_TESTS - stored - ({"monkeypatch"} if set_by <= {"setenv", "delenv", "chdir"} else set())
    libraries = {name.partition(".")[0] for name in paths} | ({"open", *sys.stdlib_module_names} - stored - arguments)
    state = set()
    for node in nodes:
        name, path, ours = _name_of(node), _path(node, paths), _owner(node) in libraries
        if name in own or (name in _SHARED and ours and path not in _SEEDS) or _RUNNING.fullmatch(path):
            return name, frozenset()
        if reached := _reaches(node, paths):
            return reached, frozenset()
        if name in _TOLD and (ours or isinstance(node, ast.arg)):
            state.add(name)
    texts = (str(node.value) for node in nodes if isinstance(node, ast.Constant))
    spelled = (text for text in texts if re.match(r"/(var/)?tmp\b", text))
    return next(spelled, "") if state & _WRITING else "", frozenset(state)


def _reaches(node: ast.AST, paths: dict[str, str]) -> str:
    """The name by which tests look into the answer's process, or set what it is not told of; among them patches of the
    answer's own names, or of a mapping other than the environment."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        path = _path(node, paths)
        replaced = _owner(node) in paths and path.rpartition(".")[0] in {"os.path", *sys.stdlib_module_names}
        return path if replaced and path not in ("sys.stdout", "sys.stderr") else ""
    if _is_check(node):
        checked = {name for n in ast.walk(node) if not (name := _name_of(n)).startswith("assert")}
        if checked <= {"", "os", "self", "environ", "getenv", "get"}:
            # Nothing of the answer is there but what it may have set.
            return min(checked & {"environ", "getenv"}, default="")
    if not isinstance(node, (ast.Call, ast.Compare, ast.Subscript)):
        return ""
    names = [_path(each, paths) for each in ast.iter_child_nodes(node)]
    given = ast.unparse(node.args[0]).strip("'") if isinstance(node, ast.Call) and node.args else ""
    if names[0] == "unittest.mock.patch.dict" and given != "os.environ":
        return "patch.dict"
    if names[0] == "unittest.mock.patch" and (
        given.split(".")[0] in ANSWER_MODULES or not re.fullmatch(r"[\w.]+", given)
    ):
        return "patch"
    if names[0] == "warnings.catch_warnings" and names[1:]:
        return "catch_warnings"
    looked_at = ("sys.modules",) if isinstance(node, ast.Subscript) else ("sys.path", "sys.modules")
    return next((name for name in names if name in looked_at), "")


def _owner(node: Any) -> str:
    """The name that an expression begins with."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return _name_of(node)


def _path(node: Any, paths: dict[str, str]) -> str:
    """A dotted name, as libraries have it."""
    if isinstance(node, ast.Attribute):
        return f"{_path(node.value, paths)}.{node.attr}"
    name = _name_of(node)
    return paths.get(name, name)


def take_imports(tree: ast.Module) -> dict[str, str]:
    """Removes imports of the answer; returns name -> name in the answer, or ``*`` for its whole module."""
    found: dict[str, str] = {}

    class Take(ast.NodeTransformer):
        def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
            if (node.module or "").split(".")[-1] not in ANSWER_MODULES and not (node.level and not node.module):
                return node
            found.update({a.asname or a.name: a.name for a in node.names if a.name != "*"})
            return ast.copy_location(ast.Pass(), node)

        def visit_Import(self, node: ast.Import) -> ast.AST:
            # What tests import as a whole under the name code is Python's.
            ours = [a for a in node.names if a.name in ANSWER_MODULES - {"code"}]
            found.update({a.asname or a.name: "*" for a in ours})
            node.names = [a for a in node.names if a not in ours]
            return node if node.names else ast.copy_location(ast.Pass(), node)

    Take().visit(tree)
    return found


def free_names(code: str, bound: set[str]) -> set[str]:
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
    if all(hasattr(builtins, name) for name in names):  # the innermost call is the one that is tested
        return _innermost(ast.parse(code), names)
    return names


def _innermost(tree: ast.AST, names: set[str]) -> set[str]:
    def inner(call: ast.Call) -> bool:
        return any(isinstance(n, ast.Call) for part in [*call.args, *call.keywords] for n in ast.walk(part))

    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and not inner(n)]
    return {n.func.id for n in calls if isinstance(n.func, ast.Name)} & names


def modules_of(tree: ast.AST) -> dict[str, str]:
    """Libraries that are only read as ``name.attribute`` -> where they are; ``datetime.now`` is of the class."""
    attributes = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    used = [(n.value.id, n.attr) for n in attributes if isinstance(n.value, ast.Name)]
    names = {name for name, _ in used if name in _KNOWN or name in sys.stdlib_module_names} - _called(tree)
    of_class = any(name == "datetime" and not hasattr(datetime, each) for name, each in used)
    return {name: _KNOWN.get(name, name) for name in names} | ({"datetime": "datetime.datetime"} if of_class else {})


def needs_check(tree: ast.Module, entry: str) -> bool:
    defines = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    calls = any("check" in _called(node) for node in tree.body if not isinstance(node, ast.FunctionDef))
    return bool(entry) and defines and not calls


def _called(tree: ast.AST) -> set[str]:
    """Names that are called."""
    return {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def has_tests(tree: ast.Module) -> bool:
    return any(
        (isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name.startswith("test"))
        or (isinstance(n, ast.ClassDef) and any(getattr(m, "name", "").startswith("test") for m in n.body))
        for n in tree.body
    )


class Checks(ast.NodeTransformer):
    """Makes each check of the top level a unit of its own, and counts asserts elsewhere."""

    def __init__(self, *, check: bool) -> None:
        self._check, self._loops = check, 0
        self._checking: set[str] = set()
        """Functions of the tests that make checks, or call others that may."""

    def visit_Module(self, node: ast.Module) -> ast.AST:
        functions = [n for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        self._checking = {f.name for f in functions}
        self._checking = {f.name for f in functions if self._checks_in(f)}
        main = [n for n in node.body if not _is_main(n)]
        node.body = self._units(
            [*main, *(s for n in node.body if isinstance(n, ast.If) and _is_main(n) for s in n.body if _is_code(s))]
        )
        return node

    def _units(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [made for statement in body for made in self._unit(statement)]

    def _unit(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and self._check:
            node.body = self._units(node.body)
            return [node]
        if isinstance(node, (ast.For, ast.While, ast.If)) and not _jumps(node):
            must, self._loops = not self._loops and must_assert([node]), self._loops + 1
            node.body, node.orelse = self._units(node.body), self._units(node.orelse)
            self._loops -= 1
            return [self._wrapped(node, counts=False, must=must)]
        counts = _is_check(node) or (
            isinstance(node, (ast.With, ast.Try)) and any(isinstance(n, (ast.Assert, ast.With)) for n in ast.walk(node))
        )
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Return, ast.Break, ast.Continue, ast.Global, ast.Pass)):
            return [_call("at"), node]
        name = ast.unparse(node)
        made: Any = self.visit_With(node) if isinstance(node, ast.With) else self.generic_visit(node)
        return [_call("at"), self._wrapped(made, counts=counts, name=name)]

    def _wrapped(self, node: ast.stmt, *, counts: bool, name: str = "", must: bool = False) -> ast.stmt:
        name = (name or ast.unparse(node)).splitlines()[0][:80]
        start = f"__start_{self._loops}__"
        shell = ast.parse(
            f"try:\n    {start} = __judge__.begin()\n    pass\n    __judge__.ok({name!r}, {start}, {counts}, {must})\n"
            f"except BaseException:\n    __judge__.bad({name!r})"
        ).body[0]
        assert isinstance(shell, ast.Try)
        shell.body[1] = node
        if not (counts or must or isinstance(node, ast.Expr)):
            shell.body.pop()
        return ast.copy_location(shell, node)

    def _checks_in(self, node: ast.AST) -> bool:
        return any(_is_check(n) or _name_of(n) in self._checking for n in ast.walk(node))

    def visit_With(self, node: ast.With) -> ast.With:
        """Say before which statements of a ``with`` an exception leaves out no check."""
        last = node.body[-1]
        may_end = isinstance(last, ast.Expr) and not self._checks_in(last)
        self.generic_visit(node)
        ends = [n for n in node.body if isinstance(n, ast.Raise) or (n is last and may_end)]
        node.body = [each for n in node.body for each in ([_call("raises"), n] if n in ends else [n])]
        return node

    def visit_Expr(self, node: ast.stmt) -> Any:
        return [_call("at"), node, *([_call("hard")] if _is_check(node) else [])]

    visit_Assert = visit_Expr


def must_assert(body: list[ast.stmt]) -> bool:
    """Whether asserts, or loops of them, are among the statements, so that none is reached only for lack of values."""
    if any(isinstance(each, (ast.Return, ast.Break, ast.Continue)) for n in body for each in ast.walk(n)):
        return False
    asserts = any(_is_check(n) and not isinstance(getattr(n, "test", None), ast.Constant) for n in body)
    blocks = (n for n in body if isinstance(n, (ast.For, ast.While)) or "subTest" in ast.unparse(n).partition("\n")[0])
    return asserts or any(must_assert(getattr(n, "body", [])) for n in blocks)


def _is_check(node: ast.AST) -> bool:
    """Whether it is an assert, or calls a method such as assertEqual, or a library's assert_allclose."""
    call = node.value if isinstance(node, ast.Expr) else None
    named = isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2].startswith("assert")
    return named or isinstance(node, ast.Assert)


def _call(method: str) -> ast.stmt:
    return ast.parse(f"__judge__.{method}()").body[0]


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _is_code(node: ast.stmt) -> bool:
    return not any(word in ast.unparse(node) for word in ("unittest.main", "pytest.main"))


def _jumps(node: ast.stmt) -> bool:
    return any(isinstance(n, (ast.Yield, ast.Await, ast.AsyncFor)) for n in ast.walk(node))
