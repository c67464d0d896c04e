"""The figures that a check may have: what it counts and measures, whatever its outcome.

Each has a name, which is a key of report.json, described in `report/schema.json`, and an attribute
of the verdict. Who makes one imports nothing of who shows it, and the other way round.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Figure(NamedTuple):
    """One figure, such as `curves`: how it is called, and which function makes it.

    Attributes:
        name: the key in report.json.
        maker: path of the function that makes it of a `RecordedCase`; empty where the check itself,
            or a gate or a further rule with its ruling, has it.
        of_both: whether it tells both sides apart, so that a candidate alone has none.
        default: what a verdict without it has; report.json leaves out None.
    """

    name: str
    maker: str = ""
    of_both: bool = False
    default: Any = None


_EXPLAIN = "pytest_precision.parity.explain"
_SELF_CHECKS = "pytest_precision.parity.self_checks"

FIGURES = (
    Figure("observations", default=0),
    Figure("bytes", default=0),
    Figure("seconds", default=0.0),
    Figure("timing"),
    Figure("lost_updates", f"{_EXPLAIN}.curves:shares_lost", of_both=True),
    Figure("oracle", f"{_SELF_CHECKS}.oracle_findings:oracle", of_both=True),
    Figure("identities", f"{_SELF_CHECKS}.contradictions:identities_in_runs", of_both=True),
    Figure("curves", f"{_EXPLAIN}.curves:table", of_both=True),
    Figure("environment"),
    Figure("left_out"),
    Figure("spread"),
    Figure("histogram"),
    Figure("needed", f"{_EXPLAIN}.required_tolerance:needed"),
    Figure("notes", "pytest_precision.parity.judged_alone:noted_alone"),
    Figure("unexercised", f"{_SELF_CHECKS}.coverage_gaps:gaps"),
    Figure("then"),
    Figure("baseline"),
)
"""Every figure of the package, in the order in which they stand in report.json."""

DEFAULT_FIGURES = {figure.name: figure.default for figure in FIGURES}
"""The figures of a verdict that has none."""
