"""Reads the reference of a row into a plan of tests: test code, calls, or runs with input.

Accepted are rows as they are published, also as JSON text: test code (MBPP; HumanEval and EvalPlus with
``entry_point``; test files of KodCode and BigCodeBench), ``{"inputs", "outputs", "fn_name"}`` (APPS, TACO, Eurus),
lists of ``{"input", "output", "testtype" or "type"}`` (LiveCodeBench, its private tests compressed; DeepCoder,
SYNTHETIC-1 under ``test_cases``), ``public_tests`` / ``private_tests`` / ``generated_tests`` (CodeContests),
``official_tests`` (Codeforces), rows of SandboxFusion and ROLL, and ``stdin``, ``calls``, ``test_file``.
``checker``: a Python program that says whether an output is right. Left out: tasks whose programs read and write
files, or talk with another program.
"""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import itertools
import json
import pickletools
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from roll_envs.sandbox import Language
from roll_envs.verifiers.code.inside.reading import given_code
from roll_envs.verifiers.fences import FENCE_WORDS

Check = Callable[[bytes], None]


class Unusable(Exception):
    """The reference cannot be read as tests; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Call ``function`` (a dotted name; ``Solution().f`` makes the object first) and compare what it returns."""

    function: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    expected: list[Any]
    """Values that are right: besides a list of one its item, as in APPS and TACO, and besides a text the JSON in it."""
    from_json: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Run the program with ``stdin`` and compare what it prints."""

    stdin: str
    outputs: tuple[str, ...]
    """Of which any is right."""


@dataclass(kw_only=True, slots=True)
class Plan:
    """The tests of a row; one kind is filled."""

    prefix: str = ""
    """Code that is put before the candidate's code."""
    prompt: str = ""
    """Code that a candidate may complete, beginning in the body of the function."""
    helpers: str = ""
    """Where tests with an entry point take their functions from: the prefix, or what the prompt gives."""
    entry_point: str = ""
    """Name of the function that ``check(candidate)`` is called with."""
    asserts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    any_case: bool = False
    """Whether "Yes" and "no" may be printed in any case: CodeContests and SandboxFusion look at no case at all."""
    language: Language = "python"
    """Of the programs, where the tests say so."""
    checker: str = ""
    """Python program run as ``checker input.txt expected.txt printed.txt``; see :mod:`.outputs`."""


_MOST_BYTES = 256 << 20
_MOST_DIGITS, _MOST_SOURCE = 20_000, 100_000
"""Of integers and of Python in a row that are read here: no thread of this process runs meanwhile."""
_INPUT_OUTPUT = (
    "input_output verification_info test_cases hidden_unit_tests verifier_metadata unit_tests ground_truth "
    "reward_model info"
).split()
# MBPP+ has the tests that it adds in test, beside the old test_list; assertion are those of MBPP in its own release.
_CODE_KEYS = "asserts test test_list tests test_code test_file functional assert_case assertion".split()
_ALSO_CODE = ("pytest", "testcase", "testcases", "unit_test")
"""Where they assert something; other rows have numbers and cases under these names."""
_SETUP_KEYS = ("test_setup_code", "test_setup", "setup_code", "setup")
_CODE_BESIDE = {*_SETUP_KEYS, "entry_point", "prefix"}
ASSERTS = re.compile(r"\b(assert|raises|def test)")
"""What code that tests something has in it."""
_KINDS = ("public", "private", "generated", "official")
_SPLIT = tuple(f"{kind}_{of}" for kind in _KINDS for of in ("tests", "test_cases"))
_OF_THE_FUNCTION = ("fn_name", "func_name", "entry_point", "metadata", "starter_code", "extra_info")
_LANGUAGES: dict[str, Any] = {word: name for name, words in FENCE_WORDS.items() for word in words} | {"java": "java"}
_OF_THE_TESTS = {*_OF_THE_FUNCTION, "language", "tests", "test_cases", "input_mode", "time_limit", "memory_limit"}
"""Columns beside which a language is that of the programs; that of any whole row may be a solution's, or English."""
_NOT_STANDARD = ("input_file", "output_file", "input_mode", "interaction_format")
"""By which CodeContests and Codeforces say that a program reads files or talks with another program."""


def read_plan(reference: Any, check: Check = lambda content: None, *, row: Mapping[Any, Any] | None = None) -> Plan:
    """``row``: where ``reference`` is a column; it may name the function.

    Raises :class:`Unusable`, and what ``check`` does, which is called with what compressed tests hold before it is
    read.
    """
    reader = _Reader(check)
    reader.add(reference, row or {}, False)
    plan = reader.plan
    if not (plan.asserts or plan.calls or plan.runs):
        said = reader.where or f"a {type(reference).__name__} with nothing to run"
        raise Unusable(f"the reference has no tests: it is {said}; docs/verifiers.md lists the forms")
    try:
        ast.parse(plan.checker if len(plan.checker) <= _MOST_SOURCE else "")
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise Unusable(f"the checker must be a program in Python: {error}") from None
    return plan


class _Reader:
    """Adds the tests of a row, which may be in columns within columns, to a plan."""

    def __init__(self, check: Check) -> None:
        self._check, self.plan = check, Plan()
        self.where = ""
        """The innermost column that was read."""

    def unpacked(self, given: Any) -> tuple[Any, bool]:
        """What a text holds: JSON, compressed tests of LiveCodeBench, or test code; and whether it was JSON."""
        # A text that begins like JSON and is none is test code.
        if isinstance(given, str) and given.lstrip()[:1] in ("{", "["):
            found = _parsed(given)
            return found, found is not given
        if isinstance(given, str) and len(given) > 16 and given.isascii() and not any(m in given for m in " (\t:"):
            with contextlib.suppress(binascii.Error, zlib.error, ValueError):
                unpacker = zlib.decompressobj()
                data = unpacker.decompress(base64.b64decode(given, validate=True), _MOST_BYTES)
                if unpacker.unconsumed_tail:
                    raise Unusable(f"the compressed tests have more than {_MOST_BYTES >> 20} MiB")
                self._check(data)
                return json.loads(_pickled_text(data)), True
        return given, False

    def add(self, found: Any, row: Mapping[Any, Any], from_json: bool) -> None:
        """``row``: the one that ``found`` is a column of, which may name the function."""
        plan, (found, is_json) = self.plan, self.unpacked(_lists(found))
        from_json = from_json or is_json
        if isinstance(found, str):
            self._add_code([found] if found.strip() else [], row)
        elif isinstance(found, Mapping):
            self._add_row({**{key: row[key] for key in _OF_THE_FUNCTION if key in row}, **found}, from_json)
        elif not isinstance(found, Sequence) or isinstance(found, bytes):
            raise Unusable(f"the reference must be test code or a mapping with tests, not {str(found)[:100]!r}")
        elif all(isinstance(item, str) for item in found):
            self._add_code(found, row)
        elif all(isinstance(item, Mapping) and "function" in item for item in found):
            plan.calls += [_call(item, from_json) for item in found]
        elif all(isinstance(item, Mapping) and isinstance(item.get("assert_code"), str) for item in found):
            plan.asserts += [item["assert_code"] for item in found]
        else:
            for item in found:
                self._add_case(item, row)

    def _add_row(self, row: Mapping[Any, Any], from_json: bool) -> None:
        row = {key: _lists(value) for key, value in row.items()}
        self.where = f"a mapping of {', '.join(map(str, row))}" if row else self.where
        for key in _NOT_STANDARD:
            if row.get(key) not in (None, "", "stdio", "stdin", "stdout"):
                raise Unusable(f"{key!r} is {str(row[key])[:100]!r}; only stdin and stdout are judged")
        self._add_tests(row, from_json)
        self._add_function(row)
        plan = self.plan
        if row.keys() <= _OF_THE_TESTS or row.get("official_tests"):  # the prompts of Codeforces ask for it
            plan.language = _LANGUAGES.get(str(row.get("language")).lower(), plan.language)
        plan.any_case = plan.any_case or bool({"public_tests", "private_tests"} & row.keys())
        plan.checker = _text(row, "checker") or _text(row, "generated_checker") or plan.checker

    def _add_code(self, texts: Sequence[str], row: Mapping[Any, Any]) -> None:
        """Test code, and what the row has for all of it."""
        if texts:
            # Beside a column that was chosen, others may be of anything.
            row = {key: value for key, value in row.items() if key not in _CODE_BESIDE or _is_code(value)}
            imports, setup = _parsed(_lists(row.get("test_imports"))), [row[key] for key in _SETUP_KEYS if key in row]
            imports = imports if isinstance(imports, list | tuple) else [imports]
            self.plan.asserts += [*filter(_is_code, imports), *setup[:1], *texts]
            self._add_function(row)

    def _add_function(self, row: Mapping[Any, Any]) -> None:
        plan, entry, extra = self.plan, _text(row, "entry_point"), _parsed(row.get("extra_info"))
        # Code-R1 and Skywork have there what LeetCode has in its prompt, also without an entry point.
        given = row.get("import_prefix") or (extra.get("prefix") if isinstance(extra, Mapping) else "")
        given = given if isinstance(given, str) and len(given) <= _MOST_SOURCE else ""
        prompt = row.get("prompt") or row.get("complete_prompt")
        if not isinstance(prompt, str) or len(prompt) > _MOST_SOURCE or not (entry or "def " in prompt):
            prompt = ""
        nodes = given_code(given, entry) or (given_code(prompt, entry) if entry else [])
        prefix = _text(row, "prefix") or "\n".join(map(ast.unparse, nodes))
        # A column within a column may have had them.
        plan.helpers, plan.prompt = (prefix if entry or given else "") or plan.helpers, prompt or plan.prompt
        plan.prefix, plan.entry_point = prefix or plan.prefix, entry or plan.entry_point

    def _add_tests(self, row: Mapping[Any, Any], from_json: bool) -> None:
        plan = self.plan
        # The column is test_list in MBPP and test in HumanEval.
        code = next(_columns(row, _CODE_KEYS), None)
        code = code or next(filter(_asserts, _columns(row, _ALSO_CODE)), None)
        if isinstance(code, Mapping) and isinstance(code.get("code"), str):
            if code.get("asset") not in (None, "", "{}", {}):
                raise Unusable("the tests need files, which they have in 'asset'; only tests without are judged")
            code = code["code"]
        found, is_json = self.unpacked(code)
        texts = [found] if isinstance(found, str) else found or []
        other = is_json or isinstance(found, Mapping) or not all(isinstance(text, str) for text in texts)
        # Beside code that asserts, inputs are what it was made of. Beside other tests, malformed ones are an error.
        calls, runs = ([], []) if not other and _asserts(texts) else _inputs(row)
        if row.get("calls"):
            plan.calls += [_call(item, from_json) for item in row["calls"]]
            return
        if row.get("stdin"):
            plan.runs += map(_run, row["stdin"])
            return
        # Codeforces has the number of generated tests in their place.
        if columns := [row[key] for key in _SPLIT if row.get(key) and not isinstance(row[key], int)]:
            for column in columns:
                self.add(column, row, from_json)
            return
        if other:
            self.add(code, row, from_json)
            return
        self._add_code(texts, row)
        plan.calls += calls
        plan.runs += runs
        if not (texts or calls or runs):
            self.add(next(_columns(row, _INPUT_OUTPUT), ""), row, from_json)

    def _add_case(self, item: Any, row: Mapping[Any, Any]) -> None:
        """A single case, with input and output, and the kind of the test."""
        if isinstance(item, Mapping) and {"stdin", "expected_stdout"} <= item.keys():
            item = {"input": item["stdin"], "output": item["expected_stdout"]}
        if not isinstance(item, Mapping) or "output" not in item:
            raise Unusable(f"a test needs 'input' and 'output': {str(item)[:100]!r}")
        name = _function_of(item) or _function_of(row)
        kind = str(item.get("testtype") or item.get("type") or ("functional" if name else "stdin"))
        if kind.startswith("stdin"):
            self.plan.any_case = self.plan.any_case or isinstance(item["output"], Mapping)
            # A list holds the right outputs in xCodeEval, the lines of one elsewhere.
            several = "hidden_unit_tests" in row and isinstance(item["output"], list)
            self.plan.runs.append(_run(item, several=several))
        elif not name:
            raise Unusable(f"a test of the kind {kind!r} needs the name of the function as 'fn_name'")
        else:
            self.plan.calls.append(_function_case(name, item.get("input", ""), item["output"]))


def _columns(row: Mapping[Any, Any], keys: Sequence[str]) -> Iterator[Any]:
    """Those that may hold tests, which a number does not."""
    return (row[key] for key in keys if row.get(key) and isinstance(row[key], Sequence | Mapping))


def _asserts(code: Any) -> bool:
    """Whether it is code, or some of a list is, that checks something; prose may say that something raises."""
    texts = [code] if isinstance(code, str) else code
    return any(isinstance(text, str) and ASSERTS.search(text) and _is_code(text) for text in texts)


def _is_code(text: Any) -> bool:
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return isinstance(text, str) and 0 < len(text) <= _MOST_SOURCE and bool(ast.parse(text).body)
    return False


def _pickled_text(data: bytes) -> str:
    """The text that a pickle holds, which is not run: beside it stand a protocol, a length and a place to keep it."""
    steps = [(step.name, given) for step, given, _ in itertools.islice(pickletools.genops(data), 10)]
    texts = [given for name, given in steps if "UNICODE" in name]
    # SandboxFusion has the text in a mapping.
    mapped = ("EMPTY_DICT", None) in steps and texts[:1] == ["input_output"]
    if len(texts) != 1 + mapped or len(steps) > 5 + 5 * mapped or steps[-1][0] != "STOP":
        raise Unusable("the compressed tests hold something other than a text; only text is read")
    return str(texts[-1])


def _inputs(row: Mapping[Any, Any]) -> tuple[list[Call], list[Run]]:
    """The tests in columns of inputs and outputs."""
    inputs, outputs = _parsed(row.get("inputs")), _parsed(row.get("outputs"))
    empty = row.get("assert_case") and not (inputs or outputs)
    if empty or not {"inputs", "outputs"} & row.keys():
        inputs, outputs = row.get("input"), row.get("output")
        if not isinstance(inputs, list | tuple):
            return [], []
    usable = all(isinstance(part, Sequence) and not isinstance(part, str) for part in (inputs, outputs))
    if not usable or len(inputs) != len(outputs):
        raise Unusable("'inputs' and 'outputs' must be lists of the same length")
    pairs, name = list(zip(inputs, outputs, strict=True)), _function_of(row)
    if name:
        return [_function_case(name, given, wanted) for given, wanted in pairs], []
    # Rows of GeeksforGeeks in TACO, with the examples of the statement: "n = 5\narr[] = {5,10}".
    if _text(row, "starter_code").startswith("#User function Template"):
        raise Unusable("'starter_code' asks for a function, and no 'fn_name' says how the inputs are passed to it")
    return [], [_run({"input": given, "output": wanted}) for given, wanted in pairs]


def _function_of(row: Mapping[Any, Any]) -> str:
    metadata = _parsed(row.get("metadata"))
    named = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    named = _text(row, "fn_name") or _text(row, "func_name") or (named if isinstance(named, str) else "")
    # "none" is how NousResearch's rows say that there is none.
    return ("" if named == "none" else named) or _text(row, "entry_point")


def _call(item: Any, from_json: bool) -> Call:
    if not isinstance(item, Mapping) or not isinstance(item.get("function"), str) or "expected" not in item:
        raise Unusable(f"a call needs 'function' and 'expected', and may have 'args' and 'kwargs': {str(item)[:100]!r}")
    args, kwargs = item.get("args", ()), item.get("kwargs", {})
    if not isinstance(args, Sequence) or isinstance(args, str | bytes) or not isinstance(kwargs, Mapping):
        raise Unusable(f"'args' must be a list and 'kwargs' a mapping: {str(item)[:100]!r}")
    return Call(
        function=item["function"], args=tuple(args), kwargs=kwargs, expected=[item["expected"]], from_json=from_json
    )


def _run(item: Any, *, several: bool = False) -> Run:
    """``several``: a list of outputs is one of which any is right, not one of lines."""
    if not isinstance(item, Mapping) or "output" not in item:
        raise Unusable(f"a run needs 'output' and may have 'input': {str(item)[:100]!r}")
    given = item.get("input")
    outputs = item["output"] if several else [item["output"]]
    if not outputs:
        raise Unusable("a run has a list of outputs of which any is right, and it is empty")
    accepted = tuple(_lines(output, "output") for output in outputs)
    return Run(stdin="" if given is None else _lines(given, "input"), outputs=accepted)


def _function_case(name: str, given: Any, wanted: Any) -> Call:
    """Arguments are a list, or a text; beside a list a text may be the result or its JSON."""
    expected = [wanted]
    if isinstance(wanted, list) and len(wanted) == 1:
        wanted = wanted[0]
        expected.append(wanted)
    elif isinstance(wanted, str) and isinstance(given, str):
        expected = []
    expected += _readings(wanted) if isinstance(wanted, str) and wanted.strip() not in ("null", "None") else []
    given = _arguments(given) if isinstance(given, str) else given
    args = tuple(given) if isinstance(given, Sequence) else (given,)
    return Call(function=name, args=args, kwargs={}, expected=expected, from_json=True)


def _arguments(text: str) -> list[Any]:
    """JSON or Python's literals one a line, or ``nums = [3, 3], target = 6``, as on LeetCode."""
    if not re.match(r"\s*[A-Za-z_]\w* ?= ?[^=\s]", text):
        return [_parsed(line) for line in text.splitlines() if line.strip()]
    try:
        call: Any = ast.parse(f"f({text})", mode="eval").body
        return [ast.literal_eval(each.value) for each in call.keywords]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise Unusable(f"the arguments {text[:100]!r} cannot be read") from None


def _parsed(given: Any) -> Any:
    """The value of JSON or of a literal of Python; anything else as it is."""
    return _readings(given)[-1] if isinstance(given, str) else given


def _readings(text: str) -> list[Any]:
    """What a text may mean: its JSON, or itself and the literal of Python in it."""
    with contextlib.suppress(ValueError, RecursionError):
        return [json.loads(text, parse_int=_whole, strict=False)]
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return [text, ast.literal_eval(text)] if len(text) <= _MOST_SOURCE else [text]
    return [text]


def _whole(digits: str) -> int:
    """Also one of more digits than ``int`` reads."""
    return int(digits if len(digits) < 4000 or len(digits) > _MOST_DIGITS else Decimal(digits))


def _lists(value: Any) -> Any:
    """Lists in place of arrays, which pandas has in their place."""
    is_array = type(value).__module__ == "numpy" and hasattr(value, "tolist") and value.ndim
    return [_lists(item) for item in value.tolist()] if is_array else value


def _lines(value: Any, name: str) -> str:
    stream = "stdin" if name == "input" else "stdout"
    if isinstance(value, Mapping) and value.keys() == {stream}:  # as SandboxFusion has it
        value = value[stream]
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    if not isinstance(value, str | int | float):
        raise Unusable(f"the {name} of a run must be a text or a list of lines, not {str(value)[:100]!r}")
    return str(value)


def _text(reference: Mapping[Any, Any], key: str) -> str:
    value = reference.get(key) or ""
    if not isinstance(value, str):
        raise Unusable(f"{key!r} must be a text, not {str(value)[:100]!r}")
    return value
