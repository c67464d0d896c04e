"""Reasons: what ended alike is one line."""

from __future__ import annotations

from dataclasses import asdict

from made_up import cell, culprit, divergence

from pytest_precision.report.reasons import fold, not_compared


def failing(world_size: int, reason: str, **changes: object):
    axes = {"world_size": world_size}
    return cell(
        "fail",
        axes,
        reason=reason,
        entry={"divergence": asdict(divergence(**changes)), "reason": reason},
    )


def test_identical_reasons_are_one():
    """The cell's name at the head of the reason does not count."""
    cells = [cell("error", {"w": n}, reason=f"{n}: rank 1 died") for n in (1, 2)]
    (reason,) = fold(cells, ["error"])
    assert (reason.text, reason.identical) == ("rank 1 died", True)
    assert reason.where == "test_moe.py::test_experts[1] and 1 more"


def test_same_tensor_with_other_numbers_is_alike():
    """The same kind of the same tensor, with other numbers, is one reason that says so."""
    cells = [failing(1, "38 % of layers.0.weight"), failing(2, "41 % of layers.0.weight")]
    (reason,) = fold(cells, ["fail"])
    assert reason.text == "38 % of layers.0.weight"
    assert reason.where == "test_moe.py::test_experts[1] and 1 more alike"


def test_expected_failures_are_one_by_expectation():
    """What is expected is the reason; where it is the verdict's own text, the tensor is."""
    entry = {"divergence": asdict(divergence()), "reason": "38 %"}
    known = [
        cell("xfail", {"w": n}, reason="known", entry=entry | {"xfail": "known"}) for n in "12"
    ]
    own = cell("xfail", {"w": 3}, reason="38 %", entry=entry | {"xfail": "38 %"})
    alike = cell(
        "xfail", {"w": 4}, reason="41 %", entry=entry | {"xfail": "41 %", "reason": "41 %"}
    )
    found = fold([*known, own, alike], ["xfail"])
    assert [(r.text, len(r.cells), r.identical) for r in found] == [
        ("known", 2, True),
        ("38 %", 2, False),
    ]


def test_other_kinds_are_other_reasons():
    """The most frequent reason comes first."""
    cells = [failing(1, "a", kind="grad"), failing(2, "b"), failing(3, "c")]
    assert [reason.text for reason in fold(cells, ["fail"])] == ["b", "a"]


def test_only_the_statuses_asked_for():
    """A passing check has no reason to be shown."""
    assert fold([cell("pass"), cell("skip", reason="no GPU")], ["fail"]) == []


def test_what_was_not_compared_does_not_steer_the_terminal():
    """A kind is the optimizer's own name, and why it is left out are the engine's own words."""
    left_out = {"red\x1b[31m": "no \x07"}
    assert not_compared([cell(entry={"left_out": left_out})]) == [("red\\x1b[31m: no \\x07", 1)]


def blamed(world_size: int, status: str = "fail", reason: str = "why", **changes: object):
    """A cell whose culprit is known."""
    entry = {"divergence": asdict(divergence()), "reason": "why"}
    found = entry | {"culprit": culprit(**changes).as_dict()}
    found |= {"xfail": reason} if status == "xfail" else {}
    return cell(status, {"w": world_size}, reason=reason, entry=found)


def test_other_lines_are_other_reasons():
    """One tensor may be wrong for two reasons; what the same line did elsewhere is one."""
    cells = [blamed(1), blamed(2), blamed(3, line=70), blamed(4, rank=0)]
    assert [len(reason.cells) for reason in fold(cells, ["fail"])] == [3, 1]


def test_the_culprit_stands_below_its_text():
    """Unless the failure was expected: the expectation is not about this line."""
    (reason,) = fold([blamed(1)], ["fail"])
    assert reason.lines == ["why", culprit().text, "test_moe.py::test_experts[1]"]
    (known,) = fold([blamed(1, "xfail", "known")], ["xfail"])
    assert known.lines == ["known", "test_moe.py::test_experts[1]"]


def test_the_place_is_that_of_the_culprit():
    """If it is in the project; a line of installed code is in no repository, nor is one unknown."""
    (reason,) = fold([blamed(1)], ["fail"])
    assert reason.place == ("train.py", 69)
    for changes in ({"outside": True}, {"file": None}, {"line": None}):
        (reason,) = fold([blamed(1, **changes)], ["fail"])
        assert reason.place == ("test_moe.py", 2)
