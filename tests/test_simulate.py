"""Simulated upstreams have the published shape, the upstreams' formats, and are whole or not there at all."""

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter, defaultdict
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import NanoDAPFAM
import Poetry50KRetrieval
from tools import simulate
from tools.__main__ import main
from tools.errors import InputError

pytestmark = pytest.mark.once  # no use of the library

FILES = [
    "poetry/poetry50k.dedup.jsonl.gz",
    "poetry/mturk.max.qrel",
    "poetry/mturk.min.qrel",
    "dapfam/corpus.parquet",
    "dapfam/queries.parquet",
    "dapfam/qrels_all.parquet",
]
PROJECT = Path(__file__).parents[1]
SHARED = PROJECT.parent / "shared"
SCALE, SEED = 0.01, 7
SEVERAL_BLOCKS = 0.004  # a scale at which each corpus is composed in more than one
POETRY, DAPFAM = simulate.PUBLISHED["poetry"], simulate.PUBLISHED["dapfam"]
DOCUMENTS, QUERIES = 453, 12
FEWEST, MOST = DAPFAM["positives_a_query"]
SECONDS = 60  # no step of the command takes as long


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("simulated")
    assert [written.path for written in simulate.simulate(path, SCALE, SEED)] == [path / name for name in FILES]
    return path


@pytest.fixture(scope="module")
def pages(directory):
    return read_pages(directory / FILES[0])


@pytest.fixture(scope="module")
def qrels(directory):
    return {name: read_qrels(directory / f"poetry/mturk.{name}.qrel") for name in ("max", "min")}


@pytest.fixture(scope="module")
def corpus(directory):
    return pq.read_table(directory / "dapfam/corpus.parquet").to_pylist()


@pytest.fixture(scope="module")
def queries(directory):
    return pq.read_table(directory / "dapfam/queries.parquet").to_pylist()


@pytest.fixture(scope="module")
def relations(directory):
    return pq.read_table(directory / "dapfam/qrels_all.parquet").to_pylist()


def read_pages(path):
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


def read_qrels(path):
    """(topic, page) -> label."""
    rows = [line.split() for line in path.read_text("ascii").splitlines()]
    assert all(iteration == "0" for _, iteration, _, _ in rows)
    labels = {(topic, page): int(label) for topic, _, page, label in rows}
    assert len(labels) == len(rows)
    return labels


def page_id(page):
    return f"{page['book']}/{page['page']}"


def view_text(family, view):
    return "\n".join(family[name] for name in NanoDAPFAM.VIEWS[view] if family[name])


def skip_without(path):
    if not path.exists():
        pytest.skip(f"{path} is not there: the upstream sample is not part of the project")
    return path


# --- The published figures --------------------------------------------------------------------------------------------


def test_figures_are_the_published_ones_of_poetry():
    published = json.loads(skip_without(SHARED / "published/Poetry50KRetrieval.json").read_text())
    labels = {
        name: {int(label): count for label, count in counts.items()}
        for name, counts in published["raw_labels_all_1347"].items()
    }
    figures = {
        "scanned_pages": published["upstream"]["scanned_pages"],
        "pages": published["rows"]["corpus"],
        "judgments": published["judgments_in_upstream_files"],
        "judged_pages": published["judged_documents"],
        "judged_pages_in_corpus": published["judged_documents_in_corpus"],
        "labels": labels,
        "topics": published["topics"],
    }
    assert figures == POETRY


def test_figures_are_the_published_ones_of_dapfam():
    published = json.loads(skip_without(SHARED / "published/NanoDAPFAM.json").read_text())["upstream"]
    rows, chars = published["rows"], published["full_corpus_chars_title_space_text"]
    assert (DAPFAM["documents"], DAPFAM["queries"]) == (rows["corpus"], rows["queries"])
    assert (DAPFAM["positives_out"], DAPFAM["queries_with_out_positive"]) == (
        rows["positive_out"],
        rows["queries_with_out_positive"],
    )
    assert MOST * (rows["queries"] - 1) + FEWEST == rows["positive_relations"]
    assert rows["positive_relations"] + simulate.NOT_CITED * rows["queries"] == rows["relations"]
    assert DAPFAM["unique_query_texts"] == published["query_unique_texts"]
    for view, lengths in chars.items():
        assert DAPFAM["chars"][view] == (lengths["min"], lengths["mean"], lengths["max"])
        assert DAPFAM["unique_texts"][view] == lengths["unique_texts"]


def test_the_plan_at_full_scale_has_the_published_counts():
    pages = simulate.plan_pages(SEED, 1.0)
    judged = {judgment.page for judgment in pages.judgments}
    books = {simulate.book_name(book) for book in range(pages.books[-1] + 1)}
    in_corpus = {page for page in judged if page.split("/")[0] in books}
    assert len(pages.books) == POETRY["pages"] and len(books) == pages.books[-1] + 1
    assert len(pages.holders) == POETRY["scanned_pages"] - POETRY["pages"]
    assert (len(pages.judgments), len(judged)) == (POETRY["judgments"], POETRY["judged_pages"])
    assert len(in_corpus) == POETRY["judged_pages_in_corpus"]
    assert sum(judgment.page in in_corpus for judgment in pages.judgments) == 1170
    for name, counts in POETRY["labels"].items():
        assert Counter(getattr(judgment, name) for judgment in pages.judgments) == counts

    dapfam = simulate.plan_dapfam(SEED, 1.0)
    assert (len(dapfam.corpus.ids), len(dapfam.queries.ids)) == (DAPFAM["documents"], DAPFAM["queries"])
    assert Counter(relation.domain for relation in dapfam.relations) == {"IN": 19_736, "OUT": 5193, "NC": 24_940}
    out = {relation.query for relation in dapfam.relations if relation.domain == "OUT"}
    assert len(out) == DAPFAM["queries_with_out_positive"]
    positives = Counter(relation.query for relation in dapfam.relations if relation.score)
    assert Counter(positives.values()) == {MOST: DAPFAM["queries"] - 1, FEWEST: 1}
    assert min(positives, key=positives.get) < simulate.NANO_QUERIES
    for view, (shortest, mean, longest) in DAPFAM["chars"].items():
        lengths = simulate.with_views(dapfam.corpus.chars)[view]
        assert (lengths.min(), lengths.max()) == (shortest, longest)
        assert lengths.mean() == pytest.approx(mean, rel=1e-6)
    for families, unique in ((dapfam.corpus, "unique_texts"), (dapfam.queries, "unique_query_texts")):
        for name, view in simulate.FIELD_VIEWS.items():
            assert len(set(families.copied[name])) == DAPFAM[unique].get(view, len(families.ids))


# --- Poetry -----------------------------------------------------------------------------------------------------------


def test_poetry_has_as_many_pages_and_topics_as_the_scale_says(pages, qrels):
    assert len(pages) == len({page_id(page) for page in pages}) == 5709
    folded = list(chain.from_iterable(page["duplicates"] for page in pages))
    assert len(folded) == len(set(folded)) == 2771
    assert not set(folded) & {page_id(page) for page in pages}
    assert sorted({topic for topic, _ in qrels["max"]}) == POETRY["topics"]


def test_the_larger_label_is_nowhere_the_smaller(qrels):
    assert qrels["max"].keys() == qrels["min"].keys()
    assert all(qrels["max"][pair] >= qrels["min"][pair] for pair in qrels["max"])


@pytest.mark.parametrize("name", ["max", "min"])
def test_labels_are_in_the_published_proportion(qrels, name):
    share = len(qrels[name]) / POETRY["judgments"]
    found = Counter(qrels[name].values())
    assert found.total() == 2 * len(POETRY["topics"])  # the least there is, at any scale
    for label, count in POETRY["labels"][name].items():
        assert abs(found[label] - count * share) <= 1


def test_some_judged_pages_are_only_in_duplicates_and_some_judged_twice(pages, qrels):
    ids = {page_id(page) for page in pages}
    folded = set(chain.from_iterable(page["duplicates"] for page in pages))
    judged = Counter(page for _, page in qrels["max"])
    assert judged.keys() <= ids | folded
    lost = [page for page in judged if page not in ids]
    assert (len(lost), len(judged), judged.total()) == (7, 51, 52)
    assert all(judged[page] == 1 for page in lost)


def test_text_is_as_ocr_gives_it(pages):
    assert all("\t" in page["text"] and " " not in page["text"] for page in pages)
    assert all("\n" in page["text"] for page in pages if len(page["text"]) > 200)
    text = "".join(page["text"] for page in pages)
    assert all(mark in text for mark in 'é’“”µ°"-.,')


def test_pages_compress_as_english_does(directory):
    """So do they in the published file, as far as its size tells: 439 MiB for 570,930 pages."""
    data = (directory / FILES[0]).read_bytes()
    assert 2.3 < len(gzip.decompress(data)) / len(data) < 3
    assert 0.9 < len(data) / (5709 / POETRY["pages"]) / (439 << 20) < 1.1


# --- DAPFAM -----------------------------------------------------------------------------------------------------------


def test_dapfam_has_as_many_rows_as_the_scale_says(corpus, queries, relations):
    assert len(corpus) == len({family["relevant_id"] for family in corpus}) == DOCUMENTS
    assert len(queries) == len({family["query_id"] for family in queries}) == QUERIES
    positives = Counter(row["query_id"] for row in relations if row["relevance_score"] == 1)
    assert sorted(positives.values()) == [FEWEST, *[MOST] * (QUERIES - 1)]
    assert Counter(row["domain_rel"] for row in relations) == {
        "OUT": 52,
        "IN": positives.total() - 52,
        "NC": simulate.NOT_CITED * QUERIES,
    }
    assert len({row["query_id"] for row in relations if row["domain_rel"] == "OUT"}) == 9
    assert {row["relevance_score"] for row in relations if row["domain_rel"] == "NC"} == {0.0}
    pairs = [(row["query_id"], row["relevant_id"]) for row in relations]
    assert len(set(pairs)) == len(pairs)


def test_a_citation_is_in_domain_if_and_only_if_a_class_is_shared(corpus, queries, relations):
    classes = {family["relevant_id"]: set(family[simulate.CLASSES]) for family in corpus}
    asked = {family["query_id"]: set(family[simulate.CLASSES]) for family in queries}
    for row in relations:
        if row["relevance_score"]:
            shared = asked[row["query_id"]] & classes[row["relevant_id"]]
            assert row["domain_rel"] == ("IN" if shared else "OUT")


def test_texts_are_lower_case_and_of_the_published_length(corpus):
    for view, (shortest, mean, longest) in DAPFAM["chars"].items():
        lengths = [len(view_text(family, view)) for family in corpus]
        assert shortest <= min(lengths) and max(lengths) <= longest
        assert np.mean(lengths) == pytest.approx(mean, rel=0.05)
    text = "".join(view_text(family, "FullText") for family in corpus[:50])
    assert text == text.lower()
    assert all(mark in text for mark in 'é’“”µ°"-.,;\n')
    assert 2.4 < len(text.encode()) / len(gzip.compress(text.encode(), 6)) < 3


def test_one_family_and_one_query_are_filed_twice(corpus, queries):
    for view in DAPFAM["unique_texts"]:
        assert len({view_text(family, view) for family in corpus}) == DOCUMENTS - 1
    assert len({view_text(family, "TitlAbs") for family in queries}) == QUERIES - 1
    assert len({view_text(family, "TitlAbsClm") for family in queries}) == QUERIES


def test_bm25_finds_positives_but_not_all(corpus, queries, relations):
    """By shared rare words alone: more than chance would find among the first ten, and fewer than there are."""
    texts = [set(view_text(family, "TitlAbsClm").split()) for family in corpus]
    frequency = Counter(chain.from_iterable(texts))
    positives = defaultdict(set)
    for row in relations:
        if row["relevance_score"]:
            positives[row["query_id"]].add(row["relevant_id"])
    found = []
    for query in queries:
        words = set(view_text(query, "TitlAbs").split())
        scores = [sum(np.log(DOCUMENTS / frequency[word]) for word in words & text) for text in texts]
        first = np.argsort(scores)[::-1][:10]
        found.append(sum(corpus[row]["relevant_id"] in positives[query["query_id"]] for row in first) / 10)
    assert 3 * MOST / DOCUMENTS < np.mean(found) < 0.9


# --- Formats ----------------------------------------------------------------------------------------------------------


def test_poetry_has_the_upstream_format(directory, pages):
    upstream = skip_without(SHARED / "upstream/poetry")
    expected = read_pages(upstream / "poetry50k.dedup.jsonl.gz")[0]
    for page in pages:
        assert [(key, type(value)) for key, value in page.items()] == [(k, type(v)) for k, v in expected.items()]
        assert all(isinstance(duplicate, str) for duplicate in page["duplicates"])
    assert (directory / FILES[0]).read_bytes()[:4] == (upstream / "poetry50k.dedup.jsonl.gz").read_bytes()[:3] + b"\0"
    for name in ("mturk.max.qrel", "mturk.min.qrel"):
        ours, theirs = ((folder / name).read_text("ascii").splitlines() for folder in (directory / "poetry", upstream))
        assert [line.count(" ") for line in ours] == [3] * len(ours)
        assert ours == sorted(ours, key=lambda line: line.split()[::2]) and theirs[0].count(" ") == 3


@pytest.mark.parametrize("name", ["corpus.parquet", "queries.parquet", "qrels_all.parquet"])
def test_dapfam_has_the_upstream_schema_and_compression(directory, name):
    upstream = skip_without(SHARED / "upstream/dapfam" / name)
    ours, theirs = pq.ParquetFile(directory / "dapfam" / name), pq.ParquetFile(upstream)
    assert ours.schema_arrow.equals(theirs.schema_arrow)
    compression = {file.metadata.row_group(0).column(0).compression for file in (ours, theirs)}
    assert compression == {"ZSTD"}


def test_one_gzip_member(directory):
    """Some readers stop at the end of the first."""
    data = (directory / FILES[0]).read_bytes()
    member = zlib.decompressobj(16 + zlib.MAX_WBITS)
    member.decompress(data)
    assert member.eof and not member.unused_data


# --- Determinism ------------------------------------------------------------------------------------------------------


def test_equal_seeds_make_equal_files_with_any_number_of_threads(tmp_path, monkeypatch):
    for threads in (1, 3):
        monkeypatch.setattr(os, "cpu_count", lambda threads=threads: threads)
        for _ in simulate.simulate(tmp_path / str(threads), SEVERAL_BLOCKS, SEED):
            pass
    for name in FILES:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes(), name


def test_another_seed_makes_other_files(directory, tmp_path):
    for _ in simulate.simulate(tmp_path, simulate.LEAST_SCALE, SEED + 1):
        pass
    (page, *_), (other, *_) = read_pages(tmp_path / FILES[0]), read_pages(directory / FILES[0])
    assert page["text"] != other["text"]
    ids, others = (
        pq.read_table(folder / "dapfam/corpus.parquet")["relevant_id"].to_pylist() for folder in (tmp_path, directory)
    )
    assert not set(ids) & set(others)


# --- The command ------------------------------------------------------------------------------------------------------


def command(*arguments):
    return [sys.executable, "-m", "tools", "simulate", *map(str, arguments)]


def wait_for(found, process):
    """What `found` returns, as soon as it is anything."""
    deadline = time.monotonic() + SECONDS
    while not (result := found()):
        assert process.poll() is None, f"the command ended early: {process.stderr.read()}"
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.01)
    return result


@pytest.mark.parametrize("name", ["poetry/poetry50k.dedup.jsonl.gz", "dapfam/corpus.parquet"])
def test_a_killed_run_leaves_no_file_that_looks_complete(tmp_path, name):
    folder, file = tmp_path / Path(name).parent, Path(name).name
    folder.mkdir()
    (folder / file).write_text("of an earlier run")
    scale = 0.2 if folder.name == "poetry" else SCALE
    with subprocess.Popen(
        command(tmp_path, "--scale", scale), cwd=PROJECT, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for(lambda: list(folder.glob(f".{file}.*")), process)
        finally:
            process.kill()
        assert process.wait(SECONDS) == -signal.SIGKILL
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    done = FILES[: FILES.index(name)]
    assert names & set(FILES) == set(done)
    for leftover in names - set(FILES):
        assert Path(leftover).name.startswith(".") and leftover.endswith(".incomplete")


def test_the_command_prints_what_it_wrote(tmp_path, capsys):
    arguments = argparse.ArgumentParser()
    simulate.add_arguments(arguments)
    assert simulate.run(arguments.parse_args([str(tmp_path), "--scale", "0.001", "--seed", "3"])) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    files = {line[0]: line for line in lines if "/" in line[0]}
    assert list(files) == FILES
    for name in FILES:
        assert int(files[name][2]) == (tmp_path / name).stat().st_size
    assert files["dapfam/corpus.parquet"][1] == str(pq.read_metadata(tmp_path / "dapfam/corpus.parquet").num_rows)
    lengths = [len(view_text(f, "FullText")) for f in pq.read_table(tmp_path / "dapfam/corpus.parquet").to_pylist()]
    assert ["FullText", str(min(lengths)), f"{np.mean(lengths):.1f}", str(max(lengths))] in lines


def test_too_little_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"^[^\n]*\d GB needed, 1\.00 GB free[^\n]*--scale[^\n]*$"):
        next(simulate.simulate(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("scale", [0, -1, 5, float("nan")])
def test_a_scale_out_of_range_is_one_line(tmp_path, capsys, scale):
    assert main(["simulate", str(tmp_path), f"--scale={scale}"]) == 2
    output, error = capsys.readouterr()
    assert not output and "not between 0.001 and 4" in error and error.count("\n") == 1


def test_a_negative_seed_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="--seed -1"):
        next(simulate.simulate(tmp_path, SCALE, -1))


def test_a_file_in_the_way_is_one_line(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert main(["simulate", str(tmp_path / "taken")]) == 2
    error = capsys.readouterr().err
    assert "taken" in error and error.count("\n") == 1


# --- The builders -----------------------------------------------------------------------------------------------------


def built(builder, folder, config, tmp_path, **arguments):
    builder = builder(config_name=config, data_dir=str(folder), cache_dir=str(tmp_path / "cache"), **arguments)
    builder.download_and_prepare()
    return builder.as_dataset()


def test_poetry_loads(directory, tmp_path):
    rows = {
        config: len(built(Poetry50KRetrieval.Poetry50KRetrieval, directory / "poetry", config, tmp_path)["test"])
        for config in ("corpus", "queries", "qrels_max", "qrels_min")
    }
    assert rows == {"corpus": 5709, "queries": 26, "qrels_max": 45, "qrels_min": 45}


def test_all_dapfam_splits_have_queries_and_qrels(directory, tmp_path):
    queries, qrels = (
        built(NanoDAPFAM.NanoDAPFAM, directory / "dapfam", config, tmp_path) for config in ("queries", "qrels")
    )
    for split, (scope, query_view, _) in NanoDAPFAM.SPLITS.items():
        assert 0 < len(queries[split]) <= (9 if scope == "Out" else QUERIES) and len(qrels[split]), split
        if scope == "All":
            assert len(queries[split]) == QUERIES - (query_view == "TitlAbs"), split


def test_dapfam_corpus_loads_in_every_view(directory, tmp_path):
    splits = [f"NanoDAPFAMAllTitlAbsTo{view}" for view in NanoDAPFAM.VIEWS]
    corpus = built(NanoDAPFAM.NanoDAPFAM, directory / "dapfam", "corpus", tmp_path, splits=splits)
    assert {split: len(corpus[split]) for split in splits} == dict.fromkeys(splits, DOCUMENTS - 1)


# --- Arithmetic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [30, 57, 100])
def test_apportion_keeps_sum_and_bounds(total):
    numbers = simulate.apportion(total, np.array([0, 1, 1, 2, 3, np.inf]), 1, 25)
    assert numbers.sum() == total
    assert numbers.min() == numbers[0] == 1 and numbers.max() <= 25
    assert all(a <= b for a, b in pairwise(numbers))


def test_copies_lie_in_the_row_group_of_their_original():
    copied = simulate.plan_dapfam(SEED, 0.1).corpus.copied["title_en"]
    copies = np.flatnonzero(copied != np.arange(len(copied)))
    assert len(copies) == 13
    assert (copies // simulate.ROWS_A_GROUP == copied[copies] // simulate.ROWS_A_GROUP).all()
    assert not set(copied[copies]) & set(copies)
