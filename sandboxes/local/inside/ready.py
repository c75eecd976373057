"""The process that will be untrusted: it gives up everything first, then waits to be told what to become.

So what takes time is done before there is a program. The order comes from init: to run a program of the payload, to
serve the cells of a session, or to become another program.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from . import wire
from .cells import serve_cells
from .confine import RUN_USER, bound_resources, give_up_rights
from .files import write_new
from .ground import Ground
from .program import Script, execute, set_environment

__all__ = ["CHANNEL", "STARTED", "become", "keep_channel"]

CHANNEL = 100
"""A number that no object of the frames we leave has: each closes its descriptor when it goes."""
STARTED = b"started"
"""Said when all of ours is done; what comes after is the program's doing."""

_NOT_STARTED = 72
Placed = Callable[[Mapping[str, str]], dict[str, str]]
"""An environment with the folders that there are here."""


def keep_channel(channel: socket.socket, ground: Ground | None = None) -> None:
    """Of all descriptors from 3 on, keep this one, as :data:`CHANNEL`, and what the ground still needs after it."""
    os.dup2(channel.detach(), CHANNEL, inheritable=False)
    after = CHANNEL + 1
    if ground is not None:
        ground.move_rules(after)
        after += 1
    os.closerange(3, CHANNEL)
    os.closerange(after, 1 << 20)


def become(script: Script, ground: Ground | None, *, many_users: bool) -> NoReturn:
    """Give up all rights, wait for the order, carry it out."""
    channel = socket.socket(fileno=CHANNEL)
    try:
        give_up_rights(RUN_USER if ground is None else ground.user, many_users=many_users)
        if ground is not None:
            ground.enter()
        message, fds = wire.receive(channel)
        if message is None:
            os._exit(0)
        start = _ORDERS[message["order"]](message, fds, script, dict if ground is None else ground.placed)
        socket.send_fds(channel, [STARTED], _shown(message))
        if message["order"] != "cells":
            channel.close()
    except BaseException as error:
        channel.send(wire.describe(error).encode()[:4096])
        os._exit(_NOT_STARTED)
    start()
    os._exit(0)


def _shown(message: Mapping[str, Any]) -> list[int]:
    """The working folder, for one who is to fetch files from it afterwards and is not in this place."""
    return [os.open(".", os.O_RDONLY | os.O_DIRECTORY)] if message.get("show_work") else []


def _take_streams(fds: Sequence[int]) -> None:
    for place, fd in enumerate(fds):
        os.dup2(fd, place)
        os.close(fd)


def _program(message: Mapping[str, Any], fds: list[int], script: Script, placed: Placed) -> Callable[[], object]:
    head, blobs = wire.unpack(fds[0])
    source = next(blobs)
    write_new(head["main"], source)
    for name, content in zip(head["files"], blobs, strict=True):
        write_new(name, content, executable=name in head["executables"])
    os.close(fds[0])
    _take_streams(fds[1:])
    bound_resources(message["limits"], cpu_s=message["limits"]["wall_s"], others=message["others"])
    environ = placed(head["environ"])
    set_environment(environ)
    if head["argv"]:
        return lambda: execute(head["argv"], environ)
    return lambda: script.run(head["main"], source, head["arguments"])


def _cells(message: Mapping[str, Any], fds: list[int], script: Script, placed: Placed) -> Callable[[], object]:
    nothing = os.open("/dev/null", os.O_RDWR)
    _take_streams([os.dup(nothing), os.dup(nothing), nothing])
    bound_resources(message["limits"], cpu_s=None, others=message["others"])
    set_environment(placed(message["environ"]))
    return lambda: serve_cells(CHANNEL, script)


def _command(message: Mapping[str, Any], fds: list[int], script: Script, placed: Placed) -> Callable[[], object]:
    _take_streams(fds)
    bound_resources(message["limits"], cpu_s=None, others=message["others"])
    environ = placed(message["environ"])
    return lambda: execute(message["argv"], environ)


_ORDERS = {"program": _program, "cells": _cells, "command": _command}
