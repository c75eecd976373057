"""``roll-sandbox serve``: the code-reward service, from the command line.

roll-sandbox serve
roll-sandbox serve --host 0.0.0.0 --token-file tokens.txt --slots 8
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from roll_envs.errors import ConfigError, MissingExtraError, RollError
from roll_envs.sandbox import Sandbox, make_sandbox
from sandboxes.service.settings import MIB, Settings, read_tokens


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Option:
    """A number on the command line for a field of :class:`Settings`; the value is multiplied by ``unit``."""

    field: str
    kind: type[int] | type[float]
    metavar: str
    text: str
    unit: int = 1


OPTIONS: Mapping[str, _Option] = {
    "--queue": _Option(field="queue", kind=int, metavar="N", text="requests that may wait; one more gets 429"),
    "--queue-timeout": _Option(
        field="queue_timeout_s", kind=float, metavar="S", text="longest wait for a slot on SandboxFusion's routes"
    ),
    "--full-status": _Option(
        field="full_status", kind=int, metavar="STATUS", text="429, or 504 for verl's clients, when the queue is full"
    ),
    "--sessions": _Option(field="sessions", kind=int, metavar="N", text="sessions open at one time"),
    "--session-idle": _Option(
        field="session_idle_s", kind=float, metavar="S", text="unused sessions are closed after this"
    ),
    "--attempts": _Option(
        field="attempts", kind=int, metavar="N", text="attempts of a request, where others fail by infrastructure"
    ),
    "--max-body": _Option(field="max_body_bytes", kind=int, metavar="MB", text="longest request", unit=MIB),
    "--max-held": _Option(field="max_held_bytes", kind=int, metavar="MB", text="requests held at one time", unit=MIB),
    "--max-code": _Option(field="max_code_bytes", kind=int, metavar="MB", text="longest program", unit=MIB),
    "--max-files": _Option(field="max_files", kind=int, metavar="N", text="files in a request"),
    "--max-output": _Option(
        field="max_output_bytes", kind=int, metavar="MB", text="kept of stdout and of stderr each", unit=MIB
    ),
    "--max-run": _Option(field="max_run_s", kind=float, metavar="S", text="longest run of a program"),
    "--max-request": _Option(field="max_request_s", kind=float, metavar="S", text="longest whole request"),
    "--max-memory": _Option(field="max_memory_mb", kind=int, metavar="MB", text="most memory a program may ask for"),
    "--default-memory": _Option(
        field="default_memory_mb", kind=int, metavar="MB", text="memory of SandboxFusion's programs that ask for none"
    ),
    "--max-connections": _Option(field="max_connections", kind=int, metavar="N", text="open connections"),
    "--drain-timeout": _Option(
        field="drain_timeout_s", kind=float, metavar="S", text="what runs at SIGTERM is finished within this"
    ),
}


def make_parser() -> argparse.ArgumentParser:
    """The command line; defaults are those of :class:`Settings`."""
    parser = argparse.ArgumentParser(prog="roll-sandbox", description="Runs untrusted programs over HTTP.")
    serve = parser.add_subparsers(dest="command", required=True).add_parser(
        "serve",
        help="start the service (docs/sandbox_service.md)",
        description="Start the service: SandboxFusion's routes, a judge, sessions, metrics (docs/sandbox_service.md).",
    )
    serve.add_argument("--backend", default="local", metavar="NAME", help="local (default), docker, or a package's own")
    serve.add_argument(
        "--backend-arg", action="append", default=[], metavar="KEY=VALUE", help="argument of the backend; repeatable"
    )
    serve.add_argument("--host", default="127.0.0.1", help="address; others than 127.0.0.1 need --token-file")
    serve.add_argument("--port", type=int, default=8080, help="port (default 8080; 0 takes a free one)")
    serve.add_argument(
        "--slots", type=int, default=None, metavar="N", help="programs at one time (default: 2 per core)"
    )
    serve.add_argument("--token-file", type=Path, metavar="FILE", help="tokens that clients must send, one a line")
    serve.add_argument("--quiet", action="store_true", help="log warnings only, not a line for each request")
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    for flag, option in OPTIONS.items():
        default = defaults[option.field] / option.unit  # type: ignore[operator]
        text = f"{option.text} (default {default:g})"
        serve.add_argument(flag, type=option.kind, default=None, metavar=option.metavar, help=text)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """``roll-sandbox``; returns 0 after a graceful stop, 2 after a mistake of the user, 1 without a sandbox."""
    options = make_parser().parse_args(arguments)
    try:
        return _serve(options)
    except (ConfigError, MissingExtraError) as error:
        print(f"roll-sandbox: error: {error}", file=sys.stderr)
        return 2
    except RollError as error:
        print(f"roll-sandbox: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # 128 and the number of SIGINT, as a shell reports it.
        return 130


def _serve(options: argparse.Namespace) -> int:
    settings = _settings(options)
    make = _maker(options.backend, options.backend_arg)
    try:
        # Asked for before anything of the service is imported: the error then names the extra to install, not a
        # module.
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("roll-sandbox serve", "service") from error
    from sandboxes.service.app import make_app
    from sandboxes.service.server import bind, make_server

    logging.basicConfig(
        level=logging.WARNING if options.quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    # A taken port is reported at once, before the backend starts, which takes seconds.
    with bind(settings) as address:
        make().close()  # a broken backend is reported before the service listens
        server = make_server(make_app(make, settings), settings)
        server.run(sockets=[address])
    return 0 if server.started else 1


def _settings(options: argparse.Namespace) -> Settings:
    given: dict[str, Any] = {}
    for flag, option in OPTIONS.items():
        value = getattr(options, flag[2:].replace("-", "_"))
        if value is not None:
            given[option.field] = value * option.unit
    slots = options.slots if options.slots is not None else 2 * (os.cpu_count() or 1)
    tokens = () if options.token_file is None else read_tokens(options.token_file)
    return Settings(host=options.host, port=options.port, slots=slots, tokens=tokens, **given)


def _maker(backend: str, pairs: Sequence[str]) -> Callable[[], Sandbox]:
    """A function that makes a sandbox with one slot; ``true``, ``false`` and digits become bool and int."""
    if backend == "remote":
        raise ConfigError(
            "--backend remote would only pass requests on; use local or docker, or ask that service itself"
        )
    # One slot each: the service makes --slots of these sandboxes and replaces one that breaks without ending the
    # others.
    arguments: dict[str, Any] = {"slots": 1}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"--backend-arg takes KEY=VALUE, not {pair!r}")
        arguments[key] = {"true": True, "false": False}.get(value.lower(), int(value) if value.isdigit() else value)
    return partial(make_sandbox, backend, **arguments)
