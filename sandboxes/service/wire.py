"""The native wire format: programs, limits and results as JSON, bytes in base64, lossless.

Used by the service and by its client. Reading raises :class:`~roll_envs.errors.ConfigError` that names the field.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from roll_envs.errors import ConfigError
from roll_envs.sandbox import LANGUAGES, Isolation, Limits, Program, RunResult, RunStatus

VERSION = 1
"""Version of the format; reported by ``GET /v1/health``."""

STATUSES = get_args(RunStatus)
# Seconds may be fractions; all other limits are whole numbers.
LIMIT_NAMES = {field.name: float if field.name.endswith("_s") else int for field in fields(Limits)}


def encode_bytes(content: bytes) -> str:
    """Base64 as text."""
    return base64.b64encode(content).decode("ascii")


def decode_bytes(text: object, where: str) -> bytes:
    """The bytes of base64 text; ``where`` names the field in the error."""
    if not isinstance(text, str):
        raise ConfigError(f"{where} must be base64 text, not {type(text).__name__}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"{where} is not base64: {error}") from error


def dump_program(program: Program) -> dict[str, Any]:
    """``program`` as JSON."""
    return {
        "source": program.source,
        "language": program.language,
        "stdin": encode_bytes(program.stdin),
        "files": {path: encode_bytes(content) for path, content in program.files.items()},
        "fetch": list(program.fetch),
        "arguments": list(program.arguments),
        "environ": dict(program.environ),
    }


def load_program(data: object) -> Program:
    """The program that :func:`dump_program` wrote."""
    fields_ = _object(data, "program", ("source", "language", "stdin", "files", "fetch", "arguments", "environ"))
    language = fields_.get("language", "python")
    if language not in LANGUAGES:
        raise ConfigError(f"program.language must be one of {', '.join(LANGUAGES)}, not {language!r}")
    files = _object(fields_.get("files", {}), "program.files")
    environ = _object(fields_.get("environ", {}), "program.environ")
    return Program(
        source=_text(fields_.get("source"), "program.source"),
        language=language,
        stdin=decode_bytes(fields_.get("stdin", ""), "program.stdin"),
        files={_text(k, "program.files"): decode_bytes(v, f"program.files[{k!r}]") for k, v in files.items()},
        fetch=_texts(fields_.get("fetch", []), "program.fetch"),
        arguments=_texts(fields_.get("arguments", []), "program.arguments"),
        environ={_text(k, "program.environ"): _text(v, f"program.environ[{k!r}]") for k, v in environ.items()},
    )


def dump_limits(limits: Limits) -> dict[str, Any]:
    """``limits`` as JSON."""
    return {name: getattr(limits, name) for name in LIMIT_NAMES}


def load_limits(data: object) -> Limits:
    """The limits that :func:`dump_limits` wrote; what is not named has its default."""
    given = _object({} if data is None else data, "limits", tuple(LIMIT_NAMES))
    numbers: dict[str, Any] = {n: _number(value, f"limits.{n}", LIMIT_NAMES[n]) for n, value in given.items()}
    return Limits(**numbers)


def dump_result(result: RunResult) -> dict[str, Any]:
    """``result`` as JSON."""
    return {
        "status": result.status,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "stdout": encode_bytes(result.stdout),
        "stderr": encode_bytes(result.stderr),
        "stdout_dropped": result.stdout_dropped,
        "stderr_dropped": result.stderr_dropped,
        "wall_s": result.wall_s,
        "memory_peak_mb": result.memory_peak_mb,
        "isolation": {
            "tier": result.isolation.tier,
            "layers": list(result.isolation.layers),
            "missing": list(result.isolation.missing),
        },
        "files": {path: encode_bytes(content) for path, content in result.files.items()},
        "compile": None if result.compile is None else dump_result(result.compile),
    }


def load_result(data: object) -> RunResult:
    """The result that :func:`dump_result` wrote; unknown fields, of later versions, are ignored."""
    given = _object(data, "result")
    status: Any = given.get("status")
    if status not in STATUSES:
        raise ConfigError(f"result.status must be one of {', '.join(STATUSES)}, not {status!r}")
    isolation = _object(given.get("isolation"), "result.isolation")
    files = _object(given.get("files", {}), "result.files")
    peak, compiled = given.get("memory_peak_mb"), given.get("compile")
    return RunResult(
        status=status,
        exit_code=_maybe_int(given.get("exit_code"), "result.exit_code"),
        signal=_maybe_int(given.get("signal"), "result.signal"),
        stdout=decode_bytes(given.get("stdout"), "result.stdout"),
        stderr=decode_bytes(given.get("stderr"), "result.stderr"),
        stdout_dropped=int(_number(given.get("stdout_dropped", 0), "result.stdout_dropped", int)),
        stderr_dropped=int(_number(given.get("stderr_dropped", 0), "result.stderr_dropped", int)),
        wall_s=float(_number(given.get("wall_s", 0.0), "result.wall_s", float)),
        memory_peak_mb=None if peak is None else float(_number(peak, "result.memory_peak_mb", float)),
        isolation=Isolation(
            tier=_text(isolation.get("tier"), "result.isolation.tier"),
            layers=_texts(isolation.get("layers", []), "result.isolation.layers"),
            missing=_texts(isolation.get("missing", []), "result.isolation.missing"),
        ),
        files={path: decode_bytes(content, f"result.files[{path!r}]") for path, content in files.items()},
        compile=None if compiled is None else load_result(compiled),
    )


def _object(data: object, where: str, known: tuple[str, ...] | None = None) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be an object, not {type(data).__name__}")
    unknown = sorted(set(data) - set(known)) if known is not None else []
    if unknown:
        raise ConfigError(f"{where} has no field {unknown[0]!r}; known: {', '.join(known or ())}")
    return data


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where} must be text, not {type(value).__name__}")
    # ASCII, the usual case, is quick to tell and holds no surrogates.
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{where} is no valid Unicode: a lone surrogate at character {error.start}") from error
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{where} must be a list of text, not {type(value).__name__}")
    return tuple(_text(each, f"{where}[{number}]") for number, each in enumerate(value))


def _number(value: object, where: str, kind: type[int] | type[float]) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind is int and value % 1 != 0):
        raise ConfigError(f"{where} must be {'a whole number' if kind is int else 'a number'}, not {value!r}")
    # Excludes infinity, and nan, which compares as false.
    if not 0 <= value < 1e300:
        raise ConfigError(f"{where} must be 0 or more and finite, not {value!r:.40}")
    return kind(value)


def _maybe_int(value: object, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{where} must be a whole number or null, not {value!r}")
    return value
