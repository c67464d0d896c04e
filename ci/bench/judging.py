"""What it costs to judge sides by themselves: `python ci/bench/judging.py [ARGUMENTS OF PYTEST]`.

Cells of fixtures/downstream on one rank, in this process: the CPU time of each part that no test
has asked for, as a share of the whole check's. Other jobs on the machine make no difference to a
share. Below them, what a test has to ask for, as a multiple of the checks without it: jitter and
mutants in sessions of their own, of which the first has neither.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DOWNSTREAM = Path(__file__).resolve().parents[2] / "fixtures" / "downstream"

PARTS = ("oracle", "identities", "lost updates", "bounds", "adequacy", "signatures")

ASKED_FOR = {"jitter 5": "--precision-jitter=5", "mutants": "--precision-mutate"}
"""What a test has to ask for, and how."""

FEW = "test_sharding.py"
"""Cells that are checked with it."""

ALONE = "PRECISION_BENCH_TOTAL"
"""Set where a session writes nothing but the seconds of all its checks."""


class Clock:
    """CPU seconds per check, in the whole and in parts of it.

    Attributes:
        checks: one mapping per check from part to seconds.
    """

    def __init__(self) -> None:
        self.checks: list[dict[str, float]] = []

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Count what a function of a class or a module takes as `part` of the check around it."""
        method = owner.__dict__[name]
        bound = isinstance(method, classmethod)
        function = method.__func__ if bound else method
        timed = self._timed(function, part)
        setattr(owner, name, classmethod(timed) if bound else timed)

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if part == "check":
                self.checks.append(defaultdict(float))
            started = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.checks[-1][part] += time.process_time() - started

        return timed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Watch what only then may be imported: before, nothing needs torch."""
        from pytest_precision.check import case, gates
        from pytest_precision.check.parity import Parity
        from pytest_precision.parity import needed
        from pytest_precision.parity.consistency import Consistency
        from pytest_precision.trace.oracle.log import OracleLog
        from pytest_precision.trace.oracle.watch import UpdateOracle
        from pytest_precision.trace.updates import UpdateLog, UpdateMeter

        self.watch(Parity, "check", "check")
        for name in ("__init__", "_keep_reduced", "_before", "_after", "write"):
            self.watch(UpdateOracle, name, "oracle")
        self.watch(OracleLog, "read", "oracle")
        self.watch(Consistency, "of", "identities")
        for name in ("before", "after", "write"):
            self.watch(UpdateMeter, name, "lost updates")
        self.watch(UpdateLog, "read", "lost updates")
        self.watch(needed, "columns", "bounds")
        self.watch(case, "unexercised", "adequacy")
        self.watch(gates, "diagnose", "signatures")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write median and maximum of the shares, each of the checks that have the part."""
        if ALONE in os.environ:
            total = sum(check["check"] for check in self.checks)
            Path(os.environ[ALONE]).write_text(repr(total))
            return
        for parts in (*((part,) for part in PARTS), ("oracle", "identities")):
            whole = [check for check in self.checks if all(part in check for part in parts)]
            shares = [100 * sum(own[part] for part in parts) / own["check"] for own in whole]
            if shares:
                worst = whole[shares.index(max(shares))]
                terminalreporter.write_line(
                    f"{' and '.join(parts):22} median {statistics.median(shares):5.1f} %  maximum "
                    f"{max(shares):5.1f} % (of {worst['check']:.2f} s)  in {len(shares)} checks"
                )


def multiples(folder: Path) -> dict[str, float]:
    """Return what a test has to ask for to the CPU time of checks with it over that without."""
    seconds = {}
    for name, option in {"": "", **ASKED_FOR}.items():
        out = folder / "total"
        command = [sys.executable, __file__, str(DOWNSTREAM / FEW), *filter(None, [option])]
        subprocess.run(command, env={**os.environ, ALONE: str(out)}, stdout=subprocess.DEVNULL)
        seconds[name] = float(out.read_text())
    return {name: seconds[name] / seconds[""] for name in ASKED_FOR}


def main(arguments: list[str]) -> int:
    """Run the cells; return pytest's exit status."""
    options = ["--precision-matrix", "--precision-ranks=inline", "--precision-select=world_size=1"]
    given = [f"--rootdir={DOWNSTREAM}", "-q", *options, *(arguments or [str(DOWNSTREAM)])]
    status = pytest.main(given, plugins=[Clock()])
    if ALONE not in os.environ:
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            for name, multiple in multiples(Path(folder)).items():
                print(f"{name:22} {multiple:5.1f} times the checks of {FEW} without")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
