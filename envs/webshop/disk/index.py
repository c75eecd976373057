"""Exact BM25 search over postings on disk: arithmetic and order of :class:`~envs.webshop.search.MemoryIndex`.

A million products hold the commonest words hundreds of thousands of times, so that most of what a sentence matches
cannot be among the best. Terms are taken in order of the upper bound of what each can add to a score (MaxScore: Turtle
and Flood, "Query evaluation: strategies and optimizations", 1995). As soon as the remaining terms cannot lift a new
document to the best ``k``, only the remaining candidates are looked up in the longer lists. To raise the threshold
early, the final scores of the leading documents are computed on the way. The few documents that are left are scored
again, exactly as in memory: sums in double precision, in the order of the query's terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.arguments import check_int
from envs.webshop.disk.blobs import Blobs, encode, find_blob
from envs.webshop.disk.format import Manifest, map_array, reading
from envs.webshop.search import idf, term_weights

__all__ = ["DiskIndex"]

_SLACK = np.float32(1e-4)
"""Partial sums are in single precision; documents closer to the threshold than this (relatively) stay candidates."""

_LOOKUP_COST = 12
"""Finding one document in a list by bisection takes about as long as adding up this many entries."""

_LEADERS = 2
"""Leading documents that are tracked for each document wanted."""

_LOOK_AHEAD = 100_000
"""After so many entries were added (and then twice as many), it pays to look up the final scores of the leaders."""

# One document in so many is looked at to estimate the number of candidates.
_SAMPLE = 61


class _Term(NamedTuple):
    """A term of a query, with its part of the postings."""

    weight: np.float32
    start: int
    end: int
    upper_bound: float
    """The largest value that the term adds to the score of any document."""


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
        with reading(f"the list of words in {self._terms.where}"):
            terms = self._read_terms(query)
        if not terms or k == 0:
            return []
        with reading(f"the list of products of a word in {self._terms.where}"):
            docs = self._candidates(sorted(terms, key=lambda term: -term.upper_bound), k)
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
        """Documents that contain the best ``k``, ascending; ``terms`` in descending order of their upper bounds."""
        # bounds_left[i]: the most that terms i, i + 1, ... can add together.
        bounds_left = np.cumsum([0.0, *(term.upper_bound for term in reversed(terms))])[::-1]
        sums = np.zeros(self._num_docs, np.float32)
        candidates = _TopCandidates(k)
        used = added = 0
        pause = _LOOK_AHEAD
        for term in terms:
            if candidates.excludes(bounds_left[used]):
                # From here on it is quicker to look up the candidates than to add whole lists.
                if candidates.size(sums, bounds_left[used]) * _LOOKUP_COST < term.end - term.start:
                    break
                np.add.at(sums, self._docs[term.start : term.end].astype(np.intp), self._parts(term))
            else:
                added += self._run(term, candidates, sums)
                if added > pause:
                    candidates.raise_threshold(self._ahead(terms[used + 1 :], candidates.leaders, sums))
                    added, pause = 0, 2 * pause
            used += 1
        docs = candidates.remaining(sums, bounds_left[used])
        for term, rest in zip(terms[used:], bounds_left[used + 1 :], strict=True):
            held, gains = self._look_up(term, docs)
            reached = sums[docs]
            reached[held] += gains
            sums[docs] = reached
            docs = candidates.narrow(docs, reached, rest)
        return docs

    def _run(self, term: _Term, candidates: _TopCandidates, sums: NDArray[np.float32]) -> int:
        """Add a term to all its documents and update the leaders; returns the number of documents."""
        docs = self._docs[term.start : term.end].astype(np.intp)
        reached = sums.take(docs) + self._parts(term)
        sums[docs] = reached
        candidates.update(docs, reached, sums)
        return len(docs)

    def _ahead(self, terms: Sequence[_Term], docs: NDArray[Any], sums: NDArray[np.float32]) -> NDArray[np.float32]:
        """Sums of some documents after all terms are added."""
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
        # Behind the last document; any valid place will do, since the comparison fails there.
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


class _TopCandidates:
    """Tracks which documents can still be among the best ``k``: those that may reach the threshold.

    The threshold is a score that ``k`` documents are known to reach. The leaders are those with the best sums so far:
    computing their final scores early raises the threshold nearly to its final value.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self.threshold = np.float32(0)
        self.leaders: NDArray[Any] = np.empty(0, np.intp)
        self.last_leader = np.float32(0)
        """The least sum with which a document was a leader."""

    def _least_sum(self, rest: float) -> np.float32:
        """Least sum with which a document can still reach the threshold if the remaining terms add at most ``rest``."""
        return np.float32(self.threshold - self.threshold * _SLACK - np.float32(rest))

    def excludes(self, rest: float) -> bool:
        """Whether documents with a sum of 0 can no longer reach the threshold."""
        return bool(self._least_sum(rest) > 0)

    def update(self, docs: NDArray[Any], reached: NDArray[np.float32], sums: NDArray[np.float32]) -> None:
        """Find the leaders after a term was added to the sums of ``docs``."""
        over = np.flatnonzero(reached > self.last_leader)
        if not len(over):
            return
        most = self.k * _LEADERS
        leading = np.union1d(self.leaders, docs[over[_largest(reached[over], most)]])
        self.leaders = np.sort(leading[_largest(sums[leading], most)])
        values = sums[self.leaders]
        if len(values) == most:
            self.last_leader = values.min()
        self.raise_threshold(values)

    def raise_threshold(self, scores: NDArray[np.float32]) -> None:
        """Raise the threshold, given lower bounds of the scores of different documents."""
        over = scores[scores > self.threshold]
        if len(over) >= self.k:
            self.threshold = np.partition(over, len(over) - self.k)[len(over) - self.k]

    def size(self, sums: NDArray[np.float32], rest: float) -> int:
        """Estimated number of remaining candidates, from a sample of the documents."""
        return int(np.count_nonzero(sums[::_SAMPLE] >= self._least_sum(rest))) * _SAMPLE

    def remaining(self, sums: NDArray[np.float32], rest: float) -> NDArray[Any]:
        """All remaining candidates, in order."""
        low = self._least_sum(rest)
        # With a bound of 0 or less, every document with a sum may still reach the threshold.
        return np.flatnonzero(sums >= low if low > 0 else sums)

    def narrow(self, docs: NDArray[Any], reached: NDArray[np.float32], rest: float) -> NDArray[Any]:
        """Those of ``docs`` that remain candidates after another term."""
        self.raise_threshold(reached)
        return docs[reached >= self._least_sum(rest)]


def _largest(values: NDArray[np.float32], count: int) -> NDArray[Any] | slice:
    """Places of the ``count`` largest, in any order."""
    return slice(None) if len(values) <= count else np.argpartition(values, len(values) - count)[-count:]
