"""The official upstream's checks, and `datasets-cli test`, on copies of the scripts."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import reading
from conftest import ROOT, SCRIPTS_LOAD
from datasets.utils.info_utils import NonMatchingSplitsSizesError

import NanoDAPFAM
import Poetry50KRetrieval

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
SPLIT = "NanoDAPFAMAllTitlAbsToTitlAbs"
BOTH = pytest.mark.parametrize("streaming", [False, True])


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_infos(folder, rows):
    """dataset_infos.json with row counts by key and split."""
    infos = {
        key: {
            "splits": {
                split: {"name": split, "num_bytes": 1, "num_examples": count, "dataset_name": None}
                for split, count in splits.items()
            }
        }
        for key, splits in rows.items()
    }
    (folder / "dataset_infos.json").write_text(json.dumps(infos))


@pytest.fixture
def official(copy_script, serve, sample, tmp_path):
    """(dataset, constants) -> a folder with a script whose official upstream is the sample, on loopback.

    The server's port makes each copy another script. The library needs that: it keeps the dataset_infos.json that it
    saw with a script, and does not look at it again until the script changes.
    """

    def make(dataset, **constants):
        upstream = sample / ("poetry" if dataset == POETRY else "dapfam")
        return copy_script(dataset, tmp_path / "official", UPSTREAM=serve(upstream).url, **constants)

    return make


@pytest.mark.parametrize(("dataset", "config"), [(POETRY, "qrels_max"), (DAPFAM, "queries")])
def test_a_build_that_is_not_the_published_one_is_refused(load, official, sample, dataset, config):
    constants = {"CORPUS_MD5": md5(sample / "poetry" / reading.CORPUS_GZ)} if dataset == POETRY else {}
    folder = official(dataset, **constants)
    shutil.copy(ROOT / "dataset_infos.json", folder)
    with pytest.raises(NonMatchingSplitsSizesError):
        load(dataset, config, folder=folder)


@pytest.mark.parametrize(("dataset", "config"), [(POETRY, "qrels_max"), (DAPFAM, "queries")])
def test_with_data_dir_nothing_is_expected(load, official, sample, dataset, config):
    folder = official(dataset)
    write_infos(folder, {f"{dataset}/{config}": {"test": 5, SPLIT: 7}, config: {"test": 5, SPLIT: 7}})
    upstream = sample / ("poetry" if dataset == POETRY else "dapfam")
    found = load(dataset, config, upstream, folder=folder)
    assert reading.first_difference(found, reading.expected(dataset, config, upstream)) is None


def test_the_real_expectations_do_not_apply_with_data_dir(open_splits, sample):
    for dataset, folder in ((POETRY, "poetry"), (DAPFAM, "dapfam")):
        splits = open_splits(dataset, "queries", sample / folder)
        assert {name: len(rows) for name, rows in splits.items()} == {
            name: len(rows) for name, rows in reading.expected(dataset, "queries", sample / folder).items()
        }


@pytest.mark.parametrize(("dataset", "config"), [(POETRY, "queries"), (DAPFAM, "queries"), (DAPFAM, "qrels")])
def test_a_build_with_the_expected_rows_passes(load, official, sample, dataset, config):
    folder = official(dataset)
    right = reading.expected(dataset, config, sample / ("poetry" if dataset == POETRY else "dapfam"))
    write_infos(folder, {f"{dataset}/{config}": {split: len(rows) for split, rows in right.items()}})
    assert reading.first_difference(load(dataset, config, folder=folder), right) is None


@pytest.mark.parametrize("wrong", [None, SPLIT, reading.SPLITS[0]])
def test_only_the_chosen_splits_are_expected(load, official, sample, wrong):
    folder = official(DAPFAM)
    counts = {split: len(rows) for split, rows in reading.expected(DAPFAM, "queries", sample / "dapfam").items()}
    write_infos(folder, {f"{DAPFAM}/queries": counts | ({wrong: 1} if wrong else {})})
    if wrong == SPLIT:
        with pytest.raises(NonMatchingSplitsSizesError):
            load(DAPFAM, "queries", folder=folder, splits=[SPLIT])
    else:
        assert len(load(DAPFAM, "queries", folder=folder, splits=[SPLIT])[SPLIT]) == counts[SPLIT]


def test_what_is_expected_of_the_other_dataset_does_not_apply(load, official):
    for dataset, other in ((POETRY, DAPFAM), (DAPFAM, POETRY)):
        folder = official(dataset)
        write_infos(folder, {f"{other}/queries": {"test": 5, SPLIT: 7}, "queries": {"test": 5, SPLIT: 7}})
        assert load(dataset, "queries", folder=folder)


@BOTH
@pytest.mark.parametrize("config", ["corpus", "qrels_max"])
def test_a_corpus_with_another_md5_than_the_published_is_refused(load, official, sample, config, streaming):
    folder = official(POETRY)
    with pytest.raises(ValueError, match="MD5") as caught:
        load(POETRY, config, folder=folder, streaming=streaming)
    message = str(caught.value)
    known = [md5(sample / "poetry" / reading.CORPUS_GZ), "be61efeff6ae2b1ffb86519aeeabf427"]
    assert [word for word in [*known, "force_redownload", "data_dir"] if word not in message] == []
    assert "\n" not in message


def test_a_streamed_corpus_is_checked_at_its_end(open_splits, official, sample):
    pages = iter(open_splits(POETRY, "corpus", folder=official(POETRY), streaming=True)["test"])
    right = reading.poetry(sample / "poetry")["corpus"]
    assert [next(pages) for _ in right] == right
    with pytest.raises(ValueError, match="MD5"):
        next(pages)


@BOTH
@pytest.mark.parametrize("config", ["corpus", "queries", "qrels_max", "qrels_min"])
def test_a_corpus_with_the_published_md5_passes(load, official, sample, config, streaming):
    folder = official(POETRY, CORPUS_MD5=md5(sample / "poetry" / reading.CORPUS_GZ))
    found = load(POETRY, config, folder=folder, streaming=streaming)
    assert reading.first_difference(found, reading.expected(POETRY, config, sample / "poetry")) is None


def test_after_a_damaged_download_a_forced_one_passes(load, copy_script, serve, sample, tmp_path):
    upstream = shutil.copytree(sample / "poetry", tmp_path / "upstream")
    good = (upstream / reading.CORPUS_GZ).read_bytes()
    constants = {"UPSTREAM": serve(upstream).url, "CORPUS_MD5": md5(upstream / reading.CORPUS_GZ)}
    folder = copy_script(POETRY, tmp_path / "official", **constants)
    (upstream / reading.CORPUS_GZ).write_bytes(good[:-20])
    with pytest.raises(ValueError, match=r"MD5.*download_mode='force_redownload'"):
        load(POETRY, "corpus", folder=folder)
    (upstream / reading.CORPUS_GZ).write_bytes(good)
    found = load(POETRY, "corpus", folder=folder, download_mode="force_redownload")
    assert reading.first_difference(found, reading.expected(POETRY, "corpus", upstream)) is None


def download_of(url, cache):
    """The file in the library's cache that was downloaded from there."""
    records = [path for path in (cache / "downloads").glob("*.json") if json.loads(path.read_text())["url"] == url]
    return records[0].with_suffix("")


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("dataset", "config", "file"),
    [
        (POETRY, "qrels_max", "mturk.max.qrel"),
        (POETRY, "queries", "mturk.min.qrel"),
        (POETRY, "corpus", reading.CORPUS_GZ),
        (DAPFAM, "queries", "queries.parquet"),
        (DAPFAM, "queries", "qrels_all.parquet"),
        (DAPFAM, "corpus", "corpus.parquet"),
    ],
)
def test_a_download_that_was_damaged_on_disk_is_found(load, official, sample, tmp_path, dataset, config, file):
    constants = {"CORPUS_MD5": md5(sample / "poetry" / reading.CORPUS_GZ)} if dataset == POETRY else {}
    options = {"folder": official(dataset, **constants), "cache_dir": str(tmp_path / "cache")}
    options |= {"splits": ["NanoDAPFAMAllTitlAbsToFullText"]} if dataset == DAPFAM else {}
    url = re.search('^UPSTREAM = "(.*)"', (options["folder"] / f"{dataset}.py").read_text("utf-8"), re.M)[1]

    def load_of_downloads(**more):
        for prepared in (tmp_path / "cache").glob("*/"):
            if prepared.name != "downloads":
                shutil.rmtree(prepared)
        return load(dataset, config, **options, **more)

    right = load_of_downloads()
    assert load_of_downloads() == right
    flip_a_bit(download_of(f"{url}/{file}", tmp_path / "cache"))
    with pytest.raises(ValueError, match="download_mode='force_redownload'") as caught:
        load_of_downloads()
    message = str(caught.value)
    assert type(caught.value).__name__ == "UpstreamError" and len(message.splitlines()) == 1
    assert f"{url}/{file}" in message or "MD5" in message
    assert load_of_downloads(download_mode="force_redownload") == right
    assert load_of_downloads() == right


@pytest.mark.parametrize("module", [Poetry50KRetrieval, NanoDAPFAM])
def test_a_file_in_the_hubs_cache_is_held_to_its_name(module, tmp_path):
    """A Git LFS file's blob is named by its SHA-256, any other's by Git's hash."""
    for names, recorded in ((hashlib.sha256, False), (hashlib.sha1, True)):
        blob = tmp_path / "blobs" / names(b"content").hexdigest()
        link = tmp_path / "snapshots" / names.__name__ / "queries.parquet"
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(b"content")
        link.symlink_to(blob)
        for anew in (False, True, False):
            module.check_unchanged("hf://datasets/a/b/queries.parquet", str(link), anew)
        assert (len(list(link.parent.iterdir())) == 2) == recorded
        flip_a_bit(blob)
        with pytest.raises(module.UpstreamError, match=r"^hf://datasets/a/b/queries\.parquet: .*force_redownload"):
            module.check_unchanged("hf://datasets/a/b/queries.parquet", str(link), False)


@pytest.mark.skipif(not SCRIPTS_LOAD, reason="datasets-cli tests scripts before version 4 only")
@pytest.mark.parametrize("save_info", [[], ["--save_info"]])
@pytest.mark.parametrize("dataset", [POETRY, DAPFAM])
def test_datasets_cli_passes_and_leaves_readme_and_infos_as_they_are(sample, tmp_path, dataset, save_info):
    repository, data = tmp_path / "repository", tmp_path / "data"
    repository.mkdir()
    for name in (f"{POETRY}.py", f"{DAPFAM}.py", "dataset_infos.json"):
        shutil.copy(ROOT / name, repository)
    (repository / "README.md").write_text("---\nlicense: other\n---\n# Two datasets\n\nWords.\n")
    shutil.copytree(sample / ("poetry" if dataset == POETRY else "dapfam"), data)
    for split in reading.SPLITS if dataset == DAPFAM else ["test"]:
        upstream = reading.dapfam(data, split) if dataset == DAPFAM else reading.poetry(data)
        lists = reading.candidate_lists(upstream["queries"], upstream["corpus"])
        for config in reading.CANDIDATES:
            reading.write_sidecar(data, dataset, config, split, upstream["queries"], lists)
    before = {path.name: path.read_bytes() for path in repository.iterdir()}

    command = [Path(sys.executable).parent / "datasets-cli", "test", f"./{dataset}.py", "--all_configs", *save_info]
    command += ["--trust_remote_code", "--data_dir", data, "--cache_dir", tmp_path / "cache"]
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    configs = 7 if dataset == POETRY else 6
    assert f"({configs}/{configs})" in run.stdout
    assert {path.name: path.read_bytes() for path in repository.iterdir()} == before
