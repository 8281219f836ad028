"""`make bench-full`: both datasets and their ranking at the published size, each step beside its limit.

Every step runs in a process of its own, which reports wall and CPU time, its peak of memory, what it read and what it
wrote. The upstreams are simulated (`tools simulate`), since the real ones are not needed to know what their size costs;
`python -m tools.bench_full FOLDER` takes a folder of them that is there.
"""

import io
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import datasets
import pyarrow.parquet as pq

from NanoDAPFAM import SPLITS, VIEWS, NanoDAPFAM
from Poetry50KRetrieval import Poetry50KRetrieval
from tools import bench
from tools.__main__ import main as run_command
from tools.bench_bm25 import TOKENIZER, index_with_tantivy, partitions_of, run_bm25s, run_ours
from tools.collection import Collection
from tools.counting import count_corpus

NEEDED_BYTES = 18e9  # the simulated upstreams, the library's cache of what is built, and what is staged of it
RANKED = {  # name -> dataset and split
    "poetry": ("Poetry50KRetrieval", "test"),
    **{view: ("NanoDAPFAM", f"NanoDAPFAMAllTitlAbsClmTo{view}") for view in VIEWS},
}
COLUMNS = ("wall s", "CPU s", "peak MB", "read MB", "out MB", "rows")
MEMORY_OF_OTHERS = 20 << 30  # bytes of address space: an engine that wants more is said not to fit

Output = dict[str, float]  # rows, and bytes written, of a step; what else it says takes the place of what is measured


def data_of(dataset: str, folder: Path) -> Path:
    return folder / ("poetry" if dataset == "Poetry50KRetrieval" else "dapfam")


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
    return {"rows": bench.decode(folder / "dapfam", view), "bytes": 0}


def stream_over_http(dataset: str, splits: list[str], rows: int | None, folder: Path) -> Output:
    found, wall, delivered = bench.stream_over_http(dataset, data_of(dataset, folder), splits, rows)
    return {"rows": found, "bytes": 0, "wall s": wall, "read MB": delivered / 1e6}


def stream_poetry(folder: Path) -> Output:
    pages = Poetry50KRetrieval(config_name="corpus", data_dir=str(folder / "poetry")).as_streaming_dataset("test")
    return {"rows": sum(1 for _ in pages), "bytes": 0}


def limit(work: Callable[[Path], None], folder: Path) -> Output:
    work(folder / "poetry")
    return {"rows": 0, "bytes": 0}


def stage(dataset: str, splits: list[str], folder: Path) -> Output:
    """Parquet and card of the base configs, from builds that the library has cached."""
    where = ["--data-dir", str(data_of(dataset, folder)), "--splits", *splits, "--out", str(folder / "staged")]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = run_command(["stage", dataset, *where])
    if code:
        raise RuntimeError(f"stage: exit {code}")
    files = list((folder / "staged").rglob("*.parquet"))
    size, rows = sum(file.stat().st_size for file in files), sum(pq.read_metadata(file).num_rows for file in files)
    shutil.rmtree(folder / "staged")
    return {"rows": rows, "bytes": size}


def collection_of(name: str, folder: Path) -> Collection:
    dataset, split = RANKED[name]
    return Collection(dataset, split, str(data_of(dataset, folder)))


def timed(work: Callable[[], object]) -> Output:
    """Wall and CPU time of this part of a step alone."""
    start, cpu_start = perf_counter(), process_time()
    work()
    return {"wall s": perf_counter() - start, "CPU s": process_time() - cpu_start}


def run_bm25(name: str, share: float, workers: int, folder: Path) -> Output:
    """Text to top-500 of a share of the corpus."""
    collection = collection_of(name, folder)
    texts = collection.corpus["text"]
    texts = texts.slice(0, math.ceil(share * len(texts)))
    queries = collection.queries["text"].to_pylist()
    run_ours(texts.slice(0, 1), queries[:1], workers)  # loads what was compiled
    return {"rows": len(texts), "bytes": 0} | timed(lambda: run_ours(texts, queries, workers))


def tokenize_alone(name: str, folder: Path) -> Output:
    """The limit of ranking: the same scan with nothing to count."""
    texts = collection_of(name, folder).corpus["text"]
    count_corpus(partitions_of(texts.slice(0, 1)), ["no such term"], TOKENIZER)
    work = partial(count_corpus, partitions_of(texts), ["no such term"], TOKENIZER)
    return {"rows": len(texts), "bytes": 0} | timed(work)


def run_other(name: str, engine: Callable, folder: Path) -> Output:
    """Another engine on the same texts and queries, as lists of strings, which is how it takes them."""
    collection = collection_of(name, folder)
    corpus, queries = collection.corpus["text"].to_pylist(), collection.queries["text"].to_pylist()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_OF_OTHERS, resource.RLIM_INFINITY))
    try:
        return {"rows": len(corpus), "bytes": 0} | timed(lambda: engine(corpus, queries))
    except MemoryError:
        return {"rows": len(corpus), "bytes": 0, "wall s": math.nan, "CPU s": math.nan}


def dapfam_steps(view: str) -> dict[str, Callable[[Path], Output]]:
    return {
        **{
            f"dapfam {config}, 6 splits to {view}": partial(build_dapfam, config, view)
            for config in ("queries", "qrels", "corpus")
        },
        f"limit: decode {view} once": partial(decode, view),
    }


def ranking_steps(name: str) -> dict[str, Callable[[Path], Output]]:
    """Ours, its limit and other engines, one after another: a machine that is shared changes its pace with time."""
    return {
        f"bm25 {name}, 1 worker, 1/16": partial(run_bm25, name, 1 / 16, 1),
        f"bm25 {name}, 1 worker, 1/4": partial(run_bm25, name, 1 / 4, 1),
        f"limit: tokenize {name}, 1 worker": partial(tokenize_alone, name),
        f"bm25 {name}, 1 worker, all": partial(run_bm25, name, 1, 1),
        f"bm25 {name}, 2 workers": partial(run_bm25, name, 1, 2),
        f"bm25s {name}": partial(run_other, name, run_bm25s),
        f"tantivy {name}, index": partial(run_other, name, index_with_tantivy),
    }


STEPS: dict[str, Callable[[Path], Output]] = {
    **{f"poetry {config}": partial(build_poetry, config) for config in ("corpus", "queries", "qrels_max", "qrels_min")},
    "poetry corpus, streamed": stream_poetry,
    "poetry corpus, first row over HTTP": partial(stream_over_http, "Poetry50KRetrieval", [], 1),
    'poetry load_dataset("json") + map': partial(limit, bench.load_json_and_map),
    "limit: gunzip": partial(limit, bench.gunzip),
    "limit: gunzip + JSON to Arrow": partial(limit, bench.gunzip_and_decode),
    **{step: work for view in VIEWS for step, work in dapfam_steps(view).items()},
    "dapfam corpus, a TitlAbs split over HTTP": partial(stream_over_http, "NanoDAPFAM", [RANKED["TitlAbs"][1]], None),
    "stage poetry": partial(stage, "Poetry50KRetrieval", ["test"]),
    "stage dapfam, 3 splits": partial(stage, "NanoDAPFAM", [RANKED[view][1] for view in VIEWS]),
    **{f"bm25 {view}, 2 workers": partial(run_bm25, view, 1, 2) for view in ("TitlAbs", "TitlAbsClm")},
    **ranking_steps("poetry"),
    **ranking_steps("FullText"),
}


def peak_of_this_process() -> float:
    """Bytes; VmHWM, which unlike ru_maxrss does not include the parent's before the exec."""
    with open("/proc/self/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def bytes_read() -> int:
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("rchar"))


def run_step(name: str, folder: Path) -> dict[str, float]:
    """Runs a step here and measures it."""
    datasets.disable_progress_bars()
    read_before = bytes_read()
    output: Output = {}
    measured = timed(lambda: output.update(STEPS[name](folder)))
    return {
        **measured,
        "peak MB": peak_of_this_process() / 1e6,
        "read MB": (bytes_read() - read_before) / 1e6,
        **output,
        "out MB": output["bytes"] / 1e6,
    }


def growth(measured: dict[str, dict], name: str) -> float:
    """Exponent e of wall time ~ size ** e, fitted to 1/16, 1/4 and all of a corpus."""
    points = [
        (measured[f"bm25 {name}, 1 worker, {label}"]["wall s"], x)
        for label, x in (("1/16", -4), ("1/4", -2), ("all", 0))
    ]
    logs, mean_x = [math.log2(wall) for wall, _ in points], -2
    return sum((x - mean_x) * log for log, (_, x) in zip(logs, points, strict=True)) / 8


def ratios() -> Iterator[tuple[str, str, str, float]]:
    """(what, step above, step below, splits of the step above): steps beside each other and beside their limits."""
    yield "poetry corpus: json + map / build", 'poetry load_dataset("json") + map', "poetry corpus", 1
    for step in ("gunzip + JSON to Arrow", "gunzip"):
        yield f"poetry corpus: build / {step}", "poetry corpus", f"limit: {step}", 1
    for view in VIEWS:
        yield (
            *(f"{view}: corpus of a split / one decode of its columns", f"dapfam corpus, 6 splits to {view}"),
            *(f"limit: decode {view} once", 6),
        )
    yield "all 18 corpus splits / one decode of each", "dapfam corpus, 18 splits", "limit: decode for 18 splits", 1
    for name in ("poetry", "FullText"):
        ours, alone = f"bm25 {name}, 2 workers", f"bm25 {name}, 1 worker, all"
        yield f"bm25 {name}: 1 worker / 2 workers", alone, ours, 1
        yield f"bm25 {name}: 1 worker / tokenization alone", alone, f"limit: tokenize {name}, 1 worker", 1
        yield f"bm25 {name}: bm25s / ours, 2 workers", f"bm25s {name}", ours, 1
        yield f"bm25 {name}: tantivy's indexing / ours, 2 workers", f"tantivy {name}, index", ours, 1


def print_ratios(measured: dict[str, dict], corpus_megabytes: float) -> None:
    """What the figures come to."""
    for column in COLUMNS[:2]:
        of_views = {view: measured[f"limit: decode {view} once"][column] for view in VIEWS}
        built = [measured[f"dapfam corpus, 6 splits to {view}"][column] for view in VIEWS]
        measured.setdefault("dapfam corpus, 18 splits", {})[column] = sum(built)
        measured.setdefault("limit: decode for 18 splits", {})[column] = 6 * sum(of_views.values())
    print(f"\n{'ratios':64}{'wall':>8}{'CPU':>8}")
    for what, above, below, splits in ratios():
        cells = [measured[above][column] / measured[below][column] / splits for column in COLUMNS[:2]]
        print(f"{what:64}" + "".join(f"{cell:8.2f}" for cell in cells))
    rows, first = measured["poetry corpus, streamed"], measured["poetry corpus, first row over HTTP"]
    split = measured["dapfam corpus, a TitlAbs split over HTTP"]
    print(f"\n{'poetry corpus, streamed: rows a second':64}{rows['rows'] / rows['wall s']:8,.0f}")
    print(f"{'poetry corpus over HTTP: MB before the first row':64}{first['read MB']:8.2f}")
    print(f"{'TitlAbs split over HTTP: percent of corpus.parquet':64}{100 * split['read MB'] / corpus_megabytes:8.2f}")
    for name in ("poetry", "FullText"):
        print(f"{f'bm25 {name}: cost grows with size to the power':64}{growth(measured, name):8.2f}")
    if any(math.isnan(row["wall s"]) for row in measured.values()):
        print(f"nan: does not fit in {MEMORY_OF_OTHERS >> 30} GB")


def main(upstream: Path | None = None) -> None:
    """All steps, on upstreams that were simulated before or, if none are named, on new ones."""
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
        if upstream is None:
            upstream, start = folder, perf_counter()
            run("tools", "simulate", str(folder))
            print(f"upstreams simulated in {perf_counter() - start:.0f} s")
        print(
            f"datasets {datasets.__version__}\n\n{'':42}" + "".join(f"{column:>10}" for column in COLUMNS), flush=True
        )
        measured = {}
        for name in STEPS:
            runs = 2 if name.startswith(("bm25 ", "limit")) else 1  # the short ones, by their mean
            found = [json.loads(run("tools.bench_full", name, str(upstream)).splitlines()[-1]) for _ in range(runs)]
            measured[name] = {column: sum(row[column] for row in found) / runs for column in COLUMNS}
            cells = "".join(f"{measured[name][column]:>10,.1f}" for column in COLUMNS[:-1])
            print(f"{name:42}{cells}{measured[name]['rows']:>10,.0f}", flush=True)
        print_ratios(measured, (upstream / "dapfam/corpus.parquet").stat().st_size / 1e6)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if len(sys.argv) == 3:  # a step, in a process of its own
        print(json.dumps(run_step(sys.argv[1], Path(sys.argv[2]))))
    else:
        main(*map(Path, sys.argv[1:]))
