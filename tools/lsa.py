"""Latent semantic analysis: a dense encoder that needs no model and no download.

S. Deerwester et al., "Indexing by latent semantic analysis", JASIS 41 (1990): the truncated singular value
decomposition A = U S V' of the document-term matrix, whose right singular vectors V take a text into a space where
terms that occur together lie together. A holds tf-idf weights (1 + ln tf) (1 + ln((1 + n) / (1 + df))), each row of
length 1. A text's embedding is its row of A, times V, normalised; so documents and queries are embedded alike.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import norm, svds

from tools.counting import count_texts, empty_form_table
from tools.errors import InputError
from tools.scoring import count_matrix
from tools.tokenizers import TOKENIZERS

TOKENIZER = "english_porter_stop"
DIMENSIONS = 128
MOST_TERMS = 1 << 17  # V has a row a term; terms of so few documents relate hardly any
ROUNDING = 1e-6  # lengths and shares of the largest singular value that are no more than this are rounding errors


class GrowingVocabulary(dict):
    """Term -> position. A term that is looked up and not there is given the next, so that every term is counted."""

    def get(self, term: str, default: int = -1) -> int:
        return self.setdefault(term, len(self))


def count_terms(texts: Iterable[pa.Array], vocabulary: dict[str, int]) -> csr_matrix:
    """How often each text holds each term of the vocabulary, int32[texts, terms]."""
    counts = count_texts(texts, empty_form_table(TOKENIZERS[TOKENIZER], vocabulary))
    return count_matrix(counts, len(vocabulary))


def weigh_tf_idf(counts: csr_matrix, idf: np.ndarray) -> csr_matrix:
    """Rows of length 1 of (1 + ln tf) idf, float64."""
    weights = csr_matrix(((1 + np.log(counts.data)) * idf[counts.indices], counts.indices, counts.indptr), counts.shape)
    weights.data /= np.repeat(norm(weights, axis=1), np.diff(weights.indptr))
    return weights


def term_vectors(weights: csr_matrix) -> np.ndarray:
    """The right singular vectors of documents x terms, float64[terms, d], by falling singular value.

    d = min(DIMENSIONS, documents - 1, terms - 1), less where the matrix has a lower rank. The start vector is fixed and
    each vector's largest component is positive, so the same matrix gives the same vectors.
    """
    if min(weights.shape) < 2:
        documents, terms = weights.shape
        raise InputError(f"lsa: a corpus of {documents} documents and {terms} terms is too small; 2 of each are needed")
    start = np.random.RandomState(0).standard_normal(min(weights.shape))
    _, singular, vectors = svds(
        weights, k=min(DIMENSIONS, min(weights.shape) - 1), v0=start, return_singular_vectors="vh"
    )
    order = np.argsort(-singular, kind="stable")
    vectors = vectors[order[singular[order] > ROUNDING * singular.max()]].T
    largest = np.abs(vectors).argmax(axis=0)
    return vectors * np.sign(vectors[largest, np.arange(vectors.shape[1])])


def project(weights: csr_matrix, vectors: np.ndarray) -> np.ndarray:
    """Embeddings of length 1, float64[texts, d], of rows of length 1; zeros where nothing of a row is in the space."""
    embeddings = weights @ vectors
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return np.where(lengths > ROUNDING, embeddings / np.maximum(lengths, ROUNDING), 0)


def embed(corpus: Iterable[pa.Array], queries: Iterable[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of length 1 in the corpus's own space: float64[queries, d] and float64[documents, d].

    A text without a known term is all zeros. The texts pass by once; what is kept is a count a term and document.
    """
    vocabulary = GrowingVocabulary()
    counts = count_terms(corpus, vocabulary)
    df = np.bincount(counts.indices, minlength=len(vocabulary))
    kept = np.sort(np.argsort(-df, kind="stable")[:MOST_TERMS])
    idf = 1 + np.log((1 + counts.shape[0]) / (1 + df[kept]))
    weights = weigh_tf_idf(counts[:, kept], idf)
    del counts
    vectors = term_vectors(weights)
    query_weights = weigh_tf_idf(count_terms(queries, dict(vocabulary))[:, kept], idf)
    return project(query_weights, vectors), project(weights, vectors)
