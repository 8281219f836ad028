"""`python -m tools infos`: rewrites a dataset's part of dataset_infos.json from a build.

The bytes of a split are counted as the published ones were: a string its UTF-8 bytes and 4 for its offset, a list 4
for its offset and its elements, a number 8. That is `pyarrow.Table.nbytes` of a table without nulls, however it is
chunked. 200 lists of 500 ids of 19 characters: 200 * (19 + 4 + 4 + 500 * (19 + 4)) = 2,305,400.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import datasets
import pyarrow as pa
from tqdm import tqdm

from tools.collection import BUILDERS, Collection, add_collection_arguments, open_collections
from tools.errors import InputError
from tools.files import write_whole
from tools.runs import BUILT_BY, read_lists
from tools.sidecar import local_path
from tools.stage_parquet import row_bytes

EXAMPLE = "python -m tools infos NanoDAPFAM --data-dir /tmp/sample/dapfam --out /tmp/infos.json"
INFOS = Path(__file__).parents[1] / "dataset_infos.json"


def num_bytes(table: pa.Table) -> int:
    """Bytes of a split, as published sizes count them."""
    return int(row_bytes(table).sum())


def plain_features(features: datasets.Features) -> dict:
    """Features as JSON that every version of `datasets` reads: lists under the name they had before 4."""

    def rename(node: dict) -> dict:
        renamed = {key: rename(value) if isinstance(value, dict) else value for key, value in node.items()}
        return renamed | {"_type": "Sequence"} if renamed.get("_type") == "List" else renamed

    return rename(features.to_dict())


def read_infos(path: Path) -> dict[str, dict]:
    """dataset_infos.json; InputError where rewriting a part of it would change the form of the rest."""
    text = path.read_text("utf-8")
    try:
        infos = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); restore it") from error
    if not isinstance(infos, dict) or format_infos(infos) != text:
        raise InputError(f"{path}: not in the form it is written in: one object, indented by one space; restore it")
    return infos


def format_infos(infos: dict[str, dict]) -> str:
    return json.dumps(infos, indent=1) + "\n"


def measure_splits(collections: Sequence[Collection], config: str) -> Iterator[dict]:
    """The entry of every split that is built."""
    for collection in tqdm(collections, desc=config, unit="split", disable=None):
        if config in BUILT_BY:
            if not local_path(collection.sidecar_path(config)).exists():
                continue
            read_lists(collection, config)  # refuses lists that are stale
        table = collection.table(config)
        yield {"name": collection.split, "num_bytes": num_bytes(table), "num_examples": len(table)}


def update_info(info: dict, features: dict, measured: Sequence[dict], order: Sequence[str]) -> dict:
    """A config's entry with the measured splits in place of what it said of them; the others stay."""
    splits = info.get("splits", {}) | {split["name"]: split for split in measured}
    updated = {"features": features, "splits": {name: splits[name] for name in order if name in splits}}
    sizes = [split.get("num_bytes") for split in updated["splits"].values()]
    return updated | ({} if None in sizes else {"dataset_size": sum(sizes)})


def describe_change(before: dict, after: dict) -> str:
    """Rows and bytes of the entry, and how many of its splits are others than before."""
    splits, old = after["splits"], before.get("splits", {})
    changed = sum(splits[name] != old.get(name) for name in splits)
    if before == after:
        return f"as before, {len(splits)} splits"
    rows = sum(split["num_examples"] for split in splits.values())
    size = f", {after['dataset_size']} bytes" if "dataset_size" in after else ""
    return f"{changed} of {len(splits)} splits changed: {rows} rows{size}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=INFOS,
        metavar="FILE",
        help="the file to rewrite, or to write from the one beside the scripts; default: that one",
    )


def run(arguments: argparse.Namespace) -> int:
    """Rewrites the dataset's part and says, a line a config, what changed."""
    if arguments.data_dir and arguments.out == INFOS:
        raise InputError(f"{INFOS.name} is of the official upstream; with --data-dir name another file with --out")
    collections = open_collections(arguments)
    infos = read_infos(arguments.out if arguments.out.exists() else INFOS)
    builder_class = BUILDERS[arguments.dataset]
    lines = []
    for config in (builder_config.name for builder_config in builder_class.BUILDER_CONFIGS):
        key = f"{arguments.dataset}/{config}"
        measured = list(measure_splits(collections, config))
        if not measured:
            lines.append(f"{key}: not built, stays as it is")
            continue
        before = infos.get(key, {})
        features = plain_features(collections[0].builder(config).info.features)
        infos[key] = update_info(before, features, measured, builder_class.ALL_SPLITS)
        lines.append(f"{key}: {describe_change(before, infos[key])}")
    write_whole(arguments.out, lambda temporary: temporary.write_text(format_infos(infos), "utf-8"))
    print("\n".join(lines))
    return 0
