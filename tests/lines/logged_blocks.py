"""The operations of a block, and what two logs of them blame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_precision.parity.culprit import Culprit
from pytest_precision.probes.lines.explain.found import culprit_of
from pytest_precision.probes.lines.log.operation_log import OperationLogger
from pytest_precision.probes.lines.operations import OperationLog
from pytest_precision.trace.moment import LogRequest


@contextmanager
def operations(**wanted: Any) -> Iterator[OperationLogger]:
    """Log what the block computes."""
    logger = OperationLogger(LogRequest(0, 1, **wanted))
    with logger.installed(), logger.on():
        yield logger


def culprit_between(candidate: OperationLog, reference: OperationLog, *kinds: str) -> Culprit:
    """Return what the two logs of one rank blame, which has to be something."""
    found = culprit_of([candidate], [reference], Path.cwd(), *kinds)
    assert found is not None
    return found
