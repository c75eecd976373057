"""Programs and results in the format of SandboxFusion, for servers that have no other API.

The format carries text only, has neither arguments nor an environment, and does not tell a memory limit from another
kill; what it cannot express raises :class:`~roll_envs.errors.ConfigError` instead of being left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll_envs.errors import ConfigError
from roll_envs.sandbox import Isolation, Limits, Program, RunResult, RunStatus
from sandboxes.client.retrying import TransientError
from sandboxes.languages import FUSION_OF
from sandboxes.service.wire import decode_bytes, encode_bytes

UNKNOWN = Isolation(tier="unknown", layers=(), missing=())
"""SandboxFusion does not report the isolation of its programs."""


def to_request(program: Program, limits: Limits) -> dict[str, Any]:
    """The body of ``POST /run_code``."""
    if program.arguments or program.environ:
        raise ConfigError(
            "this service speaks plain SandboxFusion, which knows no arguments and no environment of a program; "
            "use `roll-sandbox serve`, or read them from stdin or a file"
        )
    try:
        stdin = program.stdin.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "this service speaks plain SandboxFusion, whose stdin is text in UTF-8; "
            f"use `roll-sandbox serve`, or send the bytes as a file ({error})"
        ) from error
    return {
        "code": program.source,
        "language": FUSION_OF[program.language],
        "stdin": stdin,
        "files": {path: encode_bytes(content) for path, content in program.files.items()},
        "fetch_files": list(program.fetch),
        "compile_timeout": limits.compile_s,
        "run_timeout": limits.wall_s,
        "memory_limit_MB": limits.memory_mb,
    }


def to_result(data: Any, limits: Limits) -> RunResult:
    """The result in an answer. Raises :class:`TransientError` for ``SandboxError`` and for a malformed answer."""
    try:
        status, compiled, ran = data["status"], data.get("compile_result"), data.get("run_result")
        if status == "SandboxError":
            raise TransientError(f"SandboxError: {data.get('message', '')}"[:500])
        if status not in ("Success", "Failed"):
            raise TransientError(f"unknown status {status!r:.80}")
        compiler = None if compiled is None else _part(compiled, limits, {})
        files = {path: decode_bytes(text, f"files[{path!r}]") for path, text in (data.get("files") or {}).items()}
        if ran is not None:
            result = _part(ran, limits, files, compiler)
        elif compiler is not None and not compiler.ok:
            result = RunResult(status="error", exit_code=None, isolation=UNKNOWN, compile=compiler)
        else:
            raise TransientError(f"{status} without a result")
    except (KeyError, TypeError, AttributeError, ValueError, ConfigError) as error:
        raise TransientError(f"an answer that is none of SandboxFusion's: {type(error).__name__}: {error}") from error
    if (status == "Success") != result.ok:
        raise TransientError(f"an answer that contradicts itself: {status}, but the program ended with {result.status}")
    return result


def _part(
    data: Mapping[str, Any], limits: Limits, files: Mapping[str, bytes], compiler: RunResult | None = None
) -> RunResult:
    code = data.get("return_code")
    status: RunStatus
    if data["status"] == "TimeLimitExceeded":
        status, code = "timeout", None
    elif data["status"] != "Finished" or code is None:
        raise TransientError(f"a command with status {data['status']!r:.80} and return code {code!r}")
    else:
        status = "ok" if code == 0 else "error"
    streams: dict[str, Any] = {}
    for name in ("stdout", "stderr"):
        content = (data.get(name) or "").encode("utf-8", "replace")
        streams[name] = content[: limits.output_bytes]
        # Only our own service says how much it has dropped.
        streams[f"{name}_dropped"] = len(content[limits.output_bytes :]) + int(data.get(f"{name}_dropped", 0))
    return RunResult(
        status=status,
        # A negative code is the number of a signal, as in subprocess.
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        wall_s=float(data.get("execution_time") or 0.0),
        isolation=UNKNOWN,
        files=files,
        compile=compiler,
        **streams,
    )
