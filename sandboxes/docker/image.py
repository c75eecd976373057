"""Images that need no registry: of this machine's own Python, and of folders with a Dockerfile."""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import shlex
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from roll_envs.errors import ConfigError
from roll_envs.sandbox import Language
from sandboxes.docker.engine import HOST_IMAGE, Engine
from sandboxes.docker.host_files import PREFIX, host_files
from sandboxes.docker.inside.files import FOLDER, START

TASK_IMAGE = "roll-envs-task"
"""Name of images that are built from folders; each has the digest of what it is made of as its tag."""
_TEXTS = {
    "/etc/passwd": "root:x:0:0:root:/:/bin/false\nsandbox:x:65534:65534:sandbox:/tmp/work:/bin/sh\n",
    "/etc/group": "root:x:0:\nsandbox:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_EMPTY = ("/tmp", "/dev", "/proc", "/sys", "/run", "/var/tmp", "/etc")
_ROOT_LINKS = ("/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")


def build_host_image(
    *, tag: str = HOST_IMAGE, languages: Sequence[Language] = ("python", "bash"), engine: str | None = None
) -> str:
    """Import an image of one layer made of this machine's Python and tools; returns its id.

    Nothing is downloaded. Installed packages are left out; for those, make an image of your own. Raises
    :class:`ConfigError` for a language that this machine lacks, :class:`SandboxError` without an engine.
    """
    target = Engine(engine)
    files = host_files(languages)
    with tempfile.TemporaryFile() as archive:
        _write(archive, files)
        archive.seek(0)
        changes = [
            "USER 65534:65534",
            "WORKDIR /",
            f"ENV PATH={PREFIX}/bin:/usr/bin:/bin",
            f"ENV PYTHONHOME={PREFIX}",
        ]
        return target.import_image(archive, tag, changes)


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


def _write(archive: io.BufferedRandom | tempfile._TemporaryFileWrapper[bytes] | object, files: dict[str, str]) -> None:
    links = {name: os.readlink(name) for name in _ROOT_LINKS if os.path.islink(name)}
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:  # type: ignore[call-overload]
        folders = set(_EMPTY)
        for place in (*files, *_TEXTS):
            while (place := os.path.dirname(place)) != "/":
                folders.add(place)
        folders |= {os.path.realpath(name) for name in links}
        for folder in sorted(folders):
            if folder not in links:
                tar.addfile(_entry(folder, tarfile.DIRTYPE, 0o1777 if folder.endswith("/tmp") else 0o755))
        for name, target in links.items():
            link = _entry(name, tarfile.SYMTYPE, 0o777)
            # Relative to /, where all of these links are.
            link.linkname = target.lstrip("/")
            tar.addfile(link)
        for place, text in _TEXTS.items():
            entry = _entry(place, tarfile.REGTYPE, 0o644)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        for place, path in sorted(files.items()):
            _add_file(tar, place, path)


def _entry(place: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    # Owner and group stay 0 (root), whoever builds the image.
    entry = tarfile.TarInfo(place.lstrip("/"))
    entry.type, entry.mode = kind, mode
    return entry


def _add_file(tar: tarfile.TarFile, place: str, path: str) -> None:
    with open(path, "rb") as content:
        status = os.fstat(content.fileno())
        entry = _entry(place, tarfile.REGTYPE, 0o755 if status.st_mode & 0o111 else 0o644)
        entry.size = status.st_size
        entry.mtime = int(status.st_mtime)  # .pyc files are valid only for the modification time of their source
        tar.addfile(entry, content)
