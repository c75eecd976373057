"""Tasks in Harbor's format (task.toml, instruction.md, environment, tests, solution), in our Docker sandbox.

An episode is one task: each answer is a command of bash, run in the task's container, until the agent submits. Then the
task's tests are copied in and run, and what they write is the reward. The container is the sandbox's: not root, a root
that cannot be written but for the task's folders, and no network. Left out: tasks of several steps or containers, a
separate container for the tests, MCP servers, health checks and GPUs.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import re
import shlex
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from roll_envs.env import EnvironmentCard
from roll_envs.errors import ConfigError, EnvironmentFaultError
from roll_envs.parsing import MAX_ANSWER_CHARS
from roll_envs.providers.games import SHARES, GameEnv, Played, share_of
from roll_envs.sandbox import Limits, RunResult, Sandbox, SandboxSession, explained, make_sandbox
from roll_envs.settings import Settings

__all__ = ["HARBOR", "HarborEnv"]

_SUBMIT = "submit"
_FOLDERS = ("/app", "/logs", "/solution", "/tests")
"""Folders that the format promises, and programs may write to."""
_DIRECTORY = re.compile(r"^\s*WORKDIR\s+(\S+)\s*$", re.MULTILINE | re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REWARDS = ("logs/verifier/reward.txt", "logs/verifier/reward.json")
_HOME = "/tmp/home-of-tests"
_CLEAR = f"""kill -9 -1
chmod -R u+rwX tests logs
[ -d logs ] && [ ! -L logs ] || rm -rf logs
rm -rf tests logs/verifier {_HOME}
mkdir -p tests logs/verifier {_HOME}"""
"""Ends what still runs, but for the caller and PID 1, and makes way for the tests."""
_CLEAR_S = 10.0
_SHOWN = 8000
"""Characters that are shown of a command's output: its beginning and its end."""

HARBOR = EnvironmentCard(
    id="roll/Harbor-v0",
    entry_point=f"{__name__}:HarborEnv",
    summary="Tasks in Harbor's format (path), played by commands in a container.",
    tests="Whatever the tasks ask for, by bash in a container.",
    turns="A command each, max_turns of them (30) at most; 'submit' ends the episode.",
    reward_range=(float("-inf"), float("inf")),
    rewards="game: what the task's tests write to /logs/verifier/reward.txt (or reward.json, reward_key), at the end.",
    success="The reward is success_at (1) or more.",
    splits="train, test: nine tasks and one of ten, in the order of their names; or all.",
    versions={"v0": "First version."},
    citation="Harbor, github.com/harbor-framework/harbor. Apache-2.0.",
    differences=(
        "The agent and the tests are not root, reach no network, and write to the task's folders and /tmp only.",
        "What the agent left running is ended before the tests, which have a home folder of their own.",
        "After the last turn the tests run, too.",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class HarborTask:
    """What a task's folder says."""

    name: str
    folder: Path
    instruction: str
    image: str | None
    """Built already; ``None`` where it is to be built of ``environment``."""
    workdir: str
    environ: Mapping[str, str]
    verifier_environ: Mapping[str, str]
    solution_environ: Mapping[str, str]
    verifier_s: float
    cpus: float
    memory_mb: int
    files_mb: int


class HarborSettings(Settings):
    """Arguments of ``roll/Harbor-v0``."""

    path: str
    """A task's folder, or one with folders of tasks."""
    sandbox: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the Docker sandbox, such as ``engine`` or ``runtime``."""
    writable: tuple[str, ...] = Field((), strict=False)
    """Folders that programs may write to, beside /app, /logs, /solution, /tests and the one that the task begins in."""
    max_turns: int = Field(30, ge=1)
    command_s: float = Field(60.0, gt=0)
    """Seconds of a command."""
    reward_key: str = "reward"
    """Which number of a reward.json with several is the reward."""
    success_at: float = 1.0
    action_format: Literal["answer", "think-answer", "action", "boxed", "word"] = "answer"
    format_penalty: float = 0.0


class HarborEnv(GameEnv):
    """One task each episode, in a container that is kept for the next episode of the same task."""

    splits = SHARES

    def __init__(self, settings: HarborSettings) -> None:
        """Raises :class:`ConfigError` for folders that are no tasks, or tasks that cannot be played here."""
        self._settings = settings
        self.tasks = _tasks(Path(settings.path))
        self._task = self.tasks[0]
        self._made: HarborTask | None = None
        self._sandbox: Sandbox | None = None
        self._session: SandboxSession | None = None
        super().__init__(
            action_format=settings.action_format,
            max_turns=settings.max_turns,
            format_penalty=settings.format_penalty,
            example="ls -la",
            moves=("pwd", "ls", _SUBMIT),
        )

    def split_size(self, split: str) -> int:
        """How many tasks the split has. Raises :class:`ConfigError` where it has none."""
        return len(share_of(len(self.tasks), split))

    @property
    def instructions(self) -> str:
        return (
            f"You work in a Linux container, by one command (or script) of bash in each answer; each begins in "
            f"{self._task.workdir} and may take {self._settings.command_s:g} s. There is no network. You have "
            f"{self.max_turns} turns. When the task is done, answer '{_SUBMIT}'. {self.action_format.instructions}"
        )

    def legal_answers(self) -> list[str]:
        """Any command is allowed; these are some."""
        return [] if self._over else [self.action_format.write(command) for command in ("pwd", "ls")]

    def oracle(self) -> list[str] | None:
        """The task's own solution, where nothing has been done yet and it fits into an answer."""
        if self._over or self._turns or self.max_turns < 2:
            return None
        script = _solution(self._task)
        answer = self.action_format.write(script)
        if not script or self.action_format.read(answer) != script:
            return None
        return [answer, self.action_format.write(_SUBMIT)]

    def close(self) -> None:
        if getattr(self, "_sandbox", None) is not None:
            self._end()
            assert self._sandbox is not None
            self._sandbox.close()
            self._sandbox = self._made = None

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _apart(self, *seed: int) -> AbstractContextManager[None]:
        return contextlib.nullcontext()  # nothing of a task runs in this process

    def _begin(self, seed: int) -> str:
        self._end()
        numbers = share_of(len(self.tasks), self._split)
        self._task = self.tasks[numbers[seed % len(numbers)]]
        if self._made != self._task:
            self.close()
            self._sandbox, self._made = self._opened(self._task), self._task
        assert self._sandbox is not None
        self._session = self._sandbox.session(language="bash", limits=self._limits(self._settings.command_s))
        return self._task.instruction

    def _opened(self, task: HarborTask) -> Sandbox:
        start = [] if task.workdir == "/" else [task.workdir]
        places = {*_FOLDERS, *start, *self._settings.writable}
        inner = {place for place in places if any(place.startswith(f"{other}/") for other in places)}
        return make_sandbox(
            "docker",
            slots=1,
            limits=self._limits(self._settings.command_s, task),
            cpus=task.cpus,
            writable=sorted(places - inner),
            **({"build": str(task.folder / "environment")} if task.image is None else {"image": task.image}),
            **self._settings.sandbox,
        )

    def _limits(self, wall_s: float, task: HarborTask | None = None) -> Limits:
        task = task or self._task
        return Limits(wall_s=wall_s, memory_mb=task.memory_mb, files_mb=task.files_mb, processes=256)

    def _play(self, move: str) -> Played:
        if move == _SUBMIT:
            paid = self._graded()
            return Played("The task is over.", paid, over=True, success=paid >= self._settings.success_at)
        result = self._run(move, self._task.environ, self._settings.command_s)
        last = self._turns >= self.max_turns
        paid = self._graded() if last else 0.0
        return Played(_told(result), paid, success=last and paid >= self._settings.success_at)

    def _run(self, command: str, environ: Mapping[str, str], wall_s: float) -> RunResult:
        assert self._session is not None
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environ.items())
        source = f"{exports}cd {shlex.quote(self._task.workdir)}\n{command}\n"
        return explained(self._session.run(source, limits=self._limits(wall_s)))

    def _graded(self) -> float:
        """What the task's tests pay. Raises :class:`EnvironmentFaultError` where they write no number."""
        assert self._session is not None
        task, session, tests = self._task, self._session, self._task.folder / "tests"
        # By paths from the working folder, since the agent may have put links in the way.
        if not explained(session.run(_CLEAR, limits=self._limits(_CLEAR_S))).ok:
            return 0.0  # the agent has left more than is gone in time, among it perhaps a reward of its own
        for file in sorted(file for file in tests.rglob("*") if file.is_file()):
            session.upload(f"tests/{file.relative_to(tests).as_posix()}", file.read_bytes())
        if not self._run("test -f /tests/test.sh -a -d /logs/verifier", {}, _CLEAR_S).ok:
            return 0.0  # the agent has taken away the folders that were there
        environ = {"HOME": _HOME, **task.environ, **task.verifier_environ}
        ran = self._run("bash /tests/test.sh", environ, task.verifier_s)
        for place in _REWARDS:
            try:
                text = session.download(place, max_bytes=1 << 20).decode("utf-8", "replace")
            except ConfigError:
                continue  # it is not there
            paid = _number(text, self._settings.reward_key)
            if paid is None:
                raise EnvironmentFaultError(f"the tests of {task.name!r} wrote {text[:100]!r}, no number, to /{place}")
            return paid
        said = (ran.stdout + ran.stderr).decode("utf-8", "replace").strip()[-500:]
        raise EnvironmentFaultError(
            f"the tests of {task.name!r} ended ({ran.status}) without a reward; they said: {said}"
        )


def _number(text: str, key: str) -> float | None:
    """The reward in a text: a number, or one by its name in a JSON object."""
    try:
        value: Any = json.loads(text)
        value = value.get(key) if isinstance(value, dict) else value
        usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except (ValueError, OverflowError, RecursionError):
        return None
    return float(value) if usable else None


def _tasks(path: Path) -> Sequence[HarborTask]:
    """The tasks of a folder, by name."""
    folders = [path] if (path / "task.toml").is_file() else sorted(each.parent for each in path.glob("*/task.toml"))
    if not folders:
        raise ConfigError(f"path is {str(path)!r}, which is no folder with a task.toml, nor has one with it in it")
    return [_read(folder) for folder in folders]


def _read(folder: Path) -> HarborTask:
    """A task. Raises :class:`ConfigError` for one that is not in the format, or asks for what is not there."""
    try:
        found = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        instruction = (folder / "instruction.md").read_text(encoding="utf-8").strip()
        place, verifier = found.get("environment", {}), found.get("verifier", {})
        dockerfile = folder / "environment" / "Dockerfile"
        image = place.get("docker_image")
        steps = dockerfile.read_text(encoding="utf-8") if dockerfile.is_file() else ""
        reasons = {
            "it has several steps": "steps" in found,
            "it needs several containers": any((folder / "environment").glob("docker-compose.y*ml")),
            "its tests want a container of their own": verifier.get("environment_mode", "shared") != "shared",
            "it needs MCP servers": bool(place.get("mcp_servers")),
            "it has a health check": bool(place.get("healthcheck")),
            "it needs a GPU": bool(place.get("gpus")),
            "it has neither environment/Dockerfile nor docker_image": not (image or steps),
            "it has no tests/test.sh": not (folder / "tests" / "test.sh").is_file(),
        }
        environs = [place.get("env", {}), verifier.get("env", {}), found.get("solution", {}).get("env", {})]
        reasons["it needs variables of the host"] = any("${" in value for each in environs for value in each.values())
        reason = next((reason for reason, true in reasons.items() if true), None)
        if reason:
            raise ConfigError(f"the task {str(folder)!r} cannot be played here: {reason}")
        memory_mb = place.get("memory_mb", 2048)
        numbers = {
            "timeout_sec": float(verifier.get("timeout_sec", 600.0)),
            "cpus": float(place.get("cpus", 1)),
            "memory_mb": int(memory_mb),
        }
        for name, number in numbers.items():
            if not (number > 0 and math.isfinite(number)):
                raise ValueError(f"{name} is {number}; it must be a number above 0")
        for name in {name for each in environs for name in each}:
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} cannot be the name of a variable: letters, digits and _")
        return HarborTask(
            name=found.get("task", {}).get("name", folder.name),
            folder=folder.resolve(),
            instruction=instruction,
            image=image,
            workdir=place.get("workdir") or next(iter(_DIRECTORY.findall(steps)[-1:]), "/app" if image else "/"),
            environ=environs[0],
            verifier_environ=environs[1],
            solution_environ=environs[2],
            verifier_s=numbers["timeout_sec"],
            cpus=numbers["cpus"],
            memory_mb=int(memory_mb),
            files_mb=min(int(place.get("storage_mb", 10240)), int(memory_mb) // 2),
        )
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"the task {str(folder)!r} cannot be read: {error}") from error


_UNPACK = (
    "import base64, io, sys, tarfile; "
    "tarfile.open(fileobj=io.BytesIO(base64.b64decode(sys.argv[1]))).extractall('/solution', filter='data')"
)


def _solution(task: HarborTask) -> str:
    """A script that does what the task's solution does; empty where there is none, or it is too long for an answer."""
    folder = task.folder / "solution"
    if not (folder / "solve.sh").is_file():
        return ""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in task.solution_environ.items())
    files = [file for file in folder.rglob("*") if file.is_file()]
    if len(files) == 1:
        text = (folder / "solve.sh").read_text(encoding="utf-8", errors="replace")
        script = f"{exports}{text}".strip()
    else:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(folder, arcname=".")
        text = base64.b64encode(packed.getvalue()).decode()
        script = f"{exports}python3 -c {shlex.quote(_UNPACK)} {text} && bash /solution/solve.sh"
    return script if len(script) < MAX_ANSWER_CHARS - 100 else ""


def _told(result: RunResult) -> str:
    """What a command said, and how it ended where that is not well."""
    text = (result.stdout + result.stderr).decode("utf-8", "replace").strip()
    if len(text) > _SHOWN:
        text = f"{text[: _SHOWN // 2]}\n... {len(text) - _SHOWN} characters ...\n{text[-_SHOWN // 2 :]}"
    ends = {"ok": "", "error": f"(exit code {result.exit_code})"}
    return "\n".join(filter(None, [text, ends.get(result.status, f"(ended: {result.status})")])) or "(no output)"
