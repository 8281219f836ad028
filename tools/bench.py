"""`make bench`: speed of loading and ranking on a slice of the simulated upstreams, as ratios in one run.

Times depend on the machine and what else it does; the ratios are what to look at.
"""

import gzip
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter

import datasets
import pyarrow as pa
import pyarrow.json as paj
import pyarrow.parquet as pq

import NanoDAPFAM
import Poetry50KRetrieval
from Poetry50KRetrieval import CORPUS_FILE, RECORD
from tools.bench_bm25 import bench_bm25
from tools.collection import BUILDERS

RUNS = 3
SCALE = 0.1
SERVE = """
import socket, sys
from aiohttp import web
server = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{server.getsockname()[1]}", flush=True)
application = web.Application()
application.router.add_static("/", sys.argv[1])
web.run_app(application, sock=server, print=None)
"""


def seconds(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The best of RUNS of each, taken in turn: a shared machine changes its pace with time."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(RUNS):
        for name, work in ways.items():
            start = perf_counter()
            work()
            best[name] = min(best[name], perf_counter() - start)
    return best


def build(dataset: str, data_dir: Path, **options: list[str]) -> None:
    with tempfile.TemporaryDirectory() as cache:
        builder = BUILDERS[dataset](config_name="corpus", data_dir=str(data_dir), cache_dir=cache, **options)
        builder.download_and_prepare()


def stream(data_dir: Path) -> None:
    with tempfile.TemporaryDirectory() as cache:
        pages = BUILDERS["Poetry50KRetrieval"](config_name="corpus", data_dir=str(data_dir), cache_dir=cache)
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


def decode(data_dir: Path, view: str) -> int:
    """The limit of a NanoDAPFAM split: its columns decoded once, nothing made of them. Returns the rows."""
    corpus = pq.ParquetFile(data_dir / NanoDAPFAM.CORPUS_FILE)
    return sum(map(len, corpus.iter_batches(64, columns=["relevant_id", *NanoDAPFAM.VIEWS[view]])))


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The folder's URL, with byte ranges, from a process of its own."""
    server = subprocess.Popen([sys.executable, "-c", SERVE, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().strip()
    finally:
        server.kill()
        server.wait()


def stream_over_http(dataset: str, data_dir: Path, splits: list[str], rows: int | None) -> tuple[int, float, int]:
    """Streams the first rows (all, if not told) of a corpus on a server: rows, seconds, and bytes that were sent."""
    stream_class = {"Poetry50KRetrieval": Poetry50KRetrieval, "NanoDAPFAM": NanoDAPFAM}[dataset].HttpStream
    delivered, deliver = 0, stream_class.deliver

    def counted(stream: io.RawIOBase, buffer: memoryview) -> int:
        nonlocal delivered
        size = deliver(stream, buffer)
        delivered += size
        return size

    options = {"splits": splits} if splits else {}
    stream_class.deliver = counted
    try:
        with serving(data_dir) as url:
            builder = BUILDERS[dataset](config_name="corpus", data_dir=url, **options)
            (stream,) = builder.as_streaming_dataset().values()
            start = perf_counter()
            found = sum(1 for _ in islice(stream, rows))
            return found, perf_counter() - start, delivered
    finally:
        stream_class.deliver = deliver


def bench_dapfam_corpus(data_dir: Path) -> None:
    """A split of each view beside one decode of its columns; so small a corpus is taken whole, which is two passes."""
    print("\nNanoDAPFAM corpus, one split")
    print(f"{'':32} {'seconds':>8} {'decode':>9} {'x decode':>8}")
    for view in NanoDAPFAM.VIEWS:
        split = f"NanoDAPFAMAllTitlAbsTo{view}"
        work = partial(build, "NanoDAPFAM", data_dir, splits=[split])
        took = seconds({"build": work, "decode": partial(decode, data_dir, view)})
        print(f"{view:32} {took['build']:8.2f} {took['decode']:9.2f} {took['build'] / took['decode']:8.2f}")


def bench_http(folder: Path) -> None:
    _, waited, first = stream_over_http("Poetry50KRetrieval", folder / "poetry", [], 1)
    _, _, split = stream_over_http("NanoDAPFAM", folder / "dapfam", ["NanoDAPFAMAllTitlAbsToTitlAbs"], None)
    share = split / (folder / "dapfam" / NanoDAPFAM.CORPUS_FILE).stat().st_size
    print("\nover HTTP")
    print(f"{'poetry, to the first row':32} {waited:8.2f} seconds, {first / 1e6:.2f} MB")
    print(f"{'a TitlAbs split':32} {100 * share:8.2f} percent of {NanoDAPFAM.CORPUS_FILE}")


def bench_poetry_corpus(data_dir: Path) -> None:
    """Building and streaming poetry's corpus beside `load_dataset("json")` + `map`, and beside the limit."""
    ways = {
        "build": partial(build, "Poetry50KRetrieval"),
        "stream": stream,
        'load_dataset("json") + map': load_json_and_map,
        "limit: gunzip + JSON to Arrow": gunzip_and_decode,
        "gunzip alone": gunzip,
    }
    took = seconds({name: partial(work, data_dir) for name, work in ways.items()})
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
        bench_dapfam_corpus(Path(folder) / "dapfam")
        bench_http(Path(folder))
    bench_ranking()


if __name__ == "__main__":
    main()
