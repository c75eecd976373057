"""Reads the reference of a row into a plan of tests: asserts, calls, runs with input, or a test file.

Accepted are the forms of the usual data sets: a text or list of asserts (MBPP, and ``check(candidate)`` of HumanEval
with ``entry_point``), ``{"inputs": [...], "outputs": [...], "fn_name": ...}`` (APPS, TACO), ``{"stdin": [{"input": ...,
"output": ...}]}``, ``{"calls": [{"function": ..., "args": [...], "expected": ...}]}``, ``{"test_file": "..."}``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Call", "Plan", "Run", "Unusable", "read_plan"]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Run the program with ``stdin`` and compare what it prints."""

    stdin: str
    output: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The tests of a row; one of the four kinds is filled."""

    prefix: str = ""
    """Code that is put before the candidate's code."""
    entry_point: str = ""
    """Name of the function that ``check(candidate)`` is called with."""
    asserts: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    runs: tuple[Run, ...] = ()
    test_file: str = ""


def read_plan(reference: Any) -> Plan:
    """Raises :class:`Unusable`."""
    from_json = False
    # A text that begins like JSON and is none is test code.
    if isinstance(reference, str) and reference.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            reference, from_json = json.loads(reference), True
    if isinstance(reference, str):
        reference = {"asserts": reference}
    if isinstance(reference, Sequence) and reference and all(isinstance(item, str) for item in reference):
        reference = {"asserts": list(reference)}
    if not isinstance(reference, Mapping):
        raise Unusable(f"the reference must be test code or a mapping with tests, not {str(reference)[:100]!r}")
    plan = _read_tests(reference, from_json)
    if not (plan.asserts or plan.calls or plan.runs or plan.test_file):
        known = "asserts, calls, stdin, inputs with outputs, test_file"
        raise Unusable(f"the reference has no tests: its keys are {sorted(map(str, reference))}, known are {known}")
    return replace(plan, prefix=_text(reference, "prefix"), entry_point=_text(reference, "entry_point"))


def _read_tests(reference: Mapping[Any, Any], from_json: bool) -> Plan:
    # The column is test_list in MBPP and test in HumanEval.
    for key in ("asserts", "test_list", "tests", "test"):
        if reference.get(key):
            found = reference[key]
            asserts = (found,) if isinstance(found, str) else tuple(found)
            if not all(isinstance(text, str) for text in asserts):
                raise Unusable(f"{key!r} must be test code or a list of it")
            setup = _text(reference, "test_setup_code") or _text(reference, "setup")
            return Plan(asserts=(setup, *asserts) if setup else asserts)
    if reference.get("calls"):
        return Plan(calls=tuple(_call(item, from_json) for item in reference["calls"]))
    if "inputs" in reference or "outputs" in reference:
        return _inputs(reference)
    if reference.get("stdin"):
        return Plan(runs=tuple(_run(item) for item in reference["stdin"]))
    return Plan(test_file=_text(reference, "test_file"))


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


def _inputs(reference: Mapping[Any, Any]) -> Plan:
    inputs, outputs = reference.get("inputs"), reference.get("outputs")
    usable = all(isinstance(part, Sequence) and not isinstance(part, str) for part in (inputs, outputs))
    if not usable or len(inputs) != len(outputs):  # type: ignore[arg-type]
        raise Unusable("'inputs' and 'outputs' must be lists of the same length")
    pairs = list(zip(inputs, outputs, strict=True))  # type: ignore[arg-type]
    name = _text(reference, "fn_name")
    if not name:
        return Plan(runs=tuple(Run(stdin=_lines(i), output=_lines(o)) for i, o in pairs))
    return Plan(calls=tuple(_function_case(name, i, o) for i, o in pairs))


def _function_case(name: str, given: Any, wanted: Any) -> Call:
    """Arguments are a list, or JSON texts one a line; the result may be wrapped in a list of one."""
    if isinstance(given, str):
        given = [_parsed(line) for line in given.splitlines() if line.strip()]
    if isinstance(wanted, str):
        wanted = _parsed(wanted)
    args = tuple(given) if isinstance(given, Sequence) else (given,)
    return Call(function=name, args=args, kwargs={}, expected=wanted, from_json=True)


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
