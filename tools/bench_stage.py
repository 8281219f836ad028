"""`python -m tools.bench_stage [SCALE]`: what staging costs beside `Dataset.to_parquet` of the same configs.

In one run, on a slice of the simulated upstreams with bm25 lists, from builds that are in the library's cache already.
Both write every config and split; staging checks the lists' digests and measures them meanwhile, and then draws and
writes the card, which costs the same for any size. Memory is the peak of a process of its own, memory-mapped pages
included.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import datasets

from tools.__main__ import main as run_command
from tools.bench import seconds
from tools.card import FEATURES, MTEB_QRELS
from tools.collection import Collection
from tools.stage import find_missing, write_card, write_configs

SCALE = 0.1
SPLITS = ["NanoDAPFAMAllTitlAbsToFullText", "NanoDAPFAMAllTitlAbsToTitlAbsClm"]
CASES = {"Poetry50KRetrieval": ("poetry", ["test"]), "NanoDAPFAM": ("dapfam", SPLITS)}
PEAK = """
import sys
from tools.__main__ import main
code = main(sys.argv[1:])
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""


def run_quietly(words: Sequence[str]) -> None:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        if run_command(list(words)):
            sys.exit(f"python -m tools {' '.join(words)}: failed")


def to_parquet(prepared: Sequence[datasets.Dataset], folder: Path) -> None:
    for number, dataset in enumerate(prepared):
        dataset.to_parquet(folder / f"{number}.parquet")


def peak_memory(words: Sequence[str]) -> float:
    """MB, of the command in a process of its own; NaN where the system does not tell."""
    if not Path("/proc/self/status").exists():
        return float("nan")
    done = subprocess.run([sys.executable, "-c", PEAK, *words], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) / 1e3


def bench_stage(dataset: str, data_dir: Path, splits: Sequence[str], folder: Path) -> dict[str, float]:
    """Megabytes of rows; seconds of writing the files, of to_parquet and of the card; peak memory of the command."""
    where = [dataset, "--data-dir", str(data_dir), "--splits", *splits]
    run_quietly(["bm25", *where])
    peak = peak_memory(["stage", *where, "--out", str(folder / "staged")])
    collections = [Collection(dataset, split, str(data_dir)) for split in splits]
    staged = [config for config in FEATURES[dataset] if (folder / "staged" / config).is_dir()]
    sources = ["qrels" if config == MTEB_QRELS else config for config in staged]
    prepared = [collection.prepare(config) for collection in collections for config in sources]
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as plain:
        missing = find_missing(collections)
        build = write_configs(collections, missing, Path(scratch), "x")
        took = seconds(
            {
                "files": lambda: write_configs(collections, missing, Path(scratch), "x"),
                "to_parquet": lambda: to_parquet(prepared, Path(plain)),
                "card": lambda: write_card(build, Path(scratch)),
            }
        )
    size = sum(one.data.nbytes for one in prepared) / 1e6
    return {"MB": size, **took, "peak": peak}


def main(scale: float = SCALE) -> None:
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        run_quietly(["simulate", folder, "--scale", str(scale)])
        print(f"{'':20} {'MB':>7} {'files, s':>9} {'to_parquet, s':>14} {'ratio':>6} {'card, s':>8} {'peak MB':>8}")
        for dataset, (data, splits) in CASES.items():
            with tempfile.TemporaryDirectory() as scratch:
                row = bench_stage(dataset, Path(folder) / data, splits, Path(scratch))
            times = f"{row['files']:9.2f} {row['to_parquet']:14.2f} {row['files'] / row['to_parquet']:6.2f}"
            print(f"{dataset:20} {row['MB']:7.0f} {times} {row['card']:8.2f} {row['peak']:8.0f}", flush=True)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
