"""Turn an exception that recording or reading has raised into the ruling of the check."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_precision.check.gate import gate
from pytest_precision.errors import (
    BaselineError,
    NoBaselineError,
    PluginFailed,
    RanksSkipped,
    SideFailed,
    WorldSizeError,
)
from pytest_precision.parity.verdict import Ruling


@gate
def enough_ranks(lacking: WorldSizeError) -> Ruling | None:
    """Return a failed outcome for the error that there are too few devices for a check's ranks."""
    return Ruling(outcome="error", reason=f"{lacking}, which --precision-require forbids")


@gate
def baseline_there(lacking: NoBaselineError) -> Ruling | None:
    """Return a failed outcome for the error that this environment has no baseline."""
    return Ruling(outcome="error", reason=f"{lacking}; --precision-require makes this an error")


@gate
def baseline_sound(failed: BaselineError) -> Ruling | None:
    """Return a failed outcome for the error that a baseline cannot be read or written."""
    return Ruling(outcome="error", reason=str(failed))


@gate
def recorded(failed: SideFailed) -> Ruling | None:
    """Return a failed outcome for an error from recording the candidate or the reference."""
    return Ruling(outcome="error", reason=failed.reason, details=tuple(failed.details))


@gate
def plugin_ran(failed: PluginFailed) -> Ruling | None:
    """Return a failed outcome for an error of a function that another plugin has registered."""
    return Ruling(outcome="error", reason=str(failed), details=tuple(failed.details))


@gate
def readable(failed: OSError) -> Ruling | None:
    """Return the outcome of a check whose recording could not be read: an error with its text."""
    return Ruling(outcome="error", reason=f"the comparison failed: {failed}")


@gate
def computable(failed: RuntimeError) -> Ruling | None:
    """Return a failed outcome for an error of torch while pytest's process compared the runs."""
    first, *rest = str(failed).splitlines() or [""]
    traceback_lines = traceback.format_exception(type(failed), failed, failed.__traceback__)
    return Ruling(
        outcome="error",
        reason=f"the comparison failed in pytest's process: {type(failed).__name__}: {first}",
        details=(*rest, *"".join(traceback_lines).splitlines()),
    )


FAILURES: Mapping[type[Exception], Callable[[Any], Ruling | None]] = {
    WorldSizeError: enough_ranks,
    NoBaselineError: baseline_there,
    BaselineError: baseline_sound,
    SideFailed: recorded,
    PluginFailed: plugin_ran,
    OSError: readable,
    RuntimeError: computable,
}
"""The gates that rule on an exception, each on its class; the first one that fits rules."""


def ruling_of(error: Exception, *, require: bool, inline: bool) -> Ruling | None:
    """Turn an exception from recording or reading into a failed outcome; None for others.

    Args:
        error: what was raised.
        require: whether too few ranks are an error of the check.
        inline: whether the sides ran in this process, so that the error may be one of theirs.

    Raises:
        pytest.skip.Exception: the ranks have skipped, there are too few, or there is no baseline.
    """
    lacking = isinstance(error, (WorldSizeError, NoBaselineError)) and not require
    if lacking or isinstance(error, RanksSkipped):
        pytest.skip(str(error))
    rule = next((handler for kind, handler in FAILURES.items() if isinstance(error, kind)), None)
    # torch raises its own where this process cannot compute.
    if rule is None or (rule is computable and inline):
        return None
    return rule(error)
