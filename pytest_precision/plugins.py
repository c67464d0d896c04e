"""What a plugin builds judgements and reporters of, for the hooks of `hookspecs`.

Names are imported when they are first used, so that a plugin imports no torch at pytest's start.
"""

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.check.case import Case
    from pytest_precision.parity.verdict import Ruling
    from pytest_precision.recorders.layout_job import LayoutJob
    from pytest_precision.recorders.loop_job import LoopJob
    from pytest_precision.recorders.probe import Probe
    from pytest_precision.registered import FigureSpec, GateSpec, ProbeSpec, ReporterSpec
    from pytest_precision.trace.rank_log import RankLog, RankPart

__all__ = [
    "Case",
    "FigureSpec",
    "GateSpec",
    "LayoutJob",
    "LoopJob",
    "Probe",
    "ProbeSpec",
    "RankLog",
    "RankPart",
    "ReporterSpec",
    "Ruling",
]

__getattr__, __dir__ = _lazy.exports(
    "pytest_precision",
    {
        "check.case": ("Case",),
        "parity.verdict": ("Ruling",),
        "recorders.layout_job": ("LayoutJob",),
        "recorders.loop_job": ("LoopJob",),
        "recorders.probe": ("Probe",),
        "registered": ("FigureSpec", "GateSpec", "ProbeSpec", "ReporterSpec"),
        "trace.rank_log": ("RankLog", "RankPart"),
    },
)
