"""Files, environment, current folder and random seeds that tests share with the answer, though each has its own jail.

Both sides have a folder of the same name, with the current and the temporary folder in it. Before each message what has
changed in it goes along, and its receiver makes the same changes. The rest goes from the tests to the answer alone.
Nothing of the answer becomes code of the tests: what comes is a plain file or folder below the shared one, which no
import finds, with a size, a time and a mode; tests that run what a file holds are refused (see ``reading``).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import stat
import sys
import tempfile

# Tests may replace these, or have them replaced, while others use them.
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from os import chdir, chmod, fdopen, getcwd, lstat, makedirs, mkdir, open, rmdir, scandir, unlink, utime
from os.path import realpath
from typing import Any

from roll_envs.verifiers.code.inside.patches import Patches

PLACE = "/tmp"
"""Where each jail has a folder that programs can write to."""
_MOST_BYTES, _MOST_FILES, _MOST_NAME = 2 << 20, 2000, 400
"""Of the changes in one message."""
_READ_BY_LIBRARIES = frozenset({"matplotlibrc"})
"""Settings that a library of the tests would read in the current folder."""


class TooLarge(Exception):
    """More changes of files, or larger ones, than one message takes."""


class Files:
    """One side's folder, and what the other side has of it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: dict[str, tuple[int, ...]] = {}
        self.moved = False
        """Whether any side has ever changed something."""
        for name in ("work", "tmp"):
            makedirs(f"{root}/{name}", exist_ok=True)
        self._known = dict(self._found())

    def forget(self) -> None:
        """The other side has lost everything."""
        self._known = {}

    def changes(self) -> dict[str, Any]:
        """What the other side does not have. Raises :class:`TooLarge`."""
        found = dict(self._found())
        new = [path for path, stamp in found.items() if stamp != self._known.get(path)]
        gone = [path for path, stamp in self._known.items() if bool(stamp) != bool(found.get(path, not stamp))]
        if len(new) + len(gone) > _MOST_FILES or sum(sum(found[path][1:2]) for path in new) > _MOST_BYTES:
            raise TooLarge
        self._known = found
        self.moved |= bool(new or gone)
        files: list[list[Any]] = []
        for path in new:
            with contextlib.suppress(OSError):  # it has ended since, or is not to be read
                files += [[path, *self._read(path)]] if found[path] else []
        return {"folders": [path for path in new if not found[path]], "files": files, "gone": gone}

    def _found(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Path and stamp of each plain file, and of each folder, whose stamp is empty, before what is in it."""
        folders = [""]
        for folder in folders:  # it grows
            entries: list[os.DirEntry[str]] = []
            with contextlib.suppress(OSError), scandir(f"{self._root}/{folder}") as found:
                entries = [*found]
            for entry in entries:
                with contextlib.suppress(OSError):
                    facts, path = entry.stat(follow_symlinks=False), f"{folder}{entry.name}"
                    if stat.S_ISDIR(facts.st_mode):
                        yield path, ()
                        folders.append(f"{path}/")
                    elif stat.S_ISREG(facts.st_mode):
                        yield path, (facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)

    def _read(self, path: str) -> list[Any]:
        """Mode, time and content."""
        fd = open(f"{self._root}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with fdopen(fd, "rb") as file:
            facts, content = os.fstat(fd), file.read(_MOST_BYTES)
        return [stat.S_IMODE(facts.st_mode), facts.st_mtime_ns, b64encode(content).decode()]

    def take(self, data: Any) -> None:
        """Make the changes of the other side. Raises :class:`ValueError`, :class:`OSError` and their like for what is
        none, or leads out of the folder."""
        folders, files, gone = data["folders"], data["files"], data["gone"]
        if not (folders or files or gone):
            return
        self.moved = True
        if len(folders) + len(files) + len(gone) > _MOST_FILES:
            raise ValueError("too many changes")
        for path in reversed(gone):
            where = self._path(path)
            with contextlib.suppress(OSError):  # a folder may hold what is not shared
                (rmdir if stat.S_ISDIR(lstat(where).st_mode) else unlink)(where)
        for path in folders:
            with contextlib.suppress(FileExistsError):
                mkdir(self._path(path))
        for path, mode, time_ns, content in files:
            if path.rpartition("/")[2] not in _READ_BY_LIBRARIES:
                self._write(self._path(path), int(mode) & 0o777 | 0o600, int(time_ns), b64decode(content))
        self._known = dict(self._found())

    def _path(self, path: str) -> str:
        where = f"{self._root}/{path}"
        parts = path.split("/")
        if len(path) > _MOST_NAME or "\0" in path or {"", ".", ".."} & {*parts}:
            raise ValueError("not a path in the shared folder")
        for end, letter in enumerate(path):
            if letter == "/" and not stat.S_ISDIR(lstat(f"{self._root}/{path[:end]}").st_mode):
                raise ValueError("not in a folder")  # but behind a link
        return where

    def _write(self, where: str, mode: int, time_ns: int, content: bytes) -> None:
        """In place, since it may be open; but not through a link."""
        with contextlib.suppress(FileNotFoundError):
            facts = lstat(where)
            if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
                unlink(where)
        fd = open(where, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with fdopen(fd, "wb") as file:
            file.write(content)
        chmod(where, mode)
        utime(where, ns=(time_ns, time_ns))


class _Empty:
    def find_spec(self, name: str, target: Any = None) -> None:
        return


class State:
    """What tests have set of their process, and its files, since they last told; ``names``: those by which they do."""

    def __init__(self, names: frozenset[str], patches: Patches) -> None:
        self._environ = self._known = {**os.environ}
        self._folder, self._patches = "", patches
        self._seeded, self._ever_seeded = set[str](), set[str]()
        self._root = tempfile.mkdtemp(dir=PLACE)
        self.files = Files(self._root)
        for name in _STATES if "seed" in names else ():
            if name.partition(".")[0] in sys.modules:  # numpy loads its part at first use
                library: Any = importlib.import_module(name)
                library.seed = self._noted(name, library.seed)
        self._enter(self._root)

    def _noted(self, library: str, seed: Callable[..., None]) -> Callable[..., None]:
        def seeded(*args: Any, **named: Any) -> None:
            self._seeded.add(library)
            self._ever_seeded.add(library)
            seed(*args, **named)

        return seeded

    def _enter(self, root: str) -> None:
        """Go into the folder. Nothing in it, or in the one before, can be imported from now on."""
        places = (root, getcwd())

        def finder(path: str) -> _Empty:
            if not f"{realpath(path)}/".startswith(tuple(f"{place}/" for place in places)):
                raise ImportError
            return _Empty()

        sys.path_hooks.insert(0, finder)
        for place in places:
            sys.path_importer_cache.pop(place, None)
        chdir(f"{root}/work")
        os.environ["TMPDIR"] = tempfile.tempdir = f"{root}/tmp"

    def forget(self) -> None:
        """A new jail has nothing of it."""
        self.files.forget()
        self._patches.forget()
        self._known, self._folder, self._seeded = self._environ, "", {*self._ever_seeded}

    def left(self) -> bool:
        """Whether files have been written, which no other tests may find."""
        try:
            for name in ("/work", "/tmp", ""):
                rmdir(self._root + name)
        except OSError:  # what they have written since the last call
            return True
        return self.files.moved

    def told(self, encode: Callable[[Any], Any]) -> dict[str, Any]:
        """For the answer. Raises :class:`TooLarge`."""
        news = {"root": self._root, "changes": self.files.changes(), "patches": self._patches.news(encode)}
        # That of pytest tells the arguments of the test, with what is expected.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        gone = dict.fromkeys(self._known.keys() - environ.keys())
        changed = {name: value for name, value in environ.items() if self._known.get(name) != value}
        if gone or changed:
            news["environ"] = gone | changed
        with contextlib.suppress(FileNotFoundError):
            if (folder := getcwd()) != self._folder:
                news["folder"] = self._folder = folder
        news["seeds"] = {name: encode(getattr(sys.modules[name], f"get{_STATES[name]}")()) for name in self._seeded}
        self._known, self._seeded = environ, set()
        return news


_STATES = {"random": "state", "numpy.random": "_state"}
"""Libraries with seeds, and how what reads and sets the state of their generator is called, behind get and set."""


def obey(news: dict[str, Any], decode: Callable[[Any], Any]) -> None:
    """Make this process as the tests have set theirs."""
    for name, value in news.get("environ", {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
            tempfile.tempdir = value if name == "TMPDIR" else tempfile.tempdir
    with contextlib.suppress(OSError):
        chdir(news.get("folder", "."))
    for library, state in news["seeds"].items():
        with contextlib.suppress(ImportError):
            getattr(importlib.import_module(library), f"set{_STATES[library]}")(decode(state))
