"""A cache of judges' replies on disk, so that no request is paid for twice.

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


def request_key(request: Mapping[str, Any]) -> str:
    """Cache key: the SHA-256 of all parts of a request."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class ReplyCache:
    """The replies below ``folder``."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def get(self, key: str) -> str | None:
        """The reply to a request, if it is known."""
        try:
            found = json.loads(self._path(key).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        usable = isinstance(found, dict) and found.get("key") == key and isinstance(found.get("reply"), str)
        return str(found["reply"]) if usable else None

    def put(self, key: str, reply: str) -> None:
        """Keep a reply, unless the disk is full or read-only."""
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
        # 256 folders, so that none holds too many files.
        return self.folder / key[:2] / f"{key}.json"
