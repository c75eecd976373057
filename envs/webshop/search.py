"""Full-text search over products in memory: BM25 as Lucene 9 computes it, in float32, with its one-byte lengths.

Score of a document for a query, with k1 = 0.9 and b = 0.4 (the settings of the original shop's Anserini searcher), over
the distinct terms of the query that the document holds::

    weight = float32(count of the term in the query) * idf
    weight - weight / (1 + freq / (k1 * (1 - b + b * length / mean length)))

where ``length`` is the number of terms of the document after a round trip through one byte, and the mean is taken over
the exact lengths of the documents that have terms. Equal scores are in order of the documents' names where those are
given (Anserini breaks ties by its string ``id``, the product number), else of document number.

A query counts up to its first 16,384 characters and its first 1,024 distinct terms: the second is the number of clauses
at which Lucene refuses a query, the first keeps an answer of a megabyte from costing more than a page of text.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from envs.arguments import check_int
from envs.webshop.analysis import analyse
from envs.webshop.types import Product
from roll_envs.errors import ConfigError

__all__ = [
    "MAX_QUERY_CHARS",
    "MAX_QUERY_TERMS",
    "MemoryIndex",
    "decode_length",
    "document_text",
    "encode_length",
    "idf",
    "length_factors",
    "listed_under",
    "term_weights",
]

K1, B = np.float32(0.9), np.float32(0.4)
MAX_QUERY_CHARS = 16_384
MAX_QUERY_TERMS = 1_024

# Lucene's NUM_FREE_VALUES: shorter lengths are stored as they are.
_EXACT_LENGTHS = 24
_MOST_LENGTH = 2**31 - 1


def document_text(product: Product) -> str:
    """What is indexed of a product, lower case: title, description, first bullet point, options with their values."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    bullet = product.bullet_points[0] if product.bullet_points else ""
    return " ".join((product.title, product.description, bullet, options)).lower()


def listed_under(product: Product) -> set[str]:
    """Queries that list a product instead of searching for it: ``<c> department``, ``<q> kind``, ``<a> attribute``."""
    return {f"<c> {product.category}", f"<q> {product.query}", *(f"<a> {name}" for name in product.attributes)}


def encode_length(length: int) -> int:
    """A length as one byte, as Lucene's ``SmallFloat.intToByte4``: exact up to 39, then four leading bits."""
    length = min(length, _MOST_LENGTH)
    if length < _EXACT_LENGTHS:
        return max(length, 0)
    rest = length - _EXACT_LENGTHS
    shift = rest.bit_length() - 4
    return _EXACT_LENGTHS + (rest if shift < 0 else (shift + 1) << 3 | (rest >> shift) & 7)


def decode_length(byte: int) -> int:
    """The shortest length that :func:`encode_length` turns into ``byte`` (0 to 255)."""
    if byte < _EXACT_LENGTHS:
        return byte
    shift, bits = divmod(byte - _EXACT_LENGTHS, 8)
    return _EXACT_LENGTHS + (bits if shift == 0 else (bits | 8) << (shift - 1))


_LENGTHS = np.array([decode_length(byte) for byte in range(256)], dtype=np.float32)


def idf(doc_count: int, doc_freq: int) -> np.float32:
    """Inverse document frequency: ``log(1 + (doc_count - doc_freq + 0.5) / (doc_freq + 0.5))``."""
    return np.float32(math.log(1 + (doc_count - doc_freq + 0.5) / (doc_freq + 0.5)))


def length_factors(mean_length: float) -> npt.NDArray[np.float32]:
    """For each of the 256 length bytes ``1 / (k1 * (1 - b + b * length / mean_length))``, rounded as Lucene's."""
    one = np.float32(1)
    return one / (K1 * ((one - B) + B * _LENGTHS / np.float32(mean_length)))


def term_weights(query: str) -> dict[str, int]:
    """The distinct terms of a query and how often each occurs, within the limits of this module."""
    counts = Counter(analyse(query[:MAX_QUERY_CHARS]))
    return counts if len(counts) <= MAX_QUERY_TERMS else dict(islice(counts.items(), MAX_QUERY_TERMS))


class MemoryIndex:
    """A :class:`~envs.webshop.types.SearchIndex` in memory; any thread may search, nothing changes after it is built.

    Arrays: 8 bytes for each (term, document), 8 for each term, 4 for each document; the terms themselves, in a dict,
    take the larger part in a small shop (2.1 MB in all for the 1,000 recorded products).
    """

    def __init__(
        self,
        *,
        terms: dict[str, int],
        starts: npt.NDArray[np.int64],
        docs: npt.NDArray[np.int32],
        saturations: npt.NDArray[np.float32],
        ranks: npt.NDArray[np.int32],
        num_filled: int,
    ) -> None:
        """Use :meth:`build`. Term ``t`` owns the postings from ``starts[t]`` up to ``starts[t + 1]``: its documents in
        rising order, and for each ``1 + freq * length factor``. ``ranks`` orders documents of equal score,
        ``num_filled`` documents have any term."""
        self._terms, self._starts, self._docs, self._saturations = terms, starts, docs, saturations
        self._ranks, self._num_filled = ranks, num_filled

    @classmethod
    def build(cls, texts: Iterable[str], names: Sequence[str] | None = None) -> MemoryIndex:
        """The index of these documents, numbered in their order from 0. ``names``, one for each document, put those of
        equal score in order. Raises :class:`~roll_envs.errors.ConfigError` when there are more or fewer of them."""
        terms: dict[str, int] = {}
        term_ids, freqs, sizes, lengths = array("i"), array("i"), array("i"), array("i")
        for text in texts:
            words = analyse(text)
            counts = Counter(words)
            term_ids.extend([terms.setdefault(word, len(terms)) for word in counts])
            freqs.extend(counts.values())
            sizes.append(len(counts))
            lengths.append(len(words))
        num_filled = sum(length > 0 for length in lengths)
        # Without any term the mean length does not matter, but must not be 0.
        factors = length_factors(sum(lengths) / max(num_filled, 1) or 1.0)
        of_doc = factors[np.array([encode_length(length) for length in lengths], dtype=np.uint8)]
        ids = np.array(term_ids, dtype=np.int32)
        # Stable: the documents of a term stay in rising order.
        order = np.argsort(ids, kind="stable")
        docs = np.repeat(np.arange(len(sizes), dtype=np.int32), np.array(sizes, dtype=np.int32))[order]
        starts = np.zeros(len(terms) + 1, dtype=np.int64)
        np.cumsum(np.bincount(ids, minlength=len(terms)), out=starts[1:])
        saturations = np.float32(1) + np.array(freqs, dtype=np.float32)[order] * of_doc[docs]
        return cls(
            terms=terms,
            starts=starts,
            docs=docs,
            saturations=saturations,
            ranks=_ranks(names, len(sizes)),
            num_filled=num_filled,
        )

    def __len__(self) -> int:
        return len(self._ranks)

    def search(self, query: str, k: int) -> list[int]:
        """Document numbers of the best ``k`` matches, best first."""
        found: list[int] = self._best(query, k)[0].tolist()
        return found

    def scores(self, query: str, k: int) -> list[tuple[int, float]]:
        """The best ``k`` matches, best first, with their scores."""
        docs, scores = self._best(query, k)
        return list(zip(docs.tolist(), scores.tolist(), strict=True))

    def _best(self, query: str, k: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        check_int("k", k, 0)
        # Lucene adds the float32 parts up in double precision and rounds the sum.
        sums = np.zeros(len(self._ranks))
        for term, count in term_weights(query).items():
            number = self._terms.get(term)
            if number is not None:
                start, end = self._starts[number], self._starts[number + 1]
                weight = np.float32(count) * idf(self._num_filled, int(end - start))
                sums[self._docs[start:end]] += weight - weight / self._saturations[start:end]
        found = np.flatnonzero(sums)
        scores = sums[found].astype(np.float32)
        if len(found) > k > 0:
            # Documents that tie with the k-th stay in: their order is decided below.
            kept = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
            found, scores = found[kept], scores[kept]
        order = np.lexsort((self._ranks[found], -scores))[:k]
        return found[order], scores[order]


def _ranks(names: Sequence[str] | None, num_docs: int) -> npt.NDArray[np.int32]:
    ranks = np.arange(num_docs, dtype=np.int32)
    if names is not None:
        if len(names) != num_docs:
            raise ConfigError(f"{len(names)} names for {num_docs} documents; give one name for each document, or none")
        ranks[sorted(range(num_docs), key=lambda doc: names[doc])] = np.arange(num_docs, dtype=np.int32)
    return ranks
