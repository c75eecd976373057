"""List verifiers, tools and sandboxes, of this and of installed packages, with the settings that each one reads."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from roll_envs.cli.common import paint, print_json, table
from roll_envs.errors import RollError, UnknownNameError
from roll_envs.registry import MakerRegistry
from roll_envs.sandbox import SANDBOXES
from roll_envs.settings import described_settings, settings_model
from roll_envs.tools.registry import TOOLS
from roll_envs.verifiers.registry import VERIFIERS

SUMMARY = "verifiers, tools and sandboxes with their settings"

_KINDS: dict[str, MakerRegistry[Any]] = {registry.kind: registry for registry in (VERIFIERS, TOOLS, SANDBOXES)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``[KIND [NAME]]``."""
    parser.add_argument("kind", metavar="KIND", nargs="?", help=f"one of {', '.join(_KINDS)} (default: all)")
    parser.add_argument("name", metavar="NAME", nargs="?", help="one part (default: every part of the kind)")


def run(options: argparse.Namespace) -> int:
    """Print each part's source and settings; a broken package is part of the answer, unless its part was named."""
    if options.kind is not None and options.kind not in _KINDS:
        raise UnknownNameError("kind of part", options.kind, _KINDS)
    if options.name is not None:
        _KINDS[options.kind].find(options.name)
    found = [part for kind in ([options.kind] if options.kind else _KINDS) for part in _parts(kind, options.name)]
    if options.json:
        print_json(found)
        return 0
    for part in found:
        print(f"{part['kind']} {paint(part['name'], 'bold')}  ({part['source']})")
        if part["reason"]:
            print(f"  {paint('broken', 'red')}: {part['reason']}")
        rows = [(f"  {s['name']}", s["type"], s["default"], s["description"]) for s in part["settings"]]
        if rows:
            print(table(rows))
    return 0


def _parts(kind: str, only: str | None) -> Iterator[dict[str, Any]]:
    for part in _KINDS[kind].registrations(load=True):
        if only in (None, part.id):
            settings, reason = [], part.reason
            try:
                settings = described_settings(settings_model(_KINDS[kind].find(part.id)))
            except RollError as error:
                reason = reason or str(error)
            yield {"kind": kind, "name": part.id, "source": part.source, "reason": reason, "settings": settings}
