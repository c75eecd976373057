"""What products become: rows of a database, a segment at a time, and of all rows the files of a catalogue.

Segments are a thousand products each, the unit of work, made in order by worker processes or in this one. What they
hold together does not depend on how the products were divided.
"""

from __future__ import annotations

import heapq
import json
import math
import random
import signal
import sqlite3
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.webshop.analysis import analyse
from envs.webshop.disk.format import ARRAYS, DATABASE, CatalogueError, dump_json, encode, pack_product
from envs.webshop.goals import SHUFFLE_SEED, draw_cap, draw_price
from envs.webshop.original import join
from envs.webshop.search import document_text, encode_length, length_factors, listed_under
from roll_envs.errors import RollError

Report = Callable[[str, float], None]
"""Hears the stage and how far it is."""

MAX_GOALS = 500_000_000
"""More would take hours to shuffle; the full catalogue has about seven per product."""

_REPORTED_TERMS = 1000

CATALOGUE_TABLES = (
    "products (doc INTEGER PRIMARY KEY, asin BLOB, packed BLOB)",
    "nouns (title BLOB PRIMARY KEY, nouns BLOB) WITHOUT ROWID",
    "goals (kind, first INTEGER, doc INTEGER, cap, weight, said BLOB, PRIMARY KEY (kind, first)) WITHOUT ROWID",
    "terms (term BLOB PRIMARY KEY, start INTEGER, stop INTEGER, peak) WITHOUT ROWID",
)
"""``first``: number, in catalogue order, of the first goal that a source makes; ``start``, ``stop``: of the postings of
a term; ``peak``: the largest of their saturations."""

SIDES = {
    "attributes": "items_ins_v2",
    "human_instructions": "items_human_ins",
    "reviews": "reviews",
    "title_nouns": "title_nouns",
}
"""Input files beside the products, as :func:`~envs.webshop.original.join` names them, and how their names begin."""


class Found(NamedTuple):
    """A product as the input files describe it."""

    doc: int
    where: str
    """File and number of its record."""
    record: str
    """As JSON."""
    sides: list[tuple[str, str]]
    """Role and JSON of its entries in the other files; of two in the same file the last counts."""


Segment = dict[str, list[tuple[Any, ...]]]
"""The rows that some products make, by table: ``products`` (document, product number, number of terms, prices, packed
product), ``goals`` (kind, document, combinations of options, what the instruction says), ``nouns`` (title, its nouns)
and ``postings`` (first document of the segment, term, pairs of document and count)."""


def make_segment(found: Sequence[Found]) -> Segment:
    """Join and analyse products that follow one another. Raises :class:`RollError` for a record that is wrong."""
    made: Segment = {"products": [], "goals": [], "nouns": [], "postings": []}
    postings: defaultdict[str, array[int]] = defaultdict(lambda: array("I"))
    for doc, where, record, rows in found:
        listing = join(json.loads(record), where=where, **{role: json.loads(entry) for role, entry in rows})
        product = listing.product
        terms = analyse(document_text(product))
        pricing = dump_json(product.pricing[:2])
        made["products"].append((doc, encode(product.asin), len(terms), pricing, pack_product(product)))
        for term, count in Counter(terms).items():
            postings[term].extend((doc, count))
        # No term holds a space: these are never taken for one.
        for query in listed_under(product):
            postings[query].extend((doc, 1))
        if listing.instruction is not None and listing.instruction_attributes:
            said = {"instruction": listing.instruction, "instruction_attributes": listing.instruction_attributes}
            # More would not fit into 64 bits; in the end such a product is refused by MAX_GOALS.
            combinations = min(math.prod(map(len, product.options.values())), 2**63 - 1)
            made["goals"].append(("synthetic", doc, combinations, dump_json(said)))
        for written in listing.human:
            if written.get("instruction_attributes"):
                made["goals"].append(("human", doc, 1, dump_json(written)))
        if listing.nouns is not None:
            made["nouns"].append((encode(product.title), dump_json(listing.nouns)))
    made["postings"].extend((found[0].doc, encode(term), pairs.tobytes()) for term, pairs in sorted(postings.items()))
    return made


def make_segments(tasks: Iterator[Sequence[Found]], workers: int) -> Iterator[Segment]:
    """Segments in the order of their tasks, made by worker processes in turn.

    Raises what a worker raised, and :class:`CatalogueError` when one died.
    """
    # Not forked, since this process may have threads; a pipe each, whose end tells that its worker is dead: through the
    # one pipe of a pool's results a worker that is killed while it writes leaves the others and the reader waiting.
    spawn, processes = get_context("spawn"), list[SpawnProcess]()
    asked: deque[Connection] = deque()
    try:
        for task in tasks:
            if len(asked) < workers:
                connection, end = spawn.Pipe()
                processes.append(spawn.Process(target=_work, args=(end,), daemon=True))
                processes[-1].start()
                end.close()
            else:
                connection = asked.popleft()
                yield _made(connection)
            with suppress(BrokenPipeError):  # of one that died, which is told in its turn
                connection.send(task)
            asked.append(connection)
        yield from map(_made, asked)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _made(connection: Connection) -> Segment:
    try:
        found: Segment | RollError = connection.recv()
    except (EOFError, OSError):
        problem = "a worker process was terminated abruptly (out of memory?); the same command goes on where it stopped"
        raise CatalogueError(problem) from None
    if isinstance(found, RollError):
        raise found
    return found


def _work(connection: Connection) -> None:
    """Make segments of what comes, until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    with suppress(EOFError, BrokenPipeError):
        while True:
            try:
                made: Segment | RollError = make_segment(connection.recv())
            except RollError as error:
                made = error
            connection.send(made)


def merge_segments(work: sqlite3.Connection, folder: Path, seed: int, report: Report) -> dict[str, int]:
    """Write the arrays and the database of a catalogue into an empty folder; what they hold, by number.

    Nothing is kept when it is interrupted: it takes minutes for a million products, and starts again from the rows.
    Files are written from beginning to end in an order that follows from their content, so that their bytes do too.
    """
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
        for table in CATALOGUE_TABLES:
            work.execute(f"CREATE TABLE made.{table}")
        work.execute("INSERT INTO made.products SELECT doc, asin, packed FROM products ORDER BY doc")
        work.execute("CREATE UNIQUE INDEX made.by_asin ON products (asin)")
        # Of equal titles the last counts.
        work.execute("INSERT OR REPLACE INTO made.nouns SELECT title, nouns FROM nouns ORDER BY title, rowid")
        in_order = np.fromiter(_column(work, "SELECT doc FROM made.products ORDER BY asin"), np.int64)
        np.argsort(in_order).astype(ARRAYS["ranks"]).tofile(folder / "ranks")
        report("goals", 0.0)
        counts = _write_goals(work, folder, seed)
        lengths = map(encode_length, _column(work, "SELECT length FROM products ORDER BY doc"))
        factors = length_factors(mean_length)[np.fromiter(lengths, np.uint8)]
        work.executemany("INSERT INTO made.terms VALUES (?, ?, ?, ?)", _write_postings(work, folder, factors, report))
        # Lists of departments, kinds and attributes are no terms of texts.
        of_texts = "SELECT count(*), total(stop - start) FROM made.terms WHERE substr(term, 1, 1) != x'3c'"
        [counts["terms"], counts["postings"]] = map(int, work.execute(of_texts).fetchone())
    work.execute("DETACH made")
    return counts | {"products": num_products, "filled_products": int(num_filled)}


def _column(work: sqlite3.Connection, query: str) -> Iterator[Any]:
    return (value for [value] in work.execute(query))


def _write_goals(work: sqlite3.Connection, folder: Path, seed: int) -> dict[str, int]:
    """Draw prices and the price caps of goals, as they are drawn in memory."""
    rng = random.Random(seed)
    pricing = _column(work, "SELECT pricing FROM products ORDER BY doc")
    prices = array("d", (draw_price(json.loads(known), rng) for known in pricing))
    np.asarray(prices, ARRAYS["prices"]).tofile(folder / "prices")
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
        np.asarray(order, ARRAYS[f"{kind}.order"]).tofile(folder / f"{kind}.order")
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
