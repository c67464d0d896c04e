"""Baselines: results that the repository keeps, with which a check compares its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_precision.registered import ProbeSpec

if TYPE_CHECKING:
    from pytest_precision.check.checked_test import CheckedTest
    from pytest_precision.check.ruled_check import FurtherRule
    from pytest_precision.check.terms import Terms


def baseline_rule(test: CheckedTest, terms: Terms, golden: str) -> FurtherRule | None:
    """Return the rule that compares a check with its baseline; None for a check without one.

    Args:
        test: makes the check.
        terms: of it.
        golden: name of the baseline; empty for that of the test.
    """
    if not (golden or test.settings.baseline):
        return None
    # Only here, so that a check without a baseline does not import what reads one.
    from pytest_precision.probes.baselines.kept_check import KeptCheck

    number = len(test.verdicts) + 1
    kept_check = KeptCheck.of_check(
        test.settings, terms, test.traces, test.nodeid, number, golden, test.claims
    )
    return kept_check.ruled


PROBE = ProbeSpec(name="baselines", further=baseline_rule, in_bare=True)
