"""An image made from this machine's own Python, so that tests of the Docker sandbox need no registry."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
from collections.abc import Sequence
from typing import Any

from docker_host_files import PREFIX, host_files

from roll_envs.sandbox import Language
from sandboxes.docker.engine import Engine

_TEXTS = {
    "/etc/passwd": "root:x:0:0:root:/:/bin/false\nsandbox:x:65534:65534:sandbox:/tmp/work:/bin/sh\n",
    "/etc/group": "root:x:0:\nsandbox:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_EMPTY = ("/tmp", "/dev", "/proc", "/sys", "/run", "/var/tmp", "/etc")
_ROOT_LINKS = ("/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")


def build_host_image(*, tag: str, languages: Sequence[Language] = ("python", "bash"), engine: str | None = None) -> str:
    """Import an image of one layer made of this machine's Python and tools; returns its id.

    Nothing is downloaded. Installed packages are left out; for those, make an image of your own. Raises
    :class:`ConfigError` for a language that this machine lacks, :class:`SandboxError` without an engine.
    """
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
        return _import(Engine(engine), archive, tag, changes)


def _import(engine: Engine, archive: Any, tag: str, changes: list[str]) -> str:
    """Make an image of one layer from a tar file, in place of that of the same name; returns its id."""
    with engine.client() as client:
        old = {image.id for image in client.images.list(name=tag)}
        repository, _, version = tag.partition(":")
        client.api.import_image_from_data(archive, repository=repository, tag=version or "latest", changes=changes)
        new = str(client.images.get(tag).id)
        for image in old - {new}:
            with contextlib.suppress(engine._sdk.errors.APIError):  # a container still uses it
                client.images.remove(image)
        return new


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
