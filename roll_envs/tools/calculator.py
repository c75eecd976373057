"""The tool ``calculator``: one arithmetic expression, read by a small parser of its own and computed exactly.

Grammar, from weak to strong binding; ``^`` is the same as ``**`` and binds to the right::

    sum     = product (("+" | "-") product)*
    product = unary (("*" | "/" | "//" | "%") unary)*
    unary   = ("+" | "-") unary | power
    power   = postfix ("**" unary)?
    postfix = atom "!"*
    atom    = number | name | name "(" sum ("," sum)* ")" | "(" sum ")"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from roll_envs.errors import nearest
from roll_envs.tools.calculator_numbers import (
    CONSTANTS,
    FUNCTIONS,
    MAX_DIGITS,
    CalculatorError,
    Number,
    add,
    divide,
    factorial,
    floored,
    modulo,
    multiply,
    negate,
    power,
    written,
)
from roll_envs.tools.types import Tool, ToolResult, ToolSpec

__all__ = ["MAX_EXPRESSION_CHARS", "CalculatorError", "CalculatorTool", "calculate"]

MAX_EXPRESSION_CHARS = 2000
# Each level takes some six frames of Python, whose recursion limit is 1000.
_MOST_DEPTH = 60
_MOST_OPERATIONS = 500
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\*\*|//|[-+*/%^!(),]))"
)
_SAME = {"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"}  # fmt: skip


def calculate(expression: str) -> str:
    """The value as text: ``calculate("2 * 3.5") == "7"``, ``calculate("1 / 3")`` begins with ``about 0.333``.

    Raises :class:`CalculatorError` with what is wrong, where, and what is allowed.
    """
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise CalculatorError(f"the expression has {len(expression)} characters; {MAX_EXPRESSION_CHARS} are allowed")
    return written(_Parser(_tokens(expression)).whole())


def _tokens(text: str) -> list[tuple[str, str, int]]:
    for odd, plain in _SAME.items():
        text = text.replace(odd, plain)
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            # So that the message names the character itself, not the space before it.
            at += len(text[at:]) - len(text[at:].lstrip())
            hint = "; write one expression of numbers, + - * / // % ** ! and functions" if text[at] != "=" else ""
            hint = hint or "; there are no variables and no equations here"
            raise CalculatorError(f"{text[at]!r} at character {at} cannot be read{hint}")
        found.append((match.lastgroup, match.group(match.lastgroup), match.start(match.lastgroup)))
        at = match.end()
    return found


class _Parser:
    """Reads and computes in one pass."""

    def __init__(self, tokens: list[tuple[str, str, int]]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0
        # Each operation is bounded by the size of its numbers, so their count bounds the time.
        if len(tokens) > 2 * _MOST_OPERATIONS:
            raise CalculatorError(f"the expression has {len(tokens)} parts; {2 * _MOST_OPERATIONS} are allowed")

    def whole(self) -> Number:
        if not self._tokens:
            raise CalculatorError("the expression is empty; write one such as 12 * (3 + 4)")
        value = self._sum()
        if self._at < len(self._tokens):
            self._fail("the expression goes on with")
        return value

    def _next(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self, *signs: str) -> str:
        if self._at < len(self._tokens):
            kind, text, _ = self._tokens[self._at]
            if kind == "sign" and text in signs:
                self._at += 1
                return text
        return ""

    def _fail(self, what: str) -> None:
        if self._at >= len(self._tokens):
            raise CalculatorError("the expression ends too early; a number or a closing parenthesis is missing")
        _, text, place = self._tokens[self._at]
        hint = "; numbers are written without commas" if text == "," else ""
        raise CalculatorError(f"{what} {text!r} at character {place}, where an operator or the end is expected{hint}")

    def _sum(self) -> Number:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise CalculatorError(f"the expression is nested more than {_MOST_DEPTH} deep")
        value = self._product()
        while sign := self._take("+", "-"):
            other = self._product()
            value = add(value, other if sign == "+" else negate(other))
        self._depth -= 1
        return value

    def _product(self) -> Number:
        value = self._unary()
        while sign := self._take("*", "/", "//", "%"):
            value = {"*": multiply, "/": divide, "//": floored, "%": modulo}[sign](value, self._unary())
        return value

    def _unary(self) -> Number:
        # A loop, so that a long row of signs does not exhaust the stack.
        minus = False
        while sign := self._take("+", "-"):
            minus ^= sign == "-"
        value = self._power()
        return negate(value) if minus else value

    def _power(self) -> Number:
        value = self._postfix()
        if self._take("**", "^"):
            self._depth += 1
            if self._depth > _MOST_DEPTH:
                raise CalculatorError(f"the expression is nested more than {_MOST_DEPTH} deep")
            value = power(value, self._unary())
            self._depth -= 1
        return value

    def _postfix(self) -> Number:
        value = self._atom()
        while self._take("!"):
            value = factorial(value)
        return value

    def _atom(self) -> Number:
        if self._take("("):
            value = self._sum()
            self._close()
            return value
        if self._at >= len(self._tokens) or self._tokens[self._at][0] == "sign":
            if self._at >= len(self._tokens):
                self._fail("")
            _, text, place = self._tokens[self._at]
            raise CalculatorError(f"a number is expected at character {place}, not {text!r}")
        kind, text, _ = self._tokens[self._at]
        self._at += 1
        return _number(text) if kind == "number" else self._named(text)

    def _close(self) -> None:
        if not self._take(")"):
            self._fail("')' is missing: the expression goes on with")

    def _named(self, name: str) -> Number:
        if not self._take("("):
            if name in CONSTANTS:
                return CONSTANTS[name]
            raise CalculatorError(_unknown(name, called=False))
        if name not in FUNCTIONS:
            raise CalculatorError(_unknown(name, called=True))
        fewest, most, function = FUNCTIONS[name]
        arguments: list[Number] = []
        if not self._take(")"):
            arguments.append(self._sum())
            while self._take(","):
                arguments.append(self._sum())
            self._close()
        if not fewest <= len(arguments) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise CalculatorError(f"{name} takes {wanted} arguments, not {len(arguments)}")
        return function(*arguments)


def _number(text: str) -> Number:
    exponent = re.search(r"[eE]([+-]?\d+)$", text)
    digits = sum(c.isdigit() for c in text)
    if digits > MAX_DIGITS or (exponent and abs(int(exponent.group(1))) > MAX_DIGITS):
        raise CalculatorError(f"numbers may have up to {MAX_DIGITS} digits")
    plain = text.replace("_", "")
    # Fraction does not read "5.".
    return Fraction(plain if not plain.endswith(".") else plain + "0")


def _unknown(name: str, *, called: bool) -> str:
    shown = name if len(name) <= 40 else name[:40] + "..."
    if not called and name not in FUNCTIONS:
        return f"there is no constant {shown!r}, and there are no variables; constants: {', '.join(CONSTANTS)}"
    if not called:
        return f"{shown} is a function; write {shown}(...)"
    close = nearest(name, FUNCTIONS, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"there is no function {shown!r}{hint}; functions: {', '.join(FUNCTIONS)}"


class CalculatorTool(Tool):
    """One expression in, its value out; keeps nothing."""

    quick = True

    def __init__(self) -> None:
        self.spec = ToolSpec(
            name="calculator",
            description=(
                "Computes one arithmetic expression exactly: numbers, + - * / // % ** !, parentheses, pi, e, and "
                f"the functions {', '.join(FUNCTIONS)}."
            ),
            parameters={
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "Such as 12 * (3 + 4) or sqrt(2) / 3."}},
                "required": ["expression"],
            },
        )

    def call(self, arguments: Mapping[str, Any], *, deadline_s: float) -> ToolResult:
        try:
            return ToolResult(text=calculate(arguments["expression"]))
        except CalculatorError as error:
            return ToolResult(text=f"Error: {error}", ok=False)
