"""Kills commands and loads at seeded points, and looks at what is left and at what the next run makes of it.

`python -m tests.crashes SAMPLE POINTS RERUNS SEED COMMAND …` does so in an interpreter that imports everything once and
forks for each run, so that fifty take seconds; `drive` starts it.
"""

import contextlib
import faulthandler
import functools
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import datasets
import tqdm

from tools.__main__ import main
from tools.collection import BUILDERS

ROOT = Path(__file__).parents[1]
POETRY, DAPFAM = "Poetry50KRetrieval", "NanoDAPFAM"
SPLITS = ["NanoDAPFAMAllTitlAbsToTitlAbs", "NanoDAPFAMInTitlAbsClmToTitlAbs"]
COMMANDS = ["bm25", "hybrid", "stage"]
LOADS = [f"{POETRY}/corpus", f"{DAPFAM}/corpus"]
SOURCES = {"hybrid": ["bm25", "lsa"], "stage": ["bm25"]}  # lists that a command reads
LONGEST_RUN = 60  # seconds; one that takes longer hangs
EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "os.link", "os.symlink")
UNFINISHED = (".incomplete", ".replaced", ".lock")  # what the name of a file or folder ends with that is not to be used


def command_line(command: str, lists: Path, sample: str) -> list[str]:
    dapfam = [DAPFAM, "--data-dir", f"{sample}/dapfam", "--sidecars", str(lists), "--splits", *SPLITS]
    return {
        "bm25": ["bm25", *dapfam, "--workers", "2"],
        "lsa": ["dense", *dapfam, "--model", "lsa", "--config", "lsa"],
        "hybrid": ["hybrid", *dapfam, "--sources", "bm25", "lsa"],
        "stage": ["stage", *dapfam[:-1], "--out", f"{lists}/staged", "--overwrite"],
    }[command]


def load(what: str, cache: Path, sample: str) -> int:
    """load_dataset of "dataset/config", or the class from version 4 on."""
    dataset, config = what.split("/")
    data_dir = f"{sample}/{'poetry' if dataset == POETRY else 'dapfam'}"
    options = {"data_dir": data_dir, "cache_dir": str(cache), **({"splits": SPLITS} if dataset == DAPFAM else {})}
    if int(datasets.__version__.split(".")[0]) < 4:
        datasets.load_dataset(str(ROOT / f"{dataset}.py"), config, trust_remote_code=True, **options)
    else:
        builder = BUILDERS[dataset](config_name=config, **options)
        builder.download_and_prepare()
        builder.as_dataset()
    return 0


def run_in(folder: Path, what: str, sample: str) -> int:
    """Exit code of a command or load that writes into the folder."""
    return load(what, folder, sample) if what in LOADS else main(command_line(what, folder, sample))


def is_unfinished(path: Path) -> bool:
    return any(part.endswith(UNFINISHED) for part in path.parts)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def finished_files(folder: Path) -> dict[str, str]:
    """Name -> SHA-256; of the library's own records of a build, which have times in them, only that they are there."""
    files = [path for path in folder.rglob("*") if path.is_file() and not is_unfinished(path.relative_to(folder))]
    timed = ("dataset_info.json", "state.json")
    return {str(path.relative_to(folder)): "" if path.name in timed else sha256(path) for path in files}


def state(folder: Path) -> frozenset:
    """Everything in a folder: names, without the random part that temporary ones have, and contents."""
    return frozenset(
        (
            re.sub(r"\.[a-z0-9_]{8}\.incomplete", ".incomplete", str(path.relative_to(folder))),
            sha256(path) if path.is_file() else "",
        )
        for path in folder.rglob("*")
    )


def in_fork(run: Callable[[], int], folder: Path, die_at: int | float | None = None) -> tuple[int, int, float, str]:
    """(wait status, file-system events in the folder, seconds, what it printed) of a run in a process of its own.

    `die_at`: an int is the event before which it is killed, a float the seconds after which it is.
    """
    log, begun = folder.with_suffix(".log"), time.monotonic()
    pid = os.fork()
    if pid == 0:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.setpgid(0, 0)
        events = 0

        def count(event, arguments):
            nonlocal events
            if event in EVENTS and any(str(argument).startswith(f"{folder}") for argument in arguments[:2]):
                if events == die_at and isinstance(die_at, int):
                    os.kill(os.getpid(), signal.SIGKILL)
                events += 1

        sys.addaudithook(count)
        faulthandler.dump_traceback_later(LONGEST_RUN - 5, file=output)
        code = 70
        try:
            code = run()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os.write(output, f"\nevents {events}".encode())
            os._exit(code)
    if isinstance(die_at, float):
        time.sleep(die_at)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        time.sleep(0.002)
        if time.monotonic() - begun > LONGEST_RUN:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"a run hangs: {log.read_text()[-2000:]}")
    printed, ending, events = log.read_text().rpartition("\nevents ") if log.exists() else ("", "", "")
    return ended[1], int(events) if ending else 0, time.monotonic() - begun, printed


def kill_at_points(what: str, sample: str, work: Path, points: int, reruns: int, seed: int) -> dict:
    """Kills a run at seeded points and runs it again in `reruns` of the states it leaves.

    Half of the points are before file-system events, the rest are moments. What was wrong, and counts.
    """
    rng, states, wrong, killed, before_the_end = random.Random(f"{seed} {what}"), set(), [], 0, 0

    def prepared(name: str) -> Path:
        folder = work / name
        shutil.copytree(work / "sources", folder) if what in SOURCES else folder.mkdir()
        return folder

    for source in SOURCES.get(what, []):
        status, _, _, printed = in_fork(functools.partial(run_in, work / "sources", source, sample), work / "make")
        assert status == 0, printed
    # Imports and compiles here what a run does, and fills the library's cache for commands.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert run_in(prepared("warm"), what, sample) == 0
    pace = float(LONGEST_RUN)  # seconds of the shortest run so far
    for name in ("clean", "clean-again"):
        folder = prepared(name)
        status, events, seconds, printed = in_fork(functools.partial(run_in, folder, what, sample), folder)
        assert status == 0, printed
        pace = min(pace, seconds)
    right = finished_files(work / "clean")
    if finished_files(work / "clean-again") != right:
        wrong.append("two clean runs differ")

    of_events = rng.sample(range(events), min(events, points // 2))
    # Most of a run is reading; its end, where it writes, is where as many points lie.
    moments = [rng.uniform(0.02, 1) if at % 2 else rng.uniform(0.7, 1) for at in range(points - len(of_events))]
    for number, point in enumerate(rng.sample([*of_events, *moments], points)):
        folder, die_at = prepared(f"point{number}"), point if isinstance(point, int) else point * pace
        run = functools.partial(run_in, folder, what, sample)
        status, _, seconds, _ = in_fork(run, folder, die_at)
        pace = pace if os.WIFSIGNALED(status) else min(pace, seconds)
        killed += os.WIFSIGNALED(status)
        left = finished_files(folder)
        before_the_end += left != right
        half = [name for name in left if right.get(name) != left[name]]
        if half:
            wrong.append(f"killed at {die_at}: {half[0]} looks complete and is not")
        found = state(folder)  # in the same state the next run can only do the same
        if found not in states and (len(states) < reruns - 3 or number >= points - 3):
            status, _, _, printed = in_fork(run, folder)
            if status != 0:
                wrong.append(f"after a kill at {die_at} the next run failed: {printed[-500:]}")
            elif finished_files(folder) != right:
                wrong.append(f"after a kill at {die_at} the next run made something else")
        states.add(found)
        shutil.rmtree(folder)
    return {"killed": killed, "before_the_end": before_the_end, "states": len(states), "wrong": wrong}


def drive(whats: list[str], sample: Path, points: int, reruns: int, seed: int) -> dict[str, dict]:
    """`kill_at_points` for each of the commands and loads, in an interpreter of their own."""
    words = [sys.executable, "-m", "tests.crashes", *map(str, (sample, points, reruns, seed)), *whats]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_RUN * 10)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def drive_here(sample: str, points: str, reruns: str, seed: str, *whats: str) -> None:
    datasets.disable_progress_bars()
    # Its own lock is one for all forks of a process: one that is killed while it has it would stop all that follow.
    tqdm.tqdm.set_lock(threading.RLock())
    found = {}
    for what in whats:
        with tempfile.TemporaryDirectory(prefix="crashes-") as work:
            found[what] = kill_at_points(what, sample, Path(work), int(points), int(reruns), int(seed))
    print(json.dumps(found))


if __name__ == "__main__":
    drive_here(*sys.argv[1:])
