"""Exact BM25 search over postings on disk: arithmetic and order of :class:`~envs.webshop.search.MemoryIndex`.

A million products hold the commonest words hundreds of thousands of times, so that most of what a sentence matches
cannot be among the best. Terms are taken in order of the most that each can add to a score (Turtle and Flood,
"Query evaluation: strategies and optimizations", 1995: MaxScore). As soon as the terms still to come cannot lift a new
document to the best ``k``, only the documents that are still in the race are looked up in the longer lists. To know
soon what it takes, the final scores of the leaders are looked up on the way. The few documents that are left are
scored again, exactly as in memory: sums in double precision, in the order of the query's terms.
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

_LEADERS = 2
"""Leaders of the race for each document wanted."""

_LOOK_AHEAD = 100_000
"""After so many entries were added (and then twice as many), it pays to look up the final scores of the leaders."""

_SAMPLE = 61


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
        self._ranks = map_array(folder, "asins.ranks", manifest)
        self._num_docs = manifest.counts["products"]
        self._num_filled = manifest.counts["filled_products"]

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskIndex, self._reopen

    def __len__(self) -> int:
        return self._num_docs

    def search(self, query: str, k: int) -> Sequence[int]:
        """Document numbers of the best ``k`` matches, best first; equal scores in order of product number."""
        return [doc for doc, _ in self.scores(query, k)]

    def scores(self, query: str, k: int) -> list[tuple[int, float]]:
        """The best ``k`` matches, best first, with their scores."""
        check_int("k", k, 0)
        terms = self._read_terms(query)
        if not terms or k == 0:
            return []
        docs = self._candidates(sorted(terms, key=lambda term: -term.most), k)
        scores = self._exact(terms, docs)
        order = np.lexsort((self._ranks[docs], -scores))[:k]
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
        used = added = 0
        pause = _LOOK_AHEAD
        for term in terms:
            if race.excludes(to_come[used]):
                if race.size(sums, to_come[used]) * _LOOKUP_COST < term.end - term.start:
                    break
                np.add.at(sums, self._docs[term.start : term.end].astype(np.intp), self._parts(term))
            else:
                added += self._run(term, race, sums)
                if added > pause:
                    race.raise_bar(self._ahead(terms[used + 1 :], race.leaders, sums))
                    added, pause = 0, 2 * pause
            used += 1
        docs = race.entrants(sums, to_come[used])
        for term, rest in zip(terms[used:], to_come[used + 1 :], strict=True):
            held, gains = self._look_up(term, docs)
            reached = sums[docs]
            reached[held] += gains
            sums[docs] = reached
            docs = race.narrow(docs, reached, rest)
        return docs

    def _run(self, term: _Term, race: _Race, sums: NDArray[np.float32]) -> int:
        """Add a term for all its documents and find the leaders among them; the number of documents."""
        docs = self._docs[term.start : term.end].astype(np.intp)
        reached = sums.take(docs) + self._parts(term)
        sums[docs] = reached
        race.see(docs, reached, sums)
        return len(docs)

    def _ahead(self, terms: Sequence[_Term], docs: NDArray[Any], sums: NDArray[np.float32]) -> NDArray[np.float32]:
        """What some documents will have when all terms are added."""
        reached: NDArray[np.float32] = sums[docs]
        for term in terms:
            held, gains = self._look_up(term, docs)
            reached[held] += gains
        return reached

    def _look_up(self, term: _Term, docs: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Which of some documents (in order) hold a term, and what it adds to those."""
        own = self._docs[term.start : term.end]
        docs = docs.astype(np.uint32)  # another type would be reached by converting the whole list
        places = np.searchsorted(own, docs)
        places[places == len(own)] = 0
        held = own[places] == docs
        return held, _gains(term.weight, self._saturations[term.start : term.end][places[held]])

    def _exact(self, terms: Sequence[_Term], docs: NDArray[Any]) -> NDArray[np.float32]:
        sums = np.zeros(len(docs), np.float64)
        for term in terms:
            held, gains = self._look_up(term, docs)
            sums[held] += gains
        rounded: NDArray[np.float32] = sums.astype(np.float32)
        return rounded


class _Race:
    """Which documents can still be among the best ``k``: those that may reach the bar.

    The bar is a score that ``k`` documents are known to reach. The leaders are those with the best sums so far: when
    their final scores are looked up early, the bar rises nearly to where it ends.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self.bar = np.float32(0)
        self.leaders: NDArray[Any] = np.empty(0, np.intp)
        self.last_leader = np.float32(0)
        """The least sum with which a document was a leader."""

    def _low(self, rest: float) -> np.float32:
        """The least sum with which a document can still make it when the terms to come add at most ``rest``."""
        return np.float32(self.bar - self.bar * _SLACK - np.float32(rest))

    def excludes(self, rest: float) -> bool:
        """Whether documents that have nothing yet are out of the race."""
        return bool(self._low(rest) > 0)

    def see(self, docs: NDArray[Any], reached: NDArray[np.float32], sums: NDArray[np.float32]) -> None:
        """Find the leaders after a term was added to the sums of ``docs``."""
        over = np.flatnonzero(reached > self.last_leader)
        if not len(over):
            return
        most = self.k * _LEADERS
        candidates = np.union1d(self.leaders, docs[over[_largest(reached[over], most)]])
        self.leaders = np.sort(candidates[_largest(sums[candidates], most)])
        values = sums[self.leaders]
        if len(values) == most:
            self.last_leader = values.min()
        self.raise_bar(values)

    def raise_bar(self, scores: NDArray[np.float32]) -> None:
        """Take note of scores (or less) that different documents reach."""
        over = scores[scores > self.bar]
        if len(over) >= self.k:
            self.bar = np.partition(over, len(over) - self.k)[len(over) - self.k]

    def size(self, sums: NDArray[np.float32], rest: float) -> int:
        """About how many documents are still in the race, from a sample."""
        return int(np.count_nonzero(sums[::_SAMPLE] >= self._low(rest))) * _SAMPLE

    def entrants(self, sums: NDArray[np.float32], rest: float) -> NDArray[Any]:
        """All documents still in the race, in order."""
        low = self._low(rest)
        return np.flatnonzero(sums >= low if low > 0 else sums)

    def narrow(self, docs: NDArray[Any], reached: NDArray[np.float32], rest: float) -> NDArray[Any]:
        """Those of ``docs`` that are still in the race after another term."""
        self.raise_bar(reached)
        return docs[reached >= self._low(rest)]


def _largest(values: NDArray[np.float32], count: int) -> NDArray[Any] | slice:
    """Places of the ``count`` largest, in any order."""
    return slice(None) if len(values) <= count else np.argpartition(values, len(values) - count)[-count:]
