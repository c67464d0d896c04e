"""Lines below the first: how much differs, where, what is not finite, and advice that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_precision import Cell, Observation, Span, bitwise, close, whole
from pytest_precision.matrix.ways_in import COMMAND, SCRIPT
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import finding_of, judge
from pytest_precision.parity.compare.pairs import align
from pytest_precision.parity.compare.tensors import statistics
from pytest_precision.parity.explain import wording
from pytest_precision.parity.explain.diagnosis import diagnose, diagnose_tensor
from pytest_precision.trace.moment import END, INIT, Moment
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.recording import Recording

Write = Callable[..., Trace]

STEP = Moment(0, "train", 1, "optimizer_step")
SAVE = Moment(2, "save", 2, "save")
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def find(write_trace: Write) -> Callable[..., Finding]:
    """The difference of one tensor, of which each rank of the candidate has a piece."""

    def find(
        kind: str, ours: Any, theirs: Any, *, moment: Moment = STEP, criterion: Any = None
    ) -> Finding:
        pieces, reference = ours if isinstance(ours, list) else [ours], theirs
        observed = [
            piece if isinstance(piece, Observation) else whole(kind, "w", piece) for piece in pieces
        ]
        ranks = [[(moment, [piece])] for piece in observed]
        traces = (
            write_trace(*ranks),
            write_trace([(moment, [] if reference is None else [whole(kind, "w", reference)])]),
        )
        (pair,) = align(*traces, (moment, moment))
        finding = finding_of(pair, criterion or bitwise())
        assert finding is not None
        return finding

    return find


def numbers(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ([1.5], [1.0], "w is 1.5 on rank 0, not 1.0"),
        ([1, 2, 3 + 2**-20], [1, 2, 3], "1 of 3 elements of w, worst 4 ulp at (2,) on rank 0"),
        ([2.0] * 10, [1.0] * 10, "100 % of w, relative L2 error 1, worst at (0,) on rank 0"),
        ([2.0] * 9, [1.0] * 9, "9 of 9 elements of w, relative L2 error 1, worst at (0,) on"),
        ([0, 1, 4], [0, 1, 2], "1 of 3 elements of w, relative L2 error 0.89, worst at (2,) on"),
        ([NAN], [1.0], "w is nan on rank 0, not 1.0"),
        (
            [INF, 2],
            [1, 3],
            "w has 1 infinity in 2 elements, and is finite in the reference on rank 0, "
            "relative L2 error 0.32 elsewhere",
        ),
    ],
    ids=["a number", "near", "many", "few", "far", "a number that is none", "infinite"],
)
def test_the_extent_of_a_difference(
    find: Callable[..., Finding], ours: list[float], theirs: list[float], words: str
) -> None:
    """A number is shown; a few elements are counted; near ones have a distance in ulp."""
    finding = find("grad", numbers(*ours), numbers(*theirs))
    assert finding.statistics is not None
    assert wording.extent(finding, finding.statistics).startswith(words)


@pytest.mark.parametrize("steps", [1024, 1025])
def test_ulp_say_more_than_an_error_up_to_a_distance(
    find: Callable[..., Finding], steps: int
) -> None:
    """Of far values, nobody counts the representable ones between them."""
    finding = find("grad", numbers(1, 1 + steps * 2**-23), numbers(1, 1))
    assert finding.statistics is not None
    words = wording.extent(finding, finding.statistics)
    assert ("ulp" in words, "relative L2 error" in words) == (steps == 1024, steps == 1025)


def test_integers_have_no_ulp(find: Callable[..., Finding]) -> None:
    """They differ by an error, also where it is 1."""
    finding = find("buffer", torch.tensor([1, 3]), torch.tensor([1, 2]))
    assert finding.statistics is not None
    assert wording.extent(finding, finding.statistics) == (
        "1 of 2 elements of w, relative L2 error 0.45, worst at (1,) on rank 0"
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ([NAN, NAN], [1, 2], "is all NaN, and is finite in the reference"),
        ([INF, -INF], [1, 2], "is all infinite, and is finite in the reference"),
        ([1, INF], [NAN, 2], "has 1 infinity in 2 elements, and has 1 NaN in 2 elements in the"),
        ([NAN, INF, 1], [1, 1, 1], "has 1 NaN and 1 infinity in 3 elements, and is finite in"),
        ([1, NAN], [NAN, 2], "has NaN or infinities in other places than in the reference"),
        ([INF, 1], [-INF, 1], "has NaN or infinities in other places than in the reference"),
    ],
)
def test_what_is_not_finite_is_counted_on_each_side(
    ours: list[float], theirs: list[float], words: str
) -> None:
    """Where the numbers are the same, it is the places that differ."""
    figures = statistics(numbers(*ours), numbers(*theirs))
    assert wording.not_finite(figures, "in the reference").startswith(words)


def test_a_nan_may_have_other_bytes(find: Callable[..., Finding]) -> None:
    """It is a NaN on both sides, in the same place, and other bits all the same."""
    nan = torch.tensor([0x7FC00000, 0, 0], dtype=torch.int32).view(torch.float32)
    payload = torch.tensor([0x7FC00001, 0, 0], dtype=torch.int32).view(torch.float32)
    finding = find("grad", payload, nan)
    assert finding.statistics is not None
    words = "w has NaN of other bytes than in the reference on rank 0"
    assert wording.extent(finding, finding.statistics) == words


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("loss_scale", 65536.0, "2^16"),
        ("scale", 2.0**-20, "2^-20"),
        ("loss_scale", 3.0, "3.0"),
        ("grad", 65536.0, "65536.0"),
        ("loss_scale", 65536, "65536"),
    ],
)
def test_a_scale_is_written_as_a_power(
    find: Callable[..., Finding], kind: str, value: float, words: str
) -> None:
    """Other kinds and integers are written as Python writes them."""
    assert wording.value_of(find(kind, numbers(1), numbers(2)), value) == words


def test_the_rank_that_holds_an_element_is_named(find: Callable[..., Finding]) -> None:
    """Of a shard its owner, of a replica every rank, of a rank's own that rank."""
    halves = [
        Observation("param", "w", numbers(0, n), (4,), Span(2 * n, 2 * n + 2)) for n in (0, 1)
    ]
    finding = find("param", halves, numbers(0, 0, 0, 5))
    assert [wording.where(finding, (n,)) for n in (1, 2)] == [" on rank 0", " on rank 1"]
    replicas = find("param", [numbers(1), numbers(1)], numbers(2))
    assert wording.where(replicas, (0,)) == " on every rank"
    assert wording.where(replicas, None) == ""
    assert wording.rank_of(find("grad", numbers(1), numbers(2)), (0,)) == 0
    torn = find("param", [numbers(1), numbers(2)], numbers(1))
    assert (torn.problem, wording.where(torn, (0,))) == ("replicas", " on rank 1")


def test_statistics_are_worded_as_in_torch_testing(find: Callable[..., Finding]) -> None:
    """With what the criterion allows at the worst element, where it allows anything."""
    sides = numbers(1.0, 4.0, 2.5), numbers(1.0, 2.0, 2.0)
    finding = find("grad", *sides, criterion=close(rtol=0.0, atol=0.5))
    assert wording.statistics_lines(finding) == [
        "Mismatched elements: 2 / 3 (66.7%), 1 beyond the criterion",
        "First at index (1,) on rank 0: 4.0 here, 2.0 in the reference",
        "Worst at index (1,) on rank 0: 4.0 here, 2.0 in the reference (up to 0.5 allowed)",
        "Greatest absolute difference: 2",
        "Greatest relative difference: 1, relative L2 error 0.687",
        "Greatest distance in units in the last place: 8388608",
    ]
    assert "allowed" not in "".join(wording.statistics_lines(find("grad", *sides)))


def test_a_setting_has_no_distance_in_ulp(find: Callable[..., Finding]) -> None:
    """It is chosen, and not computed."""
    for kind, counted in (("lr", False), ("hyper", False), ("grad_norm", True)):
        lines = wording.statistics_lines(find(kind, numbers(1.0), numbers(2.0)))
        assert any("units in the last place" in line for line in lines) is counted


def test_statistics_of_what_is_not_finite_have_counts(find: Callable[..., Finding]) -> None:
    """And no figures, unless finite elements differ, too."""
    lines = wording.statistics_lines(find("grad", numbers(NAN, 1), numbers(2, 1)))
    assert lines[3:] == ["It has 1 NaN in 2 elements, and is finite in the reference"]
    lines = wording.statistics_lines(find("grad", numbers(NAN, 1), numbers(2, 2)), "without delays")
    assert lines[3] == "It has 1 NaN in 2 elements, and is finite without delays"
    assert lines[4] == "Greatest absolute difference: 1"


def test_replicas_are_compared_with_the_first_rank(find: Callable[..., Finding]) -> None:
    """Whatever the other side has; of what is missing, there are no statistics."""
    torn = find("param", [numbers(1), numbers(2)], numbers(1))
    assert wording.statistics_lines(torn)[1] == (
        "First at index (0,) on rank 1: 2.0 here, 1.0 on the first rank"
    )
    assert wording.statistics_lines(find("param", numbers(1), None)) == []
    assert wording.statistics_lines(find("param", numbers(1), numbers(1, 2))) == []


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (numbers(1, 3), "changed param in the candidate: 1 of 2 elements of w, relative L2 error"),
        (numbers(1, NAN), "changed param in the candidate: w is finite, and has 1 NaN in 2 elemen"),
        (numbers(1, 2, 3), "changed the shape of param w in the candidate"),
        (numbers(1, 2).double(), "changed the dtype of param w in the candidate"),
        (None, "added param of w in the candidate"),
    ],
)
def test_a_disturbance_says_what_an_operation_did(
    find: Callable[..., Finding], theirs: Tensor | None, words: str
) -> None:
    """The second value is that from before it."""
    line = wording.disturbance(find("param", numbers(1, 2), theirs, moment=SAVE), "candidate")
    assert line.startswith(f"save after step 2 {words}")
    assert "in the reference" not in line
    assert ("NaN" in line) == line.endswith("before on rank 0")


@pytest.fixture
def sides(write_trace: Write) -> Callable[..., list[Recording]]:
    """Two sides that ran these sequences."""

    def sides(*sequences: str) -> list[Recording]:
        trace = write_trace([(INIT, [])])
        names = ("candidate", "reference")
        return [
            Recording(name, Cell(sequence=sequence), trace)
            for name, sequence in zip(names, sequences, strict=False)
        ]

    return sides


def test_a_prefix_is_named_where_a_weight_is_missing(
    write_trace: Write, sides: Callable[..., list[Recording]]
) -> None:
    """Not of a state, nor of values that differ, nor where the optimizers have other weights."""

    def lines(ours: Sequence[Observation], theirs: Sequence[Observation]) -> list[str]:
        traces = (write_trace([(STEP, side)]) for side in (ours, theirs))
        judgement = judge(*traces, Criteria.of(None))
        assert judgement.first is not None
        both = sides("train1", "train1")
        return wording.name_lines(judgement.first, judgement, *both)

    weight, rate = whole("param", "w", numbers(1)), whole("lr", "w", numbers(1))
    (line,) = lines([], [weight])
    assert line.startswith("Tensors are matched by name. If a wrapper adds a prefix, pass the bare")
    assert lines([weight], [whole("param", "w", numbers(2))]) == []
    assert lines([], [whole("exp_avg", "w", numbers(1))]) == []
    weights = [weight, whole("param", "b", numbers(1))]
    assert lines([*weights, rate], [*weights, whole("lr", "b", numbers(1))]) == []
    assert lines([*weights, rate], weights) == [line]


def test_the_way_to_name_a_model_is_that_of_each_side(
    find: Callable[..., Finding], write_trace: Write
) -> None:
    """A script beside a command has two ways; two scripts have one."""
    trace = write_trace([(STEP, [])])
    judgement = judge(trace, trace, Criteria.of(None))
    for ways, number in (((SCRIPT, COMMAND), 2), ((SCRIPT, SCRIPT), 1)):
        recordings = [Recording("candidate", Cell(), trace, way_in=way) for way in ways]
        lines = wording.name_lines(find("param", numbers(1), None), judgement, *recordings)
        assert [line.partition("prefix, ")[2] for line in lines] == [
            way.named for way in ways[:number]
        ]


@pytest.mark.parametrize(
    ("moment", "sequences", "whose"),
    [
        (Moment(2, "swap", 1, "swap"), ("train-save-swap-train",) * 2, ("candidate", "reference")),
        (
            Moment(3, "train", 2, "optimizer_step"),
            ("train-save-swap-train", "train2"),
            ("candidate",),
        ),
        (
            Moment(1, "train", 2, "optimizer_step"),
            ("train2", "train-save-swap-train"),
            ("reference",),
        ),
        (Moment(1, "save", 1, "save"), ("train-save-swap-train",) * 2, ()),
        (Moment(0, "train", 1, END), ("train-save-swap-train",) * 2, ()),
        (Moment(5, "train", 3, "end"), ("train-save-swap-train-swap-train",) * 2, ()),
    ],
    ids=["at the swap", "candidate's", "reference's", "before", "first step", "swapped back"],
)
def test_a_swap_is_said_of_the_side_that_runs_in_the_others_layout(
    find: Callable[..., Finding],
    sides: Callable[..., list[Recording]],
    moment: Moment,
    sequences: tuple[str, str],
    whose: tuple[str, ...],
) -> None:
    """From the swap on, and until another one moves it back; steps count, not operations."""
    finding = find("param", numbers(1), numbers(2), moment=moment)
    loads = [
        f"the {name}'s checkpoint runs in the {wording.OTHER[name]}'s layout" for name in whose
    ]
    expected = [f"After the swap {', and '.join(loads)}"] if loads else []
    assert wording.swap_lines(finding, *sides(*sequences)) == expected


def test_tensors_that_look_the_same_are_listed(write_trace: Write) -> None:
    """Up to ten names, and how many more there are; a tensor alone has none."""
    names = [f"w{n:02}" for n in range(12)]
    ours, theirs = (
        write_trace([(STEP, [whole("grad", n, s * torch.arange(1.0, 9)) for n in names])])
        for s in (2, 1)
    )
    diagnosis = diagnose(judge(ours, theirs, Criteria.of(None)))
    (line,) = wording.likewise_lines(diagnosis)
    assert line == f"The same of: {', '.join(names[1:11])} and 1 more"
    assert wording.likewise_lines(diagnose_tensor(diagnosis.finding)) == []
