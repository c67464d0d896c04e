"""A storage contract is judged beside the numbers: dtypes, paths that were taken, and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pytest_precision import (
    Cell,
    Contract,
    Engine,
    Parity,
    ParityError,
    Workload,
    layouts,
    norm,
    workloads,
)
from pytest_precision.layouts.megatron.optimizer_engine import DistributedOptimizer
from pytest_precision.matrix.contract import DTYPE_NAMES
from pytest_precision.parity.compare import tensors

ParityIn = Callable[[Cell], Parity]

MOE = partial(workloads.moe, experts=3, depth=1)


def judged(
    parity: Parity,
    candidate: Callable[..., Engine],
    reference: Callable[..., Engine],
    contract: Contract | None = None,
) -> tuple[str, str]:
    """Outcome and reason of a check that fails."""
    with pytest.raises(ParityError) as failure:
        parity.check(candidate, reference, workload=MOE, contract=contract)
    return failure.value.verdict.outcome, failure.value.verdict.reason


def test_a_contract_that_is_kept_passes(parity_there: ParityIn) -> None:
    """Dtypes of every kind that it names, and the grouped path."""
    contract = Contract(
        dtypes={"param": "bfloat16", "master": "float32", "reduced_grad": "float32"},
        paths=("grouped",),
    )
    parity_there(Cell("bf16", sequence="train2")).check(
        layouts.grouped_experts, layouts.discrete_experts, workload=MOE, contract=contract
    )


@pytest.mark.parametrize(
    ("kind", "stored", "asked"),
    [("exp_avg", "bfloat16", "float32"), ("master", "float32", "bfloat16")],
)
def test_a_dtype_is_named(parity_there: ParityIn, kind: str, stored: str, asked: str) -> None:
    """Both sides keep bf16 moments of fp32 masters, agree, and the contract says the opposite."""
    low = {"exp_avg_dtype": "bf16"}
    outcome, reason = judged(
        parity_there(Cell("bf16", sequence="train")),
        partial(layouts.discrete_experts, bucket_size=1, **low),
        partial(layouts.discrete_experts, **low),
        Contract(dtypes={kind: asked}),
    )
    assert outcome == "fail"
    assert reason.startswith(f"test: {kind} ")
    assert f"is {stored}, the contract says {asked} in the candidate" in reason


def test_a_path_that_was_not_taken_proves_nothing(parity_there: ParityIn) -> None:
    """Discrete weights on both sides say nothing of a grouped one."""
    outcome, reason = judged(
        parity_there(Cell("bf16", sequence="train2")),
        partial(layouts.discrete_experts, bucket_size=1),
        layouts.discrete_experts,
        Contract(paths=("grouped",)),
    )
    assert outcome == "vacuous"
    assert "asks for the path grouped, which was not taken in the candidate" in reason


def test_a_kind_that_nobody_observed_proves_nothing(parity_there: ParityIn) -> None:
    """A misspelt kind is no kept promise."""
    outcome, reason = judged(
        parity_there(Cell("bf16", sequence="train2")),
        layouts.grouped_experts,
        layouts.discrete_experts,
        Contract(dtypes={"masters": "float32"}),
    )
    assert outcome == "vacuous"
    assert "the contract names the dtype of masters, which was not observed" in reason


def unfused(workload: Workload, cell: Cell, *, bucket_size: int) -> Engine:
    """A layout that ignores what the cell says of fusion."""
    plain = cell.replace(grad_accum_fusion=False)
    return layouts.discrete_experts(workload, plain, bucket_size=bucket_size)


def test_a_cell_that_says_fused_must_fuse(parity_there: ParityIn) -> None:
    """By itself, without a contract in the check."""
    outcome, reason = judged(
        parity_there(Cell("bf16", grad_accum_fusion=True, sequence="train2")),
        partial(unfused, bucket_size=1),
        partial(unfused, bucket_size=2),
    )
    assert outcome == "vacuous"
    assert "asks for the path fused, which was not taken in the candidate" in reason


def unquantized(workload: Workload, cell: Cell, *, bucket_size: int) -> Engine:
    """A layout that quantizes in every forward, and stores bf16."""
    plain = cell.replace(primary_weight="bf16")
    return layouts.discrete_experts(workload, plain, bucket_size=bucket_size)


def test_a_cell_that_says_quantized_must_store_bytes(parity_there: ParityIn) -> None:
    """Quantizing on the fly is another cell."""
    outcome, reason = judged(
        parity_there(Cell("mxfp8", "quantized", sequence="train2")),
        partial(unquantized, bucket_size=1),
        partial(unquantized, bucket_size=2),
    )
    assert outcome == "vacuous"
    assert "asks for the path quantized, which was not taken in the candidate" in reason


def in_fp32(
    workload: Workload, cell: Cell, *, foreach: bool, dtype: torch.dtype = torch.float32
) -> Engine:
    """A layout that stores fp32 parameters, or those of another dtype, whatever the cell says."""
    model = workload.model(cell).to(dtype)
    return Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model), foreach=foreach))


def test_a_cell_says_what_parameters_are_stored_in(parity_there: ParityIn) -> None:
    """Two runs in fp32 agree, and no parameter of them is bf16."""
    with pytest.raises(ParityError) as failure:
        parity_there(Cell("bf16", sequence="train2")).check(
            partial(in_fp32, foreach=False), partial(in_fp32, foreach=True), workload=MOE
        )
    reason = failure.value.verdict.reason
    assert "no param is stored in bfloat16, but all in float32, in the candidate" in reason
    assert "primary_weight=bf16 asks for that: cast the model, or name" in str(failure.value)


def test_a_reference_that_is_stored_otherwise_is_told_of_its_own_cell(
    parity_there: ParityIn,
) -> None:
    """The candidate is as the cell says."""
    with pytest.raises(ParityError, match=r"in the reference") as failure:
        parity_there(Cell("bf16", "fp32", sequence="train2")).check(
            partial(in_fp32, foreach=False),
            partial(in_fp32, foreach=True, dtype=torch.bfloat16),
            workload=partial(workloads.mlp, depth=1),
            criterion=norm(rel=0.2, check_dtype=False),
        )
    assert "reference_cell=cell.replace(primary_weight='bf16')" in str(failure.value)


class Elsewhere(DistributedOptimizer):
    """Before it trains, one parameter moves out of its buffer."""

    def forward_backward(self, step: int) -> None:
        self.model.head.weight.data = self.model.head.weight.detach().clone()
        super().forward_backward(step)

    def update_weights(self) -> None:
        super().update_weights()
        slot = next(s for b in self.buffers for s in b.slots if s.name == "head.weight")
        slot.parameter.data.copy_(self.buffers[0].view(slot, self.buffers[0].params))


class FreshParameter(DistributedOptimizer):
    """A module gets a new parameter with the same value; see Megatron-LM #5464."""

    def violations(self) -> Iterator[str]:
        kept = self.model.head.weight
        self.model.head.weight = nn.Parameter(kept.detach())
        self.model.head.weight.main_grad = kept.main_grad
        yield from super().violations()
        self.model.head.weight = kept


class StrangeOptimizer(DistributedOptimizer):
    """The optimizer holds a tensor that nothing is gathered from."""

    def violations(self) -> Iterator[str]:
        params = self.optimizer.param_groups[0]["params"]
        params[0], kept = params[0].clone(), params[0]
        yield from super().violations()
        params[0] = kept


def made(workload: Workload, cell: Cell, *, engine: type[DistributedOptimizer]) -> Engine:
    """The distributed optimizer as one of the above."""
    return engine.of(workload, cell)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (Elsewhere, "parameter head.weight does not lie in its buffer"),
        (FreshParameter, "head.weight of the model is not the parameter that the optimizer"),
        (StrangeOptimizer, "the optimizer holds tensors that are no masters of the model's"),
    ],
)
def test_memory_that_is_not_the_buffers_is_named(
    parity_there: ParityIn, engine: type[DistributedOptimizer], words: str
) -> None:
    """Also where every number is right, for now."""
    outcome, reason = judged(
        parity_there(Cell("bf16", sequence="train2")),
        partial(made, engine=engine),
        layouts.distributed_optimizer,
    )
    assert outcome == "fail"
    assert words in reason
    assert reason.endswith("in the candidate")


def test_a_broken_promise_is_no_matter_of_the_marker(parity_there: ParityIn) -> None:
    """The layout has made it; no other primary_weight would keep it."""
    with pytest.raises(ParityError) as failure:
        parity_there(Cell("bf16", sequence="train2")).check(
            partial(made, engine=StrangeOptimizer), layouts.distributed_optimizer, workload=MOE
        )
    assert "asks for that" not in str(failure.value)


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ("fp32", r"but got master='fp32' \(str\); write 'float32'"),
        ("torch.float32", r"but got master='torch.float32' \(str\); write 'float32'"),
        ("floa32", r"but got master='floa32' \(str\); use one of float64, float32, float16, "),
        ("half", r"but got master='half' \(str\); use one of float64, float32, float16, "),
    ],
)
@pytest.mark.parametrize("where", ["dtypes", "some"])
def test_a_dtype_that_torch_does_not_know_is_refused(where: str, dtype: str, words: str) -> None:
    """No tensor has it, which must not look like a fault of the run."""
    with pytest.raises(ValueError, match=words):
        Contract(**{where: {"master": dtype}})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dtypes": {"master": torch.float32}}, r"master=torch.float32 \(dtype\); write 'float32'"),
        ({"dtypes": {"master": None}}, r"but got master=None \(NoneType\); use one of float64, "),
        ({"dtypes": ("master", "float32")}, r"expected a mapping .* got dtypes=\('master', 'floa"),
        ({"some": "float32"}, r"got some='float32' \(str\); write some=\{'master': 'float32'\}"),
        ({"paths": "grouped"}, r"got paths='grouped' \(str\); write paths=\('grouped',\)"),
    ],
    ids=["a dtype", "None", "a pair", "a name", "a path"],
)
def test_a_contract_of_other_types_is_refused(given: dict[str, Any], words: str) -> None:
    """Where it is written, with what to write instead."""
    with pytest.raises(TypeError, match=words):
        Contract(**given)


def test_the_dtypes_of_a_contract_are_those_that_are_compared() -> None:
    """By torch's names: the list cannot be made from torch, which collecting must not import."""
    assert {getattr(torch, name) for name in DTYPE_NAMES} == set(tensors.COMPARABLE)


def test_what_is_no_contract_is_refused(parity_there: ParityIn) -> None:
    """Before anything is run."""
    with pytest.raises(TypeError, match=r"expected a Contract but got contract=\{'master'"):
        parity_there(Cell()).check(
            layouts.fsdp2,
            layouts.adamw,
            workload=workloads.moe,
            contract={"master": "float32"},  # type: ignore[arg-type]
        )


def test_a_path_that_no_engine_declares_is_refused() -> None:
    """Where the contract is written, not where it is judged."""
    with pytest.raises(ValueError, match=r"to be one of fused, grouped, quantized but got"):
        Contract(paths=("fuse",))


class Autocast(Engine):
    """A loop of the user's own, which computes the loss inside autocast, or forgets to."""

    def __init__(self, workload: Workload, cell: Cell, *, enabled: bool, foreach: bool) -> None:
        model = workload.model(cell)
        optimizer = torch.optim.AdamW(workload.groups(model), foreach=foreach)
        super().__init__(workload, cell, model, optimizer)
        self.enabled = enabled

    def forward_backward(self, step: int) -> None:
        """Forward in autocast, backward in it too."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.enabled):
            super().forward_backward(step)


@pytest.mark.parametrize("workload", [MOE, workloads.mlp])
def test_autocast_on_fp32_weights_computes_in_bf16(
    parity_there: ParityIn, workload: Callable[[], Workload]
) -> None:
    """The cell says what is computed in, and fp32 what is stored."""
    parity_there(Cell("bf16", "fp32", sequence="train2")).check(
        partial(Autocast, enabled=True, foreach=False),
        partial(Autocast, enabled=True, foreach=True),
        workload=workload,
    )


def test_a_cell_that_says_bf16_must_compute_in_it(parity_there: ParityIn) -> None:
    """Two runs agree bit for bit whose autocast is off, and say nothing of bf16."""
    outcome, reason = judged(
        parity_there(Cell("bf16", "fp32", sequence="train2")),
        partial(Autocast, enabled=False, foreach=False),
        partial(Autocast, enabled=False, foreach=True),
    )
    assert outcome == "vacuous"
    assert (
        "nothing was computed in bfloat16 (matrix products were in float32), but the precision "
        "is bf16 in the candidate"
    ) in reason
