"""BM25 as arithmetic on term counts, and exact top-k.

The variants and their names are those of the bm25s package (X. H. Lù, "BM25S: Orders of magnitude faster lexical search
via eager sparse scoring", arXiv:2407.03618), whose formulas follow C. Kamphuis et al., "Which BM25 do you mean? A
large-scale reproducibility study of scoring variants", ECIR 2020. Scores are float64. A document's score for a query is
summed over the terms in vocabulary order, whatever else is scored in the same call, so documents with equal counts and
lengths tie exactly.

Notation: n documents, df documents that hold a term, tf its count in a document,
norm = 1 - b + b * length / mean length.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numba import njit
from scipy.sparse import csc_matrix, csr_matrix

from tools.counting import Counts
from tools.errors import InputError

BLOCK_BYTES = 1 << 24  # scores, or weights, computed at a time by a thread


def idf_robertson(df, n):
    """ln((n - df + 0.5) / (df + 0.5)), not below 0. Robertson et al., TREC-3 (1994); the floor is bm25s's."""
    return np.log(np.maximum((n - df + 0.5) / (df + 0.5), 1.0))


def idf_lucene(df, n):
    """ln(1 + (n - df + 0.5) / (df + 0.5)). Lucene's BM25Similarity; Kamphuis et al., table 1."""
    return np.log(1 + (n - df + 0.5) / (df + 0.5))


def idf_atire(df, n):
    """ln(n / df). Trotman et al., "Towards an efficient and effective search engine" (2012)."""
    return np.log(n / df)


def idf_bm25l(df, n):
    """ln((n + 1) / (df + 0.5)). Lv and Zhai, "When documents are very long, BM25 fails!", SIGIR 2011."""
    return np.log((n + 1) / (df + 0.5))


def idf_bm25_plus(df, n):
    """ln((n + 1) / df). Lv and Zhai, "Lower-bounding term frequency normalization", CIKM 2011."""
    return np.log((n + 1) / df)


def tf_robertson(tf, norm, k1, delta):
    """tf / (k1 norm + tf): saturation without the constant factor k1 + 1. Lucene's since version 8 as well."""
    return tf / (k1 * norm + tf)


def tf_atire(tf, norm, k1, delta):
    """(k1 + 1) tf / (k1 norm + tf)."""
    return (k1 + 1) * tf / (k1 * norm + tf)


def tf_bm25l(tf, norm, k1, delta):
    """(k1 + 1) (c + delta) / (k1 + c + delta), c = tf / norm."""
    c = tf / norm
    return (k1 + 1) * (c + delta) / (k1 + c + delta)


def tf_bm25_plus(tf, norm, k1, delta):
    """(k1 + 1) tf / (k1 norm + tf) + delta."""
    return (k1 + 1) * tf / (k1 * norm + tf) + delta


class Variant(NamedTuple):
    idf: Callable
    tf: Callable


VARIANTS = {
    "robertson": Variant(idf_robertson, tf_robertson),
    "lucene": Variant(idf_lucene, tf_robertson),
    "atire": Variant(idf_atire, tf_atire),
    "bm25l": Variant(idf_bm25l, tf_bm25l),
    "bm25+": Variant(idf_bm25_plus, tf_bm25_plus),
}


class Weights(NamedTuple):
    """A document's score for a term is `absent[term]`, plus `present[document, term]` if the document holds it."""

    present: csc_matrix  # float64[documents, terms]
    absent: np.ndarray  # float64[terms]; zeros but for bm25l and bm25+


def count_matrix(counts: Counts, n_terms: int) -> csr_matrix:
    """Counts as a matrix, texts x terms."""
    return csr_matrix((counts.counts, counts.terms, counts.indptr), (len(counts.lengths), n_terms))


def weigh(
    corpus: Counts,
    n_terms: int,
    method: str = "robertson",
    k1: float = 1.5,
    b: float = 0.75,
    delta: float = 0.5,
    threads: int = 1,
) -> Weights:
    """Document-term weights of a counted corpus by the variant `method`.

    As in bm25s, an absent term scores what it would with tf = 0 in a document of mean length, and a term that no
    document holds scores nothing. Raises InputError for a corpus without documents.
    """
    n = len(corpus.lengths)
    if n == 0:
        raise InputError("the corpus has no documents: BM25 needs at least one to score")
    idf, tf = VARIANTS[method]
    lengths, mean_length = corpus.lengths, corpus.lengths.sum(dtype=np.int64) / n
    tf_of = count_matrix(corpus, n_terms).tocsc()
    del corpus  # as large as what is made of it
    df = np.diff(tf_of.indptr)
    idf_of = np.zeros(n_terms)
    idf_of[df > 0] = idf(df[df > 0], n)
    absent_tf = tf(0.0, 1.0, k1, delta)
    present = np.empty(tf_of.nnz)

    def weigh_terms(first: int, last: int) -> None:
        entries = slice(tf_of.indptr[first], tf_of.indptr[last])
        norm = 1 - b + b * lengths[tf_of.indices[entries]] / mean_length
        idf_of_entries = np.repeat(idf_of[first:last], df[first:last])
        present[entries] = idf_of_entries * (tf(tf_of.data[entries], norm, k1, delta) - absent_tf)

    blocks = np.unique(np.searchsorted(tf_of.indptr, np.arange(0, tf_of.nnz, BLOCK_BYTES // 8)))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(weigh_terms, blocks, [*blocks[1:], n_terms]))
    return Weights(csc_matrix((present, tf_of.indices, tf_of.indptr), (n, n_terms)), idf_of * absent_tf)


@njit(nogil=True, cache=True)
def _add_scores(term_starts, documents, present, query_starts, query_terms, query_counts, scores):
    for query in range(len(query_starts) - 1):
        for t in range(query_starts[query], query_starts[query + 1]):
            term = query_terms[t]
            for p in range(term_starts[term], term_starts[term + 1]):
                scores[query, documents[p]] += query_counts[t] * present[p]


def score(weights: Weights, queries: csr_matrix) -> np.ndarray:
    """Scores float64[queries, documents]; `queries` is a count matrix, so a repeated term adds each time."""
    scores = np.zeros((queries.shape[0], weights.present.shape[0]))
    _add_scores(
        *(weights.present.indptr.astype(np.int64), weights.present.indices.astype(np.int32), weights.present.data),
        *(queries.indptr.astype(np.int64), queries.indices.astype(np.int32), queries.data.astype(np.float64)),
        scores,
    )
    return scores + (queries @ weights.absent)[:, None]


def top_k(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices int64[q, k'] and scores float64[q, k'] of the k best of float64[q, n], k' = min(k, n).

    Exact, in descending order, ties by the lower index, at the boundary as well.
    """
    n_queries, n = scores.shape
    k = min(k, n)
    indices = np.empty((n_queries, k), np.int64)
    for row, best in zip(scores, indices, strict=True):
        kth = np.partition(row, n - k)[n - k] if k else np.inf
        above = np.flatnonzero(row > kth)
        chosen = np.concatenate([above, np.flatnonzero(row == kth)[: k - len(above)]])
        best[:] = chosen[np.lexsort((chosen, -row[chosen]))]
    return indices, np.take_along_axis(scores, indices, axis=1)


def rank(weights: Weights, queries: csr_matrix, k: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Top-k of every query, as `top_k` gives it; each thread has no more than BLOCK_BYTES of scores at a time."""
    n_queries, n = queries.shape[0], weights.present.shape[0]
    block = max(1, min(BLOCK_BYTES // (8 * n), -(-n_queries // threads)))
    with ThreadPoolExecutor(threads) as pool:
        blocks = (queries[first : first + block] for first in range(0, n_queries, block))
        ranked = list(pool.map(lambda some: top_k(score(weights, some), k), blocks))
    if not ranked:
        return np.empty((0, min(k, n)), np.int64), np.empty((0, min(k, n)))
    indices, scores = zip(*ranked, strict=True)
    return np.concatenate(indices), np.concatenate(scores)
