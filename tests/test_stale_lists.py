"""Silent wrongness: candidate lists of another upstream, tokenizer, version, dataset, split or order are not taken."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tools.__main__ import main
from tools.collection import Collection
from tools.errors import InputError
from tools.runs import read_lists

DAPFAM, SPLIT = "NanoDAPFAM", "NanoDAPFAMInTitlAbsClmToFullText"


@pytest.fixture(scope="module")
def listed(sample, tmp_path_factory):
    """A folder of lists that bm25 and lsa made of the sample's DAPFAM."""
    folder = tmp_path_factory.mktemp("lists")
    common = [DAPFAM, "--data-dir", str(sample / "dapfam"), "--sidecars", str(folder), "--splits", SPLIT]
    assert main(["bm25", *common]) == 0
    assert main(["dense", *common, "--model", "lsa", "--config", "lsa"]) == 0
    return folder


def failed(capsys, upstream, lists):
    """Names of the checks of `verify` that fail."""
    capsys.readouterr()
    assert main(["verify", DAPFAM, "--data-dir", str(upstream), "--sidecars", str(lists), "--splits", SPLIT, "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    return [check["name"] for check in checks if check["result"] == "FAIL"]


def change_upstream(sample, folder, file):
    """The sample with one file changed, in a folder."""
    folder.mkdir()
    for path in (sample / "dapfam").glob("*.parquet"):
        table = pq.read_table(path)
        if path.name == f"{file}.parquet":
            if file == "qrels_all":
                table = table.slice(table.num_rows // 2)
            else:
                title = pa.array([f"{text} changed" for text in table["title_en"].to_pylist()])
                table = table.set_column(table.column_names.index("title_en"), "title_en", title)
        pq.write_table(table, folder / path.name)
    return folder


@pytest.mark.once
@pytest.mark.parametrize("file", ["corpus", "queries", "qrels_all"])
def test_lists_of_another_upstream_are_refused_by_commands_and_reported(sample, listed, tmp_path, capsys, file):
    upstream = change_upstream(sample, tmp_path / "other", file)
    collection = Collection(DAPFAM, SPLIT, str(upstream), str(listed))
    with pytest.raises(InputError, match=r"stale, made with other .*--overwrite"):
        read_lists(collection, "bm25")
    assert f"bm25/{SPLIT} made of the present" in failed(capsys, upstream, listed)


def test_lists_of_other_queries_are_refused_on_loading(load, sample, listed, tmp_path):
    upstream = change_upstream(sample, tmp_path / "other", "queries")
    with pytest.raises(ValueError, match=r"other queries.*--overwrite"):
        load(DAPFAM, "bm25", upstream, sidecar_dir=str(listed), splits=[SPLIT])


@pytest.mark.once
@pytest.mark.parametrize(
    "option", [("--tokenizer", "stemmer:en"), ("--k1", "1.2"), ("--b", "0.5"), ("--force-positives",), ("--top-k", "3")]
)
def test_lists_made_otherwise_are_not_taken_for_the_asked_ones(sample, listed, capsys, option):
    path = listed / "bm25" / f"{SPLIT}.parquet"
    before = path.read_bytes()
    common = [DAPFAM, "--data-dir", str(sample / "dapfam"), "--sidecars", str(listed), "--splits", SPLIT]
    assert main(["bm25", *common, *option]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "made with other parameters" in line and "--overwrite" in line
    assert path.read_bytes() == before


@pytest.mark.once
def test_a_fusion_of_lists_made_with_another_tokenizer_is_reported(sample, listed, tmp_path, capsys):
    lists = shutil.copytree(listed, tmp_path / "lists")
    common = [DAPFAM, "--data-dir", str(sample / "dapfam"), "--sidecars", str(lists), "--splits", SPLIT]
    assert main(["hybrid", *common, "--sources", "bm25", "lsa"]) == 0
    assert main(["bm25", *common, "--tokenizer", "whitespace", "--overwrite"]) == 0
    assert failed(capsys, sample / "dapfam", lists) == [f"reranking_hybrid/{SPLIT} source bm25"]


@pytest.mark.once
def test_lists_of_another_version_of_the_tool_are_not_taken(sample, listed, tmp_path, capsys):
    (tmp_path / "bm25").mkdir()
    path = tmp_path / "bm25" / f"{SPLIT}.parquet"
    table = pq.read_table(listed / "bm25" / path.name)
    recipe = {**json.loads(table.schema.metadata[b"recipe"]), "tool": "tools 0.9"}
    pq.write_table(table.replace_schema_metadata({"recipe": json.dumps(recipe)}), path)
    common = [DAPFAM, "--data-dir", str(sample / "dapfam"), "--sidecars", str(tmp_path), "--splits", SPLIT]
    assert main(["bm25", *common]) == 2
    assert "made with other tool" in capsys.readouterr().err


@pytest.mark.parametrize("changed", ["dataset", "split", "config"])
def test_lists_of_another_dataset_split_or_config_are_refused_on_loading(load, sample, listed, tmp_path, changed):
    (tmp_path / "bm25").mkdir()
    table = pq.read_table(listed / "bm25" / f"{SPLIT}.parquet")
    recipe = {**json.loads(table.schema.metadata[b"recipe"]), changed: "Another"}
    path = tmp_path / "bm25" / f"{SPLIT}.parquet"
    pq.write_table(table.replace_schema_metadata({"recipe": json.dumps(recipe)}), path)
    with pytest.raises(ValueError, match=r"made for .*Another.*--overwrite"):
        load(DAPFAM, "bm25", sample / "dapfam", sidecar_dir=str(tmp_path), splits=[SPLIT])


def test_rows_of_a_sidecar_in_another_order_are_refused_on_loading(load, sample, listed, tmp_path):
    (tmp_path / "bm25").mkdir()
    table = pq.read_table(listed / "bm25" / f"{SPLIT}.parquet")
    rows = list(range(len(table)))[::-1]
    pq.write_table(table.take(pa.array(rows)), tmp_path / "bm25" / f"{SPLIT}.parquet")
    with pytest.raises(ValueError, match="other queries"):
        load(DAPFAM, "bm25", sample / "dapfam", sidecar_dir=str(tmp_path), splits=[SPLIT])


@pytest.mark.once
def test_lsa_is_not_taken_for_bm25(sample, listed, tmp_path):
    (tmp_path / "bm25").mkdir()
    name = f"{SPLIT}.parquet"
    (tmp_path / "bm25" / name).write_bytes((listed / "lsa" / name).read_bytes())
    with pytest.raises(InputError, match="made for NanoDAPFAM/lsa"):
        read_lists(Collection(DAPFAM, SPLIT, str(sample / "dapfam"), str(tmp_path)), "bm25")
