"""Turns a :class:`Program` into the order for a slot: checked paths, the environment, the command of each language."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NoReturn

from roll_envs.errors import ConfigError, check_number, check_whole
from roll_envs.sandbox import Language, Limits, Program
from sandboxes.languages import BINARY, ROWS, check_language, check_room

_MOST_FILES = 4096
_FILES_PER_MB = 192
"""Three quarters of what a file system of that size has room for; see ``inside.root.inodes``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What a sandbox offers to programs."""

    environ: Mapping[str, str]
    """The fixed environment of every program."""
    tools: Mapping[Language, str]
    """Language -> its interpreter or compiler, but for Python."""
    python: str
    refuse: Callable[[Language], NoReturn]
    """Raises :class:`ConfigError`, which says how to get a language that is not in ``tools``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One run of a slot."""

    head: Mapping[str, Any]
    blobs: Sequence[bytes]
    limits: Limits
    fetch: Sequence[str]
    stdin: bytes


def check_limits(limits: Limits) -> Limits:
    """``limits``. Raises :class:`ConfigError` for those that no program can run under."""
    for name, least in {"memory_mb": 16, "processes": 1, "output_bytes": 0, "files_mb": 1}.items():
        check_whole(f"limits: {name}", getattr(limits, name), least)
    for name in ("wall_s", "compile_s"):
        allowed = "a number of seconds above 0, up to 86400"
        check_number(f"limits: {name}", getattr(limits, name), lambda s: 0 < s <= 86400, allowed)
    return limits


def check_path(path: str, what: str) -> str:
    """A relative path that stays below the working folder, in its shortest form."""
    parts = path.split("/")
    too_long = len(os.fsencode(path)) > 1024 or any(len(os.fsencode(part)) > 255 for part in parts)
    if not path or path.startswith("/") or ".." in parts or "\0" in path or too_long:
        raise ConfigError(
            f"{what}: {path[:80]!r} is not a relative path below the working folder (no '..', no leading '/', "
            "at most 255 bytes between two '/' and 1024 in all)"
        )
    short = posixpath.normpath(path)
    if short == ".":
        raise ConfigError(f"{what}: {path[:80]!r} names the working folder itself, not a file in it")
    return short


def _environment(place: Place, extra: Mapping[str, str]) -> dict[str, str]:
    for name, value in extra.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"environ: {name!r} is not a name with a value that an environment can hold")
    return {**place.environ, **extra}


def order(program: Program, limits: Limits, place: Place) -> Order:
    """The order to run a program; for compiled languages to run the binary, see :func:`compile_order`."""
    _check_language(program.language, limits, place)
    for value in program.arguments:
        if "\0" in value:
            raise ConfigError(f"arguments: {value!r} holds a NUL, which no argument can")
    if program.language != "python":
        command = ROWS[program.language].command(place.tools[program.language], limits.memory_mb)
    elif any(name.startswith("PYTHON") for name in program.environ):  # read when an interpreter starts
        command = [place.python, "main.py"]
    else:  # a fork of the warm interpreter
        command = []
    return _order(program, limits, place, command)


def _check_language(language: Language, limits: Limits, place: Place) -> None:
    check_language(language)
    if language != "python" and language not in place.tools:
        place.refuse(language)
    check_room(language, limits)


def _order(program: Program, limits: Limits, place: Place, command: Sequence[str]) -> Order:
    # A lone surrogate, which JSON can carry, is then an error of the program, not of the caller.
    source = program.source.encode("utf-8", "surrogatepass")
    main = ROWS[program.language].main
    files = {check_path(path, "files"): content for path, content in program.files.items()}
    own = {main, BINARY} if ROWS[program.language].compile else {main}
    for name in own & set(files):
        raise ConfigError(f"files: {name!r} is the name of the program's own source or binary; choose another")
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents} - {"."}
    for name in sorted(folders & {*own, *files}):
        raise ConfigError(f"files: {name!r} is a file, and the folder of another one; rename one of them")
    # A file system of 4 KB pages; a quarter of it is left for what the program writes.
    size = sum(-(-len(content) // 4096) * 4096 for content in (source, *files.values()))
    count, most = len(files) + len(folders), min(_MOST_FILES, _FILES_PER_MB * limits.files_mb)
    if size > (limits.files_mb << 20) * 3 // 4 or count > most:
        raise ConfigError(
            f"source and files ({size} bytes, {count} files and folders) leave no room in files_mb={limits.files_mb}; "
            f"raise it, or send less (at most {most} files and folders)"
        )
    head = {
        "main": main,
        "files": list(files),
        "executables": [],
        "argv": [*command, *program.arguments] if command else None,
        "arguments": program.arguments,
        "environ": _environment(place, program.environ),
    }
    fetch = [check_path(path, "fetch") for path in program.fetch]
    return Order(head=head, blobs=[source, *files.values()], limits=limits, fetch=fetch, stdin=program.stdin)


def compile_order(program: Program, limits: Limits, place: Place) -> Order:
    """The order to compile, which makes ``BINARY``; the compiler may use more than the program's limits."""
    row = ROWS[program.language]
    roomy = Limits(
        wall_s=limits.compile_s,
        memory_mb=max(limits.memory_mb, row.compile_mb),
        processes=max(limits.processes, 64),
        output_bytes=limits.output_bytes,
        files_mb=max(limits.files_mb, 128),
    )
    asked = Program(source=program.source, language=program.language, files=program.files, fetch=(BINARY,))
    return _order(asked, roomy, place, row.compiler(place.tools[program.language]))


def session_head(language: Language, limits: Limits, place: Place) -> dict[str, Any]:
    """The opening order of a session; ``command`` is ``None`` for Python, else it gets the cell's file name."""
    _check_language(language, limits, place)
    row = ROWS[language]
    command = None if language == "python" else row.cell(place.tools[language], limits.memory_mb)
    return {"command": command, "main": row.main, "environ": _environment(place, {})}
