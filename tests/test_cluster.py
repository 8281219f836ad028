"""bm25 --scheduler on a real dask.distributed cluster: a scheduler and two workers, processes on loopback."""

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tools import bm25
from tools.__main__ import main
from tools.collection import Collection

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
SPLIT = "NanoDAPFAMAllTitlAbsToFullText"


@contextmanager
def running(*command, **options):
    """A process that is killed at the end."""
    process = subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def cluster(folder, root=ROOT, workers=2):
    """(address, worker processes), once all workers have joined."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    port = address.rsplit(":", 1)[1]
    scheduler = ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
    worker = ("distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard")
    options = {"cwd": folder, "env": os.environ | {"PYTHONPATH": str(root)}}
    with running(*scheduler, **options), running(*worker, **options) as first:
        if workers == 1:
            distributed.Client(address, timeout=30, set_as_default=False).wait_for_workers(1, timeout=60)
            yield address, [first]
            return
        with running(*worker, **options) as second:
            with distributed.Client(address, timeout=30, set_as_default=False) as client:
                client.wait_for_workers(2, timeout=60)
            yield address, [first, second]


def run_bm25(folder, sidecars, *options):
    """(exit code, lines on stderr) of the command."""
    stderr = io.StringIO()
    place = ["NanoDAPFAM", "--data-dir", str(folder), "--sidecars", str(sidecars), "--splits", SPLIT]
    with redirect_stdout(io.StringIO()), redirect_stderr(stderr):
        code = main(["bm25", *place, *map(str, options)])
    return code, stderr.getvalue().splitlines()


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("cluster")) as (address, workers):
        yield address, workers


def test_a_cluster_gives_the_same_bytes(sample, tmp_path, two_workers, monkeypatch):
    monkeypatch.setattr(bm25, "PARTITION_BYTES", 1 << 15)  # 20 partitions of the sample
    assert len(bm25.partition(Collection("NanoDAPFAM", SPLIT, str(sample / "dapfam")))) > 10
    assert run_bm25(sample / "dapfam", tmp_path / "here") == (0, [])
    assert run_bm25(sample / "dapfam", tmp_path / "there", "--scheduler", two_workers[0]) == (0, [])
    here, there = (next((tmp_path / place).rglob("*.parquet")).read_bytes() for place in ("here", "there"))
    assert here == there


def test_workers_read_an_upstream_url_for_themselves(sample, tmp_path, two_workers, serve):
    server = serve(sample / "dapfam")
    assert run_bm25(sample / "dapfam", tmp_path / "folder") == (0, [])
    assert run_bm25(server.url, tmp_path / "url", "--scheduler", two_workers[0]) == (0, [])
    folder, url = (next((tmp_path / place).rglob("*.parquet")).read_bytes() for place in ("folder", "url"))
    assert folder == url


def test_a_killed_worker_is_survived(shared, tmp_path, monkeypatch):
    monkeypatch.setattr(bm25, "PARTITION_BYTES", 1 << 16)
    assert run_bm25(shared / "dapfam", tmp_path / "here") == (0, [])
    killed = []

    def partition_and_kill(collection, plain=bm25.partition):
        """The partitions; before the tenth is handed out, a worker dies."""
        for number, partition in enumerate(plain(collection)):
            if number == 10:
                workers[0].send_signal(signal.SIGKILL)
                killed.append(workers[0].wait(30))
            yield partition

    with cluster(tmp_path) as (address, workers):
        monkeypatch.setattr(bm25, "partition", lambda collection: Counted(partition_and_kill(collection)))
        assert run_bm25(shared / "dapfam", tmp_path / "there", "--scheduler", address) == (0, [])
    assert killed == [-signal.SIGKILL]
    here, there = (next((tmp_path / place).rglob("*.parquet")).read_bytes() for place in ("here", "there"))
    assert here == there


class Counted:
    """Partitions that are made as they are asked for, with a length as the list has."""

    def __init__(self, partitions):
        self.partitions = partitions

    def __iter__(self):
        return self.partitions

    def __len__(self):
        return 350


def test_a_scheduler_that_does_not_answer_is_one_line_within_ten_seconds(sample, tmp_path):
    with socket.socket() as silent:  # takes connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        code, (line,) = run_bm25(sample / "dapfam", tmp_path, "--scheduler", address)
    assert code == 2 and f"--scheduler {address}: no dask scheduler answers there" in line
    assert time.monotonic() - start < 10


def test_workers_of_another_version_are_refused(sample, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(ROOT / "tools", other / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for script in ROOT.glob("*.py"):
        shutil.copy(script, other)
    with open(other / "tools/scoring.py", "a") as file:
        file.write("# changed\n")
    with cluster(tmp_path, root=other, workers=1) as (address, _):
        code, (line,) = run_bm25(sample / "dapfam", tmp_path / "lists", "--scheduler", address)
    assert code == 2 and "has another version of this project" in line
    assert not (tmp_path / "lists").exists()
