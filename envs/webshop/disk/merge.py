"""Finished segments made into the files of a catalogue.

Nothing here is kept when it is interrupted: it takes a minute or two for a million products, and starts again from the
segments. Postings are merged a few million at a time, all other things in the order of the products.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.webshop.disk.blobs import Blobs, BlobWriter, Map, dump_json, encode, load_json, write_map
from envs.webshop.disk.format import (
    ArrayWriter,
    CatalogueError,
    FileEntry,
    Manifest,
    Source,
    describe_written,
    map_file,
    write_array,
)
from envs.webshop.disk.goals import MAX_GOALS, attribute_uses, draw, shuffled_order
from envs.webshop.search import length_factors

__all__ = ["merge_segments"]

_BATCH_POSTINGS = 4 << 20
_BLOBS = ("products", "synthetic", "human")


class _Segment(NamedTuple):
    folder: Path
    first_doc: int
    num_docs: int

    def array(self, name: str, dtype: str) -> NDArray[Any]:
        return map_file(self.folder / name, dtype)

    def blobs(self, name: str) -> Blobs:
        return Blobs.of_files(self.folder, name)


class _Output:
    """The files written so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, FileEntry] = {}

    def array(self, name: str, dtype: str, values: NDArray[Any] | bytes) -> None:
        self.files[name] = write_array(self.folder, name, dtype, values)

    def map(self, name: str, entries: Iterator[tuple[bytes, bytes]]) -> None:
        write_map(self.folder / name, entries)
        self.files[name] = describe_written(self.folder / name)

    def blobs(self, name: str, parts: Iterator[Blobs]) -> Blobs:
        with ExitStack() as held:
            writer = BlobWriter(self.folder, name, held)
            for part in parts:
                writer.extend(part)
            self.files.update(writer.close())
        return Blobs.of_files(self.folder, name)


def merge_segments(
    folders: Sequence[Path],
    metas: Sequence[Mapping[str, Any]],
    out: Path,
    *,
    seed: int,
    sources: Mapping[str, Source],
    progress: Callable[[str, float], None],
) -> Manifest:
    """Write all files of a catalogue but the manifest, which is returned; ``progress`` hears the stage and how far."""
    first_doc, segments = 0, []
    for folder, meta in zip(folders, metas, strict=True):
        segments.append(_Segment(folder, first_doc, meta["num_products"]))
        first_doc += meta["num_products"]
    if not first_doc:
        raise CatalogueError("the product file holds no product; there is nothing to build")
    output = _Output(out)
    progress("products", 0.0)
    blobs = {name: output.blobs(name, (segment.blobs(name) for segment in segments)) for name in _BLOBS}
    _merge_asins(segments, output)
    output.map("listed", _listed(segments))
    output.map("nouns", _nouns(segments))
    progress("goals", 0.0)
    counts = _write_goals(segments, blobs, output, seed)
    norms = np.concatenate([segment.array("norms", "|u1") for segment in segments])
    # The byte of a document without any term is 0.
    filled = int(np.count_nonzero(norms))
    factors = length_factors(sum(meta["total_length"] for meta in metas) / max(filled, 1) or 1.0)
    counts |= {"products": first_doc, "filled_products": filled}
    counts |= _merge_postings(segments, output, factors[norms], progress)
    return Manifest(counts=counts, seed=seed, sources=dict(sources), files=dict(output.files))


def _listed(segments: Sequence[_Segment]) -> Iterator[tuple[bytes, bytes]]:
    """Queries that list products, in order, with the documents of each."""
    # heapq.merge is stable: of equal queries, those of earlier segments come first.
    for query, same in groupby(heapq.merge(*map(_listed_in, segments), key=itemgetter(0)), key=itemgetter(0)):
        yield query, np.concatenate([docs for _, docs in same]).tobytes()


def _listed_in(segment: _Segment) -> Iterator[tuple[bytes, NDArray[Any]]]:
    for query, docs in Map(segment.folder / "listed").items():
        yield query, np.frombuffer(docs, "<u4") + np.uint32(segment.first_doc)


def _nouns(segments: Sequence[_Segment]) -> Iterator[tuple[bytes, bytes]]:
    for segment in segments:
        known = segment.blobs("nouns")
        for number in range(len(known)):
            title, nouns = load_json(known[number])
            yield encode(title), dump_json(nouns)


def _merge_asins(segments: Sequence[_Segment], output: _Output) -> None:
    """Product numbers in order with the document of each, and the place of each document in that order."""
    numbers: list[tuple[bytes, int]] = []
    for segment in segments:
        asins = segment.blobs("asins")
        numbers.extend((asins[doc], segment.first_doc + doc) for doc in range(len(asins)))
    numbers.sort()
    with ExitStack() as held:
        writer = BlobWriter(output.folder, "asins", held)
        for asin, _ in numbers:
            writer.append(asin)
        output.files.update(writer.close())
    docs = np.fromiter((doc for _, doc in numbers), "<u4", len(numbers))
    ranks = np.empty(len(docs), "<u4")
    ranks[docs] = np.arange(len(docs))
    output.array("asins.docs", "<u4", docs)
    output.array("asins.ranks", "<u4", ranks)


def _write_goals(
    segments: Sequence[_Segment], blobs: Mapping[str, Blobs], output: _Output, seed: int
) -> dict[str, int]:
    docs = {
        name: np.concatenate(
            [segment.array(f"{name}.docs", "<u4") + np.uint32(segment.first_doc) for segment in segments]
        )
        for name in ("human", "synthetic")
    }
    pricing = np.concatenate([segment.array("pricing", "<f8") for segment in segments]).reshape(-1, 3)
    prices, human_caps, synthetic_caps = draw(pricing, docs["human"], docs["synthetic"], seed)
    output.array("prices", "<f8", prices)
    combinations = np.concatenate([segment.array("synthetic.combinations", "<u8") for segment in segments])
    total = sum(combinations.tolist())
    if total > MAX_GOALS:
        worst = int(docs["synthetic"][int(np.argmax(combinations))])
        raise CatalogueError(
            f"the options make {total} synthetic goals, more than {MAX_GOALS}; most come from product {worst} "
            f"(from 0) with {int(combinations.max())} combinations: leave it out, or build from fewer products"
        )
    output.array("synthetic.ends", "<u4", np.cumsum(combinations))
    output.array("synthetic.uses", "|u1", dump_json(attribute_uses(blobs["synthetic"], combinations)))
    for name, caps, count in (("human", human_caps, len(human_caps)), ("synthetic", synthetic_caps, total)):
        output.array(f"{name}.docs", "<u4", docs[name])
        output.array(f"{name}.caps", "<f8", caps)
        output.array(f"{name}.order", "<u4", np.frombuffer(shuffled_order(count), "u4"))
    return {"human_goals": len(human_caps), "synthetic_goals": total}


def _merge_postings(
    segments: Sequence[_Segment],
    output: _Output,
    factors: NDArray[np.float32],
    progress: Callable[[str, float], None],
) -> dict[str, int]:
    """Write documents and saturations (``1 + count * factor of the document``) of all terms."""
    progress("terms", 0.0)
    term_numbers, num_terms = _merge_terms(segments, output)
    sizes = np.zeros(num_terms, np.int64)
    for numbers, segment in zip(term_numbers, segments, strict=True):
        sizes[numbers] += segment.array("terms.docs", "<u4")
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if num_terms else 0
    output.array("postings.offsets", "<u8", np.concatenate([np.zeros(1, np.int64), ends]))
    local_ends = [np.cumsum(s.array("terms.docs", "<u4"), dtype=np.int64) for s in segments]
    with ExitStack() as held:
        docs = ArrayWriter(output.folder, "postings.docs", "<u4", held)
        saturations = ArrayWriter(output.folder, "postings.saturations", "<f4", held)
        peaks = ArrayWriter(output.folder, "terms.peaks", "<f4", held)
        start = 0
        while start < num_terms:
            done = int(ends[start - 1]) if start else 0
            # One term at least, however long its list is.
            stop = max(start + 1, int(np.searchsorted(ends, done + _BATCH_POSTINGS, side="right")))
            batch_docs, counts = _gather(segments, term_numbers, local_ends, start, stop)
            saturated = np.float32(1) + counts.astype(np.float32) * factors[batch_docs]
            starts = np.concatenate([np.zeros(1, np.int64), ends[start : stop - 1] - done])
            docs.write(batch_docs)
            saturations.write(saturated)
            # Each term has a document: for an empty slice reduceat would take a value of the next term.
            peaks.write(np.maximum.reduceat(saturated, starts))
            start = stop
            progress("postings", int(ends[stop - 1]) / total)
        output.files |= {writer.name: writer.close() for writer in (docs, saturations, peaks)}
    return {"terms": num_terms, "postings": total}


def _gather(
    segments: Sequence[_Segment],
    term_numbers: Sequence[NDArray[Any]],
    local_ends: Sequence[NDArray[Any]],
    start: int,
    stop: int,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Documents and counts of the terms from ``start`` to ``stop``, by term and then by document."""
    terms, docs, counts = [], [], []
    for segment, numbers, ends in zip(segments, term_numbers, local_ends, strict=True):
        low, high = np.searchsorted(numbers, [start, stop])
        if low == high:
            continue
        begin = int(ends[low - 1]) if low else 0
        own_ends = ends[low:high]
        lengths = np.diff(own_ends, prepend=begin)
        terms.append(np.repeat(numbers[low:high], lengths))
        docs.append(segment.array("postings.docs", "<u4")[begin : own_ends[-1]] + np.uint32(segment.first_doc))
        counts.append(segment.array("postings.counts", "<u4")[begin : own_ends[-1]])
    # Stable, and segments are in order: the documents of a term stay in rising order.
    order = np.argsort(np.concatenate(terms), kind="stable")
    return np.concatenate(docs)[order], np.concatenate(counts)[order]


def _merge_terms(segments: Sequence[_Segment], output: _Output) -> tuple[list[NDArray[Any]], int]:
    """Write all terms in order; per segment, the numbers that its terms get."""
    numbers = [array("I") for _ in segments]
    number = -1
    merged = heapq.merge(*(_terms(segment, place) for place, segment in enumerate(segments)))
    with ExitStack() as held:
        writer = BlobWriter(output.folder, "terms", held)
        for number, (term, found) in enumerate(groupby(merged, key=itemgetter(0))):
            writer.append(term)
            for _, place in found:
                numbers[place].append(number)
        output.files.update(writer.close())
    return [np.array(own, np.uint32) for own in numbers], number + 1


def _terms(segment: _Segment, place: int) -> Iterator[tuple[bytes, int]]:
    terms = segment.blobs("terms")
    # A thousand at a time: one by one, each term would cost a slice of a mapped array.
    for start in range(0, len(terms), 1 << 10):
        offsets = terms.offsets[start : start + (1 << 10) + 1].tolist()
        text = terms.bytes[offsets[0] : offsets[-1]].tobytes()
        for low, high in pairwise(offsets):
            yield text[low - offsets[0] : high - offsets[0]], place
