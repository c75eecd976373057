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
from roll_envs.settings import checked_arguments
from sandboxes.service.settings import MIB, Settings, read_tokens

OPTIONS: Mapping[str, str] = {
    "queue": "requests that may wait; one more gets 429",
    "queue_timeout_s": "longest wait for a slot on SandboxFusion's routes",
    "full_status": "429, or 504 for verl's clients, when the queue is full",
    "sessions": "sessions open at one time",
    "session_idle_s": "unused sessions are closed after this",
    "attempts": "attempts of a request, where others fail by infrastructure",
    "max_body_bytes": "longest request",
    "max_held_bytes": "requests held at one time",
    "max_code_bytes": "longest program",
    "max_files": "files in a request",
    "max_output_bytes": "kept of stdout and of stderr each",
    "max_run_s": "longest run of a program",
    "max_request_s": "longest whole request",
    "max_memory_mb": "most memory a program may ask for",
    "default_memory_mb": "memory of SandboxFusion's programs that ask for none",
    "max_connections": "open connections",
    "drain_timeout_s": "what runs at SIGTERM is finished within this",
}
"""Numbers among the :class:`Settings` that are flags (``max_body_bytes`` is ``--max-body``, in MB), with their help."""
_UNITS = {"_s": "S", "_mb": "MB", "_bytes": "MB"}


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
    for field in dataclasses.fields(Settings):
        if field.name in OPTIONS:
            ending = next((ending for ending in _UNITS if field.name.endswith(ending)), "")
            flag = "--" + field.name.removesuffix(ending).replace("_", "-")
            default: Any = field.default
            text = f"{OPTIONS[field.name]} (default {default / (MIB if ending == '_bytes' else 1):g})"
            serve.add_argument(flag, dest=field.name, type=type(default), metavar=_UNITS.get(ending, "N"), help=text)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """``roll-sandbox``; returns 0 after a graceful stop, 2 after a mistake of the user, 1 without a sandbox."""
    options = make_parser().parse_args(arguments)
    try:
        return _serve(options)
    except RollError as error:
        print(f"roll-sandbox: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | MissingExtraError) else 1
    except KeyboardInterrupt:
        # 128 and the number of SIGINT, as a shell reports it.
        return 130


def _serve(options: argparse.Namespace) -> int:
    settings = _settings(options)
    make = _maker(options.backend, options.backend_arg)
    try:
        # Asked for before anything of the service is imported: the error then names the extra to install, not a
        # module.
        import prometheus_client  # noqa: F401
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
    asked = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    given = {name: value * (MIB if name.endswith("_bytes") else 1) for name, value in asked.items()}
    slots = options.slots if options.slots is not None else 2 * (os.cpu_count() or 1)
    tokens = () if options.token_file is None else read_tokens(options.token_file)
    given |= {"host": options.host, "port": options.port, "slots": slots, "tokens": tokens}
    return Settings(**checked_arguments("roll-sandbox serve", Settings, given))


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
