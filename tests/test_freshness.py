"""A changed file is seen by the next load without flags; an unchanged one is served from the cache."""

import os
import shutil
from pathlib import Path

import pytest
import reading

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
SPLIT = "NanoDAPFAMAllTitlAbsToTitlAbs"
LINES = [{"book": "b", "page": page, "score": 0.5, "text": f"page {page}"} for page in range(3)]


def replace(path, content, same_time=False):
    """Another file of that name, renamed over the first, perhaps with its times."""
    stat = path.stat()
    partial = path.with_name("new")
    partial.write_bytes(content)
    if same_time:
        os.utime(partial, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    partial.replace(path)


def cached(splits):
    """Which Arrow files are behind the splits, and which writing of them."""
    files = [Path(file["filename"]) for split in splits.values() for file in split.cache_files]
    assert files
    return [(file, file.stat().st_ino, file.stat().st_mtime_ns) for file in files]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("same_time", [False, True])
def test_replaced_qrels_of_the_same_size_are_seen(load, tmp_path, same_time, streaming):
    reading.write_poetry(tmp_path, LINES, "love 0 b/1 1\n", "love 0 b/1 1\n")
    assert [row["score"] for row in load(POETRY, "qrels_max", tmp_path, streaming=streaming)["test"]] == [1.0]
    replace(tmp_path / "mturk.max.qrel", b"love 0 b/2 2\n", same_time)
    right = [{"query-id": "love", "corpus-id": "b/2", "score": 2.0}]
    assert load(POETRY, "qrels_max", tmp_path, streaming=streaming)["test"] == right


def test_qrels_rewritten_in_place_are_seen(load, tmp_path):
    reading.write_poetry(tmp_path, LINES, "love 0 b/1 1\n")
    load(POETRY, "queries", tmp_path)
    (tmp_path / "mturk.max.qrel").write_text("hate 0 b/1 1\n")
    assert load(POETRY, "queries", tmp_path)["test"] == [{"id": "hate", "text": "hate"}]


@pytest.mark.parametrize("config", ["corpus", "qrels_max"])
def test_a_replaced_poetry_corpus_is_seen(load, tmp_path, config):
    for lines in (LINES, LINES[1:]):
        reading.write_poetry(tmp_path, lines, "love 0 b/0 1\nlove 0 b/1 1\n")
        assert load(POETRY, config, tmp_path)["test"] == reading.poetry(tmp_path)[config]


@pytest.mark.parametrize("config", ["corpus", "queries", "qrels"])
@pytest.mark.parametrize("replaced", ["corpus", "queries", "qrels_all"])
def test_each_replaced_file_of_dapfam_is_seen(load, tmp_path, replaced, config):
    first = ([("d1", "one"), ("d2", "two")], [("q1", "ask"), ("q2", "beg")], [("q1", "d1", 1.0, "IN")])
    other = ([("d1", "two"), ("d2", "two")], [("q1", "nag"), ("q2", "beg")], [("q2", "d2", 1.0, "IN")])
    at = ["corpus", "queries", "qrels_all"].index(replaced)
    for parts in (first, (*first[:at], other[at], *first[at + 1 :])):
        reading.write_dapfam(tmp_path, reading.dapfam_tables(*parts))
        found = load(DAPFAM, config, tmp_path, splits=[SPLIT])
        assert reading.first_difference(found, reading.expected(DAPFAM, config, tmp_path, [SPLIT])) is None


@pytest.mark.parametrize("place", ["data_dir", "sidecar_dir", "http"])
def test_a_replaced_sidecar_is_seen(load, open_splits, serve, sample, tmp_path, place):
    folder = shutil.copytree(sample / "poetry", tmp_path / "upstream")
    root = folder if place == "data_dir" else tmp_path / "lists"
    options = {"sidecar_dir": {"sidecar_dir": str(root), "http": serve(tmp_path).url + "/lists"}.get(place)}
    upstream = reading.poetry(folder)
    for depth in (3, 4, 4):
        lists = reading.candidate_lists(upstream["queries"], upstream["corpus"], depth)
        reading.write_sidecar(root, POETRY, "bm25", "test", upstream["queries"], lists)
        assert load(POETRY, "bm25", folder, **options)["test"] == reading.candidate_rows(lists)
    before = cached(open_splits(POETRY, "bm25", folder, **options))
    assert cached(open_splits(POETRY, "bm25", folder, **options)) == before


def test_a_built_sidecar_is_seen_after_a_load_that_missed_it(load, sample, tmp_path):
    upstream = reading.poetry(sample / "poetry")
    options = {"sidecar_dir": str(tmp_path)}
    with pytest.raises(ValueError, match="python -m tools bm25"):
        load(POETRY, "bm25", sample / "poetry", **options)
    lists = reading.candidate_lists(upstream["queries"], upstream["corpus"])
    reading.write_sidecar(tmp_path, POETRY, "bm25", "test", upstream["queries"], lists)
    assert load(POETRY, "bm25", sample / "poetry", **options)["test"] == reading.candidate_rows(lists)


@pytest.mark.parametrize(
    ("dataset", "config"),
    [
        *((POETRY, config) for config in ("corpus", "queries", "qrels_max")),
        *((DAPFAM, config) for config in ("corpus", "queries", "qrels")),
    ],
)
def test_unchanged_files_are_served_from_the_cache(open_splits, sample, dataset, config):
    folder = sample / ("poetry" if dataset == POETRY else "dapfam")
    before = cached(open_splits(dataset, config, folder))
    assert cached(open_splits(dataset, config, folder)) == before


@pytest.mark.parametrize(
    ("dataset", "config", "body"), [(POETRY, "corpus", reading.CORPUS_GZ), (DAPFAM, "corpus", "corpus.parquet")]
)
def test_behind_http_nothing_is_fetched_again_until_the_etag_changes(
    open_splits, serve, tmp_path, dataset, config, body
):
    options = {"splits": [SPLIT]} if dataset == DAPFAM else {}

    def write(first, second):
        """Two upstreams that differ in one letter, in files of one size."""
        if dataset == POETRY:
            lines = [{"book": "b", "page": 1, "score": 1, "text": f"{first}{second}"}]
            reading.write_poetry(tmp_path, lines, "love 0 b/1 1\n")
        else:
            tables = reading.dapfam_tables([("d1", first), ("d2", second)], [("q", "ask")], [("q", "d1", 1.0, "IN")])
            reading.write_dapfam(tmp_path, tables)
        return (tmp_path / body).stat().st_size

    size = write("x", "y")
    server = serve(tmp_path)
    before = cached(open_splits(dataset, config, server.url, **options))
    server.requests.clear()
    assert cached(open_splits(dataset, config, server.url, **options)) == before
    assert [request for request in server.requests if request.sent] == []

    assert write("y", "x") == size
    splits = open_splits(dataset, config, server.url, **options)
    found = {name: list(split) for name, split in splits.items()}
    assert reading.first_difference(found, reading.expected(dataset, config, tmp_path, [SPLIT])) is None
    assert cached(splits) != before
