"""The languages of programs, one row each: what compiles and runs them, and what must be installed for that."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roll_envs.errors import ConfigError
from roll_envs.sandbox import LANGUAGES, Language, Limits

BINARY = ".main"
"""What compilers make: a program, or what the runtime of the language reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A language. In commands, ``{tool}`` is the path of ``tool``, ``{bin}`` its folder, ``{heap}`` a part of
    ``memory_mb`` for runtimes that must be told how much they have."""

    tool: str
    """The interpreter, or else the compiler."""
    needs: tuple[str, ...] = ()
    """Further programs."""
    package: str
    """What installs them on Debian and Ubuntu."""
    main: str
    """The file of the source."""
    compile: tuple[str, ...] = ()
    """Makes :data:`BINARY`; empty for languages that are interpreted."""
    run: tuple[str, ...]
    compile_mb: int = 1024
    """The least memory of the compiler."""
    least_mb: int = 16
    least_processes: int = 1
    """The least limits under which the runtime starts at all."""
    home: bool = False
    """Whether compiler and libraries stand in a folder of their own, two above the program."""
    configuration: tuple[str, ...] = ()
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


def _filled(command: Sequence[str], tool: str, memory_mb: int = 0) -> list[str]:
    values = {"tool": tool, "bin": tool.rpartition("/")[0] or ".", "heap": str(memory_mb * 5 // 8)}
    for name, value in values.items():
        command = [part.replace("{" + name + "}", value) for part in command]
    return list(command)


def _shell(line: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", line, "sh")


# One collector thread, and no files in /tmp that other programs could map.
_JVM = "-XX:+UseSerialGC -XX:-UsePerfData"

ROWS: Mapping[Language, Row] = {
    "python": Row(tool="python3", package="python3", main="main.py", run=("{tool}", "main.py")),
    "bash": Row(tool="bash", package="bash", main="main.sh", run=("{tool}", "main.sh")),
    "cpp": Row(
        tool="g++",
        package="g++",
        main="main.cpp",
        compile=("{tool}", "-O2", "-std=c++17", "-pipe", "-o", BINARY, "main.cpp"),
        run=(f"./{BINARY}",),
    ),
    "javascript": Row(tool="node", package="nodejs", main="main.js", run=("{tool}", "main.js")),
    # Several classes come out, which are passed on as one file.
    "java": Row(
        tool="javac",
        needs=("java",),
        package="default-jdk-headless",
        main="Main.java",
        compile=_shell(
            f"{{tool}} -encoding UTF-8 {' '.join('-J' + flag for flag in [*_JVM.split(), '-Xmx512m'])} -d .classes "
            f"Main.java && tar -cf {BINARY} -C .classes ."
        ),
        run=_shell(
            f"tar -xf {BINARY} && "
            f'exec {{bin}}/java {_JVM} -ea -Xmx{{heap}}m -Xss64m -Dfile.encoding=UTF-8 -cp . Main "$@"'
        ),
        least_mb=64,
        least_processes=32,
        home=True,
        configuration=("/etc/java-*",),
    ),
    "go": Row(
        tool="go",
        package="golang-go",
        main="main.go",
        compile=_shell(
            f"GO111MODULE=off CGO_ENABLED=0 GOCACHE=/tmp/go GOPATH=/tmp/path {{tool}} build -o {BINARY} main.go"
        ),
        run=(f"./{BINARY}",),
        least_processes=16,
        home=True,
        configuration=("/usr/share/go-*",),
    ),
    "rust": Row(
        tool="rustc",
        needs=("cc",),
        package="rustc",
        main="main.rs",
        compile=("{tool}", "--edition", "2021", "-O", "-o", BINARY, "main.rs"),
        run=(f"./{BINARY}",),
        home=True,
    ),
    "typescript": Row(
        tool="tsc",
        needs=("node",),
        package="nodejs npm; npm install -g typescript",
        main="main.ts",
        # Types are not checked: those of Node's own modules are a package of their own.
        compile=_shell(
            f"{{tool}} --noCheck --target es2022 --module commonjs --esModuleInterop --moduleDetection force main.ts "
            f"&& mv main.js {BINARY}"
        ),
        run=_shell(f'exec node {BINARY} "$@"'),
        home=True,
    ),
}  # fmt: skip

FUSION_NAMES: Mapping[str, Language] = {
    **{language: language for language in LANGUAGES if language not in ("javascript",)},
    "nodejs": "javascript",
}
"""SandboxFusion's names of languages -> ours."""


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
