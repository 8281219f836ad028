"""Sidecars: one Parquet file of candidate lists a split, with the recipe it was made by in its metadata."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from NanoDAPFAM import is_url, shown
from tools import __version__
from tools.collection import Collection
from tools.errors import InputError
from tools.files import write_whole

SCHEMA = pa.schema(
    [("query-id", pa.string()), ("corpus-ids", pa.list_(pa.string())), ("scores", pa.list_(pa.float64()))]
)


@dataclass(frozen=True)
class Sidecar:
    """A split's candidate lists: for each query, in query order, document ids from rank 1 and their scores."""

    query_ids: list[str]
    corpus_ids: list[list[str]]
    scores: list[list[float]]
    recipe: dict


def write_sidecar(path: str, sidecar: Sidecar, replace: bool = True) -> None:
    """Writes a split's lists, whole or not at all."""
    table = pa.table([sidecar.query_ids, sidecar.corpus_ids, sidecar.scores], schema=SCHEMA)
    table = table.replace_schema_metadata({"recipe": json.dumps(sidecar.recipe, sort_keys=True)})
    write_whole(local_path(path), lambda temporary: pq.write_table(table, temporary), replace)


def read_sidecar(path: str) -> Sidecar:
    """Reads a split's lists and recipe; InputError where the file is missing or is no sidecar."""
    try:
        table = pq.read_table(local_path(path))
        recipe = json.loads((table.schema.metadata or {})[b"recipe"])
        table = table.select(SCHEMA.names).cast(SCHEMA)
        query_ids, corpus_ids, scores = (table[name].to_pylist() for name in SCHEMA.names)
        paired = all(len(ids) == len(set(ids)) == len(of_ids) for ids, of_ids in zip(corpus_ids, scores, strict=True))
        if not (paired and isinstance(recipe["digests"], dict) and isinstance(recipe["parameters"], dict)):
            raise ValueError("a list with an id twice or without a score each, or a recipe of something else")
    except FileNotFoundError:
        raise InputError(f"{path}: no candidate lists there; build them first") from None
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"{path}: not a sidecar ({type(error).__name__}); build it again with --overwrite") from error
    return Sidecar(query_ids, corpus_ids, scores, recipe)


def local_path(path: str) -> Path:
    """A sidecar's path; InputError where it is a URL, which cannot be written to."""
    if is_url(path):
        raise InputError(f"{shown(path)}: candidate lists are kept in a local folder; name one with --sidecars")
    return Path(path)


def recipe(collection: Collection, config: str, parameters: dict, counts: dict | None = None) -> dict:
    """What a sidecar was made of and how. `parameters` fix the result; `counts` are what came out of it."""
    return {
        "dataset": collection.dataset,
        "split": collection.split,
        "config": config,
        "parameters": parameters,
        "counts": counts or {},
        "tool": f"tools {__version__}",
        "digests": collection.digests,
    }


def is_current(path: str, wanted: dict, overwrite: bool) -> bool:
    """Whether a sidecar with this recipe is there already; InputError where another is that must not be replaced."""
    if not local_path(path).exists():
        return False
    try:
        found = read_sidecar(path).recipe
    except InputError:
        if overwrite:
            return False
        raise
    if {**found, "counts": None} == {**wanted, "counts": None}:
        return True
    if not overwrite:
        differing = [key for key in ("parameters", "digests", "tool") if found.get(key) != wanted[key]]
        raise InputError(
            f"{path}: exists, made with other {' and '.join(differing) or 'data'}; replace it with --overwrite"
        )
    return False


def describe_counts(sidecar: Sidecar) -> str:
    """What came of building the lists, in words: "200 queries, 3 safeguards"."""
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sidecar.recipe["counts"].items())


def bring_up_to_date(
    collection: Collection, config: str, parameters: dict, build: Callable[[], Sidecar], overwrite: bool
) -> None:
    """Builds and writes a split's lists unless they are there already; says which, in a line on stdout."""
    path, wanted = collection.sidecar_path(config), recipe(collection, config, parameters)
    there_already = is_current(path, wanted, overwrite)
    if not there_already:
        sidecar = build()
        try:
            write_sidecar(path, sidecar, replace=overwrite)
        except FileExistsError:  # another run was faster: as good, or not to be replaced
            there_already = is_current(path, wanted, overwrite)
    outcome = "is there already, made the same way of the same data" if there_already else describe_counts(sidecar)
    print(f"{path}: {outcome}", flush=True)
