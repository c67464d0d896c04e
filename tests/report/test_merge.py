"""Merge: reports of shards and of machines as one, which the schema describes too."""

from __future__ import annotations

from pages import entry
from written import validator

from pytest_precision.report.merge import merge
from pytest_precision.report.read import Report


def content(*cells, finished=True, planned=None, **environment):
    """A report.json of some checks."""
    return {
        "schema": 1,
        "finished": finished,
        "planned": len(cells) if planned is None else planned,
        "environment": {"world_sizes": [1]} | environment,
        "cells": [dict(cell, details=[]) for cell in cells],
    }


def test_shards_are_one_report():
    """Cells in order, planned cells added up, finished only if all are."""
    whole = merge(
        {"a": content(entry("pass", 0), entry("pass", 2)), "b": content(entry("fail", 1))}
    )
    validator().validate(whole)
    assert (whole["finished"], whole["planned"]) == (True, 3)
    assert [cell.number for cell in Report.of(whole).cells] == [0, 1, 2]
    cut = merge({"a": content(entry(), finished=False, planned=7), "b": content(entry("skip", 1))})
    assert (cut["finished"], cut["planned"]) == (False, 8)


def test_a_lost_shard_leaves_the_report_unfinished():
    """Reports say their share: all of a division must be there, in whatever order they join."""
    first, second, third = (
        content(entry("pass", number), flags={"shard": [number, 3]}) for number in (1, 2, 3)
    )
    alone = merge({"a": first})
    validator().validate(alone)
    assert (alone["finished"], alone["planned"]) == (False, None)
    assert Report.of(alone).ran == (
        "1 cell of an unknown number ran; there is no report of 2 of 3 shards: 2, 3"
    )
    assert Report.of(first).ran == "1 cell of 1 ran"
    both = merge({"a": alone, "b": third})
    assert Report.of(both).lost_shards == "there is no report of 1 of 3 shards: 2"
    whole = merge({"c": third, "a": first, "b": second})
    assert (whole["finished"], Report.of(whole).lost_shards) == (True, "")
    strange = content(entry(), flags={"shard": [5, 2]})
    assert merge({"a": strange, "b": content(flags={"shard": [1, 10**9]})})["shards"] == [
        [1, 10**9]
    ]


def test_shards_take_as_long_as_the_longest():
    """Shards run at the same time; of an old report, the time of its tests is all that is known."""
    shards = [content(entry("pass", n)) | {"seconds": 10.0 * n} for n in (1, 2)]
    whole = merge(dict(zip("ab", shards, strict=True)))
    validator().validate(whole)
    assert Report.of(whole).seconds == 20.0
    old = Report.of(content(entry("pass", 0), entry("pass", 1)))
    assert old.seconds == sum(cell.seconds for cell in old.cells)


def test_a_cell_of_two_reports_is_two_cells():
    """One more axis tells them apart, so that statements and grids can name the machine."""
    merged = merge({"old": content(entry("pass")), "new": content(entry("fail"))})
    cells = Report.of(merged).cells
    assert [(cell.axes["report"], cell.status) for cell in cells] == [
        ("old", "pass"),
        ("new", "fail"),
    ]


def test_environments_show_what_is_not_the_same():
    """A value is told once, or all values as one text; sets of rank settings are kept apart."""
    ranks = [{"torch": "2.12"}], [{"torch": "2.13"}]
    found = merge(
        {
            "a": content(versions={"torch": "2.12", "numpy": "2"}, ranks=ranks[0], device="cpu"),
            "b": content(versions={"torch": "2.13", "numpy": "2"}, ranks=ranks[1], device="cpu"),
        }
    )
    validator().validate(found)
    assert found["environment"] == {
        "world_sizes": [1],
        "versions": {"torch": "2.12 or 2.13", "numpy": "2"},
        "ranks": [{"torch": "2.12"}, {"torch": "2.13"}],
        "device": "cpu",
    }
