"""Local sandboxes for tests, of whatever strength this machine can give; skipped where it can give none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from roll_envs.errors import SandboxError
from sandboxes.local import LocalSandbox

__all__ = ["local_sandbox"]


@contextlib.contextmanager
def local_sandbox(**kwargs: Any) -> Iterator[LocalSandbox]:
    """A :class:`LocalSandbox` that is closed in the end."""
    if not _tried:
        try:
            LocalSandbox(slots=1, minimum_isolation="no-cgroup").close()
        except SandboxError as error:
            _tried.append(str(error))
        else:
            _tried.append("")
    if _tried[0]:
        pytest.skip(f"this machine cannot make the local sandbox: {_tried[0]}")
    with LocalSandbox(**{"minimum_isolation": "no-cgroup", **kwargs}) as made:
        yield made


_tried: list[str] = []
"""Why it cannot be made here, once that is known; empty text where it can."""


def without_marks(stderr: bytes) -> str:
    """A traceback without the marks below its lines, of which each release of Python sets others."""
    return "".join(line for line in stderr.decode().splitlines(keepends=True) if line.strip("~^ \n"))
