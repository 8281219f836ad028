"""The builders' rows as the tools need them: one `Collection` a split, read from the library's cache."""

import argparse
import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import NanoDAPFAM
import Poetry50KRetrieval
from Poetry50KRetrieval import digest
from tools.errors import InputError
from tools.files import write_whole

BUILDERS = {
    "Poetry50KRetrieval": Poetry50KRetrieval.Poetry50KRetrieval,
    "NanoDAPFAM": NanoDAPFAM.NanoDAPFAM,
}
QRELS_CONFIGS = {"Poetry50KRetrieval": ("qrels_max", "qrels_min"), "NanoDAPFAM": ("qrels",)}
UPSTREAM_ERRORS = (Poetry50KRetrieval.UpstreamError, NanoDAPFAM.UpstreamError)


def is_input_error(error: Exception) -> bool:
    """Whether the error's one line is meant for the user as it is."""
    return isinstance(error, (InputError, *UPSTREAM_ERRORS))


@dataclass(frozen=True)
class Collection:
    """One split of a dataset: its corpus, queries and qrels, as the builders yield them."""

    dataset: str
    split: str
    data_dir: str | None = None
    sidecar_dir: str | None = None

    def __reduce__(self):
        # By its names alone: what has been read stays behind, and another process reads for itself.
        return Collection, (self.dataset, self.split, self.data_dir, self.sidecar_dir)

    def builder(self, config: str) -> datasets.DatasetBuilder:
        chosen = {"splits": [self.split]} if self.dataset == "NanoDAPFAM" else {}
        return BUILDERS[self.dataset](
            config_name=config, data_dir=self.data_dir, sidecar_dir=self.sidecar_dir, **chosen
        )

    @cached_property
    def tables(self) -> dict[str, pa.Table]:
        """The configs' rows that have been read."""
        return {}

    def prepare(self, config: str) -> datasets.Dataset:
        """A config's rows in the library's cache; built there first if need be."""
        builder = self.builder(config)
        builder.download_and_prepare()
        return builder.as_dataset(self.split)

    def table(self, config: str) -> pa.Table:
        """A config's rows, memory-mapped from the library's cache."""
        if config not in self.tables:
            self.tables[config] = self.prepare(config).data.table
        return self.tables[config]

    @cached_property
    def corpus(self) -> pa.Table:
        """Columns id and text, in corpus order."""
        return self.table("corpus").select([0, 1]).rename_columns(["id", "text"])

    @cached_property
    def queries(self) -> pa.Table:
        """Columns id and text, in query order."""
        return self.table("queries").rename_columns(["id", "text"])

    def qrels(self, config: str | None = None) -> dict[str, dict[str, int]]:
        """Query id -> document id -> grade; without a config, the dataset's first qrels."""
        table = self.table(config or QRELS_CONFIGS[self.dataset][0])
        grades = table["score"].to_pylist() if "score" in table.column_names else [1] * len(table)
        qrels: dict[str, dict[str, int]] = {}
        for query_id, document_id, grade in zip(
            table["query-id"].to_pylist(), table["corpus-id"].to_pylist(), grades, strict=True
        ):
            qrels.setdefault(query_id, {})[document_id] = int(grade)
        return qrels

    def positives(self) -> dict[str, list[str]]:
        """Query id -> ids of the documents with a grade above 0, in qrels order (poetry: by qrels_max)."""
        return {
            query_id: [document_id for document_id, grade in grades.items() if grade > 0]
            for query_id, grades in self.qrels().items()
        }

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 of the corpus and of the queries (ids and texts), and of every qrels config's rows."""
        judged = (
            (config, query_id, document_id, str(grade))
            for config in QRELS_CONFIGS[self.dataset]
            for query_id, grades in self.qrels(config).items()
            for document_id, grade in grades.items()
        )
        return {
            "corpus": self.corpus_digest(),
            "queries": digest(rows(self.queries)),
            "qrels": digest(judged),
        }

    def corpus_digest(self) -> str:
        """SHA-256 of the corpus, kept beside its rows in the library's cache: every command asks for it."""
        dataset = self.prepare("corpus")
        kept = Path(dataset.cache_files[0]["filename"]).with_name("rows.sha256")
        if not kept.exists():
            corpus_digest = digest_batches(read_batches(dataset))
            write_whole(kept, lambda temporary: temporary.write_text(corpus_digest))
        return kept.read_text()

    @cached_property
    def sidecar_root(self) -> str:
        """The folder of the candidate lists."""
        return self.builder("queries").sidecar_root()

    def sidecar_path(self, config: str) -> str:
        """Where the split's candidate lists of a config are, or go."""
        return f"{self.sidecar_root}/{config}/{self.split}.parquet"


def read_batches(dataset: datasets.Dataset) -> Iterator[pa.RecordBatch]:
    """The rows from the library's cache files, a batch at a time: what has been read does not stay in memory."""
    for cache_file in dataset.cache_files:
        with pa.OSFile(cache_file["filename"]) as file, pa.ipc.open_stream(file) as batches:
            yield from batches


def cut(sizes: np.ndarray, limit: int) -> list[tuple[int, int]]:
    """Consecutive stretches (start, end) of about `limit` bytes each: none exceeds it by more than a row."""
    stretch = (np.cumsum(sizes) - sizes) // limit
    starts = [int(start) for start in np.flatnonzero(np.diff(stretch, prepend=-1))]
    return list(pairwise([*starts, len(sizes)]))


def digest_batches(batches: Iterable[pa.RecordBatch]) -> str:
    """`digest` of the first two columns' rows: its bytes are those of an array of joined strings."""
    sha256 = hashlib.sha256()
    for batch in batches:
        lengths = [pc.cast(pc.binary_length(column), pa.string()) for column in batch.columns[:2]]
        joined = pc.binary_join_element_wise(lengths[0], ":", batch[0], lengths[1], ":", batch[1], "")
        _, offsets, values = joined.buffers()
        if len(joined):
            sha256.update(memoryview(values)[: np.frombuffer(offsets, np.int32)[len(joined)]])
    return sha256.hexdigest()


def rows(table: pa.Table) -> Iterator[tuple[str, ...]]:
    """A table of strings, row by row, without holding more than a batch in memory."""
    for batch in table.to_batches(max_chunksize=256):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def add_collection_arguments(parser: argparse.ArgumentParser) -> None:
    """DATASET, --data-dir, --sidecars and --splits: what every command on collections takes."""
    parser.add_argument("dataset", choices=BUILDERS, metavar="DATASET", help=" or ".join(BUILDERS))
    parser.add_argument("--data-dir", metavar="DIR", help="folder or URL of the upstream files; default: the official")
    parser.add_argument("--sidecars", metavar="DIR", help="folder of the candidate lists; default: the data folder")
    parser.add_argument("--splits", nargs="+", metavar="SPLIT", help="only these splits; default: all")


def disable_progress_off_terminal() -> None:
    """The library's progress bars are for a person at a terminal."""
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()


def open_collections(arguments: argparse.Namespace) -> list[Collection]:
    """The collections the arguments name, in the dataset's order of splits."""
    disable_progress_off_terminal()
    splits = BUILDERS[arguments.dataset].ALL_SPLITS
    chosen = arguments.splits or splits
    for split in chosen:
        if split not in splits:
            raise InputError(f"unknown split '{split}'; {arguments.dataset} has {', '.join(splits)}")
    return [
        Collection(arguments.dataset, split, arguments.data_dir, arguments.sidecars)
        for split in splits
        if split in chosen
    ]
