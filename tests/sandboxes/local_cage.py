"""Local sandboxes for tests, of whatever strength this machine can give; skipped where it can give none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from roll_envs.errors import SandboxError
from sandboxes.local import LocalSandbox

__all__ = ["cage"]


@contextlib.contextmanager
def cage(**kwargs: Any) -> Iterator[LocalSandbox]:
    """A :class:`LocalSandbox` that is closed in the end."""
    try:
        made = LocalSandbox(**{"weakest_tier": "no-cgroup", **kwargs})
    except SandboxError as error:
        pytest.skip(f"this machine cannot make the local cage: {error}")
    with made:
        yield made
