"""``POST /run_code`` and ``/run_jupyter``: SandboxFusion's requests and answers, so that its clients work unchanged.

The differences are listed in ``docs/sandbox_service.md``: output is correct at any size up to a bound, a byte that is
not UTF-8 costs one character, paths do not lead out of the working folder, nothing of the host is inherited.

The cells of a notebook run one after another in a new session. What Jupyter would show of a cell beside its text is in
``display``; see :mod:`sandboxes.service.notebook`.
"""

from __future__ import annotations

import importlib.resources
import json
import time
from dataclasses import replace
from typing import Any, Literal

import pydantic

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import Language, Limits, Program, RunResult, Sandbox, explained
from sandboxes.programs import FUSION_NAMES
from sandboxes.service.messages import Answer, Refusal, check_code, check_most, check_paths, fill, read_files
from sandboxes.service.pool import Pool
from sandboxes.service.settings import Settings
from sandboxes.service.wire import encode_bytes

LANGUAGE_NAMES: dict[str, Language] = {
    **FUSION_NAMES,
    # Not one of SandboxFusion's: our own name, which a user of both APIs would expect.
    "javascript": "javascript",
    "pytest": "python",
}
"""SandboxFusion's names of languages -> ours."""

# What the request calls the code becomes a file of tests; the program that runs is pytest.
PYTEST = (
    "import sys, pytest\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[1:], 'test_solution.py']))\n"
)


class FusionForm(pydantic.BaseModel):
    """A request of SandboxFusion's; fields it does not have are ignored, as there."""

    model_config = pydantic.ConfigDict(extra="ignore", allow_inf_nan=False)


class RunForm(FusionForm):
    """What requests to run something have in common."""

    # SandboxFusion's spelling; -1 means no limit there and the service's default here.
    memory_limit_MB: int = -1
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


class RunCodeForm(RunForm):
    """SandboxFusion's ``RunCodeRequest``."""

    compile_timeout: float = pydantic.Field(default=10.0, gt=0)
    run_timeout: float = pydantic.Field(default=10.0, gt=0)
    code: str
    stdin: str | None = None
    language: str
    args: list[str] = []


async def run_code(pool: Pool, settings: Settings, data: dict[str, Any]) -> Answer:
    """Answer a request. Raises :class:`Refusal` and what :meth:`Pool.run` raises, except :class:`SandboxError`, which
    is the status of an answer here."""
    form = fill(RunCodeForm, data)
    program, limits = fusion_program(form, pool, settings)
    body = await execute(pool, settings, program, limits)
    notes = [body["message"]] if body["message"] else []
    if form.run_timeout > limits.wall_s:
        notes.append(f"run_timeout {form.run_timeout:g} was cut to {limits.wall_s:g} (--max-run)")
    return Answer({**body, "message": "; ".join(notes)}, outcome=body["status"])


def fusion_program(form: RunCodeForm, pool: Pool, settings: Settings) -> tuple[Program, Limits]:
    """The program of a request and its limits, cut to what the service allows. Raises :class:`Refusal`."""
    if form.language not in LANGUAGE_NAMES:
        known = ", ".join(sorted(LANGUAGE_NAMES))
        raise Refusal(422, "language", f"language: this service runs {known}, not {form.language[:40]!r}")
    if form.language == "pytest" and not pool.has_pytest:
        raise Refusal(422, "language", "language: 'pytest' is not installed in this service's sandboxes")
    check_code(form.code, settings)
    files = read_files(form.files, settings)
    source = form.code
    if form.language == "pytest":
        files, source = {**files, "test_solution.py": source.encode()}, PYTEST
    program = Program(
        source=source,
        language=LANGUAGE_NAMES[form.language],
        stdin=(form.stdin or "").encode(),
        files=files,
        fetch=check_paths(form.fetch_files, settings, "fetch_files"),
        arguments=tuple(form.args),
    )
    limits = Limits(
        wall_s=min(form.run_timeout, settings.max_run_s),
        compile_s=min(form.compile_timeout, settings.max_run_s),
        memory_mb=_memory_mb(form, settings),
        output_bytes=settings.max_output_bytes,
    )
    return program, limits


def _memory_mb(form: RunForm, settings: Settings) -> int:
    return min(form.memory_limit_MB if form.memory_limit_MB > 0 else settings.default_memory_mb, settings.max_memory_mb)


async def execute(pool: Pool, settings: Settings, program: Program, limits: Limits) -> dict[str, Any]:
    """Run ``program`` and describe what happened as SandboxFusion's ``RunCodeResponse`` does, and with what that has no
    place for: bytes that were dropped."""
    try:
        result = await pool.run_program(program, limits, settings.queue_timeout_s)
    except SandboxError as error:
        return _body("SandboxError", message=str(error), compile_result=None, run_result=None)
    last = result if result.compile is None or result.compile.ok else result.compile
    return _body(
        "Success" if result.ok else "Failed",
        message=_why(last),
        compile_result=None if result.compile is None else _part(result.compile),
        run_result=_part(result) if last is result else None,
        files={path: encode_bytes(content) for path, content in result.files.items()},
    )


def _body(status: str, **parts: Any) -> dict[str, Any]:
    """What answers of both routes have."""
    return {"status": status, "message": "", "executor_pod_name": None, "files": {}, **parts}


def _part(result: RunResult) -> dict[str, Any]:
    late = result.status == "timeout"
    # The number of a signal is negative, as in subprocess; limits kill with SIGKILL.
    code = result.exit_code if result.exit_code is not None else -(result.signal or 9)
    return {
        "status": "TimeLimitExceeded" if late else "Finished",
        "execution_time": result.wall_s,
        "return_code": None if late else code,
        "stdout": result.stdout.decode("utf-8", "replace"),
        "stderr": result.stderr.decode("utf-8", "replace"),
        **{f"{name}_dropped": count for name, count in _dropped(result).items()},
    }


def _dropped(result: RunResult) -> dict[str, int]:
    counts = {"stdout": result.stdout_dropped, "stderr": result.stderr_dropped}
    return {name: count for name, count in counts.items() if count}


def _why(result: RunResult) -> str:
    """Details for ``message`` that SandboxFusion's other fields cannot express."""
    notes = {"memory": "the memory limit ended the program", "output": "the output limit ended the program"}
    told = [notes[result.status]] if result.status in notes else []
    for name, count in _dropped(result).items():
        told.append(f"{name}: {count} bytes beyond the bound were dropped (--max-output)")
    return "; ".join(told)


_TEXT = importlib.resources.files("sandboxes.service").joinpath("notebook.py").read_text(encoding="utf-8")
PRELUDE = f"exec(compile({_TEXT + 'install()'!r}, '<notebook>', 'exec'), {{'__name__': 'notebook_displays'}})"
MOST_SHOWN = 64 << 20
"""Bytes of output and displays of all cells of a notebook, where what is beyond is dropped, or of all cases of a
submission, where it is cut short."""
TAKE = "__import__('notebook_displays').take()"


class RunJupyterForm(RunForm):
    """SandboxFusion's ``RunJupyterRequest``."""

    cells: list[str]
    cell_timeout: float = pydantic.Field(default=0.0, ge=0)
    total_timeout: float = pydantic.Field(default=45.0, gt=0)
    kernel: Literal["python3"] = "python3"


async def run_jupyter(pool: Pool, settings: Settings, data: dict[str, Any]) -> Answer:
    """Answer a request. Raises :class:`Refusal` and what :meth:`Pool.run` raises, except :class:`SandboxError`."""
    form = fill(RunJupyterForm, data)
    check_most("a notebook may have", len(form.cells), settings.max_cases, "cells")
    check_code("".join(form.cells), settings, "cells")
    files = read_files(form.files, settings)
    check_paths(form.fetch_files, settings, "fetch_files")
    total_s = min(form.total_timeout, settings.max_request_s)
    # 0, the default, means no limit of a cell's own.
    cell_s = min(form.cell_timeout or total_s, total_s, settings.max_run_s)
    limits = Limits(
        wall_s=cell_s,
        memory_mb=_memory_mb(form, settings),
        output_bytes=settings.max_output_bytes,
    )

    def job(sandbox: Sandbox) -> dict[str, Any]:
        return _run_cells(sandbox, form, limits, total_s, files)

    try:
        body = await pool.run(job, wait_s=settings.queue_timeout_s, work_s=total_s)
    except SandboxError as error:
        body = _body("SandboxError", message=str(error), driver=None, cells=[])
    return Answer(body, outcome=body["status"])


def _run_cells(
    sandbox: Sandbox, form: RunJupyterForm, limits: Limits, total_s: float, files: dict[str, bytes]
) -> dict[str, Any]:
    started = time.monotonic()
    done: list[dict[str, Any]] = []
    ended = "Finished"
    why = ""
    room = MOST_SHOWN

    def run(source: str) -> RunResult:
        wall_s = max(0.001, min(limits.wall_s, total_s - (time.monotonic() - started)))
        bounded = replace(limits, wall_s=wall_s, output_bytes=max(0, min(limits.output_bytes, room)))
        return explained(session.run(source, limits=bounded))

    with sandbox.session(limits=limits) as session:
        for path, content in files.items():
            session.upload(path, content)
        run(PRELUDE)
        for number, source in enumerate(form.cells, 1):
            if time.monotonic() - started >= total_s:
                ended, why = "TimeLimitExceeded", f"total_timeout was over before cell {number}"
                break
            result = run(source)
            done.append(_cell(result))
            room -= len(result.stdout) + len(result.stderr)
            if result.status not in ("ok", "error"):
                # The interpreter is gone, so that later cells would run without what it held.
                ended = "TimeLimitExceeded" if result.status == "timeout" else "Finished"
                why = f"cell {number} was ended by its {result.status} limit; what the interpreter held is lost"
                break
            taken = run(TAKE)
            done[-1]["display"] = _displays(taken)
            room -= len(taken.stdout)
            if not taken.ok:
                why = f"cell {number} ended the interpreter, and what it held is lost"
                break
            done[-1]["stderr"] += taken.stderr.decode("utf-8", "replace")
        brought = {}
        for path in form.fetch_files:
            try:
                brought[path] = encode_bytes(session.download(path, max_bytes=limits.output_bytes))
            except ConfigError:
                continue  # not there, or no plain file: as with /run_code it is left out
    seconds = time.monotonic() - started
    driver = {
        "status": ended,
        "execution_time": seconds,
        "return_code": 0 if not why else 1,
        "stdout": "",
        "stderr": why,
    }
    return _body("Failed" if why else "Success", message=why, driver=driver, cells=done, files=brought)


def _cell(result: RunResult) -> dict[str, Any]:
    stderr = result.stderr.decode("utf-8", "replace")
    error = []
    if not result.ok:
        name, value = _exception_of(stderr) if result.status == "error" else (result.status, "")
        error = [{"ename": name, "evalue": value, "traceback": stderr.splitlines()}]
    return {"stdout": result.stdout.decode("utf-8", "replace"), "stderr": stderr, "display": [], "error": error}


def _displays(result: RunResult) -> list[dict[str, Any]]:
    """What the session collected; nothing where a program has made that impossible, or it is too much to send."""
    try:
        found = json.loads(result.stdout) if result.ok else []
        json.dumps(found, allow_nan=False)  # NaN, which is no JSON, would make the whole answer none
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(each, dict) for each in found) else []


def _exception_of(stderr: str) -> tuple[str, str]:
    """Name and message from the last line of a traceback."""
    last = (stderr.strip().splitlines() or [""])[-1]
    name, _, value = last.partition(":")
    if name.strip().replace(".", "_").isidentifier():
        return name.strip(), value.strip()
    return "Error", last
