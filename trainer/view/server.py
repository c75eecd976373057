"""The page over HTTP on this machine, and as one file that holds everything it shows."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from roll_envs.errors import RollError
from trainer.view.episodes import COLUMNS, Decode, Episodes, as_json, decoder

_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_EMBEDDED = "/* what an exported page holds stands here */"


class Viewer:
    """Answers the page's questions about the episodes of a run."""

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes
        self._loading = threading.Lock()

    @functools.cached_property
    def _decode(self) -> Decode | None:
        return decoder(self.episodes.run)

    def answer(self, path: str) -> Any:
        """What ``/api/...`` asks for. Raises :class:`RollError` for an episode that is not there, KeyError and
        ValueError for a question that is none."""
        parts = urlsplit(path)
        asked = {name: int(values[-1]) for name, values in parse_qs(parts.query).items()}
        if parts.path == "/api/run":
            return {"name": self.episodes.name, "metrics": self.episodes.curves()}
        if parts.path == "/api/rows":
            return self.episodes.rows(asked["first"], asked["generation"])
        if parts.path == "/api/group":
            with self._loading:  # the tokenizer, once
                decode = self._decode
            return self.episodes.group(asked["member"], asked["group"], decode)
        raise KeyError(parts.path)


def page(embedded: dict[str, Any] | None = None) -> str:
    """The page; with the answers to its questions in it, where it is to stand alone."""
    text = (files(__package__) / "page.html").read_text(encoding="utf-8")
    # "</" would end the script that the answers stand in.
    held = "null" if embedded is None else as_json(embedded).replace("<", "\\u003c")
    return text.replace(_EMBEDDED, held)


def export(episodes: Episodes, file: Path, most: int) -> int:
    """Write the page with the last ``most`` episodes (whole groups) to ``file``; returns how many there are."""
    viewer = Viewer(episodes)
    rows: list[list[Any]] = []
    while True:
        found = episodes.rows(len(rows), episodes.generation, seconds=5.0)
        rows += found["rows"]
        if found["read"] == found["members"]:
            break
    groups = list(dict.fromkeys(_group_of(row) for row in reversed(rows)))
    chosen: set[tuple[int, int]] = set()
    counts = dict.fromkeys(groups, 0)
    for row in rows:
        counts[_group_of(row)] += 1
    count = 0
    for group in groups:
        if count and count + counts[group] > most:
            break
        chosen.add(group)
        count += counts[group]
    kept = [row for row in rows if _group_of(row) in chosen]
    answers = {"/api/run": viewer.answer("/api/run")}
    answers["/api/rows"] = {**found, "generation": 1, "rows": kept}
    for member, number in sorted(chosen):
        path = f"/api/group?member={member}&group={number}"
        answers[path] = viewer.answer(path)
    unfinished = file.with_name(f".unfinished-{file.name}")
    try:
        unfinished.write_text(page(answers), encoding="utf-8")
        unfinished.replace(file)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise RollError(f"cannot write {file}: {error.strerror or error}") from error
    return len(kept)


def _group_of(row: Sequence[Any]) -> tuple[int, int]:
    return row[COLUMNS.index("member")], row[COLUMNS.index("group")]


def make_server(viewer: Viewer, port: int) -> ThreadingHTTPServer:
    """A server on the loopback; port 0 takes a free one. Raises :class:`RollError` where the port is taken."""
    handler = functools.partial(_Handler, viewer)
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise RollError(f"cannot listen on port {port}: {error}; choose another --port, or 0 for a free one") from error


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def __init__(self, viewer: Viewer, *args: Any) -> None:
        self._viewer = viewer
        super().__init__(*args)

    def do_GET(self) -> None:
        # A page of another origin can make its name point here, and would read the run then.
        if self.headers.get("Host", "").rpartition(":")[0] not in _HOSTS:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "ask 127.0.0.1")
        elif urlsplit(self.path).path == "/":
            self._send(HTTPStatus.OK, "text/html", page())
        else:
            self._send(*self._answer())

    def _answer(self) -> tuple[HTTPStatus, str, str]:
        try:
            return HTTPStatus.OK, "application/json", as_json(self._viewer.answer(self.path))
        except (RollError, OSError) as error:
            return HTTPStatus.CONFLICT, "application/json", json.dumps({"error": str(error)})
        except (KeyError, ValueError):
            return HTTPStatus.NOT_FOUND, "application/json", json.dumps({"error": f"nothing is at {self.path}"})

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode("utf-8", "surrogatepass")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header(
            "Content-Security-Policy", "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
        )
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are no news."""
