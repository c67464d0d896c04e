"""The oracle's findings in words and as plain data: whose update is not by the declared rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pytest_precision.trace.oracle.judge import Breach
from pytest_precision.trace.oracle.log import OracleLog
from pytest_precision.trace.recording import Recording

UNKNOWN = "no wrong rule that is known explains it"


def summary(log: OracleLog, off: str = "") -> dict[str, Any]:
    """Return what was judged of one run as builtins; only the reason where nothing was.

    Args:
        log: of the run.
        off: why the test has turned the oracle off.
    """
    if off or log.silent:
        return {"silent": off or log.silent}
    found: dict[str, Any] = {
        "rule": log.rule,
        "judged": log.judged,
        "worst": log.worst,
        "unjudged": dict(log.unjudged),
    }
    if log.breach is not None:
        breach = asdict(log.breach)
        del breach["order"], breach["group"]
        breach["index"] = list(log.breach.index)
        found |= {"breach": breach, "fits": list(log.fits or ()), "apart": list(log.apart)}
    return found


def breached(sides: Sequence[Recording]) -> list[Recording]:
    """Return the sides with an update that is not that of the rule."""
    return [side for side in sides if side.oracle.breach is not None]


def headline(sides: Sequence[Recording]) -> str:
    """Say on one line which update is not that of the rule, and which wrong rule it follows.

    Args:
        sides: those with such an update, at least one.
    """
    log = sides[0].oracle
    assert log.breach is not None
    who = "both sides" if len(sides) > 1 else f"the {sides[0].name}"
    what = f"{log.breach.kind} of {log.breach.name}"
    return (
        f"{what} is not what the workload's {log.rule} makes of it at step {log.breach.step} in "
        f"{who}: {explanation(log)}; {_numbers(log.breach)}"
    )


def lines(side: Recording) -> list[str]:
    """Return the lines below a divergence that say the same of one side; none if it has none."""
    log = side.oracle
    if log.breach is None:
        return []
    where = f"{log.breach.kind} of {log.breach.name} at step {log.breach.step}"
    return [
        f"The update of the {side.name} is not the workload's {log.rule}: {explanation(log)} "
        f"({where}: {_numbers(log.breach)})"
    ]


def explanation(log: OracleLog) -> str:
    """Say which options differ and which wrong rules fit, or that none does."""
    told = [*log.apart, *([" or ".join(log.fits)] if log.fits else [])]
    return "; ".join(told) or UNKNOWN


def _numbers(breach: Breach) -> str:
    return (
        f"{breach.got!r} at {tuple(breach.index)}, {breach.expected!r} by the rule, off by "
        f"{breach.ratio:.2g} times the bound of its rounding"
    )
