"""Reads a huge JSON array or object one element at a time, and says where a damaged file breaks.

The text is decoded and parsed a few megabytes at a time, so that memory depends on the largest element only. Elements
must themselves be objects or arrays: their end is then known without looking at what follows.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from envs.webshop.disk.format import CatalogueError

__all__ = ["Entry", "Record", "iter_array", "iter_object"]

CHUNK_BYTES = 4 << 20
MAX_ELEMENT_CHARS = 64 << 20
# An error this close to the end of the window may come from a token that the window cuts off, such as \u00e.
_MARGIN_CHARS = 16
_SPACE = " \t\r\n"
_decode = json.JSONDecoder().raw_decode


class Record(NamedTuple):
    """One object of an array."""

    number: int
    """Its place in the array, from 0."""
    start: int
    """Its first byte in the file."""
    end: int
    """One past its last byte."""
    value: dict[str, Any]


class Entry(NamedTuple):
    """One ``key: value`` of an object."""

    number: int
    key: str
    value: Any


class _Reader:
    """A window of decoded text that moves over the file, with its place in bytes."""

    def __init__(self, path: Path, start: int, chunk_bytes: int) -> None:
        self.path = path
        self.number = 0
        try:
            self.file = path.open("rb")
        except OSError as error:
            raise CatalogueError(f"cannot read {str(path)!r}: {error.strerror}; give the path of a JSON file") from None
        self.chunk_bytes = chunk_bytes
        # A byte order mark is no part of the JSON.
        if start == 0 and self.file.read(3) == codecs.BOM_UTF8:
            start = 3
        self.file.seek(start)
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.text = ""
        self.at = 0
        self.window_byte = start
        """Place in the file of the first character of ``text``."""
        self.marked = (0, start)
        self.finished = False

    def more(self) -> bool:
        """Drop what was used up and read on; false at the end of the file."""
        if self.finished:
            return False
        self.window_byte, self.text = self.byte(self.at), self.text[self.at :]
        self.at, self.marked = 0, (0, self.window_byte)
        # The window doubles for an element that does not fit, so that parsing it again and again takes linear time.
        chunk = self.file.read(max(self.chunk_bytes, len(self.text)))
        try:
            self.text += self.decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            place = self.window_byte + len(self.text.encode()) + error.start
            raise self.error(f"holds bytes that are not UTF-8 ({error.reason})", place) from None
        self.finished = not chunk
        return not self.finished

    def byte(self, at: int) -> int:
        """Place in the file of a character of the window; asked for in increasing order."""
        # Counted from the place that was asked for last, so that each character is encoded once.
        char, byte = self.marked
        if at < char:
            char, byte = 0, self.window_byte
        byte += len(self.text[char:at].encode("utf-8", "surrogatepass"))
        self.marked = (at, byte)
        return byte

    def peek(self) -> str:
        """The next character that is not whitespace; empty at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def expect(self, allowed: str, where: str) -> str:
        """Consume the next character, one of ``allowed``."""
        char = self.peek()
        if not char:
            raise self.error(f"ends {where}, where one of {' '.join(allowed)} was expected: the file is truncated")
        if char not in allowed:
            raise self.error(f"has {char!r} {where}, where one of {' '.join(allowed)} was expected")
        self.at += 1
        return char

    def value(self, opening: str, what: str) -> Any:
        """Parse the element that starts here; its first character must be in ``opening``."""
        char = self.peek()
        if not char:
            raise self.error(f"ends where {what} was expected: the file is truncated")
        if char not in opening:
            raise self.error(f"has {char!r} where {what} was expected")
        while True:
            try:
                value, end = _decode(self.text, self.at)
            except json.JSONDecodeError as error:
                self._read_on(error, what)
            except RecursionError:
                raise self.error(f"has {what} nested too deeply to be read") from None
            else:
                self.at = end
                return value

    def _read_on(self, error: json.JSONDecodeError, what: str) -> None:
        """Read more where an element was merely cut by the window; raise where it is wrong."""
        # The position of that error is the beginning of the string, however far away its end would be.
        cut = error.msg.startswith("Unterminated string") or error.pos >= len(self.text) - _MARGIN_CHARS
        if not cut:
            raise self.error(f"is not valid JSON ({error.msg})", self.byte(error.pos)) from None
        if len(self.text) - self.at > MAX_ELEMENT_CHARS:
            message = f"has {what} of more than {MAX_ELEMENT_CHARS} characters ({error.msg}): a quote may be missing"
            raise self.error(message) from None
        if not self.more():
            if error.pos >= len(self.text.rstrip(_SPACE)) or error.msg.startswith("Unterminated string"):
                raise self.error(f"ends in the middle of {what} ({error.msg}): the file is truncated") from None
            raise self.error(f"is not valid JSON ({error.msg})", self.byte(error.pos)) from None

    def error(self, problem: str, byte: int | None = None) -> CatalogueError:
        place = self.byte(self.at) if byte is None else byte
        return CatalogueError(
            f"{str(self.path)!r} {problem}, at byte {place}, record {self.number} (from 0); "
            "repair the file or fetch it again"
        )

    def end(self) -> None:
        """Make sure that nothing follows."""
        char = self.peek()
        if char:
            raise self.error(f"goes on with {char!r} after the end of its JSON value")


def iter_array(
    path: Path, *, start: int = 0, first_number: int = 0, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Record]:
    """The objects of the array in ``path``; ``start`` goes on right after a record that ended at that byte.

    Raises :class:`CatalogueError` with file, byte and record number where the file is not such an array.
    """
    reader = _Reader(path, start, chunk_bytes)
    with reader.file:
        reader.number = number = first_number
        if start == 0:
            reader.expect("[", "at its start")
            more = reader.peek() != "]"
            if not more:
                reader.expect("]", "at its end")
        else:
            more = reader.expect(",]", "after a record") == ","
        while more:
            reader.peek()
            begin = reader.byte(reader.at)
            value = reader.value("{", "a record ({...})")
            yield Record(number, begin, reader.byte(reader.at), value)
            reader.number = number = number + 1
            more = reader.expect(",]", "after a record") == ","
        reader.end()


def iter_object(path: Path, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Entry]:
    """The entries of the object in ``path``, whose values are objects or arrays; errors as for :func:`iter_array`."""
    reader = _Reader(path, 0, chunk_bytes)
    with reader.file:
        reader.expect("{", "at its start")
        more = reader.peek() != "}"
        if not more:
            reader.expect("}", "at its end")
        while more:
            key = reader.value('"', "a key")
            reader.expect(":", "after a key")
            value = reader.value("{[", "the value of a key ({...} or [...])")
            yield Entry(reader.number, key, value)
            reader.number += 1
            more = reader.expect(",}", "after a value") == ","
        reader.end()
