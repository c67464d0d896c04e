"""AutoModel #2248: a policy of mixed precision is taken for a promise about the optimizer's state.

FSDP2's policy says in which dtypes is computed, reduced and returned, but torch's AdamW follows the
dtype that the shards are stored in: a model that is loaded in bf16 trains bf16 weights and moments
under a policy that looks like mixed precision. Reductions were in bf16 by default as well.

The usual test, four losses within 2e-2, passes with one of them and with both.

This one reads the dtypes from recorded runs under every combination of the four, compares bit for
bit what each of them changes, and shows with which ranks and microbatches a reduction can be seen.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fine_tuning import FOUR_LOSSES, FineTuning
from torch import Tensor

from pytest_precision import Cell, Parity, ParityError, Ranks, layouts
from pytest_precision.check.side import Side
from pytest_precision.ranks import ImportPath
from pytest_precision.trace.reader import Trace

pytestmark = pytest.mark.precision_regression("AutoModel#2248")

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}

STATE = ("exp_avg", "exp_avg_sq", "master", "param")

every_policy = partial(
    pytest.mark.precision_matrix,
    reduce_dtype=["fp32", "bf16"],
    output_dtype=[None, "fp32", "bf16"],
    sequence=["train2"],
    world_size=[2],
)

REDUCES_IN_BF16 = partial(layouts.fsdp2, reduce_dtype="bf16")


class Split(FineTuning):
    """The same batches in several microbatches.

    Args:
        count: of a step's microbatches over all ranks; with one each, no gradient is accumulated.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def microbatches(self, cell: Cell, step: int) -> list[tuple[Tensor, Tensor]]:
        ((inputs, targets),) = super().microbatches(cell, step)
        parts = (inputs.tensor_split(self.count), targets.tensor_split(self.count))
        return list(zip(*parts, strict=True))


ACCUMULATED = partial(Split, 6)


@layouts.pure
def recorded(layout: Any, cell: Cell, folder: str) -> None:
    """Record a run, on each rank."""
    ours, workload = ImportPath.of(layout), ImportPath.of(ACCUMULATED, "workload")
    Side.of(ours, ours, workload, cell).record(folder, None)


def dtypes(ranks: Ranks, layout: Any, cell: Cell, folder: Path) -> dict[str, str]:
    """Kind to the dtype that a run on real ranks recorded of it in its last step."""
    ranks.run(recorded, layout, cell, str(folder))
    trace = Trace(folder, cell.world_size)
    last = [moment for moment in trace.moments if moment.step == len(cell.operations)]
    entries = [entry for moment in last for entry in trace.entries(moment)]
    # Options of a group are switches and numbers, no storage.
    seen = {(entry.kind, entry.dtype) for entry in entries if entry.kind != "hyper"}
    assert len(dict(seen)) == len(seen), f"a kind in two dtypes: {sorted(seen)}"
    return dict(seen)


@every_policy(precision=["fp32", "bf16"], primary_weight=["fp32", "bf16"], coverage="pairwise")
@pytest.mark.world_size(2)
def test_adamw_state_is_what_is_stored(ranks: Ranks, cell: Cell, tmp_path: Path) -> None:
    """Whatever is computed, reduced or returned, and with each of the others."""
    expect_state_as_stored(ranks, cell, tmp_path)


@pytest.mark.nightly
@every_policy(precision=["fp32", "bf16"], primary_weight=["fp32", "bf16"])
@pytest.mark.world_size(2)
def test_adamw_state_under_every_policy(ranks: Ranks, cell: Cell, tmp_path: Path) -> None:
    """The same of all four together."""
    expect_state_as_stored(ranks, cell, tmp_path)


def expect_state_as_stored(ranks: Ranks, cell: Cell, tmp_path: Path) -> None:
    """Hold the dtypes of a run under the cell's policy against those of its weights."""
    layout = partial(layouts.fsdp2, reduce_dtype=cell.reduce_dtype, output_dtype=cell.output_dtype)
    seen = dtypes(ranks, layout, cell, tmp_path)
    stored, computed = DTYPES[cell.primary_weight], DTYPES[cell.precision]
    assert {kind: seen[kind] for kind in STATE} == dict.fromkeys(STATE, stored)
    assert (seen["used_param"], seen["reduced_grad"]) == (computed, stored)


@pytest.mark.precision_matrix(
    precision=["bf16"], primary_weight=["bf16"], sequence=["train2"], world_size=[2]
)
@pytest.mark.world_size(2)
@pytest.mark.parametrize(
    ("remainders", "stored_master"), [(False, "float32"), (True, "int16")], ids=["fp32", "int16"]
)
def test_fused_adam_state_is_fp32_on_bf16_storage(
    ranks: Ranks, cell: Cell, tmp_path: Path, remainders: bool, stored_master: str
) -> None:
    """The other recommended pattern: the optimizer has its own masters."""
    layout = partial(layouts.fused_adam, store_param_remainders=remainders)
    seen = dtypes(ranks, layout, cell, tmp_path)
    assert (seen["param"], seen["master_param"]) == ("bfloat16", stored_master)
    for kind in ("exp_avg", "exp_avg_sq", "master"):
        assert seen[kind] == "float32"


@pytest.mark.precision_matrix(
    precision=["bf16"], primary_weight=["bf16"], sequence=["train4"], world_size=[2]
)
def test_four_losses_see_nothing(parity: Parity, cell: Cell) -> None:
    """Neither bf16 storage nor, with it, bf16 reductions."""
    expect_nothing_in_losses(parity, cell)


# Both defects together hide in the test above.
@pytest.mark.nightly
@pytest.mark.precision_matrix(
    precision=["bf16"], primary_weight=["fp32"], sequence=["train4"], world_size=[2]
)
def test_four_losses_see_no_reductions(parity: Parity, cell: Cell) -> None:
    """Nor bf16 reductions alone."""
    expect_nothing_in_losses(parity, cell)


def expect_nothing_in_losses(parity: Parity, cell: Cell) -> None:
    """Compare as the usual test does, with a policy that reduces in bf16."""
    parity.check(
        REDUCES_IN_BF16,
        layouts.fsdp2,
        workload=ACCUMULATED,
        reference_cell=cell.replace(primary_weight="fp32"),
        criterion=FOUR_LOSSES,
    )


@pytest.mark.precision_matrix(
    precision=["bf16"], primary_weight=["bf16"], sequence=["train2"], world_size=[2]
)
def test_bf16_storage_is_seen_before_the_first_step(parity: Parity, cell: Cell) -> None:
    """Held against the same policy on fp32 storage."""
    with pytest.raises(ParityError, match="exp_avg: bfloat16 here, float32 in") as failure:
        parity.check(
            layouts.fsdp2,
            layouts.fsdp2,
            workload=ACCUMULATED,
            reference_cell=cell.replace(primary_weight="fp32"),
        )
    found = failure.value.verdict.divergence
    assert found is not None
    assert (found.kind, found.step, found.signature) == ("master", 0, "dtype")


def expect_reduction(parity: Parity, workload: Any) -> None:
    """The check sees that gradients are reduced in bf16, where they are reduced."""
    with pytest.raises(ParityError, match="reduced_grad differs at step 1") as failure:
        parity.check(REDUCES_IN_BF16, layouts.fsdp2, workload=workload)
    found = failure.value.verdict.divergence
    assert found is not None
    assert (found.kind, found.step) == ("reduced_grad", 1)
    # Its bounds are tried beside rounding noise, which FSDP2's shards have as well.
    assert "They hold for other weights and data, too." in str(failure.value)


@pytest.mark.precision_matrix(
    precision=["bf16"], primary_weight=["fp32"], sequence=["train2"], world_size=[2]
)
def test_bf16_reductions_are_seen_on_fp32_storage(parity: Parity) -> None:
    """A sum of two bf16 gradients is rounded once more than it needs to be."""
    expect_reduction(parity, partial(Split, 2))


@pytest.mark.precision_matrix(precision=["bf16"], primary_weight=["bf16"], world_size=[2])
def test_two_ranks_on_bf16_storage_cannot_see_them(parity: Parity) -> None:
    """The sum of two is rounded once either way: a matrix that ends here proves nothing of it."""
    parity.check(REDUCES_IN_BF16, layouts.fsdp2, workload=partial(Split, 2))


# By day, the sums of the next test have three addends and more, too.
@pytest.mark.nightly
@pytest.mark.precision_matrix(
    precision=["bf16"], primary_weight=["bf16"], sequence=["train2"], world_size=[3]
)
def test_three_ranks_see_them(parity: Parity) -> None:
    """Of three addends the first sum is rounded as well."""
    expect_reduction(parity, partial(Split, 3))


@pytest.mark.precision_matrix(
    precision=["bf16"], primary_weight=["bf16"], sequence=["train2"], world_size=[2]
)
def test_accumulation_sees_them(parity: Parity) -> None:
    """Three microbatches on each of two ranks are summed in the dtype of the reduction."""
    expect_reduction(parity, ACCUMULATED)


@pytest.mark.precision_matrix(precision=["bf16"], primary_weight=["fp32"], world_size=[2])
def test_outputs_in_fp32_change_nothing(parity: Parity) -> None:
    """The upcast is exact, and the loss makes it anyway."""
    returns_fp32 = partial(layouts.fsdp2, output_dtype="fp32")
    parity.check(returns_fp32, layouts.fsdp2, workload=ACCUMULATED)


@pytest.mark.precision_matrix(
    precision=["fp32"], primary_weight=["fp32"], sequence=["train2"], world_size=[2]
)
def test_outputs_in_bf16_are_seen_in_the_first_loss(parity: Parity) -> None:
    """They round what was computed in fp32."""
    returns_bf16 = partial(layouts.fsdp2, output_dtype="bf16")
    with pytest.raises(ParityError, match="loss differs at step 1"):
        parity.check(returns_bf16, layouts.fsdp2, workload=ACCUMULATED)
