"""Nothing gets out or in: no id becomes a path, no credentials are printed or stored, no other file is opened."""

import ast
import re
import sys

import pytest
import reading
from conftest import ROOT

from tools.__main__ import main

POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
SPLIT = "NanoDAPFAMInTitlAbsClmToFullText"
PATHS = ["../../outside", "/tmp/outside", "..", "a/b", "~", "C:\\outside", "-rf", "$(touch outside)", "a\nb", "\u202e"]


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.once
def test_no_id_becomes_a_path(load, tmp_path, monkeypatch):
    upstream, lists, work = tmp_path / "upstream", tmp_path / "lists", tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    corpus = [(name, f"text {name}", "words") for name in PATHS]
    queries = [(f"q{name}", f"text {name}", "words") for name in PATHS]
    relations = [(f"q{name}", name, 1.0, "IN") for name in PATHS]
    reading.write_dapfam(upstream, reading.dapfam_tables(corpus, queries, relations))
    before = tree(upstream)
    common = [DAPFAM, "--data-dir", str(upstream), "--sidecars", str(lists), "--splits", SPLIT]
    assert main(["bm25", *common]) == 0
    assert main(["dense", *common, "--model", "lsa", "--config", "lsa"]) == 0
    assert main(["hybrid", *common, "--sources", "bm25", "lsa"]) == 0
    for config in ("corpus", "queries", "qrels", "bm25"):
        options = {"cache_dir": str(tmp_path / "cache"), "sidecar_dir": str(lists), "splits": [SPLIT]}
        assert len(load(DAPFAM, config, upstream, **options)[SPLIT]) == len(PATHS)
    assert tree(upstream) == before and tree(work) == []
    out = tmp_path / "staged"
    assert main(["stage", *common, "--out", str(out)]) == 0
    staged = {path.relative_to(out).as_posix() for path in out.rglob("*.parquet")}
    configs = ["corpus", "queries", "qrels", "mteb-qrels", "bm25", "reranking_hybrid"]
    assert staged == {f"{config}/{SPLIT}-00000-of-00001.parquet" for config in configs}
    configs = ["bm25", "lsa", "reranking_hybrid"]
    assert tree(lists) == sorted([*configs, *(f"{config}/{SPLIT}.parquet" for config in configs)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "lists", "staged", "upstream", "work"]


NAMES = ["../outside", "/tmp/outside", "a/b", ".", "..", "a\0b"]
NAMED = [(option, name) for option in ("--splits", "--config", "--sources") for name in NAMES]
NAMED += [("--splits", ""), ("--sources", "")]  # an empty --config is the default


@pytest.mark.once
@pytest.mark.parametrize(("option", "name"), NAMED)
def test_no_option_that_is_a_name_becomes_another_path(sample, tmp_path, capsys, option, name):
    words = {
        "--splits": ["bm25", "--splits", name],
        "--config": ["dense", "--splits", SPLIT, "--model", "lsa", "--config", name],
        "--sources": ["hybrid", "--splits", SPLIT, "--sources", "bm25", name],
    }[option]
    common = [DAPFAM, "--data-dir", str(sample / "dapfam"), "--sidecars", str(tmp_path / "lists")]
    assert main([words[0], *common, *words[1:]]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert tree(tmp_path) == []


def commands_that_name_a_url(url, lists):
    common = [POETRY, "--data-dir", url]
    return [
        ["bm25", *common],
        ["bm25", *common, "--sidecars", url],
        ["hybrid", *common, "--sidecars", str(lists)],
        ["evaluate", *common, "--sidecars", str(lists), "--config", "bm25"],
        ["dense", *common, "--model", "lsa", "--config", "lsa"],
        ["judged", *common],
    ]


@pytest.mark.once
@pytest.mark.parametrize("number", range(6))
def test_commands_print_no_credentials(serve, sample, tmp_path, capfd, caplog, number):
    url = serve(sample / "poetry").url.replace("//", "//reader:s3cr3t@")
    main(commands_that_name_a_url(url, tmp_path)[number])
    printed = capfd.readouterr()
    assert printed.err
    assert "s3cr3t" not in printed.out + printed.err + caplog.text


@pytest.mark.once
def test_credentials_are_not_stored_in_a_recipe(serve, sample, tmp_path, capfd, caplog):
    url = serve(sample / "poetry").url.replace("//", "//reader:s3cr3t@")
    common = [POETRY, "--data-dir", url, "--sidecars", str(tmp_path)]
    assert main(["bm25", *common]) == 0
    assert main(["dense", *common, "--model", "lsa", "--config", "lsa"]) == 0
    assert main(["hybrid", *common, "--sources", "bm25", "lsa"]) == 0
    assert main(["judged", *common]) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    for path in files:
        assert b"s3cr3t" not in path.read_bytes() and b"127.0.0.1" not in path.read_bytes()
    assert main(["bm25", *common, "--k1", "2"]) == 2
    printed = capfd.readouterr()
    assert "s3cr3t" not in printed.out + printed.err + caplog.text


def declared():
    """Import names of the packages that pyproject.toml declares for the scripts."""
    text = (ROOT / "pyproject.toml").read_text()
    (block,) = re.findall(r"^dependencies = \[\n(.*?)^\]", text, re.M | re.S)
    return {re.match(r"[\w-]+", line)[0].lower() for line in re.findall(r'"(.+?)"', block)}


@pytest.mark.once
@pytest.mark.parametrize("dataset", [POETRY, DAPFAM])
def test_scripts_import_only_what_is_declared(dataset):
    imported = set()
    for node in ast.walk(ast.parse((ROOT / f"{dataset}.py").read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("__import__", "eval", "exec", "compile")
    others = imported - set(sys.stdlib_module_names)
    assert others <= declared()
    assert not imported & {"subprocess", "socket", "ctypes", "pickle", "urllib", "http", "importlib"}


@pytest.mark.once
@pytest.mark.parametrize(("dataset", "place"), [(POETRY, "poetry"), (DAPFAM, "dapfam")])
def test_scripts_open_nothing_but_the_cache_and_the_data(run_python, sample, tmp_path, dataset, place):
    """While a dataset is built, by Python's own record of what it opens."""
    code = """
    import importlib, os, sys
    opened = set()
    dataset, data, cache, *splits = sys.argv[1:]
    builder_class = getattr(importlib.import_module(dataset), dataset)

    def build(config, cache):
        options = {"splits": splits} if splits else {}
        builder = builder_class(config_name=config, data_dir=data, cache_dir=cache, **options)
        builder.download_and_prepare()
        builder.as_dataset()

    def note(event, arguments):
        if event == "open" and isinstance(arguments[0], str):
            opened.add(os.path.abspath(arguments[0]))
        elif event in ("subprocess.Popen", "os.system", "socket.connect"):
            opened.add(event)

    build("queries", cache + "/first")  # what is imported late is imported here
    sys.addaudithook(note)
    build("corpus", cache)
    build("queries", cache)
    allowed = (cache, data, os.getcwd(), sys.prefix, sys.base_prefix, "/dev/null", "/proc/", "/sys/")
    print(*(name for name in sorted(opened) if not name.startswith(allowed)))
    """
    splits = [SPLIT] if dataset == DAPFAM else []
    assert run_python(code, dataset, sample / place, tmp_path, *splits) == []
