"""For tests of the Docker sandbox: an engine with the image of this machine's Python, or a reason to skip."""

from __future__ import annotations

import functools
import os
import textwrap
from typing import Any

import pytest
from docker_host_files import host_files
from docker_image import build_host_image

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import Limits, Program, RunResult
from sandboxes.docker import DockerSandbox
from sandboxes.docker.engine import LABEL, Engine

IMAGE = "roll-envs-test"
LANGUAGES = ("python", "bash")


@functools.cache
def reason_to_skip() -> str | None:
    """Why there is no engine; where there is one, the image is built."""
    if os.environ.get("ROLL_NO_DOCKER"):
        return os.environ["ROLL_NO_DOCKER"]
    pytest.importorskip("docker", reason="needs the optional part 'docker'")
    try:
        build_host_image(tag=IMAGE, languages=(*LANGUAGES, *_others()))
    except SandboxError as error:
        return f"{error} (make test-docker starts one)"
    return None


def _others() -> list[Any]:
    """Languages that this machine has and not every machine does."""
    found = []
    for language in ("cpp", "javascript"):
        try:
            host_files([language])
        except ConfigError:
            continue
        found.append(language)
    return found


def open_sandbox(**options: Any) -> DockerSandbox:
    """A sandbox of that image; the test is skipped where there is no engine."""
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    return DockerSandbox(**{"image": IMAGE, "slots": 1, **options})


def container_ids(*, running: bool = False) -> set[str]:
    """Those of any sandbox on the engine."""
    with Engine().client() as client:
        found = client.containers.list(all=not running, filters={"label": f"{LABEL}=1"}, ignore_removed=True)
        return {container.id for container in found}


def kill(container_id: str) -> None:
    """From outside, as an administrator would."""
    with Engine().client() as client:
        client.api.kill(container_id)


def exit_code(container_id: str, timeout_s: float) -> int:
    """Wait for the end of a container."""
    with Engine().client() as client:
        return int(client.api.wait(container_id, timeout=timeout_s)["StatusCode"])


def workers(sandbox: DockerSandbox) -> set[str]:
    """Ids of the containers that a sandbox has now."""
    return {worker.id for worker in (*sandbox._pool._idle, *sandbox._pool._busy)}


def run_python(sandbox: DockerSandbox, source: str, *, limits: Limits | None = None, **options: Any) -> RunResult:
    """Run an indented text."""
    return sandbox.run(Program(source=textwrap.dedent(source), **options), limits=limits)
