"""Describe updates that break the rule that the workload declares.

An update that no known wrong rule has made is told in the words of the rule's options.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from pytest_precision.check.case import Case
from pytest_precision.check.gate import failed, gate
from pytest_precision.parity.exempt import Exempt
from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.declared_rule.oracle_log import Breach, OracleLog
from pytest_precision.probes.gradients.gradient_findings import UNKNOWN, gradient_summary
from pytest_precision.probes.gradients.gradient_log import GradientLog
from pytest_precision.trace.recording import Recording


class Broken(NamedTuple):
    """A weight update of candidate or reference that breaks the declared optimizer rule.

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
        """Return words on optimizer options unlike the declared ones and wrong rules that fit."""
        causes = [*self.log.apart.get(str(self.breach.group), ())]
        groups = sorted({breach.group for breach in self.log.breaches})
        alone = f", in parameter group {' and '.join(map(str, groups))} alone"
        fits = [words + alone * (words in self.log.spared) for words in self.log.fits or ()]
        causes += [" or ".join(fits) or estimated_options(self.log)]
        return "; ".join(filter(None, causes)) or UNKNOWN


def oracle(case: RecordedCase) -> dict[str, Any]:
    """Return as a dict for each run how updates and gradients follow what the workload declares."""
    return {
        side.name: summary_of_rule(side.log(OracleLog), case.exempt)
        | {"gradients": gradient_summary(side.log(GradientLog), case.exempt)}
        for side in case.sides
    }


def summary_of_rule(log: OracleLog, exempt: Exempt) -> dict[str, Any]:
    """Return as a dict how a run's updates follow the optimizer rule that the workload declares.

    If none was judged, only the reason is returned.

    Args:
        log: of the run.
        exempt: what the test has not judged.
    """
    if exempt.all or log.silent:
        return {"silent": exempt.all or log.silent}
    summary: dict[str, Any] = {
        "rule": log.rule,
        "judged": log.judged,
        "worst": log.worst,
        "unjudged": dict(log.unjudged),
    }
    if exempt.reasons():
        summary["off"] = exempt.reasons()
    breach = log.first(exempt.judges)
    if breach is not None:
        said = asdict(breach)
        del said["order"], said["group"]
        said["index"] = list(breach.index)
        apart = log.apart.get(str(breach.group), ())
        summary |= {"breach": said, "fits": list(log.fits or ()), "apart": list(apart)}
    return summary


def breached(sides: Iterable[Recording], exempt: Exempt) -> list[Broken]:
    """Return, for each run that has one, the first update that breaks the optimizer rule."""
    logs = ((side.name, side.log(OracleLog)) for side in sides)
    breaches = ((name, log, log.first(exempt.judges)) for name, log in logs)
    return [Broken(name, log, breach) for name, log, breach in breaches if breach is not None]


@gate
def declared_rule(case: Case) -> Ruling | None:
    """Fail the check if updates do not follow the optimizer that the workload declares."""
    wrong = breached(case.judged, case.terms.exempt)
    if not wrong:
        return None
    advice = (
        "If they should be, declare their rule as optimizer_rule of the workload; "
        "oracle=unchecked(reason=...) turns this judgement off, "
        f"oracle={{{wrong[0].breach.kind!r}: unchecked(reason=...)}} that of this kind."
    )
    return failed(breach_headline(wrong), [advice])


def breach_headline(sides: Sequence[Broken]) -> str:
    """Return one line: which update breaks the optimizer's rule, and which wrong rule explains it.

    Args:
        sides: those with such an update, at least one.
    """
    first = sides[0]
    breach = first.breach
    who = "both sides" if len(sides) > 1 else f"the {first.side}"
    return (
        f"{breach.kind} of {breach.name} is not what the workload's {first.log.rule} makes of it "
        f"at step {breach.step} in {who}: {first.explanation}; {_numbers(breach)}"
    )


def breach_lines(side: Recording, exempt: Exempt) -> list[str]:
    """Return a line on a run's first update that breaks the optimizer rule; empty if none does."""
    return [
        f"The update of the {broken.side} is not the workload's {broken.log.rule}: "
        f"{broken.explanation} ({broken.breach.kind} of {broken.breach.name} "
        f"at step {broken.breach.step}: {_numbers(broken.breach)})"
        for broken in breached([side], exempt)
    ]


def breaches_explained(case: RecordedCase, diagnosis: object) -> list[str]:
    """Return `breach_lines` of both sides of a difference."""
    return [line for side in case.whole.sides for line in breach_lines(side, case.exempt)]


def _numbers(breach: Breach) -> str:
    return (
        f"{breach.got!r} at {tuple(breach.index)}, {breach.expected!r} by the rule, off by "
        f"{breach.ratio:.2g} times the bound of its rounding"
    )


WORDS = {
    "lr": "the learning rate",
    "weight_decay": "weight decay",
    "betas.0": "beta1",
    "betas.1": "beta2",
}
"""Options whose name is not what people say."""

NO_ESTIMATE = 1e-3
"""Share of its declared value below which an option is left out."""


def estimated_options(log: OracleLog) -> str:
    """Return words on option values, such as a rate, that would explain updates; empty if none."""
    group_words = {
        group: " or ".join(map(_words, options.items()))
        for group, options in sorted(log.estimates.items())
        if options
    }
    if len(group_words) < len(log.estimates) or not group_words:
        return ""
    same = {*group_words.values()}
    if len(same) == 1:
        (words,) = same
        alone = len(group_words) == 1 and log.groups > 1
        return words + f", in parameter group {next(iter(group_words))} alone" * alone
    return "; ".join(f"{words}, in parameter group {group}" for group, words in group_words.items())


def _words(estimate: tuple[str, Sequence[float]]) -> str:
    names, values = estimate
    parts = zip(names.split(), values[::2], values[1::2], strict=True)
    return " and ".join(_as_if(*part) for part in parts)


def _as_if(name: str, fitted: float, declared: float) -> str:
    """Phrase one wrong optimizer option, as in `as if the learning rate were 0.667 of it`."""
    if name == "gradient":
        return f"as if gradients were {fitted:.3g} times what they are"
    words = WORDS.get(name, name)
    if declared and abs(fitted / declared) < NO_ESTIMATE and name != "eps":
        return f"as if {words} were left out"
    if name == "lr" and declared:
        return f"as if {words} were {fitted / declared:.3g} of it"
    return f"as if {words} were {fitted:.3g}, not {declared:.3g}"
