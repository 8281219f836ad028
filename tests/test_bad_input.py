"""Bad input is one clear error, streaming or not, and leaves nothing in the cache that a later call would serve."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reading

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
SPLIT = "NanoDAPFAMAllTitlAbsClmToFullText"
GZ = reading.CORPUS_GZ
PAGE = {"book": "b", "page": 2, "score": 0.5, "text": "second", "duplicates": ["c/1"]}
LINES = [{**PAGE, "page": 1}, PAGE, {**PAGE, "page": 3}]


def without(field):
    return {name: value for name, value in PAGE.items() if name != field}


def raw(text):
    return text if isinstance(text, bytes) else text.encode()


# The second of three lines of the corpus -> words of the error.
BAD_PAGES = {
    "not JSON": (b"second", ["Expecting value"]),
    "cut JSON": (b'{"book": "b", "page": 2, "text": "sec', []),
    "two objects": (raw(json.dumps(PAGE) * 2), ["Extra data"]),
    "array": (["b", 2, "second"], ["expected a JSON object"]),
    "number": (b"2", ["expected a JSON object"]),
    "null": (b"null", ["expected a JSON object"]),
    "deep": (b"[" * 100_000, []),
    "no book": (without("book"), ["'book'", "missing", "string"]),
    "no page": (without("page"), ["'page'", "missing", "integer"]),
    "no text": (without("text"), ["'text'", "missing", "string"]),
    "null text": ({**PAGE, "text": None}, ["'text'", "null", "string"]),
    "text list": ({**PAGE, "text": ["second"]}, ["'text'", "string"]),
    "book number": ({**PAGE, "book": 7}, ["'book'", "7", "string"]),
    "page string": ({**PAGE, "page": "2"}, ["'page'", '"2"', "integer"]),
    "page fraction": ({**PAGE, "page": 2.5}, ["'page'", "2.5", "integer"]),
    "page float": (raw(json.dumps(PAGE).replace("2,", "2.0,")), ["'page'", "integer"]),
    "page bool": ({**PAGE, "page": True}, ["'page'", "true", "integer"]),
    "page null": ({**PAGE, "page": None}, ["'page'", "null", "integer"]),
    "page too large": ({**PAGE, "page": 2**63}, ["'page'", "64 bits"]),
    "score string": ({**PAGE, "score": "0.5"}, ["'score'", "number"]),
    "score bool": ({**PAGE, "score": True}, ["'score'", "number"]),
    "score NaN": ({**PAGE, "score": float("nan")}, ["'score'", "number"]),
    "score infinite": ({**PAGE, "score": float("-inf")}, ["'score'", "number"]),
    "score overflow": (raw(json.dumps(PAGE).replace("0.5", "1e999")), ["'score'", "number"]),
    "score too long": (raw(json.dumps(PAGE).replace("0.5", "1" * 400)), []),
    "duplicates string": ({**PAGE, "duplicates": "c/1"}, ["'duplicates'"]),
    "duplicates number": ({**PAGE, "duplicates": 1}, ["'duplicates'"]),
    "duplicates object": ({**PAGE, "duplicates": {"book": "c", "page": 1}}, ["'duplicates'"]),
    "duplicate number": ({**PAGE, "duplicates": [1]}, ["'duplicates'", "book/page"]),
    "duplicate triple": ({**PAGE, "duplicates": [["c", 1, 2]]}, ["'duplicates'", "book/page"]),
    "duplicate half": ({**PAGE, "duplicates": [{"book": "c"}]}, ["'duplicates'", "book/page"]),
    "duplicate null": ({**PAGE, "duplicates": [None]}, ["'duplicates'", "book/page"]),
    "invalid UTF-8": (b'{"book": "b", "page": 2, "score": 1, "text": "\xff\xfe"}', []),
    "encoded surrogate": (b'{"book": "b", "page": 2, "score": 1, "text": "\xed\xa0\x80"}', []),
    "lone surrogate": ({**PAGE, "text": "\ud800"}, []),
    "lone surrogate in a duplicate": ({**PAGE, "duplicates": ["\udfff/1"]}, []),
    "same id": ({**PAGE, "page": 1}, ["b/1", "unique"]),
}
# The second of three lines of a qrel file -> words of the error.
BAD_JUDGMENTS = {
    "label 3": ("love 0 b/2 3", ["'3'", "-1, 0, 1, 2"]),
    "label -2": ("love 0 b/2 -2", ["'-2'", "-1, 0, 1, 2"]),
    "label 1.0": ("love 0 b/2 1.0", ["'1.0'", "-1, 0, 1, 2"]),
    "label +1": ("love 0 b/2 +1", ["'+1'", "-1, 0, 1, 2"]),
    "label word": ("love 0 b/2 yes", ["'yes'", "-1, 0, 1, 2"]),
    "3 fields": ("love b/2 1", ["3", "4", "topic iteration docid label"]),
    "5 fields": ("mothers day 0 b/2 1", ["5", "4", "topic iteration docid label"]),
    "1 field": ("love", ["1", "4", "topic iteration docid label"]),
    "commas": ("love,0,b/2,1", ["1", "4", "topic iteration docid label"]),
}
BYTES = gzip.compress(
    b"".join(raw(json.dumps({**PAGE, "page": page, "text": str(page) * 99})) + b"\n" for page in range(99))
)
# The bytes of the corpus file.
BAD_GZIPS = {
    "empty": b"",
    "one byte": BYTES[:1],
    "cut in the header": BYTES[:8],
    "cut at the start": BYTES[:12],
    "cut in the middle": BYTES[: len(BYTES) // 2],
    "cut before the checksum": BYTES[:-8],
    "cut in the checksum": BYTES[:-6],
    "cut before the length": BYTES[:-4],
    "cut in the length": BYTES[:-1],
    "not a gzip": b"".join(raw(json.dumps(line)) + b"\n" for line in LINES),
    "a page of HTML": b"<!DOCTYPE html><title>404 Not Found</title>",
    "damaged": BYTES[:200] + bytes(40) + BYTES[240:],
    "wrong checksum": BYTES[:-8] + bytes(8),
    "garbage behind": BYTES + b"garbage",
    "second member cut": BYTES + BYTES[:50],
}
MISSING = {
    "corpus": (DAPFAM, "corpus", "corpus.parquet"),
    "corpus for qrels": (DAPFAM, "qrels", "corpus.parquet"),
    "queries": (DAPFAM, "queries", "queries.parquet"),
    "queries for the corpus": (DAPFAM, "corpus", "queries.parquet"),
    "relations": (DAPFAM, "queries", "qrels_all.parquet"),
    "pages": (POETRY, "corpus", GZ),
    "pages for qrels": (POETRY, "qrels_max", GZ),
    "max judgments": (POETRY, "qrels_max", "mturk.max.qrel"),
    "min judgments": (POETRY, "qrels_min", "mturk.min.qrel"),
    "judgments for queries": (POETRY, "queries", "mturk.min.qrel"),
}
FAMILIES = ("title", "abstract", "claims", "description")
TABLES = reading.dapfam_tables(
    [(f"d{number}", *(f"{name} {number}" for name in FAMILIES)) for number in range(4)],
    [(f"q{number}", *(f"{name} of query {number}" for name in FAMILIES)) for number in range(3)],
    [("q0", "d1", 1.0, "IN"), ("q0", "d2", 0.0, "NC"), ("q1", "d3", 1.0, "OUT"), ("q2", "d0", 1.0, "IN")],
)
# Config, file, column, what it holds instead (None: nothing) -> words of the error, besides file and column.
INVALID = pa.array([b"\xff"] * 4).view(pa.string())
LISTS = pa.array([["d0"], ["d1"], ["d2"], ["d3"]])
BAD_COLUMNS = [
    *(("corpus", "corpus", column, None, []) for column in ("relevant_id", *reading.VIEWS["FullText"])),
    *(("queries", "queries", column, None, []) for column in ("query_id", *reading.VIEWS["TitlAbsClm"])),
    *(("queries", "qrels_all", column, None, []) for column in TABLES["qrels_all.parquet"].column_names),
    ("qrels", "corpus", "description_en", None, []),
    ("corpus", "corpus", "relevant_id", pa.array([0, 1, 2, 3]), ["int64", "string"]),
    ("corpus", "corpus", "title_en", pa.array([0.5] * 4), ["double", "string"]),
    ("corpus", "corpus", "description_en", LISTS, ["list", "string"]),
    ("qrels", "corpus", "description_en", LISTS, ["list", "string"]),
    ("queries", "queries", "claims_text", pa.array([b"x"] * 3), ["binary", "string"]),
    ("queries", "queries", "query_id", pa.array([0, 1, 2]), ["int64", "string"]),
    ("queries", "qrels_all", "query_id", pa.array([0, 1, 2, 3]), ["int64", "string"]),
    ("queries", "qrels_all", "relevance_score", pa.array(["high"] * 4), ["number"]),
    ("queries", "qrels_all", "relevance_score", LISTS, ["number"]),
    ("queries", "qrels_all", "domain_rel", pa.array([1, 2, 3, 4]), ["int64", "string"]),
    ("queries", "qrels_all", "domain_rel", pa.array(["IN", "NC", "XX", "IN"]), ["row 2", "'XX'", "'IN' or 'OUT'"]),
    ("queries", "qrels_all", "domain_rel", pa.array(["IN", "NC", None, "IN"]), ["row 2", "'IN' or 'OUT'"]),
    ("queries", "qrels_all", "domain_rel", pa.array(["IN", "NC", "OUT", "NC"]), ["row 3", "'NC'", "'IN' or 'OUT'"]),
    ("qrels", "qrels_all", "relevant_id", pa.array(["d1", "d2", None, "d0"]), ["row 2"]),
    ("corpus", "corpus", "relevant_id", pa.array(["d0", "d1", "d2", "d1"]), ["row 3", "'d1'", "unique"]),
    ("qrels", "corpus", "relevant_id", pa.array(["d0", "d1", "d2", "d1"]), ["row 3", "'d1'", "unique"]),
    ("corpus", "corpus", "relevant_id", pa.array(["d0", "d1", "d2", None]), ["row 3", "null"]),
    ("queries", "queries", "query_id", pa.array(["q0", "q1", "q0"]), ["row 2", "'q0'", "unique"]),
    ("queries", "queries", "query_id", pa.array(["q0", None, "q2"]), ["row 1", "null"]),
    ("corpus", "corpus", "abstract_en", INVALID, ["UTF-8"]),
    ("corpus", "corpus", "relevant_id", INVALID, ["UTF-8"]),
    ("queries", "queries", "title_en", INVALID[:3], ["UTF-8"]),
    ("queries", "qrels_all", "relevant_id", INVALID, ["UTF-8"]),
]


def write(folder, dataset):
    """A small good upstream."""
    if dataset == POETRY:
        reading.write_poetry(folder, LINES, "love 0 b/1 1\nlove 0 b/2 2\nwar 0 b/3 -1\n", "hate 0 b/3 0\n")
    else:
        reading.write_dapfam(folder, TABLES)


@pytest.fixture
def refuse(open_builder, load, tmp_path):
    """(dataset, config, place in which file, words): loading fails with them, and is right once the file is good."""

    def check(dataset, config, place, words=()):
        upstream, cache = tmp_path / "upstream", tmp_path / "cache"
        options = {"cache_dir": str(cache)} | ({"splits": [SPLIT]} if dataset == DAPFAM else {})
        builder = open_builder(dataset, config, upstream, **options)
        with pytest.raises((ValueError, OSError)) as streamed:
            for stream in builder.as_streaming_dataset().values():
                list(stream)
        with pytest.raises((ValueError, OSError)) as built:
            builder.download_and_prepare()
        for message in (str(streamed.value), str(built.value)):
            assert message.startswith(f"{upstream}/{place}"), message
            assert [word for word in words if word not in message] == [], message
            assert len(message.splitlines()) == 1 and len(message) < 700
        assert [*cache.rglob("*.incomplete"), *cache.rglob("*.arrow")] == []
        write(upstream, dataset)
        right = reading.expected(dataset, config, upstream, [SPLIT])
        assert reading.first_difference(load(dataset, config, upstream, **options), right) is None

    return check


@pytest.mark.parametrize("name", BAD_PAGES)
def test_bad_page_is_named_by_file_and_line(refuse, tmp_path, name):
    line, words = BAD_PAGES[name]
    lines = [LINES[0], line, LINES[2]]
    reading.write_poetry(tmp_path / "upstream", lines, "love 0 b/1 1\n", "hate 0 b/1 1\n")
    refuse(POETRY, "corpus", f"{GZ}:2: ", words)


@pytest.mark.parametrize(("line", "words"), [(b"{}", ["missing"]), ({**PAGE, "page": 17}, ["b/17", "unique"])])
def test_bad_page_far_down_is_named_by_its_line(refuse, tmp_path, line, words):
    lines = [{**PAGE, "page": page, "text": str(page) * 300} for page in range(3000)]
    lines[2717] = line
    reading.write_poetry(tmp_path / "upstream", lines, "love 0 b/1 1\n", "hate 0 b/1 1\n")
    refuse(POETRY, "corpus", f"{GZ}:2718: ", words)


def test_bad_page_is_found_when_only_qrels_are_loaded(refuse, tmp_path):
    reading.write_poetry(tmp_path / "upstream", [LINES[0], b"second"], "love 0 b/1 1\n", "hate 0 b/1 1\n")
    refuse(POETRY, "qrels_max", f"{GZ}:2: ")


@pytest.mark.parametrize("name", BAD_JUDGMENTS)
def test_bad_judgment_is_named_by_file_and_line(refuse, tmp_path, name):
    line, words = BAD_JUDGMENTS[name]
    reading.write_poetry(tmp_path / "upstream", LINES, f"love 0 b/1 1\n{line}\nwar 0 b/3 -1\n", "hate 0 b/3 0\n")
    refuse(POETRY, "qrels_max", "mturk.max.qrel:2: ", words)


@pytest.mark.parametrize("config", ["queries", "qrels_min"])
def test_bad_judgment_of_the_other_file(refuse, tmp_path, config):
    reading.write_poetry(tmp_path / "upstream", LINES, "love 0 b/1 1\n", "\nhate 0 b/3 9\n")
    refuse(POETRY, config, "mturk.min.qrel:2: ", ["'9'", "-1, 0, 1, 2"])


def test_qrels_that_are_not_utf_8(refuse, tmp_path):
    write(tmp_path / "upstream", POETRY)
    (tmp_path / "upstream" / "mturk.max.qrel").write_bytes(b"love 0 b/1 1\n\xe9t\xe9 0 b/2 1\n")
    refuse(POETRY, "qrels_max", "mturk.max.qrel", ["UTF-8"])


@pytest.mark.parametrize("config", ["corpus", "qrels_max"])
@pytest.mark.parametrize("name", BAD_GZIPS)
def test_bad_gzip(refuse, tmp_path, name, config):
    write(tmp_path / "upstream", POETRY)
    (tmp_path / "upstream" / GZ).write_bytes(BAD_GZIPS[name])
    refuse(POETRY, config, GZ)


@pytest.mark.parametrize("name", MISSING)
def test_missing_file(refuse, tmp_path, name):
    dataset, config, missing = MISSING[name]
    write(tmp_path / "upstream", dataset)
    (tmp_path / "upstream" / missing).unlink()
    refuse(dataset, config, missing, ["no such file"])


@pytest.mark.parametrize("dataset", [POETRY, DAPFAM])
def test_missing_folder(refuse, dataset):
    refuse(dataset, "queries", "", ["no such file"])


@pytest.mark.parametrize(
    ("config", "file", "column", "values", "words"),
    BAD_COLUMNS,
    ids=[f"{file}.{column}-{config}-{number}" for number, (config, file, column, *_) in enumerate(BAD_COLUMNS)],
)
def test_bad_column(refuse, tmp_path, config, file, column, values, words):
    name = f"{file}.parquet"
    table = TABLES[name]
    if values is None:
        table = table.drop_columns(column)
    else:
        table = table.set_column(table.column_names.index(column), column, values)
    reading.write_dapfam(tmp_path / "upstream", {**TABLES, name: table}, row_group_size=2)
    refuse(DAPFAM, config, name, [column, *words])


@pytest.mark.parametrize("file", ["corpus", "queries", "qrels_all"])
@pytest.mark.parametrize("damage", ["empty", "no footer", "cut", "text", "zeros"])
def test_damaged_parquet(refuse, tmp_path, file, damage):
    write(tmp_path / "upstream", DAPFAM)
    path = tmp_path / "upstream" / f"{file}.parquet"
    content = path.read_bytes()
    damaged = {"empty": b"", "no footer": content[:-8], "cut": content[:100], "text": b"query_id,relevant_id\n"}
    path.write_bytes(damaged.get(damage, content[:4] + bytes(len(content) // 3) + content[4 + len(content) // 3 :]))
    refuse(DAPFAM, "corpus", f"{file}.parquet")


LONG = "\x1b\u2028\r\n" + "x" * 1_000_000  # as an id, a label or a name: more than one line, and no line to print
WORD = "\x1b\x07" + "x" * 1_000_000  # without white space


@pytest.mark.parametrize(
    ("config", "file", "lines"),
    [
        ("corpus", GZ, [{**PAGE, "book": LONG}] * 2),
        ("qrels_max", "mturk.max.qrel", ["love 0 b/1 1", f"love 0 b/1 {WORD}"]),
        ("qrels_max", "mturk.max.qrel", [f"love 0 {WORD} 1", f"love 0 {WORD} 2"]),
        ("qrels_max", "mturk.max.qrel", [f"{WORD} 0 b/1 1", f"{WORD} 0 b/1 2"]),
    ],
)
def test_what_a_page_or_judgment_holds_is_shown_shortened(refuse, tmp_path, config, file, lines):
    write(tmp_path / "upstream", POETRY)
    if file == GZ:
        reading.write_poetry(tmp_path / "upstream", lines, "love 0 b/1 1\n", "love 0 b/1 1\n")
    else:
        (tmp_path / "upstream" / file).write_text("\n".join(lines))
    refuse(POETRY, config, f"{file}:2: ", [r"\x1b", "..."])


@pytest.mark.parametrize(
    ("config", "file", "columns"),
    [
        ("corpus", "corpus", {"relevant_id": pa.array(["d0", LONG, LONG, "d3"])}),
        ("queries", "queries", {"query_id": pa.array(["q0", LONG, LONG])}),
        ("queries", "qrels_all", {"domain_rel": pa.array([LONG] * 4)}),
        ("queries", "qrels_all", {"relevance_score": pa.array([{LONG: 1}] * 4)}),
        ("queries", "queries", {"title_en": pa.array([{LONG: "t"}] * 3)}),
        ("queries", "queries", {"title_en": None, LONG: pa.array(["t"] * 3)}),
    ],
)
def test_what_a_table_holds_is_shown_shortened(refuse, tmp_path, config, file, columns):
    table = TABLES[f"{file}.parquet"]
    for name, values in columns.items():
        table = table.drop_columns([name]) if name in table.column_names else table
        table = table.append_column(name, values) if values is not None else table
    reading.write_dapfam(tmp_path / "upstream", {**TABLES, f"{file}.parquet": table})
    refuse(DAPFAM, config, f"{file}.parquet", [r"\x1b"])


def test_columns_that_a_view_does_not_need_may_be_missing(load, tmp_path):
    corpus = TABLES["corpus.parquet"]
    small = corpus.drop_columns(["claims_text", "description_en"])
    reading.write_dapfam(tmp_path, {**TABLES, "corpus.parquet": small})
    found = load(DAPFAM, "corpus", tmp_path, splits=["NanoDAPFAMInTitlAbsToTitlAbs"])
    assert len(found["NanoDAPFAMInTitlAbsToTitlAbs"]) == 4


def test_unknown_domain_of_a_relation_that_is_no_positive_is_no_matter(load, tmp_path):
    domains = pa.array(["IN", "XX", "OUT", "IN"])
    relations = TABLES["qrels_all.parquet"].set_column(3, "domain_rel", domains)
    reading.write_dapfam(tmp_path, {**TABLES, "qrels_all.parquet": relations})
    right = reading.expected(DAPFAM, "qrels", tmp_path, [SPLIT])
    assert reading.first_difference(load(DAPFAM, "qrels", tmp_path, splits=[SPLIT]), right) is None


def test_a_split_that_fails_takes_the_ones_before_it_along(load, tmp_path):
    """The first split needs no description; the second does."""
    upstream, cache = tmp_path / "upstream", tmp_path / "cache"
    options = {"splits": ["NanoDAPFAMAllTitlAbsClmToTitlAbs", "NanoDAPFAMInTitlAbsToFullText"], "cache_dir": str(cache)}
    corpus = TABLES["corpus.parquet"].drop_columns("description_en")
    reading.write_dapfam(upstream, {**TABLES, "corpus.parquet": corpus})
    with pytest.raises(ValueError, match="description_en"):
        load(DAPFAM, "corpus", upstream, **options)
    assert [*cache.rglob("*.incomplete"), *cache.rglob("*.arrow")] == []
    pq.write_table(TABLES["corpus.parquet"], upstream / "corpus.parquet")
    right = reading.expected(DAPFAM, "corpus", upstream, options["splits"])
    assert reading.first_difference(load(DAPFAM, "corpus", upstream, **options), right) is None
