"""Show the shop in a browser: play it by hand, or watch recorded episodes. It listens on this machine only.

roll-envs serve-webshop
roll-envs serve-webshop --record episode.json
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll_envs import env_registry as registry
from roll_envs.cli.common import parse_kwargs, print_json
from roll_envs.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from envs.webshop.env import WebShopEnv

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "the WebShop environment in a browser, to play and to watch"

_ENV_ID = "roll/WebShop-v0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``[--host H] [--port P] [--data-dir DIR] [--record FILE ...] [--env-kwargs ...]``."""
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)"
    )
    parser.add_argument("--port", type=int, default=8383, help="port (default 8383; 0 takes a free one)")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the products (default: the environment's)")
    parser.add_argument(
        "--record", nargs="+", action="extend", default=[], type=Path, metavar="FILE", help="episodes to watch"
    )
    parser.add_argument(
        "--env-kwargs", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="arguments of the environment"
    )
    parser.add_argument("--id", default=_ENV_ID, help=f"environment to play (default {_ENV_ID})")


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("roll-envs serve-webshop", "service") from error
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port must be between 0 and 65535, not {options.port}")
    kwargs = parse_kwargs(options.env_kwargs, "--env-kwargs")
    if options.data_dir is not None:
        if "data_dir" in kwargs:
            raise ConfigError("give the data folder once: by --data-dir, or by --env-kwargs data_dir=...")
        kwargs["data_dir"] = options.data_dir
    listening = _listen(options.host, options.port)
    with listening:
        port = listening.getsockname()[1]
        # Browsers send cookies to every port of a host: with the port in its name, two shops do not mix them up.
        app = build_app(options.id, kwargs, options.record, cookie=f"roll_webshop_{port}")
        host = f"[{options.host}]" if ":" in options.host else options.host
        url = f"http://{host}:{port}/{'watch' if options.record else ''}"
        if options.json:
            print_json({"url": url, "host": options.host, "port": port})
        else:
            print(f"The shop is open at {url}   (Ctrl-C closes it)")
        sys.stdout.flush()
        if not _loopback(options.host):
            print(
                f"roll-envs: warning: {options.host} can be reached from other machines, and nobody is asked for a "
                "password; --host 127.0.0.1 keeps the shop to this one",
                file=sys.stderr,
            )
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=3)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])
    return 0


def build_app(
    env_id: str, kwargs: Mapping[str, Any], records: list[Path], *, cookie: str = "roll_webshop"
) -> Starlette:
    """The application for an environment and files of recorded episodes; makes one environment, to fail early."""
    from envs.webshop.serve.app import make_app
    from envs.webshop.serve.replay import shop_records

    found = [record for path in records for record in shop_records(path)]

    def make_shop(id: str, own: Mapping[str, Any]) -> WebShopEnv:
        # What is asked for on the command line stands above the record: its data folder may be of another machine.
        given = {**own, **({"data_dir": kwargs["data_dir"]} if "data_dir" in kwargs else {})}
        return _make(id, given)

    _make(env_id, kwargs).close()
    return make_app(lambda: _make(env_id, kwargs), make_shop, found, cookie=cookie)


def _make(env_id: str, kwargs: Mapping[str, Any]) -> WebShopEnv:
    from envs.webshop.env import WebShopEnv

    env = registry.make(env_id, **kwargs)
    if not isinstance(env, WebShopEnv):
        raise ConfigError(f"{env_id!r} is no shop; serve-webshop shows {_ENV_ID!r} and its relatives")
    return env


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; taken here so that a port in use is one clear line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, UnicodeError) as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {error}; choose another --host or --port") from error
    return listening


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
