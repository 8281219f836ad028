"""`python -m tools verify`: whether a build is what its rules, its recipes and the published figures say.

With --data-dir the structure is checked; of the official upstream also dataset_infos.json and tools/published.json.
`--against` compares row for row with another copy: a staged folder or a repository on the Hub.
"""

import argparse
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

import NanoDAPFAM
import Poetry50KRetrieval
from Poetry50KRetrieval import QRELS_FILES, file_state, open_random_access, open_stream
from tools import evaluate, hybrid
from tools.checks import (
    FAIL,
    NOT_BUILT,
    Check,
    all_but,
    check_equal_lists,
    check_figures,
    check_forced,
    check_ids,
    check_lengths,
    check_limit,
    check_lists,
    check_positives,
    check_qrels,
    check_recipe,
    check_same_pairs,
    compare,
    compare_rows,
    format_checks,
    recipe_kind,
)
from tools.collection import BUILDERS, QRELS_CONFIGS, Collection, add_collection_arguments, open_collections
from tools.errors import InputError
from tools.infos import INFOS, num_bytes, read_infos
from tools.runs import BUILT_BY, built_lists
from tools.sidecar import SCHEMA, Sidecar, recipe

EXAMPLE = "python -m tools verify Poetry50KRetrieval --data-dir /tmp/sample/poetry"
PUBLISHED = Path(__file__).with_name("published.json")
NOT_A_SIDECAR = (pa.ArrowException, OSError, KeyError, ValueError, TypeError)
MEASURES = {"ndcg_at_10": "nDCG@10", "hit_at_10": "hit@10", "recall_at_100": "recall@100"}  # published -> evaluate's
ROWS = 256  # compared at a time


# ---- Structure ----


def check_structure(collection: Collection) -> list[Check]:
    """Corpus, queries and qrels by themselves and against each other."""
    split, query_ids, corpus_ids = collection.split, *(ids(table) for table in (collection.queries, collection.corpus))
    checks = [check_ids(f"corpus/{split}", corpus_ids), check_ids(f"queries/{split}", query_ids)]
    qrels = {config: judgments(collection.table(config)) for config in QRELS_CONFIGS[collection.dataset]}
    positives: dict[str, list[str]] = {}
    for query_id, document_id, grade in next(iter(qrels.values())):
        positives.setdefault(query_id, []).extend([document_id] if grade > 0 else [])
    checks.append(check_positives(f"queries/{split}", query_ids, positives))
    for config in qrels:
        checks += check_qrels(f"{config}/{split}", qrels[config], query_ids, set(corpus_ids))
    return checks + list(CHECK_SELECTION[collection.dataset](collection, qrels))


def ids(table: pa.Table) -> list[str]:
    return table["id"].to_pylist()


def judgments(qrels: pa.Table) -> list[tuple[str, str, float]]:
    grades = qrels["score"].to_pylist() if "score" in qrels.column_names else [1.0] * len(qrels)
    return list(zip(qrels["query-id"].to_pylist(), qrels["corpus-id"].to_pylist(), grades, strict=True))


def check_nano_selection(collection: Collection, qrels: Mapping[str, list]) -> Iterator[Check]:
    """The split has as many queries and documents as it may, no text twice, and all positives of its queries."""
    split, builder = collection.split, collection.builder("corpus")
    scope, query_view, corpus_view = NanoDAPFAM.SPLITS[split]
    positives = NanoDAPFAM.read_positives(builder.upstream(NanoDAPFAM.RELATIONS_FILE), scope)
    asked = upstream_texts(builder.upstream(NanoDAPFAM.QUERIES_FILE), "query_id", query_view, set(positives))
    yield check_limit(f"queries/{split}", NanoDAPFAM.QUERIES, len(set(asked.values())), len(collection.queries))

    texts = [text_digest(text) for batch in collection.corpus.to_batches(ROWS) for text in batch.column("text")]
    holders = dict(zip(texts, ids(collection.corpus), strict=True))  # text -> the document that has it
    corpus_ids = set(ids(collection.corpus))
    cited = {document_id for query_id in ids(collection.queries) for document_id in positives.get(query_id, ())}
    # Only a split that is not full takes a pass over the upstream to count what there is.
    wanted = cited - corpus_ids if len(texts) >= NanoDAPFAM.DOCUMENTS else None
    filed = upstream_texts(builder.upstream(NanoDAPFAM.CORPUS_FILE), "relevant_id", corpus_view, wanted)
    available = NanoDAPFAM.DOCUMENTS if wanted is not None else len(set(filed.values()))
    yield check_limit(f"corpus/{split}", NanoDAPFAM.DOCUMENTS, available, len(texts))
    yield compare(f"corpus/{split} texts unique", len(texts), len(holders))
    left_out = (cited & set(filed)) - corpus_ids  # rightly so where a document of the same text was taken
    uncovered = sorted(document_id for document_id in left_out if filed[document_id] not in holders)
    yield all_but(f"corpus/{split} positives covered", len(cited), uncovered)

    def place(document_id: str) -> str | None:
        return document_id if document_id in corpus_ids else holders.get(filed.get(document_id))

    placed = {(q, place(d)) for q in ids(collection.queries) for d in positives.get(q, ()) if place(d)}
    yield check_same_pairs(f"qrels/{split}", qrels["qrels"], {pair: 1 for pair in placed})


def upstream_texts(location: str, id_column: str, view: str, wanted: set[str] | None) -> dict[str, bytes]:
    """Id -> digest of the view's text, of the wanted upstream rows (all, if not told)."""
    title, *body = NanoDAPFAM.VIEWS[view]
    names = [id_column, title, *body]
    parquet = NanoDAPFAM.open_parquet(location, names)
    upstream_ids = parquet.read([id_column])[id_column].to_pylist()
    chosen = np.array([wanted is None or upstream_id in wanted for upstream_id in upstream_ids], bool)
    digests = {}
    for column, titles, *bodies in NanoDAPFAM.read_rows(parquet, location, names, chosen):
        of_queries = id_column == "query_id"
        texts = NanoDAPFAM.join_fields([titles, *bodies]) if of_queries else NanoDAPFAM.document_texts(titles, bodies)
        digests |= zip(column.to_pylist(), map(text_digest, texts), strict=True)
    return digests


def text_digest(text: pa.StringScalar) -> bytes:
    return hashlib.blake2b(text.as_buffer(), digest_size=16).digest()


def check_poetry_selection(collection: Collection, qrels: Mapping[str, list]) -> Iterator[Check]:
    """The qrels are the upstream's judgments of pages that the corpus has, and judged.parquet, if there, says which."""
    builder, corpus_ids, judged = collection.builder("qrels_max"), set(ids(collection.corpus)), set()
    for config, name in QRELS_FILES.items():
        upstream = Poetry50KRetrieval.read_qrels(builder.upstream(name))
        judged |= {page for _, page, _ in upstream}
        kept = {(topic, page): grade for topic, page, grade in upstream if page in corpus_ids}
        yield check_same_pairs(f"{config}/{collection.split}", qrels[config], kept)
    path, corpus = builder.judged_sidecar(), builder.upstream(Poetry50KRetrieval.CORPUS_FILE)
    if file_state(path) == "missing":
        yield Check("judged.parquet", "fresh", None, NOT_BUILT)
        return
    try:
        with open_random_access(path) as file:
            table = pq.read_table(file)
        made_of = json.loads(table.schema.metadata[b"recipe"])["corpus"]
        said = dict(zip(table["id"].to_pylist(), table["in_corpus"].to_pylist(), strict=True))
    except NOT_A_SIDECAR as error:
        yield Check("judged.parquet", "fresh", f"not readable: {type(error).__name__}", FAIL)
        return
    fresh = made_of == Poetry50KRetrieval.content_mark(corpus)
    yield compare("judged.parquet", "fresh", "fresh" if fresh else "made of another corpus file")
    wrong = sorted(page for page in judged if said.get(page) is not (page in corpus_ids))
    yield all_but("judged.parquet pages right", len(judged), wrong)


CHECK_SELECTION = {"Poetry50KRetrieval": check_poetry_selection, "NanoDAPFAM": check_nano_selection}


# ---- Candidate lists ----


def read_unchecked(path: str) -> Sidecar:
    """A sidecar whose lists may be anything of the right types; one of NOT_A_SIDECAR otherwise."""
    with open_random_access(path) as file:
        table = pq.read_table(file)
    recipe_of = json.loads((table.schema.metadata or {})[b"recipe"])
    table = table.select(SCHEMA.names).cast(SCHEMA)
    if any(column.null_count for column in (*table.columns, *map(pc.list_flatten, table.columns[1:]))):
        raise ValueError("nulls in it")
    if not (isinstance(recipe_of["digests"], dict) and isinstance(recipe_of["parameters"], dict)):
        raise TypeError("a recipe of something else")
    return Sidecar(*(table[name].to_pylist() for name in SCHEMA.names), recipe_of)


def check_candidates(
    collection: Collection, config: str, built: Mapping[str, str], figures: Mapping | None, info: Mapping
) -> list[Check]:
    """A config's lists of the split: structure, recipe, rule, and the figures published for lists made that way."""
    name = f"{config}/{collection.split}"
    if config not in built:
        return [Check(f"{name} lists", len(collection.queries), None, NOT_BUILT)]
    try:
        sidecar = read_unchecked(built[config])
    except NOT_A_SIDECAR as error:
        return [Check(f"{name} lists", len(collection.queries), f"not readable: {type(error).__name__}", FAIL)]
    ranked = dict(zip(sidecar.query_ids, sidecar.corpus_ids, strict=True))
    scored = dict(zip(sidecar.query_ids, zip(sidecar.corpus_ids, sidecar.scores, strict=True), strict=True))
    parameters, query_ids, corpus_ids = (
        sidecar.recipe["parameters"],
        ids(collection.queries),
        set(ids(collection.corpus)),
    )
    checks = [
        compare(f"{name} lists", len(query_ids), len(sidecar.query_ids)),
        *check_lists(name, scored, query_ids, corpus_ids),
        *check_lengths(name, ranked, parameters, len(collection.corpus)),
        *check_recipe(name, sidecar.recipe, recipe(collection, config, {})),
    ]
    if parameters.get("force_positives"):
        checks.append(check_forced(name, ranked, collection.positives()))
    if "sources" in parameters:
        checks += check_fusion(collection, config, sidecar, built)
    if figures:
        checks += check_published_lists(collection, config, sidecar, figures, info)
    return checks


def check_fusion(collection: Collection, config: str, found: Sidecar, built: Mapping[str, str]) -> Iterator[Check]:
    """A hybrid's sources are those it was made of, and fusing them again gives its lists, scores and counts."""
    name, parameters = f"{config}/{collection.split}", found.recipe["parameters"]
    sources = {}
    for source, made in parameters["sources"].items():
        if source not in built:
            yield Check(f"{name} source {source}", "the lists it was made of", None, NOT_BUILT)
            return
        try:
            sources[source] = read_unchecked(built[source])
            same = hybrid.source_parameters(sources[source]) == made
        except NOT_A_SIDECAR:
            same = False
        same = same and sources[source].query_ids == ids(collection.queries)
        wanted = "the lists it was made of"
        yield compare(f"{name} source {source}", wanted, wanted if same else "other lists")
        if not same:
            return
    right = hybrid.build(collection, config, parameters, list(sources.values()))
    for what in ("corpus_ids", "scores"):
        of_queries = [dict(zip(made.query_ids, getattr(made, what), strict=False)) for made in (found, right)]
        yield check_equal_lists(f"{name} rule, {what.replace('_', ' ')}", *of_queries)
    yield compare(f"{name} rule, counts", right.recipe["counts"], found.recipe.get("counts"))


# ---- Published figures ----


def check_published_lists(
    collection: Collection, config: str, sidecar: Sidecar, figures: Mapping, info: Mapping
) -> list[Check]:
    """The figures of lists that were made by a published recipe; lists made in another way have none.

    The sizes in dataset_infos.json are those of the measured lists.
    """
    published = figures["splits"].get(collection.split, {}).get("candidates", {})
    if not any(config in of_kind for of_kind in published.values()):
        return []
    name = f"{config}/{collection.split}"
    parameters = sidecar.recipe["parameters"]
    kind = recipe_kind(figures["recipes"], config, parameters)
    if kind is None:
        kinds = " or ".join(kind for kind in published if config in published[kind])
        made = ", ".join(f"{key} {value}" for key, value in parameters.items() if key != "sources")
        return [Check(f"{name} published", kinds, None, NOT_BUILT, (f"made with {made}",))]
    checks = check_figures(f"{name} {kind}", published[kind][config], measure_lists(collection, sidecar))
    if kind == "measured":
        lists = pa.table([sidecar.query_ids, sidecar.corpus_ids], names=SCHEMA.names[:2])
        checks += check_sizes(name, lists, info)
    return checks


def measure_lists(collection: Collection, sidecar: Sidecar) -> dict[str, float]:
    """Of candidate lists, what the published table has figures of."""
    values = evaluate.mean(list(evaluate.measure(evaluate.retrieved(sidecar), collection.qrels()).values()))
    counts = sidecar.recipe.get("counts", {})
    return {
        **{published: values[measure] for published, measure in MEASURES.items()},
        "candidates_per_row": sum(map(len, sidecar.corpus_ids)) / max(1, len(sidecar.corpus_ids)),
        **{count: counts[count] for count in ("forced_positives", "safeguards") if count in counts},
    }


def check_sizes(name: str, table: pa.Table, info: Mapping) -> list[Check]:
    """Rows, and bytes where published, of a config's split."""
    expected = {key: info[key] for key in ("num_examples", "num_bytes") if key in info}
    return check_figures(name, expected, {"num_examples": len(table), "num_bytes": num_bytes(table)})


def measure_poetry_upstream(collection: Collection) -> dict[str, object]:
    """Of the upstream's qrel files, the figures that the card has; labels before and after -1 becomes 0."""
    builder, measured, judged = collection.builder("qrels_max"), {}, set()
    for config, name in QRELS_FILES.items():
        location, kind = builder.upstream(name), config.removeprefix("qrels_")
        with open_stream(location) as file:
            lines = file.read().decode("utf-8-sig").splitlines()
        labels = Counter(line.split()[3] for line in lines if line.strip())
        graded = Poetry50KRetrieval.read_qrels(location)
        judged |= {page for _, page, _ in graded}
        measured["judgments"] = len(graded)
        measured[f"labels_{kind}"] = {label: labels[label] for label in sorted(labels, key=int)}
        grades = Counter(str(int(grade)) for *_, grade in graded)
        measured[f"grades_{kind}"] = {grade: grades[grade] for grade in sorted(grades)}
    return measured | {
        "judged_pages": len(judged),
        "judged_pages_in_corpus": len(judged & set(ids(collection.corpus))),
    }


def measure_poetry_split(collection: Collection) -> dict[str, object]:
    first = collection.table("qrels_max").slice(0, 5).to_pylist()
    return {"topics": ids(collection.queries), "first_qrels_max": [list(row.values()) for row in first]}


def measure_nano_upstream(collection: Collection) -> dict[str, object]:
    """Rows of the upstream files, and how many of the relations count."""
    builder = collection.builder("queries")
    files = {
        "corpus": NanoDAPFAM.CORPUS_FILE,
        "queries": NanoDAPFAM.QUERIES_FILE,
        "relations": NanoDAPFAM.RELATIONS_FILE,
    }
    names = ["query_id", "relevance_score", "domain_rel"]
    relations = NanoDAPFAM.open_parquet(builder.upstream(NanoDAPFAM.RELATIONS_FILE), names).read(names).to_pylist()
    positive = [relation for relation in relations if (relation["relevance_score"] or 0) > 0]
    by_domain = Counter(relation["domain_rel"] for relation in positive)
    return {
        **{what: NanoDAPFAM.open_parquet(builder.upstream(file), ()).metadata.num_rows for what, file in files.items()},
        "positive_relations": len(positive),
        "positive_in": by_domain["IN"],
        "positive_out": by_domain["OUT"],
        "queries_with_out_positive": len({r["query_id"] for r in positive if r["domain_rel"] == "OUT"}),
    }


def measure_nano_split(collection: Collection) -> dict[str, object]:
    """Mean lengths in characters, and positives a query."""
    counts = [len(positives) for positives in collection.positives().values()]
    return {
        "query_chars_mean": mean_chars(collection.queries),
        "document_chars_mean": mean_chars(collection.corpus),
        "positives_per_query": {"min": min(counts), "median": median(counts), "max": max(counts)},
    }


def mean_chars(table: pa.Table) -> float:
    return sum(pc.sum(pc.utf8_length(batch.column("text"))).as_py() for batch in table.to_batches(ROWS)) / len(table)


MEASURE_UPSTREAM = {"Poetry50KRetrieval": measure_poetry_upstream, "NanoDAPFAM": measure_nano_upstream}
MEASURE_SPLIT = {"Poetry50KRetrieval": measure_poetry_split, "NanoDAPFAM": measure_nano_split}


def check_published_split(collection: Collection, figures: Mapping, infos: Mapping[str, Mapping]) -> list[Check]:
    """Sizes and figures of a split's corpus, queries and qrels."""
    checks = []
    for config in ("corpus", "queries", *QRELS_CONFIGS[collection.dataset]):
        info = info_of(infos, collection, config)
        checks += check_sizes(f"{config}/{collection.split}", collection.table(config), info)
    published = {key: figure for key, figure in figures["splits"][collection.split].items() if key != "candidates"}
    return checks + check_figures(collection.split, published, MEASURE_SPLIT[collection.dataset](collection))


def info_of(infos: Mapping[str, Mapping], collection: Collection, config: str) -> Mapping:
    return infos.get(f"{collection.dataset}/{config}", {}).get("splits", {}).get(collection.split, {})


def verify(collections: Iterable[Collection], figures: Mapping | None, infos: Mapping[str, Mapping]) -> list[Check]:
    """Every check of the collections; those of published figures only where the figures are given."""
    checks: list[Check] = []
    for number, collection in enumerate(collections):
        if figures and not number:
            measured = MEASURE_UPSTREAM[collection.dataset](collection)
            checks += check_figures("upstream", figures["upstream"], measured)
        checks += check_structure(collection)
        if figures:
            checks += check_published_split(collection, figures, infos)
        built = built_lists(collection)
        for config in dict.fromkeys((*NanoDAPFAM.BUILT_BY, *built)):
            checks += check_candidates(collection, config, built, figures, info_of(infos, collection, config))
    return checks


# ---- Another copy ----


def read_copy(place: str, config: str, split: str) -> Iterator[pa.Table] | None:
    """A config's split in another copy, as small tables; None where the copy does not have it."""
    if not os.path.isdir(place):
        return read_repository(place, config, split)
    shards = sorted(Path(place, config).glob(f"{split}-*.parquet"))
    return read_shards(shards) if shards else None


def read_repository(repository: str, config: str, split: str) -> Iterator[pa.Table] | None:
    """As `read_copy`, from a repository on the Hub; InputError where it cannot be read."""
    try:
        if config not in repository_configs(repository):
            return None
        if split not in datasets.get_dataset_split_names(repository, config):
            return None
        # Streamed: loading one split would prepare all of the config's.
        rows = datasets.load_dataset(repository, config, split=split, streaming=True)
    except Exception as error:  # whatever the Hub's client makes of a name, a network or an answer
        cause = next(iter(str(error).splitlines()), "")
        raise InputError(
            f"--against {repository}: no such folder, and no repository to be read: {type(error).__name__}: {cause}"
        ) from error
    return rows.with_format("arrow").iter(ROWS)


@cache
def repository_configs(repository: str) -> list[str]:
    return datasets.get_dataset_config_names(repository)


def read_shards(shards: Iterable[Path]) -> Iterator[pa.Table]:
    for shard in shards:
        try:
            parquet = pq.ParquetFile(shard, buffer_size=1 << 20, pre_buffer=False)
            for batch in parquet.iter_batches(ROWS):
                yield pa.Table.from_batches([batch])
        except (pa.ArrowException, OSError) as error:
            cause = next(iter(str(error).splitlines()), "")
            raise InputError(f"{shard}: cannot be read to its end: {type(error).__name__}: {cause}") from error


def check_against(collection: Collection, place: str) -> Iterator[Check]:
    """Each config's rows in the other copy; of candidate lists that either side lacks there is nothing to compare."""
    lists = built_lists(collection)
    for config in (builder_config.name for builder_config in BUILDERS[collection.dataset].BUILDER_CONFIGS):
        name, candidates = f"{config}/{collection.split} against", config in BUILT_BY
        built = not candidates or config in lists
        theirs = read_copy(place, config, collection.split)
        if not built or theirs is None:
            missing = "not there" if theirs is None else None
            yield Check(name, "built" if built else None, missing, NOT_BUILT if candidates else FAIL)
            continue
        ours = collection.table(config)
        keys = [key for key in ours.column_names if key == "query-id" or key == "corpus-id"] or ours.column_names[:1]
        yield compare_rows(name, ours, theirs, keys)


# ---- The command ----


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)
    parser.add_argument(
        "--against", metavar="PATH_OR_REPO", help="compare row for row with a staged folder or a repository on the Hub"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, with every value in full")


def run(arguments: argparse.Namespace) -> int:
    """Prints a line a check and returns 1 if one fails. What is not built is no failure."""
    collections = open_collections(arguments)
    figures, infos = None, {}
    if arguments.data_dir is None:
        figures, infos = json.loads(PUBLISHED.read_text("utf-8"))[arguments.dataset], read_infos(INFOS)
    progress = tqdm(collections, desc="verify", unit="split", disable=None)
    checks = verify(progress, figures, infos)
    if arguments.against:
        for collection in tqdm(collections, desc="against", unit="split", disable=None):
            checks += check_against(collection, arguments.against)
    failed = sum(check.result == FAIL for check in checks)
    if arguments.json:
        lines = [vars(check) for check in checks]
        print(json.dumps({"dataset": arguments.dataset, "failed": failed, "checks": lines}, indent=2))
    else:
        print(format_checks(checks))
    return 1 if failed else 0
