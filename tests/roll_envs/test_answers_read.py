"""Final answers in many kinds of writing: the bar of a labelled set, and replies that commit to nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from answer_replies import SETS, UNDECIDED, read_as, replies, written

from roll_envs.verifiers import Score, make_verifier
from roll_envs.verifiers.choice import read_choice
from roll_envs.verifiers.continued import own_part
from roll_envs.verifiers.extract import after_thinking, plain, reply, short_answer
from roll_envs.verifiers.mathematics.final import final_expression, for_reference, reference_expression


def test_98_of_100_replies_are_read_and_no_letter_is_wrong() -> None:
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    math = make_verifier("math")
    labelled = replies()
    assert len(labelled) >= 1000
    missed, wrong = Counter[str](), []
    for one in labelled:
        if one.task == "choice":
            found = read_choice(one.text, "ABCDE")
            missed[one.kind] += found != {one.answer}
            if found and found != {one.answer}:
                wrong.append((one, found))
        else:
            verdict = math(one.text, one.answer)
            assert isinstance(verdict, Score)
            missed[one.kind] += not verdict.passed
            assert not math(one.text, "1234567.25").passed
    assert wrong == []
    assert missed.total() <= 0.02 * len(labelled), missed


def test_fresh_replies() -> None:
    """60 replies written after the rules, which were not changed for them: 50 are read, no letter is wrong."""
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    math = make_verifier("math")
    found = [(one, read_as(one, math)) for one in written("fresh_replies.tsv")]
    assert [one for one, how in found if one.task == "choice" and how == "other"] == []
    assert sum(how == "right" for _, how in found) >= 50


def test_replies_that_were_misread_once() -> None:
    """Of each cause one or more; without letters, or with ``!``, a reply that does not give this answer."""
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    math = make_verifier("math")
    assert [one for one in written("misread_replies.tsv") if read_as(one, math) != "right"] == []


@pytest.mark.parametrize(
    ("name", "least"), [(name, 0.98 if name in ("h", "i", "j", "n", "o", "zc") else 0.985) for name in SETS]
)
def test_choices_of_replies_that_others_wrote(name: str, least: float) -> None:
    """The share that is read is no less than it was, and no letter is read that is not given."""
    choices = [one for one in written(f"written_replies_{name}.tsv") if one.task == "choice"]
    found = [read_as(one, make_verifier("choice")) for one in choices]
    assert found.count("right") >= least * len(choices)
    assert found.count("other") == 0


@pytest.mark.parametrize(
    ("name", "least"),
    [(name, {"h": 0.965, "m": 0.97, "o": 0.975, "q": 0.965}.get(name, 0.98)) for name in SETS],
)
def test_mathematics_of_replies_that_others_wrote(name: str, least: float) -> None:
    """The share that is read as meant; rules were made for the misses of all of them."""
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    math = make_verifier("math")
    found = [read_as(one, math) for one in written(f"written_replies_{name}.tsv") if one.task == "math"]
    assert found.count("right") >= least * len(found)


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("only D makes sense", "D"),
        ("A and B are not correct, so C", "C"),
        ("I would rule out A, B and C, leaving D.", "D"),
        ("It can't be A. B is the best choice.", "B"),
        ("One of them is C and the other is D", ""),
        ("Maybe it fits B", ""),
        ("I think, so I am. A big cat sleeps", ""),
        ("B is wrong", ""),
        (
            "A. Ionic bonds melt high.\nB. Polar ones do not.\nC. Networks do.\n\nBased on this it is a network (C).",
            "C",
        ),
        ("If the point C is pulled up by 6 cm, the cord gets longer by (D) 8 cm.", "D"),
        ("الفرضية (أ) ضعيفة.\n\n**الإجابة النهائية هي [ب]**", "B"),
        ("نضرب ب 5 والله أعلم", ""),
    ],
)
def test_what_statements_leave(text: str, letters: str) -> None:
    assert read_choice(text, "ABCDE") == frozenset(letters)


@pytest.mark.parametrize("text", UNDECIDED)
def test_a_reply_that_commits_to_no_choice(text: str) -> None:
    assert len(read_choice(text, "ABCDE")) != 1


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("A isn't right. Neither A nor B is correct. The answer is C.", "C"),
        ("Neither A nor B is correct.", ""),
        ("The answer is B. Wait: the answer is not B. The answer is D.", "D"),
        ("The answer is A. On reflection, the answer is not A.", ""),
        ("选项A不正确，答案是B", "B"),
        ("C is wrong. Therefore, A is correct.", "A"),
    ],
)
def test_denials(text: str, letters: str) -> None:
    assert read_choice(text, "ABCDE") == frozenset(letters)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer is 2**3.", "2**3."),
        ("$5 + 3 = 8$", "8"),
        ("The answer is $5 \\text{ cm}$.", "5 \\text{ cm}"),
        ("After paying $660, she has $711 left.", "$711"),
        ("8 * 9 = 72", "72"),
        ("x = 5", "x = 5"),
        ("答案是 72 元。", "72 元"),
        ('Hence, the answer is "$10,511".', "$10,511"),
        ("### Final Answer\nTherefore, the interest as of 5 June 2013 is **2**.", "2"),
        ("我们来逐步解这个方程：\n\n### 题目：\n$x + 1 = 5$\n\n### 最终答案：\n\nAnswer: $4$", "4"),
    ],
)
def test_final_expressions(text: str, found: str) -> None:
    assert final_expression(text) == found


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("48/2 = <<48/2=24>>24\n#### 1,072", "1,072"),
        ("Thus the answer is $\\boxed{\\frac12}$.", "\\frac12"),
        ("The answer is 72.", "72."),
        ("x^2+1", "x^2+1"),
        ("x = 3 or x = 4", "x = 3 or x = 4"),
    ],
)
def test_references(reference: str, found: str) -> None:
    assert reference_expression(reference) == found


def test_the_letter_of_a_choice_before_a_value() -> None:
    assert for_reference("\\textbf{(C)}\\ 72", "72") == "72"
    assert for_reference("\\textbf{(C)}\\ 72", "\\textbf{(C)}") == "C"
    for labelled in ("C. 72", "\\text{C: } 72", "(C)\\ 72", "\\mathrm{(C) \\ } 72", "\\mathrm{\\textbf{(C)}}\\ 72"):
        assert (for_reference(labelled, "72"), for_reference(labelled, "C")) == ("72", "C")
    assert for_reference("\\text{A}, \\text{C}", "A") == "\\text{A}, \\text{C}"
    assert for_reference("72", "C") == "72"


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("9.\n\n2. What is 5 + 7?\n12.", "9."),
        ("1. Add: 5\n2. Double: 10\n\nSo it is 10.", "1. Add: 5\n2. Double: 10\n\nSo it is 10."),
        ("-1.\n\n(b) Evaluate 2 + 2.\n4.", "-1."),
        ("metaphase\n\nQuestion: And then?\nAnswer: anaphase", "metaphase"),
        ("I see.\n\nInput: 3 4\nOutput: \\boxed{7}", None),
        ("Very well.\n\nProblem: add.\n\n<answer>7</answer>", None),
        ("Great!\n\nQuestion: 2 + 2?\nAnswer: 4", None),
        ("$\\frac14$\n\nProblem: add.\n\nSolution: \\boxed{7}", "$\\frac14$"),
        ("Let us restate it.\n\nQuestion: 2 + 2?\nAnswer: 4", None),
        ("= 7\n\nWhat is the sum of 5 and 9?\n\n= 14", "= 7"),
        ("Tom has 5 and buys 3.\n\nHow many has he now?\n\n5 + 3 = 8", None),
        ("x = 7 [/INST] [INST] 3y = 15 [/INST] y = 5", "x = 7"),
        ('"answer": "30",\n  "level": 1\n},\n{\n  "answer": "12"', '"answer": "30",\n  "level": 1'),
        ("It is $2$.\n\n\\begin{exercise}\nShow that it is $3$.\n\\end{exercise}", "It is $2$."),
        ("He runs 260 m.\nHe runs 260 m.\nHe runs 2", "He runs 260 m."),
        ("(A) is it. (B) is no. (C) is no. (B) is no. (C) is no. (B) is", "(A) is it. (B) is no. (C) is no."),
        ("B B B B B B", "B"),
        ("So it is 12 = #### 5.\n\nNext, let's calculate the cost of 3 more of them.\n\nIt is #### 8.", None),
        ("Both of the boxes weigh 5 kg.\n\nBoth of the boxes weigh 7 kg.", "Both of the boxes weigh 5 kg."),
        ("To find the energy we need h.\n\nIt is 5 J.\n\nTo find the energy we take 6.\n\nSo the answer is C.", None),
    ],
)
def test_what_is_written_after_an_answer_is_cut_off(text: str, own: str | None) -> None:
    assert own_part(text).strip() == (text if own is None else own)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("**Total: $3.50**\n\nOf $5 you get $1.50 back.", "3.50"),
        ("Emma is **18 years old**, while her brother is 12.", "18"),
        ("**5** pens and **3** pencils make 8 things.", "8"),
        ("**Step 1: take 5**\n\nIt leaves 8.", "8"),
        ("That is **5** a day, so 35 a week.", "35"),
    ],
)
def test_a_value_in_bold_is_the_answer(text: str, found: str) -> None:
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    assert make_verifier("math")(text, found).passed


def test_thoughts_and_tags() -> None:
    assert after_thinking("we write a <think> tag") == "we write a <think> tag"
    assert after_thinking("a</think>b</think>c", first=True) == "b</think>c"
    assert reply("so \\boxed{6}\n</think>") == "so \\boxed{6}\n"  # nothing else is there
    assert reply("<think>so \\boxed{6}</think>") == ""
    assert reply("<answer>1</answer> I used <answer> tags") == "1"
    assert reply("<answer>1</answer> no <answer>2</answer>") == reply("It is <answer>2") == "2"
    assert plain("**A** is 2**3, `b` and *c*; 2 * 3 * 4") == "A is 2**3, b and c; 2 * 3 * 4"
    assert short_answer("Old. **The answer is Paris**") == "Paris"


@pytest.mark.parametrize("name", ["em", "f1"])
def test_short_answers_in_tags(name: str) -> None:
    verifier: Any = make_verifier(name)
    for text in ("<think>Rome?</think><answer>Paris</answer>", "The answer is **Paris**.", "Paris", "\\boxed{Paris}"):
        assert verifier(text, "Paris").value == 1.0
        assert verifier(text, "Rome").value == 0.0
