"""Parquet as the Hub reads it best, and as every version of `datasets` loads it.

A split is cut into shards and a shard into row groups by bytes, so that a reader who wants a few rows decodes little.
Chunks are cut by content and pages are indexed, so that pushing a changed split again uploads only what changed. No
schema of Arrow's or features of `datasets` are stored: what a column is follows from Parquet's own types and from the
card, while `datasets` before 4 fails on the feature names that later versions write. snappy is what every reader has
built in; zstd would make real text a third smaller and writing a fifth to a half slower.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from tools.collection import cut, read_batches

SHARD_BYTES, GROUP_BYTES = 500_000_000, 1 << 25  # of rows in memory, before encoding and compression
OFFSET, NUMBER = 4, 8  # bytes
OPTIONS = {"compression": "snappy", "write_page_index": True, "store_schema": False}
if int(pa.__version__.split(".")[0]) >= 21:
    OPTIONS["use_content_defined_chunking"] = True
TEXTS = ("text", "duplicates")  # columns too long for a statistic of theirs to be worth its place
ONCE = ("id", "_id", *TEXTS)  # columns whose values hardly repeat: a dictionary of them is wasted work


@dataclass(frozen=True)
class Part:
    """One split of one config, as staged."""

    config: str
    split: str
    rows: int
    num_bytes: int  # as `datasets` counts them: a string its UTF-8 and an offset, a list its elements and an offset
    files: dict[str, int]  # path in the repository -> size
    digest: str  # XXH3 of the files' contents, one after another: it tells changes, and costs a tenth of SHA-256
    lengths: np.ndarray  # characters of each text, of the configs that have one

    @property
    def download_size(self) -> int:
        return sum(self.files.values())


def row_bytes(table: pa.Table) -> np.ndarray:
    """Bytes of each row. Reads offsets only, so a memory-mapped table's text stays on disk."""
    sizes = np.zeros(len(table), np.int64)
    for column in table.columns:
        starts = np.cumsum([0, *map(len, column.chunks)])
        for start, chunk in zip(starts, column.chunks, strict=False):
            sizes[start : start + len(chunk)] += value_bytes(chunk)
    return sizes


def value_bytes(array: pa.Array) -> np.ndarray:
    """Bytes of each value of an array of strings, lists of strings, or 64-bit numbers."""
    if pa.types.is_string(array.type):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64) + OFFSET
    if pa.types.is_list(array.type):
        ends = np.cumsum(value_bytes(array.flatten()))
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        return np.diff(np.append(0, ends)[np.append(0, np.cumsum(lengths))]) + OFFSET
    return np.full(len(array), NUMBER)


def regroup(batches: Iterator[pa.RecordBatch], lengths: Sequence[int], schema: pa.Schema) -> Iterator[pa.Table]:
    """The batches' rows as tables of the given lengths, which add up to all of them."""
    held: list[pa.RecordBatch] = []
    for length in lengths:
        while sum(map(len, held)) < length:
            held.append(next(batches))
        table = pa.Table.from_batches(held)
        yield table.slice(0, length).cast(schema)
        held = table.slice(length).to_batches()


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without metadata, and with the one name for list elements that every Parquet reader gives them."""
    fields = [
        pa.field(field.name, pa.list_(pa.field("element", field.type.value_type)))
        if pa.types.is_list(field.type)
        else pa.field(field.name, field.type)
        for field in schema
    ]
    return pa.schema(fields)


def column_paths(schema: pa.Schema, exclude: Sequence[str]) -> list[str]:
    """Parquet's names of the columns, without the excluded ones."""
    return [
        f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
        for field in schema
        if field.name not in exclude
    ]


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
        schema,
        use_dictionary=column_paths(schema, ONCE),
        write_statistics=column_paths(schema, TEXTS),
        **OPTIONS,
    )


def write_split(
    dataset: datasets.Dataset, config: str, split: str, folder: Path, constants: Mapping[str, pa.Scalar]
) -> Part:
    """Writes `<config>/<split>-00000-of-0000N.parquet` into the folder; `constants` are more columns, of one value."""
    table = dataset.data.table
    schema = plain_schema(table.schema)
    extended = pa.schema([*schema, *((name, value.type) for name, value in constants.items())])
    sizes = row_bytes(table) + NUMBER * len(constants)
    shards = cut(sizes, SHARD_BYTES) or [(0, 0)]
    groups = [[end - start for start, end in cut(sizes[first:last], GROUP_BYTES)] for first, last in shards]
    tables = regroup(read_batches(dataset), list(chain.from_iterable(groups)), schema)
    files, lengths = {}, [np.zeros(0, np.int32)]
    (folder / config).mkdir(exist_ok=True)
    for number, group_rows in enumerate(groups):
        name = f"{config}/{split}-{number:05}-of-{len(groups):05}.parquet"
        with open_writer(folder / name, extended) as writer:
            for rows in islice(tables, len(group_rows)):
                if "text" in schema.names:
                    lengths.append(pc.utf8_length(rows["text"]).to_numpy())
                for column, value in constants.items():
                    rows = rows.append_column(column, pa.repeat(value, len(rows)))
                writer.write_table(rows, row_group_size=len(rows))
        files[name] = (folder / name).stat().st_size
    digest = digest_files(folder / name for name in files)
    return Part(config, split, len(table), int(sizes.sum()), files, digest, np.concatenate(lengths))


def digest_files(paths: Iterable[Path]) -> str:
    contents = xxhash.xxh3_128()
    for path in paths:
        with path.open("rb") as file:
            for block in iter(lambda file=file: file.read(1 << 20), b""):
                contents.update(block)
    return contents.hexdigest()
