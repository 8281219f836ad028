"""Hostile input, drawn by hypothesis, and what must hold for it: the rule's rows or one UpstreamError of one line.

The suite draws two thousand inputs (test_hostile.py). `python -m tests.fuzz` draws 100,000, breaks connections and
kills runs besides, and prints a table.
"""

import argparse
import contextlib
import gzip
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))  # where pytest has it as well

import conftest  # before `datasets`: its caches go to a folder of the run's own
import crashes
import hypothesis
import pyarrow as pa
import pyarrow.parquet as pq
import reading
from faults import Fault, FaultServer, write_upstreams
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

import NanoDAPFAM
import Poetry50KRetrieval
from tools.errors import InputError
from tools.sample import write_sample
from tools.sidecar import read_sidecar

set_hypothesis_home_dir(Path(os.environ["HF_HOME"]) / "hypothesis")

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
MODULES = {POETRY: Poetry50KRetrieval, DAPFAM: NanoDAPFAM}
SPLIT = "NanoDAPFAMInTitlAbsClmToFullText"
UPSTREAM_ERRORS = (Poetry50KRetrieval.UpstreamError, NanoDAPFAM.UpstreamError)
LONGEST = 20  # seconds for one input; more is a hang
MOST_MEMORY = 1 << 30  # bytes of Arrow's for one small input
DRAWN = settings(
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


# ---- What is run. ----


@cache
def folder() -> Path:
    """A folder whose upstream files are replaced for each input."""
    made = Path(tempfile.mkdtemp(prefix="hostile-", dir=os.environ["HF_HOME"]))
    page = {"book": "b", "page": 1, "score": 1, "text": "t"}
    reading.write_poetry(made, [page], "topic 0 b/1 1\n", "topic 0 b/1 1\n")
    reading.write_dapfam(made, reading.dapfam_tables([("d", "t")], [("q", "t")], [("q", "d", 1.0, "IN")]))
    for dataset, split, query in (
        (POETRY, "test", {"id": "topic", "text": "topic"}),
        (DAPFAM, SPLIT, {"_id": "q", "text": "t"}),
    ):
        reading.write_sidecar(made / dataset, dataset, "bm25", split, [query], {next(iter(query.values())): ["d"]})
    return made


def read(dataset: str, config: str) -> list[dict] | str:
    """The rows a config has of the files in the folder, or the words of the error; anything else is raised."""
    split, options = ("test", {}) if dataset == POETRY else (SPLIT, {"splits": [SPLIT]})
    places = {"data_dir": str(folder()), "sidecar_dir": str(folder() / dataset)}
    one = getattr(MODULES[dataset], dataset)(config_name=config, **places, **options)
    files = {name: f"{folder()}/{name}" for name in one.upstream_files()}
    begun = time.monotonic()
    try:
        return [row for _, table in one._generate_tables(split, files) for row in table.to_pylist()]
    except UPSTREAM_ERRORS as error:
        message = str(error)
        assert len(message.splitlines()) == 1 and len(message) < 1000, repr(message)[:2000]
        assert str(folder()) in message, message
        return message
    finally:
        assert time.monotonic() - begun < LONGEST, "a hang"


def check(found: list[dict] | str, right: list[dict] | None, why: str) -> None:
    """`right` is None where the rules refuse the input, and `why` says what for."""
    if right is None:
        assert isinstance(found, str), f"taken, but {why}: {found!r:.500}"
    else:
        assert not isinstance(found, str), f"refused: {found}"
        assert found == right, f"{found!r:.500} instead of {right!r:.500}"


# ---- Poetry's pages. ----

STRANGE = [
    *("", " ", "\0", "\x1c", "\x85", "\xa0", "\u202e", "\u2066", "\u2028", "\u3000", "\ufeff", "\U0001f4a9", "\uffff"),
    *("\u00e9", "e\u0301", "\u212b", "\u00c5", "\t", "\n", "\r\n", "'", '"', "\\", "/", "..", "../../etc/passwd"),
    *(
        "/dev/null",
        "a b",
        "a/b",
        "b/1",
        "---",
        "|",
        "<script>",
        "]]>",
        "NaN",
        "null",
        "-1",
        "1",
        "{}",
        "}\n{",
        "[",
        "%00",
    ),
]
words = st.one_of(st.sampled_from(STRANGE), st.text(max_size=6), st.sampled_from("abc"))
strings = st.lists(words, max_size=3).map("".join)
json_strings = st.one_of(strings, strings, strings, st.sampled_from(["\ud800", "a\udfff", "\ud83d", "\udca9\ud83d"]))
LIMITS = [2**63 - 1, -(2**63), 2**63, 10**30, 10**400, 1e308, 5e-324, 0.1 + 0.2, -0.0, True, "1", "NaN", 1.0]
numbers = st.one_of(st.integers(-3, 9), st.floats(), st.sampled_from(LIMITS))
duplicate_forms = st.one_of(
    strings,
    st.tuples(strings, st.integers(0, 9)).map(list),
    st.fixed_dictionaries({"book": strings, "page": st.integers(0, 9)}),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, json_strings),
    lambda values: st.one_of(st.lists(values, max_size=2), st.dictionaries(json_strings, values, max_size=2)),
    max_leaves=4,
)
good_pages = st.fixed_dictionaries(
    {"book": strings, "page": st.integers(0, 5), "text": strings},
    optional={
        "score": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 9)),
        "duplicates": st.one_of(st.none(), st.lists(strings, max_size=2), st.lists(duplicate_forms, max_size=2)),
    },
)
odd_pages = st.builds(
    lambda page, changes, dropped: {name: value for name, value in {**page, **changes}.items() if name not in dropped},
    good_pages,
    st.dictionaries(
        st.one_of(st.sampled_from(["book", "page", "score", "text", "duplicates"]), json_strings),
        json_values,
        max_size=2,
    ),
    st.lists(st.sampled_from(["book", "page", "score", "text"]), max_size=1),
)
RAW_LINES = [b"", b" ", b"\t\r", b"\x00", b"\x0b", b"\xff\xfe", b"# comment", *b'{} [] null { } "text"'.split()]
NUMERALS = [*b"-0 -0.0 01 1. .5 +1 1e5 1E400 NaN -Infinity 0x1 1_0".split(), b"1" * 330]
LINE_ENDS = [b"", b"", b"", b"", b"\r", b" ", b"\t", b"\x00", b"\x00{}", b" trailing", b"{}", b",", b"\x0b", b"\x1e"]


@st.composite
def json_lines(draw) -> bytes:
    """One line: mostly a page, as JSON is written by one or another program."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.one_of(st.sampled_from(RAW_LINES), st.binary(max_size=12)))
    page = draw(good_pages if kind < 7 else odd_pages)
    compact = draw(st.booleans())
    text = json.dumps(page, ensure_ascii=draw(st.booleans()), separators=(",", ":") if compact else None)
    line = text.encode("utf-8", "surrogatepass")
    if kind == 9:
        numeral, name = draw(st.sampled_from(NUMERALS)), draw(st.sampled_from([b"page", b"score", b"extra"]))
        line = line[:-1] + b',"%s":%s}' % (name, numeral)  # perhaps for the second time
    return line + draw(st.sampled_from(LINE_ENDS))


json_files = st.builds(
    lambda mark, lines, end: mark + b"\n".join(lines) + end,
    st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf", b"\n", b"\xef\xbb\xbf\xef\xbb\xbf", b"\xff\xfe"]),
    st.lists(json_lines(), max_size=4),
    st.sampled_from([b"", b"\n", b"\n", b"\n\n", b"\r\n"]),
)


def pages_by_the_rules(content: bytes) -> tuple[list[dict] | None, str]:
    """The rules once more: reading.poetry's rows where the format is kept, None and why where it is not.

    Stricter than reading.py, which takes good files only: types, numbers that are none, text that is no Unicode, ids
    that are given twice. Looser: blank lines, a byte order mark at the start, no score.
    """
    rows, ids = [], set()
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8"))
            row = reading.page_row({"score": None, **record, "duplicates": record.get("duplicates") or []})
            kinds = [type(record["book"]), type(record["page"]), type(record["text"])]
            listed = isinstance(record.get("duplicates"), list | None)
            parts = [duplicate_parts(duplicate) for duplicate in record.get("duplicates") or []]
            json.dumps([row["id"], row["text"], *json.loads(row["duplicates"])], ensure_ascii=False).encode()
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
            return None, f"{error!r} in {line[:80]}"
        good_score = type(row["score"]) in (int, float, type(None)) and is_finite(row["score"])
        good_duplicates = listed and all(kinds in ([str], [str, int]) for kinds in parts)
        if kinds != [str, int, str] or not -(2**63) <= row["page"] < 2**63 or not good_score or not good_duplicates:
            return None, f"types or numbers of {line[:80]}"
        if row["id"] in ids:
            return None, f"a second {row['id']}"
        ids.add(row["id"])
        rows.append({**row, "score": None if row["score"] is None else float(row["score"])})
    return (rows, "") if rows else (None, "no pages")


def duplicate_parts(duplicate: object) -> list[type]:
    if isinstance(duplicate, dict):
        duplicate = [duplicate["book"], duplicate["page"]]
    return [type(part) for part in duplicate] if isinstance(duplicate, list) else [type(duplicate)]


def is_finite(score: float | None) -> bool:
    try:
        return score is None or math.isfinite(score)
    except OverflowError:
        return False


def check_pages(content: bytes) -> None:
    (folder() / reading.CORPUS_GZ).write_bytes(gzip.compress(content, 1))
    check(read(POETRY, "corpus"), *pages_by_the_rules(content))


def check_block(block: bytes) -> None:
    """The fast reader says the same as the row reader, or nothing."""
    fast = Poetry50KRetrieval.parse_block(block)
    try:
        slow = Poetry50KRetrieval.parse_lines(block, "pages", 1)
    except UPSTREAM_ERRORS as error:
        assert fast is None, f"taken by the fast reader: {fast.to_pylist()}; by the row reader: {error}"
    else:
        if fast is not None:
            assert Poetry50KRetrieval.page_table(fast).to_pylist() == Poetry50KRetrieval.page_table(slow).to_pylist()
            assert fast.schema == slow.schema


# ---- Poetry's judgments. ----

GAPS = [" ", "\t", "  ", " \t ", "\x0b", "\u00a0", "\u3000", "\x1c"]
STRANGE_FIELDS = ["love", "b/1", "b/2", "../x", "'", "\0", "\u202e", "e\u0301", "\u00e9"]
STRANGE_LABELS = ["3", "+1", "1.0", "\uff11", "\u00b2", "-1", ""]
plain = st.one_of(st.sampled_from(STRANGE_FIELDS), st.text(max_size=4))
judgments = st.one_of(
    st.tuples(st.sampled_from("ab"), st.just("0"), st.sampled_from(["b/1", "b/2", "c/1"]), st.sampled_from("012")),
    st.tuples(plain, st.sampled_from(["0", "Q0"]), plain, st.sampled_from(["-1", "0", "1", "2"])),
    st.lists(plain, max_size=6).map(tuple),
    st.tuples(st.just("a"), st.just("0"), st.just("b/1"), st.sampled_from(STRANGE_LABELS)),
)
judgment_lines = st.builds(
    lambda fields, gap, end: gap.join(fields) + end,
    judgments,
    st.sampled_from(GAPS),
    st.sampled_from(["", "", "\r", " "]),
)
qrel_files = st.builds(
    lambda mark, lines, junk: mark + "\n".join(lines).encode() + junk,
    st.sampled_from([b"", b"", b"\xef\xbb\xbf"]),
    st.lists(judgment_lines, max_size=5),
    st.sampled_from([b"", b"\n", b"\n\n", b"\r\n", b"\n\xff", b"\n\x00"]),
)


def judgments_by_the_rules(content: bytes) -> tuple[list[dict] | None, str]:
    """Stricter than reading.py: it takes any label, and two different ones for one page and topic."""
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        return None, "not UTF-8"
    rows, labels = [], {}
    for fields in filter(None, map(str.split, lines)):
        if len(fields) != 4 or fields[3] not in ("-1", "0", "1", "2"):
            return None, f"fields or label of {fields}"
        if labels.setdefault((fields[0], fields[2]), fields[3]) != fields[3]:
            return None, f"two labels of {fields}"
        rows.append({"query-id": fields[0], "corpus-id": fields[2], "score": max(0.0, float(fields[3]))})
    return rows, ""


JUDGED_PAGES = [{"book": "b", "page": page, "score": 1, "text": "t"} for page in (1, 2)]


def check_qrels(content: bytes) -> None:
    reading.write_poetry(folder(), JUDGED_PAGES, "", "")
    (folder() / "mturk.max.qrel").write_bytes(content)
    rows, why = judgments_by_the_rules(content)
    judged = topics = None
    if rows is not None:
        judged = [row for row in rows if row["corpus-id"] in ("b/1", "b/2")]
        topics = [{"id": t, "text": t.replace("_", " ")} for t in sorted({row["query-id"] for row in rows})]
    check(read(POETRY, "qrels_max"), judged, why)
    check(read(POETRY, "queries"), topics, why)


# ---- DAPFAM's tables. ----

STRING_TYPES = [pa.string(), pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
RELEVANCE_TYPES = [pa.float64(), pa.float64(), pa.float32(), pa.int64(), pa.int8(), pa.uint64(), pa.bool_()]
document_ids = st.sampled_from(["d0", "d1", "d2", "d3", "", "a/b", "..", "\u00e9", "e\u0301", "\0", "d 1"])
query_ids = st.sampled_from(["q0", "q1", "q2", "", "../q", "\u202eq"])
STRANGE_TEXTS = ["", "x", " x ", "y\n", "\u3000", "\u00e9", "e\u0301", "\0", "\x1c"]
fields = st.one_of(st.none(), st.sampled_from(STRANGE_TEXTS), strings)


def sometimes_null(values, one_in):
    return st.integers(1, one_in).flatmap(lambda drawn: st.none() if drawn == 1 else values)


def family_rows(ids):
    unique = st.lists(ids, unique=True, max_size=6)
    return st.one_of(unique, unique, unique, st.lists(sometimes_null(ids, 9), max_size=4)).flatmap(
        lambda drawn: st.tuples(*(st.tuples(st.just(one), fields, fields, fields, fields) for one in drawn))
    )


@st.composite
def relation_rows(draw):
    kind = draw(st.sampled_from(RELEVANCE_TYPES))
    scores = {
        "double": st.one_of(st.sampled_from([0.0, 1.0, 1.0, 0.5, -1.0]), st.floats()),
        "float": st.sampled_from([0.0, 1.0, 0.5, float("nan"), float("inf")]),
        "int64": st.sampled_from([0, 1, 1, -1, 2**53 + 1, -(2**63)]),
        "uint64": st.sampled_from([0, 1, 1, 2**64 - 1]),
        "int8": st.integers(-1, 2),
        "bool": st.booleans(),
    }[str(kind)]
    if draw(st.booleans()):  # nothing to be refused
        labels, ids = st.sampled_from(["IN", "OUT"]), st.tuples(query_ids, document_ids)
    else:
        labels = st.sampled_from(["IN"] * 6 + ["OUT"] * 6 + ["in", "Out", "", None, "NC"])
        ids = st.tuples(sometimes_null(query_ids, 12), sometimes_null(document_ids, 12))
    rows = draw(st.lists(st.tuples(ids, sometimes_null(scores, 8), labels), max_size=10))
    return kind, [(query, document, score, label) for (query, document), score, label in rows]


EXTRA_COLUMNS = [{}, {"other": pa.int64()}, {"": pa.string()}, {"Title_EN": pa.binary(), "x": pa.bool_()}]


@st.composite
def shapes(draw):
    """How a table is written: types of its strings, order of its columns, columns besides, pages and row groups."""
    return {
        "types": draw(st.lists(st.sampled_from(STRING_TYPES), min_size=5, max_size=5)),
        "order": draw(st.permutations(range(7))),
        "extra": draw(st.sampled_from(EXTRA_COLUMNS)),
        "row_group_size": draw(st.sampled_from([1, 2, 1000])),
        "compression": draw(st.sampled_from(["snappy", "none", "zstd"])),
        "use_dictionary": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "store_schema": draw(st.booleans()),
        "data_page_size": draw(st.sampled_from([1, None])),
    }


def write_table(name: str, columns: dict[str, tuple[pa.DataType, list]], shape: dict) -> None:
    rows = len(next(iter(columns.values()))[1])
    columns = columns | {extra: (kind, [None] * rows) for extra, kind in shape["extra"].items()}
    names = [list(columns)[at] for at in shape["order"] if at < len(columns)]
    arrays = [pa.array(columns[column][1], columns[column][0]) for column in names]
    options = {option: value for option, value in shape.items() if option not in ("types", "order", "extra")}
    pq.write_table(pa.table(arrays, names), folder() / name, **options)


def families_by_the_rules(corpus, queries, relations) -> tuple[dict[str, list[dict] | None], str]:
    """reading.dapfam's rows. Stricter than reading.py where it would take what can only be an error: ids that are null
    or given twice, and a positive whose label is neither IN nor OUT or that has no ids. A score that is null or no
    number is not above 0."""
    positives = [
        (query, document, 1.0, label) for query, document, score, label in relations if score is not None and score > 0
    ]
    if any(label not in ("IN", "OUT") or None in (query, document) for query, document, _, label in positives):
        return {"queries": None, "corpus": None, "qrels": None}, "a positive without its label or ids"
    if has_twice(query[0] for query in queries):
        return {"queries": None, "corpus": None, "qrels": None}, "query ids"
    reading.write_dapfam(folder() / "plain", reading.dapfam_tables(corpus, queries, positives))
    rows = reading.dapfam(folder() / "plain", SPLIT)
    if has_twice(document[0] for document in corpus):
        rows |= {"corpus": None, "qrels": None}
    return rows, "document ids"


def has_twice(ids) -> bool:
    ids = list(ids)
    return None in ids or len(set(ids)) < len(ids)


def check_families(corpus, queries, relations, corpus_shape, queries_shape, relations_shape) -> None:
    kind, relations = relations
    for name, identifier, rows, shape in (
        ("corpus.parquet", "relevant_id", corpus, corpus_shape),
        ("queries.parquet", "query_id", queries, queries_shape),
    ):
        names = [identifier, *reading.VIEWS["FullText"]]
        columns = {column: (shape["types"][at], [row[at] for row in rows]) for at, column in enumerate(names)}
        write_table(name, columns, shape)
    types = [*relations_shape["types"][:2], kind, relations_shape["types"][2]]
    names = ["query_id", "relevant_id", "relevance_score", "domain_rel"]
    columns = {column: (types[at], [row[at] for row in relations]) for at, column in enumerate(names)}
    write_table("qrels_all.parquet", columns, relations_shape)
    right, why = families_by_the_rules(corpus, queries, relations)
    for config in ("queries", "corpus", "qrels"):
        check(read(DAPFAM, config), right[config], why)


families = st.tuples(family_rows(document_ids), family_rows(query_ids), relation_rows(), shapes(), shapes(), shapes())


# ---- Damaged files. ----


@cache
def good_files() -> dict[str, bytes]:
    """Every kind of file that is read, small and of more than one page and row group."""
    rng, made = random.Random(0), folder() / "good"

    def text(length):
        return "".join(rng.choices("abcde \n", k=length))

    pages = [{"book": "b", "page": n, "score": n, "text": text(90), "duplicates": ["c/1"]} for n in range(12)]
    reading.write_poetry(made, pages, "topic 0 b/1 1\nother 0 b/2 -1\n", "topic 0 b/1 1\n")
    corpus = [(f"d{n}", text(9), text(30), text(60), text(99)) for n in range(12)]
    queries = [(f"q{n}", text(9), text(30), text(60)) for n in range(4)]
    relations = [(f"q{n % 4}", f"d{n}", 1.0, "IN") for n in range(12)]
    reading.write_dapfam(made, reading.dapfam_tables(corpus, queries, relations), row_group_size=5, compression="none")
    upstream = {POETRY: reading.poetry(made)["queries"], DAPFAM: reading.dapfam(made, SPLIT)["queries"]}
    for dataset, split in ((POETRY, "test"), (DAPFAM, SPLIT)):
        lists = {next(iter(query.values())): ["d1", "d2"] for query in upstream[dataset]}
        reading.write_sidecar(made / dataset, dataset, "bm25", split, upstream[dataset], lists)
    return reading.contents(made)


READ_BY = {
    reading.CORPUS_GZ: (POETRY, "corpus"),
    "mturk.max.qrel": (POETRY, "queries"),
    "corpus.parquet": (DAPFAM, "corpus"),
    "queries.parquet": (DAPFAM, "queries"),
    "qrels_all.parquet": (DAPFAM, "qrels"),
    f"{POETRY}/bm25/test.parquet": (POETRY, "bm25"),
    f"{DAPFAM}/bm25/{SPLIT}.parquet": (DAPFAM, "bm25"),
}


def damage(content: bytes, rng: random.Random) -> bytes:
    """The content with a few bytes changed, lost, added or moved; where it is Parquet, most often in its footer."""
    damaged = bytearray(content)
    footer = int.from_bytes(content[-8:-4], "little") + 8 if content.endswith(b"PAR1") else 0
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        size = len(damaged)
        start = max(0, size - footer) if footer and rng.random() < 0.6 else 0
        at = rng.randrange(start, size) if size > start else 0
        kind = rng.randrange(8)
        if kind < 4 and size:
            damaged[at] ^= 1 << rng.randrange(8)
        elif kind == 4 and size:
            damaged[at] = rng.choice([0, 0x7F, 0x80, 0xFF])
        elif kind == 5:
            damaged[at : at + rng.randrange(1, 9)] = rng.choice([b"", b"\xff" * 5, b"\xff\xff\xff\xff\x0f", bytes(4)])
        elif kind == 6:
            del damaged[at : at + rng.choice([1, 4, 100])]
        else:
            del damaged[at:]
    return bytes(damaged)


def check_damaged(seed: int) -> None:
    """Never another exception, a hang or memory without measure; a gzip says itself whether it is whole."""
    rng = random.Random(seed)
    name = rng.choice(list(READ_BY))
    for good, content in good_files().items():
        if (folder() / good).read_bytes() != content:
            (folder() / good).write_bytes(content)
    content = damage(good_files()[name], rng)
    (folder() / name).write_bytes(content)
    found = read(*READ_BY[name])
    if name == reading.CORPUS_GZ and not isinstance(found, str):
        assert found == reading.poetry(folder() / "good")["corpus"]
    if "/" in name:
        with contextlib.suppress(InputError):
            read_sidecar(str(folder() / name))
    used = pa.default_memory_pool().max_memory()
    assert used < MOST_MEMORY, f"{used} bytes asked for by {name} of {len(content)} bytes"


# ---- Broken connections. ----


@cache
def served(dataset: str) -> tuple:
    """A server of files large enough to be cut, and their rows."""
    place = folder() / "served" / ("poetry" if dataset == POETRY else "dapfam")
    if not place.exists():
        write_upstreams(place.parent)
    return FaultServer(place), reading.expected(dataset, "corpus", place, [SPLIT])


def check_connection(seed: int) -> None:
    """A streamed corpus behind a server of random faults: the right rows, or some of them and one error."""
    rng = random.Random(seed)
    dataset = rng.choice([POETRY, DAPFAM])
    server, right = served(dataset)
    split, rows = next(iter(right.items()))
    file = reading.CORPUS_GZ if dataset == POETRY else "corpus.parquet"
    kinds = [
        {"cut_after": rng.randrange(1, 70_000)},
        {"cut_after": rng.randrange(1, 70_000), "reset": True},
        {"cut_at": rng.randrange(1, 300_000)},
        {"status": rng.choice([404, 408, 429, 500, 502, 503, 504, 403]), "headers": {"Retry-After": rng.choice("01")}},
        {"length_lie": rng.choice([-7, 1, 100]), "ranges": False},
        {"ranges": False, "cut_after": rng.randrange(1, 70_000)},
        {"chunked": True, "cut_after": rng.randrange(1, 70_000)},
        {"headers": {"Content-Encoding": "gzip"}},
        {"wrong_start": rng.choice([-1, 1, 9])},
    ]
    server.faults = {file: Fault(times=rng.choice([1, 1, 2, 3, math.inf]), abrupt=True, **rng.choice(kinds))}
    options = {"splits": [split]} if dataset == DAPFAM else {}
    found = []
    try:
        one = getattr(MODULES[dataset], dataset)(config_name="corpus", data_dir=server.url, **options)
        for row in one.as_streaming_dataset()[split]:
            found.append(row)
        whole = True
    except UPSTREAM_ERRORS as error:
        whole = False
        assert server.url in str(error) and "\n" not in str(error), error
    assert found == (rows if whole else rows[: len(found)])


# ---- What is drawn, and how often. ----


class Kind(NamedTuple):
    strategy: st.SearchStrategy
    check: Callable[[object], None]
    share: float  # of the inputs of `make fuzz`
    in_suite: int  # inputs


KINDS = {
    "pages, read by both readers": Kind(json_files, check_block, 0.4, 1000),
    "files of pages": Kind(json_files, check_pages, 0.2, 280),
    "files of judgments": Kind(qrel_files, check_qrels, 0.1, 200),
    "tables of families": Kind(families, lambda tables: check_families(*tables), 0.05, 80),
    "damaged files": Kind(st.integers(0, 2**64), check_damaged, 0.25, 450),
}


def apart(run: Callable[[], object]) -> str:
    """What was wrong with a run in a process of its own, or "": some input has ended the interpreter."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        wrong = "it did not return"
        try:
            run()
            wrong = ""
        except BaseException as error:
            notes = " ".join(getattr(error, "__notes__", []))
            wrong = f"{type(error).__name__}: {str(error)[:1000]} {notes[:1000]}"
        finally:
            os.write(writer, f"{wrong}\n".encode("utf-8", "replace"))
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    return said[:-1] if said else f"the interpreter died of signal {os.WTERMSIG(status)}"


def draw(name: str, inputs: int, seed: int | None = None) -> tuple[int, str]:
    """(inputs tried, what was wrong or "") of so many of a kind, in a process of its own.

    Without a seed they are always the same. Where one fails, hypothesis looks for the smallest that does.
    """
    strategy, check, _, _ = KINDS[name]
    record = folder() / "tried"
    record.write_bytes(b"")

    def run():
        tried = 0
        with open(record, "r+b", buffering=0) as file:

            def noted(drawn):
                nonlocal tried
                tried += 1
                file.seek(0)
                file.write(f"{tried:9} {drawn!r:.2000}".encode("utf-8", "replace").ljust(2009))
                check(drawn)

            drawing = settings(DRAWN, max_examples=inputs, derandomize=seed is None)(given(strategy)(noted))
            (drawing if seed is None else hypothesis.seed(seed)(drawing))()

    wrong = apart(run)
    tried, _, last = record.read_text("utf-8", "replace").strip().partition(" ")
    return int(tried or 0), f"{wrong}, at {last.strip()}" if wrong else ""


# ---- make fuzz. ----


def report(name: str, count: object, since: float) -> None:
    print(f"{name:<36} {count:>9} {time.monotonic() - since:>7.0f} s", flush=True)


def draw_all(inputs: int, minutes: float, seed: int) -> Iterator[str]:
    """Draws of every kind; what was wrong, one a kind. Time that one leaves over goes to the next."""
    begun, total, share = time.monotonic(), 0, 0.0
    for name, kind in KINDS.items():
        since, tried, wrong, share = time.monotonic(), 0, "", share + kind.share
        wanted, end = round(inputs * kind.share), begun + 60 * minutes * share
        while not wrong and tried < wanted and time.monotonic() < end:
            seed += 1
            count, wrong = draw(name, min(1000, wanted - tried), seed)
            tried += count
        report(name, f"{tried:,}", since)
        total += tried
        if wrong:
            yield f"{name}, seed {seed}: {wrong}"
    report("inputs tried", f"{total:,}", begun)


def break_connections(connections: int, seed: int) -> Iterator[str]:
    since, sleep, injected = time.monotonic(), time.sleep, 0
    for module in MODULES.values():
        module.RETRIES, module.STALL = 2, 1.0
        module.logger.setLevel("ERROR")
    time.sleep = lambda seconds: sleep(min(seconds, 0.001))
    for number in range(seed, seed + connections):
        try:
            check_connection(number)
        except Exception as error:
            yield f"broken connections, seed {number}: {error!r:.600}"
            break
        injected += 1
    time.sleep = sleep
    report("faults injected", f"{injected:,}", since)


def kill_runs(kills: int, seed: int) -> Iterator[str]:
    since, survived = time.monotonic(), 0
    write_sample(folder() / "sample")
    found = crashes.drive([*crashes.COMMANDS, *crashes.LOADS], folder() / "sample", kills, kills, seed)
    for what, of_kills in found.items():
        yield from (f"{what}: {wrong}" for wrong in of_kills["wrong"])
        survived += 0 if of_kills["wrong"] else of_kills["killed"]
    report("crashes survived", f"{survived:,}", since)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=30, help="for the inputs; what is left then is not tried")
    parser.add_argument("--connections", type=int, default=1000, help="that are broken")
    parser.add_argument("--kills", type=int, default=100, help="of each command")
    parser.add_argument("--seed", type=int, default=20260524)
    arguments = parser.parse_args()
    failures = [
        *draw_all(arguments.inputs, arguments.minutes, arguments.seed),
        *break_connections(arguments.connections, arguments.seed),
        *(kill_runs(arguments.kills, arguments.seed) if arguments.kills else ()),
    ]
    print(f"{'rows lost':<36} {'see below' if failures else 0:>9}", *failures, sep="\n")
    conftest.pytest_unconfigure()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
