"""`make demo`: the main job on the embedded sample, offline, and what came of it as a table."""

import io
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

WORK = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo").resolve()
os.environ.update(HF_HOME=str(WORK / "cache"), HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

import datasets  # noqa: E402

from tools.__main__ import main as run_command  # noqa: E402
from tools.collection import BUILDERS  # noqa: E402
from tools.sample import write_sample  # noqa: E402

CANDIDATE_SPLITS = {
    "Poetry50KRetrieval": [],
    "NanoDAPFAM": ["--splits", *(f"NanoDAPFAM{scope}TitlAbsToTitlAbs" for scope in ("All", "In", "Out"))],
}
ROOT = Path(__file__).resolve().parents[1]
DATA = {"Poetry50KRetrieval": WORK / "poetry", "NanoDAPFAM": WORK / "dapfam"}
BASE_CONFIGS = {
    "Poetry50KRetrieval": ("corpus", "queries", "qrels_max", "qrels_min"),
    "NanoDAPFAM": ("corpus", "queries", "qrels"),
}


def load(dataset: str, config: str, streaming: bool) -> dict:
    """A config's splits: through the script where the library still loads scripts, else through the class."""
    if datasets.__version__ < "4":
        return datasets.load_dataset(
            str(ROOT / f"{dataset}.py"),
            config,
            data_dir=str(DATA[dataset]),
            trust_remote_code=True,
            streaming=streaming,
        )
    builder = BUILDERS[dataset](config_name=config, data_dir=str(DATA[dataset]))
    if streaming:
        return builder.as_streaming_dataset()
    builder.download_and_prepare()
    return builder.as_dataset()


def print_loading() -> None:
    """Loads every base config twice, streaming and not, and prints a line for each with its first split's first row."""
    print(f"{'dataset':19} {'config':10} {'split':33} {'rows':>5}  {'streamed':8}  first row")
    for dataset, configs in BASE_CONFIGS.items():
        for config in configs:
            loaded, streamed = load(dataset, config, streaming=False), load(dataset, config, streaming=True)
            same = all(list(loaded[split]) == list(streamed[split]) for split in loaded)
            first, *others = loaded
            row = " ".join(repr(value)[:26] for value in loaded[first][0].values())
            verdict = "the same" if same else "DIFFERS"
            print(f"{dataset:19} {config:10} {first:33} {len(loaded[first]):5}  {verdict:8}  {row[:72]}")
            if others:
                rows = sum(len(loaded[split]) for split in others)
                print(f"{'':30} {f'and {len(others)} more splits':33} {rows:5}")


def build_and_measure() -> None:
    """Runs the commands that build candidate lists and measure them, each as a user would type it."""
    for dataset, data_dir in DATA.items():
        place = [dataset, "--data-dir", str(data_dir), *CANDIDATE_SPLITS[dataset]]
        for command in (
            ["bm25", *place],
            ["dense", *place, "--model", "lsa"],
            ["hybrid", *place, "--sources", "bm25", "lsa"],
            ["evaluate", *place],
        ):
            print(f"\n$ python -m tools {' '.join(command).replace(str(WORK), WORK.name)}", flush=True)
            shown = sys.stdout if command[0] == "evaluate" else io.StringIO()
            with redirect_stdout(shown):
                code = run_command(command)
            if code:
                sys.exit(code)
            if command[0] != "evaluate":
                print(f"{len(shown.getvalue().splitlines())} split(s) done")


def main() -> None:
    datasets.disable_progress_bars()
    print(f"The embedded sample, written to {WORK}, loaded with datasets {datasets.__version__}:\n")
    write_sample(WORK)
    print_loading()
    build_and_measure()
    print(
        "\nThe same from the official upstream (439 MiB for poetry, about 3 GB of text for DAPFAM): leave data_dir out,"
        '\n  load_dataset("./Poetry50KRetrieval.py", "corpus", split="test", trust_remote_code=True)'
        '\n  load_dataset("./NanoDAPFAM.py", "qrels", splits=["NanoDAPFAMInTitlAbsToTitlAbs"], trust_remote_code=True)'
    )


if __name__ == "__main__":
    main()
