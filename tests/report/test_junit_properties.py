"""JUnit: the properties of one test case."""

from __future__ import annotations

from made_up import AXES, REASON, culprit, divergence, verdict

from pytest_precision.report.report_attributes import properties


def test_cell_and_verdict():
    """The axes and every field of the verdict that says something, as texts."""
    own = {"gate": "agreement", "divergence": divergence(ulp=None)}
    found = dict(properties(AXES, [verdict("fail", REASON, **own)]))
    assert found["precision.axis.world_size"] == "2"
    assert found["precision.outcome"] == "fail"
    assert found["precision.gate"] == "agreement"
    assert found["precision.reason"] == REASON
    assert found["precision.divergence.kind"] == "param"
    assert found["precision.divergence.index"] == "[3, 17]"
    assert "precision.divergence.ulp" not in found
    assert all(type(value) is str for value in found.values())


def test_the_culprit_is_told():
    """Its line and what it did there, as far as they are known; never its source."""
    found = dict(properties({}, [verdict("fail", "why", culprit=culprit(module=None))]))
    own = {name: text for name, text in found.items() if name.startswith("precision.culprit.")}
    assert own["precision.culprit.text"] == culprit().text
    assert own["precision.culprit.file"] == "train.py"
    assert own["precision.culprit.line"] == "69"
    assert own["precision.culprit.rank"] == "1"
    assert not {"precision.culprit.module", "precision.culprit.source"} & own.keys()
    assert all(type(value) is str for value in own.values())


def test_without_a_verdict_only_the_axes():
    """A skipped cell can still be told by its axes."""
    assert properties({"precision": "bf16"}, []) == [("precision.axis.precision", "bf16")]


def test_several_checks_show_the_worst():
    """One set of properties a test case, that of the first of the worst verdicts."""
    found = properties({}, [verdict(), verdict("fail", "first"), verdict("fail", "second")])
    assert ("precision.checks", "3") in found
    assert [value for name, value in found if name == "precision.reason"] == ["first"]


def test_a_pass_in_part_is_told():
    """Its outcome is that of a pass; its status is the one that the grid shows."""
    found = dict(properties({}, [verdict(), verdict(criterion="norm(rel=1e-3)")], reruns=2))
    assert (found["precision.outcome"], found["precision.status"]) == ("pass", "partial")
    assert found["precision.criterion"] == "norm(rel=1e-3)"
    assert found["precision.reruns"] == "2"
