"""Many jobs in one session of pytest, a quarter of which fail: what is wrong, lost, left or grows.

    python ci/bench/soak.py [--jobs 2000] [--seed 0]

A job is a whole check, of one of twelve kinds, on one to four ranks. After each, a
candidate that is known to be wrong must fail and one that is known to be right must pass; see
`soak_jobs`. The exit status is 1 if any count is not 0 that has to be, or a process grew.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from processes import GROWTH_MB, MARK, Processes, held
from soak_jobs import DEADLINE, KINDS, Ending, Task, cell_on, plan

from pytest_precision.plugin.marker import CELL
from pytest_precision.ranks import RankPool

HERE = Path(__file__).parent

WRONG = ("false passes", "false alarms", "lost")
CHECKS = (*KINDS, "known bad", "known good")
ROW = "{:<12}{:>8}{:>14}{:>14}{:>8}"


def compared(expected: Ending, got: Ending) -> str:
    """Return which of `WRONG` an ending is; nothing if it is as expected."""
    if got.outcome != expected.outcome:
        if got.outcome == "pass":
            return "false passes"
        return "false alarms" if expected.outcome == "pass" else "lost"
    if expected.leak:
        return "" if expected.leak in got.leak else "lost"
    return "false alarms" if got.leak else ""


@dataclass
class Soak:
    """The plugin of the session, and the figures that it takes.

    Attributes:
        tasks: to run.
        folder: for the temporary files of the session.
        counts: for each of `CHECKS` how many there were, by `WRONG`; right ones under "".
        problems: each thing that must not be, in words.
        processes: of the session.
        left: what remained after the session: processes, descriptors and files.
        seconds: of the whole session.
    """

    tasks: list[Task]
    folder: Path
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    problems: list[str] = field(default_factory=list)
    processes: Processes = field(default_factory=Processes)
    left: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def run(self) -> None:
        """Run the session in this process."""
        # A terminal would keep every report until the end; reruns need a socket, and keep it.
        without = (f"-pno:{name}" for name in ("terminal", "cacheprovider", "rerunfailures"))
        options = f"--precision-timeout={DEADLINE}", "--precision-device=cpu", f"--rootdir={HERE}"
        # Ranks are to be kept, so that it shows what jobs leave in them.
        pure_option = "-oprecision_pure=true"
        jobs = str(HERE / "soak_jobs.py"), f"-c{os.devnull}"
        before = held(self.folder)
        began = time.monotonic()
        status = pytest.main([*jobs, *without, *options, pure_option], plugins=[self])
        self.seconds = time.monotonic() - began
        after = held(self.folder)
        self.left = {kind: len(after[kind]) - len(before[kind]) for kind in after}
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self.problems.append(f"the session ended with {status!r}")
        if self.ended != len(self.tasks):
            self.problems.append(f"{self.ended} of {len(self.tasks)} jobs ended")
        self.problems += [
            f"{number} {kind} left: {', '.join(sorted(after[kind] - before[kind]))}"
            for kind, number in self.left.items()
            if number > 0
        ]
        self.problems += self.processes.problems

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one test of each task."""
        cases = [(task, cell_on(task.world_size)) for task in self.tasks]
        ids = [str(task.number) for task in self.tasks]
        metafunc.parametrize(("task", CELL), cases, indirect=[CELL], ids=ids)

    def pytest_runtest_makereport(self, item: pytest.Function, call: pytest.CallInfo[None]) -> None:
        """Compare the endings of the three checks of a test with what they had to be."""
        task = item.callspec.params["task"]
        if call.excinfo is not None:
            self.problems.append(f"{call.when} of {task}: {call.excinfo.value!r}")
        if call.when != "call":
            return
        got = dict(item.user_properties)
        item.user_properties.clear()  # an item stays until the session ends
        for check, expected in task.endings.items():
            ended = got.get(check)
            mistake = "lost" if ended is None else compared(expected, ended)
            self.counts[task.kind if check == "job" else check][mistake] += 1
            if mistake:
                outcome = (
                    "nothing" if ended is None else f"{ended.outcome}\n{ended.leak}{ended.words}"
                )
                expected_outcome = f"{expected.outcome} {expected.leak}"
                self.problems.append(
                    f"{mistake}: {check} of {task}: not {expected_outcome} but {outcome}"
                )

    def pytest_runtest_logfinish(self) -> None:
        """Look at all processes after each test, and say now and then how far it is."""
        self.processes.sample()
        if self.ended % 100 == 0:
            wrong = sum((of for of in self.counts.values()), Counter())
            print(f"{self.ended} jobs:", *(f"{wrong[w]} {w}" for w in WRONG), flush=True)

    @property
    def ended(self) -> int:
        """Number of jobs that have come to an end."""
        return sum(self.counts[kind].total() for kind in KINDS)

    @property
    def table(self) -> str:
        """All figures, as text."""
        rows = {check: self.counts[check] for check in CHECKS}
        rows["all"] = sum(self.counts.values(), Counter())
        rank = self.processes.growth("rank")
        grown = (f"{part} {self.processes.growth(part)[0]:.1f} MB" for part in GROWTH_MB)
        lines = [
            ROW.format("checks", "number", *WRONG),
            *(ROW.format(name, of.total(), *(of[w] for w in WRONG)) for name, of in rows.items()),
            f"left        {', '.join(f'{number} {kind}' for kind, number in self.left.items())}",
            f"growth      {', '.join(grown)} and {rank[1]} descriptors",
            f"took        {self.ended} jobs in {self.seconds:.0f} s",
        ]
        return "\n".join(lines)


def soak(tasks: list[Task]) -> Soak:
    """Run these jobs in one session and return the figures."""
    # The fork server stays for the life of the process: it is not what a session leaves.
    RankPool("fresh", timeout=60).run(1, os.getpid)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(os.getpid()))
        # Not by monkeypatch, whose pending changes the session refuses.
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            session = Soak(tasks, Path(folder))
            session.run()
        finally:
            tempfile.tempdir = before
    return session


def main() -> int:
    """Run the soak and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    session = soak(plan(options.jobs, options.seed))
    for problem in session.problems:
        print(problem)
    print(session.table)
    return bool(session.problems)


if __name__ == "__main__":
    raise SystemExit(main())
