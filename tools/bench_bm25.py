"""BM25 from text to top-500, beside bm25s on the same tokens and tantivy's indexing: `python -m tools.bench_bm25`."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tools.bm25 import PARTITION_BYTES, TOP_K, open_executor, stretches
from tools.counting import Partition, count_corpus, count_queries
from tools.scoring import count_matrix, rank, weigh
from tools.tokenizers import ENGLISH_STOP_WORDS, TOKENIZERS

UPSTREAM = Path(__file__).parents[2] / "shared/upstream/dapfam/corpus.parquet"
TOKENIZER, N_QUERIES, QUERY_CHARACTERS = "english_porter_stop", 200, 8000


def real_documents() -> list[str]:
    return pq.read_table(UPSTREAM, columns=["description_en"])["description_en"].to_pylist()


def zipfian_documents() -> list[str]:
    """Documents of invented words whose frequencies follow Zipf's law, ten words a line."""
    rng = np.random.default_rng(0)
    words = ["".join(letters) for letters in rng.choice(list("abcdefghilmnoprstuvy"), (50_000, 7))]
    ranks = np.minimum(rng.zipf(1.2, (400, 200, 10)), len(words)) - 1
    return ["\n".join(" ".join(words[r] for r in line) for line in document) for document in ranks]


def shuffled_corpus(documents: list[str], megabytes: int) -> list[str]:
    """Documents with their lines in random order, repeated up to the size asked for: as many distinct documents."""
    rng = random.Random(0)
    corpus: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        lines = documents[len(corpus) % len(documents)].split("\n")
        rng.shuffle(lines)
        corpus.append("\n".join(lines))
        size += len(corpus[-1])
    return corpus


def partitions_of(texts: pa.ChunkedArray) -> list[Partition]:
    return [
        lambda s=start, n=end - start: texts.slice(s, n).chunks for start, end, _ in stretches(texts, PARTITION_BYTES)
    ]


def run_ours(texts: pa.ChunkedArray, queries: list[str], workers: int) -> np.ndarray:
    """Text to the scores of the top-k."""
    vocabulary, query_counts = count_queries(queries, TOKENIZER)
    with open_executor(workers, None) as executor:
        counts = count_corpus(partitions_of(texts), vocabulary, TOKENIZER, executor, in_flight=2 * workers)
    weights = weigh(counts, len(vocabulary), threads=workers)
    return rank(weights, count_matrix(query_counts, len(vocabulary)), TOP_K, workers)[1]


def run_bm25s(corpus: list[str], queries: list[str]) -> np.ndarray:
    import bm25s

    nltk_stem = TOKENIZERS[TOKENIZER].stem
    tokens = [
        bm25s.tokenize(
            texts,
            token_pattern=r"[A-Za-z0-9]+",
            stopwords=sorted(ENGLISH_STOP_WORDS),
            stemmer=lambda words: [nltk_stem(word) for word in words],
            show_progress=False,
        )
        for texts in (corpus, queries)
    ]
    index = bm25s.BM25(method="robertson", k1=1.5, b=0.75)
    index.index(tokens[0], show_progress=False)
    return index.retrieve(tokens[1], k=min(TOP_K, len(corpus)), show_progress=False).scores


def index_with_tantivy(corpus: list[str], queries: list[str]) -> None:
    import tantivy

    schema = tantivy.SchemaBuilder().add_text_field("text", tokenizer_name="en_stem").build()
    with tempfile.TemporaryDirectory() as directory:
        writer = tantivy.Index(schema, path=directory).writer(num_threads=2)
        for text in corpus:
            writer.add_document(tantivy.Document(text=text))
        writer.commit()
        writer.wait_merging_threads()


def bench_bm25(megabytes: int = 200) -> list[dict]:
    """Seconds, MB/s and speed relative to bm25s of each engine, one row each.

    Every engine starts from the texts in memory in the form it takes: ours Arrow, as the library's cache has them, the
    others a list of strings. Our workers are threads: the compiled loops hold no lock. They are compiled beforehand, as
    from an installation's second run on.
    """
    text, documents = ("real", real_documents()) if UPSTREAM.exists() else ("zipfian", zipfian_documents())
    corpus = shuffled_corpus(documents, megabytes)
    queries = [document[:QUERY_CHARACTERS] for document in shuffled_corpus(documents, 100)[-N_QUERIES:]]
    size = sum(len(document.encode()) for document in corpus) / 1e6
    run_ours(pa.chunked_array([documents[:10]]), queries[:1], 1)
    arrow = pa.chunked_array([corpus], pa.large_string())
    engines: dict[str, Callable] = {
        "ours, 1 worker": lambda _, queries: run_ours(arrow, queries, 1),
        "ours, 2 workers": lambda _, queries: run_ours(arrow, queries, 2),
        "bm25s": run_bm25s,
    }
    if find_spec("tantivy"):
        engines["tantivy, indexing only"] = index_with_tantivy
    seconds, cpu_seconds, scores = {}, {}, {}
    for engine, run in engines.items():
        start, cpu_start = perf_counter(), process_time()
        scores[engine] = run(corpus, queries)
        seconds[engine], cpu_seconds[engine] = perf_counter() - start, process_time() - cpu_start
    if not np.allclose(scores["ours, 1 worker"], scores["bm25s"], rtol=1e-4):
        raise AssertionError("top-k scores differ from those of bm25s")
    return [
        {
            "engine": engine,
            "text": text,
            "megabytes": round(size, 1),
            "documents": len(corpus),
            "seconds": round(taken, 2),
            "cpu_seconds": round(cpu_seconds[engine], 2),
            "megabytes_per_second": round(size / taken, 1),
            "times_bm25s": round(seconds["bm25s"] / taken, 2),
        }
        for engine, taken in seconds.items()
    ]


if __name__ == "__main__":
    for row in bench_bm25():
        print(json.dumps(row))
