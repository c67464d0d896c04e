"""Prove that a change to a training stack changes no bit of what it computes.

Attributes are resolved on first use: importing this package imports neither torch nor anything of
it, so that pytest starts and collects as fast as without the plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.auditing.audit import Audit as Audit
    from pytest_precision.auditing.audit import audit as audit
    from pytest_precision.auditing.finding import AuditFinding as AuditFinding
    from pytest_precision.check.parity import Parity as Parity
    from pytest_precision.engine.capture import Capture as Capture
    from pytest_precision.engine.engine import Engine as Engine
    from pytest_precision.engine.observation import Chunk as Chunk
    from pytest_precision.engine.observation import Observation as Observation
    from pytest_precision.engine.observation import Span as Span
    from pytest_precision.engine.observation import piece as piece
    from pytest_precision.engine.observation import whole as whole
    from pytest_precision.errors import AuditError as AuditError
    from pytest_precision.errors import BackendError as BackendError
    from pytest_precision.errors import DevicesBusyError as DevicesBusyError
    from pytest_precision.errors import NoSetupError as NoSetupError
    from pytest_precision.errors import ParityError as ParityError
    from pytest_precision.errors import PrecisionLeakWarning as PrecisionLeakWarning
    from pytest_precision.errors import RankError as RankError
    from pytest_precision.errors import RecordingError as RecordingError
    from pytest_precision.errors import SequenceError as SequenceError
    from pytest_precision.matrix.cell import Cell as Cell
    from pytest_precision.matrix.contract import Contract as Contract
    from pytest_precision.parity.compare.calls import bitwise as bitwise
    from pytest_precision.parity.compare.calls import close as close
    from pytest_precision.parity.compare.calls import noise as noise
    from pytest_precision.parity.compare.calls import norm as norm
    from pytest_precision.parity.compare.calls import ulp as ulp
    from pytest_precision.parity.compare.calls import unchecked as unchecked
    from pytest_precision.parity.verdict import Verdict as Verdict
    from pytest_precision.plugin.fixtures import Ranks as Ranks
    from pytest_precision.recorders.scripts.command import command as command
    from pytest_precision.recorders.scripts.current import record as record
    from pytest_precision.recorders.scripts.script import script as script
    from pytest_precision.version import __version__ as __version__
    from pytest_precision.workloads.base import Workload as Workload

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
    "RecordingError",
    "SequenceError",
    "Span",
    "Verdict",
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
        ),
        "matrix.contract": ("Contract",),
        "engine.capture": ("Capture",),
        "engine.engine": ("Engine",),
        "engine.observation": ("Chunk", "Observation", "Span", "piece", "whole"),
        "recorders.scripts.command": ("command",),
        "recorders.scripts.current": ("record",),
        "recorders.scripts.script": ("script",),
        "plugin.fixtures": ("Ranks",),
        "parity.compare.calls": ("bitwise", "close", "noise", "norm", "ulp", "unchecked"),
        "parity.verdict": ("Verdict",),
        "workloads.base": ("Workload",),
    },
)
