"""NanoDAPFAM: patent families -> the families they cite, in 18 Nano splits.

A `datasets` loading script. It reads `datalyes/DAPFAM_patent` in its upstream form, three Parquet files, selects each
split's queries and corpus and yields corpus, queries and qrels on the fly; candidate lists come from sidecar files
that `python -m tools` builds.

    load_dataset("./NanoDAPFAM.py", "queries", splits=["NanoDAPFAMAllTitlAbsToTitlAbs"], trust_remote_code=True)
    NanoDAPFAM(config_name="corpus", data_dir="dapfam").download_and_prepare()      # any version of datasets
"""

import abc
import asyncio
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, TypeVar

import aiohttp
import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets.iterable_dataset import ArrowExamplesIterable

UPSTREAM = "hf://datasets/datalyes/DAPFAM_patent@780f4011d60297fc6e97a4119b0c516d13afea2d"
CORPUS_FILE, QUERIES_FILE, RELATIONS_FILE = "corpus.parquet", "queries.parquet", "qrels_all.parquet"

SCOPES = {"All": ("IN", "OUT"), "In": ("IN",), "Out": ("OUT",)}  # the domain_rel of the citations that count
VIEWS = {  # the fields a text is made of, title first
    "TitlAbs": ("title_en", "abstract_en"),
    "TitlAbsClm": ("title_en", "abstract_en", "claims_text"),
    "FullText": ("title_en", "abstract_en", "claims_text", "description_en"),
}


class Split(NamedTuple):
    scope: str
    query_view: str
    corpus_view: str


SPLITS = {
    f"NanoDAPFAM{scope}{query_view}To{corpus_view}": Split(scope, query_view, corpus_view)
    for scope in SCOPES
    for query_view in ("TitlAbsClm", "TitlAbs")
    for corpus_view in ("FullText", "TitlAbsClm", "TitlAbs")
}
QUERIES, DOCUMENTS = 200, 10_000  # at most so many a split

STRING, IDS = datasets.Value("string"), datasets.Sequence(datasets.Value("string"))
CANDIDATES = {"query-id": STRING, "corpus-ids": IDS}
FEATURES = {
    "corpus": {"_id": STRING, "text": STRING},
    "queries": {"_id": STRING, "text": STRING},
    "qrels": {"query-id": STRING, "corpus-id": STRING},
    "bm25": CANDIDATES,
    "harrier_oss_v1_270m": CANDIDATES,
    "reranking_hybrid": CANDIDATES,
}

BATCH_ROWS = (16, 1024)  # decoded at a time: at least and at most
FIRST_BYTES, BATCH_BYTES = 1 << 14, 1 << 22  # passed on at a time, at first and later; a text has up to 3.5 MB
WHITE_SPACE = "".join(filter(str.isspace, map(chr, range(0x3001))))  # what str.strip takes off

CITATION = """\
@misc{ayaou2025dapfam,
  title         = {DAPFAM: A Domain-Aware Family-level Dataset to benchmark cross domain patent retrieval},
  author        = {Ayaou, Iliass and Cavallucci, Denis and Chibane, Hicham},
  year          = {2025},
  eprint        = {2506.22141},
  archivePrefix = {arXiv}
}
"""


# ---- The same in both scripts: a script is copied to a hub by itself, so neither can import this from the other. ----

BUILT_BY = {"bm25": "bm25", "harrier_oss_v1_270m": "dense", "reranking_hybrid": "hybrid"}  # config -> tools command
RETRIES, STALL = 5, 60.0  # times a server is asked again without progress; seconds it may keep silent
PASSING_STATUSES = (408, 429, 500, 502, 503, 504)

Piece = TypeVar("Piece")
logger = datasets.logging.get_logger(__name__)
READ_ERRORS = (
    *(OSError, EOFError, UnicodeDecodeError, zlib.error, asyncio.TimeoutError, aiohttp.ClientError, pa.ArrowException),
)


class UpstreamError(ValueError):
    """Input that cannot be taken: one line that names the file, the place in it, and what is expected."""


def is_url(location: str) -> bool:
    return "://" in location


def shown(location: str) -> str:
    """A location as it may be printed: without the user and password a URL can hold."""
    return re.sub(r"(?<=://)[^/?#]*@", "", location)


def quoted(value: object) -> str:
    """What a file holds, as an error may show it: on one line, and not all of a long one."""
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:160]}..."


def absolute(folder: str) -> str:
    """A folder that means the same from any current folder."""
    return folder.rstrip("/") if is_url(folder) else os.path.abspath(os.path.expanduser(folder))


def unreadable(location: str, error: BaseException) -> UpstreamError:
    """The one line for a file that is missing, cut short or out of reach."""
    if isinstance(error, FileNotFoundError):
        return UpstreamError(f"{shown(location)}: there is no such file")
    if isinstance(error, aiohttp.ClientResponseError):
        message = " ".join(error.message.split())
        return UpstreamError(f"{shown(location)}: the server answers {error.status} {message[:200]}")
    cause = shown(str(error)).splitlines() or [""]
    return UpstreamError(f"{shown(location)}: cannot be read to its end: {type(error).__name__}: {cause[0][:200]}")


def file_state(location: str) -> str:
    """What tells one version of a file from the next: size and time of change, or what the server says of it."""
    fs, path = fsspec.core.url_to_fs(location)
    try:
        if "file" in fs.protocol:
            stat = os.stat(path)
            return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
        if "http" in fs.protocol:
            return HttpStream(fs, path).ask_state()
        known = fs.info(path)
    except FileNotFoundError:
        return "missing"
    except READ_ERRORS as error:
        raise unreadable(location, error) from error
    return " ".join(str(known[mark]) for mark in ("size", "ETag", "mtime", "last_modified", "blob_id") if mark in known)


class HttpStream(io.RawIOBase):
    """Bytes `start` to `end` of a file on an HTTP server, read once.

    What a cut, stalled or busy server did not deliver is asked for again from where it stopped, up to RETRIES times
    without progress. The first answer fixes the file's size and version, so that two states of it never mix.
    """

    def __init__(self, fs, path: str, start: int = 0, end: int | None = None, mark: tuple | None = None):
        self.fs, self.path, self.position, self.end, self.mark = fs, path, start, end, mark
        self.response, self.ranged, self.failures = None, False, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        return self.persist(lambda: self.deliver(buffer))

    def ask_state(self) -> str:
        """Size, ETag and time of change by the server's word."""

        def head() -> str:
            response = self.request("HEAD", {"Accept-Encoding": "identity"})
            response.close()
            marks = ("Content-Length", "ETag", "Last-Modified")
            return " ".join(response.headers[mark] for mark in marks if mark in response.headers)

        return self.persist(head)

    def persist(self, work):
        """What `work` returns, tried again after errors that pass."""
        while True:
            try:
                return work()
            except aiohttp.ClientConnectorError:
                if not self.position or self.failures == RETRIES:
                    raise  # nobody there, or not any more
                self.wait_to_retry("no connection")
            except aiohttp.ClientResponseError as error:
                if error.status not in PASSING_STATUSES or self.failures == RETRIES:
                    raise unreadable(self.path, error) from None  # its text has the whole URL
                self.wait_to_retry(f"status {error.status}", (error.headers or {}).get("Retry-After", ""))
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, asyncio.TimeoutError) as error:
                if self.failures == RETRIES:
                    raise
                self.wait_to_retry(type(error).__name__)

    def wait_to_retry(self, cause: str, retry_after: str = "") -> None:
        self.close_response()
        self.failures += 1
        wait = min(STALL, float(retry_after) if re.fullmatch("[0-9]+", retry_after) else 0.25 * 2**self.failures)
        logger.warning(f"{shown(self.path)}: {cause} at byte {self.position}; trying again in {wait:g} s")
        time.sleep(wait)

    def deliver(self, buffer) -> int:
        if self.response is None:
            self.open()
        wanted = len(buffer) if self.end is None else min(len(buffer), self.end - self.position)
        chunk = fsspec.asyn.sync(self.fs.loop, self.response.content.read, wanted) if wanted else b""
        if not chunk and wanted and self.position < (self.mark[0] or 0):
            raise aiohttp.ClientPayloadError(f"the answer ended at byte {self.position} of {self.mark[0]}")
        buffer[: len(chunk)] = chunk
        self.position += len(chunk)
        self.failures = 0 if chunk else self.failures
        return len(chunk)

    def request(self, method: str, headers: dict[str, str]) -> aiohttp.ClientResponse:
        async def ask():
            session = await self.fs.set_session()
            options = {**self.fs.kwargs, "headers": {**self.fs.kwargs.get("headers", {}), **headers}}
            patience = aiohttp.ClientTimeout(total=None, sock_connect=STALL, sock_read=STALL)
            url = self.fs.encode_url(self.path)
            # The file's own bytes: a server may call a .gz file's content an encoding, which must not be undone.
            return await session.request(
                method, url, allow_redirects=True, auto_decompress=False, timeout=patience, **options
            )

        response = fsspec.asyn.sync(self.fs.loop, ask)
        if response.status >= 400:
            response.close()
            if response.status in (404, 410):
                raise FileNotFoundError(shown(self.path))
            response.raise_for_status()
        return response

    def open(self) -> None:
        last = "" if self.end is None else str(self.end - 1)
        ask = {"Range": f"bytes={self.position}-{last}"} if self.position or last else {}
        self.response = self.request("GET", {"Accept-Encoding": "identity", **ask})
        of_range = re.fullmatch(r"bytes (\d{1,18})-\d+/(\d{1,18})", self.response.headers.get("Content-Range", ""))
        self.ranged = self.response.status == 206
        if self.ranged and not of_range:
            raise UpstreamError(f"{shown(self.path)}: the server sends a part without a Content-Range that says which")
        if self.ranged and int(of_range[1]) != self.position:
            raise UpstreamError(f"{shown(self.path)}: asked for byte {self.position}, the server sent {of_range[1]}")
        size = of_range[2] if self.ranged else self.response.headers.get("Content-Length")
        versions = (self.response.headers.get(header) for header in ("ETag", "Last-Modified"))
        mark = (None if size is None else int(size), *versions)
        known = [pair for pair in zip(self.mark or mark, mark, strict=True) if None not in pair]
        if any(before != now for before, now in known):
            raise UpstreamError(f"{shown(self.path)}: changed on the server while it was read; load again")
        self.mark = tuple(before or now for before, now in zip(self.mark or mark, mark, strict=True))
        skip = 0 if self.ranged else self.position
        while skip:  # without ranges, from the start again
            skip -= len(fsspec.asyn.sync(self.fs.loop, self.response.content.readexactly, min(skip, 1 << 20)))

    def close_response(self) -> None:
        if self.response is not None:
            self.response.close()
            self.response = None

    def close(self) -> None:
        self.close_response()
        super().close()


class HttpFile(io.RawIOBase):
    """A file on an HTTP server, read in places: exactly the asked ranges, or of a whole copy if it has no ranges."""

    def __init__(self, fs, path: str):
        self.fs, self.path, self.position, self.copy = fs, path, 0, None
        first = HttpStream(fs, path, 0, 1)
        start = first.read(1)
        if first.ranged:
            self.size, self.mark = first.mark[0], first.mark
        else:
            first.end, self.copy = None, tempfile.TemporaryFile()
            self.copy.write(start)
            shutil.copyfileobj(first, self.copy, 1 << 20)
            self.size = self.copy.tell()
        first.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        return self.position

    def readinto(self, buffer) -> int:
        end = min(self.position + len(buffer), self.size)
        if end <= self.position:
            return 0
        if self.copy:
            self.copy.seek(self.position)
            found = self.copy.read(end - self.position)
        else:
            with HttpStream(self.fs, self.path, self.position, end, self.mark) as stream:
                found = stream.readall()
        buffer[: len(found)] = found
        self.position += len(found)
        return len(found)


def open_stream(location: str) -> BinaryIO:
    """A file to be read once, from its start."""
    fs, path = fsspec.core.url_to_fs(location)
    if "http" in fs.protocol:
        return io.BufferedReader(HttpStream(fs, path), 1 << 20)
    return open(path, "rb") if "file" in fs.protocol else fs.open(path, "rb")


def open_random_access(location: str) -> BinaryIO:
    """A file to be read in places."""
    fs, path = fsspec.core.url_to_fs(location)
    return HttpFile(fs, path) if "http" in fs.protocol else fs.open(path, "rb", cache_type="none")


def read_ahead(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The pieces, each made in a thread while the one before is used: unpacking takes as long as what follows."""
    reader = ThreadPoolExecutor(1)
    try:
        ahead = reader.submit(next, pieces, None)
        while (piece := ahead.result()) is not None:
            ahead = reader.submit(next, pieces, None)
            yield piece
    finally:
        reader.shutdown(wait=False)  # to wait here for the thread can stand still: the garbage collector comes here too


def file_digest(path: str, algorithm: str) -> str:
    """A local file's digest, in hexadecimal."""
    known = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            known.update(chunk)
    return known.hexdigest()


def check_unchanged(location: str, path: str, anew: bool) -> None:
    """Raises unless the download of `location` at `path` is what it was when it came.

    The Hub's cache names a Git LFS file's blob by its SHA-256. Of any other download the SHA-256 is recorded beside it,
    at its first use and, after a forced download, `anew`.
    """
    found, record = file_digest(path, "sha256"), f"{path}.sha256"
    folder, blob = os.path.split(os.path.realpath(path))
    if os.path.basename(folder) == "blobs" and re.fullmatch("[0-9a-f]{64}", blob):
        known = blob
    elif os.path.exists(record) and not anew:
        with open(record, encoding="latin-1") as file:
            known = file.read()
    else:
        known, temporary = found, f"{record}.{os.getpid()}.incomplete"
        try:
            with open(temporary, "w", encoding="latin-1") as file:
                file.write(found)
            os.replace(temporary, record)
        except OSError as error:  # someone else's cache, say
            logger.warning(f"{record}: {error.strerror}; later damage to that download will not be noticed")
    if found != known:
        raise UpstreamError(
            f"{shown(location)}: its download {path} was damaged on disk; load again with "
            "download_mode='force_redownload'"
        )


def columns(names: tuple[str, ...], rows: list[tuple]) -> pa.Table:
    """Rows as a table; numbers become float64."""
    return pa.table(
        [pa.array(values) for values in zip(*rows, strict=True)] if rows else [pa.array([])] * len(names), list(names)
    )


def digest(rows: Iterable[tuple[str, ...]]) -> str:
    """SHA-256 over the rows' values, each preceded by its length in bytes: what a sidecar's recipe records."""
    sha256 = hashlib.sha256()
    for row in rows:
        for value in row:
            encoded = value.encode()
            sha256.update(b"%d:" % len(encoded))
            sha256.update(encoded)
    return sha256.hexdigest()


class TypedExamples(ArrowExamplesIterable):
    """Streamed tables that say they have the features' types.

    Without that word the library encodes every field of every row again, which makes streaming several times slower.
    """

    is_typed, features = True, None  # instead of the base class's properties

    def __init__(self, builder: datasets.DatasetBuilder, gen_kwargs: dict):
        super().__init__(builder._generate_tables, gen_kwargs)
        self.features = builder.info.features


@dataclass
class RetrievalConfig(datasets.BuilderConfig):
    """`data_dir`: folder or URL of the upstream files; `sidecar_dir`: folder or URL of the candidate lists."""

    sidecar_dir: str | None = None


class RetrievalBuilder(abc.ABC, datasets.ArrowBasedBuilder, datasets.GeneratorBasedBuilder):
    """What both datasets share: where files are, what the cache knows of them, and sidecars.

    Rows are made as Arrow tables and written by the library's table path; its row path encodes each field of each row
    in Python, which costs several times as much. `_generate_examples` gives the same rows one by one.
    """

    VERSION = datasets.Version("1.0.0")
    BUILDER_CONFIG_CLASS = RetrievalConfig

    @abc.abstractmethod
    def split_names(self) -> list[str]:
        """The splits to build, in order."""

    @abc.abstractmethod
    def upstream_files(self) -> list[str]:
        """Names of the upstream files this config reads."""

    @abc.abstractmethod
    def read_tables(self, split: str, files: dict[str, str]) -> Iterator[pa.Table]:
        """The split's rows; `files` gives each upstream file's location."""

    @abc.abstractmethod
    def read_queries(self, split: str, files: dict[str, str]) -> list[tuple[str, str]]:
        """The split's queries as (id, text), in order."""

    def reads_whole(self, name: str) -> bool:
        """Whether an upstream file is read whole, so that one download to keep is better than reading it in place."""
        return True

    def check_download(self, name: str, path: str, anew: bool) -> None:
        """Raises unless a download is the upstream file; `anew`: it has just come, whatever was there before."""
        check_unchanged(self.upstream(name), path, anew)

    def upstream(self, name: str) -> str:
        return f"{absolute(self.config.data_dir or UPSTREAM)}/{name}"

    def sidecar_root(self) -> str:
        if self.config.sidecar_dir or self.config.data_dir:
            return absolute(self.config.sidecar_dir or self.config.data_dir)
        beside = self.base_path or os.path.dirname(os.path.abspath(__file__))  # base_path: a loaded script's own folder
        return f"{absolute(beside)}/sidecars/{type(self).__name__}"

    def sidecar(self, split: str) -> str:
        return f"{self.sidecar_root()}/{self.config.name}/{split}.parquet"

    def read_sidecar(self, split: str, files: dict[str, str]) -> pa.Table:
        """A split's candidate lists, checked to be of this dataset, config and split and of the queries at hand."""
        path, dataset = self.sidecar(split), type(self).__name__
        command = f"python -m tools {BUILT_BY[self.config.name]} {dataset}"
        if self.config.data_dir:
            command += f" --data-dir {shown(self.config.data_dir)}"
        if self.config.sidecar_dir:
            command += f" --sidecars {shown(self.config.sidecar_dir)}"
        try:
            with open_random_access(path) as file:
                table = pq.read_table(file)
            recipe = json.loads((table.schema.metadata or {})[b"recipe"])
            made_for = [recipe[key] for key in ("dataset", "config", "split")]
            made_of = recipe["digests"]["queries"]
            lists = table.select(["query-id", "corpus-ids"]).cast(self.info.features.arrow_schema)
            lists.validate(full=True)
        except FileNotFoundError:
            raise UpstreamError(f"{shown(path)}: no candidate lists there; build them with: {command}") from None
        except (*READ_ERRORS, ValueError, KeyError, TypeError) as error:
            message = f"{shown(path)}: not a sidecar ({type(error).__name__}); build it again: {command} --overwrite"
            raise UpstreamError(message) from error
        if made_for != [dataset, self.config.name, split]:
            raise UpstreamError(
                f"{shown(path)}: made for {quoted('/'.join(map(str, made_for)))}, not for "
                f"{dataset}/{self.config.name}/{split}; build it again: {command} --overwrite"
            )
        queries = self.read_queries(split, files)
        if made_of != digest(queries) or lists["query-id"].to_pylist() != [query_id for query_id, _ in queries]:
            message = f"{shown(path)}: made for other queries than {split} has; build it again: {command} --overwrite"
            raise UpstreamError(message)
        return lists

    def expected_splits(self) -> dict[str, dict] | None:
        """Rows and sizes of the splits by dataset_infos.json; nothing when `data_dir` names another upstream."""
        # The script's own folder first: the library copies the file beside a loaded script only when that is new.
        folders = [self.base_path or "", os.path.dirname(os.path.abspath(__file__))]
        paths = [os.path.join(folder, "dataset_infos.json") for folder in folders if folder and not is_url(folder)]
        path = next(filter(os.path.isfile, paths), None)
        if self.config.data_dir or path is None:
            return None
        with open(path, encoding="utf-8") as file:
            splits = json.load(file).get(f"{type(self).__name__}/{self.config.name}", {}).get("splits", {})
        return {split: splits[split] for split in self.split_names() if split in splits} or None

    def get_exported_dataset_info(self) -> datasets.DatasetInfo:
        """Nothing: up to 3.6 the library would look for `corpus` in files that two datasets share."""
        return datasets.DatasetInfo()

    def _create_builder_config(self, *args, **kwargs):
        """Adds the state of the files that are read to the cache key, so that a replaced one is seen.

        The official upstream is fixed, by MD5 or revision, and need not be asked.
        """
        config, config_id = super()._create_builder_config(*args, **kwargs)
        self.config = config
        splits = self.split_names()
        files = [self.upstream(name) for name in self.upstream_files()] if config.data_dir else []
        if config.name in BUILT_BY:
            files += [self.sidecar(split) for split in splits]
        self.states = [(file, file_state(file)) for file in files]
        code = []
        if self.hash is None:  # not loaded as a script, whose hash the library has: then this file is part of the key
            code.append((__file__, file_state(os.path.abspath(__file__))))
        known = [*self.states, *code]
        return config, f"{config_id}-{digest(known)[:16]}" if known else config_id

    def _save_infos(self):
        """Leaves a README that is there alone: `datasets-cli test --save_info` would put one dataset over the other."""
        if not os.path.isfile(os.path.join(self.get_imported_module_dir(), "README.md")):
            super()._save_infos()

    def _prepare_split(self, split_generator, check_duplicate_keys=True, **kwargs):
        # Ids are checked where they are read, so the row path's check of keys is not needed.
        try:
            super()._prepare_split(split_generator, **kwargs)
        except datasets.exceptions.DatasetGenerationError as error:
            cause = error.__cause__
            if isinstance(cause, UpstreamError):
                raise cause from None
            if isinstance(cause, OSError):  # a full disk, say
                raise OSError(cause.errno, cause.strerror or str(cause), self._cache_dir_root) from None
            raise

    def _split_generators(self, dl_manager):
        files = {name: self.upstream(name) for name in self.upstream_files()}
        if not self.config.data_dir:
            downloads = dl_manager.download({name: files[name] for name in files if self.reads_whole(name)})
            for name, path in downloads.items():
                if not is_url(path):  # it is one where it is streamed
                    self.check_download(name, path, dl_manager.download_config.force_download)
            files.update(downloads)
        return [
            datasets.SplitGenerator(name=split, gen_kwargs={"split": split, "files": files})
            for split in self.split_names()
        ]

    def _generate_tables(self, split: str, files: dict[str, str]):
        held: list[pa.Table] = []  # a table of one row waits for the next: the library's 5.x would keep a thousand
        for number, table in enumerate(self.read_tables(split, files)):
            held.append(table.cast(self.info.features.arrow_schema))
            if sum(map(len, held)) > 1:
                yield number, pa.concat_tables(held)
                held = []
        for file, state in self.states:
            if file_state(file) != state:
                raise UpstreamError(f"{shown(file)}: changed while it was read; load again")
        yield from enumerate(held, -len(held))

    def _get_examples_iterable_for_split(self, split_generator):
        return TypedExamples(self, split_generator.gen_kwargs)

    def _generate_examples(self, split: str, files: dict[str, str]):
        rows = (row for _, table in self._generate_tables(split, files) for row in table.to_pylist())
        yield from enumerate(rows)


# ---- End of what is the same in both scripts. ----


def open_parquet(location: str, names: Iterable[str]) -> pq.ParquetFile:
    """An upstream Parquet file that has the named columns; its column chunks are read piece by piece."""
    try:
        parquet = pq.ParquetFile(open_random_access(location), buffer_size=1 << 20, pre_buffer=False)
        present = parquet.schema_arrow.names
    except READ_ERRORS as error:
        raise unreadable(location, error) from error
    for name in names:
        if present.count(name) != 1:
            times = f"{present.count(name)} columns" if name in present else "no column"
            raise UpstreamError(f"{shown(location)}: {times} '{name}'; it has {quoted(present)}")
    return parquet


def strings(column: pa.Array, location: str, name: str) -> pa.Array:
    """A column as pa.string(), whichever of Arrow's string types the file has."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_null(kind) or str(kind) in ("string", "large_string", "string_view")):
        raise UpstreamError(f"{shown(location)}: column '{name}' holds {quoted(str(kind))}, expected strings")
    try:
        column = column.cast(pa.string())
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UpstreamError(f"{shown(location)}: column '{name}' holds text that is not UTF-8") from error
    return column


def batch_rows(parquet: pq.ParquetFile, group: int) -> int:
    """How many of a row group's rows have about BATCH_BYTES in all columns.

    Of all, though few are read: to ask a damaged or encrypted column's own metadata ends the interpreter.
    """
    row_group = parquet.metadata.row_group(group)
    rows = BATCH_BYTES * row_group.num_rows // max(1, row_group.total_byte_size)
    return max(BATCH_ROWS[0], min(BATCH_ROWS[1], rows))


def gather(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Batches put together to `limit` bytes, later to BATCH_BYTES: what is done with them costs a call each time.

    But not those of dictionaries, which say nothing of the bytes of the texts.
    """
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if any(map(pa.types.is_dictionary, batch.schema.types)) or sum(one.nbytes for one in held) >= limit:
            yield join_batches(held)
            held, limit = [], min(2 * limit, BATCH_BYTES)
    if held:
        yield join_batches(held)


def join_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def read_rows(
    parquet: pq.ParquetFile, location: str, names: list[str], wanted: np.ndarray | None = None
) -> Iterator[list[pa.Array]]:
    """The wanted rows' columns (all rows', if not told), in order, a few rows first, then a batch at a time.

    Of a row group no more is read than up to its last wanted row, and of a batch no more is passed on at a time than
    BATCH_BYTES, or one row.
    """
    at = 0
    wanted = np.ones(parquet.metadata.num_rows, bool) if wanted is None else wanted
    for group in range(parquet.num_row_groups):
        end = at + parquet.metadata.row_group(group).num_rows
        if wanted[at:end].any():
            batches = parquet.iter_batches(batch_rows(parquet, group), row_groups=[group], columns=names)
            for batch in read_ahead(gather(batches, BATCH_BYTES if at else FIRST_BYTES)):
                rows = np.flatnonzero(wanted[at : at + len(batch)])
                columns = [strings(batch.column(name), location, name) for name in names]
                sizes = sum(pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64) for column in columns)
                pieces = np.flatnonzero(np.diff(np.cumsum(sizes[rows]) // BATCH_BYTES)) + 1
                for piece in np.split(rows, pieces):
                    if len(piece):
                        yield [column.take(pa.array(piece)) for column in columns]
                at += len(batch)
                if not wanted[at:end].any():
                    break
        at = end


def join_fields(fields: list[pa.Array], *before: pa.Array | str) -> pa.Array:
    """Each row's non-empty fields, joined by newlines; `before` is what each text begins with."""
    parts: list[pa.Array | str] = list(before)
    begun = pa.scalar(False)
    for field in fields:
        field = pc.fill_null(field, "")
        present = pc.not_equal(field, "")
        parts += [pc.if_else(pc.and_(begun, present), "\n", ""), field]
        begun = pc.or_(begun, present)
    return pc.binary_join_element_wise(*parts, "")


def document_texts(title: pa.Array, body: list[pa.Array]) -> pa.Array:
    """Title, one space, the other fields: what MTEB feeds an encoder."""
    return pc.utf8_trim(join_fields(body, pc.fill_null(title, ""), " "), WHITE_SPACE)


def read_positives(location: str, scope: str) -> dict[str, list[str]]:
    """Query id -> the cited families that count in the scope, in relation order, each once."""
    names = ["query_id", "relevant_id", "relevance_score", "domain_rel"]
    parquet = open_parquet(location, names)
    try:
        table = parquet.read(names)
    except READ_ERRORS as error:
        raise unreadable(location, error) from error
    relevance = table["relevance_score"]
    if not (
        pa.types.is_boolean(relevance.type)
        or pa.types.is_integer(relevance.type)
        or pa.types.is_floating(relevance.type)
    ):
        raise UpstreamError(
            f"{shown(location)}: column 'relevance_score' holds {quoted(str(relevance.type))}, expected numbers"
        )
    query_ids, document_ids, domains = (
        strings(table[name].combine_chunks(), location, name).to_pylist()
        for name in ("query_id", "relevant_id", "domain_rel")
    )
    positives: dict[str, dict[str, None]] = {}
    for row, (query_id, document_id, score, domain) in enumerate(
        zip(query_ids, document_ids, relevance.to_pylist(), domains, strict=True)
    ):
        if score is None or not score > 0:
            continue
        if domain not in SCOPES["All"]:
            message = f"row {row}: domain_rel is {quoted(domain)}, expected 'IN' or 'OUT'"
            raise UpstreamError(f"{shown(location)}: {message}")
        if query_id is None or document_id is None:
            raise UpstreamError(f"{shown(location)}: row {row}: a positive relation without query_id or relevant_id")
        if domain in SCOPES[scope]:
            positives.setdefault(query_id, {})[document_id] = None
    return {query_id: list(documents) for query_id, documents in positives.items()}


def select_queries(location: str, view: str, eligible: set[str]) -> list[tuple[str, str]]:
    """The first QUERIES eligible queries whose text is new, as (id, text)."""
    names = ["query_id", *VIEWS[view]]
    parquet = open_parquet(location, names)
    selected: dict[str, str] = {}  # text -> id
    seen: set[str] = set()
    try:
        for ids, *fields in read_rows(parquet, location, names):
            check_ids(ids, seen, location, "query_id")
            for query_id, text in zip(ids.to_pylist(), join_fields(fields).to_pylist(), strict=True):
                if query_id in eligible:
                    selected.setdefault(text, query_id)
    except READ_ERRORS as error:
        raise unreadable(location, error) from error
    return [(query_id, text) for text, query_id in selected.items()][:QUERIES]


def check_ids(ids: pa.Array, seen: set[str], location: str, name: str) -> None:
    """Adds ids to those `seen`; raises at one that is null or was there."""
    for query_or_document_id in ids.to_pylist():
        if query_or_document_id is None or query_or_document_id in seen:
            found = "a null" if query_or_document_id is None else f"a second {quoted(query_or_document_id)}"
            raise UpstreamError(f"{shown(location)}: row {len(seen)}: {found} in column '{name}'; ids must be unique")
        seen.add(query_or_document_id)


def select_corpus(
    location: str, view: str, positives: set[str], placed: dict[str, str], fill: bool
) -> Iterator[pa.Table]:
    """A split's documents, in order: the positives, then, if asked to `fill`, others until there are DOCUMENTS.

    `placed` takes, for every positive that exists upstream, the id of the document that holds its text. Only ids and
    digests are kept, never a text. Limits: one decode of the view's columns up to the last positive, and one from the
    start until the fill is done.
    """
    title, *body = VIEWS[view]
    names = ["relevant_id", title, *body]
    parquet = open_parquet(location, names)
    holders: dict[bytes, str] = {}  # digest of a text -> the document that has it
    try:
        ids = strings(parquet.read(["relevant_id"])["relevant_id"].combine_chunks(), location, "relevant_id")
        check_ids(ids, set(), location, "relevant_id")
        is_positive = np.array([document_id in positives for document_id in ids.to_pylist()], bool)
        for wanted in (is_positive, ~is_positive) if fill else (is_positive,):
            for ids, titles, *bodies in read_rows(parquet, location, names, wanted):
                texts = document_texts(titles, bodies)
                fresh = []
                for row, (document_id, text) in enumerate(zip(ids.to_pylist(), texts, strict=True)):
                    if len(holders) == DOCUMENTS:
                        break
                    text_digest = hashlib.sha256(text.as_buffer()).digest()
                    holder = holders.setdefault(text_digest, document_id)
                    if holder == document_id:
                        fresh.append(row)
                    if document_id in positives:
                        placed[document_id] = holder
                yield pa.table({"_id": ids, "text": texts}).take(pa.array(fresh, pa.int64()))
                if len(holders) == DOCUMENTS:
                    return
    except READ_ERRORS as error:
        raise unreadable(location, error) from error


def place_positives(
    query_ids: list[str], positives: dict[str, list[str]], placed: dict[str, str]
) -> list[tuple[str, str]]:
    """Qrels rows (query id, document id): each positive at the document that holds its text, once a query."""
    return [
        (query_id, document_id)
        for query_id in query_ids
        for document_id in dict.fromkeys(placed[positive] for positive in positives[query_id] if positive in placed)
    ]


@dataclass
class NanoDAPFAMConfig(RetrievalConfig):
    """`splits`: names of the splits to build; all 18 if not given."""

    splits: list[str] | None = None


class NanoDAPFAM(RetrievalBuilder):
    """Patent family -> cited families, binary. 18 splits; configs as in FEATURES."""

    BUILDER_CONFIG_CLASS = NanoDAPFAMConfig
    BUILDER_CONFIGS = [NanoDAPFAMConfig(name=name, version=RetrievalBuilder.VERSION) for name in FEATURES]
    DEFAULT_CONFIG_NAME = "queries"
    ALL_SPLITS = list(SPLITS)

    def __init__(self, *args, **kwargs):
        self.selected = {}
        super().__init__(*args, **kwargs)

    def _info(self):
        return datasets.DatasetInfo(
            description="Patent families as queries and the families they cite, in 18 Nano splits.",
            features=datasets.Features(FEATURES[self.config.name]),
            homepage="https://huggingface.co/datasets/datalyes/DAPFAM_patent",
            license="cc-by-nc-sa-4.0",
            citation=CITATION,
            splits=self.expected_splits(),
        )

    def split_names(self) -> list[str]:
        chosen = [self.config.splits] if isinstance(self.config.splits, str) else self.config.splits or list(SPLITS)
        unknown = [split for split in chosen if split not in SPLITS]
        if unknown:
            raise ValueError(f"unknown split {quoted(unknown[0])}; the splits are {', '.join(SPLITS)}")
        return [split for split in SPLITS if split in chosen]

    def upstream_files(self) -> list[str]:
        files = [RELATIONS_FILE, QUERIES_FILE]
        return [*files, CORPUS_FILE] if self.config.name in ("corpus", "qrels") else files

    def reads_whole(self, name: str) -> bool:
        return name != CORPUS_FILE or any(SPLITS[split].corpus_view == "FullText" for split in self.split_names())

    def read_tables(self, split: str, files: dict[str, str]) -> Iterator[pa.Table]:
        if self.config.name == "queries":
            yield columns(("_id", "text"), self.read_queries(split, files))
        elif self.config.name in BUILT_BY:
            yield self.read_sidecar(split, files)
        else:
            positives, queries = self.select(split, files)
            query_ids = [query_id for query_id, _ in queries]
            cited = {document_id for query_id in query_ids for document_id in positives[query_id]}
            placed: dict[str, str] = {}
            fill = self.config.name == "corpus"
            documents = select_corpus(files[CORPUS_FILE], SPLITS[split].corpus_view, cited, placed, fill)
            if fill:
                yield from documents
            else:
                for _ in documents:  # read for where the positives are
                    pass
                yield columns(("query-id", "corpus-id"), place_positives(query_ids, positives, placed))

    def read_queries(self, split: str, files: dict[str, str]) -> list[tuple[str, str]]:
        return self.select(split, files)[1]

    def select(self, split: str, files: dict[str, str]) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
        """A split's positives and queries, read once for the splits of one scope and query view."""
        scope, query_view, _ = SPLITS[split]
        if (scope, query_view) not in self.selected:
            positives = read_positives(files[RELATIONS_FILE], scope)
            queries = select_queries(files[QUERIES_FILE], query_view, set(positives))
            self.selected[scope, query_view] = positives, queries
        return self.selected[scope, query_view]
