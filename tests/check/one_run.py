"""A check of a layout against itself, under two names, that reads one run as both sides."""

from __future__ import annotations

from functools import partial

from pytest_precision import Parity
from pytest_precision.check.recordings import MakeRecordings, Recordings
from pytest_precision.recorders.variant import USUAL, Variant
from pytest_precision.trace.moment import Window
from pytest_precision.trace.recording import Recording


class OneRun(Recordings):
    """Reads the run of the reference as that of both sides."""

    def both(self, window: Window | None, variant: Variant = USUAL) -> tuple[Recording, Recording]:
        """Record the reference, which is the candidate, too."""
        folder = self._reference_folder(self.reference.varied(variant), window)
        return self._read("candidate", folder, window), self._read("reference", folder, window)


class ParityOfOneRun(Parity):
    """The fixture `parity` of a test whose sides are one layout under two names."""

    @classmethod
    def of(cls, parity: Parity) -> ParityOfOneRun:
        """Return a fixture with the cell, the settings and the ranks of another one."""
        return cls(parity.nodeid, parity.cell, parity.settings, parity.ranks, parity.traces)

    @property
    def make_recordings(self) -> MakeRecordings:
        return partial(OneRun, ranks=self.ranks, traces=self.traces, timeout=self.settings.timeout)
