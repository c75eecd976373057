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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.arguments import check_int
from envs.webshop.disk.format import CatalogueFiles, encode, reading
from envs.webshop.search import idf, term_weights

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
    docs: NDArray[Any]
    saturations: NDArray[np.float32]
    upper_bound: float
    """The largest value that the term adds to the score of any document."""

    def gains(self, places: NDArray[Any] | slice = slice(None)) -> NDArray[np.float32]:
        """What the term adds to the scores of its documents, in the order of operations that Lucene rounds in."""
        gains: NDArray[np.float32] = self.weight - self.weight / self.saturations[places]
        return gains


class DiskIndex:
    """A :class:`SearchIndex` over the files of a catalogue."""

    def __init__(self, files: CatalogueFiles) -> None:
        self._files = files

    def documents(self, query: str) -> tuple[int, ...]:
        """Documents that a query of :func:`~envs.webshop.search.listed_under` lists, in order; kept as of a term."""
        with reading(f"the list of {query} in {str(self._files.folder)!r}"):
            found = self._files.row("SELECT start, stop FROM terms WHERE term = ?", encode(query))
            return () if found is None else tuple(self._files.arrays["postings.docs"][slice(*found)].tolist())

    def search(self, query: str, k: int) -> Sequence[int]:
        """Document numbers of the best ``k`` matches, best first; equal scores in order of product number."""
        return [doc for doc, _ in self.scores(query, k)]

    def scores(self, query: str, k: int) -> list[tuple[int, float]]:
        """The best ``k`` matches, best first, with their scores."""
        check_int("k", k, 0)
        where = str(self._files.folder)
        with reading(f"the list of words in {where!r}"):
            terms = self._read_terms(query)
        if not terms or k == 0:
            return []
        with reading(f"the list of products of a word in {where!r}"):
            docs = _candidates(sorted(terms, key=lambda term: -term.upper_bound), k, len(self._files.arrays["ranks"]))
            scores = _add_up(terms, docs, np.zeros(len(docs), np.float64)).astype(np.float32)
            order = np.lexsort((self._files.arrays["ranks"][docs], -scores))[:k]
            return list(zip(docs[order].tolist(), scores[order].tolist(), strict=True))

    def _read_terms(self, query: str) -> list[_Term]:
        """The terms of a query that any document holds, in its order."""
        docs, saturations = self._files.arrays["postings.docs"], self._files.arrays["postings.saturations"]
        terms: list[_Term] = []
        for text, count in term_weights(query).items():
            found = self._files.row("SELECT start, stop, peak FROM terms WHERE term = ?", encode(text))
            if found is not None:
                start, stop, peak = found
                weight = np.float32(count) * idf(self._files.manifest.counts["filled_products"], stop - start)
                bound = float(weight - weight / np.float32(peak))
                terms.append(_Term(weight, docs[start:stop], saturations[start:stop], bound))
        return terms


def _candidates(terms: Sequence[_Term], k: int, num_docs: int) -> NDArray[Any]:
    """Documents that contain the best ``k``, ascending; ``terms`` in descending order of their upper bounds.

    The threshold is a score that ``k`` documents are known to reach. The leaders are the documents with the best sums
    so far: computing their final scores early raises the threshold nearly to its final value.
    """
    # bounds_left[i]: the most that terms i, i + 1, ... can add together.
    bounds_left = np.cumsum([0.0, *(term.upper_bound for term in reversed(terms))])[::-1]
    sums = np.zeros(num_docs, np.float32)
    threshold = last_leader = np.float32(0)
    leaders: NDArray[Any] = np.empty(0, np.intp)
    used = added = 0
    pause = _LOOK_AHEAD
    for term in terms:
        low = _least_sum(threshold, bounds_left[used])
        # From there on it is quicker to look up the candidates than to add whole lists.
        if low > 0 and np.count_nonzero(sums[::_SAMPLE] >= low) * _SAMPLE * _LOOKUP_COST < len(term.docs):
            break
        docs = term.docs.astype(np.intp)
        reached = sums.take(docs) + term.gains()
        sums[docs] = reached
        used, added = used + 1, added + len(docs)
        over = np.flatnonzero(reached > last_leader)
        if len(over):
            leading = np.union1d(leaders, docs[over[_largest(reached[over], k * _LEADERS)]])
            leaders = np.sort(leading[_largest(sums[leading], k * _LEADERS)])
            if len(leaders) == k * _LEADERS:
                last_leader = sums[leaders].min()
            threshold = _raised(threshold, sums[leaders], k)
        if added > pause:
            threshold = _raised(threshold, _add_up(terms[used:], leaders, sums[leaders]), k)
            added, pause = 0, 2 * pause
    low = _least_sum(threshold, bounds_left[used])
    # With a bound of 0 or less, every document with a sum may still reach the threshold.
    docs = np.flatnonzero(sums >= low if low > 0 else sums)
    for term, rest in zip(terms[used:], bounds_left[used + 1 :], strict=True):
        reached = sums[docs] = _add_up([term], docs, sums[docs])
        threshold = _raised(threshold, reached, k)
        docs = docs[reached >= _least_sum(threshold, rest)]
    return docs


def _least_sum(threshold: np.float32, rest: float) -> np.float32:
    """Least sum with which a document can still reach the threshold if the remaining terms add at most ``rest``."""
    return np.float32(threshold - threshold * _SLACK - np.float32(rest))


def _raised(threshold: np.float32, scores: NDArray[np.float32], k: int) -> np.float32:
    """The threshold, given lower bounds of the scores of different documents."""
    over = scores[scores > threshold]
    return np.partition(over, len(over) - k)[len(over) - k] if len(over) >= k else threshold


def _add_up(terms: Sequence[_Term], docs: NDArray[Any], reached: NDArray[Any]) -> NDArray[Any]:
    """``reached``, sums of some documents (in order), after more terms were added to it."""
    docs = docs.astype(np.uint32)  # another type would be reached by converting whole lists
    for term in terms:
        places = np.searchsorted(term.docs, docs)
        # Behind the last document; any valid place will do, since the comparison fails there.
        places[places == len(term.docs)] = 0
        held = term.docs[places] == docs
        reached[held] += term.gains(places[held])
    return reached


def _largest(values: NDArray[np.float32], count: int) -> NDArray[Any] | slice:
    """Places of the ``count`` largest, in any order."""
    return slice(None) if len(values) <= count else np.argpartition(values, len(values) - count)[-count:]
