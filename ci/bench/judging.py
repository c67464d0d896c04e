"""What it costs to judge sides by themselves: `python ci/bench/judging.py [ARGUMENTS OF PYTEST]`.

Cells of fixtures/downstream on one rank, in this process: the CPU time of each part as a share of
the whole check's. Other jobs on the machine make no difference to a share, and garbage is collected
between checks.
"""

from __future__ import annotations

import functools
import gc
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DOWNSTREAM = Path(__file__).resolve().parents[2] / "fixtures" / "downstream"

PARTS = ("oracle", "identities", "lost updates", "bounds", "coverage gaps", "signatures")


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
                gc.collect()  # not inside a part, which has not made what is collected
                gc.disable()
            started = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.checks[-1][part] += time.process_time() - started
                if part == "check":
                    gc.enable()

        return timed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Watch what only then may be imported: before, nothing needs torch."""
        from pytest_precision.check import disagreement
        from pytest_precision.check.parity import Parity
        from pytest_precision.probes.coverage_gaps import gaps as coverage_gaps
        from pytest_precision.probes.declared_rule.oracle.update_oracle import UpdateOracle
        from pytest_precision.probes.declared_rule.oracle_log import OracleLog
        from pytest_precision.probes.identities.consistency import Consistency
        from pytest_precision.probes.lost_updates.measured import UpdateMeter
        from pytest_precision.probes.lost_updates.update_log import UpdateLog
        from pytest_precision.probes.proposals import required_tolerance

        self.watch(Parity, "check", "check")
        for name in ("__init__", "keep_reduced", "before", "after"):
            self.watch(UpdateOracle, name, "oracle")
        self.watch(OracleLog, "read", "oracle")
        self.watch(Consistency, "of", "identities")
        for name in ("before", "after", "write"):
            self.watch(UpdateMeter, name, "lost updates")
        self.watch(UpdateLog, "read", "lost updates")
        self.watch(required_tolerance, "columns", "bounds")
        self.watch(coverage_gaps, "unexercised", "coverage gaps")
        self.watch(disagreement, "diagnose", "signatures")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write median and maximum of the shares, each of the checks that have the part."""
        for parts in (*((part,) for part in PARTS), ("oracle", "identities")):
            whole = [check for check in self.checks if all(part in check for part in parts)]
            shares = [
                100 * sum(seconds[part] for part in parts) / seconds["check"] for seconds in whole
            ]
            if shares:
                worst = whole[shares.index(max(shares))]
                terminalreporter.write_line(
                    f"{' and '.join(parts):22} median {statistics.median(shares):5.1f} %  maximum "
                    f"{max(shares):5.1f} % (of {worst['check']:.2f} s)  in {len(shares)} checks"
                )


if __name__ == "__main__":
    options = ["--precision-matrix", "--precision-ranks=inline", "--precision-select=world_size=1"]
    arguments = [f"--rootdir={DOWNSTREAM}", "-q", *options, *(sys.argv[1:] or [str(DOWNSTREAM)])]
    sys.exit(pytest.main(arguments, plugins=[Clock()]))
