"""The rows of all segments made into the files of a catalogue.

Nothing here is kept when it is interrupted: it takes minutes for a million products, and starts again from the rows.
Files are written from beginning to end in an order that follows from their content, so that their bytes do too.
"""

from __future__ import annotations

import heapq
import json
import random
import sqlite3
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.webshop.disk.format import ARRAYS, DATABASE, CatalogueError, write_manifest
from envs.webshop.goals import SHUFFLE_SEED, draw_cap, draw_price
from envs.webshop.search import encode_length, length_factors

__all__ = ["merge_segments"]

Report = Callable[[str, float], None]
"""Hears the stage and how far it is."""

MAX_GOALS = 500_000_000
"""More would take hours to shuffle; the full catalogue has about seven per product."""

_REPORTED_TERMS = 1000

_TABLES = (
    "products (doc INTEGER PRIMARY KEY, asin BLOB, packed BLOB)",
    "nouns (title BLOB PRIMARY KEY, nouns BLOB) WITHOUT ROWID",
    "goals (kind, first INTEGER, doc INTEGER, cap, weight, said BLOB, PRIMARY KEY (kind, first)) WITHOUT ROWID",
    "terms (term BLOB PRIMARY KEY, start INTEGER, stop INTEGER, peak) WITHOUT ROWID",
)
"""``first``: number, in catalogue order, of the first goal that a source makes; ``start``, ``stop``: of the postings of
a term; ``peak``: the largest of their saturations."""


def merge_segments(
    work: sqlite3.Connection, folder: Path, seed: int, sources: Mapping[str, str], report: Report
) -> None:
    """Write all files of a catalogue into an empty folder."""
    [num_products, num_filled, mean_length] = work.execute(
        # Without any term the mean length does not matter, but must not be 0.
        "SELECT count(*), total(length > 0), coalesce(avg(nullif(length, 0)), 1) FROM products"
    ).fetchone()
    if not num_products:
        raise CatalogueError("the product file holds no product; there is nothing to build")
    work.execute("ATTACH ? AS made", (str(folder / DATABASE),))
    # A file that was cut off is thrown away: a journal would gain nothing.
    work.execute("PRAGMA made.journal_mode = OFF")
    report("products", 0.0)
    with work:
        for table in _TABLES:
            work.execute(f"CREATE TABLE made.{table}")
        work.execute("INSERT INTO made.products SELECT doc, asin, packed FROM products ORDER BY doc")
        work.execute("CREATE UNIQUE INDEX made.by_asin ON products (asin)")
        # Of equal titles the last counts.
        work.execute("INSERT OR REPLACE INTO made.nouns SELECT title, nouns FROM nouns ORDER BY title, rowid")
        in_order = np.fromiter(_column(work, "SELECT doc FROM made.products ORDER BY asin"), np.int64)
        _write_array(folder, "ranks", np.argsort(in_order))
        report("goals", 0.0)
        counts = _write_goals(work, folder, seed)
        lengths = map(encode_length, _column(work, "SELECT length FROM products ORDER BY doc"))
        factors = length_factors(mean_length)[np.fromiter(lengths, np.uint8)]
        work.executemany("INSERT INTO made.terms VALUES (?, ?, ?, ?)", _write_postings(work, folder, factors, report))
        # Lists of departments, kinds and attributes are no terms of texts.
        of_texts = "SELECT count(*), total(stop - start) FROM made.terms WHERE substr(term, 1, 1) != x'3c'"
        [counts["terms"], counts["postings"]] = map(int, work.execute(of_texts).fetchone())
    work.execute("DETACH made")
    counts |= {"products": num_products, "filled_products": int(num_filled)}
    write_manifest(folder, counts, seed, sources)


def _column(work: sqlite3.Connection, query: str) -> Iterator[Any]:
    return (value for [value] in work.execute(query))


def _write_array(folder: Path, name: str, values: NDArray[Any] | array[Any]) -> None:
    np.asarray(values, ARRAYS[name]).tofile(folder / name)


def _write_goals(work: sqlite3.Connection, folder: Path, seed: int) -> dict[str, int]:
    """Draw prices and the price caps of goals, as they are drawn in memory."""
    rng = random.Random(seed)
    pricing = _column(work, "SELECT pricing FROM products ORDER BY doc")
    prices = array("d", (draw_price(json.loads(known), rng) for known in pricing))
    _write_array(folder, "prices", prices)
    state, counts = rng.getstate(), {}
    for kind in ("human", "synthetic"):
        # Both follow directly on the prices: a catalogue offers one or the other.
        rng.setstate(state)
        [total] = work.execute("SELECT total(combinations) FROM goals WHERE kind = ?", (kind,)).fetchone()
        if total > MAX_GOALS:
            largest = "SELECT doc, max(combinations) FROM goals WHERE kind = ?"
            worst, most = work.execute(largest, (kind,)).fetchone()
            raise CatalogueError(
                f"the options make {total:.0f} {kind} goals, more than {MAX_GOALS}; most come from product {worst} "
                f"(from 0) with {most} combinations: leave it out, or build from fewer products"
            )
        work.executemany("INSERT INTO made.goals VALUES (?, ?, ?, ?, ?, ?)", _goals(work, kind, prices, rng))
        # Four bytes a goal; a list would take some forty.
        order = array("I", range(int(total)))
        random.Random(SHUFFLE_SEED).shuffle(order)
        _write_array(folder, f"{kind}.order", order)
        counts[f"{kind}_goals"] = len(order)
    return counts


def _goals(
    work: sqlite3.Connection, kind: str, prices: array[float], rng: random.Random
) -> Iterator[tuple[str, int, int, float, float, bytes]]:
    """Rows of the goals of a kind."""
    query = "SELECT doc, combinations, said FROM goals WHERE kind = ? ORDER BY rowid"
    uses: Counter[str] = Counter()
    for _, combinations, said in work.execute(query, (kind,)):
        for attribute in json.loads(said)["instruction_attributes"]:
            uses[str(attribute)] += combinations
    first = 0
    for doc, combinations, said in work.execute(query, (kind,)):
        cap, _ = draw_cap(prices[doc], rng)
        if combinations:
            attributes = json.loads(said)["instruction_attributes"]
            weight = sum(1.0 / uses[str(attribute)] for attribute in attributes) / len(attributes)
            yield kind, first, doc, cap, weight, said
            first += combinations


def _write_postings(
    work: sqlite3.Connection, folder: Path, factors: NDArray[np.float32], report: Report
) -> Iterator[tuple[bytes, int, int, float]]:
    """Write documents and saturations (``1 + count * factor of the document``) of all terms; rows of the terms."""
    # One cursor for each segment, whose terms are in order: nothing has to be sorted.
    in_segment = "SELECT term, segment, pairs FROM postings WHERE segment = ? ORDER BY term"
    segments = work.execute("SELECT DISTINCT segment FROM postings ORDER BY segment").fetchall()
    rows = heapq.merge(*(work.execute(in_segment, segment) for segment in segments))
    [num_bytes] = work.execute("SELECT total(length(pairs)) FROM postings").fetchone()
    start = 0
    with (folder / "postings.docs").open("wb") as docs_file, (folder / "postings.saturations").open("wb") as saturated:
        for number, (term, same) in enumerate(groupby(rows, key=itemgetter(0))):
            if number % _REPORTED_TERMS == 0:
                report("postings", start * 8 / num_bytes)
            docs, counts = np.frombuffer(b"".join(map(itemgetter(2), same)), np.uint32).reshape(-1, 2).T
            saturations = np.float32(1) + counts.astype(np.float32) * factors[docs]
            docs_file.write(docs.astype("<u4").tobytes())
            saturated.write(saturations.astype("<f4").tobytes())
            yield term, start, start + len(docs), float(saturations.max())
            start += len(docs)
