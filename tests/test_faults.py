"""Networks that fail: what passes is repaired without a row lost, doubled or moved; the rest is one clear error."""

import gzip
import logging
import os
import re
import shutil
import time
import traceback
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
import reading
from conftest import ROOT
from faults import Fault, FaultServer, write_upstreams

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
SPLIT = "NanoDAPFAMAllTitlAbsClmToFullText"
GZ = reading.CORPUS_GZ
RETRIES, STALL = 2, 3.0  # in the copies of the scripts
SHORT_STALL = 0.3  # in those that a silent server is tested with
CUT = {POETRY: 100_000, DAPFAM: 10_000}  # bytes after which a connection is cut: less than the largest answers
FIRST_BACKOFF = 0.5  # seconds of the scripts' first wait; the next are twice as long each

BOTH = pytest.mark.parametrize("streaming", [False, True], ids=["built", "streamed"])


class Subject(NamedTuple):
    dataset: str
    config: str
    file: str  # what the fault befalls

    @property
    def options(self):
        return {"splits": [SPLIT]} if self.dataset == DAPFAM else {}


PAGES = Subject(POETRY, "corpus", GZ)
JUDGED = Subject(POETRY, "qrels_max", GZ)
JUDGMENTS = Subject(POETRY, "qrels_min", "mturk.min.qrel")
DOCUMENTS = Subject(DAPFAM, "corpus", "corpus.parquet")
CITED = Subject(DAPFAM, "qrels", "corpus.parquet")
QUERIES = Subject(DAPFAM, "queries", "queries.parquet")
RELATIONS = Subject(DAPFAM, "queries", "qrels_all.parquet")
LARGE, SMALL = [PAGES, DOCUMENTS], [JUDGMENTS, RELATIONS]


def each(*subjects):
    return pytest.mark.parametrize(
        "subject", subjects, ids=["-".join([subject.config, subject.file]) for subject in subjects]
    )


def folder_of(dataset):
    return "poetry" if dataset == POETRY else "dapfam"


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    write_upstreams(folder)
    assert (folder / "poetry" / GZ).stat().st_size > 3 * CUT[POETRY]
    assert (folder / "dapfam" / "corpus.parquet").stat().st_size > 3 * CUT[DAPFAM]
    return folder


@pytest.fixture(scope="module")
def right(clean):
    """(subject) -> {split: rows} of the clean files."""
    known = {}

    def rows(subject):
        key = (subject.dataset, subject.config)
        if key not in known:
            known[key] = reading.expected(*key, clean / folder_of(subject.dataset), [SPLIT])
        return known[key]

    return rows


def copy_scripts(folder, stall=STALL, **constants):
    """Both scripts, with less patience; `constants` are written as strings."""
    folder.mkdir()
    for dataset in (POETRY, DAPFAM):
        source = (ROOT / f"{dataset}.py").read_text("utf-8")
        source, count = re.subn(r"^RETRIES, STALL = .*$", f"RETRIES, STALL = {RETRIES}, {stall}", source, flags=re.M)
        assert count == 1
        for name, value in constants.items():
            source = re.sub(rf'^{name} = ".*"$', f'{name} = "{value}"', source, flags=re.M)
        (folder / f"{dataset}.py").write_text(source, "utf-8")
    return folder


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    return copy_scripts(tmp_path_factory.mktemp("scripts") / "impatient", SHORT_STALL)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    return copy_scripts(tmp_path_factory.mktemp("scripts") / "copies")


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Seconds that were slept; none takes longer than a moment here."""
    slept, sleep = [], time.sleep

    def nap(seconds):
        slept.append(seconds)
        sleep(min(seconds, 0.002))

    monkeypatch.setattr(time, "sleep", nap)
    return slept


@pytest.fixture
def serve_faults(clean):
    """(dataset, faults) -> a running FaultServer of the clean files; all stop with the test."""
    servers = []

    def start(dataset, faults=None, folder=None, **options):
        servers.append(FaultServer(folder or clean / folder_of(dataset), faults, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def attempt(open_splits, scripts, tmp_path):
    """(subject, url, streaming) -> ({split: rows}, the exception or None); streamed rows are those before it."""

    def load(subject, url, streaming, folder=scripts, **options):
        rows = {}
        options = {**subject.options, "cache_dir": str(tmp_path / "cache"), **options}
        try:
            splits = open_splits(subject.dataset, subject.config, url, streaming=streaming, folder=folder, **options)
            for split, examples in splits.items():
                rows[split] = []
                for example in examples:
                    rows[split].append(example)
        except Exception as error:
            return rows, error
        return rows, None

    return load


def check_repaired(result, right_rows):
    rows, error = result
    assert error is None, error
    assert reading.first_difference(rows, right_rows) is None


def check_refused(result, right_rows, url, words=()):
    """One UpstreamError in one line, that names the URL and what was wrong; what came before it was right."""
    rows, error = result
    assert type(error).__name__ == "UpstreamError", "".join(traceback.format_exception(error)) if error else rows
    message = str(error)
    assert "\n" not in message and len(message) < 500
    assert url in message
    for word in words:
        assert re.search(word, message), message
    for split in rows:
        assert rows[split] == right_rows[split][: len(rows[split])]


# ---- What is repaired. ----


@BOTH
@each(PAGES, JUDGED, DOCUMENTS, CITED)
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_cut_is_resumed_where_it_stopped(attempt, serve_faults, right, caplog, subject, streaming, reset):
    """The server waits before it cuts, so that what it sent has been read: none of it is asked for again."""
    caplog.set_level(logging.WARNING)
    fault = Fault(times=2, cut_after=CUT[subject.dataset], reset=reset)
    server = serve_faults(subject.dataset, {subject.file: fault})
    check_repaired(attempt(subject, server.url, streaming), right(subject))
    gets = server.gets(f"/{subject.file}")
    cuts = [(cut, then) for cut, then in pairwise(gets) if cut.sent == fault.cut_after]
    assert cuts and fault.befallen == 2
    for cut, then in cuts:
        assert cut.start < then.start <= cut.start + cut.sent, "asked again from where the cut answer began"
        assert then.start == cut.start + cut.sent or reset, "asked again for what was read"
    assert "trying again" in caplog.text and f"{server.url}/{subject.file}" in caplog.text


@BOTH
@each(*LARGE)
def test_a_server_that_cuts_each_answer_makes_progress(attempt, serve_faults, right, subject, streaming):
    """Each answer brings something, so the number of cuts has no limit."""
    server = serve_faults(subject.dataset, {subject.file: Fault(cut_after=40_000)})
    check_repaired(attempt(subject, server.url, streaming), right(subject))
    assert server.faults[subject.file].befallen > RETRIES


@BOTH
@each(*LARGE)
def test_abrupt_cuts_lose_no_row(attempt, serve_faults, right, subject, streaming):
    """What arrives with the cut may not have been read: then there may be no progress, which is one error."""
    server = serve_faults(subject.dataset, {subject.file: Fault(cut_after=CUT[subject.dataset], abrupt=True)})
    result = attempt(subject, server.url, streaming)
    if result[1]:
        check_refused(result, right(subject), f"{server.url}/{subject.file}")
    else:
        check_repaired(result, right(subject))


@BOTH
@each(*LARGE, QUERIES)
def test_a_cut_without_ranges_starts_again_and_skips(attempt, serve_faults, right, subject, streaming):
    server = serve_faults(subject.dataset, {subject.file: Fault(times=1, cut_after=3000, ranges=False)})
    server.after[subject.file] = Fault(ranges=False)
    check_repaired(attempt(subject, server.url, streaming), right(subject))
    gets = server.gets(f"/{subject.file}")
    assert {get.status for get in gets} == {200} and gets[0].sent == 3000


@BOTH
@each(*LARGE)
def test_a_cut_of_a_chunked_answer_is_resumed(attempt, serve_faults, right, subject, streaming):
    """No Content-Length: only the end of the chunks says that all came."""
    fault = Fault(times=1, cut_after=CUT[subject.dataset], chunked=True)
    server = serve_faults(subject.dataset, {subject.file: fault})
    check_repaired(attempt(subject, server.url, streaming), right(subject))
    assert fault.befallen


@BOTH
@each(*LARGE)
@pytest.mark.parametrize("fault", [Fault(times=1, silent=True), Fault(times=1, cut_after=500, stall=True)])
def test_a_stall_is_waited_for_and_resumed(attempt, serve_faults, right, impatient, subject, streaming, fault):
    server = serve_faults(subject.dataset, {subject.file: replace(fault)})
    begun = time.monotonic()
    check_repaired(attempt(subject, server.url, streaming, folder=impatient), right(subject))
    assert time.monotonic() - begun > SHORT_STALL * 0.9


def check_asked_again(attempt, server, right_rows, subject, streaming, waits):
    check_repaired(attempt(subject, server.url, streaming), right_rows)
    assert server.faults[subject.file].befallen == RETRIES
    backoff = [min(STALL, FIRST_BACKOFF * 2**n) for n in range(RETRIES)]
    assert [wait for wait in waits if wait >= FIRST_BACKOFF] == backoff


@BOTH
@each(*LARGE, *SMALL)
@pytest.mark.parametrize(("status", "method"), [(429, "GET"), (500, "GET"), (503, "GET"), (503, "HEAD")])
def test_a_busy_server_is_asked_again(attempt, serve_faults, right, waits, subject, streaming, status, method):
    fault = Fault(times=RETRIES, status=status, methods=(method,))
    server = serve_faults(subject.dataset, {subject.file: fault})
    check_asked_again(attempt, server, right(subject), subject, streaming, waits)


@pytest.mark.parametrize("status", [408, 502, 504])
def test_other_statuses_that_pass(attempt, serve_faults, right, waits, status):
    server = serve_faults(DAPFAM, {RELATIONS.file: Fault(times=RETRIES, status=status)})
    check_asked_again(attempt, server, right(RELATIONS), RELATIONS, True, waits)


@BOTH
@pytest.mark.parametrize(
    ("subject", "retry_after", "wait"),
    [
        (PAGES, "0", 0.0),
        (DOCUMENTS, "0", 0.0),
        (PAGES, "1", 1.0),
        (RELATIONS, "1", 1.0),
        (JUDGMENTS, "9" * 30, STALL),
    ],
)
def test_retry_after_is_respected_up_to_the_limit(
    attempt, serve_faults, right, waits, subject, streaming, retry_after, wait
):
    fault = Fault(times=1, status=429, headers={"Retry-After": retry_after})
    server = serve_faults(subject.dataset, {subject.file: fault})
    check_repaired(attempt(subject, server.url, streaming), right(subject))
    assert wait in waits


@pytest.mark.parametrize(
    "retry_after", ["soon", "-1", "\u00b2".encode().decode("latin-1"), "Fri, 01 Jan 2038 00:00:00 GMT", ""]
)
def test_a_strange_retry_after_is_no_matter(attempt, serve_faults, right, retry_after):
    fault = Fault(times=1, status=429, headers={"Retry-After": retry_after})
    server = serve_faults(DAPFAM, {RELATIONS.file: fault})
    check_repaired(attempt(RELATIONS, server.url, True), right(RELATIONS))


@BOTH
@each(PAGES, JUDGED)
def test_content_labelled_as_an_encoding_is_taken_as_it_is(attempt, serve_faults, right, subject, streaming):
    """Apache calls the gzip of a .gz file an encoding of the file without it."""
    server = serve_faults(POETRY, {GZ: Fault(headers={"Content-Encoding": "gzip"}, methods=("GET", "HEAD"))})
    check_repaired(attempt(subject, server.url, streaming), right(subject))


@BOTH
@each(*LARGE, *SMALL)
@pytest.mark.parametrize("status", [302, 307])
def test_redirects_to_http_are_followed(attempt, serve_faults, right, subject, streaming, status):
    there = serve_faults(subject.dataset)
    location = {"Location": f"{there.url}/{subject.file}"}
    fault = Fault(status=status, headers=location, methods=("GET", "HEAD"))
    server = serve_faults(subject.dataset, {subject.file: fault})
    check_repaired(attempt(subject, server.url, streaming), right(subject))
    assert there.gets(f"/{subject.file}")


# ---- What is refused. ----

HTML = b"<!DOCTYPE html>\n<html><title>Sign in</title><body>Please sign in to continue</body></html>\n"
CHANGED = ["changed on the server", "load again"]


@BOTH
@each(*LARGE)
def test_a_cut_that_is_always_at_the_same_byte_is_given_up(attempt, serve_faults, right, waits, subject, streaming):
    cut = CUT[subject.dataset]
    server = serve_faults(subject.dataset, {subject.file: Fault(cut_at=cut)})
    result = attempt(subject, server.url, streaming)
    check_refused(result, right(subject), f"{server.url}/{subject.file}", ["Payload|Disconnect"])
    assert len([get for get in server.gets(f"/{subject.file}") if get.start == cut]) <= RETRIES + 1
    assert 1 <= sum(wait >= FIRST_BACKOFF for wait in waits) <= RETRIES + 2


@pytest.mark.parametrize(
    ("subject", "streaming", "fault"),
    [
        (PAGES, True, Fault(silent=True)),
        (DOCUMENTS, False, Fault(silent=True)),
        (PAGES, False, Fault(cut_at=500, stall=True)),
        (DOCUMENTS, True, Fault(cut_at=500, stall=True)),
    ],
)
def test_a_server_that_stays_silent_is_given_up(attempt, serve_faults, right, impatient, subject, streaming, fault):
    server = serve_faults(subject.dataset, {subject.file: replace(fault)})
    result = attempt(subject, server.url, streaming, folder=impatient)
    check_refused(result, right(subject), f"{server.url}/{subject.file}", ["[Tt]ime"])
    assert len(server.gets(f"/{subject.file}")) <= RETRIES + 3


@BOTH
@each(*LARGE, *SMALL)
@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (429, 3), (500, 3), (503, 3)])
def test_a_status_that_stays_is_named(attempt, serve_faults, right, subject, streaming, status, requests):
    methods = ("GET",) if subject in LARGE else ("GET", "HEAD")
    server = serve_faults(subject.dataset, {subject.file: Fault(status=status, methods=methods)})
    result = attempt(subject, server.url, streaming)
    words = ["there is no such file"] if status == 404 else [rf"\b{status}\b"]
    check_refused(result, right(subject), f"{server.url}/{subject.file}", words)
    for method in ("GET", "HEAD"):
        asked = [asked for asked in server.requests if (asked.method, asked.path) == (method, f"/{subject.file}")]
        assert len(asked) <= requests


@BOTH
@each(*LARGE, *SMALL)
@pytest.mark.parametrize("lie", [1, 5000])
def test_more_promised_than_sent_is_refused(attempt, serve_faults, right, subject, streaming, lie):
    fault = Fault(length_lie=lie, whole_size_lie=lie, methods=("GET", "HEAD"))
    server = serve_faults(subject.dataset, {subject.file: fault})
    check_refused(attempt(subject, server.url, streaming), right(subject), f"{server.url}/{subject.file}")


@BOTH
@each(*LARGE, QUERIES)
@pytest.mark.parametrize("lie", [-1, -5000])
def test_less_promised_than_there_is_is_refused(attempt, serve_faults, right, subject, streaming, lie):
    """Without ranges: the answer's length is all that is known. (Plain text can show a cut within a line only.)"""
    fault = Fault(length_lie=lie, ranges=False, methods=("GET", "HEAD"))
    server = serve_faults(subject.dataset, {subject.file: fault})
    check_refused(attempt(subject, server.url, streaming), right(subject), f"{server.url}/{subject.file}")


@BOTH
@each(*LARGE)
def test_another_range_than_asked_for_is_refused(attempt, serve_faults, right, subject, streaming):
    server = serve_faults(subject.dataset, {subject.file: Fault(times=1, cut_after=CUT[subject.dataset])})
    server.after[subject.file] = Fault(wrong_start=7)
    result = attempt(subject, server.url, streaming)
    check_refused(result, right(subject), f"{server.url}/{subject.file}", ["asked for byte", "sent"])


@BOTH
@each(*LARGE)
@pytest.mark.parametrize("content_range", ["", "bytes 1-2", "bytes 9" + "9" * 5000 + "-9/9"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_part_that_does_not_say_which_is_refused(
    attempt, serve_faults, right, subject, streaming, content_range, chunked
):
    server = serve_faults(subject.dataset, {subject.file: Fault(times=1, cut_after=CUT[subject.dataset])})
    server.after[subject.file] = Fault(headers={"Content-Range": content_range}, chunked=chunked)
    result = attempt(subject, server.url, streaming)
    check_refused(result, right(subject), f"{server.url}/{subject.file}", ["Content-Range"])


OTHER_CONTENT = [
    (subject, kind)
    for subject in (PAGES, JUDGMENTS, DOCUMENTS, QUERIES, RELATIONS)
    for kind in ("html", "empty", "truncated", "doubly compressed")
    if subject is not JUDGMENTS or kind in ("html", "doubly compressed")  # fewer lines of text are a good file
]


@BOTH
@pytest.mark.parametrize(
    ("subject", "kind"),
    OTHER_CONTENT,
    ids=[f"{subject.config}-{subject.file}-{kind}" for subject, kind in OTHER_CONTENT],
)
def test_something_else_with_status_200_is_refused(attempt, serve_faults, right, clean, subject, streaming, kind):
    content = (clean / folder_of(subject.dataset) / subject.file).read_bytes()
    other = {"html": HTML, "empty": b"", "truncated": content[: len(content) // 2 + 1]}
    fault = Fault(content=other.get(kind, gzip.compress(content)), methods=("GET", "HEAD"))
    if kind == "doubly compressed":
        fault.headers["Content-Encoding"] = "gzip"
    server = serve_faults(subject.dataset, {subject.file: fault})
    check_refused(attempt(subject, server.url, streaming), right(subject), f"{server.url}/{subject.file}")


@BOTH
@each(*LARGE, *SMALL)
@pytest.mark.parametrize("scheme", ["file", "ftp", "data", "loop"])
def test_redirects_to_other_schemes_are_refused(attempt, serve_faults, right, clean, subject, streaming, scheme):
    path = clean / folder_of(subject.dataset) / subject.file
    location = {
        "file": path.as_uri(),
        "ftp": f"ftp://127.0.0.1/{subject.file}",
        "data": "data:text/plain,x",
        "loop": f"/{subject.file}",
    }[scheme]
    methods = ("GET",) if subject in LARGE else ("GET", "HEAD")
    fault = Fault(status=302, headers={"Location": location}, methods=methods)
    server = serve_faults(subject.dataset, {subject.file: fault})
    check_refused(attempt(subject, server.url, streaming), right(subject), f"{server.url}/{subject.file}")


@each(JUDGMENTS, RELATIONS)
@pytest.mark.parametrize("scheme", ["file", "ftp"])
def test_the_official_address_may_not_redirect_to_another_scheme(
    attempt, serve_faults, clean, tmp_path, subject, scheme
):
    """Here the library downloads, and its error is the user's."""
    path = clean / folder_of(subject.dataset) / subject.file
    location = {"file": path.as_uri(), "ftp": f"ftp://127.0.0.1/{subject.file}"}[scheme]
    fault = Fault(status=302, headers={"Location": location}, methods=("GET", "HEAD"))
    server = serve_faults(subject.dataset, {subject.file: fault})
    folder = copy_scripts(tmp_path / "official", UPSTREAM=server.url)
    rows, error = attempt(subject, None, False, folder=folder)
    assert error is not None and rows == {}


# ---- Files that change. ----


def change_before(server, path, method, number, content, other_time=True):
    """Replaces a file before the `number`th request of a method for it, once."""
    seen = []

    def before(asked):
        if (asked.method, asked.path) == (method, f"/{path.name}"):
            seen.append(asked)
            if len(seen) == number:
                stat = path.stat()
                path.write_bytes(content)
                if other_time:
                    os.utime(path, (stat.st_atime, stat.st_mtime + 100))

    server.before = before


@pytest.fixture
def changing(clean, tmp_path):
    """(subject) -> (a folder with the clean files, the file's content in another state, that state's folder)."""

    def make(subject, same_size):
        folder = shutil.copytree(clean / folder_of(subject.dataset), tmp_path / "changing")
        other = tmp_path / "other"
        write_upstreams(other, seed=1)
        content = (other / folder_of(subject.dataset) / subject.file).read_bytes()
        size = (folder / subject.file).stat().st_size
        if same_size:  # some bytes more or less: only the marks can tell
            content = (content + bytes(size))[:size]
        return folder, content

    return make


@BOTH
@each(*LARGE)
@pytest.mark.parametrize("mark", ["ETag", "size", "Last-Modified"])
def test_a_file_that_changes_between_two_requests_is_refused(
    attempt, serve_faults, right, changing, subject, streaming, mark
):
    folder, content = changing(subject, same_size=mark != "size")
    if mark == "size":
        content += b"more"
    marks_by = () if mark == "size" else (mark,)
    fault = Fault(times=1, cut_after=CUT[subject.dataset])
    server = serve_faults(subject.dataset, {subject.file: fault}, folder, marks_by=marks_by)
    change_before(server, folder / subject.file, "GET", 2 if subject.dataset == POETRY else 3, content)
    result = attempt(subject, server.url, streaming)
    check_refused(result, right(subject), f"{server.url}/{subject.file}", CHANGED)


@BOTH
@each(JUDGED, RELATIONS, CITED)
def test_what_a_later_load_finds_is_one_state(attempt, serve_faults, changing, clean, tmp_path, subject, streaming):
    """A file that changes between the question for its state and its reading, and then changes back."""
    folder, _ = changing(subject, same_size=False)
    first = (folder / subject.file).read_bytes()
    other = (tmp_path / "other" / folder_of(subject.dataset) / subject.file).read_bytes()
    server = serve_faults(subject.dataset, None, folder)
    change_before(server, folder / subject.file, "GET", 1, other)
    attempt(subject, server.url, streaming)
    server.before = lambda asked: None
    (folder / subject.file).write_bytes(first)
    right_rows = reading.expected(subject.dataset, subject.config, folder, [SPLIT])
    check_repaired(attempt(subject, server.url, streaming), right_rows)


SCOPED = ["NanoDAPFAMAllTitlAbsToTitlAbs", "NanoDAPFAMInTitlAbsToTitlAbs"]
STATES = {  # two upstreams that differ in every file
    "first": reading.dapfam_tables(
        [(f"d{n}", f"title {n}", "first") for n in range(6)],
        [(f"q{n}", f"ask {n}", "first") for n in range(4)],
        [(f"q{n}", f"d{n}", 1.0, "IN") for n in range(3)],
    ),
    "second": reading.dapfam_tables(
        [(f"d{n}", f"title {n}", "other") for n in range(6)],
        [(f"q{n}", f"ask {n}", "other") for n in range(4)],
        [(f"q{n}", f"d{5 - n}", 1.0, "IN") for n in range(1, 4)],
    ),
}


@pytest.mark.parametrize(
    ("config", "file", "streaming"),
    [
        ("corpus", "corpus.parquet", True),
        ("corpus", "corpus.parquet", False),
        ("queries", "queries.parquet", True),
        ("queries", "qrels_all.parquet", False),
        ("qrels", "qrels_all.parquet", True),
        ("corpus", "qrels_all.parquet", True),
    ],
)
def test_splits_and_passes_are_of_one_state(attempt, serve_faults, tmp_path, config, file, streaming):
    """DAPFAM reads a file more than once: all of one state, or an error, wherever the change falls."""
    for state in STATES:
        reading.write_dapfam(tmp_path / state, STATES["first"] | {file: STATES[state][file]})
    states = [reading.expected(DAPFAM, config, tmp_path / state, SCOPED) for state in STATES]
    assert states[0] != states[1]
    subject, wrong = Subject(DAPFAM, config, file), []
    for number in range(1, 40):
        folder = shutil.copytree(tmp_path / "first", tmp_path / f"changing{number}")
        server = serve_faults(DAPFAM, None, folder)
        change_before(server, folder / file, "GET", number, (tmp_path / "second" / file).read_bytes())
        rows, error = attempt(subject, server.url, streaming, splits=SCOPED)
        if error is None and rows not in states:
            wrong.append(f"changed before GET {number}: rows of both states")
        if error is not None and type(error).__name__ != "UpstreamError":
            wrong.append(f"changed before GET {number}: {error!r}")
        if len(server.gets(f"/{file}")) < number:
            break
    assert wrong == []


SECRETS = ["reader:s3cr3t@", "reader:s3c@r3t@", "s3cr3t@", "reader:s3cr3t%40x@"]
LEAKS = [(fault, secret) for fault in ("404", "503", "cut", "away") for secret in SECRETS]
LEAKS += [(fault, SECRETS[0]) for fault in ("403", "html", "redirect")]  # printed in the same way


@pytest.mark.parametrize(("subject", "streaming"), [(PAGES, False), (DOCUMENTS, True)])
@pytest.mark.parametrize(("fault", "secret"), LEAKS)
def test_credentials_are_in_no_error_warning_or_log(
    attempt, serve_faults, caplog, capfd, tmp_path, subject, streaming, secret, fault
):
    caplog.set_level(logging.DEBUG)
    faults = {
        "html": Fault(content=HTML, methods=("GET", "HEAD")),
        "cut": Fault(cut_at=500, abrupt=True),
        "redirect": Fault(status=302, headers={"Location": "ftp://reader:s3cr3t@127.0.0.1/x"}),
    }
    status = int(fault) if fault.isdigit() else None
    server = serve_faults(subject.dataset, {subject.file: faults.get(fault, Fault(status=status))})
    if fault == "away":
        server.stop()
    _, error = attempt(subject, server.url.replace("//", f"//{secret}"), streaming)
    assert type(error).__name__ == "UpstreamError"
    printed = capfd.readouterr()
    known = [str(error), caplog.text, printed.out, printed.err]
    leaked = [text[:300] for text in known if "s3c" in text or "r3t" in text]
    assert leaked == []


@each(PAGES, DOCUMENTS)
def test_credentials_are_not_in_the_traceback_of_an_error(attempt, serve_faults, subject):
    server = serve_faults(subject.dataset, {subject.file: Fault(status=404)})
    _, error = attempt(subject, server.url.replace("//", "//reader:s3cr3t@"), True)
    lines = [line for line in "".join(traceback.format_exception(error)).splitlines() if "s3cr3t" in line]
    assert [line for line in lines if "replace(" not in line] == []


@each(PAGES, DOCUMENTS)
def test_credentials_are_not_kept_in_the_cache(attempt, serve_faults, right, tmp_path, subject):
    server = serve_faults(subject.dataset)
    check_repaired(attempt(subject, server.url.replace("//", "//reader:s3cr3t@"), False), right(subject))
    files = [path for path in (tmp_path / "cache").rglob("*")]
    assert any(path.suffix == ".arrow" for path in files)
    assert [
        path for path in files if "s3cr3t" in str(path) or (path.is_file() and b"s3cr3t" in path.read_bytes())
    ] == []
