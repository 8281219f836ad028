"""`python -m tools evaluate`: measures candidate lists, or a TREC run, against the qrels.

The measures are trec_eval's, through ir-measures: nDCG@10 with linear gain and log2 discount, MAP, hit@10 (success@10),
recall@10 and recall@100 by pytrec_eval, MRR@10 by MS MARCO's script. A document is relevant with a grade above 0. As
in `trec_eval -c`, every query that has a judgment counts: one without a list as 0, and one whose judgments are all 0
as 0 too; a query without any judgment is left out. A candidate that scores 0 was not retrieved and is not counted.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum
from pathlib import Path

import ir_measures
from ir_measures import AP, RR, R, Success, nDCG
from tqdm import tqdm

from tools.collection import QRELS_CONFIGS, Collection, add_collection_arguments, open_collections
from tools.errors import InputError
from tools.files import write_whole
from tools.runs import BUILT_BY, built_lists, read_lists, read_run
from tools.sidecar import Sidecar, local_path

EXAMPLE = "python -m tools evaluate Poetry50KRetrieval --data-dir poetry --config bm25 reranking_hybrid"
MEASURES = {
    "nDCG@10": nDCG @ 10,
    "MAP": AP,
    "MRR@10": RR @ 10,
    "hit@10": Success @ 10,
    "recall@10": R @ 10,
    "recall@100": R @ 100,
}
ROW = ("config", "split", "qrels", "queries", *MEASURES)

Lists = Mapping[str, Sequence[str]]  # query id -> document ids, best first
PerQuery = dict[str, dict[str, float]]  # query id -> measure -> value


def measure(lists: Lists, qrels: Mapping[str, Mapping[str, int]]) -> PerQuery:
    """The MEASURES of every judged query. The order of a list is the ranking, whatever its scores were."""
    ranked = {
        query_id: {document_id: -float(rank) for rank, document_id in enumerate(document_ids)}
        for query_id, document_ids in lists.items()
    }
    names = {ir_measure: name for name, ir_measure in MEASURES.items()}
    values: PerQuery = {query_id: {} for query_id in qrels}
    for query_id, ir_measure, value in ir_measures.iter_calc(list(names), dict(qrels), ranked):
        values[query_id][names[ir_measure]] = value
    return values


def mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each measure's mean over rows that have all of them."""
    return {name: fsum(row[name] for row in rows) / len(rows) for name in MEASURES}


def mean_over_splits(rows: Sequence[dict]) -> list[dict]:
    """A row for each config and qrels: the mean over their splits, each of which counts the same."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["config"], row["qrels"]), []).append(row)
    return [
        {"config": config, "qrels": qrels, "splits": len(group), "queries": sum(row["queries"] for row in group)}
        | mean(group)
        for (config, qrels), group in groups.items()
    ]


def format_table(rows: Sequence[dict]) -> str:
    """Rows with the keys of ROW as aligned columns, measures to four decimals."""
    cells = [[f"{row[key]:.4f}" if key in MEASURES else str(row[key]) for key in ROW] for row in rows]
    widths = [max(map(len, column)) for column in zip(ROW, *cells, strict=True)]
    lines = []
    for line in (ROW, *cells):
        aligned = [
            cell.ljust(width) if key in ("config", "split", "qrels") else cell.rjust(width)
            for key, cell, width in zip(ROW, line, widths, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def format_per_query(measured: Sequence[tuple[dict, PerQuery]]) -> str:
    """A tab-separated line a query, with a header; values in full precision."""
    lines = [("config", "split", "qrels", "query-id", *MEASURES)]
    for row, values in measured:
        for query_id, of_query in values.items():
            named = (row["config"], row["split"], row["qrels"], query_id)
            lines.append((*named, *(repr(float(of_query[name])) for name in MEASURES)))
    return "".join("\t".join(line) + "\n" for line in lines)


def present_configs(collections: Sequence[Collection]) -> list[str]:
    """The configs that have lists of any of the splits, the builders' own first."""
    found = {config for collection in collections for config in built_lists(collection)}
    if not found:
        place = collections[0].sidecar_path("*").rsplit("/", 2)[0]
        raise InputError(f"{place}: no candidate lists there; build some with bm25, dense or hybrid")
    return [config for config in BUILT_BY if config in found] + sorted(found - set(BUILT_BY))


def read_checked_run(path: str, collection: Collection) -> Lists:
    """A TREC run of the collection; on stderr, how many of its ids the collection does not have.

    An unknown query's list is not measured; an unknown document holds its rank and is not relevant, as in trec_eval.
    """
    lists = read_run(path)
    query_ids = set(collection.queries["id"].to_pylist())
    if query_ids.isdisjoint(lists):
        raise InputError(
            f"{path}: none of its queries is one of {collection.dataset}/{collection.split}; is it that run?"
        )
    corpus_ids = set(collection.corpus["id"].to_pylist())
    document_ids = dict.fromkeys(document_id for document_ids in lists.values() for document_id in document_ids)
    for what, unknown in (
        ("queries", [query_id for query_id in lists if query_id not in query_ids]),
        ("documents", [document_id for document_id in document_ids if document_id not in corpus_ids]),
    ):
        if unknown:
            print(f"{path}: {len(unknown)} unknown {what}, such as '{unknown[0]}'", file=sys.stderr)
    return lists


def retrieved(sidecar: Sidecar) -> Lists:
    """Each query's candidates without those that score 0: no method found them, they fill a list up or safeguard it."""
    return {
        query_id: [document_id for document_id, score in zip(document_ids, scores, strict=True) if score != 0]
        for query_id, document_ids, scores in zip(sidecar.query_ids, sidecar.corpus_ids, sidecar.scores, strict=True)
    }


def read_named(
    collection: Collection, configs: Sequence[str], run_file: str | None, every: bool
) -> Iterator[tuple[str, Lists]]:
    """Name and lists of each config and of the run; a config without lists is left out unless `every` must be there."""
    for config in configs:
        if every or local_path(collection.sidecar_path(config)).exists():
            yield config, retrieved(read_lists(collection, config))
    if run_file:
        yield Path(run_file).name, read_checked_run(run_file, collection)


def measure_named(
    collection: Collection, named: Iterable[tuple[str, Lists]], qrels_configs: Sequence[str]
) -> Iterator[tuple[dict, PerQuery]]:
    """A row, and the values it is the mean of, for each of the named lists and each qrels config."""
    all_qrels = {config: collection.qrels(config) for config in qrels_configs}
    for name, lists in named:
        for qrels_config, qrels in all_qrels.items():
            if not qrels:
                raise InputError(
                    f"{collection.dataset}/{collection.split}: no judgments in {qrels_config} to measure by"
                )
            values = measure(lists, qrels)
            row = {"config": name, "split": collection.split, "qrels": qrels_config, "queries": len(values)}
            yield row | mean(list(values.values())), values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)
    parser.add_argument(
        "--config", nargs="+", metavar="NAME", help="the candidate lists to measure; default: all there are"
    )
    parser.add_argument("--run", dest="run_file", metavar="FILE", help="a TREC run to measure, of one split")
    parser.add_argument("--qrels", metavar="NAME", help="qrels_max or qrels_min, for poetry; default: both")
    parser.add_argument("--json", action="store_true", help="one JSON document, in full precision")
    parser.add_argument("--per-query", metavar="FILE", help="also write every query's values to FILE, tab-separated")


def run(arguments: argparse.Namespace) -> int:
    """Prints a row for each config, split and qrels, then their means over the splits."""
    collections = open_collections(arguments)
    known_qrels = QRELS_CONFIGS[arguments.dataset]
    if arguments.qrels and arguments.qrels not in known_qrels:
        raise InputError(f"--qrels {arguments.qrels}: {arguments.dataset} has {' and '.join(known_qrels)}")
    if arguments.run_file and len(collections) > 1:
        raise InputError(f"--run {arguments.run_file}: a run is of one split; name it with --splits")
    configs = list(dict.fromkeys(arguments.config or ([] if arguments.run_file else present_configs(collections))))
    measured = []
    for collection in tqdm(collections, desc="evaluate", unit="split", disable=None):
        named = read_named(collection, configs, arguments.run_file, every=bool(arguments.config))
        measured += measure_named(collection, named, [arguments.qrels] if arguments.qrels else known_qrels)
    rows = [row for row, _ in measured]
    means = mean_over_splits(rows)
    if arguments.per_query:
        text = format_per_query(measured)
        write_whole(Path(arguments.per_query), lambda temporary: temporary.write_text(text, "utf-8"))
    if arguments.json:
        print(json.dumps({"dataset": arguments.dataset, "rows": rows, "means": means}, indent=2))
    else:
        over = [row | {"split": f"mean of {row['splits']}"} for row in means if len(collections) > 1]
        print(format_table(rows + over))
    return 0
