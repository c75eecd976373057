"""The sandbox of the tests of the code verifier."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roll_envs.errors import RollError
from roll_envs.sandbox import Sandbox, make_sandbox


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    try:
        sandbox = make_sandbox("local", slots=2)
    except (RollError, ImportError) as error:
        pytest.skip(f"the local sandbox cannot be had here: {error}")
    with sandbox:
        yield sandbox
