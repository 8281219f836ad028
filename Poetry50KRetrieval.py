"""Poetry50KRetrieval: short topics -> OCR poetry pages, graded 0/1/2.

A `datasets` loading script. It reads John Foley's Poetry 50K (CIIR, UMass Amherst) in its upstream form, a gzip of
JSON lines and two TREC qrel files, and yields corpus, queries and qrels on the fly; candidate lists come from
sidecar files that `python -m tools` builds.

    load_dataset("./Poetry50KRetrieval.py", "corpus", split="test", trust_remote_code=True)      # datasets 2.19 to 3.6
    Poetry50KRetrieval(config_name="corpus", data_dir="poetry").download_and_prepare()           # any version
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
from typing import BinaryIO, TypeVar

import aiohttp
import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj
import pyarrow.parquet as pq
from datasets.iterable_dataset import ArrowExamplesIterable

UPSTREAM = "https://ciir.cs.umass.edu/downloads/poetry"
CORPUS_FILE = "poetry50k.dedup.jsonl.gz"
CORPUS_MD5 = "be61efeff6ae2b1ffb86519aeeabf427"
QRELS_FILES = {"qrels_max": "mturk.max.qrel", "qrels_min": "mturk.min.qrel"}

LABELS = {"-1": 0.0, "0": 0.0, "1": 1.0, "2": 2.0}  # -1: adjudicated as not poetry, or unusable

STRING, IDS = datasets.Value("string"), datasets.Sequence(datasets.Value("string"))
QRELS = {"query-id": STRING, "corpus-id": STRING, "score": datasets.Value("float64")}
CANDIDATES = {"query-id": STRING, "corpus-ids": IDS}
FEATURES = {
    "corpus": {
        "id": STRING,
        "text": STRING,
        "book": STRING,
        "page": datasets.Value("int64"),
        "score": datasets.Value("float64"),
        "n_duplicates": datasets.Value("int64"),
        "duplicates": STRING,
    },
    "queries": {"id": STRING, "text": STRING},
    "qrels_max": QRELS,
    "qrels_min": QRELS,
    "bm25": CANDIDATES,
    "harrier_oss_v1_270m": CANDIDATES,
    "reranking_hybrid": CANDIDATES,
}

# What the JSON of a page holds, as the fast reader wants it; the row reader also takes the other forms of `duplicates`.
RECORD = pa.schema(
    [
        ("book", pa.string()),
        ("page", pa.int64()),
        ("score", pa.float64()),
        ("text", pa.string()),
        ("duplicates", pa.list_(pa.string())),
    ]
)
BOM = b"\xef\xbb\xbf"
SPACE_FOR_TAB = bytes.maketrans(b"\t", b" ")
FIRST_BLOCK, LARGEST_BLOCK = 1 << 18, 1 << 23  # bytes of JSON a table is made of: a quick first row, then few tables

CITATION = """\
@phdthesis{foley2019poetry,
  title  = {Poetry: Identification, Entity Recognition, and Retrieval},
  author = {Foley, John},
  school = {University of Massachusetts Amherst},
  year   = {2019},
  url    = {https://ciir.cs.umass.edu/downloads/poetry/}
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


def read_line_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Whole lines, in blocks that grow from FIRST_BLOCK to about LARGEST_BLOCK bytes."""
    size, pieces = FIRST_BLOCK, []
    while block := file.read(size):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pieces, block[:cut]])
            pieces = []
        pieces.append(block[cut:])
        size = min(2 * size, LARGEST_BLOCK)
    if last := b"".join(pieces):
        yield last


def parse_block(block: bytes) -> pa.Table | None:
    """A block of lines as RECORD columns, or None where only the row reader can tell what is in it."""
    letters = np.frombuffer(block, np.uint8)
    breaks = np.flatnonzero(letters[:-1] == ord("\n"))
    within_braces = (letters[breaks - 1] == ord("}")) & (letters[breaks + 1] == ord("{"))
    if not within_braces.all() or block[:1] != b"{" or block[-8:].rstrip()[-1:] != b"}":  # not one object a line
        return None  # and not for Arrow's reader, which a line `null` ends together with the interpreter
    try:
        check_utf8(block)  # Arrow's reader lets invalid UTF-8 pass
        records = paj.read_json(
            pa.BufferReader(block),
            paj.ReadOptions(use_threads=False, block_size=len(block) + 1),
            paj.ParseOptions(explicit_schema=RECORD, unexpected_field_behavior="ignore"),
        )
        records.validate(full=True)
    except pa.ArrowInvalid:
        return None
    required = [records[name].null_count for name in ("book", "page", "text")]
    required.append(pc.list_flatten(records["duplicates"]).null_count)
    finite = pc.all(pc.is_finite(records["score"])).as_py() is not False  # None: no page has a score
    return records if records.num_rows == len(breaks) + 1 and finite and not any(required) else None


def check_utf8(block: bytes) -> None:
    """Raises ArrowInvalid unless the block is UTF-8; a tenth of the time that `block.decode()` takes."""
    ends = pa.py_buffer(np.array([0, len(block)], np.int64))
    pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(block)).validate(full=True)


def parse_lines(block: bytes, location: str, first_line: int) -> pa.Table:
    """The same columns read line by line: every form of `duplicates`, and the exact error."""
    records = []
    for number, line in enumerate(block.split(b"\n"), first_line):
        if not line.strip():
            continue
        try:
            records.append(read_record(json.loads(line.decode("utf-8"))))
        except (ValueError, OverflowError, RecursionError) as error:
            raise UpstreamError(f"{shown(location)}:{number}: {' '.join(str(error).split())}") from error
    return pa.Table.from_pylist(records, schema=RECORD)


def read_record(record: object) -> dict[str, object]:
    """One page's fields, checked; ValueError says which is not as expected."""
    if not isinstance(record, dict):
        raise ValueError("expected a JSON object with book, page and text")
    for field, kind, expected in (("book", str, "a string"), ("page", int, "an integer"), ("text", str, "a string")):
        value = record.get(field)
        if not isinstance(value, kind) or isinstance(value, bool):
            found = json.dumps(value)[:40] if field in record else "missing"
            raise ValueError(f"'{field}' is {found}, expected {expected}")
    score = record.get("score")
    if score is not None:
        score = float(score) + 0.0 if isinstance(score, int | float) and not isinstance(score, bool) else float("nan")
        if not abs(score) < float("inf"):
            raise ValueError("'score' is not a finite number")
    if not -(2**63) <= record["page"] < 2**63:
        raise ValueError("'page' does not fit 64 bits")
    duplicates = record.get("duplicates")
    if not isinstance(duplicates, list | None):
        raise ValueError("'duplicates' is not a list")
    duplicates = [page_id(duplicate) for duplicate in duplicates or []]
    fields = {"book": record["book"], "page": record["page"], "score": score, "text": record["text"]}
    for value in (fields["book"], fields["text"], *duplicates):
        value.encode()  # a lone surrogate is no Unicode text
    return {**fields, "duplicates": duplicates}


def page_id(duplicate: object) -> str:
    """'book/page' from any of the upstream's three forms: that string, [book, page], or {"book", "page"}."""
    if isinstance(duplicate, str):
        return duplicate
    if isinstance(duplicate, dict):
        duplicate = [duplicate.get("book"), duplicate.get("page")]
    if isinstance(duplicate, list) and [type(part) for part in duplicate] == [str, int]:
        return f"{duplicate[0]}/{duplicate[1]}"
    raise ValueError("'duplicates' holds something that is not 'book/page', [book, page] or {\"book\", \"page\"}")


def page_table(records: pa.Table) -> pa.Table:
    """RECORD columns -> the corpus config's columns."""
    duplicates = records["duplicates"].combine_chunks()
    columns = {
        "id": pc.binary_join_element_wise(records["book"], pc.cast(records["page"], pa.string()), "/"),
        "text": replace_tabs(records["text"].combine_chunks()),
        "book": records["book"],
        "page": records["page"],
        "score": pc.add(records["score"], 0.0),  # no negative zero
        "n_duplicates": pc.cast(pc.fill_null(pc.list_value_length(duplicates), 0), pa.int64()),
        "duplicates": json_lists(duplicates),
    }
    return pa.table(columns)


def replace_tabs(texts: pa.StringArray) -> pa.StringArray:
    """Texts with spaces for tabs. On the bytes, since Arrow's replace_substring takes many times as long."""
    _, offsets, values = texts.buffers()
    replaced = pa.py_buffer(bytes(values or b"").translate(SPACE_FOR_TAB))
    return pa.StringArray.from_buffers(len(texts), offsets, replaced, offset=texts.offset)


def json_lists(lists: pa.ListArray) -> pa.Array:
    """Each list of strings as JSON text."""
    if pc.any(pc.match_substring_regex(lists.flatten(), r"[^ !#-\[\]-~]")).as_py():  # something JSON escapes
        return pa.array([json.dumps(strings or []) for strings in lists.to_pylist()], pa.string())
    joined = pc.binary_join_element_wise('["', pc.binary_join(lists, '", "'), '"]', "")
    return pc.if_else(pc.equal(pc.fill_null(pc.list_value_length(lists), 0), 0), "[]", joined)


class HashingReader(io.RawIOBase):
    """Passes a stream on and keeps the MD5 of what has passed."""

    def __init__(self, raw: BinaryIO):
        self.raw, self.md5 = raw, hashlib.md5(usedforsecurity=False)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        chunk = self.raw.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self.md5.update(chunk)
        return len(chunk)


def check_md5(found: str, location: str) -> None:
    """Raises unless `found` is the published MD5 of the corpus file."""
    if found != CORPUS_MD5:
        raise UpstreamError(
            f"{shown(location)}: its MD5 is {found}, the published one is {CORPUS_MD5}: damaged on the way, or changed "
            "upstream; load again with download_mode='force_redownload', or name a good copy's folder with data_dir"
        )


def read_pages(location: str, published: bool = False) -> Iterator[pa.Table]:
    """The corpus as tables of consecutive pages, their ids unique; a `published` file must have the published MD5.

    Unpacking, parsing and what the caller does with a table (the library writes it) go on side by side.
    """
    empty = True
    try:
        with open_stream(location) as raw:
            hashing = HashingReader(raw)
            blocks = read_ahead(read_line_blocks(pa.CompressedInputStream(hashing if published else raw, "gzip")))
            for pages in read_ahead(parse_pages(blocks, location)):
                empty = empty and not len(pages)
                yield pages
            if empty:
                raise UpstreamError(f"{shown(location)}: no pages in it, expected a gzip of JSON lines")
            if published:
                check_md5(hashing.md5.hexdigest(), location)
    except READ_ERRORS as error:
        raise unreadable(location, error) from error


def parse_pages(blocks: Iterator[bytes], location: str) -> Iterator[pa.Table]:
    """Each block's pages; an error names the line."""
    seen: set[str] = set()
    line = 1
    for block in blocks:
        if line == 1 and block.startswith(BOM):
            block = block[len(BOM) :]
        records = parse_block(block)
        if records is None:
            records = parse_lines(block, location, line)
        pages = page_table(records)
        check_unique(pages["id"].to_pylist(), seen, block, location, line)
        line += block.count(b"\n")
        yield pages


def check_unique(ids: list[str], seen: set[str], block: bytes, location: str, first_line: int) -> None:
    """Adds a block's ids to those `seen`; raises at the first that was there."""
    fresh = set(ids)
    if len(fresh) == len(ids) and seen.isdisjoint(fresh):
        seen |= fresh
        return
    lines = (number for number, line in enumerate(block.split(b"\n"), first_line) if line.strip())
    for number, page in zip(lines, ids, strict=True):
        if page in seen:
            raise UpstreamError(f"{shown(location)}:{number}: a second page {quoted(page)}; ids must be unique")
        seen.add(page)


def read_qrels(location: str) -> list[tuple[str, str, float]]:
    """A TREC qrel file's judgments as (topic, page id, score), in file order; -1 has become 0."""
    judgments, labels = [], {}
    try:
        with open_stream(location) as file:
            lines = file.read().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UpstreamError(f"{shown(location)}: not a TREC qrel file: it is not UTF-8 text") from error
    except READ_ERRORS as error:
        raise unreadable(location, error) from error
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 4:
            message = f"{shown(location)}:{number}: {len(fields)} fields, expected 4: topic iteration docid label"
            raise UpstreamError(message)
        topic, _, page, label = fields
        if label not in LABELS:
            message = f"{shown(location)}:{number}: label {quoted(label)} is not one of {', '.join(LABELS)}"
            raise UpstreamError(message)
        if labels.setdefault((topic, page), label) != label:
            message = f"{quoted(page)} was given another label for {quoted(topic)} before"
            raise UpstreamError(f"{shown(location)}:{number}: {message}")
        judgments.append((topic, page, LABELS[label]))
    return judgments


def content_mark(location: str) -> str:
    """What a gzip file says of its content: its size, and the CRC-32 and length at its end."""
    try:
        with open_random_access(location) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - 8))
            return f"{size} {file.read(8).hex()}"
    except READ_ERRORS as error:
        raise unreadable(location, error) from error


class Poetry50KRetrieval(RetrievalBuilder):
    """Topic -> OCR poetry pages, graded. One split, `test`; configs as in FEATURES."""

    BUILDER_CONFIGS = [RetrievalConfig(name=name, version=RetrievalBuilder.VERSION) for name in FEATURES]
    DEFAULT_CONFIG_NAME = "qrels_max"
    ALL_SPLITS = ["test"]

    def _info(self):
        return datasets.DatasetInfo(
            description="Short topics and the OCR poetry pages judged for them, graded 0, 1 or 2.",
            features=datasets.Features(FEATURES[self.config.name]),
            homepage="https://ciir.cs.umass.edu/downloads/poetry/",
            license="other",
            citation=CITATION,
            splits=self.expected_splits(),
        )

    def split_names(self) -> list[str]:
        return self.ALL_SPLITS

    def upstream_files(self) -> list[str]:
        qrels = [] if self.config.name == "corpus" else list(QRELS_FILES.values())
        return qrels + ([CORPUS_FILE] if self.config.name == "corpus" or self.config.name in QRELS_FILES else [])

    def check_download(self, name: str, path: str, anew: bool) -> None:
        if name == CORPUS_FILE:  # a stream is checked at its end instead
            check_md5(file_digest(path, "md5"), path)
        else:
            super().check_download(name, path, anew)

    def read_tables(self, split: str, files: dict[str, str]) -> Iterator[pa.Table]:
        if self.config.name == "corpus":
            corpus = files[CORPUS_FILE]
            yield from read_pages(corpus, published=is_url(corpus) and not self.config.data_dir)
        elif self.config.name == "queries":
            yield columns(("id", "text"), self.read_queries(split, files))
        elif self.config.name in QRELS_FILES:
            judgments = read_qrels(files[QRELS_FILES[self.config.name]])
            pages = self.judged_in_corpus({page for _, page, _ in judgments}, files)
            yield columns(tuple(QRELS), [judgment for judgment in judgments if judgment[1] in pages])
        else:
            yield self.read_sidecar(split, files)

    def read_queries(self, split: str, files: dict[str, str]) -> list[tuple[str, str]]:
        topics = {topic for name in QRELS_FILES.values() for topic, _, _ in read_qrels(files[name])}
        return [(topic, topic.replace("_", " ")) for topic in sorted(topics)]

    def reads_whole(self, name: str) -> bool:
        return name != CORPUS_FILE or self.config.name == "corpus" or file_state(self.judged_sidecar()) == "missing"

    def judged_sidecar(self) -> str:
        return f"{self.sidecar_root()}/judged.parquet"

    def judged_in_corpus(self, pages: set[str], files: dict[str, str]) -> set[str]:
        """Those of the judged pages that the corpus has, from the sidecar judged.parquet or by reading the corpus."""
        corpus, path = files[CORPUS_FILE], self.judged_sidecar()
        if file_state(path) != "missing":
            try:
                with open_random_access(path) as file:
                    table = pq.read_table(file)
                known = dict(zip(table["id"].to_pylist(), table["in_corpus"].to_pylist(), strict=True))
                if json.loads(table.schema.metadata[b"recipe"])["corpus"] == content_mark(corpus) and pages <= set(
                    known
                ):
                    return {page for page in pages if known[page]}
            except (*READ_ERRORS, ValueError, KeyError, TypeError):
                pass
            logger.warning(f"{shown(path)} was made of other files; reading the corpus instead")
        published = is_url(corpus) and not self.config.data_dir
        return {page for table in read_pages(corpus, published) for page in table["id"].to_pylist() if page in pages}
