"""The rows are those of design.md: compared with an independent reading, with counts, and with small cases by hand."""

import functools
import json
import random
import shutil
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
import reading
from conftest import ROOT, SHARED

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
poetry, dapfam = functools.cache(reading.poetry), functools.cache(reading.dapfam)

STRING, IDS = datasets.Value("string"), datasets.Sequence(datasets.Value("string"))
INT, FLOAT = datasets.Value("int64"), datasets.Value("float64")
CANDIDATES = {config: {"query-id": STRING, "corpus-ids": IDS} for config in reading.CANDIDATES}
QRELS = {"query-id": STRING, "corpus-id": STRING, "score": FLOAT}
PAGE = {"id": STRING, "text": STRING, "book": STRING, "page": INT, "score": FLOAT}
FEATURES = {
    POETRY: {
        "corpus": {**PAGE, "n_duplicates": INT, "duplicates": STRING},
        "queries": {"id": STRING, "text": STRING},
        "qrels_max": QRELS,
        "qrels_min": QRELS,
        **CANDIDATES,
    },
    DAPFAM: {
        "corpus": {"_id": STRING, "text": STRING},
        "queries": {"_id": STRING, "text": STRING},
        "qrels": {"query-id": STRING, "corpus-id": STRING},
        **CANDIDATES,
    },
}
DUPLICATE_FORMS = [
    lambda book, page: f"{book}/{page}",
    lambda book, page: [book, page],
    lambda book, page: {"book": book, "page": page},
]


@pytest.fixture(scope="module")
def published():
    folder = SHARED / "published"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here: the published figures are no part of the project")
    return {dataset: json.loads((folder / f"{dataset}.json").read_text("utf-8")) for dataset in FEATURES}


@pytest.mark.parametrize("config", ["corpus", "queries", "qrels_max", "qrels_min"])
def test_poetry_rows_are_those_of_the_rules(load, upstream, config):
    found = load(POETRY, config, upstream / "poetry")
    assert reading.first_difference(found, {"test": poetry(upstream / "poetry")[config]}) is None


@pytest.mark.parametrize("config", ["corpus", "queries", "qrels"])
def test_dapfam_rows_are_those_of_the_rules_in_all_18_splits(load, upstream, config):
    right = {split: dapfam(upstream / "dapfam", split)[config] for split in reading.SPLITS}
    assert reading.first_difference(load(DAPFAM, config, upstream / "dapfam"), right) is None


@pytest.mark.parametrize(
    ("config", "rows"), [("corpus", 2652), ("queries", 26), ("qrels_max", 971), ("qrels_min", 971)]
)
def test_poetry_counts_on_the_real_text(load, shared, config, rows):
    assert len(load(POETRY, config, shared / "poetry")["test"]) == rows


def test_dapfam_counts_on_the_real_text(load, shared):
    corpus, queries, qrels = (load(DAPFAM, name, shared / "dapfam") for name in ("corpus", "queries", "qrels"))
    counts = {split: (len(corpus[split]), len(queries[split]), len(qrels[split])) for split in corpus}
    right = {}
    for query_view in ("TitlAbsClm", "TitlAbs"):
        for corpus_view in ("FullText", "TitlAbsClm", "TitlAbs"):
            documents = 446 if corpus_view == "FullText" else 440
            views = f"{query_view}To{corpus_view}"
            right[f"NanoDAPFAMAll{views}"] = (documents, 200, 693 if corpus_view == "FullText" else 689)
            right[f"NanoDAPFAMIn{views}"] = (documents, *((194, 530) if query_view == "TitlAbsClm" else (193, 529)))
            right[f"NanoDAPFAMOut{views}"] = (documents, 98, 218 if corpus_view == "FullText" else 214)
    assert counts == right


@pytest.mark.parametrize(("dataset", "config"), [(dataset, name) for dataset in FEATURES for name in FEATURES[dataset]])
def test_features_are_those_of_the_table(open_builder, sample, dataset, config):
    builder = open_builder(dataset, config, sample / dataset.removesuffix("50KRetrieval").removeprefix("Nano").lower())
    assert builder.info.features == datasets.Features(FEATURES[dataset][config])
    assert list(builder.info.features) == list(FEATURES[dataset][config])


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("dataset", "config", "folder"),
    [
        *((POETRY, config, "poetry") for config in ("corpus", "queries", "qrels_max", "qrels_min")),
        *((DAPFAM, config, "dapfam") for config in ("corpus", "queries", "qrels")),
    ],
)
def test_splits_have_the_features_of_the_table(open_splits, sample, dataset, config, folder, streaming):
    for split in open_splits(dataset, config, sample / folder, streaming=streaming).values():
        assert split.features == datasets.Features(FEATURES[dataset][config])


def test_the_published_topics_are_the_queries(load, upstream, published):
    assert [query["id"] for query in load(POETRY, "queries", upstream / "poetry")["test"]] == published[POETRY][
        "topics"
    ]


@pytest.mark.parametrize("config", ["qrels_max", "qrels_min"])
def test_scores_are_the_published_grades(load, sample, published, config):
    grades = {float(grade) for grade in published[POETRY]["scores_all_1347_after_minus1_to_0"][config]}
    assert {judgment["score"] for judgment in load(POETRY, config, sample / "poetry")["test"]} == grades


def test_published_configs_features_and_splits_of_dapfam(open_builder, load, sample, published):
    kinds = {"string": STRING, "list<string>": IDS}
    for config, info in published[DAPFAM]["dataset_info"].items():
        features = {name: kinds[kind] for name, kind in info["features"].items()}
        assert open_builder(DAPFAM, config, sample / "dapfam").info.features == datasets.Features(features)
    assert set(load(DAPFAM, "queries", sample / "dapfam")) == set(published[DAPFAM]["split_mapping"])


def test_published_version_licence_and_default_config_of_poetry(open_builder, sample, published):
    info = open_builder(POETRY, None, sample / "poetry").info
    facts = published[POETRY]
    assert (str(info.version), info.license, info.config_name) == tuple(
        facts[name] for name in ("version", "license", "default_config")
    )


def test_official_upstreams_are_the_published_ones(builder_class, published):
    """Read off the classes: the official upstreams cannot be asked here."""
    facts, builder = published[POETRY]["upstream"], builder_class(ROOT / f"{POETRY}.py")(config_name="qrels_max")
    corpus = builder.upstream(facts["files"]["corpus"])
    assert corpus == facts["page"] + facts["files"]["corpus"]
    assert set(builder.upstream_files()) == set(facts["files"].values())
    assert f'CORPUS_MD5 = "{facts["md5"][facts["files"]["corpus"]]}"' in (ROOT / f"{POETRY}.py").read_text("utf-8")

    facts, builder = published[DAPFAM]["upstream"], builder_class(ROOT / f"{DAPFAM}.py")(config_name="corpus")
    assert set(builder.upstream_files()) == set(facts["files"].values())
    revision = f"hf://datasets/{facts['dataset']}@{facts['revision_used_by_mteb']}"
    assert builder.upstream("corpus.parquet") == f"{revision}/corpus.parquet"


def test_poetry_by_hand(load, tmp_path):
    page = {"score": 0.5, "text": "one\ttwo\n\tthree\r\n\u2028 four"}
    lines = [
        {"book": "b", "page": 1, **page, "duplicates": ["c/7", ["d", 8], {"book": 'e"é', "page": 9}]},
        {"book": "b", "page": 2, **page, "duplicates": []},
        {"book": "a", "page": 1, **page},
    ]
    qrels = "mothers_day 0 b/1 -1\nlove\t0  a/1\t2\nlove 0 gone/1 2\nlove 0 b/2 1\n"
    reading.write_poetry(tmp_path, lines, qrels, "war 0 b/2 0\n")
    row = {"text": "one two\n three\r\n\u2028 four", "score": 0.5}
    pages = load(POETRY, "corpus", tmp_path)["test"]
    assert [json.loads(page.pop("duplicates")) for page in pages] == [["c/7", "d/8", 'e"é/9'], [], []]
    assert pages == [
        {"id": "b/1", "book": "b", "page": 1, **row, "n_duplicates": 3},
        {"id": "b/2", "book": "b", "page": 2, **row, "n_duplicates": 0},
        {"id": "a/1", "book": "a", "page": 1, **row, "n_duplicates": 0},
    ]
    topics = [("love", "love"), ("mothers_day", "mothers day"), ("war", "war")]
    assert load(POETRY, "queries", tmp_path)["test"] == [{"id": topic, "text": text} for topic, text in topics]
    judgments = [("mothers_day", "b/1", 0.0), ("love", "a/1", 2.0), ("love", "b/2", 1.0)]
    assert [tuple(row.values()) for row in load(POETRY, "qrels_max", tmp_path)["test"]] == judgments
    assert [tuple(row.values()) for row in load(POETRY, "qrels_min", tmp_path)["test"]] == [("war", "b/2", 0.0)]


def test_dapfam_by_hand(load, tmp_path):
    corpus = [
        ("d1", "t1", "a1", "c1", "x1"),
        ("d2", "t2", "", None, "x2"),
        ("d3", "t3", "a3", "", ""),
        ("d4", "t2", None, "", "x2 "),  # d2 filed again
        ("d5", None, "a5"),
        ("d6", " t1", "a1", "c1\n"),  # d1 filed again, but for the description
    ]
    queries = [
        ("q1", "asked", "twice"),
        ("q2", "never cited"),
        ("q3", "asked", "twice", "claim"),
        ("q4", "", " kept \n"),
    ]
    relations = [
        ("q4", "d4", 1.0, "OUT"),
        ("q1", "d6", 1.0, "IN"),
        ("q4", "d2", 1.0, "IN"),
        ("q1", "gone", 1.0, "IN"),
        ("q1", "d6", 1.0, "IN"),
        ("q2", "d1", 0.0, "NC"),
        ("q3", "d5", 1.0, "OUT"),
    ]
    reading.write_dapfam(tmp_path, reading.dapfam_tables(corpus, queries, relations))

    def rows(config, split):
        return [tuple(row.values()) for row in load(DAPFAM, config, tmp_path, splits=[split])[split]]

    # TitlAbs: q1 and q3 have one text, so only q1 is kept, and d5 is not a positive.
    split = "NanoDAPFAMAllTitlAbsToTitlAbs"
    assert rows("queries", split) == [("q1", "asked\ntwice"), ("q4", " kept \n")]
    # Positives d2, d4, d6 in source order, then the others; " t1 a1" is stripped, so d1 is d6's duplicate, d4 is d2's.
    assert rows("corpus", split) == [("d2", "t2"), ("d6", "t1 a1"), ("d3", "t3 a3"), ("d5", "a5")]
    assert rows("qrels", split) == [("q1", "d6"), ("q4", "d2")]

    split = "NanoDAPFAMOutTitlAbsClmToFullText"
    assert rows("queries", split) == [("q3", "asked\ntwice\nclaim"), ("q4", " kept \n")]
    texts = [("d4", "t2 x2"), ("d5", "a5"), ("d1", "t1 a1\nc1\nx1"), ("d3", "t3 a3"), ("d6", "t1 a1\nc1")]
    assert rows("corpus", split) == texts
    assert rows("qrels", split) == [("q3", "d5"), ("q4", "d4")]

    assert rows("qrels", "NanoDAPFAMInTitlAbsToFullText") == [("q1", "d6"), ("q4", "d2")]


def test_a_corpus_ends_at_10000_documents_with_every_positive_in_it(load, tmp_path):
    corpus = [(f"d{number}", f"title {number // 2 if number < 200 else number}") for number in range(10_300)]
    queries = [(f"q{number}", f"query {number}") for number in range(210)]
    relations = [(f"q{number}", f"d{10_299 - 7 * number}", 1.0, "IN") for number in range(210)]
    reading.write_dapfam(tmp_path, reading.dapfam_tables(corpus, queries, relations), row_group_size=1000)
    split = "NanoDAPFAMInTitlAbsToTitlAbsClm"
    right = reading.dapfam(tmp_path, split)
    assert [len(right[config]) for config in ("corpus", "queries", "qrels")] == [10_000, 200, 200]
    for config, rows in right.items():
        found = load(DAPFAM, config, tmp_path, splits=[split])
        assert reading.first_difference(found, {split: rows}) is None


@pytest.mark.parametrize("seed", range(4))
def test_dapfam_rows_on_random_upstreams(load, tmp_path, seed):
    """Few words, so that texts repeat; nulls, empty fields, all kinds of white space; every Arrow type of strings."""
    rng = random.Random(seed)
    words = [None, "", "a", "b", " a", "a\n", "\u2003a\u3000", "\x1ca", "é", "\n", " ", "\u200ba"]

    def families(prefix, count):
        return [(f"{prefix}{number}", *rng.choices(words, k=4)) for number in rng.sample(range(count), count)]

    corpus, queries = families("d", 150), families("q", 40)
    relations = [
        (f"q{rng.randrange(40)}", f"d{rng.randrange(160)}", *rng.choice([(1.0, "IN"), (0.5, "OUT"), (0.0, "NC")]))
        for _ in range(120)
    ]
    tables = reading.dapfam_tables(corpus, queries, relations)
    kind = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()][seed]
    corpus = tables["corpus.parquet"]
    tables["corpus.parquet"] = corpus.cast(pa.schema([(name, kind) for name in corpus.column_names]))
    reading.write_dapfam(tmp_path, tables, row_group_size=37)
    splits = reading.SPLITS[seed::4]
    for config in ("corpus", "queries", "qrels"):
        right = reading.expected(DAPFAM, config, tmp_path, splits)
        assert reading.first_difference(load(DAPFAM, config, tmp_path, splits=splits), right) is None


@pytest.mark.parametrize("seed", range(3))
def test_poetry_rows_on_random_upstreams(load, tmp_path, seed):
    """Long enough for several blocks; each run of pages writes its duplicates, escapes and fields in another way."""
    rng = random.Random(seed)
    alphabet = 'ab\t\n\r"\\/{}é\u2028\x00\x7f\U0001f339 '
    lines = []
    for number in range(1500):
        text = "".join(rng.choices(alphabet, k=rng.randrange(800)))
        record = {"book": f"b{number % 7}", "page": number, "score": rng.choice([0, 1, 0.25, 1e-9]), "text": text}
        pairs = [(rng.choice(['x"y', "z", "é"]), rng.randrange(99)) for _ in range(rng.randrange(3))]
        form = [
            lambda book, page: f"{book}/{page}",
            lambda *pair: pair,
            lambda book, page: {"book": book, "page": page},
        ]
        if rng.random() < 0.9:
            record["duplicates"] = [form[number // 500](*pair) for pair in pairs]
        if number % 3 == 0:
            record = {**dict(reversed(record.items())), "extra": {"text": [1]}}
        separators = [(",", ":"), (", ", ": ")][number // 250 % 2]
        lines.append(json.dumps(record, ensure_ascii=rng.random() < 0.5, separators=separators).encode())
    reading.write_poetry(tmp_path, lines, "love 0 b1/1 2\nlove 0 b1/2 -1\n", "war 0 b1/1 0\n")
    for config, rows in reading.poetry(tmp_path).items():
        assert reading.first_difference(load(POETRY, config, tmp_path), {"test": rows}) is None


@pytest.fixture
def scratch(tmp_path):
    """A folder that does not outlive the test: it gets gigabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_a_full_text_corpus_of_over_1_gb_is_built_in_less(scratch, run_python):
    """In one row group, every description as long as the longest published document."""
    size, count = 3_500_000, 310
    rng = np.random.default_rng(0)
    vocabulary = np.array([f"word{number} ".encode() for number in range(5000)])
    words = b"".join(rng.choice(vocabulary, 600_000).tolist())
    text = pa.py_buffer(words)
    # Every description is a window of one text, at another place: the corpus itself need not be in memory.
    windows = [pa.py_buffer(np.array([at * 997, at * 997 + size], np.int32)) for at in range(count)]
    descriptions = pa.chunked_array([pa.StringArray.from_buffers(1, offsets, text) for offsets in windows])
    short = [(f"d{number}", f"title {number}", "abstract", "claims") for number in range(count)]
    tables = reading.dapfam_tables(short, [("q1", "query")], [("q1", "d5", 1.0, "IN")])
    tables["corpus.parquet"] = tables["corpus.parquet"].set_column(4, "description_en", descriptions)
    reading.write_dapfam(scratch, tables, row_group_size=count, compression="snappy")
    rows, peak = run_python(
        """
        import sys
        from NanoDAPFAM import NanoDAPFAM
        split = "NanoDAPFAMInTitlAbsToFullText"
        folder = sys.argv[1]
        builder = NanoDAPFAM(f"{folder}/cache", config_name="corpus", data_dir=folder, splits=[split])
        builder.download_and_prepare()
        peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
        print(builder.info.splits[split].num_examples, int(peak.split()[1]) * 1024)
        """,
        scratch,
    )
    assert (int(rows), int(peak) < 1e9) == (count, True), peak
