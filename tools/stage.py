"""`python -m tools stage`: a dataset as a repository of Parquet files with a card, which every version loads.

It is built in a folder beside the one asked for, which is renamed at the end: what has that name is whole. A run that
was killed is run again: it starts over, from the builds in the library's cache, and makes the same bytes.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from tqdm import tqdm

import Poetry50KRetrieval
from NanoDAPFAM import BUILT_BY
from tools import card, figures
from tools.collection import QRELS_CONFIGS, Collection, add_collection_arguments, open_collections
from tools.errors import InputError
from tools.evaluate import MEASURES, Lists, mean, measure, retrieved
from tools.hybrid import source_parameters
from tools.runs import build_command, read_lists
from tools.sidecar import Sidecar, local_path
from tools.stage_parquet import Part, write_split
from tools.stage_push import check_push, list_files, push

EXAMPLE = "python -m tools stage NanoDAPFAM --data-dir dapfam --out staged/NanoDAPFAM --push me/NanoDAPFAM --dry-run"
ROOT = Path(__file__).parents[1]
SCRIPT = "script"  # the loading script's folder: at the root it would keep `datasets` 4 and later from loading
WRITERS = 2  # threads, each of which holds a row group or two


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to make")
    parser.add_argument("--overwrite", action="store_true", help="replace DIR where it is a staged folder")
    parser.add_argument("--require-all", action="store_true", help="fail where candidate lists are missing")
    parser.add_argument("--push", metavar="REPO_ID", help="then make the dataset repository on the Hub equal to DIR")
    parser.add_argument("--dry-run", action="store_true", help="with --push: list what would go; no network")


def run(arguments: argparse.Namespace) -> int:
    """Stages the dataset, says a line a config, and pushes it if asked to."""
    if arguments.dry_run and not arguments.push:
        raise InputError("--dry-run: it lists what --push REPO_ID would push; name the repository")
    if arguments.push:
        check_push(arguments.push, needs_token=not arguments.dry_run)
    out = arguments.out.expanduser().absolute()
    check_out(out, arguments.dataset, arguments.overwrite)
    collections = open_collections(arguments)
    missing = find_missing(collections)
    left_out = describe_missing(collections, missing)
    if left_out and arguments.require_all:
        raise InputError(f"--require-all: {left_out}")
    with whole_folder(out) as folder:
        build = write_configs(collections, missing, folder, arguments.push or f"./{out.name}")
        write_card(build, folder)
        write_script(arguments.dataset, folder)
    if left_out:
        print(f"left out, {left_out}", file=sys.stderr, flush=True)
    for config in dict.fromkeys(part.config for part in build.parts):
        parts = build.of_config(config)
        size = sum(part.download_size for part in parts)
        print(f"{arguments.out}/{config}: {len(parts)} split(s), {sum(part.rows for part in parts)} rows, {size} bytes")
    if arguments.dry_run:
        print(list_files(out))
    elif arguments.push:
        print(push(out, arguments.push, owned_patterns(arguments.dataset)))
    return 0


# ---- The folder ----


def staged_folders(dataset: str) -> list[str]:
    """Every folder a staging of the dataset can have."""
    return [*card.FEATURES[dataset], "assets", SCRIPT]


def owned_patterns(dataset: str) -> list[str]:
    """Files of a repository that staging answers for: those of them that are not staged any more are stale."""
    return [f"{folder}/*" for folder in staged_folders(dataset)]


def check_out(out: Path, dataset: str, overwrite: bool) -> None:
    """InputError where a folder must not be made: there is one that must not be replaced, or nowhere to put it."""
    if out.is_symlink() or (out.exists() and not overwrite):
        raise InputError(f"{out}: exists; name a new folder, or replace a staged one with --overwrite")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: there is no such folder to put {out.name} in")
    if out.exists():
        foreign = set(os.listdir(out)) - {"README.md", *staged_folders(dataset)} if out.is_dir() else {out.name}
        if foreign:
            raise InputError(f"{out}: has {min(foreign)}, which is not staging's; name another folder")


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` to be filled, which takes its place at the end, or is removed if something goes wrong."""
    folder = out.with_name(f".{out.name}.incomplete")
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    try:
        folder.mkdir()
        yield folder
        put_in_place(folder, out)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), error.filename or str(out)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_in_place(folder: Path, out: Path) -> None:
    """Renames the folder to `out`; what was there is removed once the new one is there."""
    replaced = out.with_name(f".{out.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if out.exists():
        out.rename(replaced)
    try:
        folder.rename(out)
    except OSError:
        if replaced.exists():
            replaced.rename(out)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


# ---- What is staged ----


def find_missing(collections: Sequence[Collection]) -> dict[str, list[str]]:
    """The builders' candidate configs -> the splits that have no lists of it. Other sidecars are not staged."""
    return {
        config: [one.split for one in collections if not local_path(one.sidecar_path(config)).exists()]
        for config in BUILT_BY
    }


def describe_missing(collections: Sequence[Collection], missing: Mapping[str, Sequence[str]]) -> str:
    """Which candidate lists there are none of, and how to build the first; empty if there are all."""
    incomplete = {config: splits for config, splits in missing.items() if splits}
    if not incomplete:
        return ""
    counts = [
        config if len(splits) == len(collections) else f"{config} ({len(splits)} of {len(collections)} splits)"
        for config, splits in incomplete.items()
    ]
    config, splits = next(iter(incomplete.items()))
    command = build_command(next(one for one in collections if one.split == splits[0]), config)
    return f"no candidate lists: {', '.join(counts)}; build them with, for one: {command}"


def write_configs(
    collections: Sequence[Collection], missing: Mapping[str, Sequence[str]], folder: Path, repository: str
) -> card.Build:
    """Writes every config's Parquet files and returns what the card says of them."""
    futures: list[Future[Part]] = []
    splits: list[card.Split] = []
    progress = tqdm(collections, desc="stage", unit="split", disable=None)
    with ThreadPoolExecutor(WRITERS) as writers:
        try:
            for collection in map(replace, progress):  # a copy: what it has read goes with it
                built = [config for config, without in missing.items() if collection.split not in without]
                futures += submit_split(writers, collection, built, folder)
                splits.append(measure_split(collection, built))
                for future in futures:
                    if future.done():
                        future.result()  # raises what the writer met
            parts = [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
    order = list(card.FEATURES[collections[0].dataset])
    parts.sort(key=lambda part: order.index(part.config))  # stable: splits stay in order
    return card.Build(
        collections[0].dataset,
        repository,
        collections[0].data_dir is None,
        parts,
        splits,
        collections[0].queries["text"].to_pylist() if collections[0].dataset == "Poetry50KRetrieval" else [],
        count_upstream(collections[0]) if collections[0].dataset == "Poetry50KRetrieval" else {},
    )


def submit_split(
    writers: ThreadPoolExecutor, collection: Collection, built: Sequence[str], folder: Path
) -> Iterator[Future[Part]]:
    """Has the writers write a split of every config; the builds are prepared here, one after another."""
    for config in card.FEATURES[collection.dataset]:
        if config in BUILT_BY and config not in built:
            continue
        constants = {"score": pa.scalar(1.0)} if config == card.MTEB_QRELS else {}
        dataset = collection.prepare("qrels" if constants else config)
        yield writers.submit(write_split, dataset, config, collection.split, folder, constants)


def measure_split(collection: Collection, built: Sequence[str]) -> card.Split:
    """Labels, and the candidate lists' measures; InputError where a list is stale."""
    all_qrels = {config: collection.qrels(config) for config in QRELS_CONFIGS[collection.dataset]}
    lists = {config: read_lists(collection, config) for config in built}
    check_sources(collection, lists)
    labels = {config: count_labels(qrels) for config, qrels in all_qrels.items()}
    measured = {config: measure_lists(sidecar, all_qrels) for config, sidecar in lists.items()}
    return card.Split(collection.split, labels, measured)


def count_labels(qrels: Mapping[str, Mapping[str, int]]) -> dict[int, int]:
    labels: dict[int, int] = {}
    for grades in qrels.values():
        for grade in grades.values():
            labels[grade] = labels.get(grade, 0) + 1
    return labels


def check_sources(collection: Collection, lists: Mapping[str, Sidecar]) -> None:
    """InputError where lists were fused of other lists than those staged beside them."""
    for config, sidecar in lists.items():
        sources = sidecar.recipe["parameters"].get("sources", {})
        for name, made in sources.items():
            if name in lists and made != source_parameters(lists[name]):
                raise InputError(
                    f"{collection.sidecar_path(config)}: stale, fused of other {name} lists; build it again: "
                    f"{build_command(collection, config)} --overwrite"
                )


def measure_lists(sidecar: Sidecar, all_qrels: Mapping[str, Mapping[str, Mapping[str, int]]]) -> card.Candidates:
    lists = retrieved(sidecar)
    lengths = [len(document_ids) for document_ids in sidecar.corpus_ids] or [0]
    return card.Candidates(
        sidecar.recipe,
        (min(lengths), max(lengths)),
        {
            config: mean(list(measure(lists, qrels).values())) if qrels else dict.fromkeys(MEASURES, 0.0)
            for config, qrels in all_qrels.items()
        },
        {config: recall_curve(lists, qrels) for config, qrels in all_qrels.items()},
    )


def recall_curve(lists: Lists, qrels: Mapping[str, Mapping[str, int]]) -> np.ndarray:
    """Recall at 1, 2, 3 … candidates, the mean over the judged queries; one without a positive counts as 0."""
    found = np.zeros(max((len(document_ids) for document_ids in lists.values()), default=0) or 1)
    for query_id, grades in qrels.items():
        positives = {document_id for document_id, grade in grades.items() if grade > 0}
        for rank, document_id in enumerate(lists.get(query_id, ())):
            if document_id in positives:
                found[rank] += 1 / len(positives)
    return np.cumsum(found) / max(1, len(qrels))


def count_upstream(collection: Collection) -> dict[str, int]:
    """Judged pages and judgments of poetry's upstream files, and how many of them were kept, in words."""
    builder = collection.builder("qrels_max")
    judgments = {
        config: Poetry50KRetrieval.read_qrels(builder.upstream(name))
        for config, name in Poetry50KRetrieval.QRELS_FILES.items()
    }
    kept = {config: collection.table(config) for config in judgments}
    judged = {page for of_config in judgments.values() for _, page, _ in of_config}
    in_corpus = {page for table in kept.values() for page in table["corpus-id"].to_pylist()}
    counts = {"judged pages": len(judged), "judged pages that are in the corpus": len(in_corpus)}
    for config, of_config in judgments.items():
        counts[f"judgments of `{config}`"] = len(of_config)
        counts[f"judgments of `{config}` on pages that are in the corpus"] = len(kept[config])
    return counts


# ---- Card and script ----


def write_card(build: card.Build, folder: Path) -> None:
    """README.md and the pictures it shows."""
    (folder / "assets").mkdir(exist_ok=True)
    pictures = {"lengths": figures.draw_lengths(card.views(build))}
    if build.dataset == "Poetry50KRetrieval":
        pictures["labels"] = figures.draw_labels(card.label_histograms(build))
    if build.candidate_configs:
        pictures["recall"] = figures.draw_recall(card.recall_panels(build))
    for name, svg in pictures.items():
        (folder / card.PICTURES[name]).write_text(svg, "utf-8")
    (folder / "README.md").write_text(card.render(build), "utf-8")


def write_script(dataset: str, folder: Path) -> None:
    """The loading script and, beside it, its own part of dataset_infos.json."""
    (folder / SCRIPT).mkdir()
    shutil.copyfile(ROOT / f"{dataset}.py", folder / SCRIPT / f"{dataset}.py")
    infos = json.loads((ROOT / "dataset_infos.json").read_text("utf-8"))
    own = {key: info for key, info in infos.items() if key.startswith(f"{dataset}/")}
    (folder / SCRIPT / "dataset_infos.json").write_text(json.dumps(own, indent=1) + "\n", "utf-8")
