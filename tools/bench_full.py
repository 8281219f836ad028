"""`make bench-full`: both datasets and their ranking at the published size, each step beside its limit.

Every step runs in a process of its own, which reports wall and CPU time, its peak of memory, what it read and what it
wrote. The upstreams are simulated (`tools simulate`), since the real ones are not needed to know what their size costs.
"""

import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from NanoDAPFAM import SPLITS, VIEWS, NanoDAPFAM
from Poetry50KRetrieval import Poetry50KRetrieval
from tools import bench, bench_bm25
from tools.bm25 import PARTITION_BYTES, TOP_K, stretches
from tools.collection import Collection
from tools.counting import count_corpus, count_queries
from tools.scoring import count_matrix, rank, weigh

NEEDED_BYTES = 16e9  # the simulated upstreams and the library's cache of what is built
TOKENIZER = "english_porter_stop"
RANKED = {  # name -> dataset and split
    "poetry": ("Poetry50KRetrieval", "test"),
    **{view: ("NanoDAPFAM", f"NanoDAPFAMAllTitlAbsClmTo{view}") for view in VIEWS},
}
COLUMNS = ("wall s", "CPU s", "peak MB", "read MB", "out MB", "rows")

Output = dict[str, float]  # rows, and bytes written, of a step


def build_poetry(config: str, folder: Path) -> Output:
    builder = Poetry50KRetrieval(config_name=config, data_dir=str(folder / "poetry"))
    builder.download_and_prepare()
    split = builder.info.splits["test"]
    return {"rows": split.num_examples, "bytes": split.num_bytes}


def build_dapfam(config: str, view: str, folder: Path) -> Output:
    """All splits of a config that have the corpus view, in one build."""
    splits = [name for name, split in SPLITS.items() if split.corpus_view == view]
    builder = NanoDAPFAM(config_name=config, data_dir=str(folder / "dapfam"), splits=splits)
    builder.download_and_prepare()
    counts = builder.info.splits.values()
    return {"rows": sum(s.num_examples for s in counts), "bytes": sum(s.num_bytes for s in counts)}


def decode(view: str, folder: Path) -> Output:
    """The limit of a split: one decode of its columns."""
    file = pq.ParquetFile(folder / "dapfam/corpus.parquet")
    batches = file.iter_batches(64, columns=["relevant_id", *VIEWS[view]])
    return {"rows": sum(len(batch) for batch in batches), "bytes": 0}


def stream_poetry(folder: Path) -> Output:
    pages = Poetry50KRetrieval(config_name="corpus", data_dir=str(folder / "poetry")).as_streaming_dataset("test")
    return {"rows": sum(1 for _ in pages), "bytes": 0}


def limit(work: Callable[[Path], None], folder: Path) -> Output:
    work(folder / "poetry")
    return {"rows": 0, "bytes": 0}


def collection_of(name: str, folder: Path) -> Collection:
    dataset, split = RANKED[name]
    return Collection(dataset, split, str(folder / ("poetry" if name == "poetry" else "dapfam")))


def partitions_of(texts: pa.ChunkedArray) -> list[Callable[[], list[pa.Array]]]:
    return [
        lambda s=start, n=end - start: texts.slice(s, n).chunks for start, end, _ in stretches(texts, PARTITION_BYTES)
    ]


def run_bm25(name: str, share: float, workers: int, folder: Path) -> Output:
    """Text to top-500 of a share of the corpus."""
    collection = collection_of(name, folder)
    texts = collection.corpus["text"]
    texts = texts.slice(0, math.ceil(share * len(texts)))
    queries = collection.queries["text"].to_pylist()
    rank_texts(texts.slice(0, 1), queries[:1], workers)  # loads what was compiled
    start = perf_counter()
    rank_texts(texts, queries, workers)
    return {"rows": len(texts), "bytes": 0, "engine seconds": perf_counter() - start}


def rank_texts(texts: pa.ChunkedArray, queries: list[str], workers: int) -> None:
    vocabulary, query_counts = count_queries(queries, TOKENIZER)
    with ThreadPoolExecutor(workers) as executor:
        counts = count_corpus(partitions_of(texts), vocabulary, TOKENIZER, executor, in_flight=2 * workers)
    rank(weigh(counts, len(vocabulary)), count_matrix(query_counts, len(vocabulary)), TOP_K)


def tokenize_alone(name: str, folder: Path) -> Output:
    """The limit of ranking: the same scan with nothing to count."""
    texts = collection_of(name, folder).corpus["text"]
    count_corpus(partitions_of(texts), ["no such term"], TOKENIZER)
    return {"rows": len(texts), "bytes": 0}


def run_other(name: str, engine: Callable, folder: Path) -> Output:
    """Another engine on the same texts and queries, as lists of strings, which is how it takes them."""
    collection = collection_of(name, folder)
    corpus, queries = collection.corpus["text"].to_pylist(), collection.queries["text"].to_pylist()
    start = perf_counter()
    engine(corpus, queries)
    return {"rows": len(corpus), "bytes": 0, "engine seconds": perf_counter() - start}


STEPS: dict[str, Callable[[Path], Output]] = {
    **{f"poetry {config}": partial(build_poetry, config) for config in ("corpus", "queries", "qrels_max", "qrels_min")},
    "poetry corpus, streamed": stream_poetry,
    'poetry load_dataset("json") + map': partial(limit, bench.load_json_and_map),
    "limit: gunzip": partial(limit, bench.gunzip),
    "limit: gunzip + JSON to Arrow": partial(limit, bench.gunzip_and_decode),
    **{
        f"dapfam {config}, 6 splits to {view}": partial(build_dapfam, config, view)
        for view in VIEWS
        for config in ("queries", "qrels", "corpus")
    },
    **{f"limit: decode {view} once": partial(decode, view) for view in VIEWS},
    **{f"bm25 {name}, 2 workers": partial(run_bm25, name, 1, 2) for name in RANKED},
    **{
        f"bm25 {name}, 1 worker, {label}": partial(run_bm25, name, share, 1)
        for name in ("poetry", "FullText")
        for label, share in (("1/16", 1 / 16), ("1/4", 1 / 4), ("all", 1))
    },
    **{f"limit: tokenize {name}, 1 worker": partial(tokenize_alone, name) for name in ("poetry", "FullText")},
    **{f"bm25s {name}": partial(run_other, name, bench_bm25.run_bm25s) for name in ("poetry", "FullText")},
    **{
        f"tantivy {name}, index": partial(run_other, name, bench_bm25.index_with_tantivy)
        for name in ("poetry", "FullText")
    },
}


def peak_of_this_process() -> float:
    """Bytes; VmHWM, which unlike ru_maxrss does not include the parent's before the exec."""
    with open("/proc/self/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def run_step(name: str, folder: Path) -> dict:
    """Runs a step here and measures it."""
    datasets.disable_progress_bars()
    start = perf_counter()
    output = STEPS[name](folder)
    wall = perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/io") as file:
        read = next(int(line.split()[1]) for line in file if line.startswith("rchar"))
    return {
        "wall s": output.get("engine seconds", wall),
        "CPU s": usage.ru_utime + usage.ru_stime,
        "peak MB": peak_of_this_process() / 1e6,
        "read MB": read / 1e6,
        "out MB": output["bytes"] / 1e6,
        "rows": output["rows"],
    }


def growth(measured: dict[str, dict], name: str) -> float:
    """Exponent e of wall time ~ size ** e, fitted to 1/16, 1/4 and all of a corpus."""
    points = [
        (measured[f"bm25 {name}, 1 worker, {label}"]["wall s"], x)
        for label, x in (("1/16", -4), ("1/4", -2), ("all", 0))
    ]
    logs, mean_x = [math.log2(wall) for wall, _ in points], -2
    return sum((x - mean_x) * log for log, (_, x) in zip(logs, points, strict=True)) / 8


def print_ratios(measured: dict[str, dict]) -> None:
    """The steps beside each other and beside their limits."""
    wall = {name: row["wall s"] for name, row in measured.items()}
    ratios = {
        "poetry corpus: json + map / build": ('poetry load_dataset("json") + map', "poetry corpus"),
        "poetry corpus: build / limit (gunzip + JSON to Arrow)": ("poetry corpus", "limit: gunzip + JSON to Arrow"),
        "poetry corpus: build / gunzip": ("poetry corpus", "limit: gunzip"),
        **{
            f"{view}: corpus of a split / one decode of its columns": (
                f"dapfam corpus, 6 splits to {view}",
                f"limit: decode {view} once",
            )
            for view in VIEWS
        },
        **{
            f"bm25 {name}: 1 worker / 2 workers": (f"bm25 {name}, 1 worker, all", f"bm25 {name}, 2 workers")
            for name in ("poetry", "FullText")
        },
        **{
            f"bm25 {name}: 1 worker / tokenization alone": (
                f"bm25 {name}, 1 worker, all",
                f"limit: tokenize {name}, 1 worker",
            )
            for name in ("poetry", "FullText")
        },
        **{
            f"bm25 {name}: bm25s / ours, 2 workers": (f"bm25s {name}", f"bm25 {name}, 2 workers")
            for name in ("poetry", "FullText")
        },
        **{
            f"bm25 {name}: tantivy's indexing / ours, 2 workers": (f"tantivy {name}, index", f"bm25 {name}, 2 workers")
            for name in ("poetry", "FullText")
        },
    }
    print("\nratios of wall time")
    for name, (above, below) in ratios.items():
        if above in wall and below in wall:
            splits = 6 if "a split" in name else 1
            print(f"{name:64} {wall[above] / wall[below] / splits:8.2f}")
    rows = measured["poetry corpus, streamed"]
    print(f"{'poetry corpus, streamed: rows a second':64} {rows['rows'] / rows['wall s']:8,.0f}")
    for name in ("poetry", "FullText"):
        print(f"{f'bm25 {name}: cost grows with size to the power':64} {growth(measured, name):8.2f}")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-full-"))
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        folder.rmdir()
        sys.exit(
            f"bench-full: needs {NEEDED_BYTES / 1e9:.0f} GB in {folder.parent}, {free / 1e9:.1f} are free; set TMPDIR"
        )
    environment = {**os.environ, "HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout

    try:
        start = perf_counter()
        run("tools", "simulate", str(folder))
        print(f"datasets {datasets.__version__}; upstreams simulated in {perf_counter() - start:.0f} s\n")
        print(f"{'':36}" + "".join(f"{column:>11}" for column in COLUMNS), flush=True)
        measured = {}
        for name in STEPS:
            measured[name] = json.loads(run("tools.bench_full", name, str(folder)).splitlines()[-1])
            cells = "".join(f"{measured[name][column]:>11,.1f}" for column in COLUMNS[:-1])
            print(f"{name:36}{cells}{measured[name]['rows']:>11,.0f}", flush=True)
        print_ratios(measured)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(run_step(sys.argv[1], Path(sys.argv[2]))))
    else:
        main()
