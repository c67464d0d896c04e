"""What it costs to judge sides by themselves: `python ci/bench/judging.py [ARGUMENTS OF PYTEST]`.

Cells of fixtures/downstream on one rank, in this process: the CPU time of the oracle and of the
identities as a share of the whole check's. Other jobs on the machine make no difference to a share.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DOWNSTREAM = Path(__file__).resolve().parents[2] / "fixtures" / "downstream"


class Clock:
    """CPU seconds per check, in the whole and in parts of it.

    Attributes:
        checks: one mapping per check from part to seconds.
    """

    def __init__(self) -> None:
        self.checks: list[dict[str, float]] = []

    def watch(self, owner: type, name: str, part: str) -> None:
        """Count what a method takes as `part` of the check that it is called in."""
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
        from pytest_precision.check.parity import Parity
        from pytest_precision.parity.consistency import Consistency
        from pytest_precision.trace.oracle.log import OracleLog
        from pytest_precision.trace.oracle.watch import UpdateOracle

        self.watch(Parity, "check", "check")
        for name in ("__init__", "_keep_reduced", "_before", "_after", "write"):
            self.watch(UpdateOracle, name, "oracle")
        self.watch(OracleLog, "read", "oracle")
        self.watch(Consistency, "of", "identities")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write median and maximum of the shares."""
        whole = [check for check in self.checks if check["oracle"]]
        for parts in (("oracle",), ("identities",), ("oracle", "identities")):
            shares = [100 * sum(own[part] for part in parts) / own["check"] for own in whole]
            worst = whole[shares.index(max(shares))]
            terminalreporter.write_line(
                f"{' and '.join(parts):22} median {statistics.median(shares):5.1f} %  maximum "
                f"{max(shares):5.1f} % (of {worst['check']:.2f} s)  in {len(shares)} checks"
            )


if __name__ == "__main__":
    options = ["--precision-matrix", "--precision-ranks=inline", "--precision-select=world_size=1"]
    arguments = [f"--rootdir={DOWNSTREAM}", "-q", *options, *(sys.argv[1:] or [str(DOWNSTREAM)])]
    sys.exit(pytest.main(arguments, plugins=[Clock()]))
