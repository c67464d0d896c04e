"""Of two sides now and then, the verdict tells who moved."""

from __future__ import annotations

import pytest

from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.then.moved import Moves, since
from pytest_precision.probes.then.recorded_then import differences_in_time

LOST = Ruling(outcome="fail", gate="agreement", reason="the sides differ")
ELSE = Ruling(outcome="fail", gate="contract", reason="another dtype")
PASS = Ruling()


def moves(moved: str, *, apart: bool) -> Moves:
    """Return moves of the sides whose first letters are given."""
    names = [name for name in ("candidate", "reference") if name[0] in moved]
    rulings = {name: Ruling(outcome="fail", reason=f"grad of {name}") for name in names}
    disagreement = Ruling(outcome="fail", reason="they differed") if apart else None
    return Moves("then", rulings, lambda: disagreement, {"torch": ["2", "1"]})


@pytest.mark.parametrize(
    ("now", "moved", "apart", "outcome", "gate", "reason"),
    [
        (PASS, "", False, "pass", "", ""),
        (
            PASS,
            "c",
            False,
            "fail",
            "moved",
            "the candidate moved since then, the reference did not: ",
        ),
        (
            PASS,
            "r",
            False,
            "fail",
            "moved",
            "the reference moved since then, the candidate did not: ",
        ),
        (PASS, "cr", False, "drift", "drifted", "both sides moved since then and still agree: "),
        (
            PASS,
            "cr",
            True,
            "fail",
            "moved",
            "both sides moved since then, where they did not agree: ",
        ),
        (LOST, "c", False, "fail", "moved", "agreement was lost since then: the candidate moved: "),
        (LOST, "cr", False, "fail", "moved", "agreement was lost since then: both sides moved: "),
        (LOST, "c", True, "fail", "agreement", "the sides differ"),
        (LOST, "", True, "fail", "agreement", "the sides differ"),
        (ELSE, "c", False, "fail", "contract", "another dtype"),
        (ELSE, "cr", False, "fail", "contract", "another dtype"),
    ],
)
def test_who_moved_decides(
    now: Ruling, moved: str, apart: bool, outcome: str, gate: str, reason: str
) -> None:
    """Each row of the table on the page about verdicts, and what is no difference of two sides."""
    ruling, figures = since(now, moves(moved, apart=apart))
    assert (ruling.outcome, ruling.gate) == (outcome, gate)
    assert ruling.reason.startswith(reason)
    assert [*figures["then"]["moved"]] == [n for n in ("candidate", "reference") if n[0] in moved]
    if gate in ("moved", "drifted"):
        assert "torch: 2 here, 1 at then" in ruling.details


@pytest.mark.parametrize(("now", "apart"), [(PASS, True), (LOST, False)])
def test_what_the_first_line_leaves_out_is_below_it(now: Ruling, apart: bool) -> None:
    """How the sides agree now, or agreed then, and how the other one moved."""
    ruling, _ = since(now, moves("cr", apart=apart))
    told = (
        "At then the two sides differed: they differed" if apart else "Now the two sides differ: "
    )
    assert any(line.startswith(told) for line in ruling.details)
    assert "The reference moved, too: grad of reference" in ruling.details


def test_what_is_to_be_done_is_said() -> None:
    """Where numbers that moved are meant: a drift is let pass, and a baseline made anew."""
    drift, _ = since(PASS, moves("cr", apart=False))
    assert "If that is meant, --precision-drift=report lets it pass." in drift.details
    kept = Moves("then", moves("c", apart=False).rulings, lambda: None, refresh="Make it anew.")
    assert "Make it anew." in since(PASS, kept)[0].details


def test_packages_that_one_side_lacks_come_last() -> None:
    """A failure lists a dozen, and an environment for development has many that decide nothing."""
    packages = {"PyYAML": ["6", "none"], "torch": ["2.13", "2.9"], "attrs": ["none", "2"]}
    assert [*differences_in_time([], packages)] == ["torch", "PyYAML", "attrs"]
