"""Real components only: the real library, the real scripts, a real HTTP server; caches in a folder of the run's own.

The same tests run with `datasets` before 4 through the script path and from 4 on through the class.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

# Before `datasets` is imported. The Hub is a closed port: whatever asks for it fails at once.
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="retrieval-tests-")
os.environ["HF_DATASETS_CACHE"] = os.path.join(os.environ["HF_HOME"], "datasets")
os.environ["HF_MODULES_CACHE"] = os.path.join(os.environ["HF_HOME"], "modules")
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
os.environ["HF_UPDATE_DOWNLOAD_COUNTS"] = "0"
os.environ["NO_PROXY"] = "127.0.0.1"

import datasets
import pytest
from server import Server

from tools.sample import write_sample

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
SCRIPTS_LOAD = int(datasets.__version__.split(".")[0]) < 4

datasets.disable_progress_bars()


def pytest_configure(config):
    config.addinivalue_line("markers", "once: no matter of the library's version; run with the newest only")


def pytest_collection_modifyitems(items):
    for item in items:
        if SCRIPTS_LOAD and item.get_closest_marker("once"):
            item.add_marker(pytest.mark.skip(reason="no matter of the library's version: run with datasets 5"))


def pytest_unconfigure():
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def sample(tmp_path_factory):
    """The embedded sample: a folder with poetry/ and dapfam/."""
    folder = tmp_path_factory.mktemp("sample")
    write_sample(folder)
    return folder


@pytest.fixture(scope="session")
def shared():
    """The real text in both upstream formats."""
    folder = SHARED / "upstream"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here: the real text is no part of the project")
    return folder


@pytest.fixture(scope="session", params=["sample", "shared"])
def upstream(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def builder_class():
    """(script's path) -> its builder class; the module is the one that unpickling finds by its name."""
    modules = {}

    def find(script):
        if script not in modules:
            spec = importlib.util.spec_from_file_location(script.stem, script)
            modules[script] = importlib.util.module_from_spec(spec)
            sys.modules[script.stem] = modules[script]
            spec.loader.exec_module(modules[script])
        sys.modules[script.stem] = modules[script]
        return getattr(modules[script], script.stem)

    return find


@pytest.fixture(scope="session")
def open_builder(builder_class):
    """(dataset, config, data_dir, folder of the script, options) -> builder: by script, or by class from 4 on."""

    def open_one(dataset, config=None, data_dir=None, folder=ROOT, **options):
        data_dir = str(data_dir) if data_dir else None
        if SCRIPTS_LOAD:
            script = str(folder / f"{dataset}.py")
            return datasets.load_dataset_builder(script, config, data_dir=data_dir, trust_remote_code=True, **options)
        return builder_class(folder / f"{dataset}.py")(config_name=config, data_dir=data_dir, **options)

    return open_one


@pytest.fixture(scope="session")
def open_splits(builder_class):
    """As `open_builder`, but -> {split: Dataset or IterableDataset}."""

    def open_all(dataset, config=None, data_dir=None, streaming=False, folder=ROOT, download_mode=None, **options):
        data_dir = str(data_dir) if data_dir else None
        script = folder / f"{dataset}.py"
        if SCRIPTS_LOAD:
            options |= {"data_dir": data_dir, "streaming": streaming, "download_mode": download_mode}
            return datasets.load_dataset(str(script), config, trust_remote_code=True, **options)
        builder = builder_class(script)(config_name=config, data_dir=data_dir, **options)
        if streaming:
            return builder.as_streaming_dataset()
        builder.download_and_prepare(download_mode=download_mode)
        return builder.as_dataset()

    return open_all


@pytest.fixture(scope="session")
def load(open_splits):
    """As `open_splits`, but -> {split: list of rows}."""

    def load_rows(dataset, config=None, data_dir=None, **options):
        return {split: list(rows) for split, rows in open_splits(dataset, config, data_dir, **options).items()}

    return load_rows


@pytest.fixture
def serve():
    """(folder, options) -> a running Server; all stop with the test."""
    servers = []

    def start(folder, **options):
        servers.append(Server(folder, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def copy_script():
    """(dataset, new folder, constants) -> the folder, with a script in which some constants have other values."""

    def copy(dataset, folder, **constants):
        source = (ROOT / f"{dataset}.py").read_text("utf-8")
        for name, value in constants.items():
            source, count = re.subn(rf'^{name} = ".*"$', f'{name} = "{value}"', source, flags=re.M)
            assert count == 1, name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{dataset}.py").write_text(source, "utf-8")
        return folder

    return copy


@pytest.fixture
def run_python():
    """(code, arguments) -> the words it prints, run by an interpreter of its own in the project's folder."""

    def run(code, *arguments):
        command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()

    return run
