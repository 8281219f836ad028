"""That the benchmark runs and prints; what it measures is no test."""

import pytest

from tools import bench


def test_every_engine_has_a_line(capsys):
    """1 MB; the benchmark itself compares our scores with bm25s's."""
    pytest.importorskip("tantivy")
    bench.bench_ranking(megabytes=1)
    title, header, *lines = capsys.readouterr().out.strip().splitlines()
    assert "BM25" in title and header.split() == ["seconds", "MB/s", "x", "bm25s"]
    assert [line[:32].strip() for line in lines] == [
        "ours, 1 worker",
        "ours, 2 workers",
        "bm25s",
        "tantivy, indexing only",
    ]
    assert all(float(figure) > 0 for line in lines for figure in line[32:].split()[1:])
