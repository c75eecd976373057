"""Turns a program into requests to PID 1, and the replies into a result."""

from __future__ import annotations

import json
import signal
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roll_envs.errors import ConfigError, DeadlineExceededError, SandboxError
from roll_envs.sandbox import Language, Limits, Program, RunResult, RunStatus
from sandboxes.docker.channel import Reply
from sandboxes.docker.inside.files import ENTRY, FOLDER, PLAIN, TOO_LARGE
from sandboxes.docker.inside.watch import READY, SETUP_S
from sandboxes.docker.worker import Worker
from sandboxes.languages import ROWS, check_language, check_room
from sandboxes.local.programs import check_path

__all__ = [
    "ask",
    "bounds",
    "clear",
    "copy_in",
    "copy_out",
    "environment",
    "out_of_memory",
    "run_cell_process",
    "run_program",
    "to_result",
    "tool",
]

HELPER_S = 60.0
"""Time limit for copying files and for emptying a container."""
FLOOD = 64
"""A program that writes more than this many times ``output_bytes`` is killed."""
FETCH_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class _Process:
    """One process to run to its end: a compiler, or a program."""

    argv: Sequence[str] | None
    """``None``: Python source, run in a fork of PID 1."""
    files: Mapping[str, bytes]
    stdin: bytes = b""
    arguments: Sequence[str] = ()
    environ: Mapping[str, str]
    wall_s: float
    output_bytes: int
    wipe: bool = True
    """Whether all files are removed afterwards."""
    stay: bool = False
    """Whether processes that it left in the background live on."""


def run_program(worker: Worker, program: Program, limits: Limits, *, deadline: float, timeout_s: float) -> RunResult:
    """Compile where needed, run, fetch files; afterwards all processes have ended and all files are removed.

    Raises :class:`DeadlineExceededError` where ``deadline`` (of ``time.monotonic``) came before the program's own
    limit, and :class:`ConfigError` for what cannot be run.
    """
    fetch = [check_path(path, "fetch") for path in program.fetch]
    # Files to fetch are read after the run, so they are removed after that.
    process = replace(_process(worker, program, limits), wipe=not fetch)
    compiled: RunResult | None = None
    if ROWS[program.language].compile:
        compiled = _compile(worker, program.language, process, limits, deadline, timeout_s)
        if not compiled.ok:
            clear(worker)
            return replace(compiled, compile=compiled)
        process = replace(process, files={})
    worker.set_memory(limits.memory_mb)
    result = replace(_run(worker, process, deadline, timeout_s), compile=compiled)
    if fetch:
        found = copy_out(worker, fetch, FETCH_BYTES)
        clear(worker)
        result = replace(result, files={p: c for p, c in zip(fetch, found, strict=True) if isinstance(c, bytes)})
    return result


def run_cell_process(worker: Worker, source: str, language: Language, limits: Limits) -> RunResult:
    """Run a cell of a session of another language than Python: a process of its own, beside those of earlier cells."""
    process = replace(_process(worker, Program(source=source, language=language), limits), wipe=False, stay=True)
    deadline = time.monotonic() + limits.compile_s + limits.wall_s + HELPER_S
    if ROWS[language].compile:
        compiled = _compile(worker, language, process, limits, deadline, HELPER_S)
        if not compiled.ok:
            return replace(compiled, compile=compiled)
        worker.set_memory(limits.memory_mb)
        return replace(_run(worker, replace(process, files={}), deadline, HELPER_S), compile=compiled)
    return _run(worker, process, deadline, HELPER_S)


def _process(worker: Worker, program: Program, limits: Limits) -> _Process:
    return _Process(
        argv=_argv(program, limits, tool(program.language, worker)),
        files=_files(program, limits),
        stdin=program.stdin,
        arguments=program.arguments,
        environ=environment(worker, program.environ),
        wall_s=limits.wall_s,
        output_bytes=limits.output_bytes,
    )


def _compile(
    worker: Worker, language: Language, process: _Process, limits: Limits, deadline: float, timeout_s: float
) -> RunResult:
    """The compiler may use more than the program."""
    worker.set_memory(max(limits.memory_mb, ROWS[language].compile_mb))
    argv = ROWS[language].compiler(tool(language, worker))
    compiler = replace(process, argv=argv, stdin=b"", wall_s=limits.compile_s, wipe=False)
    return _run(worker, compiler, deadline, timeout_s)


def tool(language: Language, worker: Worker) -> str:
    """Path of the interpreter or compiler in the image; raises :class:`ConfigError` where there is none."""
    name = check_language(language).tool
    if language == "python":
        return str(worker.facts["executable"])
    found = worker.facts["tools"].get(name)
    if found is None:
        raise ConfigError(
            f"language {language!r}: the image {worker.image!r} has no {name!r}; install it there, or make an image "
            f"from this machine's: python -m sandboxes.docker --languages python {language}"
        )
    return str(found)


def _argv(program: Program, limits: Limits, program_tool: str) -> list[str] | None:
    check_room(program.language, limits)
    if any("\0" in argument for argument in program.arguments):
        raise ConfigError(f"arguments: {program.arguments!r} hold a NUL, which no argument can")
    if program.language == "python" and not any(name.startswith("PYTHON") for name in program.environ):
        return None
    command = ROWS[program.language].command(program_tool, limits.memory_mb)
    return [*command, *program.arguments]  # PYTHON* variables are read when an interpreter starts


def _files(program: Program, limits: Limits) -> dict[str, bytes]:
    main = ROWS[program.language].main
    files = {check_path(path, "files"): content for path, content in program.files.items()}
    if main in files:
        raise ConfigError(f"files: {main!r} is the name that the program's own source gets; choose another")
    source = program.source.encode("utf-8", "surrogatepass")
    size = len(source) + sum(map(len, files.values()))
    if size > (limits.files_mb << 20) * 3 // 4:
        raise ConfigError(f"source and files ({size} bytes) leave no room in files_mb={limits.files_mb}; raise it")
    return {main: source, **files}


def environment(worker: Worker, extra: Mapping[str, str]) -> dict[str, str]:
    """Environment of a program: the image's variables, a few fixed ones, and its own; none of the host."""
    for name, value in extra.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"environ: {name!r} is not a name with a value that an environment can hold")
    fixed = {"HOME": FOLDER, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "sandbox"}
    return {**worker.facts["environ"], **fixed, **extra}


def _run(worker: Worker, process: _Process, deadline: float, timeout_s: float) -> RunResult:
    wall_s = min(process.wall_s, max(0.0, deadline - time.monotonic()))
    head = {
        "kind": "program",
        "main": ROWS["python"].main,
        "argv": process.argv,
        "arguments": list(process.arguments),
        "environ": process.environ,
    }
    header = {"do": "run", "wipe": process.wipe, "stay": process.stay, **bounds(wall_s, process.output_bytes)}
    reply = ask(worker, header, pack(head, process.files, process.stdin))
    # Ended by the caller's deadline, not by the program's own limit: that is no verdict on the program.
    if reply.result["limit"] == "timeout" and wall_s < process.wall_s:
        raise DeadlineExceededError("a program in the Docker sandbox (its own limit is longer)", timeout_s)
    note, limit = reply.result["note"], reply.result["limit"]
    if limit == "setup" or (not note.startswith(READY.decode()) and not reply.result["oom"]):
        raise SandboxError(f"a program could not be set up in container {worker.id[:12]}: {note or 'it took too long'}")
    return to_result(reply, worker)


# -- requests ----------------------------------------------------------------------------------------------------------


def pack(head: Mapping[str, Any], files: Mapping[str, bytes], stdin: bytes = b"") -> list[bytes]:
    """The body of a request, as ``inside.job`` reads it."""
    sizes = [(path, len(content)) for path, content in files.items()]
    text = json.dumps({**head, "files": sizes, "stdin": len(stdin)}).encode()
    return [struct.pack("!I", len(text)), text, *files.values(), stdin]


def bounds(wall_s: float, output_bytes: int) -> dict[str, Any]:
    """The limits that PID 1 enforces itself."""
    flood = FLOOD * max(output_bytes, 1 << 20)
    return {"wall_s": wall_s, "out": output_bytes, "err": output_bytes, "flood": flood}


def ask(worker: Worker, header: Mapping[str, Any], body: Sequence[bytes]) -> Reply:
    """Send a request to PID 1 and return its reply, whether the program succeeded or not."""
    return worker.request(header, body, wall_s=header.get("wall_s", HELPER_S) + SETUP_S)


def clear(worker: Worker) -> None:
    """End all processes and remove all files."""
    ask(worker, {"do": "clear"}, [])


def copy_in(worker: Worker, path: str, content: bytes) -> None:
    """Write a file below the working folder. Raises :class:`ConfigError` where it cannot be written."""
    reply = ask(worker, {"do": "copy", **bounds(HELPER_S, 0)}, pack({"kind": "put"}, {path: content}))
    if reply.result["status"] != 0:
        raise ConfigError(
            f"{path!r} cannot be written in the session: {reply.result['note'] or 'the writer was killed'}"
        )


def copy_out(worker: Worker, paths: Sequence[str], max_bytes: int) -> list[bytes | int | None]:
    """Contents of plain files, ``None`` where there is none, and the size alone where it is over ``max_bytes``."""
    head = {"kind": "get", "paths": list(paths), "max_bytes": max_bytes}
    room = max_bytes + ENTRY.size * len(paths)
    reply = ask(worker, {"do": "copy", **bounds(HELPER_S, room)}, pack(head, {}))
    if reply.result["status"] != 0:
        raise SandboxError(f"files could not be read in container {worker.id[:12]}: {reply.result['note']}")
    found: list[bytes | int | None] = []
    start = 0
    for _ in paths:
        kind, size = ENTRY.unpack_from(reply.out, start)
        start += ENTRY.size
        if kind == PLAIN:
            found.append(bytes(reply.out[start : start + size]))
            start += size
        else:
            found.append(size if kind == TOO_LARGE else None)
    return found


# -- results -----------------------------------------------------------------------------------------------------------


def to_result(reply: Reply, worker: Worker) -> RunResult:
    """The result of a run: a limit that was hit takes precedence over the exit status."""
    told = reply.result
    ended: int | None = told["status"]
    code, by = (None, -ended) if ended is not None and ended < 0 else (ended, None)
    status: RunStatus
    if told["oom"]:
        status = "memory"
        worker.retire()  # so that a later out-of-memory kill of the container is due to its own program
    elif told["limit"] is not None:
        status = told["limit"]
    else:
        status = "ok" if code == 0 else "error"
    if status in ("timeout", "output"):
        code, by = None, int(signal.SIGKILL)
    return RunResult(
        status=status,
        exit_code=code,
        signal=by,
        stdout=bytes(reply.out),
        stderr=bytes(reply.err),
        stdout_dropped=told["dropped"][0],
        stderr_dropped=told["dropped"][1],
        wall_s=told["wall_s"],
        memory_peak_mb=told["peak_mb"],
        isolation=worker.isolation,
    )


def out_of_memory(worker: Worker, wall_s: float) -> RunResult:
    """The result where the kernel killed the whole container; the output of the program is lost."""
    return RunResult(
        status="memory", exit_code=None, signal=int(signal.SIGKILL), wall_s=wall_s, isolation=worker.isolation
    )
