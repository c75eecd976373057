"""Settings of the service: address, numbers of workers, timeouts and limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from roll_envs.errors import ConfigError
from roll_envs.settings import Seconds

MIB = 1 << 20
LEAST_TOKEN_CHARS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """All settings. Sizes are in bytes unless the name says MB, times in seconds. The command checks what the types
    allow (:func:`~roll_envs.settings.checked_arguments`)."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    slots: PositiveInt = 4
    """Programs that run at one time."""
    queue: NonNegativeInt = 1024
    """Requests that may wait for a slot; one more is refused with 429."""
    queue_timeout_s: Seconds = 8.0
    """Longest wait for a slot on the SandboxFusion routes. verl gives up ``compile_timeout + run_timeout + 10`` seconds
    after it asked, and asks again only after a 504, so this stays below 10."""
    full_status: Literal[429, 504] = 429
    """What the SandboxFusion routes answer when the queue is full: 429, or 504 for clients that only repeat that."""
    sessions: NonNegativeInt = 16
    """Sessions that may be open at one time, each with a worker of its own."""
    session_idle_s: Seconds = 600.0
    attempts: PositiveInt = 2
    """How often a request is attempted in all; after an infrastructure failure another worker is used."""
    max_body_bytes: PositiveInt = 32 * MIB
    max_held_bytes: PositiveInt = 512 * MIB
    """Total size of the bodies of requests in progress; a request beyond it is refused with 429."""
    max_code_bytes: PositiveInt = 2 * MIB
    max_files: PositiveInt = 256
    max_output_bytes: PositiveInt = 8 * MIB
    """Of stdout and of stderr each. SandboxFusion's requests have no such limit and get this one."""
    max_run_s: Seconds = 120.0
    max_request_s: Seconds = 600.0
    """Longest whole request with its wait, all cells or all test cases."""
    max_memory_mb: PositiveInt = 4096
    default_memory_mb: PositiveInt = 1024
    """For SandboxFusion's requests that name no limit."""
    max_processes: PositiveInt = 256
    max_connections: PositiveInt = 4096
    max_cases: PositiveInt = 1000
    """Cells of a notebook, or test cases, in one request."""
    header_timeout_s: Seconds = 10.0
    body_timeout_s: Seconds = 30.0
    write_timeout_s: Seconds = 60.0
    keep_alive_s: Seconds = 75.0
    drain_timeout_s: Seconds = 60.0
    cancel_grace_s: NonNegativeFloat = 1.0
    """How long a program whose client has gone may still run before its worker is ended and replaced."""
    tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.default_memory_mb > self.max_memory_mb:
            raise ConfigError(
                f"default_memory_mb ({self.default_memory_mb}) must not be above max_memory_mb ({self.max_memory_mb})"
            )
        if not self.tokens and not is_loopback(self.host):
            raise ConfigError(
                f"the service runs programs for whoever can reach it, and {self.host} can be reached from other "
                "machines: give --token-file FILE (one token a line), or listen on 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether ``host`` can only be reached from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens of a file, one a line; empty lines and lines that begin with ``#`` are skipped. More than one is
    accepted, so that they can be changed without a pause. Raises :class:`ConfigError`; no message shows a token."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {error}") from error
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    tokens = {number: line for number, line in lines if line and not line.startswith("#")}
    if not tokens:
        raise ConfigError(f"the token file {path} holds no token; write one of {LEAST_TOKEN_CHARS} characters or more")
    for number, token in tokens.items():
        if len(token) < LEAST_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError(
                f"line {number} of the token file {path} is no token: {LEAST_TOKEN_CHARS} or more printable ASCII "
                'characters without spaces, such as from `python -c "import secrets; print(secrets.token_urlsafe())"`'
            )
    return tuple(tokens.values())
