"""`python -m tools hybrid`: fuses candidate lists by reciprocal rank, with a positive in every list."""

import argparse
import random
from collections.abc import Iterable, Sequence
from functools import partial

from NanoDAPFAM import digest
from tools.collection import Collection, add_collection_arguments, open_collections
from tools.errors import InputError
from tools.runs import check_config, read_lists
from tools.sidecar import Sidecar, bring_up_to_date, recipe

EXAMPLE = "python -m tools hybrid NanoDAPFAM --data-dir dapfam --sources bm25 harrier_oss_v1_270m"
SAFEGUARD_SCORE = 0.0  # of the appended positive; no fused score is as low


def reciprocal_rank_sum(ranks: Iterable[int], rrf_k: int) -> float:
    """The sum of 1 / (rrf_k + rank), added exactly and rounded once, so that equal sums are equal floats."""
    numerator, denominator = 0, 1
    for rank in ranks:
        numerator, denominator = numerator * (rrf_k + rank) + denominator, denominator * (rrf_k + rank)
    return numerator / denominator


def fuse(ranked_lists: Sequence[Sequence[str]], rrf_k: int = 100, top_k: int = 100) -> list[tuple[str, float]]:
    """The `top_k` best documents with their scores by reciprocal rank fusion, ranks from 1.

    Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning methods",
    SIGIR 2009. Ties are broken by the best rank in any list, then by document id. A list holds a document once at most.
    """
    ranks: dict[str, list[int]] = {}
    for ranked in ranked_lists:
        for rank, document_id in enumerate(ranked, 1):
            ranks.setdefault(document_id, []).append(rank)
    scores = {document_id: reciprocal_rank_sum(found, rrf_k) for document_id, found in ranks.items()}
    fused = sorted(scores, key=lambda document_id: (-scores[document_id], min(ranks[document_id]), document_id))
    return [(document_id, scores[document_id]) for document_id in fused[:top_k]]


def safeguard(candidates: Sequence[str], positives: Iterable[str], split: str, query_id: str, seed: int) -> list[str]:
    """The candidates, and one positive after them if none is among them: rank 101 of a hundred candidates.

    Which one is drawn by seed, split and query id alone. A query without positives keeps its list as it is.
    """
    positives = sorted(positives)
    if not positives or not set(positives).isdisjoint(candidates):
        return list(candidates)
    return [*candidates, random.Random(f"{seed}\0{split}\0{query_id}\0positive_safeguard").choice(positives)]


def source_parameters(source: Sidecar) -> dict:
    """What a hybrid's recipe says of a source: how it was made, and the SHA-256 of its lists."""
    lists = (
        (query_id, str(len(document_ids)), *document_ids)
        for query_id, document_ids in zip(source.query_ids, source.corpus_ids, strict=True)
    )
    return {"parameters": source.recipe["parameters"], "lists": digest(lists)}


def build(collection: Collection, config: str, parameters: dict, sources: Sequence[Sidecar]) -> Sidecar:
    """A split's fused and safeguarded lists; the sources have its queries, in its order."""
    positives = collection.positives()
    query_ids = collection.queries["id"].to_pylist()
    corpus_ids, scores, safeguards = [], [], 0
    for query_id, *ranked_lists in zip(query_ids, *(source.corpus_ids for source in sources), strict=True):
        fused = fuse(ranked_lists, parameters["rrf_k"], parameters["top_k"])
        candidates = [document_id for document_id, _ in fused]
        guarded = safeguard(candidates, positives.get(query_id, []), collection.split, query_id, parameters["seed"])
        appended = len(guarded) - len(candidates)
        corpus_ids.append(guarded)
        scores.append([score for _, score in fused] + [SAFEGUARD_SCORE] * appended)
        safeguards += appended
    counts = {"rows": len(query_ids), "safeguards": safeguards}
    return Sidecar(query_ids, corpus_ids, scores, recipe(collection, config, parameters, counts))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)
    parser.add_argument(
        "--sources",
        nargs="+",
        default=["bm25", "harrier_oss_v1_270m"],
        metavar="CONFIG",
        help="the candidate lists to fuse; default: bm25 harrier_oss_v1_270m",
    )
    parser.add_argument(
        "--rrf-k", type=int, default=100, metavar="K", help="a rank counts 1 / (K + rank); default: 100"
    )
    parser.add_argument("--top-k", type=int, default=100, metavar="N", help="length of a fused list; default: 100")
    parser.add_argument("--seed", type=int, default=20260524, help="draws the appended positives; default: 20260524")
    parser.add_argument(
        "--config", default="reranking_hybrid", help="name of the fused lists; default: reranking_hybrid"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace lists that were made in another way")


def run(arguments: argparse.Namespace) -> int:
    """Builds the fused lists of every chosen split. Poetry's positives are those of qrels_max, grade 1 or 2."""
    check_config(arguments.config, arguments.dataset, "hybrid")
    if len(set(arguments.sources)) < len(arguments.sources) or arguments.config in arguments.sources:
        raise InputError(f"--sources {' '.join(arguments.sources)}: each once, and not {arguments.config} itself")
    if arguments.top_k < 1 or arguments.rrf_k < 0:
        raise InputError(f"--top-k {arguments.top_k} --rrf-k {arguments.rrf_k}: at least 1 and 0 are needed")
    for collection in open_collections(arguments):
        sources = {name: read_lists(collection, name) for name in arguments.sources}
        parameters = {
            "sources": {name: source_parameters(source) for name, source in sources.items()},
            "rrf_k": arguments.rrf_k,
            "top_k": arguments.top_k,
            "seed": arguments.seed,
        }
        bring_up_to_date(
            collection,
            arguments.config,
            parameters,
            partial(build, collection, arguments.config, parameters, list(sources.values())),
            arguments.overwrite,
        )
    return 0
