"""``POST /judge``: a program judged by tests with the ``code`` verifier; expected values never enter the sandbox.

The tests come with the request and run in a jail of their own, which lets the worker's sandbox make the calls of the
program one by one; nothing that a program made is decoded or compared in the service itself.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any, Literal

import pydantic

from roll_envs.errors import ConfigError, RollError
from roll_envs.sandbox import Language, Sandbox
from roll_envs.verifiers.code.cases import Plan, Unusable, read_plan
from roll_envs.verifiers.code.verifier import CaseResult, CodeVerifier
from roll_envs.verifiers.fences import code_of
from sandboxes.service.messages import Answer, Refusal, check_code, check_most, check_parts, fill
from sandboxes.service.pool import Pool
from sandboxes.service.settings import Settings

COMPILE_S = 10.0


class JudgeForm(pydantic.BaseModel):
    """``code`` is a program as it is, ``answer`` a text with a program in it; one of them is given. ``tests`` is any
    form that the ``code`` verifier reads. Unknown fields are errors: a misspelt one would change the verdict."""

    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

    code: str | None = None
    answer: str | None = None
    tests: Any
    language: Language | None = None
    credit: Literal["all", "partial"] = "all"
    comparison: Literal["tolerant", "exact"] = "tolerant"
    tolerance: float | None = pydantic.Field(default=None, ge=0, lt=1)
    tests_inside: bool = False
    time_s: float = pydantic.Field(default=5.0, gt=0)
    memory_mb: int = pydantic.Field(default=512, ge=16)
    total_s: float = pydantic.Field(default=60.0, gt=0)
    timeout_s: float | None = pydantic.Field(default=None, ge=0)


_NOT_OF_THE_VERIFIER = {"code", "answer", "tests", "credit", "timeout_s"}


async def judge(pool: Pool, settings: Settings, data: dict[str, Any]) -> Answer:
    """Answer a request.

    Raises :class:`Refusal` and what :meth:`Pool.run` raises: an infrastructure failure is no verdict.
    """
    form = fill(JudgeForm, data)
    plan = await asyncio.to_thread(_plan_of, form, settings)
    source = _source_of(form, settings, plan)
    for name, value, most in (
        ("time_s", form.time_s, settings.max_run_s),
        ("memory_mb", form.memory_mb, settings.max_memory_mb),
        ("total_s", form.total_s, settings.max_request_s),
    ):
        check_most(f"{name} may be", value, most, "on this service", "limits")
    wait_s = settings.queue_timeout_s if form.timeout_s is None else min(form.timeout_s, settings.max_request_s)
    started = time.monotonic()
    # The last test may begin when the time for all is nearly over.
    work_s = form.total_s + form.time_s + COMPILE_S
    cases = await pool.run(lambda sandbox: _judge(sandbox, form, source, plan), wait_s=wait_s, work_s=work_s)
    good = sum(case.passed for case in cases)
    passed = good == len(cases)
    body = {
        "passed": passed,
        "value": good / len(cases) if form.credit == "partial" else float(passed),
        "cases_passed": good,
        "cases": [{**asdict(case), "passed": case.passed} for case in cases],
        "can_be_cheated": any(case.inside for case in cases),
        "request_s": time.monotonic() - started,
    }
    return Answer(body, outcome="passed" if passed else "not passed")


def _source_of(form: JudgeForm, settings: Settings, plan: Plan) -> str:
    if (form.code is None) == (form.answer is None):
        raise Refusal(422, "form", "give either code, a program as it is, or answer, a text with a program in it")
    if form.answer is not None:
        answer, language = check_code(form.answer, settings, "answer"), form.language or plan.language
        return code_of(answer, language, defines=not plan.runs)
    return check_code(form.code or "", settings).replace("\r\n", "\n")


def _plan_of(form: JudgeForm, settings: Settings) -> Plan:
    def check(content: bytes) -> None:
        most = settings.max_body_bytes
        check_most("compressed tests may hold", len(content), most, "bytes (--max-body)", "too_large")
        check_parts(content, "compressed tests")

    try:
        plan = read_plan(form.tests, check)
    except Unusable as error:
        raise Refusal(422, "tests", f"tests: {error}") from error
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, RecursionError) as error:
        raise Refusal(422, "tests", f"tests cannot be read: {type(error).__name__}: {error}"[:300]) from error
    number = max(len(plan.runs), len(plan.calls), len(plan.asserts))
    check_most("tests may be", number, settings.max_cases, "cases")
    return plan


def _judge(sandbox: Sandbox, form: JudgeForm, source: str, plan: Plan) -> list[CaseResult]:
    try:
        verifier = CodeVerifier(sandbox=sandbox, **form.model_dump(exclude=_NOT_OF_THE_VERIFIER))
        return verifier.cases(source, plan)
    except RollError:
        raise
    # The tests of the request are foreign code: an error in them is no failure of the worker.
    except Exception as error:
        said = str(error) if isinstance(error, Unusable) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"the tests cannot be used: {said}"[:500]) from error
