"""A chat server on a real socket that says what a test tells it to."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What the server answers to one request."""

    content: Any = ""
    status: int = 200
    finish: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """Instead of the body of a chat."""
    drip_s: float = 0.0
    """A pause after each byte of the body."""
    wait_s: float = 0.0
    """Before anything is said."""
    cut: bool = False
    """End the connection in the middle of the body."""

    def body(self) -> bytes:
        if self.raw is not None:
            return self.raw
        message = {"role": "assistant", "content": self.content}
        usage = {"prompt_tokens": 100, "completion_tokens": 7}
        return json.dumps({"choices": [{"message": message, "finish_reason": self.finish}], "usage": usage}).encode()


Script = Callable[[int, dict[str, Any]], Reply]


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.times: list[float] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            number = len(server.requests)
            server.requests.append({"path": self.path, **body})
            server.headers.append(dict(self.headers))
            server.times.append(time.monotonic())
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            self._answer(server.script(number, body))
        finally:
            with server.lock:
                server.at_once -= 1

    def _answer(self, reply: Reply) -> None:
        time.sleep(reply.wait_s)
        content = reply.body()
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if reply.cut:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif reply.drip_s:
            for byte in content:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(reply.drip_s)
        else:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextlib.contextmanager
def serve(script: Script | Reply | list[Reply]) -> Iterator[Server]:
    """A server for the time of the block. A list: one reply a request, the last one for all that follow."""
    if isinstance(script, Reply):
        only = script
        chosen: Script = lambda number, body: only  # noqa: E731
    elif isinstance(script, list):
        replies = script
        chosen = lambda number, body: replies[min(number, len(replies) - 1)]  # noqa: E731
    else:
        chosen = script
    server = Server(chosen)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def half_open(said: bytes = b"") -> Iterator[str]:
    """The address of a server that takes connections, says ``said``, and then nothing more."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    kept: list[socket.socket] = []
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                kept.append(connection)
                connection.sendall(said)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        done.set()
        thread.join()
        for each in (*kept, listener):
            each.close()


def correct(confidence: int = 95) -> Reply:
    return Reply(json.dumps({"reasoning": "same", "verdict": "correct", "confidence": confidence}))


def incorrect(confidence: int = 95) -> Reply:
    return Reply(json.dumps({"reasoning": "other", "verdict": "incorrect", "confidence": confidence}))


def shown(body: Mapping[str, Any]) -> str:
    """What the user message of a request says."""
    return str(body["messages"][1]["content"])
