"""Each planted defect is caught at the step, phase and kind where it first shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import both_sides
import planted
import pytest

from pytest_precision import Cell, Engine, Parity, ParityError, Workload, layouts, workloads

ParityIn = Callable[[Cell], Parity]


LARGE = partial(workloads.mlp, width=401, depth=1)
"""So large that a trace keeps digests of seven steps, as it does of a long run."""


def caught(
    parity: Parity,
    kind: type[Engine],
    workload: Callable[..., Workload] = workloads.mlp,
    **options: object,
) -> ParityError:
    candidate = partial(planted.planted, kind=kind)
    with pytest.raises(ParityError) as failure:
        parity.check(candidate, layouts.adamw, workload=workload, **options)  # type: ignore[arg-type]
    return failure.value


def test_the_same_numbers_in_other_groups_agree(parity_in: ParityIn) -> None:
    """What counts is what each parameter is updated with, not how an optimizer is told."""
    parity = parity_in(Cell(sequence="train-save-load-train"))
    verdict = parity.check(planted.one_group_each, layouts.adamw, workload=workloads.mlp)
    assert not verdict.left_out


def test_an_engine_may_show_no_modes(parity_in: ParityIn) -> None:
    """It says so; a mode that the other side shows proves nothing then."""
    candidate = partial(planted.planted, kind=planted.ShowsNoModes)
    verdict = parity_in(Cell(sequence="train")).check(
        candidate, layouts.adamw, workload=workloads.mlp
    )
    assert verdict.left_out == {"flag": "the candidate has none"}


def test_a_checkpoint_that_is_wrong_for_others_only_is_found(parity_in: ParityIn) -> None:
    """Behind a swap both sides have been through the same mistake once, and agree."""
    error = caught(parity_in(Cell(sequence="train-save-swap-train")), planted.WritesBackwards)
    assert "swap after step 1 changed master in the candidate" in error.verdict.reason
    assert "After the swap the candidate's checkpoint runs in the reference's layout\n" in str(
        error
    )


@pytest.mark.parametrize(
    ("sequence", "words"),
    [
        # By day, a load that follows the swap has this evaluation after it.
        pytest.param(
            *("train-save-swap-eval-train", "2 times the reference"), marks=pytest.mark.nightly
        ),
        ("train-save-swap-train-save-swap-eval-train", "0.5 times the reference"),
        ("train-save-swap-train-save-load-eval-train", "2 times the reference"),
    ],
)
def test_layouts_change_sides_at_each_swap(parity_in: ParityIn, sequence: str, words: str) -> None:
    """The defect is in the run whose engine the candidate's layout has made, and the text says."""
    error = caught(parity_in(Cell(sequence=sequence)), both_sides.EvalTouchesMoments)
    assert error.verdict.divergence is not None
    assert error.verdict.divergence.signature.startswith(words)
    note = "After the swap the candidate's checkpoint runs in the reference's layout, and the ref"
    assert (note in str(error)) is words.startswith("2")


def test_a_layout_that_returns_nothing_is_told_so(parity_in: ParityIn) -> None:
    """Not by what the recorder happens to touch first."""
    with pytest.raises(ParityError, match="return an Engine but got a NoneType; end it with"):
        parity_in(Cell()).check(planted.no_engine, layouts.adamw, workload=workloads.mlp)


def test_a_prefix_before_all_names_is_explained(parity_in: ParityIn) -> None:
    """Frameworks wrap models, and the names of their parameters with them."""
    words = r"give the wrapper as Engine\(\.\.\., forward_model=wrapper\)"
    with pytest.raises(ParityError, match=words):
        parity_in(Cell()).check(planted.wrapped, layouts.adamw, workload=workloads.mlp)


def test_what_it_looks_like_is_named(parity_in: ParityIn) -> None:
    """A doubled gradient is called that."""
    error = caught(parity_in(Cell(sequence="train2", world_size=2)), planted.DoubledGrads)
    assert error.verdict.divergence is not None
    assert error.verdict.divergence.signature == "2 times the reference"
    assert error.verdict.divergence.mismatched == 1


def test_the_rank_that_drifts_is_named(parity_in: ParityIn) -> None:
    """Also where rank 0, which most tests look at, is right."""
    error = caught(parity_in(Cell(sequence="train2", world_size=3)), planted.RankDrift)
    assert error.verdict.divergence is not None
    assert error.verdict.divergence.rank == 2
    assert "rank 2 and rank 0 hold different bits" in str(error)


def test_an_interruption_is_held_against_training_straight_on(parity_in: ParityIn) -> None:
    """Train-eval-train against train-only finds the buffers that the evaluation left dirty."""
    cell = Cell(sequence="train2-eval-train2")
    error = caught(
        parity_in(cell),
        both_sides.EvalLeavesGradients,
        reference_cell=cell.replace(sequence="train4"),
    )
    assert error.verdict.divergence is not None
    assert error.verdict.divergence.step == 3


def test_a_layout_against_itself_proves_nothing(parity_in: ParityIn) -> None:
    """The same layout, workload and cell on both sides are one run."""
    with pytest.raises(ParityError, match="vacuous: the candidate and the reference are the same"):
        parity_in(Cell()).check(layouts.ddp, layouts.ddp, workload=workloads.mlp)


@pytest.mark.parametrize(
    ("sequence", "workload", "words"),
    [
        ("train7", LARGE, "not repeatable: step 1 differed, but not in a second run"),
        (
            *("train2", workloads.mlp),
            "not repeatable: master of .* differs at step 1 after .* in a second run",
        ),
    ],
    ids=["digests", "values"],
)
def test_a_run_that_is_not_repeatable_is_called_that(
    parity_in: ParityIn,
    tmp_path: Path,
    sequence: str,
    workload: Callable[..., Workload],
    words: str,
) -> None:
    """What differs between two runs of one layout is no property of the layout."""
    with pytest.raises(ParityError, match=words) as failure:
        parity_in(Cell(sequence=sequence)).check(
            partial(planted.differs_once, mark=str(tmp_path / "ran")),
            layouts.adamw,
            workload=workload,
        )
    assert failure.value.verdict.outcome == "fail"


def test_ranks_that_drift_apart_alike_in_each_run_are_repeatable(parity_in: ParityIn) -> None:
    """Two ranks may hold other bits, and hold the same ones again."""
    error = caught(parity_in(Cell(sequence="train2", world_size=2)), planted.RankDrift)
    assert "hold different bits" in error.verdict.reason
    assert "not repeatable" not in error.verdict.reason


def test_a_candidate_whose_second_run_fails_is_not_repeatable(
    parity_in: ParityIn, tmp_path: Path
) -> None:
    """The divergence of its first run is still the verdict."""
    words = "differs at step 1 .*; not repeatable: in a second run the candidate failed: .*gone"
    with pytest.raises(ParityError, match=words):
        parity_in(Cell(sequence="train2")).check(
            partial(planted.runs_once, mark=str(tmp_path / "ran")),
            layouts.adamw,
            workload=workloads.mlp,
        )


def test_a_divergence_late_in_a_long_run_is_found_exactly(parity_in: ParityIn) -> None:
    """Of a run as large digests are kept, and values of the steps around the first difference."""
    cell = Cell(sequence="train7")
    error = caught(parity_in(cell), planted.WrongAtStep5, LARGE)
    found = error.verdict.divergence
    assert found is not None
    assert (found.step, found.phase, found.kind) == (5, "reduce_grads", "reduced_grad")
    assert "step 4 agreed" in error.verdict.reason
    assert found.signature == "2 times the reference"


def test_a_rank_that_raises_is_one_error_with_its_traceback(parity_in: ParityIn) -> None:
    """The others wait in a collective; the next check gets a new group."""
    parity = parity_in(Cell(sequence="train2", world_size=2))
    error = caught(parity, planted.Raises)
    assert error.verdict.outcome == "error"
    assert "the candidate failed: rank 1" in error.verdict.reason
    assert "planted on the last rank" in str(error)
    assert "in reduce_grads" in str(error)
    assert parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp).outcome == "pass"
