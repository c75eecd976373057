"""``POST /v1/run`` and ``/v1/sessions``: the contract of :mod:`roll_envs.sandbox` over HTTP, exact to the byte.

A limit above what the service allows is refused, not lowered: lowering it could change the result unnoticed.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from roll_envs.errors import check_number, check_one_of, check_whole
from roll_envs.sandbox import LANGUAGES, Limits, Program
from sandboxes.service.messages import Answer, Refusal, check_code, check_paths, check_sizes
from sandboxes.service.pool import Pool
from sandboxes.service.sessions import Sessions
from sandboxes.service.settings import Settings
from sandboxes.service.wire import decode_bytes, dump, encode_bytes, load

LONGEST_ARGUMENTS = 64 * 1024
"""Characters of all arguments and of the environment together."""


async def run_native(pool: Pool, settings: Settings, data: dict[str, Any]) -> Answer:
    """``{program, limits?, timeout_s?}`` -> ``{result}``. Raises :class:`Refusal` and what :meth:`Pool.run` raises."""
    limits = read_limits(data.get("limits"), settings)
    if isinstance(data.get("program"), dict):
        check_sizes(data["program"])
    program: Program = load(Program, data.get("program"), "program")
    _check(program, settings)
    started = time.monotonic()
    result = await pool.run_program(program, limits, read_timeout(data, settings))
    body = {"result": dump(result), "request_s": time.monotonic() - started}
    return Answer(body=body, outcome=result.status)


def read_limits(data: Any, settings: Settings) -> Limits:
    """The limits of a request. Raises :class:`Refusal` for malformed ones, for 0, and for those above the service's."""
    # The sandboxes keep files in memory, hence the bound of files_mb.
    most = {
        "wall_s": settings.max_run_s,
        "compile_s": settings.max_run_s,
        "memory_mb": settings.max_memory_mb,
        "processes": settings.max_processes,
        "output_bytes": settings.max_output_bytes,
        "files_mb": settings.max_memory_mb,
    }
    asked = {} if data is None else data
    limits: Limits = load(Limits, asked, "limits")
    for name, bound in most.items():
        value = getattr(limits, name)
        if name in asked and not 0 < value <= bound:
            message = f"limits.{name} must be above 0 and at most {bound:g} on this service, not {value:g}"
            raise Refusal(422, "limits", message)
    return replace(limits, **{n: min(getattr(limits, n), m) for n, m in most.items()})


def read_timeout(data: dict[str, Any], settings: Settings) -> float:
    """``timeout_s`` of a request: how long its client waits; at most the service's longest request."""
    given = data.get("timeout_s", settings.queue_timeout_s)
    check_number("timeout_s", given, lambda s: s >= 0, "a number of 0 or more")
    return float(min(given, settings.max_request_s))


async def open_session(sessions: Sessions, settings: Settings, data: dict[str, Any]) -> Answer:
    """``{language?, limits?}`` -> ``{id, idle_s}``."""
    language = data.get("language", "python")
    check_one_of("language", language, LANGUAGES)
    opened = await sessions.open(language, read_limits(data.get("limits"), settings))
    return Answer(body={"id": opened, "idle_s": settings.session_idle_s}, status=201, outcome="opened")


async def run_cell(sessions: Sessions, settings: Settings, data: dict[str, Any], name: str) -> Answer:
    """``{source, limits?, number}`` -> ``{result}``. ``number`` counts the cells from 1: a cell that is sent again
    because its answer was lost is answered from memory, not run again."""
    source, number = data.get("source"), data.get("number", 0)
    if not isinstance(source, str):
        raise Refusal(422, "form", f"source must be text, not {type(source).__name__}")
    check_whole("number", number)
    limits = None if data.get("limits") is None else read_limits(data["limits"], settings)
    result = await sessions.run(name, check_code(source, settings, "source"), limits, number)
    return Answer(body={"result": dump(result)}, outcome=result.status)


async def move_file(sessions: Sessions, settings: Settings, data: dict[str, Any], name: str) -> Answer:
    """``{path, content}`` writes a file, ``{path, max_bytes?}`` reads one -> ``{content}``, in base64."""
    path = data.get("path")
    if not isinstance(path, str):
        raise Refusal(422, "form", f"path must be text, not {type(path).__name__}")
    check_paths([path], settings, "path")
    if "content" in data:
        await sessions.upload(name, path, decode_bytes(data["content"], "content"))
        return Answer(body={}, outcome="written")
    most = data.get("max_bytes", settings.max_body_bytes)
    check_whole("max_bytes", most)
    content = await sessions.download(name, path, min(most, settings.max_body_bytes))
    return Answer(body={"content": encode_bytes(content)}, outcome="read")


async def close_session(sessions: Sessions, _: dict[str, Any], name: str) -> Answer:
    """Close a session; an unknown one counts as closed."""
    await sessions.close(name)
    return Answer(body={}, outcome="closed")


def _check(program: Program, settings: Settings) -> None:
    check_code(program.source, settings, "program.source")
    check_paths(program.files, settings, "program.files")
    check_paths(program.fetch, settings, "program.fetch")
    words = [*program.arguments, *program.environ, *program.environ.values()]
    if sum(len(word) for word in words) > LONGEST_ARGUMENTS:
        message = f"program.arguments and program.environ may have {LONGEST_ARGUMENTS} characters together"
        raise Refusal(413, "too_large", message)
    if any("\0" in word for word in words) or any("=" in key or not key for key in program.environ):
        raise Refusal(422, "form", "program.arguments and program.environ may hold no NUL, and names no '='")
