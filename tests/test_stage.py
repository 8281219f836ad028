"""Staged folders: what every version of `datasets` and the Hub's viewer make of them, and what stops a staging.

The sample is staged with small row groups and shards, so that the cuts are seen in little text.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reading
import yaml
from conftest import ROOT, SCRIPTS_LOAD

from tools import stage_parquet
from tools.__main__ import main
from tools.card import Build, Split, render
from tools.collection import Collection, cut
from tools.evaluate import mean, measure, retrieved
from tools.runs import read_lists
from tools.stage import recall_curve
from tools.stage_parquet import row_bytes, write_split

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
SPLITS = ["NanoDAPFAMAllTitlAbsClmToFullText", "NanoDAPFAMOutTitlAbsToTitlAbs"]
FOLDERS = {POETRY: "poetry", DAPFAM: "dapfam"}
CONFIGS = {
    POETRY: ["corpus", "queries", "qrels_max", "qrels_min", "bm25", "reranking_hybrid", "qrels"],
    DAPFAM: ["corpus", "queries", "qrels", "bm25", "reranking_hybrid", "mteb-qrels", "mteb-corpus", "mteb-queries"],
}
SOURCES = {  # staged config -> the script's config that has its rows, and the folder of its files, where they differ
    POETRY: {"qrels": ("qrels_max", "qrels_max")},
    DAPFAM: {
        "mteb-corpus": ("corpus", "corpus"),
        "mteb-queries": ("queries", "queries"),
        "mteb-qrels": ("qrels", "mteb-qrels"),
    },
}
GROUP_BYTES, SHARD_BYTES = 1 << 15, 1 << 17
GROUPS_READ = 4  # "a few row groups"
LOAD_219 = "RETRIEVAL_DATASETS_219"


def source_of(dataset, config):
    return SOURCES[dataset].get(config, (config, config))


def splits_of(dataset):
    return ["test"] if dataset == POETRY else SPLITS


def place(dataset, sample, sidecars):
    words = [dataset, "--data-dir", str(sample / FOLDERS[dataset]), "--sidecars", str(sidecars / dataset)]
    return words if dataset == POETRY else [*words, "--splits", *SPLITS]


@pytest.fixture(scope="module")
def sidecars(sample, tmp_path_factory):
    """bm25, lsa and what is fused of them; no harrier."""
    folder = tmp_path_factory.mktemp("sidecars")
    for dataset in CONFIGS:
        where = place(dataset, sample, folder)
        assert main(["bm25", *where, "--top-k", "20", "--force-positives"]) == 0
        assert main(["dense", *where, "--model", "lsa", "--top-k", "20"]) == 0
        assert main(["hybrid", *where, "--sources", "bm25", "lsa", "--top-k", "5"]) == 0
    return folder


@pytest.fixture(scope="module", params=CONFIGS)
def dataset(request):
    return request.param


@pytest.fixture(scope="module")
def staged(dataset, sample, sidecars, tmp_path_factory):
    """A dataset's staged folder."""
    folder = tmp_path_factory.mktemp("staged") / dataset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_parquet, "GROUP_BYTES", GROUP_BYTES)
        patch.setattr(stage_parquet, "SHARD_BYTES", SHARD_BYTES)
        assert main(["stage", *place(dataset, sample, sidecars), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def by_script(dataset, sample, sidecars, open_splits):
    """(staged config) -> its {split: rows} and features by the script, or by its class where scripts do not load."""
    options = {"sidecar_dir": str(sidecars / dataset)} | ({} if dataset == POETRY else {"splits": SPLITS})

    def load(config):
        loaded = open_splits(dataset, source_of(dataset, config)[0], sample / FOLDERS[dataset], **options)
        score = {"score": 1.0} if config == "mteb-qrels" else {}
        features = loaded[next(iter(loaded))].features
        if score:
            features = datasets.Features({**features, "score": datasets.Value("float64")})
        return {split: [row | score for row in rows] for split, rows in loaded.items()}, features

    return load


# ---- Loads everywhere ----


def test_configs_splits_and_default(dataset, staged):
    assert datasets.get_dataset_config_names(str(staged)) == CONFIGS[dataset]
    for config in CONFIGS[dataset]:
        assert datasets.get_dataset_split_names(str(staged), config) == splits_of(dataset)
    default = {POETRY: "qrels_max", DAPFAM: "queries"}[dataset]
    assert datasets.load_dataset_builder(str(staged)).config.name == default
    assert {path.name for path in staged.iterdir()} >= {"README.md", "assets", "script"}
    assert not list(staged.glob("*.py")), "a script at the root keeps datasets 4 from loading"


def test_rows_and_features_are_the_scripts(dataset, staged, by_script):
    for config in CONFIGS[dataset]:
        right, features = by_script(config)
        loaded = datasets.load_dataset(str(staged), config, verification_mode="all_checks")
        streamed = datasets.load_dataset(str(staged), config, streaming=True)
        for found in (loaded, streamed):
            assert reading.first_difference({split: list(rows) for split, rows in found.items()}, right) is None, config
            assert all(rows.features == features for rows in found.values()), config


def test_datasets_219_finds_the_same_rows(dataset, staged, by_script):
    interpreter = os.environ.get(LOAD_219)
    if not interpreter:
        pytest.skip(f"{LOAD_219} does not name an interpreter that has datasets 2.19")
    code = """
        import json, sys
        import datasets
        assert datasets.__version__.startswith("2.19"), datasets.__version__
        folder, *configs = sys.argv[1:]
        rows = {}
        for config in configs:
            loaded = datasets.load_dataset(folder, config)
            rows[config] = {split: list(loaded[split]) for split in loaded}
            streamed = datasets.load_dataset(folder, config, streaming=True)
            assert rows[config] == {split: list(streamed[split]) for split in streamed}, config
        default = datasets.load_dataset_builder(folder).config.name
        json.dump([datasets.get_dataset_config_names(folder), default, rows], sys.stdout)
    """
    command = [interpreter, "-c", "\n".join(line[8:] for line in code.splitlines()), str(staged), *CONFIGS[dataset]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    configs, default, rows = json.loads(done.stdout)
    assert (configs, default) == (CONFIGS[dataset], {POETRY: "qrels_max", DAPFAM: "queries"}[dataset])
    for config in CONFIGS[dataset]:
        assert reading.first_difference(rows[config], by_script(config)[0]) is None, config


@pytest.mark.skipif(SCRIPTS_LOAD, reason="before 4, `datasets-cli test` tests scripts only, no folder of Parquet files")
def test_the_librarys_own_test_command_passes(staged):
    cli = [sys.executable, "-m", "datasets.commands.datasets_cli", "test", str(staged), "--all_configs"]
    done = subprocess.run(cli, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Test successful" in done.stdout


@pytest.mark.skipif(not SCRIPTS_LOAD, reason="datasets loads no scripts from 4 on")
def test_the_script_that_goes_along_loads(dataset, staged, sample, by_script):
    options = {} if dataset == POETRY else {"splits": SPLITS}
    loaded = datasets.load_dataset(
        str(staged / "script" / f"{dataset}.py"),
        "queries",
        data_dir=str(sample / FOLDERS[dataset]),
        trust_remote_code=True,
        **options,
    )
    assert {split: list(rows) for split, rows in loaded.items()} == by_script("queries")[0]
    infos = json.loads((staged / "script" / "dataset_infos.json").read_text("utf-8"))
    assert infos and all(key.startswith(f"{dataset}/") for key in infos)


# ---- As the viewer reads it ----


def bytes_read():
    with open("/proc/self/io") as counters:
        return int(counters.readline().split()[1])


def test_the_viewer_finds_the_first_rows_of_everything(dataset, staged):
    for config in datasets.get_dataset_config_names(str(staged)):
        for split in datasets.get_dataset_split_names(str(staged), config):
            start = time.perf_counter()
            stream = datasets.load_dataset(str(staged), config, split=split, streaming=True)
            rows = list(stream.take(100))
            assert time.perf_counter() - start < 10, (config, split)
            info = datasets.load_dataset_builder(str(staged), config).info
            assert len(rows) == min(100, info.splits[split].num_examples)
            assert list(rows[0]) == list(info.features) == list(stream.features)


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="counts what is read by Linux's own counters")
def test_the_first_rows_cost_few_row_groups(tmp_path, monkeypatch):
    """For a reader that reads in place, as the viewer does; pyarrow's scanner, which `datasets` streams with, fetches
    ahead to the end of the shard whatever is in it."""
    monkeypatch.setattr(stage_parquet, "GROUP_BYTES", 1 << 20)
    rng = np.random.default_rng(1)
    words = [f"word{number}" for number in range(5000)]
    texts = [" ".join(rng.choice(words, 500)) for _ in range(2500)]
    source = datasets.Dataset.from_dict({"id": list(map(str, range(2500))), "text": texts})
    source.save_to_disk(str(tmp_path / "source"))
    part = write_split(datasets.load_from_disk(str(tmp_path / "source")), "corpus", "test", tmp_path, {})
    (name,) = part.files
    before = bytes_read()
    with pq.ParquetFile(tmp_path / name, pre_buffer=False) as file:
        assert next(file.iter_batches(batch_size=100))["text"].to_pylist() == texts[:100]
        assert file.num_row_groups > 10
        assert bytes_read() - before < GROUPS_READ * part.download_size / file.num_row_groups


# ---- Files ----


def test_files_are_cut_by_bytes_and_indexed(dataset, staged):
    several_groups, several_shards = 0, 0
    for path in staged.rglob("*.parquet"):
        with pq.ParquetFile(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
            assert metadata.metadata is None, "no features or Arrow schema that an older version may not know"
            assert all(schema.field(name).type in (pa.string(), pa.int64(), pa.float64()) for name in plain(schema))
            for number in range(metadata.num_row_groups):
                group = file.read_row_group(number)
                largest = int(row_bytes(group).max(initial=0))
                assert row_bytes(group).sum() <= GROUP_BYTES + largest
                for column in range(metadata.num_columns):
                    chunk = metadata.row_group(number).column(column)
                    assert chunk.has_offset_index and chunk.compression == "SNAPPY"
                    assert chunk.has_column_index or chunk.path_in_schema in stage_parquet.TEXTS
            several_groups += metadata.num_row_groups > 1
        shards = list(path.parent.glob(f"{path.name.rsplit('-', 3)[0]}-*.parquet"))
        assert path.name.endswith(f"-of-{len(shards):05}.parquet")
        several_shards += len(shards) > 1
    assert several_groups and several_shards


def plain(schema):
    return [field.name for field in schema if not pa.types.is_list(field.type)]


def test_the_card_counts_what_is_in_the_files(dataset, staged):
    block = yaml.safe_load((staged / "README.md").read_text("utf-8").split("---\n")[1])
    assert [info["config_name"] for info in block["dataset_info"]] == CONFIGS[dataset]
    for info in block["dataset_info"]:
        folder = staged / source_of(dataset, info["config_name"])[1]
        assert info["download_size"] == sum(path.stat().st_size for path in folder.iterdir())
        assert info["dataset_size"] == sum(split["num_bytes"] for split in info["splits"])
        for split in info["splits"]:
            table = pa.concat_tables(map(pq.read_table, sorted(folder.glob(f"{split['name']}-*.parquet"))))
            assert (split["num_examples"], split["num_bytes"]) == (len(table), int(row_bytes(table).sum()))


def test_an_inserted_row_leaves_most_of_the_file_as_it_was(tmp_path, monkeypatch):
    """Content-defined chunking: soon after the row pages are cut alike again, and so compress to the same bytes."""
    if "use_content_defined_chunking" not in stage_parquet.OPTIONS:
        pytest.skip("this pyarrow has no content-defined chunking")
    rng = np.random.default_rng(1)
    words = [f"word{number}" for number in range(5000)]
    texts = [" ".join(rng.choice(words, 200)) for _ in range(3000)]

    def share_kept():
        files = []
        for version in (texts, [*texts[:100], "a new text", *texts[100:]]):
            table = pa.table({"text": version})
            with stage_parquet.open_writer(tmp_path / "file", table.schema) as writer:
                writer.write_table(table, row_group_size=len(table))
            files.append((tmp_path / "file").read_bytes())
        before, after = files
        blocks = [after[at : at + 16384] for at in range(0, len(after) - 16384, 16384)]
        return sum(block in before for block in blocks) / len(blocks)

    kept = share_kept()
    monkeypatch.setitem(stage_parquet.OPTIONS, "use_content_defined_chunking", False)
    assert kept > 0.8 > 0.3 > share_kept()


def test_bytes_are_counted_as_published_sizes_count_them():
    """The published figure of 200 lists of 500 ids of 19 characters."""
    table = pa.table({"query-id": ["q" * 19] * 200, "corpus-ids": [["d" * 19] * 500] * 200})
    assert row_bytes(table).sum() == 2305400
    chunked = pa.concat_tables([table.slice(0, 7), table.slice(7, 50), table.slice(57)])
    assert row_bytes(chunked).tolist() == row_bytes(table).tolist()
    assert row_bytes(pa.table({"n": [1, None], "t": ["ä", None]})).tolist() == [8 + 2 + 4, 8 + 4]


def test_cuts():
    assert cut(np.array([5, 5, 5, 5]), 10) == [(0, 2), (2, 4)]
    assert cut(np.array([1, 100, 1, 1]), 10) == [(0, 2), (2, 4)]
    assert cut(np.zeros(0, int), 10) == []


def test_a_split_without_rows(tmp_path):
    features = datasets.Features({"id": datasets.Value("string"), "text": datasets.Value("string")})
    dataset = datasets.Dataset.from_dict({"id": [], "text": []}, features)
    part = write_split(dataset, "corpus", "test", tmp_path, {})
    assert (part.rows, list(part.files)) == (0, ["corpus/test-00000-of-00001.parquet"])
    assert pq.read_table(tmp_path / "corpus" / "test-00000-of-00001.parquet").column_names == ["id", "text"]


def test_rows_of_the_same_sizes_are_loaded_anew(tmp_path):
    """The library's cache knows a local folder by its card."""
    for letter in "ab":
        datasets.Dataset.from_dict({"id": [letter], "text": [letter * 9]}).save_to_disk(str(tmp_path / "rows"))
        dataset = datasets.load_from_disk(str(tmp_path / "rows"))
        parts = [write_split(dataset, "queries", "test", tmp_path, {})]
        card = render(Build(POETRY, "./poetry", False, parts, [Split("test", {}, {})], [], {}))
        (tmp_path / "README.md").write_text(card, "utf-8")
        assert datasets.load_dataset(str(tmp_path), "queries", split="test")["id"][0] == letter


# ---- Candidate lists ----


def test_measures_on_the_card_are_those_of_evaluate(dataset, staged, sample, sidecars, capsys):
    readme = (staged / "README.md").read_text("utf-8")
    capsys.readouterr()
    assert main(["evaluate", *place(dataset, sample, sidecars), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    for row in rows:
        if row["config"] == "lsa":
            continue
        section = readme.split(f"### `{row['config']}`\n")[1]
        qrels = [f"`{row['qrels']}`"] if dataset == POETRY else []
        start = " | ".join([f"| `{row['split']}`", *qrels, ""])
        line = next(line for line in section.splitlines() if line.startswith(start))
        assert f"| {row['nDCG@10']:.4f} | {row['recall@100']:.4f} |" in line


def test_recall_curves_pass_through_recall_at_100(sample, sidecars):
    collection = Collection(POETRY, "test", str(sample / "poetry"), str(sidecars / POETRY))
    lists = retrieved(read_lists(collection, "bm25"))
    for config in ("qrels_max", "qrels_min"):
        qrels = collection.qrels(config)
        curve = recall_curve(lists, qrels)
        measured = mean(list(measure(lists, qrels).values()))
        assert curve[9] == pytest.approx(measured["recall@10"])
        assert curve[min(100, len(curve)) - 1] == pytest.approx(measured["recall@100"])


def test_missing_lists_are_left_out_and_said_once(sample, sidecars, tmp_path, capsys):
    where = place(DAPFAM, sample, tmp_path)
    shutil.copytree(sidecars / DAPFAM / "bm25", tmp_path / DAPFAM / "bm25")
    (tmp_path / DAPFAM / "bm25" / f"{SPLITS[1]}.parquet").unlink()
    capsys.readouterr()
    assert main(["stage", *where, "--out", str(tmp_path / "out")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "bm25 (1 of 2 splits), harrier_oss_v1_270m, reranking_hybrid; build them" in line
    assert "python -m tools bm25 NanoDAPFAM" in line
    assert datasets.get_dataset_split_names(str(tmp_path / "out"), "bm25") == SPLITS[:1]
    assert "harrier" not in (tmp_path / "out" / "README.md").read_text("utf-8").split("# NanoDAPFAM")[1]


# ---- What stops a staging ----


def refused(capsys, *words):
    """The one line of a command that exits with 2."""
    capsys.readouterr()
    assert main(list(map(str, words))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_bad_input_is_one_line_and_leaves_nothing(sample, sidecars, tmp_path, capsys):
    where = place(POETRY, sample, sidecars)
    out = tmp_path / "made" / "out"
    assert "no such folder" in refused(capsys, "stage", *where, "--out", out)
    out.parent.mkdir()
    assert "harrier_oss_v1_270m" in refused(capsys, "stage", *where, "--out", out, "--require-all")
    assert list(out.parent.iterdir()) == []
    out.mkdir()
    assert f"{out}: exists" in refused(capsys, "stage", *where, "--out", out)
    (out / "thesis.tex").write_text("mine")
    line = refused(capsys, "stage", *where, "--out", out, "--overwrite")
    assert "has thesis.tex, which is not staging's" in line
    assert reading.contents(out) == {"thesis.tex": b"mine"}


@pytest.mark.parametrize("change", ["stale corpus", "other bm25", "damaged"])
def test_a_stale_sidecar_is_refused(sample, sidecars, tmp_path, capsys, change):
    data, lists = tmp_path / "poetry", tmp_path / POETRY
    shutil.copytree(sample / "poetry", data)
    shutil.copytree(sidecars / POETRY, lists)
    where = [POETRY, "--data-dir", str(data), "--sidecars", str(lists)]
    if change == "stale corpus":
        qrels = (data / "mturk.max.qrel").read_text("utf-8").splitlines()
        (data / "mturk.max.qrel").write_text("\n".join(qrels[::2]) + "\n", "utf-8")
    elif change == "other bm25":
        assert main(["bm25", *where, "--top-k", "10", "--overwrite"]) == 0
    else:
        (lists / "bm25" / "test.parquet").write_bytes(b"PAR1")
    line = refused(capsys, "stage", *where, "--out", tmp_path / "out")
    assert "--overwrite" in line and ("not a sidecar" if change == "damaged" else "stale") in line
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def test_overwriting_and_staging_again_make_the_same_bytes(sample, sidecars, tmp_path):
    where = ["stage", *place(POETRY, sample, sidecars), "--out"]
    assert main([*where, str(tmp_path / "out")]) == 0
    first = reading.contents(tmp_path / "out")
    (tmp_path / "out" / "assets" / "old.svg").write_text("stale")
    assert main([*where, str(tmp_path / "out"), "--overwrite"]) == 0
    assert reading.contents(tmp_path / "out") == first
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def run_stage(sample, sidecars, out, before=""):
    """The command in a process of its own; `before` is run there first."""
    code = f"import sys\nfrom tools import stage, stage_parquet\n{before}\nfrom tools.__main__ import main\n"
    code += "sys.exit(main(sys.argv[1:]))"
    words = ["stage", *place(POETRY, sample, sidecars), "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_killed_staging_leaves_no_folder_and_can_be_run_again(sample, sidecars, tmp_path):
    main(["stage", *place(POETRY, sample, sidecars), "--out", str(tmp_path / "whole")])
    halt = "import time\nstage.write_card = lambda *_: (print('halfway', flush=True), time.sleep(60))"
    process = run_stage(sample, sidecars, tmp_path / "out", halt)
    assert process.stdout.readline() == "halfway\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out").exists() and (tmp_path / ".out.incomplete").exists()
    assert main(["stage", *place(POETRY, sample, sidecars), "--out", str(tmp_path / "out")]) == 0
    found, right = reading.contents(tmp_path / "out"), reading.contents(tmp_path / "whole")
    found["README.md"] = found["README.md"].replace(b"./out", b"./whole")
    assert found == right
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_a_disk_that_fills_up_is_one_line(sample, sidecars, tmp_path):
    """The limit on a file's size stands for the disk's: writing fails in the same place, with another number."""
    main(["stage", *place(POETRY, sample, sidecars), "--out", str(tmp_path / "whole")])  # the library's cache is full
    limit = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY}))"
    process = run_stage(sample, sidecars, tmp_path / "out", limit)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    line = errors.splitlines()[-1]
    assert line.startswith("python -m tools stage: ") and "too large" in line.lower()
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
