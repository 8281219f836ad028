"""judged.parquet: which judged pages the corpus has, so that loading Poetry50KRetrieval's qrels need not read it."""

import argparse
import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from Poetry50KRetrieval import CORPUS_FILE, QRELS_FILES, content_mark, read_qrels
from tools.collection import add_collection_arguments, open_collections
from tools.errors import InputError
from tools.files import write_whole
from tools.sidecar import local_path

EXAMPLE = "python -m tools judged Poetry50KRetrieval --data-dir /tmp/sample/poetry"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.dataset != "Poetry50KRetrieval":
        raise InputError(f"{arguments.dataset} has no judged.parquet; only Poetry50KRetrieval's qrels read the corpus")
    (collection,) = open_collections(arguments)
    builder = collection.builder("qrels_max")
    path = local_path(builder.judged_sidecar())
    judged = sorted({page for name in QRELS_FILES.values() for _, page, _ in read_qrels(builder.upstream(name))})
    in_corpus = pc.is_in(pa.array(judged, pa.string()), collection.corpus["id"].combine_chunks())
    recipe = json.dumps({"dataset": arguments.dataset, "corpus": content_mark(builder.upstream(CORPUS_FILE))})
    table = pa.table({"id": judged, "in_corpus": in_corpus}).replace_schema_metadata({"recipe": recipe})
    write_whole(path, lambda temporary: pq.write_table(table, temporary))
    print(f"{path}: {len(judged)} judged pages, {pc.sum(in_corpus).as_py() or 0} of them in the corpus")
    return 0
