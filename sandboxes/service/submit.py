"""``POST /submit``: judges a completion with tests that come with the request (``config.provided_data``).

Two of SandboxFusion's kinds of data sets are served, by ``config.dataset_type``: ``AutoEvalDataset`` (tests appended to
the program, or put around it) and ``CommonOJDataset`` (stdin -> stdout). Rows are never looked up by id: the service
has no database. ``custom_extract_logic`` is refused, because it is a program that would run in the service itself.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pydantic

from roll_envs.errors import SandboxError
from roll_envs.verifiers.fences import FENCE_WORDS, fences
from sandboxes.programs import FUSION_NAMES, FUSION_OF, ROWS
from sandboxes.service.fusion import MOST_SHOWN, FusionForm, RunCodeForm, execute, fusion_program
from sandboxes.service.messages import Answer, Refusal, check_code, fill, parse_json
from sandboxes.service.pool import Pool
from sandboxes.service.settings import Settings

MARK = "#<INSERT>"
"""Marks where the program is inserted in a test; a test without it is appended."""
# Of compiling and of running, where a request names none.
AUTO_EVAL_TIMEOUTS_S = (40.0, 20.0)
OJ_TIMEOUTS_S = (10.0, 20.0)
OJ_COMPILED_TIMEOUTS_S = (10.0, 10.0)
SHOWN_CHARS = 1000
"""Length at which inputs and outputs in ``test_info`` are cut, unless ``extra.return_full_case``; also those of
programs once all cases have printed :data:`MOST_SHOWN`."""
CLOSE_ENOUGH = 1e-5

ALIASES = {alias: FUSION_OF.get(name, name) for name, aliases in FENCE_WORDS.items() for alias in aliases}

CHEATABLE = "the tests ran inside the sandbox beside the program, which could fake them; POST /judge cannot be faked so"


class SubmitConfig(FusionForm):
    """SandboxFusion's ``TestConfig``."""

    dataset_type: str | None = None
    language: str | None = None
    compile_timeout: float | None = pydantic.Field(default=None, gt=0)
    run_timeout: float | None = pydantic.Field(default=None, gt=0)
    custom_extract_logic: str | None = None
    provided_data: dict[str, Any] | list[Any] | None = None
    extra: dict[str, Any] = pydantic.Field(default={})


class SubmitForm(FusionForm):
    """SandboxFusion's ``SubmitRequest``."""

    dataset: str
    id: int | str
    completion: str
    config: SubmitConfig


async def submit(pool: Pool, settings: Settings, data: dict[str, Any]) -> Answer:
    """Answer a request. Raises :class:`Refusal` and what :func:`execute` raises."""
    form = fill(SubmitForm, data)
    kind = form.config.dataset_type or form.dataset
    if kind not in KINDS:
        message = (
            f"data sets of the kind {kind[:80]!r} are not served; set config.dataset_type to one of "
            f"{', '.join(KINDS)} and give the row as config.provided_data"
        )
        raise Refusal(400, "unsupported", message)
    row = form.config.provided_data
    if not isinstance(row, dict):
        raise Refusal(400, "unsupported", "config.provided_data must hold the row; this service keeps no data sets")
    if form.config.custom_extract_logic is not None:
        message = "config.custom_extract_logic, a program for the service itself, is not run; extract before asking"
        raise Refusal(400, "unsupported", message)
    check_code(form.completion, settings, "completion")
    body = await KINDS[kind](pool, settings, form, row)
    return Answer(body, outcome="accepted" if body["accepted"] else "rejected")


def extract_code(completion: str, language: str) -> tuple[str, str]:
    """The program in a completion, and how it was found: the first closed fence of the language, else the first closed
    fence, else one that was not closed, else nothing (``empty``)."""
    found, _ = fences(completion)
    for closed, found_by in ((True, "fenced"), (False, "incomplete_fenced")):
        blocks = [block for block in found if block.closed is closed]
        if blocks:
            named = (b.body for b in blocks if ALIASES.get(b.language.lower(), b.language.lower()) == language)
            return next(named, blocks[0].body), found_by
    return "", "empty"


def same_output(shown: str, wanted: str) -> bool:
    """Whether two outputs agree by SandboxFusion's rule: line by line, ignoring case and outer whitespace, numbers to a
    relative 1e-5."""
    lines, expected = shown.strip().split("\n"), wanted.strip().split("\n")
    return len(lines) == len(expected) and all(_same_line(a, b) for a, b in zip(lines, expected, strict=True))


def _same_line(shown: str, wanted: str) -> bool:
    left, right = shown.strip().lower(), wanted.strip().lower()
    if left == right:
        return True
    try:
        a, b = float(left), float(right)
    except ValueError:
        return False
    # 1e-10 in place of a division by 0.
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) / max(abs(b), 1e-10) < CLOSE_ENOUGH


async def _auto_eval(pool: Pool, settings: Settings, form: SubmitForm, row: Mapping[str, Any]) -> dict[str, Any]:
    test, labels = _part(row, "test"), _part(row, "labels")
    test_code = test.get("code")
    if not isinstance(test_code, str):
        raise Refusal(422, "form", "config.provided_data.test.code must be text")
    asset = _decoded(test.get("asset") or {}, "test.asset")
    written_in = labels.get("programming_language", form.config.language or "python")
    language = labels.get("execution_language", written_in)
    mode = form.config.extra.get("autoeval_extract_code_mode", "first")
    if mode != "first":
        message = f"extra.autoeval_extract_code_mode {str(mode)[:40]!r} is not served; use 'first'"
        raise Refusal(400, "unsupported", message)
    if not isinstance(written_in, str) or not isinstance(language, str):
        raise Refusal(422, "form", "config.provided_data.labels: languages must be text")
    code, found_by = extract_code(form.completion, ALIASES.get(written_in, written_in))
    flag = ""
    full = _assemble(code, test_code, repr_code=bool(form.config.extra.get("repr_code")))
    if form.config.extra.get("append_flag") and language == "python":
        # Printed after the tests: a program that exits before them with code 0 is not accepted.
        flag = secrets.token_hex(10)
        full += f'\n\nprint("{flag}")'
    timeouts_s = AUTO_EVAL_TIMEOUTS_S
    ran = await _execute(pool, settings, form.config, timeouts_s, code=full, language=language, files=asset)
    accepted = ran["status"] == "Success" and flag in ran["run_result"]["stdout"]
    tests = [{"passed": accepted, "exec_info": ran, "test_info": None}]
    more = {"full_code": full, "test_code": test_code, "extra": {"note": CHEATABLE}}
    return _body(form, accepted, code, found_by, tests, **more)


async def _common_oj(pool: Pool, settings: Settings, form: SubmitForm, row: Mapping[str, Any]) -> dict[str, Any]:
    if form.config.language is None:
        raise Refusal(400, "unsupported", "config.language must be given for a CommonOJDataset")
    cases = _decoded(row.get("test"), "test")
    if not isinstance(cases, list) or not cases or len(cases) > settings.max_cases:
        raise Refusal(422, "form", f"config.provided_data.test must be a list of 1 to {settings.max_cases} cases")
    pairs = [_case(case, number) for number, case in enumerate(cases)]
    language = ALIASES.get(form.config.language, form.config.language)
    code, found_by = extract_code(form.completion, language)
    compiled = ROWS[FUSION_NAMES.get(language, "python")].compile
    timeouts_s = OJ_COMPILED_TIMEOUTS_S if compiled else OJ_TIMEOUTS_S
    whole = bool(form.config.extra.get("return_full_case"))
    run_all = bool(form.config.extra.get("run_all_cases"))
    enough = asyncio.Semaphore(settings.slots)
    wrong: list[int] = []
    room = MOST_SHOWN

    async def run_case(number: int) -> dict[str, Any] | None:
        nonlocal room
        stdin, wanted = pairs[number]
        async with enough:
            # Cases after the first wrong one are not reported, so they need not run.
            if wrong and not run_all and min(wrong) < number:
                return None
            ran = await _execute(pool, settings, form.config, timeouts_s, code=code, language=language, stdin=stdin)
        passed = ran["status"] == "Success" and same_output(ran["run_result"]["stdout"], wanted)
        if not passed:
            wrong.append(number)
        for part in filter(None, (ran["compile_result"], ran["run_result"])):
            for name in ("stdout", "stderr"):
                room -= len(part[name])
                if room < 0:
                    part[name] = part[name][:SHOWN_CHARS]
        shown = [text if whole or len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..." for text in (stdin, wanted)]
        info = {"input": {"stdin": shown[0]}, "output": {"stdout": shown[1]}}
        return {"passed": passed, "exec_info": ran, "test_info": info}

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run_case(number)) for number in range(len(pairs))]
    except BaseExceptionGroup as several:
        # Callers know the errors themselves, not the group that TaskGroup wraps them in.
        raise several.exceptions[0] from None
    results = [task.result() for task in tasks]
    upto = len(results) if run_all or not wrong else min(wrong) + 1
    tests = [each for each in results[:upto] if each is not None]
    return _body(form, not wrong, code, found_by, tests)


KINDS: dict[str, Callable[[Pool, Settings, SubmitForm, Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {
    "AutoEvalDataset": _auto_eval,
    "AutoEvalV4Dataset": _auto_eval,
    "AutoEvalV5Dataset": _auto_eval,
    "AutoEvalV6Dataset": _auto_eval,
    "CommonOJDataset": _common_oj,
}


def _body(
    form: SubmitForm, accepted: bool, code: str, found_by: str, tests: list[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    found = {"id": form.id, "accepted": accepted, "extracted_code": code, "extracted_type": found_by, "tests": tests}
    return {**found, "full_code": None, "test_code": None, "extra": None, **more}


async def _execute(
    pool: Pool, settings: Settings, config: SubmitConfig, timeouts_s: tuple[float, float], **request: Any
) -> dict[str, Any]:
    """Run a program. Raises :class:`SandboxError` after an infrastructure failure, which is no verdict."""
    compile_s, run_s = timeouts_s
    request["compile_timeout"] = config.compile_timeout or compile_s
    request["run_timeout"] = config.run_timeout or run_s
    ran = await execute(pool, settings, *fusion_program(fill(RunCodeForm, request), pool, settings))
    if ran["status"] == "SandboxError":
        raise SandboxError(ran["message"])
    return ran


def _assemble(code: str, test: str, *, repr_code: bool) -> str:
    before, mark, after = test.partition(MARK)
    if mark:
        return before + (repr(code) if repr_code else code) + after
    # A main block would run before the tests, and may wait for input.
    code = code.partition("if __name__ ==")[0]
    return (repr(code) if repr_code else code) + "\n" + test


def _part(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = _decoded(row.get(name, {}), name)
    if not isinstance(part, dict):
        raise Refusal(422, "form", f"config.provided_data.{name} must be an object, not {type(part).__name__}")
    return part


def _decoded(value: Any, name: str) -> Any:
    """Rows from a database hold their parts as JSON text."""
    if not isinstance(value, str):
        return value
    return parse_json(value, f"config.provided_data.{name}")


def _case(case: Any, number: int) -> tuple[str, str]:
    try:
        stdin, wanted = case["input"]["stdin"], case["output"]["stdout"]
    except (KeyError, TypeError, IndexError) as error:
        message = f"config.provided_data.test[{number}] must be {{'input': {{'stdin'}}, 'output': {{'stdout'}}}}"
        raise Refusal(422, "form", message) from error
    if not isinstance(stdin, str) or not isinstance(wanted, str):
        raise Refusal(422, "form", f"config.provided_data.test[{number}]: stdin and stdout must be text")
    return stdin, wanted
