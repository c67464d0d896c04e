"""Two traces are judged in causal order, and whatever is not as it should be is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from pytest_precision import Chunk, Observation, Span, bitwise, close, ulp, unchecked, whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import Judgement, judge
from pytest_precision.parity.explain import spread, wording
from pytest_precision.parity.explain.diagnosis import diagnose
from pytest_precision.parity.explain.locate import divergence_of
from pytest_precision.trace.digests import UNDIGESTED_BYTES, digest
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]
STEPS = [Moment(n - 1, "train", n, "optimizer_step") for n in (1, 2, 3)]


def run(*steps: Sequence[Observation]) -> list[tuple[Moment, Sequence[Observation]]]:
    return list(zip([INIT, *STEPS], steps, strict=False))


def param(*values: float, name: str = "w", dtype: torch.dtype = torch.float32) -> Observation:
    return whole("param", name, torch.tensor(values, dtype=dtype))


def headline(judgement: Judgement) -> str:
    assert judgement.first is not None
    return wording.headline(diagnose(judgement), judgement)


def test_equal_traces_agree(write_trace: Write) -> None:
    """Every pair is counted, with its bytes."""
    trace = write_trace(run([param(1, 2)], [param(3, 4)]))
    judgement = judge(trace, trace, Criteria.of(None))
    assert (judgement.first, judgement.observations, judgement.bytes) == (None, 2, 16)


def test_the_first_divergence_is_the_earliest_moment(write_trace: Write) -> None:
    """A larger difference later is not the cause."""
    ours = write_trace(run([param(1)], [param(1)], [param(1.5)], [param(9)]))
    theirs = write_trace(run([param(1)], [param(1)], [param(1)], [param(1)]))
    judgement = judge(ours, theirs, Criteria.of(None))
    assert judgement.first is not None
    assert judgement.first.pair.moment.step == 2
    assert headline(judgement) == (
        "param differs at step 2 after optimizer_step: w is 1.5 on rank 0, not 1.0; step 1 agreed"
    )


def test_what_is_allowed_stands_beside_the_worst_element(write_trace: Write) -> None:
    """In the words of torch.testing, and only where a distance is allowed."""
    sides = write_trace(run([param(1, 3)])), write_trace(run([param(1, 2)]))
    for criterion, limit in (
        (close(rtol=0.125, atol=0.25), " (up to 0.5 allowed)"),
        (bitwise(), ""),
    ):
        judgement = judge(*sides, Criteria.of(criterion))
        assert judgement.first is not None
        worst = wording.statistics_lines(judgement.first)[2]
        assert worst == f"Worst at index (1,) on rank 0: 3.0 here, 2.0 in the reference{limit}"


def test_within_a_moment_causes_come_first(write_trace: Write) -> None:
    """The moment that a wrong moment feeds is not blamed."""
    moments = [whole("exp_avg", "w", torch.ones(1)), param(1)]
    wrong = [param(2), whole("exp_avg", "w", torch.zeros(1))]
    judgement = judge(write_trace(run([], wrong)), write_trace(run([], moments)), Criteria.of(None))
    assert headline(judgement).startswith("exp_avg differs at step 1")


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (param(1, 2, dtype=torch.bfloat16), "w is bfloat16 here, float32 in the reference"),
        (param(1, 2, 3), "w is [3] here, [2] in the reference"),
        (param(1, 2, name="v"), "param of v is missing from the reference at step 1"),
        (param(1, -2), "1 of 2 elements of w"),
    ],
    ids=["dtype", "shape", "name", "value"],
)
def test_every_kind_of_difference_has_words(
    write_trace: Write, ours: Observation, words: str
) -> None:
    """What is different is said on the first line."""
    judgement = judge(
        write_trace(run([], [ours])), write_trace(run([], [param(1, 2)])), Criteria.of(None)
    )
    assert words in headline(judgement)


@pytest.mark.parametrize("by_digest", [False, True])
def test_the_same_bytes_in_another_dtype_are_another_tensor(
    write_trace: Write, by_digest: bool
) -> None:
    """Zeros have the same bytes in bf16 and in fp16, and so the same digest."""
    sides = []
    for dtype in (torch.bfloat16, torch.float16):
        zeros = torch.zeros(UNDIGESTED_BYTES, dtype=dtype)
        seen = whole("exp_avg", "w", zeros)
        if by_digest:
            seen = seen.with_tensor(zeros.to("meta"), digest(zeros))
        sides.append(write_trace(run([], [seen])))
    first = judge(*sides, Criteria.of(None)).first
    assert first is not None
    assert first.problem == "dtype"


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ((NAN, NAN), (1, 2), "w is all NaN, and is finite in the reference on rank 0"),
        ((1, 2), (NAN, NAN), "w is finite, and is all NaN in the reference on rank 0"),
        ((1, NAN, 3), (NAN, 2, 3), "w has NaN or infinities in other places than in the reference"),
        (
            (1, NAN, INF, INF, 2),
            (1, 1, 1, -INF, 2),
            "w has 1 NaN and 2 infinities in 5 elements, and has 1 infinity in 5 elements in",
        ),
        (
            (NAN, 2),
            (1, 2.5),
            "w has 1 NaN in 2 elements, and is finite in the reference on rank 0, relative L2 "
            "error 0.19 elsewhere",
        ),
    ],
    ids=["candidate", "reference", "elsewhere", "some", "values too"],
)
def test_nan_and_infinities_are_counted(
    write_trace: Write, ours: tuple[float, ...], theirs: tuple[float, ...], words: str
) -> None:
    """They are no distance of 0 from anything, in words, table and report."""
    sides = [write_trace(run([], [param(*values)])) for values in (ours, theirs)]
    judgement = judge(*sides, Criteria.of(None))
    assert words in headline(judgement)
    assert judgement.first is not None
    told = "\n".join(wording.statistics_lines(judgement.first))
    found = divergence_of(diagnose(judgement))
    numbers_differ = "elsewhere" in words
    assert ("Greatest" in told) == numbers_differ == (found.rel_l2 is not None)
    assert numbers_differ or found.ulp is None
    assert "NaN" in told


def test_a_tensor_that_the_candidate_lacks_is_found(write_trace: Write) -> None:
    """Comparing what happens to be there would pass an optimizer without state."""
    ours, theirs = write_trace(run([param(1)])), write_trace(run([param(1), param(1, name="b")]))
    judgement = judge(ours, theirs, Criteria.of(None))
    words = "param of b is missing from the candidate before the first step; the reference has it"
    assert headline(judgement) == words


def test_ranks_that_drift_apart_are_named(write_trace: Write) -> None:
    """Replicas that differ are a divergence of their own, on either side."""
    drifted = write_trace(run([], [param(1, 2)]), run([], [param(1, 3)]))
    sound = write_trace(run([], [param(1, 2)]), run([], [param(1, 2)]))
    words = "rank 1 and rank 0 hold different bits at step 1 after optimizer_step"
    assert (
        headline(judge(drifted, sound, Criteria.of(None)))
        == f"param of w in the candidate: {words}"
    )
    assert (
        headline(judge(sound, drifted, Criteria.of(None)))
        == f"param of w in the reference: {words}"
    )


@pytest.mark.parametrize(
    ("criterion", "agrees"),
    [
        (None, False),
        (bitwise(), False),
        (ulp(0), False),
        (ulp(1), True),
        (close(rtol=1e-6, atol=0), True),
        (close(rtol=1e-9, atol=0), False),
        ({"param": ulp(1)}, True),
        ({"exp_avg": ulp(1)}, False),
        ({"default": ulp(1)}, True),
        (unchecked(reason="a test"), True),
    ],
    ids=str,
)
def test_the_criterion_of_the_kind_decides(
    write_trace: Write, criterion: object, agrees: bool
) -> None:
    """One unit in the last place under every criterion."""
    near = torch.nextafter(torch.ones(2), torch.tensor(2.0))
    ours, theirs = write_trace(run([param(*near.tolist())])), write_trace(run([param(1, 1)]))
    assert (judge(ours, theirs, Criteria.of(criterion)).first is None) == agrees  # type: ignore[arg-type]


def test_a_tensor_is_held_to_the_criterion_of_its_name(write_trace: Write) -> None:
    """A bound for one tensor says nothing of the others of its kind."""

    def biases(query: float, key: float) -> list[Observation]:
        return [whole("grad", name, torch.tensor([v])) for name, v in (("q", query), ("k", key))]

    ours, theirs = write_trace(run(biases(1, 2))), write_trace(run(biases(1, 3)))
    assert judge(ours, theirs, Criteria.of({"grad:k": close(rtol=0, atol=1)})).first is None
    first = judge(ours, theirs, Criteria.of({"grad:q": close(rtol=0, atol=1)})).first
    assert first is not None
    assert first.pair.name == "k"


def test_what_a_name_leaves_out_is_said_once(write_trace: Write) -> None:
    """Tensors of the kind that are not named are compared all the same, at every moment."""
    state = [whole("exp_avg", name, torch.ones(1)) for name in ("up.bias", "qkv.bias", "w")]
    trace = write_trace(run(state, state))
    alone = judge(trace, trace, Criteria.of({"exp_avg:*.bias": unchecked(reason="noise")}))
    assert (alone.observations, alone.left_out) == (2, {"exp_avg:*.bias": "noise"})
    others = judge(
        trace, trace, Criteria.of({"exp_avg": unchecked(reason="noise"), "exp_avg:w": bitwise()})
    )
    assert (others.observations, others.left_out) == (
        2,
        {"exp_avg, except names of their own": "noise"},
    )


def test_kinds_that_are_left_out_say_why(write_trace: Write) -> None:
    """What was not compared is in the table, with the author's reason."""
    ours = write_trace(run([param(1)]), unobservable={"grad": "reduced inside backward"})
    theirs = write_trace(run([whole("grad", "w", torch.ones(1)), param(2)]))
    judgement = judge(ours, theirs, Criteria.of({"param": unchecked(reason="by design")}))
    assert judgement.observations == 0
    assert spread.spread_lines(judgement)[-2:] == [
        "param is not compared: by design",
        "grad is not compared: candidate: reduced inside backward",
    ]


def test_only_kinds_that_are_there_are_left_out(write_trace: Write) -> None:
    """A criterion may name more than a cell has, and its default may be what leaves a kind out."""
    trace = write_trace(run([param(1), whole("lr", "group0", torch.ones(1))]))
    others = unchecked(reason="a test")
    criteria = Criteria.of({"default": others, "amax": others, "lr": bitwise()})
    assert judge(trace, trace, criteria).left_out == {"param": "a test"}


@pytest.mark.parametrize("lacks", ["candidate", "reference"])
def test_a_number_that_one_optimizer_lacks_is_left_out(write_trace: Write, lacks: str) -> None:
    """It is named once, whatever number of parameters has it; what both have is compared."""
    eps = whole("hyper", "eps of w", torch.tensor(1e-8))
    more = [whole("hyper", f"momentum of {name}", torch.tensor(0.9)) for name in "wb"]
    fewer, all_of_them = write_trace(run([eps])), write_trace(run([eps, *more]))
    sides = (fewer, all_of_them) if lacks == "candidate" else (all_of_them, fewer)
    judgement = judge(*sides, Criteria.of(None))
    assert (judgement.first, judgement.observations) == (None, 1)
    assert judgement.left_out == {"hyper momentum": f"the {lacks} has none"}


@pytest.mark.parametrize("lacks", ["candidate", "reference"])
def test_a_number_that_both_have_under_other_names_is_left_out_by_name(
    write_trace: Write, lacks: str
) -> None:
    """Neither side has none of it."""
    bare, wrapped = (
        write_trace(run([whole("hyper", f"eps of {name}", torch.tensor(1e-8)) for name in names]))
        for names in (("w", "c"), ("w", "net.a", "net.b"))
    )
    sides = (bare, wrapped) if lacks == "candidate" else (wrapped, bare)
    judgement = judge(*sides, Criteria.of(None))
    other = "reference" if lacks == "candidate" else "candidate"
    assert judgement.left_out == {
        "hyper eps of net.a and 1 more": f"the {lacks} has none of that name",
        "hyper eps of c": f"the {other} has none of that name",
    }


def test_a_gradient_that_is_read_in_some_steps_is_left_out_there(write_trace: Write) -> None:
    """An optimizer that takes its turn later is not one that reads none."""
    seen = [whole("final_grad", "w", torch.ones(1))]
    ours, theirs = write_trace(run([], seen)), write_trace(run(seen, seen))
    judgement = judge(ours, theirs, Criteria.of(None))
    assert judgement.left_out == {"final_grad w": "the candidate has none in some steps"}


HEAD = "used_param of head.weight"
INSTEAD = (
    "no call of its module was seen in the {}; the weight before the step was compared instead"
)


def forwards(
    *steps: tuple[float | None, float], start: float | None = 1.0
) -> list[tuple[Moment, Sequence[Observation]]]:
    """Make a run of steps: the weight that the forward shows, if any, and that after the update."""
    moments: list[tuple[Moment, Sequence[Observation]]] = []
    if start is not None:
        moments.append((INIT, [param(start, 1, name="head.weight")]))
    for step, (read, after) in enumerate(steps, start=1):
        seen = [] if read is None else [whole("used_param", "head.weight", torch.tensor([read, 1]))]
        moments += [
            (Moment(step - 1, "train", step, "forward_backward"), seen),
            (STEPS[step - 1], [param(after, 1, name="head.weight")]),
        ]
    return moments


@pytest.mark.parametrize("lacks", ["candidate", "reference"])
def test_a_weight_that_is_read_without_a_call_is_the_resident_one(
    write_trace: Write, lacks: str
) -> None:
    """What a side held before the step is compared, and the reader is told."""
    fused = write_trace(forwards((None, 2.0), (None, 3.0)))
    called = write_trace(forwards((1.0, 2.0), (2.0, 3.0)))
    sides = (fused, called) if lacks == "candidate" else (called, fused)
    judgement = judge(*sides, Criteria.of(None))
    assert (judgement.first, judgement.observations) == (None, 5)
    assert judgement.left_out == {HEAD: INSTEAD.format(lacks)}
    assert spread.spread_lines(judgement)[-1] == f"{HEAD} is not compared: {INSTEAD.format(lacks)}"


@pytest.mark.parametrize("lacks", ["candidate", "reference"])
def test_a_resident_weight_that_is_stale_is_found(write_trace: Write, lacks: str) -> None:
    """The forward of a later step reads what the update of the step before has left."""
    fused = write_trace(forwards((None, 2.0), (None, 3.0)))
    called = write_trace(forwards((1.0, 2.0), (2.5, 3.0)))
    sides = (fused, called) if lacks == "candidate" else (called, fused)
    judgement = judge(*sides, Criteria.of(None))
    words = "used_param differs at step 2 after forward_backward: 1 of 2 elements of head.weight"
    assert headline(judgement).startswith(words)


def test_a_module_that_is_called_shows_what_it_read(write_trace: Write) -> None:
    """The right resident weight does not excuse a forward that reads another one."""
    ours = write_trace(forwards((1.0, 2.0), (1.0, 3.0)))
    theirs = write_trace(forwards((1.0, 2.0), (2.0, 3.0)))
    judgement = judge(ours, theirs, Criteria.of(None))
    assert headline(judgement).startswith("used_param differs at step 2")
    assert judgement.left_out == {}


def test_a_weight_that_was_neither_read_nor_held_is_missing(write_trace: Write) -> None:
    """The first line says what was looked for."""
    ours = write_trace([(INIT, [param(1)]), *forwards((None, 2.0), start=None)])
    theirs = write_trace([(INIT, [param(1)]), *forwards((1.0, 2.0), start=None)])
    assert headline(judge(ours, theirs, Criteria.of(None))) == (
        f"{HEAD} is missing from the candidate at step 1 after forward_backward; the reference has "
        "it: no call of its module was seen, and no param of that name before the step"
    )


def gates(
    *reads: float | None, start: Moment | None = INIT
) -> list[tuple[Moment, Sequence[Observation]]]:
    """Make a run of `gate` and `out`, which start alike, and of reads of `head`, tied to `out`."""
    held = [[param(n, 1, name="gate"), param(-n, 1, name="out")] for n in range(len(reads) + 1)]
    moments: list[tuple[Moment, Sequence[Observation]]] = [(start, held[0])] if start else []
    for step, read in enumerate(reads, start=1):
        seen = [] if read is None else [whole("used_param", "head", torch.tensor([read, 1]))]
        moments += [
            (Moment(step - 1, "train", step, "forward_backward"), seen),
            (STEPS[step - 1], held[step]),
        ]
    return moments


@pytest.mark.parametrize("lacks", ["candidate", "reference"])
def test_a_tied_weight_is_told_from_one_that_starts_alike(write_trace: Write, lacks: str) -> None:
    """By the steps after the first one."""
    fused, called = write_trace(gates(None, None, None)), write_trace(gates(0.0, -1.0, -2.0))
    sides = (fused, called) if lacks == "candidate" else (called, fused)
    judgement = judge(*sides, Criteria.of(None))
    assert judgement.first is None
    assert judgement.left_out == {"used_param of head": INSTEAD.format(lacks)}


def test_a_tied_weight_is_found_where_nothing_was_held_before_the_first_step(
    write_trace: Write,
) -> None:
    """The first read is left out, and later ones are compared."""
    evaluated = Moment(0, "eval", 0, "eval")
    fused = write_trace(gates(None, None, None, start=evaluated))
    for last, agrees in ((-2.0, True), (-3.0, False)):
        called = write_trace(gates(0.0, -1.0, last, start=None))
        assert (judge(fused, called, Criteria.of(None)).first is None) == agrees


@pytest.mark.parametrize("last", [-1.0, 2.0])
def test_a_read_that_is_not_of_the_tied_weight_is_found(write_trace: Write, last: float) -> None:
    """An earlier state of it, or the weight that started alike: by then they are told apart."""
    sides = (write_trace(gates(*reads)) for reads in ((None,) * 3, (0.0, -1.0, last)))
    words = "used_param differs at step 3 after forward_backward"
    assert headline(judge(*sides, Criteria.of(None))).startswith(words)


def test_a_window_that_begins_with_the_read_decides_nothing(write_trace: Write) -> None:
    """What was held before is not in it, so the read is left out, and all else is compared."""
    ours = write_trace(forwards((None, 2.0), (None, 3.0), start=None))
    theirs = write_trace(forwards((1.0, 2.0), (2.0, 4.0), start=None))
    judgement = judge(ours, theirs, Criteria.of(None))
    assert headline(judgement).startswith("param differs at step 2")


def test_rank_local_kinds_are_not_compared_between_world_sizes(write_trace: Write) -> None:
    """Two ranks' partial sums have no partners in one rank's."""
    grad = [whole("grad", "w", torch.ones(1), local=True), param(1)]
    judgement = judge(write_trace(run(grad), run(grad)), write_trace(run(grad)), Criteria.of(None))
    assert judgement.first is None
    assert judgement.left_out == {"grad": "every rank has its own, and the world sizes differ"}


def part(rank: int, *values: float) -> list[tuple[Moment, list[Observation]]]:
    """Half of a gradient of 4 elements, whose other half another rank has, of its own."""
    place = Chunk((2 * rank,), (2,))
    return [(INIT, [Observation("grad", "w", torch.tensor(values), (4,), place, local=True)])]


@pytest.mark.parametrize("values", [(3.0, 4.0), (3.0, 5.0)], ids=["alike", "different"])
def test_a_rank_may_hold_a_part_of_a_tensor_of_its_own(
    write_trace: Write, values: tuple[float, ...]
) -> None:
    """The gradient of a split matrix is whole on no rank, and is compared where it is."""
    ours, theirs = (write_trace(part(0, 1.0, 2.0), part(1, *v)) for v in (values, (3.0, 4.0)))
    judgement = judge(ours, theirs, Criteria.of(None))
    assert judgement.left_out == {}
    if values == (3.0, 4.0):
        assert judgement.first is None
    else:
        assert judgement.first is not None
        assert (judgement.first.problem, judgement.first.pair.rank) == ("values", 1)
        assert judgement.first.difference.statistics.worst == (3,)


def test_a_whole_tensor_is_compared_in_whichever_form_it_lies(write_trace: Write) -> None:
    """As a box on one side, and as a span of a flat buffer on the other."""
    flat = Observation("grad", "w", torch.tensor([1.0, 2.0]), (2,), Span(0, 2), local=True)
    boxed = whole("grad", "w", torch.tensor([1.0, 3.0]), local=True)
    judgement = judge(
        write_trace([(INIT, [flat])]), write_trace([(INIT, [boxed])]), Criteria.of(None)
    )
    assert judgement.left_out == {}
    assert judgement.first is not None
    assert judgement.first.problem == "values"


def test_other_parts_of_tensors_of_their_own_are_not_compared(write_trace: Write) -> None:
    """Nothing is to be compared with nothing, and the verdict tells it."""
    whole_of = [(INIT, [whole("grad", "w", torch.ones(4), local=True)])]
    ours, theirs = write_trace(part(0, 1.0, 2.0)), write_trace(whole_of)
    judgement = judge(ours, theirs, Criteria.of(None))
    assert judgement.first is None
    assert judgement.left_out == {
        "grad w": "each rank holds a part of it, and not the same part on both sides"
    }


@pytest.mark.parametrize(("kind", "aside"), [("quantized", True), ("state", False)])
def test_bytes_of_a_part_are_not_compared_with_those_of_the_whole(
    write_trace: Write, kind: str, aside: bool
) -> None:
    """Each rank quantizes its part alone; anything else that one side alone has is missing."""
    parts = write_trace(*([(INIT, [whole(kind, "w", torch.ones(2), local=True)])] for _ in "ab"))
    wholes = write_trace(*([(INIT, [whole(kind, "w", torch.ones(4))])] for _ in "ab"))
    judgement = judge(parts, wholes, Criteria.of(None))
    why = "each rank of one side alone quantizes its part of the weight"
    assert judgement.left_out == ({"quantized w": why} if aside else {})
    assert (judgement.first is None) is aside


def test_the_table_shows_where_it_starts_and_how_it_spreads(write_trace: Write) -> None:
    """Kinds by steps: equal, within the criterion, a share, another dtype."""

    def state(step: int, shift: float, dtype: torch.dtype) -> list[Observation]:
        moment = torch.full((4,), float(step), dtype=dtype)
        moment[:1] += shift
        near = torch.tensor([1.0, 1.0 + (2**-23 if shift else 0)])
        return [whole("exp_avg", "w", moment), whole("lr", "group0", near)]

    ours = write_trace(run([], *(state(s, 0.5 * (s > 1), torch.bfloat16) for s in (1, 2))))
    theirs = write_trace(run([], *(state(s, 0, torch.float32) for s in (1, 2))))
    judgement = judge(ours, theirs, Criteria.of({"lr": ulp(1)}))
    assert spread.spread_lines(judgement) == [
        "kind     dtype     init  1      2",
        "lr       float32   .     =      ~",
        "exp_avg  bfloat16  .     dtype  dtype 25 %",
        "exp_avg: bfloat16 here, float32 in the reference",
    ]


def test_the_table_of_a_long_run_fits_a_terminal(write_trace: Write) -> None:
    """The columns are those around the first divergence."""

    def long(wrong: Tensor) -> list[tuple[Moment, list[Observation]]]:
        return [
            (Moment(n, "train", n + 1, "optimizer_step"), [whole("param", "w", wrong[n])])
            for n in range(60)
        ]

    reference = torch.zeros(60)
    candidate = reference.clone()
    candidate[41:] = 1
    judgement = judge(write_trace(long(candidate)), write_trace(long(reference)), Criteria.of(None))
    header, row = spread.spread_lines(judgement)
    assert header.split()[2:] == ["…", *(str(n) for n in range(40, 50)), "…"]
    assert row.split()[2:6] == ["=", "=", "100", "%"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "best of ReduceLROnPlateau",
            "policy differs after load, which follows step 1: best of ReduceLROnPlateau is 9",
        ),
        ("_step_count of StepLR", ""),
        ("_schedulers.0.stale rates of SequentialLR", ""),
    ],
)
def test_a_schedule_goes_on_after_a_load(write_trace: Write, name: str, words: str) -> None:
    """Rates may follow much later; what a scheduler that is made anew counts anew decides none."""
    four, five, nine = (whole("policy", name, torch.tensor(n), local=True) for n in (4, 5, 9))
    save, load, train = (
        Moment(1, "save", 1, "save"),
        Moment(2, "load", 1, "load"),
        Moment(3, "train", 2, "optimizer_step"),
    )
    moments = [INIT, STEPS[0], save, load, train]
    seen = [param(1)], [param(2), four], [param(2)], [param(2), nine], [param(3), five]
    resumed = write_trace([*zip(moments, seen, strict=True)])
    whole_run = write_trace(run([param(1)], [param(2), four], [param(3), five]))
    for sides in ((resumed, whole_run), (whole_run, resumed)):
        judgement = judge(*sides, Criteria.of(None))
        assert (judgement.first is None) == (not words)
    if words:
        assert headline(judge(resumed, whole_run, Criteria.of(None))).startswith(words)
