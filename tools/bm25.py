"""BM25 candidate lists: counts of the query terms in a split's corpus, their weights, the exact top k."""

import argparse
import asyncio
import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from tools.collection import Collection, add_collection_arguments, cut, disable_progress_off_terminal, open_collections
from tools.counting import Partition, count_corpus, count_queries
from tools.errors import InputError
from tools.runs import candidates_per_query, check_texts
from tools.scoring import VARIANTS, count_matrix, rank, weigh
from tools.sidecar import Sidecar, bring_up_to_date, recipe
from tools.tokenizers import TOKENIZERS

EXAMPLE = "python -m tools bm25 NanoDAPFAM --data-dir /tmp/sample/dapfam --splits NanoDAPFAMAllTitlAbsToTitlAbs"
CONFIG = "bm25"
TOP_K = 500
SCHEDULER_PATIENCE = 5  # seconds
PARTITION_BYTES = 1 << 25  # text a worker counts at a time, which bounds its memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)
    parser.add_argument("--tokenizer", choices=TOKENIZERS, default="english_porter_stop")
    parser.add_argument(
        "--top-k", type=int, metavar="N", help=f"default: {TOP_K}, or the whole corpus if it is smaller"
    )
    parser.add_argument("--method", choices=VARIANTS, default="robertson", help="variant, as bm25s names them")
    parser.add_argument("--k1", type=float, default=1.5)
    parser.add_argument("--b", type=float, default=0.75)
    parser.add_argument(
        "--force-positives", action="store_true", help="put each missed positive in place of the last non-positive"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="threads; default: by the size of the corpus")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="count on a dask.distributed cluster instead")
    parser.add_argument("--overwrite", action="store_true", help="replace lists that were made otherwise")


def run(arguments: argparse.Namespace) -> int:
    check_parameters(arguments)
    for collection in open_collections(arguments):
        parameters = {
            "tokenizer": arguments.tokenizer,
            "method": arguments.method,
            "k1": arguments.k1,
            "b": arguments.b,
            "top_k": candidates_per_query(arguments.top_k, TOP_K, collection),
            "force_positives": arguments.force_positives,
        }
        bring_up_to_date(
            collection,
            CONFIG,
            parameters,
            partial(build, collection, parameters, arguments.workers, arguments.scheduler),
            arguments.overwrite,
        )
    return 0


def check_parameters(arguments: argparse.Namespace) -> None:
    if not (math.isfinite(arguments.k1) and arguments.k1 >= 0 and 0 <= arguments.b <= 1):
        raise InputError(f"--k1 {arguments.k1} --b {arguments.b}: k1 must be 0 or more, b between 0 and 1")
    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"--workers {arguments.workers}: at least 1")


def build(collection: Collection, parameters: dict, workers: int | None, scheduler: str | None) -> Sidecar:
    """A split's candidate lists."""
    check_texts(collection)
    query_ids, texts = collection.queries["id"].to_pylist(), collection.queries["text"].to_pylist()
    vocabulary, query_counts = count_queries(texts, parameters["tokenizer"])
    partitions = partition(collection)
    workers = workers or min(os.cpu_count() or 1, 1 + len(partitions) // 2)
    with open_executor(workers, scheduler) as executor:
        progress = tqdm(partitions, desc=collection.split, unit="partition", disable=None)
        corpus = count_corpus(progress, vocabulary, parameters["tokenizer"], executor, in_flight=2 * workers)
    threads = min(workers, os.cpu_count() or 1)  # of this machine, on a cluster as well
    weights = weigh(corpus, len(vocabulary), parameters["method"], parameters["k1"], parameters["b"], threads=threads)
    queries = count_matrix(query_counts, len(vocabulary))
    positions, scores = rank(weights, queries, parameters["top_k"], threads)

    in_corpus = np.diff(weights.present.indptr) > 0
    counts = {"queries": len(query_ids), "queries_without_known_terms": int((queries @ in_corpus == 0).sum())}
    ids = collection.corpus["id"].to_pylist()
    lists = [[ids[position] for position in row] for row in positions]
    if parameters["force_positives"]:
        positives = collection.positives()
        forced = [force_positives(*pair) for pair in zip(lists, (positives.get(i, []) for i in query_ids), strict=True)]
        counts["forced_positives"] = sum(count for _, count in forced)
        lists = [candidates for candidates, _ in forced]
    return Sidecar(query_ids, lists, scores.tolist(), recipe(collection, CONFIG, parameters, counts))


def force_positives(candidates: Sequence[str], positives: Sequence[str]) -> tuple[list[str], int]:
    """Candidates in which every positive occurs, as far as there is room, and how many had to be put in.

    A missed positive replaces the lowest-ranked candidate that is not a positive (the published card's policy), the
    first missed one at the lowest rank. It takes that candidate's score, so that scores stay in descending order.
    """
    forced = list(candidates)
    missed = [positive for positive in positives if positive not in set(candidates)]
    replaceable = [rank for rank in reversed(range(len(forced))) if forced[rank] not in set(positives)]
    for rank_, positive in zip(replaceable, missed, strict=False):
        forced[rank_] = positive
    return forced, min(len(missed), len(replaceable))


def partition(collection: Collection) -> list[Partition]:
    """The corpus in stretches, each read by the worker that counts it."""
    return [
        partial(read_texts, collection, start, end, size)
        for start, end, size in stretches(collection.corpus["text"], PARTITION_BYTES)
    ]


def stretches(texts: pa.ChunkedArray, size: int) -> list[tuple[int, int, int]]:
    """(start, end, bytes) of consecutive stretches of about `size` bytes of text, at least one document each."""
    lengths = pc.binary_length(texts).to_numpy().astype(np.int64)
    return [(start, end, int(lengths[start:end].sum())) for start, end in cut(lengths, size)]


def read_texts(collection: Collection, start: int, end: int, size: int) -> list[pa.Array]:
    """Texts of the documents from start to end, memory-mapped from the library's cache on the worker's own machine.

    InputError unless they have as many bytes as the caller's: another machine may see another upstream.
    """
    texts = corpus_of(collection)["text"].slice(start, end - start)
    if len(texts) != end - start or (pc.sum(pc.binary_length(texts)).as_py() or 0) != size:
        raise InputError(
            f"{collection.split}: a worker reads another corpus than this machine; give both one --data-dir"
        )
    return texts.chunks


@cache
def corpus_of(collection: Collection) -> pa.Table:
    disable_progress_off_terminal()
    return collection.corpus


@contextmanager
def open_executor(workers: int, scheduler: str | None) -> Iterator[Executor | None]:
    """Where counting runs: here (None), in threads, or on a dask.distributed cluster.

    Threads serve better than processes: the counting loops do not hold the interpreter's lock, the texts are
    memory-mapped, and a spawned process takes longer to start than a thread to count 100 MB.
    """
    if scheduler:
        with open_cluster(scheduler) as executor:
            yield executor
    elif workers == 1:
        yield None
    else:
        with ThreadPoolExecutor(workers) as pool:
            yield pool


@contextmanager
def open_cluster(scheduler: str) -> Iterator[Executor]:
    """A dask.distributed cluster's executor; InputError where it does not answer or is not of this version."""
    import distributed

    async def greet() -> None:  # a client waits for ever for one that takes the connection and says nothing
        connection = await asyncio.wait_for(distributed.comm.connect(scheduler), SCHEDULER_PATIENCE)
        await connection.close()

    try:
        asyncio.run(greet())
        client = distributed.Client(scheduler, timeout=SCHEDULER_PATIENCE, set_as_default=False)
    except (OSError, asyncio.TimeoutError, ValueError) as error:
        raise InputError(f"--scheduler {scheduler}: no dask scheduler answers there: {error}") from error
    with client:
        try:
            versions = client.run(project_version)
        except Exception as error:  # whatever a worker without the project makes of the call
            raise InputError(f"--scheduler {scheduler}: a worker cannot import this project: {error}") from error
        if not versions:
            raise InputError(f"--scheduler {scheduler}: no worker there; start some with: dask worker {scheduler}")
        for worker, version in versions.items():
            if version != project_version():
                raise InputError(f"--scheduler {scheduler}: worker {worker} has another version of this project")
        try:
            yield client.get_executor()
        except distributed.KilledWorker as error:
            raise InputError(f"--scheduler {scheduler}: workers died again and again: {error}") from error


def project_version() -> str:
    """SHA-256 of the project's code: what counts on one machine must be what counts on another."""
    root = Path(__file__).resolve().parents[1]
    sha256 = hashlib.sha256()
    for path in sorted([*root.glob("*.py"), *root.glob("tools/*.py")]):
        sha256.update(path.read_bytes())
    return sha256.hexdigest()
