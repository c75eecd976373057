"""A cache of judges' replies in memory and on disk, so that no request is paid for twice.

Each reply is a file named by the SHA-256 of the whole request and written atomically; processes may share a folder. A
file that cannot be read counts as missing. Only replies with a verdict are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roll_envs.recent import Recent


def request_key(request: Mapping[str, Any]) -> str:
    """Cache key: the SHA-256 of all parts of a request."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class ReplyCache:
    """At most ``items`` replies in memory (0: none), and all of them below ``folder`` where one is given."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, items: int = 10_000) -> None:
        self.folder = None if folder is None else Path(folder)
        self._known: Recent[str, str] = Recent(items)

    def get(self, key: str) -> str | None:
        """The reply to a request, if it is known."""
        reply = self._known.get(key) or self._read(key)
        if reply is not None:
            self._known.keep(key, reply)
        return reply

    def put(self, key: str, reply: str) -> None:
        """Keep a reply. Where the disk is full or read-only it is kept in memory only."""
        self._known.keep(key, reply)
        if self.folder is None:
            return
        path = self._path(key)
        part = path.with_name(f".new-{secrets.token_hex(8)}")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                part.write_text(json.dumps({"key": key, "reply": reply}), encoding="utf-8")
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        # 256 folders, so that none holds too many files.
        return self.folder / key[:2] / f"{key}.json"

    def _read(self, key: str) -> str | None:
        if self.folder is None:
            return None
        try:
            found = json.loads(self._path(key).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        usable = isinstance(found, dict) and found.get("key") == key and isinstance(found.get("reply"), str)
        return str(found["reply"]) if usable else None
