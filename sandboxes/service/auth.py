"""Who may ask: a token in ``Authorization``, as Bearer or as the password of Basic.

Basic is there because clients that take nothing but an address can carry it: ``http://x:TOKEN@host:8080/run_code``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

__all__ = ["is_allowed"]


def is_allowed(header: str | None, tokens: Sequence[str]) -> bool:
    """Whether the value of ``Authorization`` holds one of ``tokens``; without tokens everybody may ask.

    Every token is compared, in constant time, so that neither time nor order tells anything about them.
    """
    if not tokens:
        return True
    given = _digest(_token_of(header or ""))
    matches = [hmac.compare_digest(given, _digest(token.encode())) for token in tokens]
    return any(matches)


def _digest(token: bytes) -> bytes:
    # Of equal length, so that the comparison does not tell how long a token is.
    return hashlib.sha256(token).digest()


def _token_of(header: str) -> bytes:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "replace")
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(value.strip(), validate=True)
        except (binascii.Error, ValueError):
            return b""
        return decoded.partition(b":")[2]
    return b""
