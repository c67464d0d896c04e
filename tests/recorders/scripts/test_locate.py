"""Parameters that hold pieces of several logical tensors are shown as these pieces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import partitioned
import pytest
import torch
import torch.distributed as dist
import unchanged
from checked import ParityIn, Recorded, failed, named
from test_steps import loss_of
from torch import nn

from pytest_precision import Cell, script, unchecked
from pytest_precision.check.disagreement import MASTERS_BY_HAND, PARTITIONED, SHARDED_BY_HAND
from pytest_precision.parity.compare.own_gradients import NOT_KNOWN, THEIR_SUM
from pytest_precision.recorders.scripts.matched_places import FlattenedParameters


@pytest.mark.parametrize("loop", [partitioned.flat, partitioned.zero])
def test_a_partition_agrees_with_replicas(
    parity_shared: ParityIn, loop: Callable[..., None]
) -> None:
    """State, rates and gradients of all ranks form the same logical tensors."""
    parity = parity_shared(Cell(sequence="train3", world_size=2))
    verdict = parity.check(loop, partitioned.replicated)
    assert verdict.left_out is not None
    assert {*verdict.left_out} == {"grad"}


def test_gradients_that_are_reduced_in_copies_are_left_out(parity_shared: ParityIn) -> None:
    """They differ between ranks, and what the optimizer reads is their sum, as of replicas."""
    parity = parity_shared(Cell(sequence="train3", world_size=2))
    buffers = unchecked(reason="DDP broadcasts the buffers of rank 0")
    sides = partitioned.unwrapped, partitioned.replicated
    verdict = parity.check(*sides, criterion={"buffer": buffers})
    assert verdict.left_out is not None
    (why,) = {why for kind, why in verdict.left_out.items() if kind.startswith("reduced_grad ")}
    assert why in (THEIR_SUM, NOT_KNOWN)


@script
def of_shards(cell: Cell, record: Callable[..., Any], *, sharded: bool) -> None:
    """Train a layer of which each rank has a shard, without saying so, or all have the same."""
    torch.manual_seed(dist.get_rank() if sharded else 0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record():
        while True:
            model(torch.ones(2, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


@script
def of_masters(cell: Cell, record: Callable[..., Any], *, copied: bool) -> None:
    """Update copies of a layer's weights, or the weights."""
    model = nn.Linear(3, 2)
    masters = [nn.Parameter(own.detach().clone()) for own in model.parameters()]
    optimizer = torch.optim.SGD(masters if copied else model.parameters(), lr=0.1)
    with record():
        while True:
            model(torch.ones(2, 3)).square().mean().backward()
            for own, master in zip(model.parameters(), masters, strict=True):
                master.grad = own.grad
            optimizer.step()
            optimizer.zero_grad()
            if copied:
                model.load_state_dict(dict(zip(("weight", "bias"), masters, strict=True)))


def test_shards_that_no_script_has_named_are_explained(parity_shared: ParityIn) -> None:
    """Ranks that begin with other weights may hold shards."""
    parity = parity_shared(Cell(sequence="train2", world_size=2))
    verdict = failed(parity, *(partial(of_shards, sharded=sharded) for sharded in (True, False)))
    assert "rank 1 and rank 0 hold different bits before the first step" in verdict.reason
    assert any(SHARDED_BY_HAND in line for line in verdict.details)


def test_masters_that_no_module_holds_are_explained(parity_there: ParityIn) -> None:
    """Their names are those of their places in the optimizer, unless the script says others."""
    parity = parity_there(Cell(sequence="train2"))
    verdict = failed(parity, *(partial(of_masters, copied=copied) for copied in (False, True)))
    assert "weight and 1 more here, param_groups.0.params.0" in verdict.reason
    assert any(MASTERS_BY_HAND in line for line in verdict.details)


@pytest.mark.parametrize("keeps", [True, False], ids=["original parameters", "flat ones"])
def test_flat_shards_agree_with_replicas(parity_shared: ParityIn, keeps: bool) -> None:
    """FSDP1 says which part of which parameter each of them is."""
    parity = parity_shared(Cell(sequence="train3", world_size=2))
    flattened = partial(partitioned.flattened, keeps=keeps)
    buffers = unchecked(reason="DDP broadcasts the buffers of rank 0")
    verdict = parity.check(flattened, partitioned.replicated, criterion={"buffer": buffers})
    assert verdict.left_out is not None
    assert {*verdict.left_out} == {"grad", "buffer"}


def test_the_clip_of_flat_shards_is_seen(parity_shared: ParityIn) -> None:
    """Its norm differs where gradients are still equal."""
    parity = parity_shared(Cell(sequence="train2", world_size=2))
    sides = (partial(partitioned.flattened, limit=limit) for limit in (1e-3, 1.0))
    found = failed(parity, *sides).divergence
    assert found is not None
    assert (found.step, found.phase, found.kind) == (1, "clip_grads", "final_grad")


def test_the_clip_of_flat_shards_on_one_rank_is_seen_once(recorded: Recorded) -> None:
    """There it calls torch's function, which is watched by itself."""
    trace = recorded(partial(partitioned.flattened, limit=1.0))
    assert named(trace, "grad_norm") == ["total"]


def test_a_defect_in_one_shard_is_named_by_its_logical_tensor(parity_shared: ParityIn) -> None:
    """Its index is that in the logical tensor, and its rank the one that holds the shard."""
    parity = parity_shared(Cell(sequence="train2", world_size=2))
    broken = partial(partitioned.flat, planted="last rank forgets its gradients")
    found = failed(parity, broken, partitioned.replicated).divergence
    assert found is not None
    assert (found.step, found.kind, found.rank) == (1, "final_grad", 1)
    assert found.name in dict(unchanged.Net().named_parameters())


def test_a_part_is_found_by_its_values(parity_shared: ParityIn) -> None:
    """Where nobody says what a rank's part holds, the parameters' own values do; it is said so."""
    parity = parity_shared(Cell(sequence="train2", world_size=2))
    verdict = parity.check(partial(partitioned.flat, located=False), partitioned.replicated)
    assert verdict.left_out is not None
    (place,) = {*verdict.left_out} - {"grad"}
    assert place == "the place in the model of the optimizer's tensor at param_groups.0.params.0"
    assert "was not told but found" in verdict.left_out[place]


def test_a_defect_in_a_part_that_was_found_is_named(parity_shared: ParityIn) -> None:
    """As in one whose place was told."""
    parity = parity_shared(Cell(sequence="train2", world_size=2))
    broken = partial(partitioned.flat, planted="last rank forgets its gradients", located=False)
    found = failed(parity, broken, partitioned.replicated).divergence
    assert found is not None
    assert (found.step, found.kind, found.rank) == (1, "final_grad", 1)


def test_parts_that_nobody_can_place_are_an_error(parity_shared: ParityIn) -> None:
    """Ranks hold other values of a tensor without a name: it asks for their places, and how."""
    parity = parity_shared(Cell(sequence="train1", world_size=2))
    sides = (f"other values {number}" for number in "12")
    verdict = failed(
        parity, *(partial(partitioned.flat, planted=text, located=False) for text in sides)
    )
    assert verdict.outcome == "error"
    assert "which part of the model each rank's optimizer holds" in verdict.reason
    assert "the candidate's param_groups.0.params.0" in verdict.reason
    assert set(PARTITIONED) <= {line.strip() for line in verdict.details}


A, B, C = torch.arange(1.0, 7).view(2, 3), torch.zeros(2), torch.arange(-2.0, 0)
REST = [("b", (2,), 0, 2), ("c", (2,), 0, 2)]

PLACES = {
    "within one": ([3, 4, 5, 6], [("a", (2, 3), 2, 6)]),
    "over three": (
        [5, 6, 0, 0, -2],
        [("a", (2, 3), 4, 6), ("b", (2,), 0, 2), ("c", (2,), 0, 1)],
    ),
    "with padding": ([6, 0, 0, -2, -1, 7], [("a", (2, 3), 5, 6), *REST, (None, (), 0, 1)]),
    "backwards": ([-2, -1, 0, 0, 1, 2], [*REST[::-1], ("a", (2, 3), 0, 2)]),
    "other values": ([3, 4, 5, 7], None),
    "too few": ([0, -2, -1, 7], None),
}
"""Values of a part, and what lies in it."""


@pytest.mark.parametrize("case", PLACES)
def test_places_by_values(case: str) -> None:
    """A part has its place where all its values are, in the order of the model or its reverse."""
    values, pieces = PLACES[case]
    parameters = [("a", nn.Parameter(A)), ("b", nn.Parameter(B)), ("c", nn.Parameter(C))]
    assert FlattenedParameters(parameters).pieces(torch.tensor(values).double(), 0) == pieces


def test_a_copied_layer_is_placed_by_equal_parts() -> None:
    """Where values are in two places, the rank decides, and where it cannot, nothing is said."""
    layers = [(name, torch.arange(4.0).requires_grad_()) for name in "ab"]
    values = torch.arange(4.0)
    assert FlattenedParameters(layers).pieces(values, 1) == [("b", (4,), 0, 4)]
    assert FlattenedParameters(layers).pieces(values, 2) is None


def flat_script(pieces: object, given: object = None) -> Callable[..., None]:
    """Make a script that updates a copy of two parameters in one tensor of four elements."""

    def loop(cell, record):  # type: ignore[no-untyped-def]
        model = nn.Linear(3, 1)
        flat = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.AdamW([flat], lr=0.1)
        with record(locate=given or (lambda tensor: pieces if tensor is flat else None)):
            while True:
                loss_of(model).backward()
                flat.grad = torch.ones(4)
                optimizer.step()

    return loop


def test_pieces_have_logical_names_and_shapes(recorded: Recorded) -> None:
    """So have the rates and counters of the tensor that holds them."""
    pieces = [("weight", (1, 3), 0, 3), ("bias", [1], 0, 1)]
    trace = recorded(flat_script(pieces), steps=3)
    for kind in ("exp_avg", "master", "final_grad", "lr", "step"):
        assert named(trace, kind, 2) == ["weight", "bias"], kind
    shapes = {
        (e.name, e.shape) for m in trace.moments for e in trace.entries(m) if e.kind == "exp_avg"
    }
    assert shapes == {("weight", (1, 3)), ("bias", (1,))}


def test_several_pieces_of_one_tensor_are_all_shown(recorded: Recorded) -> None:
    """As the columns of a matrix that tensor parallelism splits."""
    pieces = [("weight", (2, 3), 0, 2), ("weight", (2, 3), 3, 5)]
    trace = recorded(flat_script(pieces))
    for kind in ("exp_avg", "master", "final_grad"):
        assert named(trace, kind, 2) == ["weight", "weight"], kind


@pytest.mark.parametrize("nameless", [None, ""])
def test_padding_is_not_shown(recorded: Recorded, nameless: str | None) -> None:
    """It belongs to no logical tensor."""
    trace = recorded(flat_script([("weight", (1, 3), 0, 3), (nameless, (), 0, 1)]))
    assert named(trace, "exp_avg", 2) == ["weight"]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (
            [("weight", (1, 3), 0, 3)],
            r"all 4 elements of param_groups.0.params.0 but got 1 pieces of 3",
        ),
        (
            [("weight", (1, 3), 0, 4)],
            r"lie in their logical tensor but got elements 0 to 4 of 'weight', which has 3",
        ),
        ([("weight", (1, 3), 3, 0)], r"elements 3 to 0 of 'weight'"),
    ],
)
def test_pieces_that_do_not_fit_are_an_error(
    recorded: Recorded, pieces: object, words: str
) -> None:
    """The message names the tensor and both sizes."""
    with pytest.raises(ValueError, match=words):
        recorded(flat_script(pieces))


def test_a_locate_that_is_no_function_is_refused(recorded: Recorded) -> None:
    """The message shows what was given."""
    with pytest.raises(TypeError, match=r"expected a function .* but got locate=3 \(int\)"):
        recorded(flat_script(None, given=3))
