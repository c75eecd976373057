"""The calculator: values worked by hand, errors that say what is wrong, and nothing that takes long."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_envs.tools import calculate, make_tools
from roll_envs.tools.calculator import MAX_EXPRESSION_CHARS, CalculatorError


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("2 - 3 - 4", "-5"),
        ("-2 ** 2", "-4"),
        ("--3 + -+-2 - -1", "6"),
        ("2 ^ 3 ^ 2", "512"),
        ("2 ** -2", "0.25"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7.5 % 2", "1.5"),
        ("0.1 + 0.2", "0.3"),
        ("5.45 ** 19", "98069405648087.87665130659898340860595493316650390625"),
        ("1 / 3 * 3", "1"),
        ("1 / 3", "about 0.333333333333333 (exactly 1/3)"),
        ("2 / 7 - 1", "about -0.714285714285714 (exactly -5/7)"),
        ("1e3 + 1_000", "2000"),
        (".5 + 1.", "1.5"),
        ("12 × 3 − 4 ÷ 2", "34"),
        ("5!", "120"),
        ("3!!", "720"),
        ("0 ** 0", "1"),
        ("(-1) ** (10 ** 20 + 1)", "-1"),
        ("sqrt(16 / 9) * 3", "4"),
        ("8 ** (1 / 3)", "2"),
        ("sqrt(2)", "about 1.4142135623731"),
        ("round(2.5) + round(-2.5)", "0"),
        ("round(1.005, 2)", "1.01"),
        ("round(-10 ** 400) + 10 ** 400", "0"),
        ("floor(-1.5) * ceil(1.5)", "-4"),
        ("max(1, 22 / 7, pi)", "22/7"),
        ("min(3, e)", "about 2.71828182845905"),
        ("gcd(12, 18) + lcm(4, 6)", "18"),
        ("comb(5, 2) + perm(5, 2) + comb(2, 5)", "30"),
        ("log(1000) + log(8, 2)", "about 6"),
        ("ln(e ** 2)", "about 2"),
        ("sin(pi / 2) + abs(-1)", "about 2"),
        ("123456789 * 987654321", "121932631112635269"),
        ("1.05 ** 100", "about 131.501257846303"),
        ("1.000000001 ** (10 ** 9)", "about 2.7182818270999"),
        ("+".join("1" * 1000), "1000"),
        ("007 + 1_0.5", "17.5"),
        ("2 ^ 3!", "64"),
        ("-3!", "-6"),
        ("pi % 1 - pi // 1", "about -2.85840734641021"),
        ("exp(100)", "about 2.68811714181614E+43"),
    ],
)
def test_values(expression: str, value: str) -> None:
    if value == "22/7":
        assert "exactly 22/7" in calculate(expression)
    else:
        assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("1 +", "ends too early"),
        ("(1", "ends too early"),
        ("1 2", "invalid syntax before '2'"),
        ("1,000 + 1", "without commas"),
        ("1 +* 2", "invalid syntax before '* 2'"),
        ("x + 1", "no constant 'x'"),
        ("sqr(2)", "did you mean 'sqrt'"),
        ("sqrt 2", "write sqrt(...)"),
        ("sqrt(1, 2)", "takes 1 arguments, not 2"),
        ("1 = 1", "'=' at character 2 cannot be read; there are no variables"),
        ("__import__('os')", "cannot be read"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("0 ** -0.7 + 1", "division by zero"),
        ("sqrt(-1)", "not a real number"),
        ("(-8) ** 0.5", "not a real number"),
        ("ln(0)", "above 0"),
        ("0.5!", "needs a whole number, not 0.5"),
        ("(-1)!", "negative"),
        ("9 ** 9 ** 9", "more than 1000 digits"),
        ("9 ** 9 ** 9 ** 9", "more than 1000 digits"),
        ("10 ** 1000", "more than 1000 digits"),
        ("1e999 * 1e999", "more than 1000 digits"),
        ("1e1001", "up to 1000 digits"),
        ("9" * 1001, "up to 1000 digits"),
        ("1000000!", "more than 1000 digits"),
        ("comb(10 ** 9, 10 ** 8)", "more than 1000 digits"),
        ("perm(10 ** 9, 10 ** 9)", "more than 1000 digits"),
        ("exp(10 ** 6)", "more than 1000 digits"),
        ("round(1, 10 ** 9)", "up to 1000 digits"),
        ("sin(10 ** 400)", "up to 10^15"),
        ("(" * 201 + "1" + ")" * 201, "too many nested parentheses"),
        ("2" + "**2" * 100, "nested more than 60 deep"),
        ("1 if 2 else 3", "no sum of numbers"),
        ("2(3)", "write * between"),
        ("2 pi", "invalid syntax"),
        ("1.2.3", "invalid syntax"),
        ("-" * 100 + "1", "nested more than 60 deep"),
        ("pi.real", "no sum of numbers"),
        ("1" * (MAX_EXPRESSION_CHARS + 1), "2001 characters"),
    ],
)
def test_errors_say_what_is_wrong_at_once(expression: str, says: str, cpu_at_most: Any) -> None:
    with cpu_at_most(0.2):
        with pytest.raises(CalculatorError) as caught:
            calculate(expression)
        assert says in str(caught.value)


OPERANDS = st.integers(-50, 50)


@settings(deadline=None)  # other work shares the processor
@given(st.lists(st.tuples(st.sampled_from("+-*"), OPERANDS), min_size=1, max_size=12), OPERANDS)
def test_sums_and_products_equal_pythons(rest: list[tuple[str, int]], first: int) -> None:
    text = f"({first})" + "".join(f" {sign} ({n})" for sign, n in rest)
    assert calculate(text) == str(eval(text))


@settings(deadline=None)  # other work shares the processor
@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6).filter(bool))
def test_fractions_are_exact(a: Fraction, b: Fraction) -> None:
    text = f"({a}) / ({b}) * ({b})"
    assert Fraction(calculate(f"({text}) * {a.denominator}")) == a.numerator


@settings(deadline=None)  # other work shares the processor
@given(st.text("0123456789.+-*/%^!(), eπxsqrtmaxlog", max_size=40) | st.text(max_size=20))
def test_any_text_gives_a_value_or_an_error_soon(text: str) -> None:
    started = time.process_time()
    try:
        said = calculate(text)
    except CalculatorError as error:
        said = str(error)
    assert said
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize("piece", ["9**", "(", "-", "!", "1!", "sqrt(", "9*9**9**", "comb(", "1/3/", "lcm(9999999,"])
def test_the_longest_expressions_end_soon(piece: str, cpu_at_most: Any) -> None:
    with cpu_at_most(1.0):
        for end in ("1", "3" + ")" * 60):
            try:
                calculate((piece * MAX_EXPRESSION_CHARS)[: MAX_EXPRESSION_CHARS - len(end)] + end)
            except CalculatorError:
                continue


def test_the_tool_shows_values_and_errors() -> None:
    (tool,) = make_tools("calculator")
    assert tool.call({"expression": f"{math.factorial(10)} / 10!"}, deadline_s=1).text == "1"
    error = tool.call({"expression": "9**9**9"}, deadline_s=1)
    assert not error.ok
    assert error.text == "Error: the result would have more than 1000 digits"
