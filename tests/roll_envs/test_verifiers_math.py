"""Mathematics: which answers are equal to which references, hostile answers, and who is at fault."""

from __future__ import annotations

import importlib
import json
import logging
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_envs.errors import ConfigError, MissingExtraError
from roll_envs.verifiers import Failed, Score, Verdict, ajudge, make_verifier
from roll_envs.verifiers.mathematics.final import final_expression, says_words
from roll_envs.verifiers.mathematics.plain_numbers import in_digits, plain_number
from roll_envs.verifiers.mathematics.sizes import hopeless, looks_costly
from roll_envs.verifiers.mathematics.structure import Unreadable, read
from roll_envs.verifiers.mathematics.tidy import tidy
from roll_envs.verifiers.mathematics.units import Unit, read_unit
from roll_envs.verifiers.mathematics.verifier import MathVerifier
from roll_envs.verifiers.workers import Outcome, WorkerPool, pool_metrics

PAIRS = [
    line.split("\t")
    for line in (Path(__file__).parent / "math_pairs.tsv").read_text(encoding="utf-8").splitlines()
    if line
]
FRAMES = ("{}", "\\boxed{{{}}}", "So we add them up.\n\nThe final answer is ${}$.", "We find that\n\\[\\boxed{{{}}}\\]")


@pytest.fixture(scope="module")
def math() -> Any:
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    return make_verifier("math")


def judged(verifier: Any, answer: str, reference: Any) -> bool:
    verdict = verifier(answer, reference)
    assert isinstance(verdict, Score), (answer, reference, verdict)
    assert verdict.value == float(verdict.passed)
    return verdict.passed


# -- what is equal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", FRAMES[:2])
def test_pairs(math: Any, frame: str) -> None:
    wrong = [
        (gold, answer) for word, gold, answer in PAIRS if judged(math, frame.format(answer), gold) != (word == "same")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"y=\pm\frac12x", r"x\pm 2y=0"),
        ("(1,1,1)", "x=y=z=1"),
        (r"(-\infty, 0) \cup\{1\}", r"P(0)<0 \text{ or } P(0)=1"),
        (r"k \ge 2", r"\text{all } k \ge 2"),
        (r"f(x) = cx+1, \text{ where } c \text{ is a constant}", "f(x)=cx+1"),
        (r"f(x) = kx+1 \text{ for any constant } k", "f(x)=kx+1"),
        (r"\angle B E A_{1}=90$,$\angle A E B_{1}=45", r"\angle BEA_1 = 90^\circ, \angle AEB_1 = 45^\circ"),
        (r"-2 \le x \le 7", r"-2 \\le x \\le 7"),
        ("14 (apples)", "14 apples"),
        (r"M = \{x \mid 1<x<2\}", "(1,2)"),
        (r"\frac{\pi}{4}+k\pi, k\in\mathbb{Z}", r"n\pi+\frac{\pi}{4}\text{ where } n \text{ is an integer}"),
        (
            r"a_n=\left\{\begin{array}{ll}1, & n=1 \\ 2n, & n \geq 2\end{array}\right.",
            r"a_n=\begin{cases}1,&n=1\\2n,&n\ge2\end{cases}",
        ),
    ],
)
def test_pairs_that_need_a_box_around_the_answer(math: Any, gold: str, answer: str) -> None:
    assert judged(math, f"\\boxed{{{answer}}}", gold)
    assert not judged(math, f"\\boxed{{{answer.replace('1', '7').replace('4', '5').replace('2', '5')}}}", gold)


def test_what_stands_behind_a_number_in_a_box(math: Any) -> None:
    assert judged(math, r"\boxed{5 (\text{cm})}", r"5\text{ cm}")
    for gold, answer in (("15", "15 percent less"), ("20", "20 of 30"), (r"5\text{ cm}", r"5 (\text{mm})")):
        assert not judged(math, f"\\boxed{{{answer}}}", gold), answer


def test_every_reference_of_the_pairs_is_its_own_answer(math: Any) -> None:
    assert [gold for _, gold, _ in PAIRS if not judged(math, f"\\boxed{{{gold}}}", gold)] == []


def test_recorded_pairs(math: Any, shared_dir: Path) -> None:
    pairs = json.loads((shared_dir / "math" / "pairs.json").read_text(encoding="utf-8"))
    for frame in FRAMES:
        found = [(p, judged(math, frame.format(p["answer"]), p["gold"])) for p in pairs]
        assert [p for p, passed in found if passed != p["equal"]] == [], frame


def test_a_joint_without_spaces_joins_as_well(math: Any) -> None:
    assert judged(math, "x=2, x=1", "x=1 \\text{or} x=2")
    assert judged(math, "x=2 \\text{or} x=1", "x=1, x=2")
    assert not judged(math, "x=1 \\text{or} x=3", "x=1, x=2")


def test_several_references(math: Any) -> None:
    assert judged(math, "0.5", ["7", "\\frac12"])
    assert not judged(math, "0.6", ["7", "\\frac12"])
    assert judged(math, "the answer is 7", 7)
    assert judged(math, "The answer is 10^{th}.", "10^{th}")
    assert judged(math, "0.5", '["\\\\frac12"]')  # as JSON in a text, in Skywork-OR1
    assert not judged(math, "0.6", '["\\\\frac12"]')
    # Of several, whether all are the answer or any is not known.
    assert judged(math, "\\boxed{[1,2]}", '["1","2"]')
    assert not judged(math, "\\boxed{1}", '["1","2"]')
    assert judged(math, "7/2", 3.5)
    assert judged(math, "\\boxed{4}", "so \\boxed{4}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("We get $x=2$, so the answer is $\\frac12$ cm.", "\\frac12 cm"),
        ("The answer is $x=1$ or $x=2$.", "x=1, x=2"),
        ("The answer is $\\$10$", "\\$10"),
        ("The answer is 5 because $x=3$ is out.", "5"),
        ("First $3$, then $4$ and $5$", "4, 5"),
        ("There are 12 boys and 1,300 girls in it", "1,300"),
        ("<think>\\boxed{3}</think>So: 4", "4"),
        ("Therefore, x = 4", "x = 4"),
        ("$5$ cm", "5 cm"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("#### 18", "18"),
        ("x+1", "x+1"),
        ("", ""),
        ("<think>\\boxed{3}", ""),
    ],
)
def test_final_expression(text: str, found: str) -> None:
    assert final_expression(text) == found


def test_require_boxed() -> None:
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    strict = make_verifier("math", require_boxed=True)
    assert not judged(strict, "the answer is 5", "5")
    assert judged(strict, "the answer is \\boxed{5}", "5")


@pytest.mark.parametrize(
    "piece",
    [
        "$",
        "$$a",
        "\\[ ",
        "\\(",
        "<answer>",
        "answer is ",
        "\\boxed{",
        "1,111,",
        "aa, ",
        "because ",
        "\\text{",
        " \n",
        "  ",
        "is ",
        "so 5 in ",
        "5 (",
        "a=",
        ", which 5 ",
        "would be ",
        "ten hundred ",
        "5 hours and ",
    ],
)
def test_finding_an_answer_takes_little_time(piece: str, cpu_at_most: Any) -> None:
    text = piece * (40_000 // len(piece)) + "x"
    with cpu_at_most(0.8):
        for head in ("the answer is 5", ""):
            found = final_expression(head + text)
            plain_number(tidy(found[:2000]))
            says_words(head + text, "no solution")


@given(st.fractions())
def test_plain_numbers_are_exact(value: Fraction) -> None:
    assert plain_number(f"{value.numerator}/{value.denominator}") == value
    assert plain_number(rf"\frac{{{value.numerator}}}{{{value.denominator}}}") == value
    assert plain_number(f"{value.numerator:,}") == value.numerator


@given(st.text(max_size=60))
def test_reading_any_text_gives_a_kind_or_refuses(text: str) -> None:
    tidied = tidy(text)
    plain_number(tidied)
    final_expression(text)
    try:
        read(tidied)
    except Unreadable:
        return


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Twenty-one eggs and three hens", "21 eggs and 3 hens"),
        ("minus seven", "-7"),
        ("one third of a million", "1/3 of 1 million"),
        ("no one has the one that someone lost", "no one has the one that someone lost"),
    ],
)
def test_spelled_numbers(text: str, found: str) -> None:
    assert in_digits(text) == found


def test_a_decimal_comma_where_the_reference_is_one_number(math: Any) -> None:
    assert judged(math, "El promedio es 3,5.", "3.5")
    assert judged(math, "x = 2,25", "x = 2.25")
    assert judged(math, "Die Lösungen sind 2,5", "2, 5")
    assert not judged(math, "\\boxed{3,500}", "3.5")
    assert not judged(math, "(2,5)", "2.5")


def test_of_a_value_and_its_decimals_the_kind_of_the_reference_is_graded(math: Any) -> None:
    for reference, right in (("25\\pi", True), ("78.54", True), ("78.5", False), ("78", False)):
        assert judged(math, "The area is 25π ≈ 78.54 square units.", reference) is right


def test_units() -> None:
    assert read_unit("square centimeters") == read_unit("cm^2") == Unit(factor=Fraction(1, 10000), powers=(("m", 2),))
    assert read_unit("km/h") == read_unit("kilometers per hour") == read_unit("kph")
    assert read_unit("red apples") == Unit(words="red apple")
    assert read_unit("square units") == Unit()


# -- hostile answers and faults ----------------------------------------------------------------------------------------

ENDLESS = ("\\prod_{k=1}^{10^{7}} (1+\\frac{1}{k^2+1})", "\\sum_{n=1}^{10^{12}} \\frac{1}{n^2+n+1}")


@pytest.mark.parametrize("answer", ENDLESS)
def test_an_endless_answer_is_wrong_at_its_deadline(answer: str) -> None:
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    verifier = make_verifier("math", deadline_s=1.0)
    verdict = verifier(answer, "5")
    assert isinstance(verdict, Score)
    assert (verdict.value, verdict.parts) == (0.0, {"ungraded": 1.0})
    assert "not graded within" in verdict.detail
    assert judged(verifier, "2x", "x+x")


@pytest.mark.slow
def test_recorded_hostile_answers_are_wrong_in_time(math: Any, shared_dir: Path) -> None:
    hostile = json.loads((shared_dir / "math" / "hostile.json").read_text(encoding="utf-8"))
    for case in hostile:
        for answer in (case["answer"], f"\\boxed{{{case['answer']}}}"):
            started = time.perf_counter()
            assert not judged(math, answer, case["gold"]), case["name"]
            assert time.perf_counter() - started < 30, case["name"]  # its deadline is one of processor time


def test_nothing_in_an_answer_is_run(math: Any, tmp_path: Path) -> None:
    target = tmp_path / "made"
    for code in (
        f"__import__('os').system('touch {target}')",
        f"open('{target}', 'w')",
        f"\\text{{__import__('os').mkdir('{target}')}}",
        f"().__class__.__base__.__subclasses__()[0]('{target}')",
    ):
        assert not judged(math, code, "5")
        assert not judged(math, f"\\boxed{{{code}}}", "x+5")
    assert not target.exists()


@pytest.mark.parametrize("reference", [None, "", "  ", "$$", [], "5" * 5000, True, {"a": 1}])
def test_a_reference_that_cannot_be_used_is_a_failure(math: Any, reference: Any) -> None:
    for answer in ("5", "", "x" * 3000):
        assert isinstance(math(answer, reference), Failed), answer


def test_a_reference_that_takes_for_ever_is_a_failure_and_asked_once() -> None:
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    verifier = make_verifier("math", deadline_s=1.0)
    assert isinstance(verifier("5", "9^{9^{9^9}}"), Failed)
    started = time.perf_counter()
    assert isinstance(verifier("6x", "9^{9^{9^9}}"), Failed)
    assert time.perf_counter() - started < 0.3


class Faked(MathVerifier):
    """Graded by a pool of this file's."""

    pool: Any = None

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self.pool = pool


class Pool:
    """Answers every task with what it is told."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.tasks: list[str] = []

    def call(self, task: str, arguments: list[Any], *, deadline_s: float, shape: str, costly: bool) -> Outcome:
        self.tasks.append(task)
        return self.outcomes.pop(0)


def with_pool(*outcomes: Outcome) -> tuple[Any, Pool]:
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    pool = Pool(*outcomes)
    return Faked(pool), pool


DIED = Outcome(status="died", detail="the grading process died")
GONE = Outcome(status="unavailable", detail="no worker")
HURRIED = Outcome(status="deadline", detail="too many", hurried=True)
GOOD, RIGHT, WRONG = (Outcome(status="ok", value=value) for value in ("", True, False))


def test_its_options_are_those_of_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    verifier: Any = make_verifier("math", deadline_s=1.5, workers=3, uses=7, memory_mb=900)
    settings = verifier.pool.settings
    assert (settings.workers, settings.uses, settings.memory_mb) == (3, 7, 900)
    asked: list[float] = []

    def call(*_: Any, deadline_s: float, **__: Any) -> Outcome:
        asked.append(deadline_s)
        return RIGHT

    monkeypatch.setattr(verifier.pool, "call", call)
    assert judged(verifier, "x", "y")
    assert asked == [1.5]


def test_an_answer_is_at_fault_where_its_reference_can_be_graded() -> None:
    verifier, pool = with_pool(DIED, GOOD)
    for _ in range(2):  # remembered
        verdict = verifier("x", "y")
        assert isinstance(verdict, Score)
        assert (verdict.value, verdict.parts) == (0.0, {"ungraded": 1.0})
    assert pool.tasks == ["grade", "check"]
    pool.outcomes = [DIED]
    assert not judged(verifier, "z", "y")  # the reference is known
    assert pool.tasks == ["grade", "check", "compare"]


def test_a_missing_worker_is_a_failure_and_not_remembered() -> None:
    verifier, pool = with_pool(GONE, RIGHT)
    assert verifier("x", "y") == Failed(reason="no worker")
    assert judged(verifier, "x", "y")
    assert judged(verifier, "x", "y")
    assert pool.tasks == ["grade", "grade"]
    verifier, pool = with_pool(DIED, GONE, WRONG)
    assert isinstance(verifier("x", "y"), Failed)  # whose fault it is cannot be told
    assert not judged(verifier, "x", "y")


def test_a_verdict_in_a_hurry_is_not_remembered() -> None:
    verifier, pool = with_pool(HURRIED, GOOD, RIGHT)
    assert not judged(verifier, "x", "y")
    assert judged(verifier, "x", "y")
    assert pool.tasks == ["grade", "check", "compare"]


@pytest.mark.parametrize(
    "outcomes", [(DIED, DIED), (DIED, Outcome(status="ok", value="no")), (Outcome(status="ok", value="no"),)]
)
def test_a_reference_at_fault_is_a_failure_for_all_its_answers(outcomes: tuple[Outcome, ...]) -> None:
    verifier, pool = with_pool(*outcomes)
    assert isinstance(verifier("x", "y"), Failed)
    assert isinstance(verifier("z", "y"), Failed)
    assert len(pool.tasks) == len(outcomes)


def test_equal_answers_at_the_same_time_are_graded_once() -> None:
    gate = threading.Event()

    class Slow(Pool):
        def call(self, *args: Any, **kwargs: Any) -> Outcome:
            gate.wait(10)
            return super().call(*args, **kwargs)

    pool = Slow(RIGHT)
    with_pool()
    verifier = Faked(pool)
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(judged, verifier, "x", "y") for _ in range(8)]
        gate.set()
        assert all(each.result(10) for each in asked)
    assert pool.tasks == ["grade"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("9^{9^{9^9}}", True),
        ("2^{10^{10}}", True),
        ("\\sqrt[10^9]{2^{10^9+7}}", True),
        ("(1+1)^{10^9}", True),
        ("((10^5)!)!", True),
        ("\\Gamma(10^{10})", True),
        ("\\binom{10^9}{5\\cdot10^8}", True),
        ("x^{10^{11}}", True),
        ("\\dfrac{1}{3^{10^{8}}}", True),
        ("2^{1000}", False),
        ("1^{10^9}", False),
        ("(-1)^{10^{10}}", False),
        ("100!", False),
        ("①!", False),
        ("\\binom{10^{9}}{2}", False),
        ("\\sum_{n=1}^{10^{12}} n", False),
        ("6.02\\times10^{23}", False),
        ("x^{2023}-1", False),
        ("{" * 5000 + "^", False),
    ],
)
def test_sizes_that_no_computation_finishes(text: str, found: bool) -> None:
    assert hopeless(tidy(text)) is found


@pytest.mark.parametrize(
    ("text", "costly"),
    [
        ("195e^{192}", False),
        ("x^{2023}-1", False),
        ("100!", False),
        ("\\binom{10}{3}", False),
        ("150000!", True),
        ("7^{7^{5}}", True),
        ("\\sum_{n=1}^{10^{12}} n", True),
        ("\\sqrt[10]{2^{9}}", True),
        ("1234567890123", True),
        ("x+" * 150 + "x", True),
    ],
)
def test_answers_that_look_costly_come_last(text: str, costly: bool) -> None:
    assert looks_costly(tidy(text)) is costly


def test_quick_prediction_reads_as_the_full_one() -> None:
    """Powers of letters are read in braces, which must change no meaning: not of functions, derivatives or indices."""
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    from latex2sympy2_extended.latex2sympy2 import latex2sympy

    from roll_envs.verifiers.mathematics import symbols

    texts = (
        "x^{2}+7x+10|xy^2|x^2(x+1)|(x^{2}-1)(x+1)|f(x^2)|O(n^2)|f^{2}(x)|f^{-1}(x)|\\frac{d^2y}{dx^2}|\\int x^2 dx|"
        "\\frac{\\partial f}{\\partial x^2}|\\log_x^2 3|\\log_2 x^2|a_x^2|x_1^2|x^{2}_{1}|\\sin x^2|\\sin^2 x|"
        "e^2|2e^{2}x|\\sum_{n=1}^5 n^2|\\lim_{x \\to 0} x^2|\\sqrt x^2|\\frac x^2|x^{10}|x^12|x^2!|"
        "\\alpha^2|3\\pi r^{2}|x^2+y^2=r^2|x^{2"
    ).split("|")

    def read(parse: Any, text: str) -> str:
        try:
            return str(parse(text))
        except Exception as error:
            return type(error).__name__

    for text in (symbols.normalize_latex(text, config=symbols._CONFIG) for text in texts):
        full = read(lambda t: latex2sympy(t, is_real=True, convert_degrees=False, normalization_config=None), text)
        assert read(symbols._converted, text) == full, text


def test_a_hopeless_answer_is_wrong_without_a_worker() -> None:
    verifier, pool = with_pool()
    verdict = verifier("\\boxed{2^{10^{10}}}", "5")
    assert isinstance(verdict, Score)
    assert (verdict.value, verdict.parts, pool.tasks) == (0.0, {"ungraded": 1.0}, [])
    pool.outcomes = [Outcome(status="ok", value="no")]
    assert isinstance(verifier("2^{10^{10}}", "nan"), Failed)  # the reference is at fault all the same
    pool.outcomes = [RIGHT]
    assert judged(verifier, "2^{10^{10}}", "4^{5\\cdot10^{9}}")  # of the reference's own size


def test_hostile_answers_take_no_turn_from_honest_ones() -> None:
    """Half of a crowd cannot be graded in time; no honest answer fails or waits for them, and no hostile one fails."""
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    verifier = make_verifier("math", deadline_s=1.5, memory_mb=1024)
    assert judged(verifier, "2x", "x+x")
    hostile = [(f"\\sum_{{n=1}}^{{10^{{12}}+{n}}} \\frac{{1}}{{n^2+n+1}}", "5") for n in range(100, 116)]
    hostile += [(f"\\boxed{{{n}!}}", "5") for n in range(150_000, 150_016)]
    honest = [(f"\\boxed{{(x+{k})(x+2)}}", f"x^{{2}}+{k + 2}x+{2 * k}") for k in range(2, 18)]
    honest += [(f"\\boxed{{{k}e^{{{k}}}}}", f"e^{{{k}}}\\cdot {k}") for k in range(192, 208)]
    finished: list[tuple[str, Verdict]] = []

    def ask(kind: str, answer: str, reference: str) -> None:
        finished.append((kind, verifier(answer, reference)))

    with ThreadPoolExecutor(64) as threads:
        for one, other in zip(hostile, honest, strict=True):
            threads.submit(ask, "hostile", *one)
            threads.submit(ask, "honest", *other)
    assert len(finished) == 64
    assert all(isinstance(v, Score) and v.passed == (kind == "honest") for kind, v in finished), finished
    # Some hostile ones come before it is known what they are, but not many.
    last = max(place for place, (kind, _) in enumerate(finished) if kind == "honest")
    assert last < 32 + 16
    metrics = pool_metrics()["grading"]
    assert metrics["queue_most"] > 10
    assert metrics["queue"] == metrics["slow_queue"] == metrics["unavailable_total"] == 0


def test_trivial_answers_need_no_worker() -> None:
    verifier, pool = with_pool()
    assert judged(verifier, "\\boxed{\\dfrac{1}{2}}", "\\frac12")
    assert judged(verifier, "1,000", "1000")
    assert not judged(verifier, "12", "2")
    assert not judged(verifier, "", "2")
    for answer, reference, right in (
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", True),
        (r"\boxed{\frac{1}{2}\sqrt{3}}", r"\frac{\sqrt{3}}{2}", True),
        (r"\boxed{\sqrt{12}/4}", r"\frac{\sqrt{3}}{2}", True),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{\sqrt{2}}{2}", True),
        (r"\boxed{-\sqrt{8}}", r"2\sqrt{2}", False),
        (r"\boxed{\sqrt{16}}", "4", True),
        (r"\boxed{\frac{4\pi}{6}}", r"\frac{2}{3}\pi", True),
        (r"\boxed{2}", r"2\pi", False),
        (r"\boxed{\frac{1}{2\pi}}", r"\frac{\pi}{2}", False),
    ):
        assert judged(verifier, answer, reference) is right, answer
    assert pool.tasks == []


def test_threads_and_asynchronous_callers(math: Any) -> None:
    import asyncio

    answers = [(f"{n}x + {n}", f"{n}(x+1)") for n in range(2, 26)]
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda pair: judged(math, *pair), answers))

    async def many() -> list[Any]:
        return await asyncio.gather(*(ajudge(math, *pair) for pair in answers))

    assert all(isinstance(v, Score) and v.passed for v in asyncio.run(many()))


def test_a_copy_in_another_process_has_its_own_workers(math: Any) -> None:
    copy = pickle.loads(pickle.dumps(math))
    assert judged(copy, "2x", "x+x")
    assert isinstance(copy.pool, WorkerPool)


def test_wrong_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")
    for kwargs in ({"deadline_s": 0}, {"deadline_s": True}, {"max_chars": 0}, {"workers": 0}, {"memory_mb": 0.5}):
        with pytest.raises(ConfigError):
            make_verifier("math", **kwargs)
        with pytest.raises(ConfigError):
            MathVerifier(**kwargs)


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"roll-envs\[verifiers\]"):
        make_verifier("math")


def test_the_grader_leaves_the_logging_of_its_process_alone() -> None:
    """It was switched off by an import once, for everybody in the process."""
    pytest.importorskip("latex2sympy2_extended", reason="needs the optional part 'verifiers'")
    importlib.import_module("roll_envs.verifiers.mathematics.grading")
    assert logging.root.manager.disable == 0
