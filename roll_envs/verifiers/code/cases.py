"""Reads the reference of a row into a plan of tests: test code, calls, or runs with input.

Accepted are rows as they are published, also as JSON text: test code (MBPP; HumanEval and EvalPlus with
``entry_point``; test files of KodCode and BigCodeBench), ``{"inputs", "outputs", "fn_name"}`` (APPS, TACO, Eurus),
lists of ``{"input", "output", "testtype" or "type"}`` (LiveCodeBench, its private tests compressed; DeepCoder,
SYNTHETIC-1 under ``test_cases``), ``public_tests`` / ``private_tests`` / ``generated_tests`` (CodeContests), and
``stdin``, ``calls``, ``test_file``. ``checker``: a Python program that says whether an output is right.
"""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import itertools
import json
import pickletools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roll_envs.verifiers.code.inside.reading import given_code

Check = Callable[[bytes], None]


class Unusable(Exception):
    """The reference cannot be read as tests; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Call ``function`` (a dotted name; ``Solution().f`` makes the object first) and compare what it returns."""

    function: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    expected: Any
    from_json: bool
    also: tuple[Any, ...] = ()
    """Values that are as right: of a list of one its item, as in APPS and TACO, and of a text the JSON that it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Run the program with ``stdin`` and compare what it prints."""

    stdin: str
    output: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The tests of a row; one kind is filled, or asserts beside calls."""

    prefix: str = ""
    """Code that is put before the candidate's code."""
    helpers: str = ""
    """Where tests with an entry point take their functions from: the prefix, or what the prompt gives."""
    entry_point: str = ""
    """Name of the function that ``check(candidate)`` is called with."""
    asserts: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    runs: tuple[Run, ...] = ()
    checker: str = ""
    """Python program run as ``checker input.txt expected.txt printed.txt``; see :mod:`.outputs`."""


_MOST_BYTES = 256 << 20
_INPUT_OUTPUT = ("input_output", "ground_truth", "verification_info", "reward_model", "test_cases", "public_test_cases")
_CODE_KEYS = ("asserts", "test_list", "tests", "test", "test_code", "test_file", "assert_case")


def read_plan(reference: Any, check: Check = lambda content: None) -> Plan:
    """Raises :class:`Unusable`, and what ``check`` does, which is called with what compressed tests hold before it is
    read."""
    from_json = False
    if isinstance(reference, str):
        reference, from_json = _unpacked(reference, check)
    plan = _read(reference, from_json, check)
    if not (plan.asserts or plan.calls or plan.runs):
        keys = ", ".join(map(str, reference)) if isinstance(reference, Mapping) else ""
        found = f"a mapping of {keys}" if keys else f"a {type(reference).__name__} with nothing to run"
        raise Unusable(f"the reference has no tests: it is {found}; docs/verifiers.md lists the forms")
    return plan


def _unpacked(text: str, check: Check) -> tuple[Any, bool]:
    """JSON, compressed tests of LiveCodeBench, or test code as it is; and whether it was JSON."""
    # A text that begins like JSON and is none is test code.
    if text.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            return json.loads(text), True
    if len(text) > 16 and text.isascii() and not any(mark in text for mark in " (\t:"):
        with contextlib.suppress(binascii.Error, zlib.error, ValueError):
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
            if unpacker.unconsumed_tail:
                raise Unusable(f"the compressed tests have more than {_MOST_BYTES >> 20} MiB")
            check(data)
            return json.loads(_pickled_text(data)), True
    return text, False


def _pickled_text(data: bytes) -> str:
    """The text that a pickle holds, which is not run: beside it stand a protocol, a length and a place to keep it."""
    steps = list(itertools.islice(pickletools.genops(data), 5))
    texts = [given for step, given, _ in steps if "UNICODE" in step.name]
    if len(texts) != 1 or steps[-1][0].name != "STOP":
        raise Unusable("the compressed tests hold something other than a text; only text is read")
    return str(texts[0])


def _read(reference: Any, from_json: bool, check: Check) -> Plan:
    if isinstance(reference, str):
        return Plan(asserts=(reference,) if reference.strip() else ())
    if isinstance(reference, Sequence) and not isinstance(reference, bytes):
        if all(isinstance(item, str) for item in reference):
            return Plan(asserts=tuple(reference))
        return _cases(reference, {}, from_json)
    if not isinstance(reference, Mapping):
        raise Unusable(f"the reference must be test code or a mapping with tests, not {str(reference)[:100]!r}")
    plan = _read_tests(reference, from_json, check)
    entry, prefix, prompt = _text(reference, "entry_point"), _text(reference, "prefix"), reference.get("prompt")
    given = given_code(prompt, entry) if entry and isinstance(prompt, str) else []
    prefix = prefix or "\n".join(map(ast.unparse, given))
    return replace(
        plan,
        prefix=prefix or plan.prefix,
        helpers=prefix if entry else "",
        entry_point=entry or plan.entry_point,
        checker=_text(reference, "checker") or _text(reference, "generated_checker") or plan.checker,
    )


def _read_tests(reference: Mapping[Any, Any], from_json: bool, check: Check) -> Plan:
    plan = Plan()
    if _has(reference, "inputs") or _has(reference, "outputs"):
        plan = _inputs(reference, reference.get("inputs"), reference.get("outputs"))
    elif isinstance(reference.get("input"), list | tuple):
        plan = _inputs(reference, reference["input"], reference.get("output"))
    if reference.get("calls"):
        return Plan(calls=tuple(_call(item, from_json) for item in reference["calls"]))
    if reference.get("stdin"):
        return Plan(runs=tuple(_run(item) for item in reference["stdin"]))
    parts = [reference[f"{kind}_{of}"] for kind in ("public", "private", "generated") for of in ("tests", "test_cases")
             if reference.get(f"{kind}_{of}")]  # fmt: skip
    if parts:
        return _joined([_part(part, reference, from_json, check) for part in parts])
    # The column is test_list in MBPP and test in HumanEval.
    for key in _CODE_KEYS:
        if reference.get(key):
            found, is_json = reference[key], False
            if isinstance(found, str):
                found, is_json = _unpacked(found, check)
            if is_json or isinstance(found, Mapping) or not all(isinstance(text, str) for text in found):
                return _part(found, reference, from_json or is_json, check)
            asserts = (found,) if isinstance(found, str) else tuple(found)
            setup = _text(reference, "test_setup_code") or _text(reference, "setup")
            imports = reference.get("test_imports") or ()
            before = (*map(str, imports), *([setup] if setup else []))
            return replace(plan, asserts=(*before, *asserts))
    if plan.runs or plan.calls:
        return plan
    for key in _INPUT_OUTPUT:
        if reference.get(key):
            return _part(reference[key], reference, from_json, check)
    return plan


def _has(reference: Mapping[Any, Any], key: str) -> bool:
    return key in reference and not (reference[key] in (None, []) and reference.get("assert_case"))


def _part(part: Any, row: Mapping[Any, Any], from_json: bool, check: Check) -> Plan:
    """Tests in a column of a row, which may be JSON text and take the name of the function from the row."""
    if isinstance(part, str):
        part, was_json = _unpacked(part, check)
        from_json = from_json or was_json
    names = {key: row[key] for key in ("fn_name", "entry_point", "metadata", "starter_code") if key in row}
    if isinstance(part, Mapping):
        return _read({**names, **part}, from_json, check)
    if isinstance(part, Sequence) and not isinstance(part, str) and not all(isinstance(i, str) for i in part):
        return _cases(part, names, from_json)
    return _read(part, from_json, check)


def _joined(plans: list[Plan]) -> Plan:
    return replace(
        plans[0],
        asserts=tuple(a for plan in plans for a in plan.asserts),
        calls=tuple(c for plan in plans for c in plan.calls),
        runs=tuple(r for plan in plans for r in plan.runs),
    )


def _cases(items: Sequence[Any], row: Mapping[Any, Any], from_json: bool) -> Plan:
    """A list of single cases: each with input and output, and the kind of the test."""
    if items and all(isinstance(item, Mapping) and "function" in item for item in items):
        return Plan(calls=tuple(_call(item, from_json) for item in items))
    runs, calls = [], []
    for item in items:
        if not isinstance(item, Mapping) or "output" not in item:
            raise Unusable(f"a test needs 'input' and 'output': {str(item)[:100]!r}")
        name = item.get("fn_name") or _function_of(row) or (item.get("metadata") or {}).get("func_name")
        kind = str(item.get("testtype") or item.get("type") or ("functional" if name else "stdin"))
        if kind.startswith("stdin"):
            runs.append(_run(item))
        elif not name:
            raise Unusable(f"a test of the kind {kind!r} needs the name of the function as 'fn_name'")
        else:
            calls.append(_function_case(name, item.get("input", ""), item["output"]))
    return Plan(runs=tuple(runs), calls=tuple(calls))


def _function_of(row: Mapping[Any, Any]) -> str:
    metadata = row.get("metadata")
    metadata = _parsed(metadata) if isinstance(metadata, str) else metadata
    named = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    return _text(row, "fn_name") or (named if isinstance(named, str) else "") or _text(row, "entry_point")


def _call(item: Any, from_json: bool) -> Call:
    if not isinstance(item, Mapping) or not isinstance(item.get("function"), str) or "expected" not in item:
        raise Unusable(f"a call needs 'function' and 'expected', and may have 'args' and 'kwargs': {str(item)[:100]!r}")
    args, kwargs = item.get("args", ()), item.get("kwargs", {})
    if not isinstance(args, Sequence) or isinstance(args, str | bytes) or not isinstance(kwargs, Mapping):
        raise Unusable(f"'args' must be a list and 'kwargs' a mapping: {str(item)[:100]!r}")
    return Call(
        function=item["function"], args=tuple(args), kwargs=kwargs, expected=item["expected"], from_json=from_json
    )


def _run(item: Any) -> Run:
    if not isinstance(item, Mapping) or "output" not in item:
        raise Unusable(f"a run needs 'output' and may have 'input': {str(item)[:100]!r}")
    return Run(stdin=_lines(item.get("input", "")), output=_lines(item["output"]))


def _inputs(reference: Mapping[Any, Any], inputs: Any, outputs: Any) -> Plan:
    usable = all(isinstance(part, Sequence) and not isinstance(part, str) for part in (inputs, outputs))
    if not usable or len(inputs) != len(outputs):
        raise Unusable("'inputs' and 'outputs' must be lists of the same length")
    pairs = list(zip(inputs, outputs, strict=True))
    name = _function_of(reference)
    if not name:
        return Plan(runs=tuple(Run(stdin=_lines(i), output=_lines(o)) for i, o in pairs))
    return Plan(calls=tuple(_function_case(name, i, o) for i, o in pairs))


def _function_case(name: str, given: Any, wanted: Any) -> Call:
    """Arguments are a list, or JSON texts one a line; beside a list a text may be the result or its JSON."""
    also: tuple[Any, ...] = ()
    if isinstance(wanted, list) and len(wanted) == 1:
        also = (wanted[0],)
    elif isinstance(wanted, str) and isinstance(given, str):
        wanted = _parsed(wanted)
    elif isinstance(wanted, str):
        also = (_parsed(wanted),)
    if isinstance(given, str):
        given = [_parsed(line) for line in given.splitlines() if line.strip()]
    args = tuple(given) if isinstance(given, Sequence) else (given,)
    return Call(function=name, args=args, kwargs={}, expected=wanted, from_json=True, also=also)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _lines(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return str(value)


def _text(reference: Mapping[Any, Any], key: str) -> str:
    value = reference.get(key) or ""
    if not isinstance(value, str):
        raise Unusable(f"{key!r} must be a text, not {str(value)[:100]!r}")
    return value
