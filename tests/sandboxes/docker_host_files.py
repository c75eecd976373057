"""Which files of this machine make an image: the running Python, and tools, with the libraries that they load."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from roll_envs.errors import ConfigError
from roll_envs.sandbox import Language
from sandboxes.programs import check_language

PREFIX = "/usr/local"
"""Prefix of Python in the image; PYTHONHOME points to it, wherever Python is installed on this machine."""

_NOT_NEEDED = frozenset({"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages",
                         "dist-packages"})  # fmt: skip
_TOOLS: dict[str, tuple[str, ...]] = {
    "python": (),
    "bash": tuple(
        "bash sh awk base64 basename bc cat chmod cmp comm cp cut date diff dirname du echo env expr false find fold "
        "grep gunzip gzip head id join ln ls md5sum mkdir mktemp mv nl nproc od paste printf pwd readlink realpath "
        "rev rm rmdir sed seq sha256sum shuf sleep sort split stat sum tac tail tar tee test timeout touch tr true "
        "truncate tsort uname uniq wc whoami xargs yes".split()
    ),
    "javascript": ("node",),
    "cpp": ("g++", "as", "ld"),
}
_FOLDERS: dict[str, tuple[str, ...]] = {
    "python": ("/usr/share/zoneinfo", "/usr/lib/locale/C.utf8"),
    "bash": (),
    "javascript": ("/usr/share/nodejs/acorn", "/usr/share/nodejs/cjs-module-lexer", "/usr/share/nodejs/undici"),
    "cpp": (),
}


def host_files(languages: Sequence[Language]) -> dict[str, str]:
    """Path in the image -> file here, for what these languages need; links are followed.

    Raises :class:`ConfigError` for a language that this machine lacks.
    """
    for language in languages:
        needed = check_language(language).tool
        if language not in _TOOLS:
            raise ConfigError(
                f"language {language!r}: an image from this machine's files has {', '.join(_TOOLS)}; for others give "
                f"one of your own that has {needed!r}"
            )
        if language != "python" and shutil.which(needed) is None:
            raise ConfigError(f"language {language!r} needs {needed!r}, which is not installed on this machine")
    wanted: dict[Language, None] = dict.fromkeys(["python", *languages])
    files = dict(_python())
    for language in wanted:
        tools = [path for name in _TOOLS[language] if (path := shutil.which(name))]
        files |= {f"/usr/bin/{os.path.basename(path)}": path for path in tools}
        for folder in _FOLDERS[language]:
            files |= _all_below(folder)
    if "cpp" in wanted:
        files |= _compiler()
    files |= _libraries(path for path in files.values() if _is_machine_code(path))
    return files


def _python() -> Iterator[tuple[str, str]]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    for name in (version, "python3", "python"):
        yield f"{PREFIX}/bin/{name}", program
    # /usr/bin/python3 is what scripts name; it finds its library through PYTHONHOME, see the image's environment.
    yield "/usr/bin/python3", program
    paths = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix})
    cache = f".{sys.implementation.cache_tag}.pyc"
    for folder in dict.fromkeys((paths["stdlib"], paths["platstdlib"])):
        for here, names, found in os.walk(folder):
            # config-*: the static library, for embedding Python into other programs.
            names[:] = [name for name in names if name not in _NOT_NEEDED and not name.startswith("config-")]
            for name in found:
                if not name.endswith(".pyc") or name.endswith(cache):
                    path = os.path.join(here, name)
                    yield f"{PREFIX}/lib/{version}/{os.path.relpath(path, folder)}", path


def _all_below(folder: str) -> dict[str, str]:
    return {
        os.path.join(_real_folder(here), name): os.path.join(here, name)
        for here, _, names in os.walk(folder)
        for name in names
        if os.path.isfile(os.path.join(here, name))
    }


def _compiler() -> dict[str, str]:
    """Files that ``g++`` starts, links and includes, as reported by its ``-print-*`` and ``-M`` options."""
    own = os.path.dirname(os.path.realpath(_ask_compiler("-print-prog-name=cc1plus")))
    files = {os.path.join(own, name): os.path.join(own, name) for name in ("cc1plus", "collect2", "lto-wrapper",
                                                                          "liblto_plugin.so")}  # fmt: skip
    linked = (
        "crt1.o Scrt1.o crti.o crtn.o crtbegin.o crtbeginS.o crtend.o crtendS.o libgcc.a libgcc_s.so libgcc_s.so.1 "
    )
    linked += "libstdc++.so libstdc++.a libm.so libm.so.6 libmvec.so libmvec.so.1 libc.so libc.so.6 libc_nonshared.a "
    linked += "libpthread.a libpthread.so libdl.a librt.a"
    found = [_ask_compiler(f"-print-file-name={name}") for name in linked.split()]
    files |= {_real_place(path): path for path in found if os.path.isabs(path)}
    # -M prints a rule of make: a target, then every header that was read, with lines continued by a backslash.
    headers = _ask_compiler("-M", "-O2", "-x", "c++", "-", source=_HEADERS).replace("\\\n", " ").split()[1:]
    files |= {_real_place(path): path for path in headers if path != "-"}
    standard = next(path for path in headers if path.endswith("/bits/stdc++.h"))
    types = next(path for path in headers if path.endswith("/bits/types.h"))
    vector = next(path for path in headers if path.endswith("/vector"))
    # Which headers these include depends on options: so all of the C++ library, and the inner ones of the C library.
    for folder in (_up(standard, 2), _up(types, 1), _up(vector, 1)):
        files |= _all_below(folder)
    return {place: path for place, path in files.items() if os.path.isfile(path)}


def _up(path: str, levels: int) -> str:
    return str(Path(path).resolve().parents[levels - 1])


_HEADERS = "\n".join(
    f"#if __has_include(<{name}>)\n#include <{name}>\n#endif"
    for name in (
        "bits/stdc++.h ext/pb_ds/assoc_container.hpp ext/pb_ds/tree_policy.hpp immintrin.h pthread.h semaphore.h "
        "unistd.h fcntl.h dirent.h poll.h sys/types.h sys/stat.h sys/time.h sys/resource.h sys/mman.h sys/wait.h "
        "sys/socket.h sys/un.h sys/epoll.h sys/select.h netinet/in.h arpa/inet.h netdb.h dlfcn.h sched.h"
    ).split()
)


def _ask_compiler(*arguments: str, source: str = "") -> str:
    done = subprocess.run(["g++", *arguments], input=source, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise ConfigError(f"g++ {' '.join(arguments)} failed on this machine: {done.stderr[-500:]}")
    return done.stdout.strip()


def _is_machine_code(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _libraries(programs: Iterable[str]) -> dict[str, str]:
    """The shared libraries that these load, and the loader, each at its own place."""
    found: set[str] = set()
    paths = sorted({os.path.realpath(path) for path in programs})
    for start in range(0, len(paths), 200):
        done = subprocess.run(
            ["ldd", *paths[start : start + 200]], capture_output=True, text=True, timeout=120, check=False
        )
        # Lines are "libm.so.6 => /lib/libm.so.6 (0x...)"; that of the loader has no arrow.
        found |= set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE))
    return {_real_place(path): path for path in found}


def _real_place(path: str) -> str:
    """Its own name in its real folder: ``/lib`` may be a link to ``/usr/lib``."""
    return os.path.join(_real_folder(os.path.dirname(path)), os.path.basename(path))


def _real_folder(folder: str) -> str:
    return str(Path(folder).resolve())
