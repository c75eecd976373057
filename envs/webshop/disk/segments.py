"""A thousand records made into rows: products, sources of goals, and the documents of each term.

Segments are the unit of work, made in order by worker processes or in this one. What they hold together does not depend
on how the records were divided.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import NamedTuple

from envs.webshop.analysis import analyse
from envs.webshop.disk.format import CatalogueError, dump_json, encode, pack_product
from envs.webshop.original import join
from envs.webshop.search import document_text, listed_under

__all__ = ["SIDES", "Found", "Segment", "make_segment", "make_segments"]

SIDES = {
    "attributes": "items_ins_v2",
    "human_instructions": "items_human_ins",
    "reviews": "reviews",
    "title_nouns": "title_nouns",
}
"""Input files beside the products, and how their names begin."""


class Found(NamedTuple):
    """A product as the input files describe it."""

    doc: int
    where: str
    """File and number of its record."""
    record: str
    """As JSON."""
    sides: list[tuple[str, str]]
    """Role and JSON of its entries in the other files; of two in the same file the last counts."""


class Segment(NamedTuple):
    """The rows that some products make."""

    products: list[tuple[int, bytes, int, bytes, bytes]]
    """Document, product number, number of terms, prices, packed product."""
    goals: list[tuple[str, int, int, bytes]]
    """Kind, document, combinations of options, what the instruction says."""
    nouns: list[tuple[bytes, bytes]]
    """Title, its nouns."""
    postings: list[tuple[int, bytes, bytes]]
    """First document of the segment, term, pairs of document and count."""


def make_segment(found: Sequence[Found]) -> Segment:
    """Join and analyse products that follow one another. Raises :class:`RollError` for a record that is wrong."""
    made = Segment([], [], [], [])
    postings: defaultdict[str, array[int]] = defaultdict(lambda: array("I"))
    for doc, where, record, rows in found:
        sides = {role: json.loads(entry) for role, entry in rows}
        listing = join(
            json.loads(record),
            made=sides.get("attributes"),
            human=sides.get("human_instructions"),
            reviews=sides.get("reviews"),
            nouns=sides.get("title_nouns"),
            where=where,
        )
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
            said = {"instruction": listing.instruction, "instruction_attributes": listing.instruction_attributes}
            # More would not fit into 64 bits; in the end such a product is refused by MAX_GOALS.
            combinations = min(math.prod(map(len, product.options.values())), 2**63 - 1)
            made.goals.append(("synthetic", doc, combinations, dump_json(said)))
        for written in listing.human:
            if written.get("instruction_attributes"):
                made.goals.append(("human", doc, 1, dump_json(written)))
        if listing.nouns is not None:
            made.nouns.append((encode(product.title), dump_json(listing.nouns)))
    made.postings.extend((found[0].doc, encode(term), pairs.tobytes()) for term, pairs in sorted(postings.items()))
    return made


def make_segments(tasks: Iterator[Sequence[Found]], workers: int) -> Iterator[Segment]:
    """Segments in the order of their tasks; with ``workers=0`` they are made in this process.

    Raises what a worker raised, and :class:`CatalogueError` when one died.
    """
    if workers == 0:
        yield from map(make_segment, tasks)
        return
    # Not forked, since this process may have threads.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin_worker)
    made: deque[Future[Segment]] = deque()
    try:
        for task in tasks:
            made.append(pool.submit(make_segment, task))
            if len(made) > workers:
                yield made.popleft().result()
        while made:
            yield made.popleft().result()
    except BrokenProcessPool as error:
        raise CatalogueError(f"{error} (out of memory?); the same command goes on where it stopped") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
