"""`make bench`: speed of loading and ranking on a slice of the simulated upstreams, as ratios in one run.

Times depend on the machine and what else it does; the ratios are what to look at. Each figure is the best of RUNS.
"""

import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import datasets
import pyarrow as pa
import pyarrow.json as paj

from Poetry50KRetrieval import CORPUS_FILE, RECORD, Poetry50KRetrieval
from tools.bench_bm25 import bench_bm25

RUNS = 3
SCALE = 0.1


def seconds(work: Callable[[], object]) -> float:
    """The best of RUNS."""
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)


def build(data_dir: Path) -> None:
    with tempfile.TemporaryDirectory() as cache:
        Poetry50KRetrieval(config_name="corpus", data_dir=str(data_dir), cache_dir=cache).download_and_prepare()


def stream(data_dir: Path) -> None:
    with tempfile.TemporaryDirectory() as cache:
        pages = Poetry50KRetrieval(config_name="corpus", data_dir=str(data_dir), cache_dir=cache)
        for _ in pages.as_streaming_dataset("test"):
            pass


def load_json_and_map(data_dir: Path) -> None:
    """The same rows as a user without the script would get them."""

    def page(record: dict) -> dict:
        duplicates = record["duplicates"]
        return {
            "id": f"{record['book']}/{record['page']}",
            "text": record["text"].replace("\t", " "),
            "n_duplicates": len(duplicates),
            "duplicates": json.dumps(duplicates),
        }

    with tempfile.TemporaryDirectory() as cache:
        path = str(data_dir / CORPUS_FILE)
        datasets.load_dataset("json", data_files=path, split="train", cache_dir=cache).map(page)


def gunzip(data_dir: Path) -> None:
    with gzip.open(data_dir / CORPUS_FILE) as file:
        while file.read(1 << 20):
            pass


def gunzip_and_decode(data_dir: Path) -> None:
    """The limit: the gzip stream and pyarrow's JSON reader, nothing made of it."""
    with gzip.open(data_dir / CORPUS_FILE) as file:
        rest = b""
        while block := file.read(1 << 23):
            cut = block.rfind(b"\n") + 1
            lines, rest = rest + block[:cut], block[cut:]
            paj.read_json(
                pa.BufferReader(lines),
                paj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
                paj.ParseOptions(explicit_schema=RECORD),
            )


def bench_poetry_corpus(data_dir: Path) -> None:
    """Building and streaming poetry's corpus beside `load_dataset("json")` + `map`, and beside the limit."""
    ways = [
        ("build", build),
        ("stream", stream),
        ('load_dataset("json") + map', load_json_and_map),
        ("limit: gunzip + JSON to Arrow", gunzip_and_decode),
        ("gunzip alone", gunzip),
    ]
    took = {name: seconds(lambda work=work: work(data_dir)) for name, work in ways}
    rows = sum(1 for _ in gzip.open(data_dir / CORPUS_FILE))
    print(f"\nPoetry50KRetrieval corpus, {rows:,} pages, datasets {datasets.__version__}")
    print(f"{'':32} {'seconds':>8} {'rows/s':>9} {'x build':>8}")
    for name, time in took.items():
        print(f"{name:32} {time:8.2f} {rows / time:9,.0f} {time / took['build']:8.2f}")


def bench_ranking(megabytes: int = 200) -> None:
    print("\nBM25 from text to top-500, 200 queries, the same tokens")
    print(f"{'':32} {'seconds':>8} {'MB/s':>9} {'x bm25s':>8}")
    for row in bench_bm25(megabytes):
        speed = row["times_bm25s"]
        print(f"{row['engine']:32} {row['seconds']:8.2f} {row['megabytes_per_second']:9.1f} {speed:8.2f}")


def main() -> None:
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tools", "simulate", folder, "--scale", str(SCALE)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        bench_poetry_corpus(Path(folder) / "poetry")
    bench_ranking()


if __name__ == "__main__":
    main()
