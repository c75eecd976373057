"""Look at the episodes of a run in a browser, also while it goes on. The page is served on this machine only.

roll-envs view runs/NAME
roll-envs view runs/NAME --export page.html
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from roll_envs.cli.common import print_json
from roll_envs.errors import ConfigError
from trainer.view.episodes import Episodes
from trainer.view.server import Viewer, export, make_server

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "the episodes and curves of a run, in a browser"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``RUN_OR_FILE [--port P] [--export FILE [--most N]]``."""
    parser.add_argument("path", metavar="RUN_OR_FILE", type=Path, help="run folder, or a stream of records (.jsonl.gz)")
    parser.add_argument("--port", type=int, default=8384, help="port (default 8384; 0 takes a free one)")
    parser.add_argument("--export", metavar="FILE", type=Path, help="write one page that needs no server, and stop")
    parser.add_argument(
        "--most", type=int, default=500, metavar="N", help="episodes of an exported page, the last ones (default 500)"
    )


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C, or write a page."""
    if options.most < 1:
        raise ConfigError(f"--most must be 1 or more, not {options.most}")
    episodes = Episodes(options.path)
    if options.export is not None:
        count = export(episodes, options.export, options.most)
        if options.json:
            print_json({"file": str(options.export), "episodes": count})
        else:
            print(f"{options.export}: {count} episodes")
        return 0
    with make_server(Viewer(episodes), options.port) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        print(json.dumps({"url": url}) if options.json else f"{episodes.name}: {url} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
