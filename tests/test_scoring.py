import multiprocessing
import os
import random
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from math import log

import bm25s
import numpy as np
import pyarrow as pa
import pytest

from tools import counting, scoring
from tools.counting import count_corpus, count_queries
from tools.errors import InputError
from tools.scoring import VARIANTS, count_matrix, rank, score, top_k, weigh
from tools.tokenizers import tokenize

pytestmark = pytest.mark.once  # no use of the library


def zipfian_texts(n: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    words = np.array(["".join(letters) for letters in rng.choice(list("aeioubdgklmnrst"), (3000, 6))])
    return [
        " ".join(words[np.minimum(rng.zipf(1.3, size), len(words)) - 1]) for size in rng.integers(0, 120, n).tolist()
    ]


def count(corpus: list[str], queries: list[str], tokenizer: str = "regex"):
    vocabulary, query_counts = count_queries(queries, tokenizer)
    corpus_counts = count_corpus([lambda: [pa.array(corpus, pa.string())]], vocabulary, tokenizer)
    return corpus_counts, count_matrix(query_counts, len(vocabulary)), len(vocabulary)


def score_texts(corpus, queries, tokenizer="regex", **parameters):
    corpus_counts, query_counts, n_terms = count(corpus, queries, tokenizer)
    return score(weigh(corpus_counts, n_terms, **parameters), query_counts)


def text_arrays(texts: list[str]) -> list[pa.Array]:
    return [pa.array(texts)]


def die() -> list[pa.Array]:
    os._exit(1)


@pytest.mark.parametrize("method", VARIANTS)
def test_scores_and_top_500_agree_with_bm25s(method):
    corpus, queries = zipfian_texts(2000), zipfian_texts(20, seed=1)
    retriever = bm25s.BM25(method=method, k1=1.5, b=0.75, delta=0.5)
    retriever.index([tokenize(text, "regex") for text in corpus], show_progress=False)
    tokens = [tokenize(query, "regex") for query in queries]
    theirs = retriever.retrieve(tokens, k=500, show_progress=False)
    scores = score_texts(corpus, queries, method=method)
    for row, query in zip(scores, tokens, strict=True):
        if query:
            np.testing.assert_allclose(row, retriever.get_scores(query), rtol=1e-4, atol=1e-6)
    indices, best = top_k(scores, 500)
    np.testing.assert_allclose(best, theirs.scores, rtol=1e-4, atol=1e-6)
    # Ids may differ only where the other engine's float32 scores, or its ties, cannot tell: equal scores either way.
    their_best = np.take_along_axis(scores, theirs.documents.astype(np.int64), axis=1)
    np.testing.assert_allclose(their_best, best, rtol=1e-4, atol=1e-6)
    clearly_in = best > best[:, -1:] * (1 + 1e-4) + 1e-6
    for row in range(len(queries)):
        assert set(indices[row][clearly_in[row]]) <= set(theirs.documents[row])


def test_robertson_worked_by_hand():
    corpus = ["x x y", "y", "z z", "w w", "w w"]
    # 5 documents of 3, 1, 2, 2, 2 tokens, 2 on average: norm = 0.25 + 0.75 length / 2 = 1.375, 0.625, 1, 1, 1.
    # idf: x is in 1 document, ln(4.5 / 1.5) = ln 3; y in 2, ln(3.5 / 2.5) = ln 1.4.
    # tf / (1.5 norm + tf): x twice in document 0, 2 / (2.0625 + 2); y once, 1 / 3.0625 there and 1 / 1.9375 in 1.
    # The query says y twice, so its weight counts twice.
    x, y0, y1 = log(3) * 2 / 4.0625, log(1.4) / 3.0625, log(1.4) / 1.9375
    scores = score_texts(corpus, ["y x y"], method="robertson", k1=1.5, b=0.75)
    np.testing.assert_allclose(scores, [[x + 2 * y0, 2 * y1, 0, 0, 0]], rtol=1e-14)
    np.testing.assert_allclose(scores[0, :2], [0.5408552806 + 0.2197369708, 0.3473261797], rtol=1e-9)
    assert score_texts(["a", "a", "b"], ["a"])[0].tolist() == [0, 0, 0]  # in most documents: idf has a floor of 0


def test_ties_go_by_corpus_order_at_the_boundary_too():
    scores = np.array([[1.0, 3, 2, 3, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0]])
    indices, best = top_k(scores, 4)
    assert indices.tolist() == [[1, 3, 2, 0], [0, 1, 2, 3]]
    assert best[0].tolist() == [3, 3, 2, 1]
    assert indices.dtype == np.int64 and best.dtype == np.float64


def test_top_k_equals_a_stable_sort():
    scores = np.random.default_rng(0).integers(-3, 6, (50, 200)).astype(np.float64)
    for k in (0, 1, 7, 199, 200, 500):
        assert top_k(scores, k)[0].tolist() == np.argsort(-scores, axis=1, kind="stable")[:, :k].tolist()


@pytest.mark.parametrize("method", VARIANTS)
def test_query_without_known_term_ranks_in_corpus_order(method):
    corpus_counts, query_counts, n_terms = count(["a b", "", "c"], ["unheard of", ""])
    indices, scores = rank(weigh(corpus_counts, n_terms, method=method), query_counts, k=10)
    assert indices.tolist() == [[0, 1, 2]] * 2
    assert not scores.any()


def test_no_queries():
    corpus_counts, query_counts, n_terms = count(["a b"], [])
    assert rank(weigh(corpus_counts, n_terms), query_counts, k=10)[0].shape == (0, 1)


def test_empty_corpus_is_an_input_error():
    corpus_counts, _, n_terms = count([], ["a"])
    with pytest.raises(InputError, match=r"^the corpus has no documents: .*$"):
        weigh(corpus_counts, n_terms)


def test_empty_documents_count_in_the_mean_length():
    assert score_texts(["", "", ""], ["a"]).tolist() == [[0, 0, 0]]
    # Lengths 1, 0, 0, 0: mean 1/4, norm = 0.25 + 0.75 * 4 = 3.25; idf = ln(3.5 / 1.5).
    scores = score_texts(["a", "", "", ""], ["a"])
    np.testing.assert_allclose(scores, [[log(3.5 / 1.5) / (1.5 * 3.25 + 1), 0, 0, 0]], rtol=1e-14)


@pytest.mark.parametrize("threads", [1, 3, 50])
def test_scores_do_not_depend_on_blocks_and_threads(monkeypatch, threads):
    corpus_counts, query_counts, n_terms = count(zipfian_texts(300), zipfian_texts(30, seed=2))
    indices, scores = rank(weigh(corpus_counts, n_terms, method="bm25+"), query_counts, 50)
    monkeypatch.setattr(scoring, "BLOCK_BYTES", 8)  # a term, a query
    one_by_one = rank(weigh(corpus_counts, n_terms, method="bm25+", threads=threads), query_counts, 50, threads)
    assert one_by_one[0].tobytes() == indices.tobytes() and one_by_one[1].tobytes() == scores.tobytes()


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.string_view()])
def test_slices_nulls_and_text_types(type_):
    texts = pa.array(["out", "a b a", None, "", "ünï b", "out"], type_)
    lengths, indptr, terms, counts = count_corpus([lambda: [texts.slice(1, 4), texts[:0]]], ["a", "b", "ünï"], "regex")
    assert lengths.tolist() == [3, 0, 0, 2]
    assert indptr.tolist() == [0, 2, 2, 2, 4]
    assert terms.tolist() == [0, 1, 1, 2] and counts.tolist() == [2, 1, 1, 1]


def counted_bytes(counts) -> list[bytes]:
    return [array.tobytes() for array in counts]


def test_small_chunks_and_tables_count_the_same(monkeypatch):
    texts = [*zipfian_texts(400), " ".join(f"w{i}" for i in range(40_000)), "Σ a’b “c” " * 50]
    vocabulary, _ = count_queries(texts[::7] + texts[-2:], "stemmer:en")
    partitions = [partial(text_arrays, texts)]
    expected = counted_bytes(count_corpus(partitions, vocabulary, "stemmer:en"))
    monkeypatch.setattr(counting, "CHUNK_BYTES", 500)
    monkeypatch.setattr(counting, "FORMS_KEPT", 100)
    monkeypatch.setattr(counting, "FIRST_SLOTS", 4)
    with ThreadPoolExecutor(1) as fresh_thread:
        assert counted_bytes(count_corpus(partitions, vocabulary, "stemmer:en", fresh_thread)) == expected


def test_one_and_two_workers_give_the_same_bytes():
    texts = [*zipfian_texts(900), "curly “quotes” — and a\0b"]
    vocabulary, _ = count_queries(zipfian_texts(20, seed=3), "english_porter_stop")
    partitions = [partial(text_arrays, texts[i : i + 100]) for i in range(0, len(texts), 100)]
    arguments = (vocabulary, "english_porter_stop")
    alone = counted_bytes(count_corpus(partitions, *arguments))
    with ThreadPoolExecutor(2) as executor:
        assert counted_bytes(count_corpus(partitions, *arguments, executor)) == alone
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        assert counted_bytes(count_corpus(partitions, *arguments, executor, in_flight=3)) == alone
        with pytest.raises(InputError, match=r"^a worker died while counting partition 1; .*$"):
            count_corpus([partitions[0], die], *arguments, executor, in_flight=1)


def test_partitions_are_consumed_lazily_and_gathered_in_order():
    class Deferred(Future):
        """Runs when its result is asked for."""

        def __init__(self, *call):
            super().__init__()
            self.call = call

        def result(self, timeout=None):
            events.append("gathered")
            function, *arguments = self.call
            return function(*arguments)

    class DeferringExecutor:
        def submit(self, *call):
            return Deferred(*call)

    def partitions():
        for i in range(8):
            events.append("read")
            yield partial(text_arrays, ["a"] * i)

    events: list[str] = []
    counts = count_corpus(partitions(), ["a"], "regex", DeferringExecutor(), in_flight=3)
    outstanding = np.cumsum([1 if event == "read" else -1 for event in events])
    assert outstanding.max() <= 4  # three submitted, one read and waiting
    assert len(counts.lengths) == sum(range(8))


def test_an_error_of_a_partition_reaches_the_caller_and_leaves_a_clean_table():
    def broken():
        yield pa.array(["a b"])
        raise InputError("corpus.parquet: truncated")

    with pytest.raises(InputError, match="truncated"):
        count_corpus([broken], ["a"], "regex")
    assert count_corpus([lambda: [pa.array(["a b"])]], ["a"], "regex").lengths.tolist() == [2]


def test_random_vocabularies_of_one_process_do_not_mix():
    rng = random.Random(0)
    for _ in range(20):
        vocabulary = sorted(rng.sample("abcdefgh", 3))
        terms = count_corpus([lambda: [pa.array(["a b c d e f g h"])]], vocabulary, "regex").terms
        assert terms.tolist() == [0, 1, 2]
