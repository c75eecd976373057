"""Exact BM25 search over postings on disk: arithmetic and order of :class:`~envs.webshop.search.MemoryIndex`.

A million products hold the commonest words hundreds of thousands of times, so that most of what a sentence matches
cannot be among the best. Terms are taken in order of the most that each can add to a score (Turtle and Flood,
"Query evaluation: strategies and optimizations", 1995: MaxScore). As soon as the terms still to come cannot lift a new
document to the best ``k``, only the documents that are still in the race are looked up in the longer lists. The few
that are left are scored again, exactly as in memory: sums in double precision, in the order of the query's terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.arguments import check_int
from envs.webshop.disk.blobs import Blobs, encode, find_blob
from envs.webshop.disk.format import Manifest, map_array
from envs.webshop.search import idf, term_weights

__all__ = ["DiskIndex"]

_SLACK = np.float32(1e-4)
"""Sums of the race are in single precision; what is closer to the bar than this (relatively) stays in."""

_LOOKUP_COST = 12
"""Finding one document in a list by bisection takes about as long as adding up this many entries."""


class _Term(NamedTuple):
    """A term of a query, with its part of the postings."""

    weight: np.float32
    start: int
    end: int
    most: float
    """The most that it adds to any document."""


def _gains(weight: np.float32, saturations: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a term adds to scores, in the order of operations that Lucene rounds in."""
    parts: NDArray[np.float32] = weight - weight / saturations
    return parts


class DiskIndex:
    """A :class:`SearchIndex` over the files of a catalogue."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._reopen = (folder, manifest)
        self._terms = Blobs.of_manifest(folder, "terms", manifest)
        self._peaks = map_array(folder, "terms.peaks", manifest)
        self._offsets = map_array(folder, "postings.offsets", manifest)
        self._docs = map_array(folder, "postings.docs", manifest)
        self._saturations = map_array(folder, "postings.saturations", manifest)
        self._num_docs = manifest.counts["products"]
        self._num_filled = manifest.counts["filled_products"]

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskIndex, self._reopen

    def __len__(self) -> int:
        return self._num_docs

    def search(self, query: str, k: int) -> Sequence[int]:
        """Document numbers of the best ``k`` matches, best first; equal scores in order of document number."""
        return [doc for doc, _ in self.scores(query, k)]

    def scores(self, query: str, k: int) -> list[tuple[int, float]]:
        """The best ``k`` matches, best first, with their scores."""
        check_int("k", k, 0)
        terms = self._read_terms(query)
        if not terms or k == 0:
            return []
        docs = self._candidates(sorted(terms, key=lambda term: -term.most), k)
        scores = self._exact(terms, docs)
        order = np.lexsort((docs, -scores))[:k]
        return list(zip(docs[order].tolist(), scores[order].tolist(), strict=True))

    def _read_terms(self, query: str) -> list[_Term]:
        """The terms of a query that any document holds, in its order."""
        terms: list[_Term] = []
        for text, count in term_weights(query).items():
            number = find_blob(self._terms, encode(text))
            if number is not None:
                start, end = int(self._offsets[number]), int(self._offsets[number + 1])
                weight = np.float32(count) * idf(self._num_filled, end - start)
                terms.append(_Term(weight, start, end, float(weight - weight / self._peaks[number])))
        return terms

    def _parts(self, term: _Term) -> NDArray[np.float32]:
        """What a term adds to the score of each of its documents."""
        return _gains(term.weight, self._saturations[term.start : term.end])

    def _candidates(self, terms: Sequence[_Term], k: int) -> NDArray[Any]:
        """Documents among which the best ``k`` are, in order; ``terms`` by what they can add, most first."""
        to_come = np.cumsum([0.0, *(term.most for term in reversed(terms))])[::-1]
        sums = np.zeros(self._num_docs, np.float32)
        race = _Race(k)
        used = 0
        for term, rest in zip(terms, to_come[:-1], strict=True):
            if race.excludes(rest):
                break
            docs = self._docs[term.start : term.end]
            reached = sums[docs] + self._parts(term)
            sums[docs] = reached
            race.see(docs, reached, sums)
            used += 1
        docs = race.entrants(sums, to_come[used])
        for term, rest in zip(terms[used:], to_come[used + 1 :], strict=True):
            self._add(term, docs, sums)
            docs = race.narrow(docs, sums[docs], rest)
        return docs

    def _add(self, term: _Term, docs: NDArray[Any], sums: NDArray[np.float32]) -> None:
        """Add what a term gives to some documents (in order), or to all where that is quicker."""
        own = self._docs[term.start : term.end]
        if len(docs) * _LOOKUP_COST > len(own):
            sums[own] += self._parts(term)
            return
        places = np.searchsorted(own, docs)
        places[places == len(own)] = 0
        held = own[places] == docs
        sums[docs[held]] += _gains(term.weight, self._saturations[term.start : term.end][places[held]])

    def _exact(self, terms: Sequence[_Term], docs: NDArray[Any]) -> NDArray[np.float32]:
        sums = np.zeros(len(docs), np.float64)
        for term in terms:
            own = self._docs[term.start : term.end]
            places = np.searchsorted(own, docs)
            places[places == len(own)] = 0
            held = own[places] == docs
            sums[held] += _gains(term.weight, self._saturations[term.start : term.end][places[held]])
        rounded: NDArray[np.float32] = sums.astype(np.float32)
        return rounded


class _Race:
    """Which documents can still be among the best ``k``: those that may reach the bar, the k-th best sum so far."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.bar = np.float32(0)
        self.leaders: NDArray[Any] = np.empty(0, np.uint32)

    def _low(self, rest: float) -> np.float32:
        """The least sum with which a document can still make it when the terms to come add at most ``rest``."""
        return np.float32(self.bar - self.bar * _SLACK - np.float32(rest))

    def excludes(self, rest: float) -> bool:
        """Whether documents that have nothing yet are out of the race."""
        return bool(self._low(rest) > 0)

    def see(self, docs: NDArray[Any], reached: NDArray[np.float32], sums: NDArray[np.float32]) -> None:
        """Raise the bar after a term was added to the sums of ``docs``."""
        over = np.flatnonzero(reached > self.bar)
        if not len(over):
            return
        ahead = docs[over[self._best(reached[over])]]
        candidates = np.union1d(self.leaders, ahead)
        self.leaders = candidates[self._best(sums[candidates])]
        if len(self.leaders) == self.k:
            self.bar = max(self.bar, sums[self.leaders].min())

    def _best(self, values: NDArray[np.float32]) -> NDArray[Any] | slice:
        """Places of the ``k`` largest, in any order."""
        return slice(None) if len(values) <= self.k else np.argpartition(values, len(values) - self.k)[-self.k :]

    def entrants(self, sums: NDArray[np.float32], rest: float) -> NDArray[Any]:
        """All documents still in the race, in order."""
        low = self._low(rest)
        return np.flatnonzero(sums >= low if low > 0 else sums).astype(np.uint32)

    def narrow(self, docs: NDArray[Any], reached: NDArray[np.float32], rest: float) -> NDArray[Any]:
        """Those of ``docs`` that are still in the race after another term."""
        if len(docs) > self.k:
            self.bar = max(self.bar, np.partition(reached, len(docs) - self.k)[len(docs) - self.k])
        return docs[reached >= self._low(rest)]
