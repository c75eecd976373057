"""What the kernel reports inside the container about its isolation, and which languages the image has."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from typing import Any

__all__ = ["gather"]

TOOLS = ("bash", "g++", "node")
_NOT_OF_THE_IMAGE = ("HOSTNAME", "HOME", "PWD", "OLDPWD", "SHLVL", "_")


def gather() -> dict[str, Any]:
    """Facts as the kernel reports them; the host decides in ``isolation`` what they mean."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    with open("/proc/net/dev", encoding="ascii") as file:
        networks = [line.split(":")[0].strip() for line in file if ":" in line]
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "uid": os.getuid(),
        "pid": os.getpid(),
        "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
        "no_new_privileges": status.get("NoNewPrivs") == "1",
        "seccomp_filters": int(status.get("Seccomp_filters", "1" if status.get("Seccomp") == "2" else "0")),
        "networks": networks,
        "read_only": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
        "environ": {k: v for k, v in os.environ.items() if k not in _NOT_OF_THE_IMAGE},
        "tools": {name: path for name in TOOLS if (path := shutil.which(name))},
    }
