"""That the benchmark runs and prints; what it measures is no test."""

import pytest

import NanoDAPFAM
from tools import bench, bench_full
from tools.__main__ import main


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


@pytest.fixture(scope="module")
def upstreams(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulated")
    assert main(["simulate", str(folder), "--scale", "0.001"]) == 0
    return folder


def test_every_way_of_loading_has_a_line(upstreams, monkeypatch, capsys):
    monkeypatch.setattr(bench, "RUNS", 1)
    capsys.readouterr()
    bench.bench_poetry_corpus(upstreams / "poetry")
    bench.bench_dapfam_corpus(upstreams / "dapfam")
    bench.bench_http(upstreams)
    lines = capsys.readouterr().out.splitlines()
    assert "571 pages" in lines[1]
    figures = {line[:32].strip(): line[32:].split() for line in lines if line[32:].split()[:1] != ["seconds"]}
    assert all(float(figures[view][0]) > 0 for view in NanoDAPFAM.VIEWS)
    assert 0 < float(figures["poetry, to the first row"][2]) < 2
    assert 0 < float(figures["a TitlAbs split"][0]) < 100


@pytest.mark.parametrize(
    ("step", "rows"),
    [("poetry corpus", 571), ("limit: decode TitlAbs once", 45), ("bm25 FullText, 2 workers", 44)],  # a text is twice
)
def test_a_step_of_full_size_measures_itself(upstreams, step, rows):
    measured = bench_full.run_step(step, upstreams)
    assert measured["rows"] == rows
    assert all(measured[column] >= 0 for column in bench_full.COLUMNS)
    assert measured["peak MB"] > 10
