"""Reads what a browser sends: small forms and whole numbers, whatever they hold."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request

__all__ = ["read_form", "whole_number"]

MOST_BYTES = 64 * 1024
_MOST_FIELDS = 16
_MOST_DIGITS = 9


async def read_form(request: Request) -> dict[str, str]:
    """The first value of each field of a URL-encoded form. Raises ``HTTPException`` (413, 400) for any other body."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"A form here has {MOST_BYTES // 1024} KiB at most.")
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise HTTPException(400, "That form has too many fields.") from error
    return {name: values[0] for name, values in fields.items()}


def whole_number(text: str | None, what: str) -> int | None:
    """``text`` as a number of 0 or more; ``None`` when it is missing. Raises ``HTTPException`` (400) otherwise."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise HTTPException(400, f"{what} is a whole number, such as 7; “{text[:40]}” is none.")
    return int(text)
