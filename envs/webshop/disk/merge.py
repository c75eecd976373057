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
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.webshop.disk.format import ARRAYS, DATABASE, CatalogueError, Source, write_manifest
from envs.webshop.goals import SHUFFLE_SEED, draw_cap, draw_price
from envs.webshop.search import encode_length, length_factors

__all__ = ["merge_segments"]

Report = Callable[[str, float], None]
"""Hears the stage and how far it is."""

MAX_GOALS = 500_000_000
"""More would take hours to shuffle; the full catalogue has about seven per product."""

_REPORTED_POSTINGS = 4 << 20

_TABLES = (
    "products (asin BLOB PRIMARY KEY, doc INTEGER) WITHOUT ROWID",
    "nouns (title BLOB PRIMARY KEY, nouns BLOB) WITHOUT ROWID",
    "goals (kind, first INTEGER, doc INTEGER, cap, weight, said BLOB, PRIMARY KEY (kind, first)) WITHOUT ROWID",
    "terms (term BLOB PRIMARY KEY, start INTEGER, stop INTEGER, peak) WITHOUT ROWID",
)
"""``first``: number, in catalogue order, of the first goal that a source makes; ``start``, ``stop``: of the postings of
a term; ``peak``: the largest of their saturations."""


def merge_segments(
    work: sqlite3.Connection, folder: Path, seed: int, sources: Mapping[str, Source], report: Report
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
        _write_products(work, folder)
        work.execute("INSERT INTO made.products SELECT asin, doc FROM products ORDER BY asin")
        # Of equal titles the last counts.
        work.execute("INSERT OR REPLACE INTO made.nouns SELECT title, nouns FROM nouns ORDER BY title, rowid")
        ranks = np.empty(num_products, np.uint32)
        in_order = _column(work, "SELECT doc FROM made.products ORDER BY asin")
        ranks[np.fromiter(in_order, np.int64)] = np.arange(num_products)
        _write_array(folder, "ranks", ranks)
        report("goals", 0.0)
        counts = _write_goals(work, folder, seed)
        lengths = map(encode_length, _column(work, "SELECT length FROM products ORDER BY doc"))
        factors = length_factors(mean_length)[np.fromiter(lengths, np.uint8)]
        report("postings", 0.0)
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


def _write_products(work: sqlite3.Connection, folder: Path) -> None:
    offsets = array("Q", [0])
    with (folder / "products").open("wb") as file:
        for packed in _column(work, "SELECT packed FROM products ORDER BY doc"):
            file.write(packed)
            offsets.append(file.tell())
    _write_array(folder, "products.offsets", offsets)


def _write_goals(work: sqlite3.Connection, folder: Path, seed: int) -> dict[str, int]:
    """Draw prices and the price caps of goals, as they are drawn in memory."""
    uses: Counter[str] = Counter()
    total = 0
    for said, combinations in work.execute("SELECT said, combinations FROM goals WHERE kind = 'synthetic'"):
        total += combinations
        for attribute in json.loads(said)[1]:
            uses[str(attribute)] += combinations
    if total > MAX_GOALS:
        largest = "SELECT doc, combinations FROM goals WHERE kind = 'synthetic' ORDER BY combinations DESC LIMIT 1"
        worst, most = work.execute(largest).fetchone()
        raise CatalogueError(
            f"the options make {total} synthetic goals, more than {MAX_GOALS}; most come from product {worst} "
            f"(from 0) with {most} combinations: leave it out, or build from fewer products"
        )
    rng = random.Random(seed)
    pricing = _column(work, "SELECT pricing FROM products ORDER BY doc")
    prices = array("d", (draw_price(json.loads(known), rng) for known in pricing))
    _write_array(folder, "prices", prices)
    state = rng.getstate()
    counts = {}
    for kind in ("human", "synthetic"):
        # Both follow directly on the prices: a catalogue offers one or the other.
        rng.setstate(state)
        work.executemany("INSERT INTO made.goals VALUES (?, ?, ?, ?, ?, ?)", _goals(work, kind, prices, uses, rng))
        [count] = work.execute("SELECT total(combinations) FROM goals WHERE kind = ?", (kind,)).fetchone()
        counts[f"{kind}_goals"] = int(count)
        # Four bytes a goal; a list would take some forty.
        order = array("I", range(int(count)))
        random.Random(SHUFFLE_SEED).shuffle(order)
        _write_array(folder, f"{kind}.order", order)
    return counts


def _goals(
    work: sqlite3.Connection, kind: str, prices: array[float], uses: Counter[str], rng: random.Random
) -> Iterator[tuple[str, int, int, float, float, bytes]]:
    """Rows of the goals of a kind."""
    first = 0
    sources = work.execute("SELECT doc, combinations, said FROM goals WHERE kind = ? ORDER BY rowid", (kind,))
    for doc, combinations, said in sources:
        cap, _ = draw_cap(prices[doc], rng)
        if combinations:
            weight = 1.0
            if kind == "synthetic":
                attributes = json.loads(said)[1]
                weight = sum(1.0 / uses[str(attribute)] for attribute in attributes) / len(attributes)
            yield kind, first, doc, cap, weight, said
            first += combinations


def _write_postings(
    work: sqlite3.Connection, folder: Path, factors: NDArray[np.float32], report: Report
) -> Iterator[tuple[bytes, int, int, float]]:
    """Write documents and saturations (``1 + count * factor of the document``) of all terms; rows of the terms."""
    [num_segments] = work.execute("SELECT count(*) FROM segments").fetchone()
    # One cursor for each segment, whose terms are in order: nothing has to be sorted.
    in_segment = "SELECT term, segment, pairs FROM postings WHERE segment = ? ORDER BY term"
    rows = heapq.merge(*(work.execute(in_segment, (number,)) for number in range(num_segments)))
    [num_bytes] = work.execute("SELECT total(length(pairs)) FROM postings").fetchone()
    start = reported = 0
    with ExitStack() as held:
        names = ("postings.docs", "postings.saturations")
        docs_file, saturations_file = (held.enter_context((folder / name).open("wb")) for name in names)
        for term, same in groupby(rows, key=itemgetter(0)):
            docs, counts = np.frombuffer(b"".join(map(itemgetter(2), same)), "<u4").reshape(-1, 2).T
            saturations = np.float32(1) + counts.astype("<f4") * factors[docs]
            docs_file.write(docs.tobytes())
            saturations_file.write(saturations.tobytes())
            yield term, start, start + len(docs), float(saturations.max())
            start += len(docs)
            if start - reported >= _REPORTED_POSTINGS:
                reported = start
                report("postings", start * 8 / num_bytes)
