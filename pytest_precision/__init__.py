"""Prove that a change to a training stack changes no bit of what it computes.

Attributes are resolved on first use: importing this package imports neither torch nor anything of
it, so that pytest starts and collects as fast as without the plugin.
"""

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.auditing.audit import Audit, audit
    from pytest_precision.auditing.finding import AuditFinding
    from pytest_precision.check.parity import Parity
    from pytest_precision.engine.capture import Capture
    from pytest_precision.engine.engine import Engine
    from pytest_precision.engine.observation import Chunk, Observation, Span, piece, whole
    from pytest_precision.errors import (
        AuditError,
        BackendError,
        DevicesBusyError,
        NoSetupError,
        ParityError,
        PrecisionLeakWarning,
        RankError,
        RecordingError,
        SequenceError,
        WatchError,
    )
    from pytest_precision.matrix.cell import Cell
    from pytest_precision.matrix.contract import Contract
    from pytest_precision.parity.compare.calls import bitwise, close, noise, norm, ulp, unchecked
    from pytest_precision.parity.verdict import Verdict
    from pytest_precision.plugin.fixtures import Ranks
    from pytest_precision.recorders.recorder import Recorder
    from pytest_precision.recorders.scripts.command import command
    from pytest_precision.recorders.scripts.current import record
    from pytest_precision.recorders.scripts.script import script
    from pytest_precision.version import __version__
    from pytest_precision.workloads.base import Workload

__all__ = [
    "Audit",
    "AuditError",
    "AuditFinding",
    "BackendError",
    "Capture",
    "Cell",
    "Chunk",
    "Contract",
    "DevicesBusyError",
    "Engine",
    "NoSetupError",
    "Observation",
    "Parity",
    "ParityError",
    "PrecisionLeakWarning",
    "RankError",
    "Ranks",
    "Recorder",
    "RecordingError",
    "SequenceError",
    "Span",
    "Verdict",
    "WatchError",
    "Workload",
    "__version__",
    "audit",
    "bitwise",
    "close",
    "command",
    "noise",
    "norm",
    "piece",
    "record",
    "script",
    "ulp",
    "unchecked",
    "whole",
]

__getattr__, __dir__ = _lazy.exports(
    __name__,
    {
        "version": ("__version__",),
        "auditing.audit": ("Audit", "audit"),
        "auditing.finding": ("AuditFinding",),
        "matrix.cell": ("Cell",),
        "check.parity": ("Parity",),
        "errors": (
            "AuditError",
            "BackendError",
            "DevicesBusyError",
            "NoSetupError",
            "ParityError",
            "PrecisionLeakWarning",
            "RankError",
            "RecordingError",
            "SequenceError",
            "WatchError",
        ),
        "matrix.contract": ("Contract",),
        "engine.capture": ("Capture",),
        "engine.engine": ("Engine",),
        "engine.observation": ("Chunk", "Observation", "Span", "piece", "whole"),
        "recorders.recorder": ("Recorder",),
        "recorders.scripts.command": ("command",),
        "recorders.scripts.current": ("record",),
        "recorders.scripts.script": ("script",),
        "plugin.fixtures": ("Ranks",),
        "parity.compare.calls": ("bitwise", "close", "noise", "norm", "ulp", "unchecked"),
        "parity.verdict": ("Verdict",),
        "workloads.base": ("Workload",),
    },
)
