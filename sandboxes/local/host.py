"""Which files of this machine the jail shows: interpreter, shared libraries, and tools of the languages."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import LANGUAGES, Language
from sandboxes.programs import ROWS, check_language

_LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32")
# Links into /usr on most systems, which are made anew in the jail; folders on others, which are shown.
_ROOT_LINKS = ("/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")
_TOOL_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/include", "/usr/libexec", "/etc/alternatives")
_SHARED = ("/usr/share/zoneinfo", "/usr/share/nodejs", "/usr/share/perl", "/usr/share/perl5", "/usr/share/awk")
_LIBRARY_CACHE = "/etc/ld.so.cache"
PACKAGES = "/packages"
LIBRARIES = "/packages/libraries"
_SHOWN_LIBRARIES = ("numpy",)
"""Installed packages that programs may import, where the jail has a file system of its own: answers expect them."""
# Paths that the jail fills itself, so nothing of this machine may be shown there.
_OURS = ("/packages", "/work", "/tmp", "/dev", "/proc", "/sys", "/etc", "/.box", "/.old", "/.empty")

# Without a name server in resolv.conf the resolver asks 127.0.0.1, where nothing listens: look-ups fail at once.
_TEXTS = {
    "/etc/passwd": "root:x:0:0:root:/:/bin/false\nsandbox:x:1000:1000:sandbox:/work:/bin/bash\n",
    "/etc/group": "root:x:0:\nsandbox:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/resolv.conf": "",
}
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/var/tmp": "/tmp",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The tree of the jail; see ``inside.jail``."""

    binds: tuple[tuple[str, str], ...]
    """Source and target of each bind mount."""
    masked: tuple[str, ...]
    links: Mapping[str, str]
    texts: Mapping[str, str]
    packages: tuple[str, ...]
    """``python_paths`` as programs see them."""
    path: str
    """``PATH`` of programs."""
    tools: Mapping[Language, str]
    """Language -> its interpreter or compiler."""


def installed_languages() -> tuple[Language, ...]:
    """Languages whose interpreter or compiler is installed on this machine."""
    return tuple(name for name in LANGUAGES if name == "python" or _look_for(name)[0])


def view_of_host(languages: Sequence[Language], python_paths: Sequence[str]) -> View:
    """Decide what to show. Raises :class:`ConfigError` for a path or language that this machine does not have."""
    tools: dict[Language, str] = {name: find_tool(name) for name in languages if name != "python"}
    _check_paths(python_paths)
    packages = [(path, f"{PACKAGES}/{number}") for number, path in enumerate(python_paths)]
    libraries = [(path, f"{LIBRARIES}/{os.path.basename(path)}") for path in _library_folders()]
    # Those that this machine does not have are left out below.
    binds = [*interpreter_paths(), *(path for path in _LIBRARIES if not os.path.islink(path)), *_SHARED, _LIBRARY_CACHE]
    links = dict(_LINKS)
    for name in _ROOT_LINKS:
        if os.path.islink(name):
            links[name] = os.readlink(name)
        elif tools or name.startswith("/lib"):
            binds.append(name)
    if tools:
        binds += _TOOL_FOLDERS
    for language, tool in tools.items():
        real = os.path.realpath(tool)
        binds += {tool, real, *([os.path.dirname(os.path.dirname(real))] if ROWS[language].home else [])}
        binds += {path for pattern in ROWS[language].configuration for path in glob.glob(pattern)}
    shown = _without_nested(path for path in binds if os.path.exists(path))
    for path in shown:
        if not path.startswith("/etc/") and _inside(path, _OURS):
            raise SandboxError(
                f"{path} cannot be shown in the jail: programs find their own {path.split('/')[1]!r} there; "
                "use a Python that is installed elsewhere"
            )
    return View(
        binds=(*((path, path) for path in shown), *packages, *libraries),
        masked=tuple(sorted(_site_packages(shown))),
        # A link below a shown folder is there already, and that folder is read-only when links are made.
        links={link: target for link, target in links.items() if not _inside(link, shown)},
        texts=_TEXTS,
        packages=(*(target for _, target in packages), *([LIBRARIES] if libraries else [])),
        path=":".join(dict.fromkeys([os.path.dirname(executable()), "/usr/local/bin", "/usr/bin", "/bin"])),
        tools=tools,
    )


def executable() -> str:
    """The interpreter itself, not that of a virtual environment."""
    return str(getattr(sys, "_base_executable", sys.executable))


def interpreter_paths() -> list[str]:
    """Folders and files of the Python that runs us."""
    prefix, modules = sys.base_prefix, [_STANDARD["stdlib"], _STANDARD["platstdlib"]]
    if prefix == "/usr":
        return [executable(), os.path.realpath(executable()), *modules]
    return [f"{prefix}/bin", f"{prefix}/lib", f"{prefix}/lib64", *modules]


def readable_parts(view: View) -> list[str]:
    """What is shown, as paths of this machine that may each be read recursively."""
    parts: list[str] = []
    for source, _ in view.binds:
        parts += _without(source, view.masked)
    return parts


def _without(path: str, masked: Sequence[str]) -> list[str]:
    """``path``, or what is in it where something in it is masked."""
    if path in masked:
        return []
    if not any(hidden.startswith(path + "/") for hidden in masked):
        return [path]
    return [part for name in sorted(os.listdir(path)) for part in _without(f"{path}/{name}", masked)]


def readable_by_all(path: str) -> bool:
    """Whether every user of this machine may read and execute the path, and traverse its parent folders."""
    path = os.path.realpath(path)
    folders = all(parent.stat().st_mode & 0o001 for parent in Path(path).parents)
    return folders and os.stat(path).st_mode & 0o005 == 0o005


def _site_packages(shown: Sequence[str]) -> set[str]:
    """Folders of installed packages inside the shown standard library; they are hidden from programs."""
    paths = [*(_STANDARD[key] for key in _SITES), *(p for pattern in _SITE_PATTERNS for p in glob.glob(pattern))]
    return {p for p in paths if os.path.isdir(p) and _inside(p, shown)}


_STANDARD = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix})
"""Folders of the Python that a virtual environment is made of."""
_SITES = ("purelib", "platlib")
# Packages of the distribution's own Pythons, which lie below folders that are shown.
_SITE_PATTERNS = ("/usr/lib*/python*/site-packages", "/usr/lib*/python*/dist-packages")


def find_tool(language: Language) -> str:
    """Its interpreter or compiler. Raises :class:`ConfigError` where there is none."""
    row = check_language(language)
    found, lacking = _look_for(language)
    if not found:
        raise ConfigError(
            f"language {language!r} needs {lacking}, which is not installed here "
            f"(on Debian and Ubuntu: apt install {row.package}); installed: {', '.join(installed_languages())}"
        )
    return found


def _look_for(language: Language) -> tuple[str, str]:
    """Its interpreter or compiler, or nothing and what is lacking."""
    row = ROWS[language]
    for name in (row.tool, *row.needs):
        if shutil.which(name) is None:
            return "", repr(name)
    found = str(shutil.which(row.tool))
    if language == "rust" and os.path.basename(os.path.realpath(found)) == "rustup":
        # A proxy, which would look for the toolchain in the home folder of the program's user.
        asked = subprocess.run([found, "--print", "sysroot"], capture_output=True, text=True, timeout=60, check=False)
        found = f"{asked.stdout.strip()}/bin/rustc"
        if asked.returncode != 0 or not os.path.exists(found):
            return "", "a toolchain of rustup ('rustup default stable')"
    return found, ""


def _check_paths(paths: Sequence[str]) -> None:
    for path in paths:
        if not os.path.isabs(path) or os.path.normpath(path) != path or not os.path.isdir(path):
            raise ConfigError(f"python_paths: {path!r} is not an absolute, normalised path of an existing folder")
        if os.geteuid() == 0 and os.stat(path).st_mode & 0o005 != 0o005:
            raise ConfigError(
                f"python_paths: {path!r} cannot be read by other users, as which programs run: chmod o+rx"
            )


def _library_folders() -> list[str]:
    sites = dict.fromkeys(sysconfig.get_paths()[key] for key in _SITES)
    names = [part for name in _SHOWN_LIBRARIES for part in (name, f"{name}.libs")]
    return [path for site in sites for name in names if os.path.isdir(path := f"{site}/{name}")]


def _without_nested(paths: Iterable[str]) -> tuple[str, ...]:
    """Without duplicates and without paths below another of them; shorter first."""
    kept: list[str] = []
    # A folder's path is shorter than those below it, so it comes first.
    for path in sorted(dict.fromkeys(paths), key=len):
        if not _inside(path, kept):
            kept.append(path)
    return tuple(kept)


def _inside(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)
