"""Simple matchers: exact, normalised, question answering, multiple choice, patterns, penalties, final answers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roll_envs.errors import ConfigError, UnknownNameError
from roll_envs.verifiers import Failed, Score, make_verifier
from roll_envs.verifiers.announced import answer_phrase
from roll_envs.verifiers.boxed import boxed
from roll_envs.verifiers.choice import read_choice
from roll_envs.verifiers.extract import after_thinking
from roll_envs.verifiers.matching import normalize, squad_f1, squad_normalize
from roll_envs.verifiers.mathematics.final import final_expression

TEXT = st.text(max_size=200)


def passed(verifier: Any, answer: str, reference: Any = None, context: Any = None) -> bool:
    verdict = verifier(answer, reference, context)
    assert isinstance(verdict, Score), verdict
    assert verdict.value == float(verdict.passed)
    return verdict.passed


# -- final answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so \boxed{\frac{1}{2}}.", [r"\frac{1}{2}"]),
        (r"\boxed{1}, no: \boxed{2}", [r"2"]),
        (r"\boxed{1} and \boxed{2}", ["1", "2"]),
        (r"$\boxed{1}$, $\boxed{2}$", ["1", "2"]),
        (r"\boxed{(1, 2)} \quad \text{and} \quad \boxed{(3, 4)}", ["(1, 2)", "(3, 4)"]),
        (r"\boxed{1} \text{ for part (a) and } \boxed{2}", ["2"]),
        (r"\boxed{\boxed{3}}", [r"\boxed{3}"]),
        (r"\fbox{4}", ["4"]),
        (r"\boxed 5.", ["5"]),
        (r"\boxed{never closed", []),
        (r"\boxed{1} or \(\boxed{65", ["1", "65"]),
        (r"\boxed{65 and", []),
        (r"\boxed{1} and \boxed{never closed", ["1"]),
        (r"\boxed{a\}b}", [r"a\}b"]),
        ("none", []),
    ],
)
def test_boxed(text: str, found: list[str]) -> None:
    assert boxed(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer is 5.", "5."),
        ("The answer is 4. No: the final answer is: **5**\nDone.", "5"),
        ("Answer:\n\n42", "42"),
        ("work\n#### 18", "18"),
        ("The answer (in cm) is 7", "7"),
        ("nothing of that kind", None),
    ],
)
def test_answer_phrase(text: str, found: str | None) -> None:
    assert answer_phrase(text) == found


def test_thoughts_are_not_part_of_an_answer() -> None:
    assert after_thinking("<think>the answer is 3</think>4") == "4"
    assert after_thinking("<think>a</think>b<think>c</think>d") == "d"
    assert after_thinking("<think>cut off \\boxed{5}") == ""
    assert after_thinking("no thoughts") == "no thoughts"


@pytest.mark.parametrize(
    "piece",
    [
        "\\boxed{",
        "answer is ",
        "<think>",
        "{",
        "\n",
        " ",
        "**5** ",
        "\nWhat is 5?",
        "\n2. x",
        "a. ",
        "not the a (A",
        "| **5** |\n",
        "\nUser:",
        "<|im_end|>",
        "</think> \nUser: ",
    ],
)
def test_reading_takes_little_time(piece: str, cpu_at_most: Any) -> None:
    text = piece * (25_000 // len(piece))
    with cpu_at_most(1):  # what grows with the square takes seconds
        boxed(text), answer_phrase(text), after_thinking(text), read_choice(text), final_expression(text)


@pytest.mark.parametrize(
    "piece",
    [
        "so A. ",
        "A, B, ",
        "only A ",
        ", A",
        "A, which is ",
        "(A) x ",
        "not A. ",
        "foo ",
        "\nQ",
        "A is the the ",
        "A x - ",
        "if ",
    ],
)
def test_reading_a_choice_takes_little_time(piece: str, cpu_at_most: Any) -> None:
    text = piece * (12_000 // len(piece)) + "not A. " * 1_750 + "let me check the"
    with cpu_at_most(1):  # what grows with the square takes seconds
        read_choice(text, "ABCD", ("foo", "the foo", "not a", "x"))


@given(TEXT)
def test_reading_never_raises(text: str) -> None:
    boxed(text), answer_phrase(text), after_thinking(text), read_choice(text, "ABCD", ("x", "y"))
    read_choice("The answer is " + text)


# -- exact, normalized, em, f1 -----------------------------------------------------------------------------------------


def test_exact() -> None:
    exact = make_verifier("exact")
    assert passed(exact, " Paris\n", "Paris")
    assert not passed(exact, "paris", "Paris")
    assert passed(exact, "b", ["a", "b"])
    assert passed(exact, "42", 42)
    assert not passed(make_verifier("exact", strip=False), "a ", "a")


@pytest.mark.parametrize("name", ["exact", "normalized", "em", "f1"])
@pytest.mark.parametrize("reference", [None, True, [], {"a": 1}, [None], b"x"])
def test_a_reference_that_is_no_text_is_a_failure(name: str, reference: Any) -> None:
    assert isinstance(make_verifier(name)("a", reference), Failed)


def test_normalized() -> None:
    plain = make_verifier("normalized")
    assert passed(plain, "<think>hm</think> “Paris”. ", "paris")
    assert passed(plain, "New\n York", "new york")
    assert passed(plain, "ﬁne", "fine")  # a ligature
    assert not passed(plain, "It's", "its")
    assert passed(make_verifier("normalized", ignore_punctuation=True), "a-b", "a b")
    assert not passed(make_verifier("normalized", ignore_case=False), "paris", "Paris")
    assert passed(make_verifier("normalized", ignore_articles=True), "The cat", "cat")
    assert not passed(plain, "-5", "5")
    assert not passed(plain, "+", "-")


@given(TEXT)
@example("0:\x1f")
def test_normalizing_twice_changes_nothing_more(text: str) -> None:
    once = normalize(text)
    assert normalize(once) == once


def test_squad() -> None:
    # Bags of 3 and 4 words with 2 in common: precision 2/3, recall 2/4, F1 = 2 * 2 / 7.
    assert squad_f1("a quick brown fox", "the brown fox jumps high") == pytest.approx(4 / 7)
    assert squad_normalize("The U.S.A.,  an  apple") == "usa apple"
    assert squad_f1("the", "a") == 1.0
    assert squad_f1("", "cat") == 0.0
    f1 = make_verifier("f1", threshold=0.5)
    for name, right in (("em", True), ("f1", True), ("exact", False)):  # a list in a text, as in PopQA
        assert make_verifier(name)("politician", '["leader", "politician"]').passed is right
        assert passed(make_verifier(name), '["a", null]', '["a", null]')
    verdict = f1("a quick brown fox", ["nothing", "the brown fox jumps high"])
    assert isinstance(verdict, Score)
    assert (verdict.passed, verdict.parts["em"]) == (True, 0.0)
    assert verdict.value == verdict.parts["f1"] == pytest.approx(4 / 7)
    em = make_verifier("em")
    assert passed(em, "the Eiffel Tower!", ["Louvre", "Eiffel tower"])
    assert not passed(em, "Eiffel", "Eiffel tower")
    with pytest.raises(ConfigError, match="threshold"):
        make_verifier("f1", threshold=0)


@given(TEXT, TEXT)
def test_f1_is_symmetric_and_in_range(one: str, other: str) -> None:
    assert squad_f1(one, other) == squad_f1(other, one)
    assert 0 <= squad_f1(one, other) <= 1
    assert squad_f1(one, one) == 1


# -- multiple choice ---------------------------------------------------------------------------------------------------

CITIES = ("London", "Paris", "New York", "Rome")


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("The answer is (B)", "B"),
        ("The answer is B.", "B"),
        ("The answer is \\boxed{B}", "B"),
        ("\\boxed{\\text{(B)}}", "B"),
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("B)", "B"),
        ("**B**", "B"),
        ("B) Paris", "B"),
        ("B. Paris", "B"),
        ("Paris", "B"),
        ("The answer is Paris.", "B"),
        ("\\boxed{Paris}", "B"),
        ("It is not (A). The answer is (B).", "B"),
        ("The answer is A. Wait, the answer is B.", "B"),
        ("Answer: **B**", "B"),
        ("Answer:\n\nB", "B"),
        ("The best answer is B: A is too far.", "B"),
        ("The correct option is B", "B"),
        ("The correct answer is **B) Paris**", "B"),
        ("Long reasoning about it.\nTherefore I choose B.", "B"),
        ("Long reasoning.\n\nB. Paris", "B"),
        ("Of the two, option C is far. So only (B) is left.", "B"),
        ("<think>The answer is A</think>B", "B"),
        ("The answer is A or B", "AB"),
        ("\\boxed{A, B}", "AB"),
        ("\\boxed{A} and \\boxed{B}", "AB"),
        ("The answer is (A) and (B)", "AB"),
        ("The answer is not (B)", ""),
        ("A dog came by", ""),
        ("I think so", ""),
        ("", ""),
        ("ABCD", ""),
        ("<think>The answer is B", ""),
        ("\\boxed{Z}", ""),
    ],
)
def test_reading_a_choice(text: str, letters: str) -> None:
    assert read_choice(text, "ABCD", CITIES) == frozenset(letters)


def test_choice() -> None:
    choice = make_verifier("choice")
    assert passed(choice, "The answer is (B)", "B")
    assert passed(choice, "The answer is (J)", "(J)")
    assert passed(choice, "B", 1)
    assert not passed(choice, "The answer is A or B", "B")
    assert passed(choice, "A and C", "A, C")
    assert passed(choice, "C and A", ["A", "C"])
    assert not passed(choice, "A", "A, C")
    assert passed(choice, "Paris", "B", {"options": list(CITIES)})
    assert passed(make_verifier("choice", options_key="choices"), "Paris", "B", {"choices": list(CITIES)})
    assert passed(choice, "B", "Paris", {"options": dict(zip("ABCD", CITIES, strict=True))})
    assert passed(make_verifier("choice", options=CITIES), "the answer is rome", "D")
    assert passed(make_verifier("choice", options=CITIES), "B", "The capital of France is Paris.")
    assert isinstance(choice("B", "Z"), Failed)
    assert isinstance(choice("B", None), Failed)
    assert isinstance(make_verifier("choice", options=CITIES)("B", "E"), Failed)
    with pytest.raises(ConfigError, match="capital letters"):
        make_verifier("choice", letters="abc")


# -- patterns ----------------------------------------------------------------------------------------------------------


def test_regex() -> None:
    assert passed(make_verifier("regex", pattern=r"\d+"), "a 12", None)
    assert not passed(make_verifier("regex", pattern=r"\d+", mode="fullmatch"), "a 12", None)
    assert passed(make_verifier("regex", pattern="abc", flags=["ignorecase"]), "xABC", None)
    assert passed(make_verifier("regex"), "gray", "gr[ae]y")
    number = make_verifier("regex", pattern=r"x = (\d+)", compare=True, last=True)
    assert passed(number, "x = 4, so x = 5", "5")
    assert not passed(number, "x = 5, so x = 4", 5)
    assert not passed(make_verifier("regex", pattern="a", max_chars=5), "a" * 6, None)
    assert isinstance(make_verifier("regex")("x", "("), Failed)
    assert isinstance(make_verifier("regex")("x", None), Failed)


def test_a_catastrophic_pattern_ends_at_its_deadline_and_is_no_verdict() -> None:
    verifier = make_verifier("regex", pattern=r"^(a+)+$", deadline_s=0.5)
    assert passed(verifier, "aaaa", None)
    started = time.perf_counter()
    verdict = verifier("a" * 60 + "b")
    assert time.perf_counter() - started < 30
    assert isinstance(verdict, Failed)
    assert "within 0.5 s" in verdict.reason
    assert passed(verifier, "aaaa", None)


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"pattern": "("}, ConfigError, "cannot be used"),
        ({"pattern": "a", "mode": "find"}, ConfigError, "fullmatch"),
        ({"pattern": "a", "flags": ["ignorecas"]}, UnknownNameError, "ignorecase"),
        ({"compare": True}, ConfigError, "needs a pattern"),
        ({"pattern": "a", "last": True, "mode": "match"}, ConfigError, "mode='search'"),
        ({"pattern": "a", "deadline_s": 0}, ConfigError, "deadline_s"),
    ],
)
def test_wrong_arguments_of_regex(kwargs: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make_verifier("regex", **kwargs)


# -- penalties ---------------------------------------------------------------------------------------------------------


def value(verifier: Any, answer: str) -> float:
    verdict = verifier(answer)
    assert isinstance(verdict, Score)
    assert verdict.passed == (verdict.value == 0)
    return verdict.value


def test_the_length_penalty_is_a_ramp() -> None:
    verifier = make_verifier("length", limit=4, slack=4, penalty=2.0)
    assert [value(verifier, "w " * n) for n in (0, 4, 5, 6, 8, 99)] == [0.0, 0.0, -0.5, -1.0, -2.0, -2.0]
    steep = make_verifier("length", limit=3, unit="chars", least=2)
    assert [value(steep, "x" * n) for n in (1, 2, 3, 4)] == [-1.0, 0.0, 0.0, -1.0]
    with pytest.raises(ConfigError, match="least"):
        make_verifier("length", limit=3, least=4)
    with pytest.raises(ConfigError, match="words"):
        make_verifier("length", limit=3, unit="tokens")
    with pytest.raises(ConfigError, match="penalty"):
        make_verifier("length", limit=3, penalty=-1)


def test_the_repetition_penalty_counts_repeated_runs() -> None:
    verifier = make_verifier("repetition", n=2)
    assert value(verifier, "one two three four") == 0
    # Runs: (a b) (b a) (a b) (b a) (a b): 2 of 5 are distinct.
    assert value(verifier, "a b a b a b") == pytest.approx(-0.6)
    assert value(make_verifier("repetition", n=2, allowed=0.5), "a b a b a b") == pytest.approx(-0.2)
    assert value(verifier, "a") == 0
    assert value(make_verifier("repetition", n=3), "! " * 1000) == pytest.approx(-(1 - 1 / 998))
    # Without spaces, too: 天天 is one of four runs of two.
    assert value(verifier, "天天天上云") == pytest.approx(-0.25)
    assert value(make_verifier("repetition", n=3), "我不知道" * 100) < -0.9
    assert value(verifier, "हिन्दी में पानी") == 0
    assert value(verifier, "_" * 101) == pytest.approx(-0.99)
    with pytest.raises(ConfigError, match="allowed"):
        make_verifier("repetition", allowed=1)


def test_a_name_like_none_that_is_known_is_told_how_packages_add_theirs() -> None:
    with pytest.raises(UnknownNameError, match=r"known: .*entry points of 'roll_envs\.verifiers'"):
        make_verifier("my_package:grade")
    with pytest.raises(UnknownNameError, match=r"did you mean 'math'\?$"):
        make_verifier("mathh")
