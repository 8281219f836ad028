"""The bm25 command: what it writes, refuses, resumes; that the builders serve it; the figures on the real text."""

import hashlib
import io
import json
import math
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from tools.__main__ import main
from tools.bm25 import force_positives
from tools.tokenizers import tokenize

ROOT = Path(__file__).parents[1]
SPLITS = ["NanoDAPFAMAllTitlAbsToTitlAbs", "NanoDAPFAMOutTitlAbsClmToFullText"]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def tools(*arguments):
    """A command, run in this process, whose start would take most of the time."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as error:  # argparse's way out
            code = error.code
    return Done(code, stdout.getvalue(), stderr.getvalue())


def bm25(dataset, data_dir, sidecars, *options):
    return tools("bm25", dataset, "--data-dir", data_dir, "--sidecars", sidecars, *options)


def one_line(done):
    """The line on stderr of a command that refused: exit code 2, nothing on stdout."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def built(sample, tmp_path_factory):
    """Folder of the sample's poetry lists."""
    sidecars = tmp_path_factory.mktemp("sidecars")
    assert bm25("Poetry50KRetrieval", sample / "poetry", sidecars).returncode == 0
    return sidecars


def test_lists_are_robertson_bm25_worked_out_in_plain_python(sample, built, load):
    """The formula is Robertson's with k1 1.5 and b 0.75; ties and documents without a query term in corpus order."""
    pages = load("Poetry50KRetrieval", "corpus", sample / "poetry")["test"]
    texts = [tokenize(page["text"], "english_porter_stop") for page in pages]
    mean_length = sum(map(len, texts)) / len(texts)
    table = pq.read_table(built / "bm25/test.parquet")
    assert table.column_names == ["query-id", "corpus-ids", "scores"]
    for query in table.to_pylist()[::5]:
        scores = [0.0] * len(pages)
        for term in tokenize(query["query-id"].replace("_", " "), "english_porter_stop"):
            df = sum(term in text for text in texts)
            idf = max(0, math.log((len(texts) - df + 0.5) / (df + 0.5)))
            for i, text in enumerate(texts):
                tf, norm = text.count(term), 0.25 + 0.75 * len(text) / mean_length
                scores[i] += idf * tf / (1.5 * norm + tf)
        order = sorted(range(len(pages)), key=lambda i: (-scores[i], i))
        assert query["corpus-ids"] == [pages[i]["id"] for i in order]
        assert query["scores"] == pytest.approx([scores[i] for i in order], rel=1e-9)


def test_the_recipe_says_what_and_how(sample, built, load):
    recipe = json.loads(pq.read_schema(built / "bm25/test.parquet").metadata[b"recipe"])
    digests = recipe.pop("digests")
    assert recipe.pop("tool").startswith("tools ")
    assert recipe == {
        "dataset": "Poetry50KRetrieval",
        "split": "test",
        "config": "bm25",
        "parameters": {
            "tokenizer": "english_porter_stop",
            "method": "robertson",
            "k1": 1.5,
            "b": 0.75,
            "top_k": 238,
            "force_positives": False,
        },
        "counts": {"queries": 26, "queries_without_known_terms": 0},
    }
    rows = load("Poetry50KRetrieval", "corpus", sample / "poetry")["test"]
    values = [value.encode() for row in rows for value in (row["id"], row["text"])]
    assert digests["corpus"] == hashlib.sha256(b"".join(b"%d:%b" % (len(v), v) for v in values)).hexdigest()


def test_the_builders_serve_the_lists(sample, built, load):
    written = pq.read_table(built / "bm25/test.parquet").select(["query-id", "corpus-ids"]).to_pylist()
    for streaming in (False, True):
        options = {"sidecar_dir": str(built), "streaming": streaming}
        assert load("Poetry50KRetrieval", "bm25", sample / "poetry", **options)["test"] == written


def test_a_second_run_leaves_the_lists_and_another_recipe_needs_overwrite(sample, tmp_path):
    first = bm25("NanoDAPFAM", sample / "dapfam", tmp_path, "--splits", *SPLITS)
    paths = [tmp_path / f"bm25/{split}.parquet" for split in SPLITS]
    assert [line.split(":")[0] for line in first.stdout.splitlines()] == [str(path) for path in sorted(paths)]
    written = [path.read_bytes() for path in paths]
    paths[0].unlink()  # as if the run had been killed before this split
    kept = paths[1].stat().st_mtime_ns

    again = bm25("NanoDAPFAM", sample / "dapfam", tmp_path, "--splits", *SPLITS)
    assert again.returncode == 0 and "is there already" in again.stdout
    assert [path.read_bytes() for path in paths] == written and paths[1].stat().st_mtime_ns == kept

    other = ("--splits", SPLITS[0], "--k1", "0.9")
    line = one_line(bm25("NanoDAPFAM", sample / "dapfam", tmp_path, *other))
    assert str(paths[0]) in line and "other parameters" in line and "--overwrite" in line
    assert paths[0].read_bytes() == written[0]
    assert bm25("NanoDAPFAM", sample / "dapfam", tmp_path, *other, "--overwrite").returncode == 0
    assert paths[0].read_bytes() != written[0]


def test_bytes_do_not_depend_on_the_number_of_workers(shared, tmp_path):
    """22 MB of text are one partition of 32 MB; the split of a corpus into partitions is tested on its own."""
    for workers in (1, 3):
        done = bm25(
            "NanoDAPFAM", shared / "dapfam", tmp_path / str(workers), "--splits", SPLITS[1], "--workers", workers
        )
        assert done.returncode == 0, done.stderr
    one, three = (next((tmp_path / str(workers)).rglob("*.parquet")).read_bytes() for workers in (1, 3))
    assert one == three


def test_forced_positives_replace_the_lowest_non_positives():
    assert force_positives(["a", "b", "c", "d"], ["b"]) == (["a", "b", "c", "d"], 0)
    assert force_positives(["a", "b", "c", "d"], ["d", "x", "y"]) == (["a", "y", "x", "d"], 2)
    assert force_positives(["a", "b"], ["x", "y", "z"]) == (["y", "x"], 2)  # no room for more
    assert force_positives(["a", "b"], []) == (["a", "b"], 0)


def test_forcing_is_recorded_and_leaves_no_positive_out(sample, tmp_path, load):
    options = ("--splits", SPLITS[1], "--top-k", "20", "--force-positives")
    assert bm25("NanoDAPFAM", sample / "dapfam", tmp_path, *options).returncode == 0
    plain = tmp_path / "plain"
    assert bm25("NanoDAPFAM", sample / "dapfam", plain, *options[:-1]).returncode == 0
    table = pq.read_table(tmp_path / f"bm25/{SPLITS[1]}.parquet")
    forced = dict(zip(table["query-id"].to_pylist(), table["corpus-ids"].to_pylist(), strict=True))
    table = pq.read_table(plain / f"bm25/{SPLITS[1]}.parquet")
    raw = dict(zip(table["query-id"].to_pylist(), table["corpus-ids"].to_pylist(), strict=True))
    qrels = load("NanoDAPFAM", "qrels", sample / "dapfam", splits=[SPLITS[1]])[SPLITS[1]]
    missed = [row for row in qrels if row["corpus-id"] not in raw[row["query-id"]]]
    assert missed and all(row["corpus-id"] in forced[row["query-id"]] for row in qrels)
    assert all(len(ids) == len(set(ids)) == 20 for ids in forced.values())
    recipe = json.loads(pq.read_schema(tmp_path / f"bm25/{SPLITS[1]}.parquet").metadata[b"recipe"])
    assert recipe["counts"]["forced_positives"] == len(missed)


def test_a_query_without_a_known_term_lists_the_corpus_in_order(sample, tmp_path, load):
    folder = tmp_path / "poetry"
    folder.mkdir()
    for path in (sample / "poetry").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name in ("mturk.max.qrel", "mturk.min.qrel"):
        with open(folder / name, "a") as file:
            file.write("zyxwv 0 nowhere/1 1\n")
    done = bm25("Poetry50KRetrieval", folder, tmp_path, "--top-k", "30")
    assert "1 queries without known terms" in done.stdout
    pages = load("Poetry50KRetrieval", "corpus", folder)["test"]
    last = pq.read_table(tmp_path / "bm25/test.parquet").to_pylist()[-1]
    assert (last["query-id"], last["corpus-ids"]) == ("zyxwv", [page["id"] for page in pages[:30]])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--top-k", "500"], "--top-k 500: from 1 to 238"),
        (["--top-k", "0"], "--top-k 0"),
        (["--tokenizer", "klingon"], "argument --tokenizer: invalid choice: 'klingon'"),
        (["--method", "bm26"], "argument --method: invalid choice: 'bm26'"),
        (["--k1", "-1"], "k1 must be 0 or more"),
        (["--b", "nan"], "b between 0 and 1"),
        (["--workers", "0"], "--workers 0: at least 1"),
        (["--splits", "train"], "unknown split 'train'; Poetry50KRetrieval has test"),
    ],
)
def test_bad_usage_is_one_line(sample, tmp_path, options, words):
    assert words in one_line(bm25("Poetry50KRetrieval", sample / "poetry", tmp_path, *options))
    assert not list(tmp_path.rglob("*"))


def test_the_real_command_from_another_process(sample, tmp_path):
    command = [sys.executable, "-m", "tools", "bm25", "Poetry50KRetrieval", "--data-dir", str(sample / "poetry")]
    command += ["--sidecars", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    path = tmp_path / "bm25/test.parquet"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{path}: 26 queries, 0 queries without known terms\n"
    done = subprocess.run([*command, "--b", "7"], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_bad_input_is_one_line(sample, tmp_path):
    assert "there is no such file" in one_line(bm25("Poetry50KRetrieval", tmp_path / "nowhere", tmp_path))
    line = one_line(bm25("Poetry50KRetrieval", sample / "dapfam", tmp_path))
    assert "poetry50k.dedup.jsonl.gz: there is no such file" in line
    (tmp_path / "bm25").mkdir()
    (tmp_path / "bm25/test.parquet").write_bytes(b"PAR1 not really")
    line = one_line(bm25("Poetry50KRetrieval", sample / "poetry", tmp_path))
    assert "bm25/test.parquet: not a sidecar" in line and "--overwrite" in line
    assert bm25("Poetry50KRetrieval", sample / "poetry", tmp_path, "--overwrite").returncode == 0
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["test.parquet"]


def test_a_blank_query_is_refused(sample, tmp_path):
    folder = tmp_path / "poetry"
    folder.mkdir()
    for path in (sample / "poetry").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with open(folder / "mturk.max.qrel", "a") as file:
        file.write("_ 0 nowhere/1 1\n")
    assert "query '_' has no text" in one_line(bm25("Poetry50KRetrieval", folder, tmp_path / "lists"))


@pytest.mark.parametrize(
    ("dataset", "folder", "split", "expected"),
    [
        ("Poetry50KRetrieval", "poetry", None, {"qrels_max": 0.0551, "qrels_min": 0.0306}),
        ("NanoDAPFAM", "dapfam", "NanoDAPFAMAllTitlAbsToFullText", {"qrels": 0.4790}),
        ("NanoDAPFAM", "dapfam", "NanoDAPFAMAllTitlAbsToTitlAbs", {"qrels": 0.4204}),
        ("NanoDAPFAM", "dapfam", "NanoDAPFAMOutTitlAbsClmToFullText", {"qrels": 0.1999}),
    ],
)
def test_ndcg_on_the_real_text(shared, tmp_path, dataset, folder, split, expected):
    """Measured with bm25s and ir-measures when the real text was put together; linear gain."""
    splits = ("--splits", split) if split else ()
    done = bm25(dataset, shared / folder, tmp_path, "--tokenizer", "stemmer:en", *splits)
    assert done.returncode == 0, done.stderr
    place = ("--data-dir", shared / folder, "--sidecars", tmp_path)
    done = tools("evaluate", dataset, *place, *splits, "--config", "bm25", "--json")
    found = {row["qrels"]: row["nDCG@10"] for row in json.loads(done.stdout)["rows"]}
    assert found == pytest.approx(expected, abs=0.002)
