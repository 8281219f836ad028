"""What goes over the wire, counted by the server."""

import random

import pyarrow.parquet as pq
import pytest
import reading

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
SPLIT = "NanoDAPFAMAllTitlAbsClmToTitlAbs"
DOCUMENTS = 1500
BOTH = pytest.mark.parametrize("streaming", [False, True])


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """A DAPFAM upstream whose descriptions are 90 % of its corpus file."""
    rng = random.Random(0)

    def text(length):
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=length))

    corpus = [(f"d{number}", text(60), text(350), text(250), text(6000)) for number in range(DOCUMENTS)]
    queries = [(f"q{number}", text(60), text(350), text(300)) for number in range(20)]
    relations = [(f"q{at % 20}", f"d{at * 31 % DOCUMENTS}", 1.0, "IN") for at in range(60)]
    folder = tmp_path_factory.mktemp("described")
    reading.write_dapfam(folder, reading.dapfam_tables(corpus, queries, relations), row_group_size=100)
    return folder


def share(path, column):
    """A column's part of the bytes of a Parquet file."""
    footer = pq.ParquetFile(path).metadata
    chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups) for at in range(5)]
    return sum(c.total_compressed_size for c in chunks if c.path_in_schema == column) / path.stat().st_size


@BOTH
def test_title_and_abstract_corpus_transfers_less_than_15_percent(load, serve, described, streaming):
    server, path = serve(described), described / "corpus.parquet"
    assert 0.89 < share(path, "description_en") < 0.91
    found = load(DAPFAM, "corpus", server.url, splits=[SPLIT], streaming=streaming)
    assert reading.first_difference(found, reading.expected(DAPFAM, "corpus", described, [SPLIT])) is None
    gets = server.gets("/corpus.parquet")
    assert all(get.ranged for get in gets)
    assert sum(get.sent for get in gets) < 0.15 * path.stat().st_size


@BOTH
def test_qrels_transfer_no_more_than_the_corpus(load, serve, described, streaming):
    server, path = serve(described), described / "corpus.parquet"
    found = load(DAPFAM, "qrels", server.url, splits=[SPLIT], streaming=streaming)
    assert reading.first_difference(found, reading.expected(DAPFAM, "qrels", described, [SPLIT])) is None
    assert sum(get.sent for get in server.gets("/corpus.parquet")) < 0.15 * path.stat().st_size


@BOTH
def test_queries_do_not_touch_the_corpus(load, serve, described, streaming):
    server = serve(described)
    load(DAPFAM, "queries", server.url, splits=[SPLIT], streaming=streaming)
    assert server.gets("/corpus.parquet") == []


@BOTH
@pytest.mark.parametrize("ranges", ["none", ""])
def test_without_ranges_the_corpus_is_downloaded_once(load, serve, described, ranges, streaming):
    server, size = serve(described, ranges=ranges), (described / "corpus.parquet").stat().st_size
    found = load(DAPFAM, "corpus", server.url, splits=[SPLIT], streaming=streaming)
    assert reading.first_difference(found, reading.expected(DAPFAM, "corpus", described, [SPLIT])) is None
    assert [get.sent for get in server.gets("/corpus.parquet")].count(size) == 1


@BOTH
@pytest.mark.parametrize("ranges", ["bytes", ""])
def test_poetry_corpus_is_one_get(load, serve, sample, ranges, streaming):
    server = serve(sample / "poetry", ranges=ranges)
    found = load(POETRY, "corpus", server.url, streaming=streaming)
    assert reading.first_difference(found, reading.expected(POETRY, "corpus", sample / "poetry")) is None
    gets = [request for request in server.requests if request.method == "GET"]
    assert [(get.path, get.ranged) for get in gets] == [(f"/{reading.CORPUS_GZ}", False)]
    assert gets[0].sent == (sample / "poetry" / reading.CORPUS_GZ).stat().st_size


@BOTH
@pytest.mark.parametrize(
    ("dataset", "config", "missing"),
    [
        (POETRY, "corpus", reading.CORPUS_GZ),
        (POETRY, "qrels_max", "mturk.max.qrel"),
        (DAPFAM, "corpus", "corpus.parquet"),
        (DAPFAM, "queries", "queries.parquet"),
        (DAPFAM, "qrels", "qrels_all.parquet"),
    ],
)
def test_404_names_the_url(load, serve, tmp_path, sample, dataset, config, missing, streaming):
    folder = sample / ("poetry" if dataset == POETRY else "dapfam")
    for path in folder.iterdir():
        if path.name != missing:
            (tmp_path / path.name).symlink_to(path)
    server = serve(tmp_path)
    with pytest.raises((ValueError, OSError)) as caught:
        load(dataset, config, server.url, streaming=streaming)
    assert f"{server.url}/{missing}" in str(caught.value)


@BOTH
def test_no_password_of_a_url_is_shown(load, serve, tmp_path, streaming):
    url = serve(tmp_path).url.replace("http://", "http://reader:secret@")
    with pytest.raises((ValueError, OSError), match=reading.CORPUS_GZ) as caught:
        load(POETRY, "corpus", url, streaming=streaming)
    assert "secret" not in str(caught.value)


@BOTH
def test_a_server_that_is_away_is_one_clear_error(load, serve, tmp_path, streaming):
    server = serve(tmp_path)
    server.stop()
    with pytest.raises((ValueError, OSError)) as caught:
        load(POETRY, "corpus", server.url, streaming=streaming)
    assert f"{server.url}/{reading.CORPUS_GZ}" in str(caught.value)
