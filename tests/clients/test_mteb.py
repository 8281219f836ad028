"""MTEB's own loader and evaluation on a staged folder, and what its users see of the tasks."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import mteb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from NanoDAPFAM import SPLITS
from tools.mteb_tasks import PATHS, folder_revision, register

ROOT = Path(__file__).parents[2]
NAMES = ["Poetry50KRetrieval", *(f"{split}Retrieval" for split in SPLITS)]


@pytest.mark.parametrize(
    ("dataset", "name"),
    [("Poetry50KRetrieval", "Poetry50KRetrieval"), ("NanoDAPFAM", "NanoDAPFAMAllTitlAbsToTitlAbsRetrieval")],
)
def test_mteb_reports_the_ndcg_of_evaluate(stage, model_folder, tmp_path, dataset, name):
    staged = stage(dataset)
    register(dataset, str(staged.folder))
    (result,) = mteb.evaluate(
        SentenceTransformer(str(model_folder)),
        mteb.get_task(name),
        cache=None,
        prediction_folder=tmp_path,
        show_progress_bar=False,
        co2_tracker=False,
    ).task_results
    ((split, (scores,)),) = result.scores.items()
    assert split == staged.split
    assert scores["main_score"] == scores["ndcg_at_10"] > 0

    predictions = json.loads((tmp_path / f"{name}_predictions.json").read_text("utf-8"))
    run = predictions[scores["hf_subset"]][split]
    assert sorted(run) == sorted(staged.collection(split).qrels())
    assert scores["ndcg_at_10"] == pytest.approx(staged.evaluate_run(run, tmp_path / "mteb.run"), abs=1e-4)
    if staged.has_model_lists:
        assert scores["ndcg_at_10"] == pytest.approx(staged.evaluate("--config", "minilm"), abs=1e-4)


def test_every_task_is_known_by_name_and_described():
    for name in NAMES:
        metadata = mteb.get_task(name).metadata
        assert metadata.is_filled(), name
        assert (metadata.name, metadata.type, metadata.main_score) == (name, "Retrieval", "ndcg_at_10")
        assert metadata.languages == ["eng"]
    assert mteb.get_task("Poetry50KRetrieval").eval_splits == ["test"]
    assert [mteb.get_task(name).eval_splits for name in NAMES[1:]] == [[split] for split in SPLITS]
    assert len({mteb.get_task(name).metadata.description for name in NAMES}) == 19
    assert len(mteb.get_tasks(tasks=NAMES)) == 19


def test_facts_are_those_of_the_tasks_adapted_from():
    for name in NAMES[1:]:
        metadata = mteb.get_task(name).metadata
        (source,) = mteb.get_tasks(tasks=metadata.adapted_from)
        for fact in ("reference", "date", "domains", "task_subtypes", "license", "annotations_creators"):
            assert getattr(metadata, fact) == getattr(source.metadata, fact), (name, fact)
        assert metadata.sample_creation == source.metadata.sample_creation


def test_paths_are_hub_ids_unless_a_variable_names_another():
    (poetry_variable, poetry_id), (dapfam_variable, dapfam_id) = PATHS.values()
    code = f"""
        import importlib, os, mteb
        [os.environ.pop(variable, None) for variable in {poetry_variable, dapfam_variable}]
        import tools.mteb_tasks
        print(*(mteb.get_task(name).metadata.dataset["path"] for name in {NAMES[:2]}))
        os.environ |= {{{poetry_variable!r}: "someone/Poetry", {dapfam_variable!r}: os.getcwd()}}
        importlib.reload(tools.mteb_tasks)
        print(*(mteb.get_task(name).metadata.dataset["path"] for name in {NAMES[:2]}))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    words = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert words == [poetry_id, dapfam_id, "someone/Poetry", str(ROOT)]


def test_a_folder_staged_anew_is_another_revision(tmp_path):
    """MTEB does not compute again what it has scores of for a revision."""
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "test-00000-of-00001.parquet")
    register("Poetry50KRetrieval", str(tmp_path))
    before = mteb.get_task("Poetry50KRetrieval").metadata.revision
    assert before == folder_revision(tmp_path)
    pq.write_table(pa.table({"text": ["b"]}), tmp_path / "test-00000-of-00001.parquet")
    register("Poetry50KRetrieval", str(tmp_path))
    assert mteb.get_task("Poetry50KRetrieval").metadata.revision != before
    register("Poetry50KRetrieval", "someone/Poetry", "v2")
    assert mteb.get_task("Poetry50KRetrieval").metadata.dataset == {"path": "someone/Poetry", "revision": "v2"}
