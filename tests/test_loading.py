"""One dataset, many ways to load it: the rows are the same whichever is taken."""

import pickle
import re
import shutil

import datasets
import pyarrow.parquet as pq
import pytest
import reading
from conftest import ROOT, SCRIPTS_LOAD

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
CONFIGS = {POETRY: ["corpus", "queries", "qrels_max", "qrels_min"], DAPFAM: ["corpus", "queries", "qrels"]}
FOLDERS = {POETRY: "poetry", DAPFAM: "dapfam"}
SOME = ["NanoDAPFAMAllTitlAbsClmToFullText", "NanoDAPFAMOutTitlAbsToTitlAbs"]
# Makes a copy another script: the library knows a script by its content, not by its folder.
ALONE = "http://127.0.0.1:9/alone"
BASE_CONFIGS = [(dataset, config) for dataset in CONFIGS for config in CONFIGS[dataset]]
CANDIDATES = [(dataset, config) for dataset in CONFIGS for config in reading.CANDIDATES]

only_scripts = pytest.mark.skipif(not SCRIPTS_LOAD, reason="datasets loads scripts before version 4 only")
only_classes = pytest.mark.skipif(SCRIPTS_LOAD, reason="the way to load from datasets 4 on")


def options(dataset, splits=SOME):
    return {"splits": splits} if dataset == DAPFAM else {}


@pytest.fixture
def candidates(sample, tmp_path):
    """(dataset, config, root) -> {split: rows}; their sidecars are at the root."""

    def write(dataset, config, root, changes=()):
        rows = {}
        for split in SOME if dataset == DAPFAM else ["test"]:
            if dataset == DAPFAM:
                upstream = reading.dapfam(sample / "dapfam", split)
            else:
                upstream = reading.poetry(sample / "poetry")
            lists = reading.candidate_lists(upstream["queries"], upstream["corpus"])
            reading.write_sidecar(root, dataset, config, split, upstream["queries"], lists, changes)
            rows[split] = reading.candidate_rows(lists)
        return rows

    return write


@pytest.mark.parametrize("way", ["folder", "file url", "http", "http without ranges"])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("dataset", "config"), BASE_CONFIGS)
def test_rows_are_the_same_from_anywhere_streaming_or_not(load, serve, sample, dataset, config, streaming, way):
    folder = sample / FOLDERS[dataset]
    if way.startswith("http"):
        location = serve(folder, ranges="bytes" if way == "http" else "").url
    else:
        location = folder.as_uri() if way == "file url" else folder
    found = load(dataset, config, location, streaming=streaming, **options(dataset))
    assert reading.first_difference(found, reading.expected(dataset, config, folder, SOME)) is None


@pytest.mark.parametrize(("dataset", "config"), BASE_CONFIGS)
def test_all_splits_stream(load, sample, dataset, config):
    folder = sample / FOLDERS[dataset]
    streamed = load(dataset, config, folder, streaming=True)
    assert reading.first_difference(streamed, reading.expected(dataset, config, folder)) is None


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("dataset", CONFIGS)
def test_relative_data_dir_is_relative_to_the_current_folder(load, sample, monkeypatch, dataset, streaming):
    monkeypatch.chdir(sample)
    found = load(dataset, "queries", FOLDERS[dataset], streaming=streaming)
    assert reading.first_difference(found, reading.expected(dataset, "queries", sample / FOLDERS[dataset])) is None


def test_a_stream_of_a_relative_data_dir_survives_a_change_of_folder(open_splits, sample, tmp_path, monkeypatch):
    monkeypatch.chdir(sample)
    stream = open_splits(POETRY, "queries", "poetry", streaming=True)["test"]
    monkeypatch.chdir(tmp_path)
    assert list(stream) == reading.poetry(sample / "poetry")["queries"]


@pytest.mark.parametrize("dataset", CONFIGS)
def test_data_dir_may_start_with_a_tilde(load, sample, monkeypatch, dataset):
    monkeypatch.setenv("HOME", str(sample))
    found = load(dataset, "queries", f"~/{FOLDERS[dataset]}/")
    assert reading.first_difference(found, reading.expected(dataset, "queries", sample / FOLDERS[dataset])) is None


@pytest.mark.parametrize(("dataset", "config"), [(POETRY, "qrels_max"), (DAPFAM, "queries")])
def test_default_config(load, sample, dataset, config):
    folder = sample / FOLDERS[dataset]
    assert reading.first_difference(load(dataset, None, folder), reading.expected(dataset, config, folder)) is None


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("chosen", [SOME, SOME[::-1], SOME[1:], tuple(SOME)])
def test_only_the_chosen_splits_are_built(load, sample, chosen, streaming):
    found = load(DAPFAM, "queries", sample / "dapfam", splits=chosen, streaming=streaming)
    splits = [split for split in reading.SPLITS if split in chosen]
    assert reading.first_difference(found, reading.expected(DAPFAM, "queries", sample / "dapfam", splits)) is None


def test_splits_are_cached_by_choice(load, sample):
    for chosen in (SOME[:1], SOME, SOME[1:]):
        assert list(load(DAPFAM, "qrels", sample / "dapfam", splits=chosen)) == chosen


@pytest.mark.parametrize("streaming", [False, True])
def test_unknown_split_is_an_error_that_lists_the_known_ones(load, sample, streaming):
    with pytest.raises(ValueError, match="NanoDAPFAMAllTitlAbs'") as caught:
        load(DAPFAM, "queries", sample / "dapfam", splits=["NanoDAPFAMAllTitlAbs"], streaming=streaming)
    assert all(re.search(rf"\b{split}\b", str(caught.value)) for split in reading.SPLITS)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("dataset", "config"), [(POETRY, "qrels_max"), (DAPFAM, "queries"), (DAPFAM, "corpus")])
def test_a_script_works_alone_in_a_folder(load, copy_script, sample, tmp_path, dataset, config, streaming):
    alone = copy_script(dataset, tmp_path / "alone", UPSTREAM=ALONE)
    folder = sample / FOLDERS[dataset]
    found = load(dataset, config, folder, folder=alone, streaming=streaming, **options(dataset))
    assert reading.first_difference(found, reading.expected(dataset, config, folder, SOME)) is None


@only_scripts
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("dataset", CONFIGS)
def test_inspection_functions_need_no_upstream(copy_script, tmp_path, dataset, alone):
    script = str((copy_script(dataset, tmp_path, UPSTREAM=ALONE) if alone else ROOT) / f"{dataset}.py")
    configs = datasets.get_dataset_config_names(script, trust_remote_code=True)
    assert configs == [*CONFIGS[dataset], *reading.CANDIDATES]
    default = datasets.get_dataset_default_config_name(script, trust_remote_code=True)
    assert default == {POETRY: "qrels_max", DAPFAM: "queries"}[dataset]
    for config in configs:
        splits = datasets.get_dataset_split_names(script, config, trust_remote_code=True)
        assert splits == (reading.SPLITS if dataset == DAPFAM else ["test"])
        builder = datasets.load_dataset_builder(script, config, trust_remote_code=True)
        assert builder.config.name == config


@only_scripts
@pytest.mark.parametrize("dataset", CONFIGS)
def test_split_names_with_a_data_dir(sample, dataset):
    script, folder = str(ROOT / f"{dataset}.py"), str(sample / FOLDERS[dataset])
    splits = datasets.get_dataset_split_names(script, "queries", data_dir=folder, trust_remote_code=True)
    assert splits == (reading.SPLITS if dataset == DAPFAM else ["test"])


@only_classes
@pytest.mark.parametrize("dataset", CONFIGS)
def test_the_class_lists_its_configs(builder_class, dataset):
    builder = builder_class(ROOT / f"{dataset}.py")
    assert list(builder.builder_configs) == [*CONFIGS[dataset], *reading.CANDIDATES]
    assert {POETRY: "qrels_max", DAPFAM: "queries"}[dataset] == builder.DEFAULT_CONFIG_NAME
    assert builder(config_name="queries").info.features


@pytest.mark.parametrize(("dataset", "config"), BASE_CONFIGS)
def test_a_stream_is_pickled_and_read_twice(open_splits, sample, dataset, config):
    folder = sample / FOLDERS[dataset]
    right = reading.expected(dataset, config, folder, SOME)
    streams = open_splits(dataset, config, folder, streaming=True, **options(dataset))
    copies = pickle.loads(pickle.dumps(dict(streams)))
    for split, stream in streams.items():
        rows = [list(stream), list(stream), list(copies[split])]
        assert [reading.first_difference({split: each}, {split: right[split]}) for each in rows] == [None] * 3


@pytest.mark.parametrize(("dataset", "config"), BASE_CONFIGS)
def test_generated_examples_are_the_rows(open_builder, sample, dataset, config):
    folder = sample / FOLDERS[dataset]
    builder = open_builder(dataset, config, folder, **options(dataset))
    found = {}
    for split in builder._split_generators(datasets.StreamingDownloadManager()):
        examples = list(builder._generate_examples(**split.gen_kwargs))
        assert len({key for key, _ in examples}) == len(examples)
        found[split.name] = [row for _, row in examples]
    assert reading.first_difference(found, reading.expected(dataset, config, folder, SOME)) is None


def test_the_part_said_to_be_the_same_in_both_scripts_is():
    start, end = "# ---- The same in both scripts", "# ---- End of "
    parts = []
    for dataset in CONFIGS:
        source = (ROOT / f"{dataset}.py").read_text("utf-8")
        assert (source.count(start), source.count(end)) == (1, 1)
        parts.append(source[source.index(start) : source.index(end)])
    assert parts[0] == parts[1]
    assert parts[0].count("\n") > 20


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("dataset", "config"), CANDIDATES)
def test_candidates_are_read_from_data_dir(load, candidates, sample, tmp_path, dataset, config, streaming):
    folder = shutil.copytree(sample / FOLDERS[dataset], tmp_path / "upstream")
    rows = candidates(dataset, config, folder)
    found = load(dataset, config, folder, streaming=streaming, **options(dataset))
    assert reading.first_difference(found, rows) is None


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("dataset", CONFIGS)
@pytest.mark.parametrize("place", ["absolute", "relative", "url"])
def test_candidates_are_read_from_sidecar_dir(
    load, candidates, serve, sample, tmp_path, monkeypatch, dataset, streaming, place
):
    rows = candidates(dataset, "bm25", tmp_path / "lists")
    monkeypatch.chdir(tmp_path)
    places = {"absolute": str(tmp_path / "lists"), "relative": "lists"}
    sidecars = serve(tmp_path / "lists").url if place == "url" else places[place]
    upstream = serve(sample / FOLDERS[dataset]).url
    found = load(dataset, "bm25", upstream, sidecar_dir=sidecars, streaming=streaming, **options(dataset))
    assert reading.first_difference(found, rows) is None


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("dataset", CONFIGS)
def test_candidates_of_the_official_upstream_lie_beside_the_script(
    load, builder_class, candidates, copy_script, serve, sample, tmp_path, monkeypatch, dataset, streaming
):
    folder = copy_script(dataset, tmp_path / "repository", UPSTREAM=serve(sample / FOLDERS[dataset]).url)
    rows = candidates(dataset, "bm25", folder / "sidecars" / dataset)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = load(dataset, "bm25", folder=folder, streaming=streaming, **options(dataset))
    assert reading.first_difference(found, rows) is None
    builder = builder_class(folder / f"{dataset}.py")(config_name="bm25", **options(dataset))
    assert reading.first_difference({k: list(v) for k, v in builder.as_streaming_dataset().items()}, rows) is None


@only_scripts
def test_a_script_named_by_a_relative_path_finds_the_sidecars_beside_it(
    candidates, copy_script, serve, sample, tmp_path, monkeypatch
):
    folder = copy_script(POETRY, tmp_path / "repository", UPSTREAM=serve(sample / "poetry").url)
    rows = candidates(POETRY, "bm25", folder / "sidecars" / POETRY)
    for current, script in (
        (folder, f"{POETRY}.py"),
        (folder, f"./{POETRY}.py"),
        (tmp_path, f"repository/{POETRY}.py"),
    ):
        monkeypatch.chdir(current)
        found = datasets.load_dataset(script, "bm25", trust_remote_code=True)
        assert reading.first_difference({"test": list(found["test"])}, rows) is None


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("config", reading.CANDIDATES)
@pytest.mark.parametrize("dataset", CONFIGS)
def test_missing_sidecar_names_the_command_that_builds_it(load, sample, dataset, config, streaming):
    folder = sample / FOLDERS[dataset]
    split = SOME[0] if dataset == DAPFAM else "test"
    with pytest.raises(ValueError, match="python -m tools") as caught:
        load(dataset, config, folder, streaming=streaming, **options(dataset))
    command = {"bm25": "bm25", "harrier_oss_v1_270m": "dense", "reranking_hybrid": "hybrid"}[config]
    assert f"{folder}/{config}/{split}.parquet" in str(caught.value)
    assert f"python -m tools {command} {dataset} --data-dir {folder}" in str(caught.value)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": DAPFAM}, [DAPFAM]),
        ({"config": "reranking_hybrid"}, ["reranking_hybrid"]),
        ({"split": "train"}, ["train"]),
        ({"digests": {"queries": "0" * 64}}, ["queries"]),
        ({"digests": {}}, ["not a sidecar"]),
        ({"digests": None}, ["not a sidecar"]),
    ],
)
def test_sidecar_made_for_something_else_is_refused(load, candidates, sample, tmp_path, changes, words, streaming):
    candidates(POETRY, "bm25", tmp_path, changes)
    check_refused(load, sample, tmp_path, words, streaming)


def check_refused(load, sample, root, words, streaming):
    with pytest.raises(ValueError, match="^" + re.escape(f"{root}/bm25/test.parquet")) as caught:
        load(POETRY, "bm25", sample / "poetry", sidecar_dir=str(root), streaming=streaming)
    message = str(caught.value)
    assert all(word in message for word in [*words, "python -m tools bm25 Poetry50KRetrieval"])
    assert "\n" not in message


@pytest.mark.parametrize("streaming", [False, True])
def test_sidecar_of_other_queries_is_refused(load, candidates, sample, tmp_path, streaming):
    queries = reading.poetry(sample / "poetry")["queries"]
    changed = [{**queries[0], "text": "another text"}, *queries[1:]]
    lists = {query["id"]: ["b/1"] for query in queries}
    reading.write_sidecar(tmp_path, POETRY, "bm25", "test", changed, lists)
    check_refused(load, sample, tmp_path, ["queries"], streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_sidecar_with_lists_in_another_order_than_the_queries_is_refused(load, sample, tmp_path, streaming):
    queries = reading.poetry(sample / "poetry")["queries"]
    lists = {query["id"]: ["b/1"] for query in queries[::-1]}
    reading.write_sidecar(tmp_path, POETRY, "bm25", "test", queries, lists)
    check_refused(load, sample, tmp_path, ["queries"], streaming)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("damage", ["cut", "empty", "text", "no recipe", "no column"])
def test_damaged_sidecar_is_refused(load, candidates, sample, tmp_path, damage, streaming):
    candidates(POETRY, "bm25", tmp_path)
    path = tmp_path / "bm25" / "test.parquet"
    content, table = path.read_bytes(), pq.read_table(path)
    if damage == "no recipe":
        pq.write_table(table.replace_schema_metadata(None), path)
    elif damage == "no column":
        pq.write_table(table.drop_columns("corpus-ids"), path)
    else:
        path.write_bytes({"cut": content[:-10], "empty": b"", "text": b"query-id,corpus-ids\n"}[damage])
    check_refused(load, sample, tmp_path, ["not a sidecar"], streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_damaged_judged_sidecar_is_no_harm(load, sample, tmp_path, streaming):
    folder = shutil.copytree(sample / "poetry", tmp_path / "upstream")
    (folder / "judged.parquet").write_bytes(b"not Parquet")
    found = load(POETRY, "qrels_max", folder, streaming=streaming)
    assert reading.first_difference(found, reading.expected(POETRY, "qrels_max", folder)) is None
