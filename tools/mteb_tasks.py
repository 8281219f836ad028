"""The MTEB tasks: Poetry50KRetrieval, and one for each NanoDAPFAM split. Importing this module makes their names known.

    import mteb
    import tools.mteb_tasks

    mteb.evaluate(model, mteb.get_task("Poetry50KRetrieval"))
    mteb.evaluate(model, mteb.get_task("NanoDAPFAMInTitlAbsToFullTextRetrieval"))

The tasks read repositories as `python -m tools stage` makes them, on the Hub or in a local folder: see `PATHS` and
`register`. MTEB cannot load a repository without the configs that staging adds for it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.get_tasks import _TASKS_REGISTRY  # where get_task looks names up; MTEB has no other way to add to it

import NanoDAPFAM
import Poetry50KRetrieval
from NanoDAPFAM import digest, file_state
from tools.card_text import VIEWS

PATHS = {  # dataset -> the environment variable that names a staged folder or Hub id, and the Hub id without it
    "Poetry50KRetrieval": ("POETRY50KRETRIEVAL_PATH", "PoetryMTEB/Poetry50KRetrieval"),
    "NanoDAPFAM": ("NANODAPFAM_PATH", "hakari-bench/NanoDAPFAM"),  # the id in HAKARI-Bench's config of this dataset
}

COMMON = {"type": "Retrieval", "category": "t2t", "modalities": ["text"], "main_score": "ndcg_at_10", "dialect": []}
FACTS = {
    "Poetry50KRetrieval": {
        "reference": f"{Poetry50KRetrieval.UPSTREAM}/",
        "eval_langs": ["eng-Latn"],  # a list: MTEB reads the configs corpus, queries and qrels, the last as qrels_max
        "date": ("2019-01-01", "2019-12-31"),  # the year of the dissertation that published the judgments
        "domains": ["Poetry", "Written"],
        "task_subtypes": [],
        "license": "not specified",
        "annotations_creators": "human-annotated",
        "sample_creation": "found",
        "bibtex_citation": Poetry50KRetrieval.CITATION,
    },
    "NanoDAPFAM": {  # from reference on, what MTEB says of the tasks these are adapted from
        "eval_langs": {"mteb": ["eng-Latn"]},  # a subset: MTEB reads mteb-corpus, mteb-queries and mteb-qrels
        "reference": "https://arxiv.org/abs/2506.22141",
        "date": ("1964-06-26", "2023-06-20"),
        "domains": ["Engineering", "Chemistry", "Legal"],
        "task_subtypes": ["Article retrieval", "Patent retrieval"],
        "license": "cc-by-nc-sa-4.0",
        "annotations_creators": "derived",
        "sample_creation": "created",
        "bibtex_citation": NanoDAPFAM.CITATION,
    },
}
CITED = {  # scope of a split -> the families to find
    "All": "that a citation links to it",
    "In": "that a citation links to it within its technical domain (they share a three-character IPC code)",
    "Out": "that a citation links to it from other technical domains (they share no three-character IPC code)",
}


def tasks_of(dataset: str) -> Iterator[dict]:
    """What tells a dataset's tasks apart: name, description, eval_splits and, where there is one, the source task."""
    if dataset == "Poetry50KRetrieval":
        yield {
            "name": dataset,
            "description": "Given a short topic such as 'war', find OCR-scanned pages of poetry about it. Pages are "
            "judged 0, 1 or 2; of several judgments of a page the highest counts (qrels_max).",
            "eval_splits": Poetry50KRetrieval.Poetry50KRetrieval.ALL_SPLITS,
        }
        return
    for split, (scope, query_view, corpus_view) in NanoDAPFAM.SPLITS.items():
        yield {
            "name": f"{split}Retrieval",
            "description": f"Given a patent family ({VIEWS[query_view]}), find the families {CITED[scope]} "
            f"among at most {NanoDAPFAM.DOCUMENTS:,} ({VIEWS[corpus_view]}). At most {NanoDAPFAM.QUERIES} queries.",
            "eval_splits": [split],
            "adapted_from": [f"{split.removeprefix('Nano')}Retrieval"],
        }


def folder_revision(folder: Path) -> str:
    """Changes with any Parquet file of a staged folder: MTEB keeps a revision's scores, which would be stale."""
    files = sorted(folder.rglob("*.parquet"))
    return digest((str(file.relative_to(folder)), file_state(str(file))) for file in files)[:16]


def register(dataset: str, path: str, revision: str = "main") -> None:
    """Has `mteb.get_task` know the dataset's tasks, reading a Hub id or, if there is one of that name, a staged folder.

    `revision` is the Hub's; a folder's is made of its files. Registered anew, a task is read from the new place.
    """
    folder = Path(path).expanduser()
    source = {"path": path, "revision": revision}
    if folder.is_dir():
        source = {"path": str(folder.resolve()), "revision": folder_revision(folder)}
    for task in tasks_of(dataset):
        metadata = TaskMetadata(dataset=source, **COMMON, **FACTS[dataset], **task)
        _TASKS_REGISTRY[metadata.name] = type(metadata.name, (AbsTaskRetrieval,), {"metadata": metadata})


for _dataset, (_variable, _hub_id) in PATHS.items():
    register(_dataset, os.environ.get(_variable) or _hub_id)
