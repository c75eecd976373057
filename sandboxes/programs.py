"""The languages of programs (what compiles and runs them, and what must be installed, as ``languages.toml`` says), and
the order for a slot that a :class:`Program` becomes: checked paths, the environment, the command of its language."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from roll_envs.errors import ConfigError, check_number, check_whole
from roll_envs.sandbox import LANGUAGES, Language, Limits, Program

BINARY = ".main"
"""What compilers make: a program, or what the runtime of the language reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A language. A command is a list of words, or a line for the shell; in it ``{tool}`` is the path of ``tool``,
    ``{bin}`` its folder, ``{heap}`` a part of ``memory_mb`` for runtimes that must be told how much they have."""

    tool: str
    """The interpreter, or else the compiler."""
    needs: Sequence[str] = ()
    """Further programs."""
    package: str
    """What installs them on Debian and Ubuntu."""
    main: str
    """The file of the source."""
    compile: str | Sequence[str] = ()
    """Makes :data:`BINARY`; empty for languages that are interpreted."""
    run: str | Sequence[str]
    compile_mb: int = 1024
    """The least memory of the compiler."""
    least_mb: int = 16
    least_processes: int = 1
    """The least limits under which the runtime starts at all."""
    home: bool = False
    """Whether compiler and libraries stand in a folder of their own, two above the program."""
    configuration: Sequence[str] = ()
    """Patterns of further files and folders that it reads."""

    def compiler(self, tool: str) -> list[str]:
        """The command that makes :data:`BINARY`."""
        return _filled(self.compile, tool)

    def command(self, tool: str, memory_mb: int) -> list[str]:
        """The command that runs, to which arguments are added."""
        return _filled(self.run, tool, memory_mb)

    def cell(self, tool: str, memory_mb: int) -> list[str]:
        """The command of a session's cell: compile where needed, then run; the file's name is added and not used."""
        if not self.compile:
            return [tool]
        both = f"{shlex.join(self.compiler(tool))} && exec {shlex.join(self.command(tool, memory_mb))}"
        return ["/bin/sh", "-c", both]


def _filled(command: str | Sequence[str], tool: str, memory_mb: int = 0) -> list[str]:
    values = {"tool": tool, "bin": tool.rpartition("/")[0] or ".", "heap": str(memory_mb * 5 // 8)}
    parts = ["/bin/sh", "-c", command, "sh"] if isinstance(command, str) else list(command)
    for name, value in values.items():
        parts = [part.replace("{" + name + "}", value) for part in parts]
    return parts


_TABLE = tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8"))
ROWS: Mapping[Language, Row] = {language: Row(**_TABLE[language]) for language in LANGUAGES}

FUSION_OF: Mapping[str, str] = {language: language for language in LANGUAGES} | {"javascript": "nodejs"}
"""Our names of languages -> SandboxFusion's."""
FUSION_NAMES: Mapping[str, Language] = {FUSION_OF[language]: language for language in LANGUAGES}


def longest_s(language: Language, limits: Limits) -> float:
    """How long a program may take by its limits, its compiler included."""
    return limits.wall_s + (limits.compile_s if ROWS[language].compile else 0.0)


def check_language(language: str) -> Row:
    """The row of a language. Raises :class:`ConfigError` for one that there is not."""
    if language not in ROWS:
        raise ConfigError(f"language {language!r}: allowed are {', '.join(LANGUAGES)}")
    return ROWS[language]  # type: ignore[index]


_MOST_FILES = 4096
_FILES_PER_MB = 192
"""Three quarters of what a file system of that size has room for; see ``inside.jail.inodes``."""


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
    """A program, or a cell of a session, for a slot to run."""

    message: Mapping[str, Any]
    parts: Sequence[Sequence[bytes]]
    """Contents that go with the message, each in pieces."""
    limits: Limits
    fetch: Sequence[str] = ()


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
    fits = _encodable(path) and len(os.fsencode(path)) <= 1024 and all(len(os.fsencode(part)) <= 255 for part in parts)
    if not path or not fits or path.startswith("/") or ".." in parts:
        raise ConfigError(
            f"{what}: {path[:80]!r} is not a relative path below the working folder (no '..', no leading '/', "
            "at most 255 bytes between two '/' and 1024 in all)"
        )
    short = posixpath.normpath(path)
    if short == ".":
        raise ConfigError(f"{what}: {path[:80]!r} names the working folder itself, not a file in it")
    return short


def _encodable(text: str) -> bool:
    """Whether the kernel can be given it: without NUL and lone surrogates."""
    with contextlib.suppress(UnicodeEncodeError):
        return b"\0" not in os.fsencode(text)
    return False


def check_words(program: Program) -> None:
    """Raise :class:`ConfigError` for arguments and an environment that no program can be given."""
    for value in program.arguments:
        if not _encodable(value):
            raise ConfigError(f"arguments: {value!r} holds a NUL or half a character, which no argument can")
    for name, value in program.environ.items():
        if not name or "=" in name or not _encodable(name + value):
            raise ConfigError(
                f"environ: {name!r} is not a name without '=' and with a value that an environment can hold"
            )


def order(program: Program, limits: Limits, place: Place, binary: bytes | None = None) -> Order:
    """The order to run a program; for compiled languages to run the binary, see :func:`compile_order`."""
    row = _usable(program.language, limits, place)
    check_words(program)
    if program.language != "python":
        command = row.command(place.tools[program.language], limits.memory_mb)
    elif any(name.startswith("PYTHON") for name in program.environ):  # read when an interpreter starts
        command = [place.python, "main.py"]
    else:  # a fork of the warm interpreter
        command = []
    return _order(program, limits, place, command, {} if binary is None else {BINARY: binary})


def _usable(language: Language, limits: Limits, place: Place) -> Row:
    """The row of a language. Raises :class:`ConfigError` where the place has none, or nothing in it can run under these
    limits."""
    row = check_language(language)
    if language != "python" and language not in place.tools:
        place.refuse(language)
    for name, least in (("memory_mb", row.least_mb), ("processes", row.least_processes)):
        if getattr(limits, name) < least:
            raise ConfigError(
                f"limits: {name}={getattr(limits, name)} is too small for {language!r}, which needs at least {least}"
            )
    return row


def _order(
    program: Program, limits: Limits, place: Place, command: Sequence[str], executables: Mapping[str, bytes]
) -> Order:
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
        "files": [*files, *executables],
        "executables": list(executables),
        "argv": [*command, *program.arguments] if command else None,
        "arguments": program.arguments,
        "environ": {**place.environ, **program.environ},
    }
    fetch = list(dict.fromkeys(check_path(path, "fetch") for path in program.fetch))
    payload = pack(head, [source, *files.values(), *executables.values()])
    message = {"order": "run", "show_work": bool(fetch)}
    return Order(message=message, parts=[payload, [program.stdin]], limits=limits, fetch=fetch)


def pack(head: Mapping[str, Any], blobs: Sequence[bytes]) -> list[bytes]:
    """A payload, ``[length of head: 8 bytes][head: JSON][blobs]``, in pieces; the head says how long each blob is."""
    text = json.dumps({**head, "lengths": [len(b) for b in blobs]}).encode()
    return [len(text).to_bytes(8, "little"), text, *blobs]


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
    return _order(asked, roomy, place, row.compiler(place.tools[program.language]), {})


def opening(language: Language, limits: Limits, place: Place) -> dict[str, Any]:
    """The message that opens a session; ``command`` is ``None`` for Python, else it gets the cell's file name."""
    row = _usable(language, limits, place)
    command = None if language == "python" else row.cell(place.tools[language], limits.memory_mb)
    given = {"command": command, "main": row.main, "environ": dict(place.environ)}
    return {"order": "session", **given, "limits": asdict(limits)}
