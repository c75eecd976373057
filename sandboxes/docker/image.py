"""Images of tasks: built of folders with a Dockerfile, and with folders that programs may write to."""

from __future__ import annotations

import hashlib
import os
import posixpath
import shlex
from collections.abc import Sequence
from pathlib import Path

from roll_envs.errors import ConfigError
from sandboxes.docker.engine import Engine
from sandboxes.docker.inside.pid1 import FOLDER, START

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
