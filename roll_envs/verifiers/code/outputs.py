"""Compares the output of a program with the expected one: exactly, or up to whitespace and rounding.

Every step is linear in the output, which the sandbox bounds, so no output can hold up this process.
"""

from __future__ import annotations

import math
import re

from roll_envs.sandbox import Limits, Program, RunResult, Sandbox, explained
from roll_envs.verifiers.code.cases import Unusable

_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_LONGEST_NUMBER = 400


def same_output(said: str, wanted: str, *, exact: bool = False, tolerance: float = 1e-6) -> bool:
    """``exact``: the same text but for one newline at the end. Else the same words in order, where a word that is
    expected with a decimal point or exponent may differ by ``tolerance`` (relative to the larger, absolute below 1),
    and an integer may be printed as ``6.0``."""
    if exact:
        return said.removesuffix("\n") == wanted.removesuffix("\n")
    words, others = said.split(), wanted.split()
    if len(words) != len(others):
        return False
    return words == others or all(_close(a, b, tolerance) for a, b in zip(words, others, strict=True) if a != b)


def _close(said: str, wanted: str, tolerance: float) -> bool:
    if max(len(said), len(wanted)) > _LONGEST_NUMBER or not (_FLOAT.fullmatch(said) and _FLOAT.fullmatch(wanted)):
        return False
    if _is_int(wanted):
        whole, _, zeros = said.partition(".")
        return _is_int(whole) and not zeros.strip("0") and int(whole) == int(wanted)
    a, b = float(said), float(wanted)
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= tolerance * max(abs(a), abs(b), 1.0)


def _is_int(word: str) -> bool:
    return word.removeprefix("-").removeprefix("+").isdecimal()


def accepts(
    sandbox: Sandbox, checker: str, stdin: bytes, wanted: str, printed: bytes, *, limits: Limits, wait_s: float
) -> bool:
    """Whether a checker program takes the output.

    It is run as ``checker input.txt expected.txt printed.txt`` and says so by a last line of 1, or by printing no
    number and ending with code 0. Raises :class:`Unusable` for one that crashes on the expected output itself.
    """

    def run(output: bytes) -> RunResult:
        names = ("input.txt", "expected.txt", "printed.txt")
        files = dict(zip(names, (stdin, wanted.encode("utf-8", "surrogatepass"), output), strict=True))
        program = Program(source=checker, files=files, arguments=names)
        return explained(sandbox.run(program, limits=limits, timeout_s=wait_s + limits.wall_s))

    result = run(printed)
    said = _verdict(result)
    if said is None:
        control = run(wanted.encode("utf-8", "surrogatepass"))
        if _verdict(control) is None:
            text = control.stderr[-200:].decode(errors="replace").strip()
            raise Unusable(f"the checker program fails on the expected output ({control.status}): {text}")
    return said is True


def _verdict(result: RunResult) -> bool | None:
    """``None``: it crashed or went over a limit."""
    last = result.stdout[-200:].decode(errors="replace").strip().rpartition("\n")[2].strip()
    if result.ok and _FLOAT.fullmatch(last):
        return float(last) >= 1
    if last.lower() in ("true", "false"):
        return result.ok and last.lower() == "true"
    if result.status == "error" and result.exit_code is not None and b"Traceback" not in result.stderr:
        return False
    return True if result.ok else None
