"""The Docker backend: programs in warm containers, one for each slot; images of tasks are built of folders with a
Dockerfile, and with folders that programs may write to."""

from __future__ import annotations

import functools
import hashlib
import os
import posixpath
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import Field

from roll_envs.errors import ConfigError
from roll_envs.sandbox import Language, Limits
from sandboxes.docker.engine import DEFAULT_IMAGE, Engine, Plan, Shape
from sandboxes.docker.pid1 import FOLDER, START
from sandboxes.docker.slot import ContainerSlot
from sandboxes.programs import ROWS, Place
from sandboxes.slots import Slots, SlotSandbox

START_S = 120.0


class DockerSandbox(SlotSandbox):
    """Programs in containers of a Docker engine that are kept warm, one for each slot.

    ``image`` must have Python 3.11 or newer, and be on the engine: it is never pulled. ``engine`` is a URL as in
    ``DOCKER_HOST``. ``cpus`` is what the processes of one slot may use together. ``runtime`` names another runtime of
    the engine, such as gVisor's ``runsc``. ``unsafe`` allows an engine on which isolation layers are missing; the
    result's ``isolation`` names them.

    ``build`` is a folder with a Dockerfile, of which the image is built once instead, without a network. ``writable``
    are folders of the image (such as ``/app``) that programs may write to: links into the working folder, where each
    program and session finds their content anew; their files count as its own.

    A run's files and ``/dev/shm`` are kept in memory and count for ``memory_mb``, of which files get at most half.

    Raises :class:`MissingExtraError` without the SDK, :class:`SandboxError` without an engine, :class:`ConfigError`
    without the image. Not usable after a fork of the process that made it: make a new one there.
    """

    def __init__(
        self,
        *,
        image: str | None = None,
        build: str | None = None,
        writable: Sequence[str] = (),
        slots: Slots | None = None,
        limits: Limits | None = None,
        engine: str | None = None,
        cpus: Annotated[float, Field(ge=0.01, le=1024)] = 1.0,
        runtime: str | None = None,
        unsafe: bool = False,
    ) -> None:
        super().__init__(slots, limits)
        reached = Engine(engine)
        if image is not None and build is not None:
            raise ConfigError("give image or build, not both")
        image = build_task_image(reached, folder=build, image=image or DEFAULT_IMAGE, writable=writable)
        cpus = min(cpus, reached.info["NCPU"])
        plan = Plan(image=image, cpus=cpus, runtime=runtime, unsafe=unsafe, memory_mb=self._limits.memory_mb)
        reached.remove_ended()
        first = self._begin(functools.partial(ContainerSlot, reached, plan), self._count, START_S)
        assert isinstance(first, ContainerSlot)
        self._place = _place(first.facts, image)

    def _shape(self, limits: Limits) -> Shape:
        """Limit files to half the memory: a killed program does not free its tmpfs files, so PID 1 would be killed."""
        return Shape(processes=limits.processes, files_mb=min(limits.files_mb, max(1, limits.memory_mb // 2)))


def _place(facts: dict[str, Any], image: str) -> Place:
    """Environment of a program: the image's variables and a few fixed ones; none of the host."""

    def refuse(language: Language) -> NoReturn:
        raise ConfigError(
            f"language {language!r}: the image {image!r} has no {ROWS[language].tool!r}; build one from "
            "it that has (docs/sandboxes.md)"
        )

    found = {language: facts["tools"].get(row.tool) for language, row in ROWS.items() if language != "python"}
    return Place(
        environ={**facts["environ"], "HOME": FOLDER, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "sandbox"},
        tools={language: path for language, path in found.items() if path},
        python=facts["executable"],
        refuse=refuse,
    )


TASK_IMAGE = "roll-envs-task"
"""Name of images that are built from folders; each has the digest of what it is made of as its tag."""


def build_task_image(engine: Engine, *, folder: str | None, image: str, writable: Sequence[str]) -> str:
    """An image in which each folder of ``writable`` is a link into the working folder, where its content is copied
    afresh for each program: the root stays read-only.

    It is made of the Dockerfile in ``folder``, else of ``image``, once for the same content. Returns its name; raises
    :class:`ConfigError` for what cannot be built or linked.
    """
    places = sorted({_linkable(place) for place in writable})
    for outer in places:
        inner = [place for place in places if place.startswith(f"{outer}/")]
        if inner:
            raise ConfigError(f"writable: {inner[0]!r} lies in {outer!r}; name the outer one only")
    if folder is not None:
        image = f"{TASK_IMAGE}:{_digest(Path(folder))}"
        engine.build(image, folder=Path(folder))
    else:
        engine.check_image(image)
    if not places:
        return image
    steps = ["set -e", f"mkdir -p {START}"]
    for place in places:
        here, kept = shlex.quote(place), shlex.quote(START + place)
        steps += [f"mkdir -p {kept} {here}", f"cp -a {here}/. {kept}/", f"rm -rf {here}"]
        steps += [f"ln -s {shlex.quote(FOLDER + place)} {here}"]
    steps.append(f"chmod -R a+rX {START}")
    dockerfile = f"FROM {image}\nUSER root\nRUN {'; '.join(steps)}\n"
    tag = f"{TASK_IMAGE}-writable:{hashlib.sha256(f'{engine.image_id(image)} {dockerfile}'.encode()).hexdigest()[:32]}"
    engine.build(tag, dockerfile=dockerfile)
    return tag


def _linkable(place: str) -> str:
    short = posixpath.normpath(place)
    top = f"/{short.split('/')[1]}" if short.startswith("/") else ""
    if short == "/" or top in ("", "/tmp", "/dev", "/proc", "/sys", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc"):
        raise ConfigError(f"writable: {place!r} is not the absolute path of a folder of a task's, such as '/app'")
    return short


def _digest(folder: Path) -> str:
    """Of all that a build could use."""
    if not (folder / "Dockerfile").is_file():
        raise ConfigError(f"{str(folder)!r} has no Dockerfile")
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        found.update(f"{file.relative_to(folder).as_posix()}\0{file.lstat().st_mode}\0".encode())
        content = os.readlink(file).encode() if file.is_symlink() else file.read_bytes() if file.is_file() else b""
        found.update(hashlib.sha256(content).digest())
    return found.hexdigest()[:32]
