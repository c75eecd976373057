"""Verifiers by name, what a broken one becomes, and verifiers made of verifiers."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from plugins import install, run_python

import roll_envs
from roll_envs.errors import ConfigError, PluginError, UnknownNameError
from roll_envs.verifiers import (
    Failed,
    Score,
    Verdict,
    Verifier,
    ajudge,
    as_verifier,
    judge,
    make_verifier,
    register_verifier,
    registry,
    verifier_names,
)


class Says:
    """Gives the same verdict to every answer, counts its calls, and notes its closing."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict, self.calls, self.closed = verdict, 0, 0
        self.references: list[Any] = []
        self.contexts: list[Any] = []

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        self.calls += 1
        self.references.append(reference)
        self.contexts.append(context)
        return self.verdict

    def close(self) -> None:
        self.closed += 1


def says(value: float, passed: bool, **parts: float) -> Says:
    return Says(Score(value=value, passed=passed, parts=parts))


def broken() -> Says:
    return Says(Failed(reason="worker is dead"))


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry.VERIFIERS, "_registered", {})
    return


# -- names -------------------------------------------------------------------------------------------------------------


def test_an_unknown_name_or_argument_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"no verifier 'exakt'; did you mean 'exact'"):
        make_verifier("exakt")
    with pytest.raises(UnknownNameError, match=r"'treshold'; did you mean 'threshold'"):
        make_verifier("f1", treshold=0.5)


@pytest.mark.usefixtures("clean_registry")
def test_registering_and_replacing() -> None:
    register_verifier("mine", lambda value=1.0: says(value, True))
    assert roll_envs.make_verifier("mine", value=0.5)("x") == Score(value=0.5, passed=True)
    assert "mine" in verifier_names()
    with pytest.raises(ConfigError, match="exists already"):
        register_verifier("mine", lambda: broken())
    with pytest.raises(ConfigError, match="exists already"):
        register_verifier("exact", lambda: broken())
    register_verifier("mine", broken, replace=True)
    assert make_verifier("mine")("x") == Failed(reason="worker is dead")
    with pytest.raises(ConfigError, match="must be a class or function"):
        register_verifier("other", 3)  # type: ignore[arg-type]


def test_verifiers_of_other_packages_come_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "theirs": "roll_envs.verifiers.matching:ExactVerifier",
        "ruin": "no_such_module_anywhere:X",
        "thing": "roll_envs.verifiers.extract:MAX_CHARS",
    }
    install(tmp_path, "their-verifiers", points, {}, group=registry.VERIFIERS.group)
    monkeypatch.syspath_prepend(tmp_path)
    assert {"theirs", "ruin", "exact"} <= set(verifier_names())
    assert make_verifier("theirs")("a", "a") == Score(value=1.0, passed=True)
    with pytest.raises(PluginError, match="no_such_module_anywhere"):
        make_verifier("ruin")
    with pytest.raises(PluginError, match="cannot be called"):
        make_verifier("thing")


def test_every_built_in_name_leads_somewhere() -> None:
    for name in registry.BUILT_IN:
        assert callable(registry.VERIFIERS.find(name)), name


def test_importing_imports_no_verifier() -> None:
    program = (
        "import sys, roll_envs\n"
        "heavy = ('asyncio', 'sympy', 'math_verify', 'roll_envs.verifiers.workers', 'roll_envs.verifiers.compose')\n"
        "import gymnasium; print([m for m in heavy if m in sys.modules])"
    )
    assert run_python(program).strip() == "[]"


def test_as_verifier() -> None:
    one = says(1, True)
    assert as_verifier(one) is one
    assert as_verifier("exact")("a", "a") == Score(value=1.0, passed=True)
    spec = {"name": "exact", "strip": False}
    assert as_verifier(spec)("a ", "a") == Score(value=0.0, passed=False)
    with pytest.raises(ConfigError, match="needs 'name'"):
        as_verifier({"strip": False})
    with pytest.raises(ConfigError, match="something to call"):
        as_verifier(3)  # type: ignore[arg-type]


# -- verdicts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_are_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        Score(value=bad, passed=True)
    with pytest.raises(ValueError, match="'x'"):
        Score(value=1.0, passed=True, parts={"x": bad})


def test_what_goes_wrong_in_a_verifier_is_a_failure() -> None:
    def raises(answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        raise ZeroDivisionError("oh")

    def gives_a_number(answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Any:
        return 1.0

    def gives_nan(answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        score = Score(value=0.0, passed=False)
        object.__setattr__(score, "value", math.nan)
        return score

    def weighs(answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        return Score(value=(context or {})["worth"], passed=True)

    assert judge(raises, "a") == Failed(reason="verifier raises raised ZeroDivisionError: oh")
    assert judge(gives_a_number, "a") == Failed(
        reason="verifier gives_a_number returned a float, not a Score or Failed"
    )
    assert isinstance(judge(gives_nan, "a"), Failed)
    assert asyncio.run(ajudge(make_verifier("exact"), "a", "a")) == Score(value=1.0, passed=True)
    assert asyncio.run(ajudge(weighs, "a", None, {"worth": 0.25})) == Score(value=0.25, passed=True)


# -- composition -------------------------------------------------------------------------------------------------------


def score(verdict: Verdict) -> Score:
    assert isinstance(verdict, Score), verdict
    return verdict


def whole(name: str, **kwargs: Any) -> Verifier:
    return make_verifier(name, **kwargs)


def test_the_weighted_sum() -> None:
    parts: dict[str, Any] = {
        "form": says(1.0, True),
        "answer": says(0.5, False, steps=3.0),
        "length": says(-0.2, False),
    }
    found = score(whole("weighted", parts=parts, weights={"form": 0.1, "answer": 0.8}, required=["form"])("x"))
    assert found.value == pytest.approx(0.1 + 0.4 - 0.2)
    assert found.passed
    assert found.parts == {"form": 1.0, "answer": 0.5, "answer/steps": 3.0, "length": -0.2}
    assert not score(whole("weighted", parts=parts)("x")).passed  # by default every part with a weight must pass
    assert score(whole("weighted", parts=parts, weights={"answer": 0, "length": -1})("x")).passed


def test_a_failed_part_fails_the_sum_unless_it_is_a_metric_only() -> None:
    parts: dict[str, Any] = {"answer": says(1.0, True), "style": broken()}
    assert whole("weighted", parts=parts)("x") == Failed(reason="style: worker is dead")
    assert isinstance(whole("weighted", parts=parts, weights={"style": 0}, required=["style"])("x"), Failed)
    found = score(whole("weighted", parts=parts, weights={"style": 0})("x"))
    assert (found.value, found.passed, found.parts) == (1.0, True, {"answer": 1.0})
    assert "style: no verdict (worker is dead)" in found.detail


def test_a_sum_that_overflows_is_a_failure() -> None:
    parts: dict[str, Any] = {"a": says(1e308, True), "b": says(1e308, True)}
    assert isinstance(whole("weighted", parts=parts)("x"), Failed)


def test_all() -> None:
    assert score(whole("all", parts={"a": says(1, True), "b": says(0.5, True)})("x")).value == 0.5
    assert score(whole("all", parts={"a": says(1, True), "b": says(0.5, True)})("x")).passed
    assert not score(whole("all", parts={"a": says(1, True), "b": says(0, False)})("x")).passed
    assert whole("all", parts={"a": says(0, False), "b": broken()})("x") == Failed(reason="b: worker is dead")


def test_any_takes_the_first_that_settles_it() -> None:
    later = says(1, True)
    found = score(whole("any", parts={"a": says(0.3, False), "b": says(1, True), "c": later})("x"))
    assert (found.value, found.passed, dict(found.parts), later.calls) == (1.0, True, {"a": 0.3, "b": 1.0}, 0)
    assert score(whole("any", parts={"a": says(0.3, True), "b": says(0.6, False)})("x")).value == 0.6
    assert not score(whole("any", parts={"a": says(0, False), "b": says(0, False)})("x")).passed


def test_any_needs_a_failed_part_only_while_nothing_is_settled() -> None:
    # A full pass settles it, whoever failed before.
    assert score(whole("any", parts={"a": broken(), "b": says(1, True)})("x")).passed
    # None passed: the failed one might have.
    assert whole("any", parts={"a": broken(), "b": says(0, False)})("x") == Failed(reason="a: worker is dead")
    # A small pass does not settle the value: the failed one might have given more.
    parts: dict[str, Any] = {"a": says(0.5, True), "b": broken()}
    assert isinstance(whole("any", parts=parts)("x"), Failed)
    assert score(whole("any", parts=parts, enough=0.5)("x")).value == 0.5


def test_a_gate_asks_what_lies_behind_it_only_when_it_is_open() -> None:
    answer = says(0.7, True, steps=2.0)
    found = score(whole("gate", parts={"form": says(1, True)}, then=answer)("x"))
    assert (found.value, found.passed) == (0.7, True)
    assert found.parts == {"form": 1.0, "answer": 0.7, "answer/steps": 2.0}
    closed = score(whole("gate", parts={"form": says(0, False)}, then=answer, closed=-1)("x"))
    assert (closed.value, closed.passed, answer.calls) == (-1.0, False, 1)
    assert score(whole("gate", parts={"form": says(0, False)}, then=broken())("x")).value == 0.0
    assert isinstance(whole("gate", parts={"form": says(1, True)}, then=broken())("x"), Failed)
    assert isinstance(whole("gate", parts={"form": broken()}, then=answer)("x"), Failed)


def test_a_part_can_have_its_own_item_of_the_reference() -> None:
    spec = {
        "word": {"name": "exact", "reference_key": "answer"},
        "shape": {"name": "normalized", "reference_key": "alias"},
    }
    verifier = whole("any", parts=spec)
    assert score(verifier("b", {"answer": "a", "alias": "B"})).passed
    assert isinstance(verifier("b", {"answer": "a"}), Failed)
    assert isinstance(verifier("b", "a"), Failed)


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("name", ["all", "any", "weighted", "gate"])
def test_parts_see_the_context_and_are_closed_also_where_they_have_an_item_of_their_own(name: str) -> None:
    plain, keyed = says(0.5, True), says(0.5, True)
    register_verifier("mine", lambda: keyed)
    parts: dict[str, Any] = {"plain": plain, "keyed": {"name": "mine", "reference_key": "k"}}
    verifier = whole(name, parts=parts, **({"then": says(1, True)} if name == "gate" else {}))
    verifier("x", {"k": 7}, {"prompt": "p"})
    assert (plain.references, keyed.references) == ([{"k": 7}], [7])
    assert plain.contexts == keyed.contexts == [{"prompt": "p"}]
    roll_envs.verifiers.close_verifier(verifier)
    assert (plain.closed, keyed.closed) == (1, 1)


def test_wrong_parts_are_told_when_they_are_made() -> None:
    with pytest.raises(ConfigError, match="at least one verifier"):
        whole("all", parts={})
    with pytest.raises(ConfigError, match="without '/'"):
        whole("all", parts={"a/b": "exact"})
    with pytest.raises(UnknownNameError, match="did you mean 'answer'"):
        whole("weighted", parts={"answer": "exact"}, weights={"anser": 1.0})
    with pytest.raises(ConfigError, match="finite number"):
        whole("weighted", parts={"answer": "exact"}, weights={"answer": math.nan})
    with pytest.raises(UnknownNameError):
        whole("weighted", parts={"answer": "exact"}, required=["form"])
    with pytest.raises(ConfigError, match="required should be a list"):
        whole("weighted", parts={"answer": "exact"}, required="answer")
    with pytest.raises(ConfigError, match="is the name of `then`"):
        whole("gate", parts={"answer": "exact"}, then="exact")
    with pytest.raises(ConfigError, match="closed"):
        whole("gate", parts={"form": "exact"}, then="exact", closed=math.inf)


def test_closing_reaches_every_part() -> None:
    parts = [broken(), broken(), broken()]
    made = whole("gate", parts={"a": parts[0]}, then=whole("any", parts={"b": parts[1], "c": parts[2]}))
    roll_envs.verifiers.close_verifier(made)
    assert [p.closed for p in parts] == [1, 1, 1]


def test_many_are_judged_at_one_time_for_asynchronous_callers() -> None:
    everyone = threading.Barrier(64)

    def waits_for_the_others(answer: str, reference: Any = None, context: Any = None) -> Score:
        everyone.wait(timeout=30)
        return Score(value=1.0, passed=True)

    async def many() -> list[Any]:
        return await asyncio.gather(*(ajudge(waits_for_the_others, "a") for _ in range(64)))

    assert all(isinstance(verdict, Score) for verdict in asyncio.run(many()))
