"""One stretch of the product file made into a segment: products, inverted terms and goal sources, on disk.

Segments are the unit of work and of resuming. What a segment holds follows from its stretch of the file alone, not
from who made it or when, so that a build that was interrupted ends with the same bytes as one that was not.
"""

from __future__ import annotations

import math
import os
import shutil
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from envs.webshop.analysis import analyse
from envs.webshop.disk.blobs import BlobWriter, Map, dump_json, encode, load_json, write_map
from envs.webshop.disk.format import write_array, write_json
from envs.webshop.disk.json_stream import Record, iter_array
from envs.webshop.disk.store import pack_product
from envs.webshop.original import Listing, join
from envs.webshop.search import document_text, encode_length, listed_under

__all__ = ["SIDES", "SegmentTask", "SideMaps", "build_segment", "segment_folder"]

SIDES = ("attributes", "human_instructions", "reviews", "title_nouns")
_COMPRESSION = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentTask:
    """A stretch of the product file."""

    number: int
    start: int
    """Byte where the record before it ended; 0 at the start of the file."""
    end: int
    """Byte where its last record ends."""
    first_record: int
    num_records: int
    skip: tuple[int, ...]
    """Records (counted from ``first_record``) that are no product: an unusable or repeated product number."""


class SideMaps:
    """The entries of the other input files by product number; a file that was not given is empty."""

    def __init__(self, work: Path) -> None:
        paths = {name: work / "maps" / name for name in SIDES}
        self._maps = {name: Map(path) for name, path in paths.items() if path.exists()}

    def _entry(self, name: str, asin: str) -> Any:
        held = self._maps[name].get(asin) if name in self._maps else None
        return None if held is None else load_json(held)

    def listing(self, record: dict[str, Any], where: str) -> Listing:
        """A record joined with what the other files say of it."""
        made, human, reviews, nouns = (self._entry(name, str(record.get("asin"))) for name in SIDES)
        return join(record, made=made, human=human, reviews=reviews, nouns=nouns, where=where)


def segment_folder(work: Path, number: int) -> Path:
    """Where a finished segment lies."""
    return work / "segments" / f"{number:06d}"


def build_segment(task: SegmentTask, products: Path, work: Path) -> None:
    """Make a segment; its folder appears when it is whole. Raises :class:`RollError` for a record that is wrong."""
    final = segment_folder(work, task.number)
    draft = final.with_name(f"{final.name}.draft{os.getpid()}")
    draft.mkdir(parents=True)
    sides = SideMaps(work)
    skip = frozenset(task.skip)
    with ExitStack() as held:
        writer = _SegmentWriter(draft, held)
        for record in _records(task, products):
            if record.number - task.first_record not in skip:
                writer.add(sides.listing(record.value, f"{products}, record {record.number}"))
        counts = writer.close()
    write_json(draft / "segment.json", {**asdict(task), **counts})
    # A worker of an interrupted build may have finished it meanwhile.
    if final.exists():
        shutil.rmtree(draft)
    else:
        draft.rename(final)


def _records(task: SegmentTask, products: Path) -> Iterator[Record]:
    return islice(iter_array(products, start=task.start, first_number=task.first_record), task.num_records)


class _SegmentWriter:
    """Collects the terms of a few thousand products and writes everything else as it comes."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self.folder, self.held = folder, held
        self.products = BlobWriter(folder, "products", held)
        self.asins = BlobWriter(folder, "asins", held)
        self.synthetic = BlobWriter(folder, "synthetic", held)
        self.human = BlobWriter(folder, "human", held)
        self.nouns = BlobWriter(folder, "nouns", held)
        self.listed: dict[str, array[int]] = {}
        self.pricing = array("d")
        self.norms = bytearray()
        self.total_length = 0
        self.synthetic_docs, self.combinations = array("I"), array("Q")
        self.human_docs = array("I")
        self.term_ids: dict[str, int] = {}
        self.terms_of_docs, self.counts_of_docs, self.num_terms = array("I"), array("I"), array("I")

    def add(self, listing: Listing) -> None:
        product, doc = listing.product, len(self.norms)
        self.products.append(zlib.compress(pack_product(product), _COMPRESSION))
        self.asins.append(encode(product.asin))
        for query in listed_under(product):
            self.listed.setdefault(query, array("I")).append(doc)
        low_high = product.pricing[:2]
        self.pricing.extend((len(low_high), *low_high, *([0.0] * (2 - len(low_high)))))
        self._add_terms(analyse(document_text(product)))
        if listing.instruction is not None and listing.instruction_attributes:
            self.synthetic.append(dump_json([listing.instruction, listing.instruction_attributes]))
            self.synthetic_docs.append(doc)
            # More would not fit into 64 bits; `merge` refuses such a product by its MAX_GOALS.
            self.combinations.append(min(math.prod(map(len, product.options.values())), 2**63))
        for written in listing.human:
            if written.get("instruction_attributes"):
                kept = {
                    key: written.get(key) for key in ("instruction", "instruction_attributes", "instruction_options")
                }
                self.human.append(dump_json(kept))
                self.human_docs.append(doc)
        if listing.nouns is not None:
            self.nouns.append(dump_json([product.title, listing.nouns]))

    def _add_terms(self, terms: list[str]) -> None:
        ids = self.term_ids
        counts = Counter(terms)
        self.terms_of_docs.extend([ids.setdefault(term, len(ids)) for term in counts])
        self.counts_of_docs.extend(counts.values())
        self.num_terms.append(len(counts))
        self.norms.append(encode_length(len(terms)))
        self.total_length += len(terms)

    def close(self) -> dict[str, int]:
        for blobs in (self.products, self.asins, self.synthetic, self.human, self.nouns):
            blobs.close()
        docs = ((encode(query), np.array(docs, "<u4").tobytes()) for query, docs in sorted(self.listed.items()))
        write_map(self.folder / "listed", docs)
        write_array(self.folder, "pricing", "<f8", np.frombuffer(self.pricing, "f8"))
        write_array(self.folder, "norms", "|u1", np.frombuffer(self.norms, "u1"))
        write_array(self.folder, "synthetic.docs", "<u4", np.array(self.synthetic_docs, "<u4"))
        write_array(self.folder, "synthetic.combinations", "<u8", np.array(self.combinations, "<u8"))
        write_array(self.folder, "human.docs", "<u4", np.array(self.human_docs, "<u4"))
        self._write_postings()
        return {"num_products": len(self.norms), "total_length": self.total_length}

    def _write_postings(self) -> None:
        encoded = {encode(term): number for term, number in self.term_ids.items()}
        ordered = sorted(encoded)
        terms = BlobWriter(self.folder, "terms", self.held)
        for term in ordered:
            terms.append(term)
        terms.close()
        # Terms were numbered as they came; from here on they have their place in sorted order.
        rank = np.empty(len(ordered), np.uint32)
        rank[np.array([encoded[term] for term in ordered], np.int64)] = np.arange(len(ordered), dtype=np.uint32)
        ranks = rank[np.array(self.terms_of_docs, np.int64)]
        docs = np.repeat(np.arange(len(self.num_terms), dtype="<u4"), np.array(self.num_terms, np.int64))
        order = np.argsort(ranks, kind="stable")
        write_array(self.folder, "postings.docs", "<u4", docs[order])
        write_array(self.folder, "postings.counts", "<u4", np.array(self.counts_of_docs, "<u4")[order])
        write_array(self.folder, "terms.docs", "<u4", np.bincount(ranks, minlength=len(ordered)))
