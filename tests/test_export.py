"""BEIR's layout and TREC files, read with the readers that others use; runs measure what their lists measure."""

import csv
import json
import os
import subprocess
import sys

import ir_measures
import numpy as np
import pytest
import reading
from conftest import ROOT

from tools.__main__ import main
from tools.collection import Collection
from tools.export import one_line, run_lines, strictly_decreasing
from tools.sidecar import Sidecar, read_sidecar, recipe, write_sidecar

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
SPLITS = ["NanoDAPFAMAllTitlAbsToTitlAbs", "NanoDAPFAMOutTitlAbsToTitlAbs"]


def read_json_lines(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def read_tsv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t"))


@pytest.fixture(scope="module")
def lists(sample, tmp_path_factory):
    """Folder of poetry's lists, and the arguments that name it."""
    folder = tmp_path_factory.mktemp("lists")
    place = [POETRY, "--data-dir", str(sample / "poetry"), "--sidecars", str(folder)]
    for command in (
        ["bm25", *place],
        ["dense", *place, "--model", "lsa"],
        ["hybrid", *place, "--sources", "bm25", "lsa"],
    ):
        assert main(command) == 0
    return place


@pytest.fixture(scope="module")
def trec(lists, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "trec"
    assert main(["export", *lists, "--format", "trec", "--out", str(out)]) == 0
    return out


def test_beir_of_poetry(sample, tmp_path):
    """By the real command."""
    out = tmp_path / "new" / "beir"
    command = [sys.executable, "-m", "tools", "export", POETRY, "--data-dir", str(sample / "poetry")]
    command += ["--format", "beir", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"{out}/qrels/test_min.tsv: 353 judgments of qrels_min"
    upstream = reading.poetry(sample / "poetry")
    documents = [{"_id": page["id"], "title": "", "text": page["text"]} for page in upstream["corpus"]]
    assert read_json_lines(out / "corpus.jsonl") == documents
    assert read_json_lines(out / "queries.jsonl") == [{"_id": q["id"], "text": q["text"]} for q in upstream["queries"]]
    for name, config in (("test", "qrels_max"), ("test_min", "qrels_min")):
        header, *rows = read_tsv(out / "qrels" / f"{name}.tsv")
        assert header == ["query-id", "corpus-id", "score"]
        judged = [[row["query-id"], row["corpus-id"], str(int(row["score"]))] for row in upstream[config]]
        assert sorted(rows) == sorted(judged)
    assert sorted(path.name for path in out.parent.iterdir()) == ["beir"]


def test_beir_of_two_splits(sample, tmp_path):
    out = tmp_path / "beir"
    options = ["--data-dir", str(sample / "dapfam"), "--splits", *SPLITS, "--format", "beir", "--out", str(out)]
    assert main(["export", DAPFAM, *options]) == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(SPLITS)
    for split in SPLITS:
        right = reading.dapfam(sample / "dapfam", split)
        assert [row["text"] for row in read_json_lines(out / split / "corpus.jsonl")] == [
            r["text"] for r in right["corpus"]
        ]
        assert read_json_lines(out / split / "queries.jsonl") == right["queries"]
        judged = [[row["query-id"], row["corpus-id"], "1"] for row in right["qrels"]]
        assert read_tsv(out / split / "qrels" / "test.tsv")[1:] == judged


def test_trec_files_of_poetry(sample, trec):
    upstream = reading.poetry(sample / "poetry")
    names = ["corpus", "qrels_max.txt", "qrels_min.txt", "run.bm25.txt", "run.lsa.txt", "run.reranking_hybrid.txt"]
    assert sorted(path.name for path in trec.iterdir()) == [*names, "topics.tsv"]
    documents = [{"id": page["id"], "contents": page["text"]} for page in upstream["corpus"]]
    assert read_json_lines(trec / "corpus" / "documents.jsonl") == documents
    topics = (trec / "topics.tsv").read_text("utf-8").splitlines()
    assert topics == [f"{query['id']}\t{query['text']}" for query in upstream["queries"]]
    for config in ("qrels_max", "qrels_min"):
        found = {(q.query_id, q.doc_id, q.relevance) for q in ir_measures.read_trec_qrels(str(trec / f"{config}.txt"))}
        assert found == {(r["query-id"], r["corpus-id"], int(r["score"])) for r in upstream[config]}
        assert (trec / f"{config}.txt").read_text("utf-8").split("\n")[0].split()[1] == "0"


def measures(place, capsys, *options):
    capsys.readouterr()
    assert main(["evaluate", *place, "--json", *options]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    return [(row.pop("qrels"), row.pop("queries"), row.pop("config") and row.pop("split"), row) for row in rows]


@pytest.mark.parametrize("config", ["bm25", "lsa", "reranking_hybrid"])
def test_a_run_measures_what_its_lists_measure(lists, trec, capsys, config):
    run = trec / f"run.{config}.txt"
    of_lists = measures(lists, capsys, "--config", config)
    of_run = measures(lists, capsys, "--run", str(run))
    assert [row[:3] for row in of_lists] == [row[:3] for row in of_run] and len(of_run) == 2
    for (*_, left), (*_, right) in zip(of_lists, of_run, strict=True):
        assert left == pytest.approx(right, abs=1e-9)
    # By the field's own reader, which hands the scores to trec_eval as they are.
    qrels = list(ir_measures.read_trec_qrels(str(trec / "qrels_max.txt")))
    scored = list(ir_measures.read_trec_run(str(run)))
    found = ir_measures.calc_aggregate([ir_measures.nDCG @ 10, ir_measures.AP], qrels, scored)
    assert found[ir_measures.nDCG @ 10] == pytest.approx(of_lists[0][3]["nDCG@10"], abs=1e-9)
    assert found[ir_measures.AP] == pytest.approx(of_lists[0][3]["MAP"], abs=1e-9)


def test_run_lines_are_the_lists_without_what_scores_0(lists, trec):
    sidecar = read_sidecar(f"{lists[-1]}/bm25/test.parquet")
    lines = [line.split() for line in (trec / "run.bm25.txt").read_text("utf-8").splitlines()]
    expected = [
        [query_id, "Q0", document_id, str(rank), "bm25"]
        for query_id, ids, scores in zip(sidecar.query_ids, sidecar.corpus_ids, sidecar.scores, strict=True)
        for rank, (document_id, score) in enumerate(zip(ids, scores, strict=True), 1)
        if score != 0
    ]
    assert [[*line[:4], line[5]] for line in lines] == expected and 0 < len(lines) < sum(map(len, sidecar.scores))


def test_ties_keep_their_order_in_single_precision(sample, tmp_path, capsys):
    """Scores that are all one, and scores that single precision makes one, with the ids in either order."""
    collection = Collection(POETRY, "test", str(sample / "poetry"), str(tmp_path / "lists"))
    query_ids, ids = collection.queries["id"].to_pylist(), sorted(collection.corpus["id"].to_pylist())
    ranked = [ids if at % 2 else ids[::-1] for at in range(len(query_ids))]
    scores = [[1.0 - (at % 3) * 1e-12 * rank for rank in range(len(ids))] for at in range(len(query_ids))]
    sidecar = Sidecar(query_ids, ranked, scores, recipe(collection, "tied", {}))
    write_sidecar(collection.sidecar_path("tied"), sidecar)
    place = [POETRY, "--data-dir", collection.data_dir, "--sidecars", collection.sidecar_dir]
    out = tmp_path / "trec"
    assert main(["export", *place, "--format", "trec", "--out", str(out), "--config", "tied"]) == 0
    assert [path.name for path in out.glob("run.*")] == ["run.tied.txt"]
    of_lists, of_run = (
        measures(place, capsys, *chosen) for chosen in (["--config", "tied"], ["--run", str(out / "run.tied.txt")])
    )
    assert [row[3] for row in of_lists] == [pytest.approx(row[3], abs=1e-9) for row in of_run]
    of_query = {}
    for scored in ir_measures.read_trec_run(str(out / "run.tied.txt")):
        of_query.setdefault(scored.query_id, []).append((np.float32(scored.score), scored.doc_id))
    for query_id, expected in zip(query_ids, ranked, strict=True):
        assert [document_id for _, document_id in sorted(of_query[query_id], reverse=True)] == expected


def test_scores_are_lowered_only_where_they_must_be():
    one, below = np.float32(1), np.nextafter(np.float32(1), np.float32(0))
    assert strictly_decreasing([3.5, 1.0, 1.0, 0.5]) == [3.5, one, below, 0.5]
    assert strictly_decreasing([1.0, 1.0 - 1e-12, -2.0, -2.0])[1:] == [
        below,
        -2.0,
        np.nextafter(np.float32(-2), -np.inf),
    ]
    assert strictly_decreasing([1.0, 5.0]) == [one, below]  # the order of the list is the ranking
    assert strictly_decreasing([]) == []
    sidecar = Sidecar(["q", "none"], [["a", "b", "c"], ["a"]], [[0.1, 0.0, -1.0], [0.0]], {})
    assert list(run_lines(sidecar, "t")) == ["q Q0 a 1 0.1 t\n", "q Q0 c 2 -1.0 t\n"]


def test_a_topic_is_one_line():
    assert one_line("a\tb\r\nc\u2028d\x85e  f") == "a b  c d e  f"


def test_ids_with_white_space(tmp_path, capsys):
    """TREC's columns end at white space, of which Unicode has much; BEIR's tab-separated ones are quoted."""
    reading.write_poetry(tmp_path / "poetry", [{"book": "b\u00a0c", "page": 1, "text": "x"}], "love 0 b/1 1\n")
    place = [POETRY, "--data-dir", str(tmp_path / "poetry")]
    assert main(["export", *place, "--format", "trec", "--out", str(tmp_path / "trec")]) == 2
    err = capsys.readouterr().err
    assert "test: id 'b\\xa0c/1' is empty or has white space in it" in err and err.count("\n") == 1
    tables = reading.dapfam_tables([('d\t"1', "one")], [("q 1", "ask")], [("q 1", 'd\t"1', 1.0, "IN")])
    reading.write_dapfam(tmp_path / "dapfam", tables)
    place = [DAPFAM, "--data-dir", str(tmp_path / "dapfam"), "--splits", SPLITS[0]]
    assert main(["export", *place, "--format", "trec", "--out", str(tmp_path / "trec")]) == 2
    assert "id 'q 1' is empty or has white space in it" in capsys.readouterr().err
    assert not list(tmp_path.glob("*trec*")) and not list(tmp_path.glob(".*"))  # nothing half done is left
    assert main(["export", *place, "--format", "beir", "--out", str(tmp_path / "beir")]) == 0
    assert read_tsv(tmp_path / "beir" / SPLITS[0] / "qrels" / "test.tsv")[1:] == [["q 1", 'd\t"1', "1"]]


def test_what_cannot_be_exported(lists, tmp_path, capsys):
    def refused(*options, form="trec", out=tmp_path / "out"):
        assert main(["export", *lists, "--format", form, "--out", str(out), *options]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        assert not list(tmp_path.glob(".*"))
        return err

    assert f"--out {tmp_path}: exists already" in refused(out=tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "exists already" in refused(out=tmp_path / "link")
    assert "build them with: python -m tools dense" in refused("--config", "harrier_oss_v1_270m")
    assert "--config: BEIR's layout has no candidate lists" in refused("--config", "bm25", form="beir")
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit) as exit_:
        main(["export", *lists, "--format", "xml", "--out", str(tmp_path / "out")])
    assert exit_.value.code == 2
