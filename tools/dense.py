"""`python -m tools dense`: candidate lists by cosine of embeddings, of a sentence-transformers model or of lsa."""

import argparse
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from tools.collection import Collection, add_collection_arguments, open_collections
from tools.errors import InputError
from tools.runs import candidates_per_query, check_config, check_texts, without_text
from tools.sidecar import Sidecar, bring_up_to_date, recipe

EXAMPLE = "python -m tools dense Poetry50KRetrieval --data-dir poetry --model intfloat/e5-small-v2 --config e5_small_v2"
HARRIER, LSA = "microsoft/harrier-oss-v1-270m", "lsa"
CONFIGS = {HARRIER: "harrier_oss_v1_270m", LSA: "lsa"}  # model -> the config that holds its lists and no other's
QUERY_PROMPTS = {HARRIER: "web_search_query"}  # model -> the prompt used if none is named
TOP_K = 500
BLOCK_DOCUMENTS = 1024  # embedded, and compared with the queries, at a time
SCORE_DECIMALS = 9  # float32 embeddings are good for fewer; rounded here, equal texts tie in whichever block they are

# A split's corpus and queries as arrays of texts -> embeddings of length 1: the queries', and the documents' in blocks.
Embed = Callable[[Iterable[pa.Array], pa.Array], tuple[np.ndarray, Iterable[np.ndarray]]]


def top_k_blocks(queries: np.ndarray, blocks: Iterable[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions int64[q, k'] and scores float64[q, k'] of each query's k documents with the highest dot product.

    queries: float[q, d]; blocks: float[n, d] each, in corpus order; k' = min(k, documents). Exact, in descending order,
    ties in corpus order at the boundary as well. No more than one block and k scores a query are held.
    """
    queries = queries.astype(np.float64)
    positions, scores = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0))
    first = 0
    for block in blocks:
        block_scores = np.round(queries @ block.T.astype(np.float64), SCORE_DECIMALS)
        block_positions = np.broadcast_to(np.arange(first, first + len(block)), block_scores.shape)
        # What was kept comes first and is in order already, so a stable sort leaves ties in corpus order.
        scores = np.concatenate([scores, block_scores], axis=1)
        positions = np.concatenate([positions, block_positions], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        scores, positions = np.take_along_axis(scores, best, 1), np.take_along_axis(positions, best, 1)
        first += len(block)
    return positions, scores


def choose_config(model: str, config: str | None) -> str:
    """The name of a model's lists. InputError where it is another model's name, or missing for a model without one."""
    if config is None and model not in CONFIGS:
        raise InputError(f"--model {model}: name its lists with --config, for example --config my_model")
    owner = next((owner for owner, name in CONFIGS.items() if name == config), model)
    if owner != model:
        raise InputError(
            f"--config {config}: kept for --model {owner} by that very name, not for {model}; choose another"
        )
    return config or CONFIGS[model]


def identify_model(model: str) -> str:
    """What a recipe calls a model: its name, or for a folder the folder's name and the SHA-256 of its files."""
    if not os.path.isdir(model):
        return model
    sha256 = hashlib.sha256()
    for path in sorted(path for path in Path(model).rglob("*") if path.is_file()):
        sha256.update(f"{path.relative_to(model).as_posix()} {path.stat().st_size}\n".encode())
        with open(path, "rb") as file:
            for block in iter(partial(file.read, 1 << 20), b""):
                sha256.update(block)
    return f"{Path(model).resolve().name} sha256:{sha256.hexdigest()}"


def embed_with_lsa(corpus: Iterable[pa.Array], queries: pa.Array) -> tuple[np.ndarray, Iterable[np.ndarray]]:
    from tools import lsa

    query_embeddings, document_embeddings = lsa.embed(corpus, [queries])
    blocks = range(0, len(document_embeddings), BLOCK_DOCUMENTS)
    return query_embeddings, (document_embeddings[first : first + BLOCK_DOCUMENTS] for first in blocks)


@cache
def load_model(model: str):
    """A sentence-transformers model, by name or folder, on the device that the library chooses."""
    try:
        import sentence_transformers
        import transformers
    except ImportError as error:
        raise InputError(
            f"--model {model}: sentence-transformers cannot be imported ({error}); pip install sentence-transformers, "
            "or take --model lsa, which needs no model"
        ) from error
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        if os.path.isdir(model) and not {"modules.json", "config.json"} & set(os.listdir(model)):
            raise FileNotFoundError("the folder has neither modules.json nor config.json")
        return sentence_transformers.SentenceTransformer(model)
    except Exception as error:  # whatever a file that is no model makes of the readers of five formats
        cause = next(iter(str(error).splitlines()), "")
        raise InputError(
            f"--model {model}: no sentence-transformers model by that name or in that folder: "
            f"{type(error).__name__}: {cause}"
        ) from error


def embed_with_model(
    name: str,
    query_prompt: str | None,
    document_prompt: str | None,
    batch_size: int,
    corpus: Iterable[pa.Array],
    queries: pa.Array,
) -> tuple[np.ndarray, Iterable[np.ndarray]]:
    model = load_model(name)
    for prompt in (query_prompt, document_prompt):
        if prompt is not None and prompt not in model.prompts:
            raise InputError(f"--model {name}: no prompt '{prompt}'; it has {', '.join(model.prompts) or 'none'}")

    def encode(texts: pa.Array, prompt: str | None) -> np.ndarray:
        # Without a name, no prompt at all: an empty one keeps the library from taking the model's default.
        chosen = {"prompt": ""} if prompt is None else {"prompt_name": prompt}
        embeddings = model.encode(
            texts.to_pylist(), **chosen, batch_size=batch_size, show_progress_bar=False, normalize_embeddings=True
        )
        if not np.isfinite(embeddings).all():
            raise InputError(f"--model {name}: an embedding is not finite; the model is damaged")
        return embeddings

    return encode(queries, query_prompt), (encode(texts, document_prompt) for texts in corpus)


def rank(collection: Collection, embed: Embed, top_k: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Every query's best corpus positions and their scores, and how many queries embed to zeros and so score 0."""
    with tqdm(total=len(collection.corpus), desc=collection.split, unit="document", disable=None) as progress:

        def read_corpus() -> Iterator[pa.Array]:
            for batch in collection.corpus.to_batches(max_chunksize=BLOCK_DOCUMENTS):
                yield batch.column("text")
                progress.update(len(batch))

        query_embeddings, blocks = embed(read_corpus(), collection.queries["text"].combine_chunks())
        positions, scores = top_k_blocks(query_embeddings, blocks, top_k)
    return positions, scores, int((~query_embeddings.any(axis=1)).sum())


def build(collection: Collection, config: str, parameters: dict, embed: Embed) -> Sidecar:
    """A split's candidate lists. A document without text has its place like any other: upstream has empty pages."""
    check_texts(collection)
    positions, scores, without_known_terms = rank(collection, embed, parameters["top_k"])
    query_ids, ids = collection.queries["id"].to_pylist(), collection.corpus["id"].to_pylist()
    lists = [[ids[position] for position in row] for row in positions]
    counts = {
        "queries": len(query_ids),
        "queries_without_known_terms": without_known_terms,
        "documents_without_text": int(pc.sum(without_text(collection.corpus["text"])).as_py()),
    }
    return Sidecar(query_ids, lists, scores.tolist(), recipe(collection, config, parameters, counts))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)
    parser.add_argument(
        "--model",
        default=HARRIER,
        metavar="NAME_OR_PATH",
        help=f"a sentence-transformers model, or lsa, which is built of the corpus itself; default: {HARRIER}",
    )
    parser.add_argument(
        "--query-prompt",
        metavar="P",
        help=f"name of the model's prompt for queries; default: {QUERY_PROMPTS[HARRIER]} for {HARRIER}, else none",
    )
    parser.add_argument(
        "--document-prompt", metavar="P", help="name of the model's prompt for documents; default: none"
    )
    parser.add_argument("--config", metavar="NAME", help="name of the lists; needed for models other than those two")
    parser.add_argument(
        "--top-k", type=int, metavar="N", help=f"default: {TOP_K}, or the whole corpus if it is smaller"
    )
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="texts a model reads at a time; default: 32"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace lists that were made in another way")


def run(arguments: argparse.Namespace) -> int:
    """Builds the lists of every chosen split; splits that are current are not built again."""
    config = choose_config(arguments.model, arguments.config)
    check_config(config, arguments.dataset, "dense")
    if arguments.batch_size < 1:
        raise InputError(f"--batch-size {arguments.batch_size}: at least 1")
    query_prompt = arguments.query_prompt or QUERY_PROMPTS.get(arguments.model)
    document_prompt = arguments.document_prompt
    if arguments.model == LSA and (query_prompt or document_prompt):
        raise InputError("--model lsa: it takes no prompts; leave out --query-prompt and --document-prompt")
    model = identify_model(arguments.model)
    embed = (
        embed_with_lsa
        if arguments.model == LSA
        else partial(embed_with_model, arguments.model, query_prompt, document_prompt, arguments.batch_size)
    )
    for collection in open_collections(arguments):
        parameters = {
            "model": model,
            "query_prompt": query_prompt,
            "document_prompt": document_prompt,
            "normalize": True,
            "similarity": "cosine",
            "top_k": candidates_per_query(arguments.top_k, TOP_K, collection),
        }
        bring_up_to_date(
            collection, config, parameters, partial(build, collection, config, parameters, embed), arguments.overwrite
        )
    return 0
