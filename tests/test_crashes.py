"""Runs that are killed, out of disk, or two at once: nothing looks complete that is not, and the next run is right."""

import contextlib
import errno
import io
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import datasets
import pytest
import reading
from conftest import ROOT, SCRIPTS_LOAD
from crashes import DAPFAM, LOADS, LONGEST_RUN, POETRY, SPLITS, drive, finished_files, is_unfinished

import NanoDAPFAM
from tools.__main__ import main
from tools.bm25 import CONFIG
from tools.collection import Collection
from tools.errors import InputError
from tools.sidecar import Sidecar, bring_up_to_date, read_sidecar, recipe

POINTS = 50  # each command and load is killed at
RERUNS = 8  # in so many of the states that are left; `make fuzz` runs again in all of them
SEED = 20260524

# One core each. Commands do not depend on the library's version.
HALVES = [LOADS[:1], LOADS[1:]] if SCRIPTS_LOAD else [["bm25", "hybrid"], ["stage", *LOADS]]


@pytest.fixture(scope="module")
def killed(sample):
    """{command or load: what came of killing it}."""
    with ThreadPoolExecutor() as drivers:
        halves = drivers.map(lambda half: drive(half, sample, POINTS, RERUNS, SEED), HALVES)
        return {what: found for half in halves for what, found in half.items()}


# ---- Full and read-only disks. ----


@pytest.fixture
def mount(tmp_path):
    """(name, size) -> a folder that is a file system of its own, of that size."""
    mounted = []

    def make(name, size):
        folder = tmp_path / name
        folder.mkdir()
        run = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
        if run.returncode:
            pytest.skip(f"a file system cannot be mounted here: {run.stderr.decode().strip()}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


def remount(folder, options):
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


@pytest.fixture
def cache_in(monkeypatch):
    """(folder): the library's cache is there."""

    def put(folder):
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder))

    return put


def tools(*arguments):
    """(exit code, stdout, stderr) of a command run in this process."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main(list(map(str, arguments)))
    return code, stdout.getvalue(), stderr.getvalue()


def check_one_line(done, *words):
    code, stdout, stderr = done
    assert (code, stdout) == (2, ""), stderr
    (line,) = stderr.splitlines()
    assert [word for word in words if not re.search(str(word), line)] == [], line


def dapfam_command(command, sample, sidecars, *options):
    words = [command, DAPFAM, "--data-dir", sample / "dapfam", "--sidecars", sidecars, "--splits", SPLITS[0]]
    return [*words, *options]


COMMAND_OPTIONS = {
    "bm25": (),
    "dense": ("--model", "lsa", "--config", "lsa"),
    "hybrid": ("--sources", "bm25", "lsa", "--config", "fused"),
}


@pytest.fixture
def sources(sample):
    """(folder): puts the lists there that hybrid fuses."""

    def build(folder):
        for command in ("bm25", "dense"):
            assert tools(*dapfam_command(command, sample, folder, *COMMAND_OPTIONS[command]))[0] == 0

    return build


@pytest.mark.once
@pytest.mark.parametrize("command", COMMAND_OPTIONS)
def test_a_full_disk_for_sidecars_is_one_line_and_leaves_nothing(mount, sources, sample, tmp_path, command):
    options = COMMAND_OPTIONS[command]
    sources(tmp_path / "sources")
    used = sum(path.stat().st_size // 4096 + 1 for path in (tmp_path / "sources").rglob("*.parquet"))
    disk = mount("disk", f"{4 * (used + 1)}k")  # one page more than hybrid's sources
    if command == "hybrid":
        shutil.copytree(tmp_path / "sources", disk, dirs_exist_ok=True)
    else:
        (disk / "other").write_bytes(bytes(4096 * used))
    before = finished_files(disk)
    check_one_line(tools(*dapfam_command(command, sample, disk, *options)), os.strerror(errno.ENOSPC), disk)
    assert finished_files(disk) == before
    assert list(disk.rglob("*.incomplete")) == []


@pytest.mark.once
@pytest.mark.parametrize("command", COMMAND_OPTIONS)
def test_a_read_only_folder_for_sidecars_is_one_line(mount, sources, sample, command):
    disk = mount("disk", "10m")
    if command == "hybrid":
        sources(disk)
    remount(disk, "ro")
    done = tools(*dapfam_command(command, sample, disk, *COMMAND_OPTIONS[command]))
    check_one_line(done, os.strerror(errno.EROFS), disk)


@pytest.mark.once
@pytest.mark.parametrize("command", ["bm25", "dense"])
def test_a_file_in_the_place_of_the_folder_is_one_line(sample, tmp_path, command):
    (tmp_path / "file").write_text("something else")
    done = tools(*dapfam_command(command, sample, tmp_path / "file", *COMMAND_OPTIONS[command]))
    check_one_line(done, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "something else"


@pytest.mark.parametrize(("dataset", "folder"), [(POETRY, "poetry"), (DAPFAM, "dapfam")])
@pytest.mark.parametrize("size", ["16k", "64k"])
def test_a_full_disk_for_the_cache_is_one_line(mount, cache_in, sample, tmp_path, dataset, folder, size):
    disk = mount("cache", size)
    cache_in(disk)
    splits = ("--splits", SPLITS[0]) if dataset == DAPFAM else ()
    words = ("bm25", dataset, "--data-dir", sample / folder, "--sidecars", tmp_path / "lists", *splits)
    check_one_line(tools(*words), "No space left on device|Not enough disk space")
    left = {path.relative_to(disk): path.read_bytes() for path in disk.rglob("*.arrow") if not is_unfinished(path)}
    assert not (tmp_path / "lists").exists() or finished_files(tmp_path / "lists") == {}
    remount(disk, "size=50m")
    code, _, stderr = tools(*words)
    assert code == 0, stderr
    cache_in(tmp_path / "clean")
    assert tools(*words, "--overwrite")[0] == 0
    for name, content in left.items():  # a config that there was room for
        assert content == (tmp_path / "clean" / name).read_bytes()


@pytest.mark.parametrize("size", ["16k", "64k"])
def test_a_full_disk_for_load_dataset_leaves_nothing_that_looks_complete(mount, load, sample, size):
    disk = mount("cache", size)
    with pytest.raises(Exception) as caught:
        load(POETRY, "corpus", sample / "poetry", cache_dir=str(disk))
    chain, error = [], caught.value
    while error:
        chain.append(error)
        error = error.__cause__ or error.__context__
    assert any(os.strerror(errno.ENOSPC).lower() in str(error).lower() for error in chain), chain
    remount(disk, "size=50m")
    found = load(POETRY, "corpus", sample / "poetry", cache_dir=str(disk))
    assert reading.first_difference(found, reading.expected(POETRY, "corpus", sample / "poetry")) is None


def test_a_read_only_cache_is_one_line(mount, cache_in, sample, tmp_path):
    disk = mount("cache", "10m")
    remount(disk, "ro")
    cache_in(disk)
    check_one_line(tools(*dapfam_command("bm25", sample, tmp_path / "lists")), os.strerror(errno.EROFS), disk)


@pytest.mark.once
def test_a_download_in_a_read_only_cache_is_taken_as_it_is(mount, caplog):
    disk = mount("cache", "1m")
    (disk / "download").write_text("content")
    remount(disk, "ro")
    NanoDAPFAM.check_unchanged("https://host/file", str(disk / "download"), False)
    assert os.strerror(errno.EROFS) in caplog.text and "will not be noticed" in caplog.text


@pytest.mark.once
def test_a_file_in_the_place_of_the_cache_is_one_line(cache_in, sample, tmp_path):
    (tmp_path / "file").write_text("something else")
    cache_in(tmp_path / "file")
    check_one_line(tools(*dapfam_command("bm25", sample, tmp_path / "lists")), tmp_path / "file")


# ---- Two at once. ----


@pytest.mark.once
def test_two_runs_of_one_command_at_once_both_end_well(sample, tmp_path):
    """With an empty cache, which both want to fill as well."""
    words = dapfam_command("bm25", sample, tmp_path / "lists")
    command = [sys.executable, "-m", "tools", *map(str, words)]
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    runs = [subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(run.communicate(timeout=LONGEST_RUN)[1], run.returncode) for run in runs] == [(b"", 0)] * 2
    assert tools(*dapfam_command("bm25", sample, tmp_path / "alone"))[0] == 0
    assert finished_files(tmp_path / "lists") == finished_files(tmp_path / "alone")
    assert [path for path in (tmp_path / "lists").rglob("*") if is_unfinished(path)] == []


@pytest.mark.once
@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_runs_with_other_parameters_one_wins_and_the_other_says_so(sample, tmp_path, overwrite):
    """The second runs, whole, while the first is building."""
    collection = Collection(DAPFAM, SPLITS[0], str(sample / "dapfam"), str(tmp_path / "lists"))
    ids = collection.queries["id"].to_pylist()

    def lists(parameters) -> Sidecar:
        return Sidecar(ids, [["d"]] * len(ids), [[parameters["k1"]]] * len(ids), recipe(collection, CONFIG, parameters))

    first, second = {"k1": 1.0}, {"k1": 2.0}

    def build_first() -> Sidecar:
        bring_up_to_date(collection, CONFIG, second, lambda: lists(second), False)
        return lists(first)

    path = collection.sidecar_path(CONFIG)
    if overwrite:
        bring_up_to_date(collection, CONFIG, first, build_first, True)
        assert read_sidecar(path).recipe["parameters"] == first
    else:
        with pytest.raises(InputError, match="--overwrite"):
            bring_up_to_date(collection, CONFIG, first, build_first, False)
        assert read_sidecar(path).recipe["parameters"] == second


def test_two_loads_at_once_give_the_right_rows(run_python, sample, tmp_path):
    code = """
    import multiprocessing, pathlib, sys
    sys.path.insert(0, "tests")
    from crashes import LOADS, load
    fork = multiprocessing.get_context("fork")
    runs = [fork.Process(target=load, args=(LOADS[0], pathlib.Path(sys.argv[1]), sys.argv[2])) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(50)
    print(*[run.exitcode for run in runs])
    """
    assert run_python(code, tmp_path, sample)[-2:] == ["0", "0"]
    (arrow,) = tmp_path.rglob("*.arrow")
    assert not is_unfinished(arrow)
    assert datasets.Dataset.from_file(str(arrow)).to_list() == reading.poetry(sample / "poetry")["corpus"]


# ---- What a left-over of a crash does to the next run. ----


@pytest.mark.once
def test_left_overs_of_killed_runs_are_never_read(sample, tmp_path):
    words = dapfam_command("bm25", sample, tmp_path)
    assert tools(*words)[0] == 0
    right = finished_files(tmp_path)
    (path,) = tmp_path.rglob("*.parquet")
    for number, part in enumerate((b"", path.read_bytes()[:500], b"PAR1")):
        path.with_name(f".{path.name}.{number}.incomplete").write_bytes(part)
    path.unlink()
    assert tools(*words)[0] == 0
    assert finished_files(tmp_path) == right


@pytest.mark.once
def test_half_a_sidecar_in_the_place_of_a_whole_one_is_refused(sample, tmp_path):
    """Nothing here writes one; a copy that was cut, say, does."""
    words = dapfam_command("bm25", sample, tmp_path)
    assert tools(*words)[0] == 0
    (path,) = tmp_path.rglob("*.parquet")
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        check_one_line(tools(*words), path, "--overwrite")
        assert path.read_bytes() == whole[:size]
    assert tools(*words, "--overwrite")[0] == 0
    assert path.read_bytes() == whole


# ---- Killed. ----


@pytest.mark.parametrize("what", [what for half in HALVES for what in half])
def test_killed_anywhere_nothing_half_made_is_taken_for_whole(killed, what):
    found = killed[what]
    assert found["wrong"] == []
    # Most of the points are before the end, and what they leave differs.
    assert found["killed"] >= 0.6 * POINTS and found["before_the_end"] >= 0.4 * POINTS and found["states"] > 4, found
