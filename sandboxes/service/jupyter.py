"""``POST /run_jupyter``: runs cells one after another in a new session, in SandboxFusion's format.

What Jupyter would show of a cell beside its text is in ``display``; see :mod:`sandboxes.service.notebook`.
"""

from __future__ import annotations

import importlib.resources
import json
import time
from dataclasses import replace
from typing import Any, Literal

import pydantic

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import Limits, RunResult, Sandbox, explained
from sandboxes.service.messages import Answer, Refusal, check_code, check_paths, fill, read_files
from sandboxes.service.pool import Pool
from sandboxes.service.settings import Settings
from sandboxes.service.wire import encode_bytes

_TEXT = importlib.resources.files("sandboxes.service").joinpath("notebook.py").read_text(encoding="utf-8")
PRELUDE = f"exec(compile({_TEXT + 'install()'!r}, '<notebook>', 'exec'), {{'__name__': 'notebook_displays'}})"
TAKE = "__import__('notebook_displays').take()"


class RunJupyterForm(pydantic.BaseModel):
    """SandboxFusion's ``RunJupyterRequest``."""

    model_config = pydantic.ConfigDict(extra="ignore", allow_inf_nan=False)

    cells: list[str]
    cell_timeout: float = pydantic.Field(default=0.0, ge=0)
    total_timeout: float = pydantic.Field(default=45.0, gt=0)
    kernel: Literal["python3"] = "python3"
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


async def run_jupyter(pool: Pool, settings: Settings, data: dict[str, Any]) -> Answer:
    """Answer a request. Raises :class:`Refusal` and what :meth:`Pool.run` raises, except :class:`SandboxError`."""
    form = fill(RunJupyterForm, data)
    if len(form.cells) > settings.max_cases:
        raise Refusal(422, "too_many", f"cells may be {settings.max_cases}, not {len(form.cells)}")
    check_code("".join(form.cells), settings, "cells")
    files = read_files(form.files, settings)
    check_paths(form.fetch_files, settings, "fetch_files")
    total_s = min(form.total_timeout, settings.max_request_s)
    # 0, the default, means no limit of a cell's own.
    cell_s = min(form.cell_timeout or total_s, total_s, settings.max_run_s)
    limits = Limits(
        wall_s=cell_s,
        memory_mb=min(settings.default_memory_mb, settings.max_memory_mb),
        output_bytes=settings.max_output_bytes,
    )

    def job(sandbox: Sandbox) -> dict[str, Any]:
        return _run_cells(sandbox, form, limits, total_s, files)

    try:
        body = await pool.run(job, wait_s=settings.queue_timeout_s, work_s=total_s)
    except SandboxError as error:
        body = _body("SandboxError", message=str(error))
    return Answer(body=body, outcome=body["status"])


def _run_cells(
    sandbox: Sandbox, form: RunJupyterForm, limits: Limits, total_s: float, files: dict[str, bytes]
) -> dict[str, Any]:
    started = time.monotonic()
    done: list[dict[str, Any]] = []
    ended = "Finished"
    why = ""
    with sandbox.session(limits=limits) as session:
        for path, content in files.items():
            session.upload(path, content)
        explained(session.run(PRELUDE))
        for number, source in enumerate(form.cells, 1):
            left_s = total_s - (time.monotonic() - started)
            if left_s <= 0:
                ended, why = "TimeLimitExceeded", f"total_timeout was over before cell {number}"
                break
            wall_s = min(limits.wall_s, left_s)
            result = explained(session.run(source, limits=replace(limits, wall_s=wall_s)))
            done.append(_cell(result))
            if result.status in ("ok", "error"):
                done[-1]["display"] = _displays(explained(session.run(TAKE)))
            if result.status in ("timeout", "memory", "output"):
                # The interpreter is gone, so that later cells would run without what it held.
                ended = "TimeLimitExceeded" if result.status == "timeout" else "Finished"
                why = f"cell {number} was ended by its {result.status} limit; what the interpreter held is lost"
                break
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
    except ValueError:
        return []
    return found if isinstance(found, list) and all(isinstance(each, dict) for each in found) else []


def _exception_of(stderr: str) -> tuple[str, str]:
    """Name and message from the last line of a traceback."""
    last = (stderr.strip().splitlines() or [""])[-1]
    name, _, value = last.partition(":")
    if name.strip().replace(".", "_").isidentifier():
        return name.strip(), value.strip()
    return "Error", last


def _body(status: str, **parts: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"message": "", "driver": None, "cells": [], "executor_pod_name": None, "files": {}}
    return {"status": status, **empty, **parts}
