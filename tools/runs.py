"""Runs: for each query its ranked document ids, from a sidecar of a collection or from a TREC run file."""

import re
import shlex
from collections.abc import Iterable
from math import isfinite
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import NanoDAPFAM
from NanoDAPFAM import file_state, is_url, quoted, shown
from tools.collection import BUILDERS, Collection
from tools.errors import InputError
from tools.sidecar import Sidecar, local_path, read_sidecar

BUILT_BY = {**NanoDAPFAM.BUILT_BY, "lsa": "dense"}  # config -> the command that builds its lists
RUN_COLUMNS = "query Q0 document rank score tag"


def check_config(config: str, dataset: str, command: str) -> None:
    """InputError where a command's lists must not get this name: another command's, or no folder's."""
    builder_configs = [builder_config.name for builder_config in BUILDERS[dataset].BUILDER_CONFIGS]
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", config):
        raise InputError(
            f"--config '{config}': lists are kept in a folder of that name; use letters, digits, _ . and -"
        )
    if config not in BUILT_BY and config in builder_configs:
        raise InputError(f"--config {config}: {dataset} has a config of that name; choose another")
    if BUILT_BY.get(config, command) != command:
        raise InputError(f"--config {config}: those lists are built with {BUILT_BY[config]}; choose another name")


def build_command(collection: Collection, config: str) -> str:
    """The command line that builds the collection's lists of a config."""
    words = ["python", "-m", "tools", BUILT_BY.get(config, "dense"), collection.dataset]
    for option, value in (("--data-dir", collection.data_dir), ("--sidecars", collection.sidecar_dir)):
        words += [option, shown(value)] if value else []
    if len(BUILDERS[collection.dataset].ALL_SPLITS) > 1:
        words += ["--splits", collection.split]
    if config == "lsa":
        words += ["--model", "lsa"]
    elif config not in BUILT_BY:
        words += ["--model", "MODEL", "--config", config]
    return shlex.join(words)


def without_text(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which texts are empty or white space only, bool."""
    return pc.or_(pc.equal(pc.binary_length(texts), 0), pc.utf8_is_space(texts))


def check_texts(collection: Collection) -> None:
    """InputError where there is nothing to rank: no documents, no queries, or a query without text."""
    for what, table in (("documents", collection.corpus), ("queries", collection.queries)):
        if not len(table):
            raise InputError(
                f"{collection.dataset}/{collection.split}: there are no {what}; look at the upstream files"
            )
    first = pc.index(without_text(collection.queries["text"]), True).as_py()
    if first >= 0:
        query_id = collection.queries["id"][first].as_py()
        raise InputError(f"{collection.split}: query {quoted(query_id)} has no text; nothing can be ranked for it")


def candidates_per_query(asked: int | None, default: int, collection: Collection) -> int:
    """As many as asked for, or the default, or the whole corpus if that is smaller than the default."""
    documents = len(collection.corpus)
    if asked is not None and not 1 <= asked <= documents:
        raise InputError(f"--top-k {asked}: from 1 to {documents}, the documents of {collection.split}")
    return asked or min(default, documents)


def built_lists(collection: Collection) -> dict[str, str]:
    """Config -> where its lists of the split are: the builders' own configs, and after them any other that has some."""
    folder, _, file = collection.sidecar_path("*").rsplit("/", 2)
    found = [] if is_url(folder) else sorted(path.parent.name for path in Path(folder).glob(f"*/{file}"))
    places = {config: f"{folder}/{config}/{file}" for config in (*NanoDAPFAM.BUILT_BY, *found)}
    return {config: place for config, place in places.items() if file_state(place) != "missing"}


def read_lists(collection: Collection, config: str) -> Sidecar:
    """The collection's lists of a config; InputError where they are missing, damaged, of another split, or stale."""
    path, command = collection.sidecar_path(config), build_command(collection, config)
    if not local_path(path).exists():
        raise InputError(f"{path}: no candidate lists there; build them with: {command}")
    try:
        sidecar = read_sidecar(path)
    except InputError as error:
        raise InputError(f"{error}: {command} --overwrite") from error
    made_for = [str(sidecar.recipe.get(key)) for key in ("dataset", "config", "split")]
    if made_for != [collection.dataset, config, collection.split]:
        wanted = f"{collection.dataset}/{config}/{collection.split}"
        raise InputError(
            f"{path}: made for {'/'.join(made_for)}, not for {wanted}; build it again: {command} --overwrite"
        )
    digests = sidecar.recipe["digests"]
    if other := " and ".join(name for name, digest in collection.digests.items() if digests.get(name) != digest):
        raise InputError(f"{path}: stale, made with other {other}; build it again: {command} --overwrite")
    if sidecar.query_ids != collection.queries["id"].to_pylist():
        raise InputError(f"{path}: its rows are not the split's queries; build it again: {command} --overwrite")
    return sidecar


def parse_run(lines: Iterable[str], name: str) -> dict[str, list[str]]:
    """Query id -> document ids, best first, of a run in TREC's six columns; `name` is the file's, for errors.

    As in trec_eval the scores decide, not the rank column or the order of lines, and equal scores are ordered by
    document id, descending. Unlike there, scores are not rounded to single precision before.
    """
    scores: dict[str, dict[str, float]] = {}
    for number, line in enumerate(lines, 1):
        columns = line.split()
        if not columns:
            continue
        if len(columns) != 6:
            raise InputError(f"{name}:{number}: {len(columns)} columns, expected 6: {RUN_COLUMNS}")
        query_id, _, document_id, _, score, _ = columns
        scored = scores.setdefault(query_id, {})
        if document_id in scored:
            raise InputError(f"{name}:{number}: a second {quoted(document_id)} for query {quoted(query_id)}; keep one")
        try:
            scored[document_id] = float(score)
        except ValueError:
            raise InputError(f"{name}:{number}: score {quoted(score)} is not a number") from None
        if not isfinite(scored[document_id]):
            raise InputError(f"{name}:{number}: score {quoted(score)} is not finite")
    return {
        query_id: sorted(scored, key=lambda document_id: (scored[document_id], document_id), reverse=True)
        for query_id, scored in scores.items()
    }


def read_run(path: str) -> dict[str, list[str]]:
    """A TREC run file, as `parse_run` gives it."""
    try:
        return parse_run(Path(path).read_text("utf-8-sig").splitlines(), path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a TREC run: it is not UTF-8 text") from error
