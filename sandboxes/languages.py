"""The languages of programs: what compiles and runs them, and what must be installed, as ``languages.toml`` says."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll_envs.errors import ConfigError
from roll_envs.sandbox import LANGUAGES, Language, Limits

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
        return [
            "/bin/sh",
            "-c",
            f"{shlex.join(self.compiler(tool))} && exec {shlex.join(self.command(tool, memory_mb))}",
        ]


def _filled(command: str | Sequence[str], tool: str, memory_mb: int = 0) -> list[str]:
    values = {"tool": tool, "bin": tool.rpartition("/")[0] or ".", "heap": str(memory_mb * 5 // 8)}
    parts = ["/bin/sh", "-c", command, "sh"] if isinstance(command, str) else list(command)
    for name, value in values.items():
        parts = [part.replace("{" + name + "}", value) for part in parts]
    return parts


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
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


def check_room(language: Language, limits: Limits) -> None:
    """Raise :class:`ConfigError` for limits under which nothing in that language can run."""
    row = ROWS[language]
    for name, least in (("memory_mb", row.least_mb), ("processes", row.least_processes)):
        if getattr(limits, name) < least:
            raise ConfigError(
                f"limits: {name}={getattr(limits, name)} is too small for {language!r}, which needs at least {least}"
            )
