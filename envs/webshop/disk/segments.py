"""One stretch of the product file made into rows: products, sources of goals, and the documents of each term.

Segments are the unit of work and of resuming. Those of a build are made in order, by worker processes or in this one;
what they hold together does not depend on how the file was cut.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from envs.webshop.analysis import analyse
from envs.webshop.disk.format import CatalogueError, dump_json, encode, open_database, pack_product
from envs.webshop.disk.json_stream import iter_array
from envs.webshop.original import Listing, join
from envs.webshop.search import document_text, listed_under

__all__ = ["SIDES", "Segment", "SegmentTask", "make_segment", "make_segments", "serve"]

SIDES = {
    "attributes": "items_ins_v2",
    "human_instructions": "items_human_ins",
    "reviews": "reviews",
    "title_nouns": "title_nouns",
}
"""Input files beside the products, and how their names begin."""


class SegmentTask(NamedTuple):
    """A stretch of the product file."""

    products: Path
    sides: Path
    """Database of the entries of the other input files."""
    number: int
    start: int
    """Byte where the record before it ended; 0 at the start of the file."""
    end: int
    """Byte where its last record ends."""
    first_record: int
    num_records: int
    skip: frozenset[int]
    """Numbers of records that are no product: an unusable or repeated product number."""
    first_doc: int


class Segment(NamedTuple):
    """The rows that a stretch makes."""

    task: SegmentTask
    products: list[tuple[int, bytes, int, bytes, bytes]]
    """Document, product number, number of terms, prices, packed product."""
    goals: list[tuple[str, int, int, bytes]]
    """Kind, document, combinations of options, what the instruction says."""
    nouns: list[tuple[bytes, bytes]]
    """Title, its nouns."""
    postings: list[tuple[int, bytes, bytes]]
    """Number of the segment, term, pairs of document and count; in the order of the terms."""


def make_segment(task: SegmentTask) -> Segment:
    """Read and analyse a stretch. Raises :class:`RollError` for a record that is wrong."""
    made = Segment(task, [], [], [], [])
    postings: defaultdict[str, array[int]] = defaultdict(lambda: array("I"))
    for doc, listing in enumerate(_listings(task), task.first_doc):
        product = listing.product
        terms = analyse(document_text(product))
        pricing = dump_json(product.pricing[:2])
        made.products.append((doc, encode(product.asin), len(terms), pricing, pack_product(product)))
        for term, count in Counter(terms).items():
            postings[term].extend((doc, count))
        # No term holds a space: these are never taken for one.
        for query in listed_under(product):
            postings[query].extend((doc, 1))
        if listing.instruction is not None and listing.instruction_attributes:
            # More would not fit into 64 bits; in the end such a product is refused by MAX_GOALS.
            combinations = min(math.prod(map(len, product.options.values())), 2**63 - 1)
            said = dump_json([listing.instruction, listing.instruction_attributes])
            made.goals.append(("synthetic", doc, combinations, said))
        for written in listing.human:
            if written.get("instruction_attributes"):
                keys = ("instruction", "instruction_attributes", "instruction_options")
                made.goals.append(("human", doc, 1, dump_json({key: written.get(key) for key in keys})))
        if listing.nouns is not None:
            made.nouns.append((encode(product.title), dump_json(listing.nouns)))
    ordered = sorted((encode(term), pairs) for term, pairs in postings.items())
    made.postings.extend((task.number, term, np.asarray(pairs, "<u4").tobytes()) for term, pairs in ordered)
    return made


def _listings(task: SegmentTask) -> Iterator[Listing]:
    """The products of a stretch, joined with what the other files say of them."""
    with closing(open_database(task.sides)) as sides:
        records = iter_array(task.products, start=task.start, first_number=task.first_record)
        for record in islice(records, task.num_records):
            if record.number not in task.skip:
                # Of equal keys the last counts, as in JSON.
                key = encode(str(record.value.get("asin")))
                rows = sides.execute("SELECT role, value FROM sides WHERE key = ? ORDER BY rowid", (key,))
                entries = {role: json.loads(value) for role, value in rows}
                yield join(
                    record.value,
                    made=entries.get("attributes"),
                    human=entries.get("human_instructions"),
                    reviews=entries.get("reviews"),
                    nouns=entries.get("title_nouns"),
                    where=f"{task.products}, record {record.number}",
                )


def make_segments(tasks: Iterator[SegmentTask], workers: int) -> Iterator[Segment]:
    """Segments in the order of their tasks; with ``workers=0`` they are made in this process.

    Raises what a worker raised, and :class:`CatalogueError` when one died.
    """
    if workers == 0:
        yield from map(make_segment, tasks)
        return
    busy: deque[_Worker] = deque()
    try:
        for task in tasks:
            made = None
            if len(busy) < workers:
                busy.append(_Worker())
            else:
                # The one that began first makes the next segment.
                made = busy[0].answer()
                busy.rotate(-1)
            with suppress(BrokenPipeError):  # that it died is noticed when its answer is read
                busy[-1].connection.send(task)
            if made is not None:
                yield made
        for worker in busy:
            yield worker.answer()
    finally:
        for worker in busy:
            worker.close()


_SERVE = f"import sys; end, *sys.path = sys.argv[1:]; from {__name__} import serve; serve(int(end))"


class _Worker:
    """A process that makes segments; it ends with this one, after the segment that it is making."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        command = [sys.executable, "-c", _SERVE, str(theirs.fileno()), *sys.path]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()

    def answer(self) -> Segment:
        try:
            made: Segment | Exception = self.connection.recv()
        except (EOFError, OSError):
            raise CatalogueError(
                f"a worker process ended with status {self.process.wait()} (out of memory?); the same command goes on "
                "where it stopped"
            ) from None
        if isinstance(made, Exception):
            raise made
        return made

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


def serve(end: int) -> None:
    """Answer the tasks that come through a connection, until its other end is closed."""
    with suppress(EOFError, OSError, KeyboardInterrupt), Connection(end) as connection:
        while True:
            task = connection.recv()
            try:
                connection.send(make_segment(task))
            except Exception as error:
                connection.send(error)
