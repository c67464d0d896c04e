"""Hold a loop to the rules that every loop keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pytest_precision.probes.loop_rules.broken_rules import BrokenRules
from pytest_precision.probes.loop_rules.rules_of_loops import LoopRules
from pytest_precision.recorders.loop_job import LoopJob
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.scripts.steps import Steps


class RulesProbe(Probe[Steps]):
    """Logs the rules that a loop breaks, from its first run to the last one."""

    def __init__(self) -> None:
        self._broken: list[tuple[str, str]] = []

    def begin(self, run: Steps) -> None:
        """Have torch's hooks report to the rules, too."""
        self._rules = LoopRules(run.reader)
        run.listeners.append(self._rules)

    @contextmanager
    def around(self, run: Steps, call: str) -> Iterator[None]:
        """Take the hooks off the loop's parameters when it is over, and keep what it has broken."""
        with closing(self._rules):
            yield
        # Before the first update a name has a placeholder for the path of its module.
        settled = run.reader.names.settled
        self._broken += [(kind, settled(words)) for kind, words in self._rules.broken]

    def write(self, folder: Path, rank: int) -> None:
        """Write the broken rules."""
        BrokenRules.store(folder, rank, self._broken)


def rules_probe(job: LoopJob) -> RulesProbe | None:
    """Return the probe of a loop in a cell; None of one that `record` runs."""
    return None if job.variant is None else RulesProbe()
