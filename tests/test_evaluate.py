"""Measures worked out by hand, runs that cannot be taken, and the command on lists that were written by hand."""

import json
import os
import subprocess
import sys
from math import log2

import pytest
from conftest import ROOT

from tools.__main__ import main
from tools.collection import Collection
from tools.errors import InputError
from tools.evaluate import format_table, mean_over_splits, measure, retrieved
from tools.runs import parse_run
from tools.sidecar import Sidecar, recipe, write_sidecar

POETRY = "Poetry50KRetrieval"
SPLITS = ["NanoDAPFAMAllTitlAbsToTitlAbs", "NanoDAPFAMOutTitlAbsToTitlAbs"]
MEASURES = ("nDCG@10", "MAP", "MRR@10", "hit@10", "recall@10", "recall@100")


def test_a_graded_list_by_the_formulas():
    """Grades at ranks 1 to 5: 0, 2, unjudged, 1, 0; one more document of grade 2 is not in the list."""
    qrels = {"war": {"a": 0, "b": 2, "c": 1, "d": 2, "e": 0}}
    values = measure({"war": ["a", "b", "x", "c", "e"]}, qrels)["war"]
    dcg = 2 / log2(2 + 1) + 1 / log2(4 + 1)  # linear gain: the grade itself
    ideal = 2 / log2(1 + 1) + 2 / log2(2 + 1) + 1 / log2(3 + 1)
    assert values["nDCG@10"] == pytest.approx(dcg / ideal, rel=1e-12)
    assert values["MAP"] == pytest.approx((1 / 2 + 2 / 4) / 3, rel=1e-12)
    assert values["MRR@10"] == 1 / 2
    assert values["hit@10"] == 1
    assert values["recall@10"] == values["recall@100"] == pytest.approx(2 / 3, rel=1e-12)


def test_cutoffs_at_ranks_10_and_100():
    fillers = [f"x{number:03}" for number in range(200)]
    qrels = {query_id: {"p": 1} for query_id in ("tenth", "eleventh", "hundredth", "after")}
    ranks = {"tenth": 10, "eleventh": 11, "hundredth": 100, "after": 101}
    values = measure({query_id: [*fillers[: rank - 1], "p"] for query_id, rank in ranks.items()}, qrels)
    rounded = {query_id: [round(of_query[name], 4) for name in MEASURES] for query_id, of_query in values.items()}
    assert rounded == {
        "tenth": [round(1 / log2(11), 4), 0.1, 0.1, 1, 1, 1],
        "eleventh": [0, round(1 / 11, 4), 0, 0, 0, 1],
        "hundredth": [0, 0.01, 0, 0, 0, 1],
        "after": [0, round(1 / 101, 4), 0, 0, 0, 0],
    }


def test_the_order_of_a_list_is_the_ranking():
    """Ids neither ascend nor descend, and a list longer than the measures look is in order to its end."""
    ranked = [f"d{number * 37 % 500}" for number in range(500)]
    values = measure({"q": ranked}, {"q": {ranked[6]: 1, ranked[499]: 1}})["q"]
    assert values["MRR@10"] == 1 / 7
    assert values["MAP"] == pytest.approx((1 / 7 + 2 / 500) / 2, rel=1e-12)


def test_queries_without_lists_without_positives_and_without_judgments():
    qrels = {"no list": {"a": 1}, "no positive": {"a": 0}, "found": {"a": 1}}
    lists = {"no positive": ["a"], "found": ["a"], "not judged": ["a"]}
    values = measure(lists, qrels)
    assert list(values) == ["no list", "no positive", "found"]
    for query_id, expected in (("no list", 0), ("no positive", 0), ("found", 1)):
        assert set(values[query_id].values()) == {expected}, query_id
    assert set(measure({}, qrels)["found"].values()) == {0}


def test_means_count_every_split_the_same():
    rows = [
        {"config": "bm25", "qrels": "qrels", "split": split, "queries": queries} | dict.fromkeys(MEASURES, value)
        for split, queries, value in (("A", 1, 1.0), ("B", 99, 0.0))
    ]
    (mean,) = mean_over_splits(rows)
    expected = {"config": "bm25", "qrels": "qrels", "splits": 2, "queries": 100}
    assert mean == expected | dict.fromkeys(MEASURES, 0.5)
    assert format_table(rows).splitlines() == [
        "config  split  qrels  queries  nDCG@10     MAP  MRR@10  hit@10  recall@10  recall@100",
        "bm25    A      qrels        1   1.0000  1.0000  1.0000  1.0000     1.0000      1.0000",
        "bm25    B      qrels       99   0.0000  0.0000  0.0000  0.0000     0.0000      0.0000",
    ]


def test_a_run_is_ordered_as_trec_eval_orders_it():
    lines = ["q1 Q0 a 1 0.5 tag", "q2\tQ0\tz\t9\t-1\ttag", "", "q1 Q0 b 2 0.5 tag", "q1 Q0 c 3 1e1 tag"]
    assert parse_run(lines, "run") == {"q1": ["c", "b", "a"], "q2": ["z"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1 Q0 b 2 0.4", "my.run:2: 5 columns, expected 6: query Q0 document rank score tag"),
        ("q1 Q0 a 2 0.4 tag", "my.run:2: a second 'a' for query 'q1'; keep one"),
        ("q1 Q0 b 2 high tag", "my.run:2: score 'high' is not a number"),
        ("q1 Q0 b 2 nan tag", "my.run:2: score 'nan' is not finite"),
    ],
)
def test_a_run_that_cannot_be_taken(line, message):
    with pytest.raises(InputError) as error:
        parse_run(["q1 Q0 a 1 0.5 tag", line], "my.run")
    assert str(error.value) == message


def write_lists(collection, config, lists):
    scores = [[1 / rank for rank in range(1, len(ranked) + 1)] for ranked in lists]
    made_by = recipe(collection, config, {"made": "by hand"})
    query_ids = collection.queries["id"].to_pylist()
    write_sidecar(collection.sidecar_path(config), Sidecar(query_ids, lists, scores, made_by))


def by_grade(collection, qrels_config):
    """Perfect lists by a qrels config."""
    qrels = collection.qrels(qrels_config)
    of_queries = [qrels.get(query_id, {}) for query_id in collection.queries["id"].to_pylist()]
    return [sorted(grades, key=grades.get, reverse=True) for grades in of_queries]


@pytest.fixture
def poetry(sample, tmp_path):
    collection = Collection(POETRY, "test", str(sample / "poetry"), str(tmp_path / "sidecars"))
    write_lists(collection, "perfect", by_grade(collection, "qrels_max"))
    write_lists(collection, "bm25", [[]] * len(collection.queries))
    return collection


def arguments(collection, *options):
    return [
        *("evaluate", collection.dataset, "--data-dir", collection.data_dir),
        *("--sidecars", collection.sidecar_dir, *options),
    ]


def test_every_sidecar_by_both_qrels(poetry):
    """The real command, whose output is no terminal."""
    command = [sys.executable, "-m", "tools", *arguments(poetry)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    header, *rows = [line.split() for line in done.stdout.splitlines()]
    assert header == ["config", "split", "qrels", "queries", *MEASURES]
    assert [row[:3] for row in rows] == [
        [config, "test", qrels] for config in ("bm25", "perfect") for qrels in ("qrels_max", "qrels_min")
    ]
    assert rows[0][3:] == [str(len(poetry.qrels())), *["0.0000"] * 6]
    assert rows[2][4] == "1.0000" and float(rows[3][4]) < 1  # perfect by the qrels it was made of only


def test_json_and_per_query_agree(poetry, tmp_path, capsys):
    per_query = tmp_path / "per-query.tsv"
    assert main(arguments(poetry, "--json", "--config", "perfect", "--per-query", str(per_query))) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dataset"] == POETRY
    assert [row["qrels"] for row in document["rows"]] == ["qrels_max", "qrels_min"]
    header, *lines = [line.split("\t") for line in per_query.read_text("utf-8").splitlines()]
    assert header == ["config", "split", "qrels", "query-id", *MEASURES]
    for row, mean in zip(document["rows"], document["means"], strict=True):
        values = [float(line[header.index("MAP")]) for line in lines if line[2] == row["qrels"]]
        assert len(values) == row["queries"]
        assert sum(values) / len(values) == pytest.approx(row["MAP"], rel=1e-12) and mean["MAP"] == row["MAP"]


def test_splits_and_their_mean(sample, tmp_path, capsys):
    for split, ranked in zip(SPLITS, (True, False), strict=True):
        collection = Collection("NanoDAPFAM", split, str(sample / "dapfam"), str(tmp_path))
        lists = by_grade(collection, "qrels")
        write_lists(collection, "bm25", lists if ranked else [[] for _ in lists])
    assert main(arguments(collection, "--splits", *SPLITS)) == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    rows = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [(row[1], row[4]) for row in rows[1:]] == [
        (SPLITS[0], "1.0000"),
        (SPLITS[1], "0.0000"),
        ("mean of 2", "0.5000"),
    ]
    assert main(arguments(collection, "--splits", *SPLITS, "--run", "some.run")) == 2
    assert "--run some.run: a run is of one split; name it with --splits" in capsys.readouterr().err


def test_a_run_file(poetry, tmp_path, capsys):
    run = tmp_path / "my.run"
    query_ids, lists = poetry.queries["id"].to_pylist(), by_grade(poetry, "qrels_max")
    lines = [
        f"{query_id} Q0 {document_id} 0 {-rank} mine\n"
        for query_id, ranked in zip(query_ids, lists, strict=True)
        for rank, document_id in enumerate(ranked)
    ]
    run.write_text("".join(lines), "utf-8")
    assert main(arguments(poetry, "--run", str(run), "--qrels", "qrels_max")) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.splitlines()[1].split()[:6] == ["my.run", "test", "qrels_max", "26", "1.0000", "1.0000"]

    # An unknown document at the top takes rank 1; an unknown query is left out; both are said.
    top = "".join(f"{query_id} Q0 no/1 0 9 mine\n" for query_id in query_ids)
    run.write_text("".join(lines) + top + "elsewhere Q0 no/2 0 9 mine\n", "utf-8")
    assert main(arguments(poetry, "--run", str(run), "--qrels", "qrels_max")) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split()[6] == "0.5000"
    assert err == f"{run}: 1 unknown queries, such as 'elsewhere'\n{run}: 2 unknown documents, such as 'no/1'\n"


def test_what_cannot_be_measured(poetry, tmp_path, capsys):
    def refused(*options):
        assert main(arguments(poetry, *options)) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        return err

    run = tmp_path / "my.run"
    assert f"{run}: No such file" in refused("--run", str(run))
    run.write_text("elsewhere Q0 no/2 0 9 mine\n", "utf-8")
    assert f"{run}: none of its queries is one of {POETRY}/test" in refused("--run", str(run))
    run.write_bytes(b"\xff\xfe")
    assert f"{run}: not a TREC run" in refused("--run", str(run))
    assert "no candidate lists there; build them with: python -m tools hybrid" in refused(
        "--config", "reranking_hybrid"
    )
    assert "--qrels qrels: Poetry50KRetrieval has qrels_max and qrels_min" in refused("--qrels", "qrels")
    assert "no candidate lists there" in refused("--sidecars", str(tmp_path / "nowhere"))


def test_a_candidate_that_scores_0_was_not_retrieved():
    sidecar = Sidecar(["q1", "q2"], [["b", "a", "c"], ["a", "b"]], [[2.5, 0.0, 0.0], [-0.5, 0.0]], {})
    assert retrieved(sidecar) == {"q1": ["b"], "q2": ["a"]}
