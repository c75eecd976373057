"""A full-text index over JSON lines: BM25 in numpy, saved as one file beside the corpus, equal on every host.

A line is an object with ``text`` and, where wanted, ``id`` (default: its number) and ``title`` (searched as well).
Words are runs of letters and digits, folded for case and form (NFKC), and single characters of Chinese and Japanese;
there is no stemming and no stop list, so that any language is searched alike. Score of a document over the distinct
words of a query (k1 = 1.2, b = 0.75)::

    sum of  log(1 + (N - n + 0.5) / (n + 0.5)) * f * (k1 + 1) / (f + k1 * (1 - b + b * length / mean length))

with n of N documents holding the word, f times in this one. Equal scores are in the order of the lines. The texts stay
in the corpus file and are read by their place in it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import threading
import unicodedata
import zipfile
from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roll_envs.errors import ConfigError

K1, B = 1.2, 0.75
FORMAT = 4

# Chinese and Japanese have no spaces between words. "・" and what marks a letter as voiced are no words.
_ALONE = "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u9fff\U00020000-\U000323af"
# Vowel signs and accents, which Python has for no letters; not those from Thai on, where there are no spaces either.
_MARKS = "".join(c for c in map(chr, range(0x300, 0xE00)) if unicodedata.category(c).startswith("M"))
WORD = re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+(?:[{_MARKS}]+[^\W_{_ALONE}]*)*")
"""Letters and digits with their marks, or a single character of Chinese or Japanese."""
_CACHED = 8
_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One line of the corpus."""

    id: str
    title: str
    text: str


def words_of_text(text: str) -> list[str]:
    """The words of a text as they are compared: ``words_of_text("Größe, 2nd") == ["grösse", "2nd"]``."""
    return WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class SearchIndex:
    """The index of one corpus; any thread may search, nothing changes after it is made."""

    def __init__(self, corpus: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """``arrays`` as :func:`build_arrays` makes them; see :func:`load_index`."""
        self.corpus = corpus
        self._places, self._starts = arrays["places"], arrays["starts"]
        self._docs, self._counts = arrays["docs"], arrays["counts"]
        words = arrays["words"].tobytes().decode().split("\n")
        self._terms = {word: number for number, word in enumerate(words)}
        lengths = arrays["lengths"].astype(np.float64)
        # Where no document has a word, the mean is 0.
        self._norms = K1 * (1 - B + B * lengths / (lengths.mean() or 1.0))

    def __len__(self) -> int:
        return len(self._places)

    def search(self, query: str, k: int) -> list[tuple[int, float]]:
        """The best ``k`` documents that hold a word of the query, best first: line numbers from 0, and scores."""
        sums = np.zeros(len(self))
        for word in dict.fromkeys(words_of_text(query)):
            number = self._terms.get(word)
            if number is not None:
                part = slice(self._starts[number], self._starts[number + 1])
                docs, counts = self._docs[part], self._counts[part].astype(np.float64)
                rarity = np.log1p((len(self) - len(docs) + 0.5) / (len(docs) + 0.5))
                sums[docs] += rarity * counts * (K1 + 1) / (counts + self._norms[docs])
        # Rounded before the comparison, so that the order does not depend on the last bits of a processor's arithmetic.
        scores = np.round(sums, 9)
        found = np.flatnonzero(scores)
        best = found[np.lexsort((found, -scores[found]))[:k]]
        return [(int(doc), float(scores[doc])) for doc in best]

    def document(self, number: int) -> Document:
        """Line ``number`` (from 0), read from the corpus. Raises :class:`ConfigError` when the file has changed."""
        with open(self.corpus, "rb") as file:
            file.seek(int(self._places[number]))
            line = file.readline()
        try:
            return _document(line, number, self.corpus)
        except ConfigError as error:
            raise ConfigError(f"{error}; the corpus has changed since it was indexed: make the tool anew") from error


def load_index(corpus: str | os.PathLike[str], index: str | os.PathLike[str] | None = None) -> SearchIndex:
    """The index of a JSON-lines file: from memory, else from the saved file, else built and saved.

    ``index`` is where it is saved (default: the corpus's name with ``.bm25.npz`` added; a folder that cannot be written
    to leaves it in memory only). A saved index of another text of the corpus is replaced. Raises :class:`ConfigError`
    for a corpus that is missing, empty, or has a line that cannot be read.
    """
    path = Path(corpus)
    try:
        path = path.resolve(strict=True)
        seen = path.stat()
    except OSError as error:
        raise ConfigError(f"corpus {str(corpus)!r} cannot be read: {error.strerror or error}") from error
    saved = Path(index) if index is not None else path.with_name(path.name + ".bm25.npz")
    with _lock:  # one thread builds the index, others wait for it
        return _load(path, saved, (seen.st_mtime_ns, seen.st_size))


@functools.lru_cache(_CACHED)
def _load(path: Path, saved: Path, version: tuple[int, int]) -> SearchIndex:
    """``version``: a corpus that was changed is another one."""
    # The whole file is read: with a changed corpus the saved places of documents would be wrong.
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    arrays = _read(saved, digest)
    if arrays is None:
        arrays = build_arrays(path)
        _save(saved, digest, arrays)
    return SearchIndex(path, arrays)


def build_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The index as arrays: ``places`` and ``lengths`` of documents; ``words``; and of word w, from ``starts[w]`` up to
    ``starts[w + 1]``, the documents that hold it in rising order (``docs``) and how often (``counts``)."""
    numbers: dict[str, int] = {}
    term_of, count_of = array("i"), array("i")
    places, lengths, sizes = array("q"), array("i"), array("i")
    place = 0
    with open(path, "rb") as file:
        for line in file:
            if line.strip():
                document = _document(line, len(places), path)
                words = words_of_text(f"{document.title}\n{document.text}")
                counts = Counter(words)
                term_of.extend([numbers.setdefault(word, len(numbers)) for word in counts])
                count_of.extend(counts.values())
                places.append(place)
                lengths.append(len(words))
                sizes.append(len(counts))
            place += len(line)
    if not places:
        raise ConfigError(f"corpus {str(path)!r} has no documents; write one JSON object with 'text' a line")
    terms = np.array(term_of, dtype=np.int32)
    # Stable: the documents of a word stay in rising order.
    order = np.argsort(terms, kind="stable")
    return {
        "places": np.array(places, dtype=np.int64),
        "lengths": np.array(lengths, dtype=np.int32),
        # One text of all words, since arrays of strings in numpy take the width of the longest for each.
        "words": np.frombuffer("\n".join(numbers).encode(), dtype=np.uint8),
        "starts": np.searchsorted(terms[order], np.arange(len(numbers) + 1)),
        "docs": np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[order],
        "counts": np.array(count_of, dtype=np.int32)[order],
    }


def _document(line: bytes, number: int, path: Path) -> Document:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path.name}, document {number + 1}: no JSON object ({error})") from error
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise ConfigError(f"{path.name}, document {number + 1}: needs an object with 'text' (a text)")
    title = row.get("title", "")
    if not isinstance(title, str):
        raise ConfigError(f"{path.name}, document {number + 1}: 'title' must be a text, not {title!r}")
    return Document(id=str(row.get("id", number + 1)), title=title, text=row["text"])


def _read(saved: Path, digest: str) -> dict[str, npt.NDArray[Any]] | None:
    """The saved arrays; None when there are none, of another corpus, or damaged (they are then built again)."""
    try:
        with open(saved, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            if str(file["stamp"]) != f"{FORMAT} {digest}":
                return None
            return {name: file[name] for name in file if name != "stamp"}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _save(saved: Path, digest: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
    # Renamed when complete: another process never reads half a file.
    part = saved.with_name(f"{saved.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            stamped: dict[str, Any] = {"stamp": np.array(f"{FORMAT} {digest}"), **arrays}
            np.savez_compressed(file, **stamped)
        os.replace(part, saved)
    except OSError:
        part.unlink(missing_ok=True)  # a corpus on read-only media is indexed in memory
