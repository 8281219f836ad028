"""`python -m tools export`: a dataset in the layouts of BEIR and of TREC.

beir  corpus.jsonl (_id, title, text; the title is in the text already, and empty), queries.jsonl (_id, text) and
      qrels/test.tsv (query-id, corpus-id, score, with a header). Of poetry that is qrels_max; qrels_min is
      qrels/test_min.tsv.
trec  topics.tsv (id, tab, text: what Pyserini and ir_datasets' TsvQueries read), one QRELS_CONFIG.txt for each qrels
      config (topic 0 document grade), one run.CONFIG.txt for each built candidate config, and corpus/documents.jsonl
      (id, contents: Pyserini's JsonCollection).

Poetry's files are in the folder itself, NanoDAPFAM's in a folder a split.
"""

import argparse
import csv
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
from tqdm import tqdm

from NanoDAPFAM import quoted
from tools.collection import QRELS_CONFIGS, Collection, add_collection_arguments, open_collections, rows
from tools.errors import InputError
from tools.runs import built_lists, read_lists
from tools.sidecar import Sidecar

EXAMPLE = "python -m tools export Poetry50KRetrieval --data-dir /tmp/sample/poetry --format trec --out /tmp/poetry-trec"
BEIR_QRELS = {"qrels_max": "test", "qrels_min": "test_min", "qrels": "test"}  # config -> what BEIR calls the split
LINE_BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")  # what some reader ends a line or a column at


def create(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "w", encoding="utf-8", newline="\n")


def write_json_lines(path: Path, records: Iterable[dict]) -> None:
    # Non-ASCII characters are escaped: some of them end a line for some readers.
    with create(path) as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def read_judgments(collection: Collection, config: str) -> Iterator[tuple[str, str, int]]:
    """A qrels config's rows as (query id, document id, grade)."""
    for query_id, grades in collection.qrels(config).items():
        for document_id, grade in grades.items():
            yield query_id, document_id, grade


def export_beir(collection: Collection, folder: Path, configs: Sequence[str] | None) -> Iterator[str]:
    """Writes a split in BEIR's layout; yields a line on each file."""
    if configs:
        raise InputError("--config: BEIR's layout has no candidate lists; use --format trec")
    documents = ({"_id": row_id, "title": "", "text": text} for row_id, text in rows(collection.corpus))
    write_json_lines(folder / "corpus.jsonl", documents)
    yield f"corpus.jsonl: {len(collection.corpus)} documents"
    queries = ({"_id": row_id, "text": text} for row_id, text in rows(collection.queries))
    write_json_lines(folder / "queries.jsonl", queries)
    yield f"queries.jsonl: {len(collection.queries)} queries"
    for config in QRELS_CONFIGS[collection.dataset]:
        judgments = list(read_judgments(collection, config))
        with create(folder / "qrels" / f"{BEIR_QRELS[config]}.tsv") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(("query-id", "corpus-id", "score"))
            writer.writerows(judgments)
        yield f"qrels/{BEIR_QRELS[config]}.tsv: {len(judgments)} judgments of {config}"


def export_trec(collection: Collection, folder: Path, configs: Sequence[str] | None) -> Iterator[str]:
    """Writes a split as TREC files; yields a line on each."""
    for table in (collection.queries, collection.corpus):
        check_columns(table["id"].to_pylist(), f"{collection.dataset}/{collection.split}")
    documents = ({"id": row_id, "contents": text} for row_id, text in rows(collection.corpus))
    write_json_lines(folder / "corpus" / "documents.jsonl", documents)
    yield f"corpus/documents.jsonl: {len(collection.corpus)} documents"
    with create(folder / "topics.tsv") as file:
        file.writelines(f"{row_id}\t{one_line(text)}\n" for row_id, text in rows(collection.queries))
    yield f"topics.tsv: {len(collection.queries)} topics"
    for config in QRELS_CONFIGS[collection.dataset]:
        judgments = list(read_judgments(collection, config))
        with create(folder / f"{config}.txt") as file:
            file.writelines(f"{query_id} 0 {document_id} {grade}\n" for query_id, document_id, grade in judgments)
        yield f"{config}.txt: {len(judgments)} judgments"
    for config in configs or built_lists(collection):
        sidecar = read_lists(collection, config)
        lines = list(run_lines(sidecar, config))
        with create(folder / f"run.{config}.txt") as file:
            file.writelines(lines)
        left_out = sum(map(len, sidecar.corpus_ids)) - len(lines)
        said = f", {left_out} that score 0 left out" if left_out else ""
        yield f"run.{config}.txt: {len(lines)} candidates{said}"


def check_columns(ids: Iterable[str], where: str) -> None:
    """InputError for an id that TREC's columns, which any white space ends, cannot hold."""
    for row_id in ids:
        if row_id.split() != [row_id]:
            raise InputError(
                f"{where}: id {quoted(row_id)} is empty or has white space in it; TREC files cannot hold it"
            )


def one_line(text: str) -> str:
    return LINE_BREAKS.sub(" ", text)


def run_lines(sidecar: Sidecar, tag: str) -> Iterator[str]:
    """Lists as lines of a TREC run: query Q0 document rank score tag.

    A candidate that scores 0 was not retrieved and is left out, as `evaluate` leaves it out.
    """
    for query_id, document_ids, scores in zip(sidecar.query_ids, sidecar.corpus_ids, sidecar.scores, strict=True):
        scored = [(document_id, score) for document_id, score in zip(document_ids, scores, strict=True) if score != 0]
        strict = strictly_decreasing([score for _, score in scored])
        for rank, ((document_id, _), score) in enumerate(zip(scored, strict, strict=True), 1):
            yield f"{query_id} Q0 {document_id} {rank} {score!s} {tag}\n"


def strictly_decreasing(scores: Iterable[float]) -> list[np.float32]:
    """The scores in single precision, as trec_eval holds them; one not below the one before is the next float below.

    trec_eval orders by score and breaks ties by document id: with no ties left the order of the list is the ranking.
    """
    lowered: list[np.float32] = []
    for score in map(np.float32, scores):
        if lowered and not score < lowered[-1]:
            score = np.nextafter(lowered[-1], np.float32(-np.inf))
        lowered.append(score)
    return lowered


EXPORT: dict[str, Callable[[Collection, Path, Sequence[str] | None], Iterator[str]]] = {
    "beir": export_beir,
    "trec": export_trec,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)
    parser.add_argument("--format", choices=EXPORT, required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write; must not exist")
    parser.add_argument(
        "--config", nargs="+", metavar="NAME", help="the candidate lists to write as runs; default: all there are"
    )


def run(arguments: argparse.Namespace) -> int:
    """Fills a temporary folder beside --out and renames it at the end; says on stdout what is in it."""
    collections = open_collections(arguments)
    out = Path(os.path.abspath(arguments.out))
    if os.path.lexists(out):
        raise InputError(f"--out {arguments.out}: exists already; name a folder that does not")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".incomplete", dir=out.parent))
    lines = []
    try:
        for collection in tqdm(collections, desc=arguments.format, unit="split", disable=None):
            inside = collection.split if arguments.dataset == "NanoDAPFAM" else ""
            written = EXPORT[arguments.format](collection, temporary / inside, arguments.config)
            lines += [str(arguments.out / inside / line) for line in written]
        temporary.chmod(0o755)
        os.rename(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print("\n".join(lines))
    return 0
