"""Every check passes on a right build and fails when the one thing it is for is damaged."""

import json
import os
import shutil
import subprocess
import sys
from math import log2

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reading
from conftest import ROOT

import NanoDAPFAM
from tools import checks, verify
from tools.__main__ import main
from tools.collection import Collection

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
SPLIT = "NanoDAPFAMAllTitlAbsToTitlAbs"
PUBLISHED = json.loads(verify.PUBLISHED.read_text("utf-8"))


def run(capsys, *arguments):
    """Exit code and the JSON document's checks by name."""
    capsys.readouterr()
    code = main(["verify", *map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    document = json.loads(out)
    assert document["failed"] == sum(check["result"] == "FAIL" for check in document["checks"])
    assert code == (1 if document["failed"] else 0)
    found = {check["name"]: check for check in document["checks"]}
    assert len(found) == len(document["checks"])
    return found


def failed(found):
    return {name for name, check in found.items() if check["result"] == "FAIL"}


def of(config, *names):
    return {f"{config}/test {name}" for name in names}


@pytest.fixture(scope="module")
def built(sample, tmp_path_factory):
    """{dataset: folder of its lists}, built by the real commands."""
    folders = {}
    for dataset, name, options in ((POETRY, "poetry", []), (DAPFAM, "dapfam", ["--splits", SPLIT])):
        folders[dataset] = tmp_path_factory.mktemp(name)
        place = [dataset, "--data-dir", str(sample / name), "--sidecars", str(folders[dataset]), *options]
        for command in (
            ["bm25", *place],
            ["dense", *place, "--model", "lsa"],
            ["hybrid", *place, "--sources", "bm25", "lsa"],
        ):
            assert main(command) == 0
    assert main(["judged", POETRY, "--data-dir", str(sample / "poetry"), "--sidecars", str(folders[POETRY])]) == 0
    return folders


@pytest.fixture
def lists(built, tmp_path_factory):
    """A fresh copy of poetry's lists, always in one place: another would be another key of the library's cache."""
    folder = tmp_path_factory.getbasetemp() / "lists"
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(built[POETRY], folder)


@pytest.fixture(scope="module")
def no_lists(tmp_path_factory):
    return tmp_path_factory.mktemp("none")


def test_a_right_build_of_poetry(sample, built):
    """By the real command: a table, exit 0, and what is not built is no failure."""
    command = [sys.executable, "-m", "tools", "verify", POETRY, "--data-dir", str(sample / "poetry")]
    command += ["--sidecars", str(built[POETRY])]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    header, *lines, blank, totals = done.stdout.splitlines()
    assert header.split() == ["check", "expected", "found", "result"] and blank == ""
    assert totals == f"{len(lines) - 1} pass, 0 FAIL, 1 not built"
    assert {line[header.index("result") :] for line in lines} == {"pass", "not built"}
    (unbuilt,) = [line.split() for line in lines if line.endswith("not built")]
    assert unbuilt == ["harrier_oss_v1_270m/test", "lists", "26", "-", "not", "built"]
    assert any(
        line.split() == ["corpus/test", "ids", "unique,", "not", "empty", "238", "238", "pass"] for line in lines
    )


def test_a_right_build_of_a_split(sample, built, capsys):
    found = run(capsys, DAPFAM, "--data-dir", sample / "dapfam", "--sidecars", built[DAPFAM], "--splits", SPLIT)
    assert not failed(found)
    right = reading.dapfam(sample / "dapfam", SPLIT)
    for name, rows in (("corpus", "corpus"), ("queries", "queries")):
        (limit,) = [check for check in found if check.startswith(f"{name}/{SPLIT} rows, at most")]
        assert found[limit]["expected"] == found[limit]["found"] == len(right[rows])
    assert found[f"reranking_hybrid/{SPLIT} rule, corpus ids"]["found"] == len(right["queries"])


@pytest.mark.parametrize("dataset", [POETRY, DAPFAM])
def test_the_real_text_passes(shared, no_lists, capsys, dataset):
    folder = shared / ("poetry" if dataset == POETRY else "dapfam")
    splits = [] if dataset == POETRY else ["--splits", SPLIT, "NanoDAPFAMOutTitlAbsToFullText"]
    assert not failed(run(capsys, dataset, "--data-dir", folder, "--sidecars", no_lists, *splits))


# ---- Structure, one thing damaged at a time ----


def damage_rows(monkeypatch, collection, config, change):
    """Has the command see a collection with one table changed."""

    class Damaged(Collection):
        def table(self, name):
            table = super().table(name)
            return change(table) if name == config else table

    damaged = Damaged(collection.dataset, collection.split, collection.data_dir, collection.sidecar_dir)
    monkeypatch.setattr(verify, "open_collections", lambda arguments: [damaged])


def replace(table, row, **values):
    """The table with a row's named columns (hyphens as underscores) changed."""
    rows = table.to_pylist()
    rows[row] |= {
        name.replace("_", "-") if name.startswith(("query", "corpus")) else name: v for name, v in values.items()
    }
    return pa.Table.from_pylist(rows, schema=table.schema)


def without(table, column, value):
    return table.filter(pa.array([found != value for found in table[column].to_pylist()]))


KNOWN = ("corpus ids known", "positives in the corpus")
IN_QRELS = "almanacofsmallho00yorkuoft/44"  # of grade 2 for ancestors, by both qrels


@pytest.mark.parametrize(
    ("config", "change", "expected"),
    [
        ("corpus", lambda t: replace(t, 1, id=t["id"][0].as_py()), {"corpus/test ids unique, not empty"}),
        ("corpus", lambda t: replace(t, 1, id=""), {"corpus/test ids unique, not empty"}),
        (
            "corpus",
            lambda t: without(t, "id", IN_QRELS),
            of("qrels_max", *KNOWN, "as upstream") | of("qrels_min", *KNOWN, "as upstream"),
        ),
        ("queries", lambda t: replace(t, 1, id=t["id"][0].as_py()), {"queries/test ids unique, not empty"}),
        ("queries", lambda t: t.slice(1), of("qrels_max", "query ids known") | of("qrels_min", "query ids known")),
        (
            "qrels_max",
            lambda t: without(t, "query-id", "ancestors"),
            {"queries/test with a positive", "qrels_max/test as upstream"},
        ),
        ("qrels_max", lambda t: t.slice(1), {"qrels_max/test as upstream"}),
        ("qrels_min", lambda t: replace(t, 0, score=1.0), {"qrels_min/test as upstream"}),
        ("qrels_max", lambda t: pa.concat_tables([t, t.slice(5, 1)]), {"qrels_max/test pairs unique"}),
        ("qrels_min", lambda t: replace(t, 0, query_id="nobody"), of("qrels_min", "query ids known", "as upstream")),
    ],
)
def test_damaged_rows_of_poetry(sample, no_lists, monkeypatch, capsys, config, change, expected):
    collection = Collection(POETRY, "test", str(sample / "poetry"), str(no_lists))
    damage_rows(monkeypatch, collection, config, change)
    found = run(capsys, POETRY, "--data-dir", collection.data_dir)
    assert expected <= failed(found)
    # An id that is another's is missing where it was: its judgments have lost their query or document.
    lost = {f"qrels_{q}/test {what}" for q in ("max", "min") for what in (*KNOWN, "query ids known", "as upstream")}
    assert failed(found) - expected <= (lost if any("ids unique" in name for name in expected) else set())
    assert all(check["details"] for name, check in found.items() if name in expected)


CORPUS_ROWS, QUERY_ROWS = f"corpus/{SPLIT} rows, at most 10000", f"queries/{SPLIT} rows, at most 200"


@pytest.mark.parametrize(
    ("config", "change", "expected"),
    [
        ("corpus", lambda t: t.slice(0, len(t) - 1), {CORPUS_ROWS}),
        ("corpus", lambda t: replace(t, -1, text=t["text"][0].as_py()), {f"corpus/{SPLIT} texts unique"}),
        (
            "corpus",
            lambda t: t.slice(1),
            {
                CORPUS_ROWS,
                f"corpus/{SPLIT} positives covered",
                f"qrels/{SPLIT} corpus ids known",
                f"qrels/{SPLIT} positives in the corpus",
                f"qrels/{SPLIT} as upstream",
            },
        ),
        (
            "queries",
            lambda t: t.slice(0, len(t) - 1),
            {QUERY_ROWS, f"qrels/{SPLIT} query ids known", f"qrels/{SPLIT} as upstream"},
        ),
        ("qrels", lambda t: t.slice(1), {f"qrels/{SPLIT} as upstream"}),
    ],
)
def test_damaged_rows_of_a_split(sample, no_lists, monkeypatch, capsys, config, change, expected):
    collection = Collection(DAPFAM, SPLIT, str(sample / "dapfam"), str(no_lists))
    damage_rows(monkeypatch, collection, config, change)
    assert failed(run(capsys, DAPFAM, "--data-dir", collection.data_dir)) == expected


@pytest.mark.parametrize(("documents", "passes"), [(80, True), (79, False), (81, False)])
def test_a_split_that_is_full(sample, no_lists, monkeypatch, capsys, documents, passes):
    """As if the limit were 80 of the 90 documents that there are."""
    collection = Collection(DAPFAM, SPLIT, str(sample / "dapfam"), str(no_lists))
    damage_rows(monkeypatch, collection, "corpus", lambda table: table.slice(0, documents))
    assert len(collection.corpus) == 90  # built by the real limit
    monkeypatch.setattr(NanoDAPFAM, "DOCUMENTS", 80)
    found = run(capsys, DAPFAM, "--data-dir", collection.data_dir)
    assert failed(found) == (set() if passes else {f"corpus/{SPLIT} rows, at most 80"})
    assert found[f"corpus/{SPLIT} rows, at most 80"]["expected"] == 80


def test_a_query_whose_positives_are_not_filed(no_lists, tmp_path, capsys):
    """The rule drops a citation of a family that is not there; a query that is left with none is reported."""
    corpus, queries = [("d0", "title", "abstract")], [("q0", "one", "query"), ("q1", "another", "query")]
    relations = [("q0", "d0", 1.0, "IN"), ("q1", "nowhere", 1.0, "IN")]
    reading.write_dapfam(tmp_path, reading.dapfam_tables(corpus, queries, relations))
    found = run(capsys, DAPFAM, "--data-dir", tmp_path, "--sidecars", no_lists, "--splits", SPLIT)
    assert failed(found) == {f"queries/{SPLIT} with a positive"}
    assert found[f"queries/{SPLIT} with a positive"]["details"] == ["'q1'"]


def test_judged_pages(sample, lists, capsys):
    place = [POETRY, "--data-dir", sample / "poetry", "--sidecars", lists]
    names = {"judged.parquet", "judged.parquet pages right"}
    table = pq.read_table(lists / "judged.parquet")
    found = run(capsys, *place)
    assert {found[name]["result"] for name in names} == {"pass"}

    recipe = {"recipe": json.dumps({"dataset": POETRY, "corpus": "1 00"})}
    pq.write_table(table.replace_schema_metadata(recipe), lists / "judged.parquet")
    assert failed(run(capsys, *place)) == {"judged.parquet"}

    in_corpus = table["in_corpus"].to_pylist()
    at = in_corpus.index(False)
    wrong = table.set_column(1, "in_corpus", [[*in_corpus[:at], True, *in_corpus[at + 1 :]]])
    pq.write_table(wrong, lists / "judged.parquet")
    found = run(capsys, *place)
    assert failed(found) == {"judged.parquet pages right"}
    assert found["judged.parquet pages right"]["details"] == [repr(table["id"][at].as_py())]

    (lists / "judged.parquet").write_bytes(b"PAR1 and no more")
    assert failed(run(capsys, *place)) == {"judged.parquet"}


# ---- Candidate lists, one thing damaged at a time ----


def rewrite(path, change):
    """Has `change` alter a sidecar's rows and recipe."""
    table = pq.read_table(path)
    rows, recipe = table.to_pylist(), json.loads(table.schema.metadata[b"recipe"])
    rows = change(rows, recipe) or rows
    table = pa.Table.from_pylist(rows, schema=table.schema).replace_schema_metadata({"recipe": json.dumps(recipe)})
    pq.write_table(table, path)


def swap_first_two(rows, recipe):
    for row in rows:
        row["corpus-ids"][:2] = row["corpus-ids"][1::-1]


def repeat_the_first(rows, recipe):
    rows[3]["corpus-ids"][-1] = rows[3]["corpus-ids"][0]


def put_in_a_stranger(rows, recipe):
    rows[3]["corpus-ids"][-1] = "no/1"


def cut_a_list(rows, recipe):
    rows[3]["corpus-ids"].pop()
    rows[3]["scores"].pop()


def lower_the_first_score(rows, recipe):
    rows[3]["scores"][0] = rows[3]["scores"][1] - 1


def raise_the_first_score(rows, recipe):
    rows[3]["scores"][0] += 1


def say_that_positives_are_forced(rows, recipe):
    recipe["parameters"]["force_positives"] = True
    cut = rows[0]["corpus-ids"].index(IN_QRELS)
    rows[0]["corpus-ids"][cut] = "no/1"


RULE = ("rule, corpus ids", "rule, scores")


@pytest.mark.parametrize(
    ("config", "change", "expected"),
    [
        ("bm25", lambda rows, recipe: rows[::-1], {"queries in order"}),
        ("bm25", lambda rows, recipe: rows[:-1], {"lists", "queries in order"}),
        ("bm25", repeat_the_first, {"candidates unique"}),
        ("bm25", put_in_a_stranger, {"candidates in the corpus"}),
        ("bm25", cut_a_list, {"lists of 238"}),
        ("bm25", lower_the_first_score, {"scores descending"}),
        ("bm25", say_that_positives_are_forced, {"candidates in the corpus", "positives forced in"}),
        ("bm25", lambda rows, recipe: recipe.update(split="train"), {"made for"}),
        ("bm25", lambda rows, recipe: recipe["digests"].update(qrels="0" * 64), {"made of the present"}),
        ("bm25", lambda rows, recipe: recipe["digests"].pop("corpus") and None, {"made of the present"}),
        ("reranking_hybrid", swap_first_two, {"rule, corpus ids"}),
        ("reranking_hybrid", raise_the_first_score, {"rule, scores"}),
        ("reranking_hybrid", cut_a_list, {"rule, corpus ids", "rule, scores", "lists of 100 to 101"}),
        ("reranking_hybrid", lambda rows, recipe: recipe["counts"].update(safeguards=1), {"rule, counts"}),
        ("reranking_hybrid", lambda rows, recipe: recipe["parameters"].update(rrf_k=1), set(RULE)),
    ],
)
def test_damaged_lists(sample, lists, capsys, config, change, expected):
    rewrite(lists / config / "test.parquet", change)
    found = run(capsys, POETRY, "--data-dir", sample / "poetry", "--sidecars", lists)
    beside = of("reranking_hybrid", "source bm25") if config == "bm25" else set()  # its source is another now
    assert failed(found) - beside == of(config, *expected)


def test_a_source_that_was_rebuilt_is_missing_or_damaged(sample, lists, capsys):
    place = [POETRY, "--data-dir", sample / "poetry", "--sidecars", lists]
    rewrite(lists / "lsa/test.parquet", swap_first_two)
    assert failed(run(capsys, *place)) == of("reranking_hybrid", "source lsa")
    (lists / "lsa/test.parquet").write_bytes(b"PAR1 and no more")
    assert failed(run(capsys, *place)) == of("reranking_hybrid", "source lsa") | of("lsa", "lists")
    (lists / "lsa/test.parquet").unlink()
    found = run(capsys, *place)
    assert not failed(found)
    assert found["reranking_hybrid/test source lsa"]["result"] == "not built"
    assert "lsa/test lists" not in found  # no config of the builders


def test_a_sidecar_that_is_none(sample, lists, capsys):
    table = pq.read_table(lists / "bm25/test.parquet")
    for other in (table.replace_schema_metadata(None), table.drop_columns(["scores"])):
        pq.write_table(other, lists / "bm25/test.parquet")
        found = run(capsys, POETRY, "--data-dir", sample / "poetry", "--sidecars", lists)
        assert failed(found) == of("bm25", "lists") | of("reranking_hybrid", "source bm25")
        assert found["bm25/test lists"]["found"].startswith("not readable: ")


def test_another_tool_version_is_said(sample, lists, capsys):
    rewrite(lists / "bm25/test.parquet", lambda rows, recipe: recipe.update(tool="tools 0.1"))
    found = run(capsys, POETRY, "--data-dir", sample / "poetry", "--sidecars", lists)
    assert not failed(found)
    assert found["bm25/test made for"]["details"][0].startswith("made by tools 0.1, this is tools ")


def test_a_safeguard_is_recomputed(sample, tmp_path, capsys):
    """A source without positives has some appended; another positive in the place of one fails."""
    place = [POETRY, "--data-dir", str(sample / "poetry"), "--sidecars", str(tmp_path)]
    collection = Collection(POETRY, "test", str(sample / "poetry"))
    ids, positives = collection.corpus["id"].to_pylist(), collection.positives()

    def leave_positives_out(rows, recipe):
        for row in rows:
            row["corpus-ids"] = [i for i in ids if i not in positives[row["query-id"]]][:3]

    def draw_another(rows, recipe):
        rows[0]["corpus-ids"][3] = next(p for p in positives["ancestors"] if p != rows[0]["corpus-ids"][3])

    assert main(["bm25", *place, "--top-k", "3"]) == 0
    rewrite(tmp_path / "bm25/test.parquet", leave_positives_out)
    assert main(["hybrid", *place, "--sources", "bm25"]) == 0
    found = run(capsys, *place)
    assert not failed(found) and found["reranking_hybrid/test rule, counts"]["found"] == {"rows": 26, "safeguards": 26}
    rewrite(tmp_path / "reranking_hybrid/test.parquet", draw_another)
    assert failed(run(capsys, *place)) == of("reranking_hybrid", "rule, corpus ids")


# ---- Published figures ----


def poetry_figures(folder):
    """The sample's own, counted in plain Python."""
    upstream, figures, pages = reading.poetry(folder), {}, set()
    for name in ("max", "min"):
        lines = [line.split() for line in (folder / f"mturk.{name}.qrel").read_text("utf-8").splitlines()]
        labels = [label for *_, label in lines]
        figures["judgments"] = len(lines)
        figures[f"labels_{name}"] = {label: labels.count(label) for label in ("-1", "0", "1", "2")}
        figures[f"grades_{name}"] = {
            "0": labels.count("-1") + labels.count("0"),
            "1": labels.count("1"),
            "2": labels.count("2"),
        }
        pages |= {page for _, _, page, _ in lines}
    in_corpus = {page["id"] for page in upstream["corpus"]}
    figures |= {"judged_pages": len(pages), "judged_pages_in_corpus": len(pages & in_corpus)}
    first = [list(row.values()) for row in upstream["qrels_max"][:5]]
    split = {"topics": [query["id"] for query in upstream["queries"]], "first_qrels_max": first}
    return {"upstream": figures, "splits": {"test": split}}, upstream


def dapfam_figures(folder):
    relations = pq.read_table(folder / "qrels_all.parquet").to_pylist()
    positive = [relation for relation in relations if relation["relevance_score"] > 0]
    domains = [relation["domain_rel"] for relation in positive]
    right = reading.dapfam(folder, SPLIT)
    counts = sorted(sum(row["query-id"] == query["_id"] for row in right["qrels"]) for query in right["queries"])
    assert len(counts) % 2 == 1
    figures = {
        "corpus": pq.read_metadata(folder / "corpus.parquet").num_rows,
        "queries": pq.read_metadata(folder / "queries.parquet").num_rows,
        "relations": len(relations),
        "positive_relations": len(positive),
        "positive_in": domains.count("IN"),
        "positive_out": domains.count("OUT"),
        "queries_with_out_positive": len({r["query_id"] for r in positive if r["domain_rel"] == "OUT"}),
    }
    split = {
        "query_chars_mean": sum(len(row["text"]) for row in right["queries"]) / len(right["queries"]),
        "document_chars_mean": sum(len(row["text"]) for row in right["corpus"]) / len(right["corpus"]),
        "positives_per_query": {"min": counts[0], "median": counts[len(counts) // 2], "max": counts[-1]},
    }
    return {"upstream": figures, "recipes": {}, "splits": {SPLIT: split}}, right


def infos_of(dataset, split, tables):
    """A dataset_infos.json; a string's bytes and 4, a number 8."""
    infos = {}
    for config, rows in tables.items():
        values = [value for row in rows for value in row.values()]
        size = sum(4 + len(value.encode()) if isinstance(value, str) else 8 for value in values)
        infos[f"{dataset}/{config}"] = {"splits": {split: {"num_examples": len(rows), "num_bytes": size}}}
    return infos


def other(figure):
    """Another value of the same kind."""
    if isinstance(figure, dict):
        return figure | {key: value + 1 for key, value in list(figure.items())[-1:]}
    return figure[::-1] if isinstance(figure, list) else figure + 1


@pytest.mark.parametrize("dataset", [POETRY, DAPFAM])
def test_the_samples_own_figures_and_every_one_of_them_changed(sample, no_lists, dataset):
    folder = sample / ("poetry" if dataset == POETRY else "dapfam")
    figures, tables = poetry_figures(folder) if dataset == POETRY else dapfam_figures(folder)
    split = "test" if dataset == POETRY else SPLIT
    infos = infos_of(dataset, split, tables)
    # What is counted here is what the published table holds.
    assert list(sorted(figures["upstream"])) == sorted(PUBLISHED[dataset]["upstream"])
    assert figures["splits"][split].keys() == PUBLISHED[dataset]["splits"][split].keys() - {"candidates"}
    collection = Collection(dataset, split, str(folder), str(no_lists))
    right = verify.verify([collection], figures, infos)
    assert {check.result for check in right} == {"pass", "not built"}

    figures["upstream"] = {key: other(figure) for key, figure in figures["upstream"].items()}
    figures["splits"][split] = {key: other(figure) for key, figure in figures["splits"][split].items()}
    for info in infos.values():
        info["splits"][split] = {key: number + 1 for key, number in info["splits"][split].items()}
    changed = verify.verify([collection], figures, infos)
    published = {f"upstream {key}" for key in figures["upstream"]}
    published |= {f"{split} {key}" for key in figures["splits"][split]}
    published |= {f"{config}/{split} {what}" for config in tables for what in ("num_examples", "num_bytes")}
    assert {check.name for check in changed if check.result == "FAIL"} == published


def test_the_official_upstream_is_held_to_the_published_figures(sample, no_lists, monkeypatch, capsys):
    """Without --data-dir; the sample in the upstream's place is another collection, and of the same topics."""
    collection = Collection(POETRY, "test", str(sample / "poetry"), str(no_lists))
    monkeypatch.setattr(verify, "open_collections", lambda arguments: [collection])
    found = run(capsys, POETRY)
    assert found["test topics"]["result"] == "pass"
    assert found["corpus/test num_examples"]["expected"] == 570930
    upstream = {f"upstream {key}" for key in PUBLISHED[POETRY]["upstream"]}
    rows = {f"{config}/test num_examples" for config in ("corpus", "qrels_max", "qrels_min")}
    assert failed(found) == upstream | rows | {"test first_qrels_max"}


def measures_by_hand(lists, qrels):
    """Binary nDCG@10, hit@10 and recall@100, means over the queries."""
    ndcg = hit = recall = 0
    for query_id, ranked in lists.items():
        positives = {row["corpus-id"] for row in qrels if row["query-id"] == query_id}
        gains = [1 / log2(rank + 1) for rank, document in enumerate(ranked[:10], 1) if document in positives]
        ndcg += sum(gains) / sum(1 / log2(rank + 1) for rank in range(1, min(10, len(positives)) + 1))
        hit += bool(gains)
        recall += len(positives & set(ranked[:100])) / len(positives)
    return {"ndcg_at_10": ndcg / len(lists), "hit_at_10": hit / len(lists), "recall_at_100": recall / len(lists)}


@pytest.mark.parametrize("kind", ["card", "measured", "neither"])
def test_figures_of_candidate_lists(sample, tmp_path, kind):
    """Each recipe's lists have its own figures; those made in another way have none."""
    recipes = {
        "card": {"bm25": {"tokenizer": "stemmer:en", "top_k": 20, "force_positives": True}},
        "measured": {"bm25": {"tokenizer": "english_porter_stop", "top_k": 30, "force_positives": False}},
    }
    options = {
        "card": ["--tokenizer", "stemmer:en", "--top-k", "20", "--force-positives"],
        "measured": ["--top-k", "30"],
        "neither": ["--top-k", "20"],
    }
    place = ["--data-dir", str(sample / "dapfam"), "--sidecars", str(tmp_path), "--splits", SPLIT]
    assert main(["bm25", DAPFAM, *place, *options[kind]]) == 0
    table = pq.read_table(tmp_path / "bm25" / f"{SPLIT}.parquet")
    scored = zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
    lists = {q: [i for i, s in zip(ids, scores, strict=True) if s] for q, ids, scores in scored}
    right = measures_by_hand(lists, reading.dapfam(sample / "dapfam", SPLIT)["qrels"])
    forced = json.loads(table.schema.metadata[b"recipe"])["counts"].get("forced_positives")
    published = {"card": right | {"forced_positives": forced}, "measured": right}.get(kind, right)
    of_kinds = {name: {"bm25": {"ndcg_at_10": -1.0}} for name in recipes}  # the other recipe's do not matter
    of_kinds |= {kind: {"bm25": published | {"candidates_per_row": len(table["corpus-ids"][0])}}}
    figures = {"recipes": recipes, "splits": {SPLIT: {"candidates": of_kinds}}}
    collection = Collection(DAPFAM, SPLIT, str(sample / "dapfam"), str(tmp_path))
    ids = [[row["query-id"], *row["corpus-ids"]] for row in table.to_pylist()]
    size = {"num_bytes": sum(4 + sum(4 + len(row_id) for row_id in row) for row in ids)}

    def found_checks(figures, info):
        found = verify.check_candidates(collection, "bm25", verify.built_lists(collection), figures, info)
        return {check.name.split(" ", 1)[1]: check for check in found}

    def results(figures, info):
        return {name: check.result for name, check in found_checks(figures, info).items()}

    found = results(figures, size)
    assert "FAIL" not in found.values()
    if kind == "neither":
        assert found["published"] == "not built"
        (made,) = found_checks(figures, size)["published"].details
        assert "tokenizer english_porter_stop, top_k 20" in made
        return
    names = {f"{kind} {figure}" for figure in of_kinds[kind]["bm25"]} | ({"num_bytes"} if kind == "measured" else set())
    assert names <= set(found) and not any("-1" in name for name in found)
    of_kinds[kind]["bm25"] = {figure: value + 0.0021 for figure, value in of_kinds[kind]["bm25"].items()}
    found = results(figures, {"num_bytes": size["num_bytes"] + 1})
    assert {name for name, result in found.items() if result == "FAIL"} == names


def test_recipes_that_were_published():
    recipes = PUBLISHED[DAPFAM]["recipes"]
    measured = recipes["measured"]
    bm25, dense = (measured[config] | {"more": 1} for config in ("bm25", "harrier_oss_v1_270m"))
    sources = {"bm25": {"parameters": bm25}, "harrier_oss_v1_270m": {"parameters": dense}}
    hybrid = {key: value for key, value in measured["reranking_hybrid"].items() if key != "sources"}
    assert checks.recipe_kind(recipes, "bm25", bm25) == "measured"
    assert checks.recipe_kind(recipes, "bm25", {**bm25, "k1": 1.2}) is None
    assert checks.recipe_kind(recipes, "bm25", {**bm25, **recipes["card"]["bm25"]}) == "card"
    assert checks.recipe_kind(recipes, "harrier_oss_v1_270m", dense) == "measured"
    assert checks.recipe_kind(recipes, "harrier_oss_v1_270m", {**dense, "query_prompt": None}) is None
    assert checks.recipe_kind(recipes, "reranking_hybrid", {**hybrid, "sources": sources}) == "measured"
    assert checks.recipe_kind(recipes, "reranking_hybrid", {**hybrid, "seed": 1, "sources": sources}) is None
    assert checks.recipe_kind(recipes, "reranking_hybrid", {**hybrid, "sources": {"bm25": sources["bm25"]}}) is None
    stale = {**sources, "bm25": {"parameters": {**bm25, "top_k": 100}}}
    assert checks.recipe_kind(recipes, "reranking_hybrid", {**hybrid, "sources": stale}) is None
    assert checks.recipe_kind(recipes, "lsa", {}) is None


def test_how_far_a_figure_may_be():
    def result(key, published, measured):
        (check,) = checks.check_figures("S", {key: published}, {key: measured})
        assert check.name == f"S {key}"
        return check.result

    assert result("ndcg_at_10", 0.3431, 0.34505) == "pass" and result("ndcg_at_10", 0.3431, 0.3452) == "FAIL"
    assert result("document_chars_mean", 71050.5946, 71050.59464) == "pass"
    assert result("document_chars_mean", 71050.5946, 71050.5947) == "FAIL"
    assert result("forced_positives", 2219, 2218) == "FAIL" and result("num_bytes", 1, 1) == "pass"
    assert result("safeguards", 6, None) == "not built"


def test_the_published_table_is_what_was_published():
    folder = ROOT.parent / "shared" / "published"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here: the figures as they were published are no part of the project")
    poetry, dapfam = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in (POETRY, DAPFAM))
    upstream = PUBLISHED[POETRY]["upstream"]
    assert [upstream["labels_max"], upstream["labels_min"]] == list(poetry["raw_labels_all_1347"].values())
    assert [upstream["grades_max"], upstream["grades_min"]] == list(
        poetry["scores_all_1347_after_minus1_to_0"].values()
    )
    assert upstream["judged_pages_in_corpus"] == poetry["judged_documents_in_corpus"]
    assert PUBLISHED[DAPFAM]["upstream"] == dapfam["upstream"]["rows"]
    for split, figures in PUBLISHED[DAPFAM]["splits"].items():
        measured, card = dapfam["measured"][split], dapfam["card_bm25"][split]
        assert figures["query_chars_mean"] == measured["query_chars"]["mean_chars"]
        assert figures["document_chars_mean"] == measured["document_chars"]["mean_chars"]
        assert (
            card.items()
            >= {k: figures["candidates"]["card"]["bm25"][k] for k in ("forced_positives", "ndcg_at_10")}.items()
        )
        for config, of_config in figures["candidates"]["measured"].items():
            found = measured["candidates"][config]
            assert [of_config[k] for k in ("ndcg_at_10", "hit_at_10", "recall_at_100", "candidates_per_row")] == [
                found[k] for k in ("ndcg_at_10", "hit_at_10", "recall_at_100", "candidate_count_mean")
            ]
            assert of_config.get("safeguards") == found.get("safeguard_positive_rows")


# ---- Another copy ----


@pytest.fixture(scope="module")
def staged(sample, built, tmp_path_factory):
    """Poetry as a staged repository: two shards a config, and the card that says so."""
    folder = tmp_path_factory.mktemp("staged")
    tables = {config: pa.Table.from_pylist(rows) for config, rows in reading.poetry(sample / "poetry").items()}
    tables["bm25"] = pq.read_table(built[POETRY] / "bm25/test.parquet").drop_columns(["scores"])
    card = "---\nconfigs:\n"
    for config, table in tables.items():
        write_shards(folder, config, table)
        card += f"- config_name: {config}\n  data_files:\n  - split: test\n    path: {config}/test-*\n"
    (folder / "README.md").write_text(f"{card}---\n", "utf-8")
    return folder


def write_shards(folder, config, table):
    (folder / config).mkdir(exist_ok=True)
    table = table.replace_schema_metadata(None)
    for number, (start, stop) in enumerate(((0, 10), (10, len(table)))):
        pq.write_table(table.slice(start, stop - start), folder / config / f"test-0000{number}-of-00002.parquet")


@pytest.fixture
def against(sample, built, staged, tmp_path):
    """(config, change of its table) -> the comparisons' checks by config."""
    collection = Collection(POETRY, "test", str(sample / "poetry"), str(built[POETRY]))

    def compare(config, change):
        copy = shutil.copytree(staged, tmp_path / "copy", dirs_exist_ok=True)
        write_shards(copy, config, change(pq.read_table(copy / config)))
        found = {check.name.split("/")[0]: check for check in verify.check_against(collection, str(copy))}
        assert {name for name, check in found.items() if check.result == "FAIL"} <= {config}
        return found[config]

    return compare


def test_the_same_rows(sample, built, staged, capsys):
    place = [POETRY, "--data-dir", sample / "poetry", "--sidecars", built[POETRY]]
    found = run(capsys, *place, "--against", staged)
    found = {name.split("/")[0]: check for name, check in found.items() if name.endswith(" against")}
    assert {config: (check["result"], check["found"]) for config, check in found.items()} == {
        "corpus": ("pass", "238 rows"),
        "queries": ("pass", "26 rows"),
        "qrels_max": ("pass", "353 rows"),
        "qrels_min": ("pass", "353 rows"),
        "bm25": ("pass", "26 rows"),
        "harrier_oss_v1_270m": ("not built", "not there"),
        "reranking_hybrid": ("not built", "not there"),
    }
    assert not any(check["details"] for check in found.values())


def test_another_order_is_said_and_no_failure(against):
    check = against("corpus", lambda table: table.take(list(range(len(table)))[::-1]))
    assert check.result == "pass" and check.found == "238 rows"
    assert len(check.details) == 1 and "in another order there, first seen at " in check.details[0]


def test_missing_extra_and_differing_rows(against):
    def change(table):
        rows = table.to_pylist()
        rows[20]["text"] = rows[20]["text"][:7] + "\u2603" + rows[20]["text"][7:]
        rows[21]["page"] += 1
        stranger = {**rows[0], "id": "no/1"}
        return pa.Table.from_pylist([*rows[:3], *rows[4:], stranger, rows[5]], schema=table.schema)

    check = against("corpus", change)
    assert check.result == "FAIL"
    assert check.found == "235 rows, 2 differing, 2 extra, 1 missing"
    missing, stranger, repeated, text, page = check.details
    assert missing.startswith("missing: ") and stranger == "extra: no/1" and repeated.startswith("extra: ")
    assert ": text from position 7: " in text and "'\u2603" in text.split("here, ")[1]
    assert page.split(": ", 2)[2].startswith("page ") and "from position" not in page


def test_other_grades_and_other_lists(against):
    def regrade(table):
        return replace(table, 4, score=table["score"][4].as_py() + 1)

    check = against("qrels_min", regrade)
    assert check.found == "352 rows, 1 differing" and ": score 0.0 here, 1.0 there" in check.details[0]

    def swap(table):
        ranked = table["corpus-ids"][2].as_py()
        return replace(table, 2, corpus_ids=[*ranked[:5], ranked[6], ranked[5], *ranked[7:]])

    check = against("bm25", swap)
    assert check.found == "25 rows, 1 differing"
    assert ": corpus-ids from position 5: ['" in check.details[0]


def test_other_columns(against):
    more = against("queries", lambda table: table.append_column("topic", table["id"]))
    assert more.result == "pass" and more.details == ("more columns there: topic; not a failure",)
    fewer = against("queries", lambda table: table.drop_columns(["text"]))
    assert fewer.result == "FAIL" and fewer.details == ("it has no column 'text', but id",)
    large = against(
        "queries", lambda table: table.cast(pa.schema([(n, pa.large_string()) for n in table.column_names]))
    )
    assert large.result == "pass"
    numbers = against("queries", lambda t: pa.table({"id": t["id"], "text": pa.array([[1]] * len(t))}))
    assert (numbers.result, numbers.found) == ("FAIL", "other types")


def test_a_config_that_the_copy_lacks(sample, staged, tmp_path, capsys):
    copy = shutil.copytree(staged, tmp_path / "copy")
    shutil.rmtree(copy / "qrels_min")
    found = run(capsys, POETRY, "--data-dir", sample / "poetry", "--sidecars", tmp_path, "--against", copy)
    assert failed(found) == {"qrels_min/test against"}
    assert found["bm25/test against"]["result"] == "not built"  # there, but not here


def test_nulls_are_values():
    ours = pa.table({"id": ["a", "b", "c"], "score": [1.0, None, None]})
    same, other = (
        pa.table({"id": ["a", "b", "c"], "score": scores}) for scores in ([1.0, None, None], [1.0, None, 0.0])
    )
    assert checks.compare_rows("x", ours, iter([same]), ["id"]).result == "pass"
    check = checks.compare_rows("x", ours, iter([other.slice(0, 1), other.slice(1)]), ["id"])
    assert check.details == ("differing: c: score None here, 0.0 there",)
    assert checks.compare_rows("x", ours, iter([]), ["id"]).found == "0 rows, 3 missing"


def test_a_repository_is_read_by_the_library(sample, staged):
    """As from the Hub, with the folder in its place."""
    for config in ("corpus", "qrels_max", "bm25"):
        tables = list(verify.read_repository(str(staged), config, "test"))
        assert all(isinstance(table, pa.Table) and len(table) <= 256 for table in tables)
        rows = pa.concat_tables(tables).to_pylist()
        assert rows == pq.read_table(staged / config).to_pylist()
    assert verify.read_repository(str(staged), "reranking_hybrid", "test") is None
    assert verify.read_repository(str(staged), "corpus", "train") is None


def test_copies_that_cannot_be_read(sample, staged, tmp_path, monkeypatch, capsys):
    def refused(place):
        assert main(["verify", POETRY, "--data-dir", str(sample / "poetry"), "--against", str(place)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        return err

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else the client tries for half a minute
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    for place in ("nobody/nothing", tmp_path / "nowhere"):
        assert f"--against {place}: no such folder, and no repository to be read: " in refused(place)
    copy = shutil.copytree(staged, tmp_path / "copy")
    shard = copy / "queries/test-00001-of-00002.parquet"
    shard.write_bytes(shard.read_bytes()[:-20])
    assert f"{shard}: cannot be read to its end: " in refused(copy)


def test_the_table_shortens_and_the_json_does_not():
    long = {str(number): number for number in range(30)}
    text = checks.format_checks([checks.compare("x", long, long), checks.all_but("y", 5, ["a", "b", "c", "d"])])
    _, first, second, *rest = text.splitlines()
    assert len(first) < 140 and first.startswith("x      0: 0, 1: 1, ") and first.count("…") == 2
    assert second.split() == ["y", "5", "1", "FAIL"]
    assert rest == ["", "y: 'a'", "y: 'b'", "y: 'c'", "", "1 pass, 1 FAIL, 0 not built"]
