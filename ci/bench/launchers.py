"""What a cell on two ranks costs beside what users have today.

    python ci/bench/launchers.py [--rounds 3]

Sessions of pytest in processes of their own, in turns: a group that is kept, a fresh one for each
test, `torchrun` for each test, PyTorch's `MultiProcessTestCase`, which spawns for each test (it
needs the package expecttest), and one pytest under `torchrun`. Each runs a job that does nothing
and a tiny training. The time of a test is the median of those after the first, which starts what is
kept; ratios are of one round, and their median is shown. A figure that misses its target is marked.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import measure
from tiny_cells import TORCHRUN

HERE = Path(__file__).parent

PYTEST = (
    *("-m", "pytest", "-p", "clock", "-p", "no:cacheprovider", "-c", os.devnull, "-q"),
    *("-o", "precision_pure=true"),  # or no group would be kept
)

CPU = "--precision-device=cpu"


class Launcher(NamedTuple):
    """One way to run tests.

    Attributes:
        tests: file and name of the test.
        options: of pytest.
        number: of tests in a session; few where each takes seconds.
        launched: whether torchrun starts pytest.
    """

    tests: str
    options: tuple[str, ...] = ()
    number: int = 100
    launched: bool = False


LAUNCHERS = {
    "pytest alone": Launcher("tiny_cells.py::test_pytest"),
    "kept group": Launcher("tiny_cells.py::test_ranks", (CPU,)),
    "fresh pair": Launcher("tiny_cells.py::test_ranks", (CPU, "--precision-ranks=fresh"), 10),
    "pytest under torchrun": Launcher(
        "tiny_cells.py::test_launched", ("-p", "no:precision"), launched=True
    ),
    "MultiProcessTestCase": Launcher("spawned_cells.py", number=3),
    "torchrun per test": Launcher("tiny_cells.py::test_torchrun", number=3),
}

if importlib.util.find_spec("expecttest") is None:
    del LAUNCHERS["MultiProcessTestCase"]

CRASH = Launcher("tiny_cells.py::test_crash", (CPU,), 10)


class Figures(NamedTuple):
    """Of one session, in seconds.

    Attributes:
        test: the median of a test after the first.
        job: the median of what the tests measured themselves, after the first; NaN if nothing.
        session: from the start of the process to its end.
    """

    test: float
    job: float
    session: float


def run(launcher: Launcher, job: str) -> Figures:
    """One session."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "clock.json")
        cells = {"CELLS_JOB": job, "CELLS_NUMBER": str(launcher.number), "CLOCK_FILE": str(file)}
        path = os.pathsep.join([str(HERE), *filter(None, sys.path[1:])])
        start = TORCHRUN if launcher.launched else (sys.executable,)
        command = [*start, *PYTEST, f"--rootdir={HERE}", *launcher.options, launcher.tests]
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=HERE,
            env={**os.environ, **cells, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        session = time.monotonic() - began
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        taken = json.loads(file.read_text())
    ends = taken["ends"]
    job_seconds = taken["seconds"][1:]
    tests = [after - before for before, after in itertools.pairwise(ends)]
    return Figures(
        statistics.median(tests),
        statistics.median(job_seconds) if job_seconds else float("nan"),
        session,
    )


def show(job: str, rounds: list[dict[str, Figures]]) -> dict[str, list[float]]:
    """Prints the table of a job, and returns the seconds of a test by launcher."""
    seconds = {name: [taken[name].test for taken in rounds] for name in LAUNCHERS}
    print(f"\n{job:<24}{'ms a test':>12}{'x kept group':>14}{'s a session':>13}")
    for name, samples in seconds.items():
        session = statistics.median(taken[name].session for taken in rounds)
        tests = LAUNCHERS[name].number
        print(
            f"{name:<24}{statistics.median(samples) * 1e3:>12.2f}"
            f"{measure.ratio(seconds, name, 'kept group'):>14.2f}{session:>13.1f} for {tests}"
        )
    return seconds


def judge(caption: str, value: float, target: float, unit: str, *, least: bool = False) -> None:
    """One line; the target is the most, or the least that there may be."""
    missed = "MISSED" if (value < target if least else value > target) else ""
    bound = "at least" if least else "at most"
    print(f"{caption:<58}{value:>8.2f} {unit:<3} {bound} {target:g} {missed}")


def targets(
    taken: Mapping[str, list[dict[str, Figures]]],
    seconds: Mapping[str, Mapping[str, list[float]]],
    crash: list[Figures],
) -> None:
    """Print the figures that have a target."""
    print()
    trivial, training = seconds["trivial"], seconds["training"]
    beyond = [
        group_seconds - alone
        for group_seconds, alone in zip(trivial["kept group"], trivial["pytest alone"], strict=True)
    ]
    jobs = [taken["kept group"].job for taken in taken["training"]]
    hundred = [
        LAUNCHERS["kept group"].number
        * figures["torchrun per test"].test
        / figures["kept group"].session
        for figures in taken["training"]
    ]
    judge("a trivial job of a kept group, beyond pytest", statistics.median(beyond) * 1e3, 2, "ms")
    itself = {"cell": training["kept group"], "itself": jobs}
    judge("a training cell, to the training", measure.ratio(itself, "cell", "itself"), 1.2, "x")
    fresh = measure.ratio(training, "fresh pair", "kept group")
    judge("a training cell of a fresh pair, to a kept group", fresh, 2.2, "x")
    after = statistics.median(figures.job for figures in crash)
    judge("the first cell after a crash", after * 1e3, 200, "ms")
    faster = statistics.median(hundred)
    judge("100 training cells, torchrun per test to a session", faster, 50, "x", least=True)


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    taken: dict[str, list[dict[str, Figures]]] = {"trivial": [], "training": []}
    crash = []
    for turn in range(rounds):
        for job, figures in taken.items():
            names = [*LAUNCHERS][:: 1 if turn % 2 else -1]
            figures.append({name: run(LAUNCHERS[name], job) for name in names})
        crash.append(run(CRASH, "trivial"))
    seconds = {job: show(job, figures) for job, figures in taken.items()}
    targets(taken, seconds, crash)


if __name__ == "__main__":
    main()
