"""Carry: what a report takes along to the controller."""

from __future__ import annotations

import json

from made_up import AXES, NODEID, REASON, reports, verdict

from pytest_precision.report.report_attributes import attach
from pytest_precision.report.report_attributes import test_of as matrix_of


class Item:
    """The two attributes of an item that are read."""

    def __init__(self) -> None:
        self.nodeid = NODEID
        self.user_properties: list[tuple[str, object]] = [("own", 1)]


def test_report_carries_builtins_only():
    """The cell and its verdicts are plain data under two names."""
    (report,) = reports(("call", "passed"))
    attach(report, Item(), axes=AXES, verdicts=[verdict()], number=3, total=12, unread=["glu"])
    assert report.precision == json.loads(json.dumps([verdict()]))
    assert report.precision_cell == {
        "test": "test_moe.py::test_experts",
        "axes": AXES,
        "number": 3,
        "total": 12,
        "unread": ["glu"],
    }


def test_properties_of_an_earlier_run_are_replaced():
    """A rerun does not pile up properties, and leaves those of others alone."""
    item = Item()
    (report,) = reports(("call", "passed"))
    attach(report, item, axes=AXES, verdicts=[verdict("fail", REASON)])
    attach(report, item, axes=AXES, verdicts=[verdict()])
    assert [value for name, value in item.user_properties if name == "precision.outcome"] == [
        "pass"
    ]
    assert item.user_properties[0] == ("own", 1)
    assert report.user_properties == item.user_properties


def test_brackets_in_a_path_are_no_parameters():
    """The test is the node id up to the parameters, also in a folder with brackets."""
    assert matrix_of("a[1]/test_b.py::T::test_c[x[0]-y]") == "a[1]/test_b.py::T::test_c"
    assert matrix_of("a[1]/test_b.py::test_c") == "a[1]/test_b.py::test_c"
