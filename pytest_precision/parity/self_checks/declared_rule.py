"""The oracle's findings in words and as plain data: whose update is not by the declared rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from pytest_precision.parity.self_checks import estimated
from pytest_precision.parity.self_checks.exempt import Exempt
from pytest_precision.trace.oracle_log import Breach, OracleLog
from pytest_precision.trace.recording import Recording

UNKNOWN = "no wrong rule that is known explains it"


class Broken(NamedTuple):
    """A side with an update that is not that of the rule.

    Attributes:
        side: its name.
        log: of its run.
        breach: the first one that the test has judged.
    """

    side: str
    log: OracleLog
    breach: Breach

    @property
    def explanation(self) -> str:
        """Say which options differ and which wrong rules fit, or that none does."""
        told = [*self.log.apart.get(str(self.breach.group), ())]
        groups = sorted({breach.group for breach in self.log.breaches})
        alone = f", in parameter group {' and '.join(map(str, groups))} alone"
        fits = [words + alone * (words in self.log.spared) for words in self.log.fits or ()]
        told += [" or ".join(fits) or estimated.explanation(self.log)]
        return "; ".join(filter(None, told)) or UNKNOWN


def summary_of_rule(log: OracleLog, exempt: Exempt) -> dict[str, Any]:
    """Return what was judged of one run as builtins; only the reason where nothing was.

    Args:
        log: of the run.
        exempt: what the test has not judged.
    """
    if exempt.all or log.silent:
        return {"silent": exempt.all or log.silent}
    found: dict[str, Any] = {
        "rule": log.rule,
        "judged": log.judged,
        "worst": log.worst,
        "unjudged": dict(log.unjudged),
    }
    if exempt.reasons():
        found["off"] = exempt.reasons()
    breach = log.first(exempt.judges)
    if breach is not None:
        said = asdict(breach)
        del said["order"], said["group"]
        said["index"] = list(breach.index)
        apart = log.apart.get(str(breach.group), ())
        found |= {"breach": said, "fits": list(log.fits or ()), "apart": list(apart)}
    return found


def breached(sides: Iterable[Recording], exempt: Exempt) -> list[Broken]:
    """Return the sides with an update that is not that of the rule."""
    found = ((side, side.oracle.first(exempt.judges)) for side in sides)
    return [Broken(side.name, side.oracle, breach) for side, breach in found if breach is not None]


def breach_headline(sides: Sequence[Broken]) -> str:
    """Say on one line which update is not that of the rule, and which wrong rule it follows.

    Args:
        sides: those with such an update, at least one.
    """
    first, breach = sides[0], sides[0].breach
    who = "both sides" if len(sides) > 1 else f"the {first.side}"
    return (
        f"{breach.kind} of {breach.name} is not what the workload's {first.log.rule} makes of it "
        f"at step {breach.step} in {who}: {first.explanation}; {_numbers(breach)}"
    )


def breach_lines(side: Recording, exempt: Exempt) -> list[str]:
    """Return the lines below a divergence that say the same of one side; none if it has none."""
    return [
        f"The update of the {one.side} is not the workload's {one.log.rule}: {one.explanation} "
        f"({one.breach.kind} of {one.breach.name} at step {one.breach.step}: "
        f"{_numbers(one.breach)})"
        for one in breached([side], exempt)
    ]


def _numbers(breach: Breach) -> str:
    return (
        f"{breach.got!r} at {tuple(breach.index)}, {breach.expected!r} by the rule, off by "
        f"{breach.ratio:.2g} times the bound of its rounding"
    )
