"""A failure of a layout names the line that made the first wrong value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import in_this_process  # noqa: F401
import pytest
import wrong_engines
from wrong_engines import WORKLOAD, of

from pytest_precision import Cell, Engine, Parity, ParityError, Verdict
from pytest_precision.parity.culprit import Culprit

ParityIn = Callable[[Cell], Parity]
VerdictOf = Callable[[str, int], Verdict]

HERE = Path(wrong_engines.__file__)


RIGHT = of(wrong_engines.Right)


def verdict(parity: Parity, candidate: object, reference: object = RIGHT) -> Verdict:
    with pytest.raises(ParityError) as failure:
        parity.check(candidate, reference, workload=WORKLOAD)  # type: ignore[arg-type]
    return failure.value.verdict


def wrong_line(kind: type[Engine]) -> int:
    """Return the number of the line that is marked."""
    lines, first = inspect.getsourcelines(kind)
    (found,) = [number for number, line in enumerate(lines, first) if line.endswith("# wrong\n")]
    return found


@pytest.mark.parametrize(
    ("name", "sequence", "kind"),
    [
        ("ClipsFurther", "train2", "extra"),
        ("RoundsWeights", "train2", "cast"),
        ("WeighsLosses", "train2", "constant"),
        ("SetsRate", "train2", "setting"),
        ("KeepsOldWeights", "train2", "inputs"),
        # As a microbatch that is lost below; of another operation, of another state, and in a
        # flat buffer, as parameters are.
        pytest.param("ForgetsToClip", "train2", "missing", marks=pytest.mark.nightly),
        pytest.param("EvaluatesOnly", "train-eval-train", "setting", marks=pytest.mark.nightly),
        pytest.param("RoundsMoments", "train2", "cast", marks=pytest.mark.nightly),
        pytest.param("FlatGradients", "train2", "cast", marks=pytest.mark.nightly),
    ],
)
def test_the_wrong_line_is_named(
    parity_here: ParityIn, name: str, sequence: str, kind: str
) -> None:
    """The file is the user's, the line the marked one, and the kind what the operation did."""
    engine = getattr(wrong_engines, name)
    expect_marked(verdict(parity_here(Cell(sequence=sequence)), of(engine)), engine, kind)


def expect_marked(verdict: Verdict, engine: type[Engine], kind: str) -> Culprit:
    """Return the culprit of a verdict, which has to be the line that is marked in the engine."""
    found = verdict.culprit
    assert found is not None
    assert (found.file, found.line, found.kind) == (
        str(HERE.relative_to(Path.cwd())),
        wrong_line(engine),
        kind,
    ), found.text
    assert f"{found.file}:{found.line}" in found.text
    return found


def test_what_ends_in_a_right_value_is_not_named(parity_here: ParityIn) -> None:
    """A norm of an earlier step has other operations and the reference's bits."""
    engine = wrong_engines.ReadsOldWeights
    found = verdict(parity_here(Cell(sequence="train3")), of(engine))
    assert found.divergence is not None
    assert (found.divergence.kind, found.divergence.step) == ("loss", 3)
    expect_marked(found, engine, "inputs")


def test_a_second_line_that_is_independent_is_named_too(parity_here: ParityIn) -> None:
    """What follows from the first one is not, though it is as wrong."""
    scaling = of(wrong_engines.ScalesTwo)
    found = verdict(parity_here(Cell(sequence="train2")), scaling).culprit
    assert found is not None
    first = wrong_line(wrong_engines.ScalesTwo)
    assert found.line == first, found.text
    assert [(one.operation, one.line) for one in found.following] == [
        ("aten.add_.Tensor", first + 1)
    ], found.following


def test_what_is_missing_is_named_where_it_is_dropped(parity_here: ParityIn) -> None:
    """Setting a gradient to None is no operation, and the sum that lacks a term comes after it."""
    losing = of(wrong_engines.LosesMicrobatch)
    found = verdict(parity_here(Cell(sequence="train2")), losing).culprit
    assert found is not None
    assert found.kind == "setting"
    assert "set to None, which the reference does not; then aten." in found.text


def test_another_order_of_a_sum_is_told_from_an_error(parity_here: ParityIn) -> None:
    """Microbatches that are added from the last one on give other bits of the same gradient."""
    adding = of(wrong_engines.AddsFromTheEnd)
    found = verdict(parity_here(Cell(sequence="train2")), adding).culprit
    assert found is not None
    assert (found.kind, found.operation) == ("order", "aten.add_.Tensor"), found.text
    assert "the reference adds the same values in another order" in found.text


def test_an_option_explains_no_load(parity_here: ParityIn) -> None:
    """The sides are meant to differ in it from the start, and a step agreed with it."""
    parity = parity_here(Cell(sequence="train1-save-load-train1"))
    forgets, right = of(wrong_engines.Forgets, foreach=True), of(wrong_engines.Right, foreach=False)
    with pytest.raises(ParityError, match="No line is named: every operation of the load made"):
        parity.check(forgets, right, workload=WORKLOAD)


def test_another_constant_is_named_with_both(parity_here: ParityIn) -> None:
    """Other options of an optimizer show where its step is called."""
    right = wrong_engines.Right
    slower = of(right, betas=(0.9, 0.99))
    found = verdict(parity_here(Cell(sequence="train2")), slower, of(right, betas=(0.9, 0.95)))
    assert found.culprit is not None
    assert (
        "the reference sets it to (0.9, 0.95), the candidate to (0.9, 0.99)" in found.culprit.text
    )


# On shards, a line of one rank is named by day.
@pytest.mark.nightly
def test_a_rank_that_computed_otherwise_is_told_from_the_sum(verdict_on_ranks: VerdictOf) -> None:
    """The sum of a wrong gradient is not what is blamed, but the line of the rank that gave it."""
    found = verdict_on_ranks("ScalesLocally", 2)
    assert expect_marked(found, wrong_engines.ScalesLocally, "extra").rank == 1


def test_a_flat_bucket_is_followed_gradient_by_gradient(verdict_on_ranks: VerdictOf) -> None:
    """The reference, which reduces one by one, has all that the bucket's sum is made of."""
    found = verdict_on_ranks("DividesBucket", 2).culprit
    assert found is not None
    assert (found.operation, found.line) == (
        "aten.div_.Tensor",
        wrong_line(wrong_engines.DividesBucket),
    ), found.text


def test_a_third_run_that_fails_leaves_the_verdict(
    parity_here: ParityIn, verdict_on_ranks: VerdictOf
) -> None:
    """The divergence is that of the first two runs, and a line says why no line is named."""
    plain = verdict(parity_here(Cell(sequence="train2")), of(wrong_engines.ClipsFurther))
    raising = verdict_on_ranks("RaisesWhenLogged", 1)
    assert raising.culprit is None
    assert raising.divergence == plain.divergence
    assert any("No line is named: in a third run" in line for line in raising.details)


def test_nothing_is_logged_where_that_is_off(parity_here: ParityIn) -> None:
    """`precision_lines = off` saves the third run."""
    parity = parity_here(Cell(sequence="train2"))
    parity.settings = replace(parity.settings, lines="off")
    found = verdict(parity, of(wrong_engines.ClipsFurther))
    assert found.culprit is None
    assert not any("third run" in line for line in found.details)


def test_an_agreement_logs_nothing(parity_here: ParityIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that passes is run twice, as before."""
    from pytest_precision.check.recordings import Recordings

    asked: list[object] = []
    monkeypatch.setattr(Recordings, "logged", lambda *given: asked.append(given))
    parity = parity_here(Cell(sequence="train2"))
    right = of(wrong_engines.Right)
    assert parity.check(right, of(Engine), workload=WORKLOAD).outcome == "pass"
    assert asked == []
