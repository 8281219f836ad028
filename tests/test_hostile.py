"""Hostile input: the rule's rows or one clear error, whatever is in the files."""

import gzip
import json
import threading
from functools import partial, wraps

import fuzz
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
import reading
from fuzz import DAPFAM, SPLIT

import Poetry50KRetrieval as Poetry

pytestmark = pytest.mark.once
PAGE = {"book": "b", "page": 1, "score": 1, "text": "t"}
# Seeds of damage that was not taken well once: each is an exception of another kind, or the interpreter's end.
DAMAGE = [45, 3158, 6335, 6519, 100726, 102090, 1491850769]


def in_its_own_process(test):
    """Some of what is tested here has ended the interpreter, by an exception in C++ that nothing catches."""

    @wraps(test)
    def run(*arguments, **fixtures):
        fuzz.folder()
        assert fuzz.apart(partial(test, *arguments, **fixtures)) == ""

    return run


# ---- Drawn. ----


@pytest.mark.parametrize("name", fuzz.KINDS)
def test_drawn_input_gives_the_rules_rows_or_one_error(name):
    """Nor does it end the interpreter, which is why it is read in another."""
    inputs = fuzz.KINDS[name].in_suite
    tried, wrong = fuzz.draw(name, inputs)
    assert wrong == ""
    assert tried >= inputs


@pytest.mark.parametrize("seed", DAMAGE)
def test_damage_that_was_once_not_taken_well(seed):
    fuzz.good_files()
    assert fuzz.apart(lambda: fuzz.check_damaged(seed)) == ""


@pytest.mark.parametrize("seed", range(12))
def test_random_faults_of_a_connection_lose_no_row(monkeypatch, seed):
    for module in fuzz.MODULES.values():
        monkeypatch.setattr(module, "RETRIES", 2)
        monkeypatch.setattr(module, "STALL", 0.05)
    fuzz.check_connection(seed)


# ---- The fast JSON reader, against the row reader. ----

LINE = json.dumps({**PAGE, "duplicates": ["c/1"]}).encode()
BLOCKS = {
    "second byte order mark": b"\xef\xbb\xbf" + LINE,
    "invalid UTF-8 in a field besides": LINE[:-1] + b', "x": "\xff"}',
    "invalid UTF-8 in the name of a field": LINE[:-1] + b', "\xff": 1}',
    "NUL behind the last page": LINE + b"\n" + LINE + b"\x00" + LINE,
    "a field twice": LINE[:-1] + b', "book": "z"}',
    "a field besides twice": LINE[:-1] + b', "x": 1, "x": 2}',
    "escaped field name": LINE.replace(b'"book"', b'"bo\\u006fk"'),
    "field name with NUL": LINE[:-1] + b', "book\\u0000": "z"}',
    "not a number besides": LINE[:-1] + b', "x": NaN}',
    "page -0": LINE.replace(b'"page": 1', b'"page": -0'),
    "page 01": LINE.replace(b'"page": 1', b'"page": 01'),
    "page 1e0": LINE.replace(b'"page": 1', b'"page": 1e0'),
    "score -0": LINE.replace(b'"score": 1', b'"score": -0'),
    "score of 300 digits": LINE.replace(b'"score": 1', b'"score": ' + b"1" * 300),
    "score of 400 digits": LINE.replace(b'"score": 1', b'"score": ' + b"1" * 400),
    "smallest score": LINE.replace(b'"score": 1', b'"score": 4.9e-324'),
    "hardest score": LINE.replace(b'"score": 1', b'"score": 2.2250738585072011e-308'),
    "control character": LINE.replace(b'"t"', b'"a\x01"'),
    "surrogate pair": LINE.replace(b'"t"', b'"\\ud83d\\udca9"'),
    "lone surrogate besides": LINE[:-1] + b', "x": "\\ud800"}',
    "carriage returns": LINE + b"\r\n" + LINE + b"\r\n",
    "blank line": LINE + b"\n\n" + LINE,
    "two on one line, one on two": LINE + LINE + b'\n{"book":\n"b", "page": 2, "text": "t"}',
    "null": b"null",
    "null before a page": b"null" + LINE,
    "null with white space": b" \t null\r",
    "null behind a page": LINE + b" null",
    "null between pages": LINE + b"\nnull\n" + LINE,
    "comment": LINE + b" // comment",
    "DEL and C1": LINE.replace(b'"t"', '"\x7f\x85"'.encode()),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_fast_reader_says_what_the_row_reader_says_or_nothing(name):
    fuzz.folder()
    for block in (BLOCKS[name], BLOCKS[name] + b"\n"):
        assert fuzz.apart(partial(fuzz.check_block, block)) == ""
        assert fuzz.apart(partial(fuzz.check_pages, block)) == ""


def test_the_fast_reader_takes_what_upstream_has():
    """Or the comparison above would say nothing."""
    lines = b"\n".join(json.dumps({**PAGE, "page": n, "text": t}).encode() for n, t in enumerate(fuzz.STRANGE))
    assert len(Poetry.parse_block(lines)) == len(fuzz.STRANGE)
    fuzz.check_block(lines)


@pytest.mark.parametrize("text", ["x" * 1_000_000, "\t\U0001f4a9" * 100_000, "\\" * 300_000, "\0" * 100_000])
def test_lines_of_a_megabyte(text):
    pages = [{**PAGE, "page": page, "text": text[page:]} for page in range(3)]
    fuzz.check_pages(b"\n".join(json.dumps(page, ensure_ascii=False).encode() for page in pages))


def test_a_line_longer_than_any_block():
    pages = [{**PAGE, "page": page, "text": "x" * (9_000_000 if page == 1 else 9)} for page in range(3)]
    fuzz.check_pages(b"\n".join(json.dumps(page).encode() for page in pages))


def test_composed_and_decomposed_letters_are_different_pages():
    books = ["\u00e9", "e\u0301", "\u212b"]
    fuzz.check_pages(b"\n".join(json.dumps({**PAGE, "book": book}).encode() for book in books))


def test_a_gzip_that_unpacks_to_a_thousand_times_its_size_is_read_in_pieces(run_python, tmp_path):
    """Of 200 MB of blank lines some blocks are in memory, no more."""
    page, blank = b'{"book": "b", "page": 1, "text": "t"}\n', b" " * 999_999 + b"\n"
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(page) + 200 * gzip.compress(blank))
    code = """
    import resource, sys
    import Poetry50KRetrieval
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(sum(len(table) for table in Poetry50KRetrieval.read_pages(sys.argv[1])))
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
    """
    rows, megabytes = map(int, run_python(code, tmp_path / "bomb.gz"))
    assert rows == 1 and megabytes < 120


# ---- Parquet that pyarrow's own strategies do not draw. ----

GOOD = ([("d0", "t", "a"), ("d1", "u", None)], [("q0", "t", "a")], [("q0", "d1", 1.0, "IN")])


@pytest.fixture
def tables():
    return reading.dapfam_tables(*GOOD)


def read_all(tables, **options):
    reading.write_dapfam(fuzz.folder(), tables, **options)
    return {config: fuzz.read(DAPFAM, config) for config in ("queries", "corpus", "qrels")}


@pytest.mark.parametrize("file", ["corpus.parquet", "queries.parquet", "qrels_all.parquet"])
def test_no_row_groups_are_no_rows(tables, file):
    right = {**tables, file: tables[file].slice(0, 0)}
    with pq.ParquetWriter(fuzz.folder() / file, tables[file].schema):
        pass
    assert pq.ParquetFile(fuzz.folder() / file).num_row_groups == 0
    empty = (fuzz.folder() / file).read_bytes()
    reading.write_dapfam(fuzz.folder(), {name: table for name, table in tables.items() if name != file})
    (fuzz.folder() / file).write_bytes(empty)
    found = {config: fuzz.read(DAPFAM, config) for config in ("queries", "corpus", "qrels")}
    reading.write_dapfam(fuzz.folder() / "plain", right)
    assert found == reading.dapfam(fuzz.folder() / "plain", SPLIT)


@pytest.mark.parametrize("file", ["corpus.parquet", "queries.parquet", "qrels_all.parquet"])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_column_that_is_there_twice_is_refused(tables, file, column):
    name = tables[file].column_names[column]
    found = read_all({**tables, file: tables[file].append_column(name, tables[file][name])})
    refused = found["queries" if file != "corpus.parquet" else "corpus"]
    assert isinstance(refused, str) and name in refused and file in refused


@pytest.mark.parametrize("label", ["in", "Out", " IN", "", None, "\u0399N"])
def test_a_positive_of_another_label_is_refused(tables, label):
    """'in' may mean IN, but a silent guess could be wrong, and dropping it would be."""
    relations = reading.dapfam_tables([], [], [("q0", "d1", 1.0, label)])["qrels_all.parquet"]
    found = read_all({**tables, "qrels_all.parquet": relations})
    assert all(isinstance(error, str) and "'IN' or 'OUT'" in error for error in found.values())


def with_relevance(tables, scores):
    relations = tables["qrels_all.parquet"].set_column(2, "relevance_score", scores)
    return read_all({**tables, "qrels_all.parquet": relations})


LARGEST = {
    **{pa.int64(): 2**63 - 1, pa.uint64(): 2**64 - 1, pa.int8(): 127},
    **{pa.bool_(): True, pa.float16(): 65504.0, pa.float32(): 3e38},
}


@pytest.mark.parametrize("kind", LARGEST)
def test_relevance_of_any_kind_of_number(tables, kind):
    for score in (LARGEST[kind], type(LARGEST[kind])(1)):
        scores = pa.array(np.array([score], kind.to_pandas_dtype()), kind)
        assert with_relevance(tables, scores)["qrels"] == [{"query-id": "q0", "corpus-id": "d1"}]


@pytest.mark.parametrize("kind", [pa.decimal128(5, 2), pa.date32(), pa.duration("s"), pa.string(), pa.list_(pa.int8())])
def test_relevance_that_is_no_number_is_refused(tables, kind):
    found = with_relevance(tables, pa.array([None], kind))
    assert all(isinstance(error, str) and "relevance_score" in error for error in found.values())


@in_its_own_process
def test_an_encrypted_file_is_refused(tables):
    class Kms(encryption.KmsClient):
        def __init__(self, configuration):
            super().__init__()

        def wrap_key(self, key_bytes, master_key_identifier):
            return key_bytes.hex().encode()

        def unwrap_key(self, wrapped_key, master_key_identifier):
            return bytes.fromhex(wrapped_key.decode())

    for plaintext_footer in (False, True):
        reading.write_dapfam(fuzz.folder(), tables)
        configuration = encryption.EncryptionConfiguration(
            footer_key="f", column_keys={"c": ["query_id", "title_en"]}, plaintext_footer=plaintext_footer
        )
        properties = encryption.CryptoFactory(Kms).file_encryption_properties(
            encryption.KmsConnectionConfig(), configuration
        )
        table, path = tables["queries.parquet"], fuzz.folder() / "queries.parquet"
        with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
            writer.write_table(table)
        found = fuzz.read(DAPFAM, "queries")
        assert isinstance(found, str) and "queries.parquet" in found


def varint(number):
    encoded = b""
    while number > 127:
        encoded, number = encoded + bytes([number & 127 | 128]), number >> 7
    return encoded + bytes([number])


@pytest.mark.parametrize("column", range(3))
@pytest.mark.parametrize("claimed", [2**31 - 1, 2**30, 0])
@in_its_own_process
def test_a_page_that_claims_another_size_is_refused(tables, column, claimed):
    """The size of the data, in the header of a page, after the type of the page: thrift's compact protocol."""
    reading.write_dapfam(fuzz.folder(), tables, compression="snappy", use_dictionary=False)
    path = fuzz.folder() / "queries.parquet"
    content = path.read_bytes()
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(column)
    at = chunk.data_page_offset
    assert content[at : at + 3] == b"\x15\x00\x15"  # type: data page; then uncompressed_page_size
    end = at + 3
    while content[end] & 128:
        end += 1
    header = varint(2 * claimed)  # zigzag
    path.write_bytes(content[: at + 3] + header + content[end + 1 :])
    before = pa.default_memory_pool().max_memory()
    assert isinstance(fuzz.read(DAPFAM, "queries"), str)
    assert pa.default_memory_pool().max_memory() - before <= 1.1 * claimed + (1 << 20)


def test_a_page_of_one_value_repeated_costs_no_memory_beyond_a_batch(tmp_path):
    """A dictionary page makes 60,000 rows of 10,000 letters from 11 kB: 600 MB if they were all unpacked at once."""
    text = "x" * 10_000
    dictionary = pa.DictionaryArray.from_arrays(pa.array(np.zeros(60_000, np.int32)), pa.array([text]))
    ids = pa.array([f"d{number}" for number in range(60_000)])
    nothing = pa.nulls(60_000, pa.string())
    names = ["relevant_id", *reading.VIEWS["FullText"]]
    pq.write_table(pa.table([ids, dictionary, nothing, nothing, nothing], names), tmp_path / "corpus.parquet")
    before = pa.default_memory_pool().max_memory()
    tables = list(fuzz.NanoDAPFAM.select_corpus(f"{tmp_path}/corpus.parquet", "TitlAbs", set(), {}, True))
    assert sum(map(len, tables)) == 1
    assert pa.default_memory_pool().max_memory() - before < 150 << 20


@pytest.mark.once
def test_closing_a_reader_does_not_wait_for_its_thread():
    """Where the garbage collector closes it, within the start of another thread, waiting never ends."""
    closed, ended, in_time = threading.Event(), threading.Event(), []

    def pieces():
        yield 1
        in_time.append(closed.wait(10))
        ended.set()

    reader = Poetry.read_ahead(pieces())
    assert next(reader) == 1
    reader.close()
    closed.set()
    assert ended.wait(20) and in_time == [True]
