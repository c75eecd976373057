"""Reads a huge JSON array or object one element at a time, and says where a damaged file breaks.

A few megabytes are held at a time, so that memory depends on the largest element only. Elements must themselves be
objects or arrays: their end is then known without looking at what follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envs.webshop.disk.format import CatalogueError

CHUNK_CHARS = 4 << 20
LOOK_AHEAD = 4096
"""Characters between two elements, keys included, at most."""
LONGEST_TOKEN = 16
"""More than the characters of a literal or an escape, at whose beginning the parser stops where it is cut."""

_SPACE = r"[ \t\r\n]*"
# A lone surrogate stands for a byte that is not UTF-8.
_KEY = r'"((?:[^"\\\x00-\x1f\ud800-\udfff]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)"'
_ELEMENT = {"[]": r"(?=\{)", "{}": rf"{_KEY}{_SPACE}:{_SPACE}(?=[\[{{])"}
_decode = json.JSONDecoder().raw_decode


class JsonFile:
    """The elements of the array of objects (``brackets="[]"``) or of the object (``"{}"``) in a file, read once.

    Iterating gives the number or key of each, its value, and the text of the value. Raises :class:`CatalogueError` with
    file, character and record number where the file is not such an array or object.
    """

    def __init__(self, path: Path, brackets: str, *, chunk_chars: int = CHUNK_CHARS) -> None:
        self.path, self.brackets, self.chunk_chars = path, brackets, chunk_chars
        self._text, self._at, self._dropped = "", 0, 0
        self.number = 0
        """Elements read so far."""

    @property
    def fraction(self) -> float:
        """How much of the file was read; of text that is not ASCII a little less."""
        return (self._dropped + self._at) / self.path.stat().st_size

    def __iter__(self) -> Iterator[tuple[Any, Any, str]]:
        opening, closing = map(re.escape, self.brackets)
        before = opening
        with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as self._file:
            while found := self._match(before + _SPACE + _ELEMENT[self.brackets]):
                key = json.loads(f'"{found[1]}"') if found.lastindex else self.number
                value, text = self._value()
                self.number += 1
                yield key, value, text
                before = ","
            if not self._match(("" if self.number else opening) + _SPACE + closing + _SPACE + r"\Z"):
                rest = self._text[self._at : self._at + 40]
                hint = ": the file is truncated" if len(rest) < 40 else ""
                raise self._error(f"goes on with {rest!r}, where the next of {self.brackets} or its end is due{hint}")

    def _read_on(self) -> bool:
        """Drop what was used up and read more; false at the end of the file."""
        self._dropped += self._at
        rest = self._text[self._at :]
        # The window doubles for an element that does not fit, so that parsing it again and again takes linear time.
        chunk = self._file.read(max(self.chunk_chars, len(rest)))
        self._text, self._at = rest + chunk, 0
        return bool(chunk)

    def _match(self, pattern: str) -> re.Match[str] | None:
        """Pass over what matches, with the space before it."""
        while len(self._text) - self._at < LOOK_AHEAD and self._read_on():
            pass
        found = re.compile(_SPACE + pattern).match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found

    def _value(self) -> tuple[Any, str]:
        """Parse the object or array that begins here."""
        while True:
            try:
                value, end = _decode(self._text, self._at)
                text = self._text[self._at : end]
                text.encode()
                break
            except json.JSONDecodeError as error:
                # Of a string without an end, the parser reports the beginning.
                cut = error.msg.startswith("Unterminated string") or len(self._text) - error.pos < LONGEST_TOKEN
                if cut and self._read_on():
                    continue
                place, problem = (0, "is truncated in a record") if cut else (error.pos - self._at, "is not valid JSON")
                problem += f" ({error.msg})"
            except UnicodeEncodeError as error:
                place, problem = error.start, "holds bytes that are not UTF-8"
            except RecursionError:
                place, problem = 0, "has a record nested too deeply to be read"
            self._at += place
            raise self._error(problem)
        self._at = end
        return value, text

    def _error(self, problem: str) -> CatalogueError:
        return CatalogueError(
            f"{str(self.path)!r} {problem}, at character {self._dropped + self._at}, record {self.number} (from 0); "
            "repair the file or fetch it again"
        )
