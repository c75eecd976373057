"""Reads a huge JSON array or object one element at a time, and says where a damaged file breaks.

A few megabytes are held at a time, so that memory depends on the largest element only. They are held as Latin-1, where
a character is a byte: the syntax of JSON is ASCII, and the parser's places are places in the file. Elements must
themselves be objects or arrays: their end is then known without looking at what follows.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from envs.webshop.disk.format import CatalogueError

__all__ = ["Record", "iter_array", "iter_object"]

CHUNK_BYTES = 4 << 20
MAX_ELEMENT_BYTES = 64 << 20
"""An element that is not whole after so many is wrong: a quote may be missing."""
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


class _Reader:
    """A window that moves over the file; ``number`` counts the elements that were read."""

    def __init__(self, path: Path, start: int, number: int, chunk_bytes: int) -> None:
        self.path, self.number, self.chunk_bytes = path, number, chunk_bytes
        try:
            self.file = path.open("rb")
        except OSError as error:
            raise CatalogueError(f"cannot read {str(path)!r}: {error.strerror}; give the path of a JSON file") from None
        # A byte order mark is no part of the JSON.
        if start == 0 and self.file.read(3) == codecs.BOM_UTF8:
            start = 3
        self.file.seek(start)
        self.text, self.at, self.text_start = "", 0, start

    @property
    def byte(self) -> int:
        """Place in the file of what is read next."""
        return self.text_start + self.at

    def more(self) -> bool:
        """Drop what was used up and read on; false at the end of the file."""
        self.text_start, self.text, self.at = self.byte, self.text[self.at :], 0
        # The window doubles for an element that does not fit, so that parsing it again and again takes linear time.
        chunk = self.file.read(max(self.chunk_bytes, len(self.text)))
        self.text += chunk.decode("latin-1")
        return bool(chunk)

    def peek(self) -> str:
        """The next character that is not whitespace; empty at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def check(self, allowed: str, where: str) -> None:
        """Make sure that the next character is one of ``allowed``."""
        char = self.peek()
        if not char:
            raise self.error(f"ends {where} was expected: the file is truncated")
        if char not in allowed:
            raise self.error(f"has {char!r} {where} was expected")

    def take(self, allowed: str, where: str) -> str:
        """Consume the next character, one of ``allowed``."""
        self.check(allowed, f"{where}, where one of {' '.join(allowed)}")
        self.at += 1
        return self.text[self.at - 1]

    def value(self, opening: str, what: str) -> Any:
        """Parse the element that starts here; its first character must be in ``opening``."""
        self.check(opening, f"where {what}")
        while True:
            try:
                value, end = _decode(self.text, self.at)
                if not (text := self.text[self.at : end]).isascii():
                    value = json.loads(text.encode("latin-1").decode())
            except json.JSONDecodeError as error:
                self._read_on(error, what)
            except UnicodeDecodeError as error:
                self.at += error.start
                raise self.error(f"holds bytes that are not UTF-8 ({error.reason})") from None
            except RecursionError:
                raise self.error(f"has {what} nested too deeply to be read") from None
            else:
                self.at = end
                return value

    def _read_on(self, error: json.JSONDecodeError, what: str) -> None:
        """Read more, where an element may merely be cut by the window; raise where it is wrong."""
        place, size = error.pos - self.at, len(self.text) - self.at
        if size <= MAX_ELEMENT_BYTES and self.more():
            return
        # The position of that error is the beginning of the string, however far away its end would be.
        unended = error.msg.startswith("Unterminated string") or place >= len(self.text.rstrip(_SPACE))
        if unended and size <= MAX_ELEMENT_BYTES:
            raise self.error(f"ends in the middle of {what} ({error.msg}): the file is truncated") from None
        self.at += place
        raise self.error(f"is not valid JSON ({error.msg})") from None

    def error(self, problem: str) -> CatalogueError:
        return CatalogueError(
            f"{str(self.path)!r} {problem}, at byte {self.byte}, record {self.number} (from 0); "
            "repair the file or fetch it again"
        )

    def elements(self, brackets: str) -> Iterator[None]:
        """Stop at every element, for the caller to read it with :meth:`value`."""
        with self.file:
            if self.number:
                more = self.take("," + brackets[1], "after a record") == ","
            else:
                self.take(brackets[0], "at its start")
                more = self.peek() != brackets[1]
                if not more:
                    self.take(brackets[1], "at its end")
            while more:
                self.peek()
                yield
                self.number += 1
                more = self.take("," + brackets[1], "after a record") == ","
            if char := self.peek():
                raise self.error(f"goes on with {char!r} after the end of its JSON value")


def iter_array(
    path: Path, *, start: int = 0, first_number: int = 0, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Record]:
    """The objects of the array in ``path``; ``start`` goes on right after record ``first_number - 1``.

    Raises :class:`CatalogueError` with file, byte and record number where the file is not such an array.
    """
    reader = _Reader(path, start, first_number, chunk_bytes)
    for _ in reader.elements("[]"):
        begin = reader.byte
        value = reader.value("{", "a record ({...})")
        yield Record(reader.number, begin, reader.byte, value)


def iter_object(path: Path, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[str, Any]]:
    """Keys and values of the object in ``path``; values are objects or arrays. Errors as for :func:`iter_array`."""
    reader = _Reader(path, 0, 0, chunk_bytes)
    for _ in reader.elements("{}"):
        key = reader.value('"', "a key")
        reader.take(":", "after a key")
        yield key, reader.value("{[", "the value of a key ({...} or [...])")
