"""Many jobs with random faults in one session of pytest: what is lost, and what grows.

    python ci/bench/soak.py [--jobs 2000] [--seed 0]

A quarter of the jobs fail, each in one of the ways of `faulty`, on one rank of one to three. The
exit status is 1 if a job ended in any other way than it had to, or if something grew.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from faulty import Task, plan

from pytest_precision.ranks import RankError, RankPool

HERE = Path(__file__).parent

DEADLINE = 3
"""Seconds of a job; what hangs costs as much."""
GROWTH_MB = 4.0
"""Of the memory of a process that stays, from a quarter of the jobs to the end: what allocators
keep, and not what a job costs, which would be more the more jobs there are."""


@dataclass
class Soak:
    """The plugin of the session, and the figures that it takes.

    Attributes:
        tasks: to run.
        folder: for the temporary files of the session.
        endings: how often each kind of ending was seen.
        lost: what ended otherwise than it had to.
        memory: MB of pytest's process and of those that it started itself, after each job.
        left: what remained after the session: processes, descriptors and files.
        seconds: of the whole session.
    """

    tasks: list[Task]
    folder: Path
    endings: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    memory: list[tuple[float, ...]] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def run(self) -> None:
        """Runs the session in this process."""
        # A terminal would keep every report until the end.
        quiet = "-p", "no:terminal", "-p", "no:cacheprovider", "-c", os.devnull
        options = f"--precision-timeout={DEADLINE}", "--precision-device=cpu", f"--rootdir={HERE}"
        before, began = self._held(), time.monotonic()
        status = pytest.main([str(HERE / "faulty.py"), *quiet, *options], plugins=[self])
        self.seconds = time.monotonic() - began
        after = self._held()
        self.left = {what: after[what] - before.get(what, 0) for what in after}
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self.lost.append(f"the session ended with {status!r}")
        if self.endings.total() != len(self.tasks):
            self.lost.append(f"{self.endings.total()} of {len(self.tasks)} jobs ended")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test for each task."""
        marks = [pytest.mark.world_size(task.world_size) for task in self.tasks]
        params = [
            pytest.param(task, marks=mark, id=str(task.number))
            for task, mark in zip(self.tasks, marks, strict=True)
        ]
        metafunc.parametrize("task", params)

    def pytest_runtest_makereport(self, item: pytest.Function, call: pytest.CallInfo[None]) -> None:
        """Compares the ending of a test with the one that it had to have."""
        task = item.callspec.params["task"]
        expected = "done" if task.fault is None else f"rank {task.culprit} {task.fault.cause}"
        match call.excinfo and call.excinfo.value:
            case None:
                ending = "done"
            case RankError() as error:
                ending = f"rank {error.rank} {error.cause}"
            case error:
                ending = repr(error)
        if call.when != "call":
            if call.excinfo is not None:
                self.lost.append(f"{call.when} of job {task.number}: {ending}")
            return
        self.endings["done" if task.fault is None else task.fault.act.__name__] += 1
        if ending != expected:
            self.lost.append(f"job {task.number}: expected {expected} but got {ending}")

    def pytest_runtest_logfinish(self) -> None:
        """Takes the memory after each test."""
        me = psutil.Process()
        # The fork server and the resource tracker; ranks come and go.
        self.memory.append(tuple(p.memory_info().rss / 2**20 for p in [me, *me.children()]))

    @property
    def growth(self) -> float:
        """MB by which one of these processes grew from a quarter of the jobs to the end."""
        pairs = zip(self.memory[len(self.memory) // 4], self.memory[-1], strict=True)
        return max(after - before for before, after in pairs)

    @property
    def problems(self) -> list[str]:
        """What must not be."""
        left = [f"{number} {what} more than before" for what, number in self.left.items() if number]
        grown = f"memory grew by {self.growth:.1f} MB"
        return [*self.lost, *left, *([grown] if self.growth > GROWTH_MB else [])]

    def _held(self) -> dict[str, int]:
        me = psutil.Process()
        until = time.monotonic() + 3.0  # for the fork server to bury its children
        while len(me.children(recursive=True)) > len(me.children()) and time.monotonic() < until:
            time.sleep(0.02)
        return {
            "processes": len(me.children(recursive=True)),
            "descriptors": me.num_fds(),
            "files": len(list(self.folder.iterdir())),
        }


def soak(jobs: int, seed: int) -> Soak:
    """Runs so many jobs and returns the figures."""
    # The fork server stays for the life of the process: it is not what a session leaves.
    RankPool("fresh", timeout=60).run(1, os.getpid)
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            found = Soak(plan(jobs, seed), Path(folder))
            found.run()
        finally:
            tempfile.tempdir = before
    return found


def main() -> int:
    """Run the soak and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = soak(options.jobs, options.seed)
    rows = {
        "jobs": f"{options.jobs} in {found.seconds:.0f} s",
        "endings": ", ".join(f"{n} {name}" for name, n in found.endings.most_common()),
        "growth of memory": f"{found.growth:.1f} MB from a quarter of the jobs to the end",
        **{f"{what} left": str(number) for what, number in found.left.items()},
    }
    for name, text in rows.items():
        print(f"{name:<18}{text}")
    for problem in found.problems:
        print(f"PROBLEM: {problem}")
    return bool(found.problems)


if __name__ == "__main__":
    raise SystemExit(main())
