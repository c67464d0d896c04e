"""One weight for all experts, or one for each: the same training, and one checkpoint format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_precision import Cell, Contract, Engine, Parity, ParityError, layouts, workloads
from pytest_precision.layouts.megatron.optimizer_engine import DistributedOptimizer

ParityIn = Callable[[Cell], Parity]

MOE = partial(workloads.moe, experts=3, depth=1)

EVERYTHING = "train-save-load-eval-skip-train-swap-train"


# In CI, bf16 agrees in `test_world_sizes.py`, and quantized MXFP8 in the regression of Megatron-LM
# 5464, through an evaluation and a checkpoint.
@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.nightly), 3])
@pytest.mark.parametrize(
    ("precision", "primary_weight", "fused", "sequence"),
    [
        pytest.param("bf16", "bf16", False, EVERYTHING, marks=pytest.mark.nightly),
        pytest.param("fp8_delayed", "quantized", False, EVERYTHING, marks=pytest.mark.nightly),
        pytest.param("mxfp8", "quantized", True, EVERYTHING, marks=pytest.mark.nightly),
        ("nvfp4", "bf16", True, "train-save-swap-train"),
    ],
)
def test_grouped_experts_are_discrete_ones(
    parity_in: ParityIn,
    precision: str,
    primary_weight: str,
    fused: bool,
    sequence: str,
    world_size: int,
) -> None:
    """Through every operation, on three ranks too: their gradients are added in rank order."""
    cell = Cell(precision, primary_weight, fused, sequence, world_size)
    verdict = parity_in(cell).check(
        layouts.grouped_experts,
        layouts.discrete_experts,
        workload=MOE,
        contract=Contract(paths=("grouped",)),
    )
    assert verdict.observations > 500


# In CI, they agree in bf16 on four ranks in test_world_sizes.py.
@pytest.mark.nightly
def test_discrete_experts_are_separate_layers(parity_in: ParityIn) -> None:
    """Where both compute their GEMMs alike, a layer of many weights is many layers."""
    cell = Cell("nvfp4", "quantized", True, "train-save-swap-train", 2)
    parity_in(cell).check(layouts.discrete_experts, layouts.distributed_optimizer, workload=MOE)


def test_a_scale_of_moments_is_that_of_a_rank(parity_in: ParityIn) -> None:
    """Each rank scales the fp16 moments of its own shard, so that replicas have none in common."""
    moments = partial(layouts.discrete_experts, exp_avg_dtype="fp16")
    overlapping = partial(moments, overlap_grad_reduce=True)
    cell = Cell("bf16", "bf16", sequence="train2", world_size=2)
    verdict = parity_in(cell).check(moments, overlapping, workload=MOE)
    assert verdict.outcome == "pass"


def test_a_group_of_one_layer_that_is_two_groups_is_refused(parity_in: ParityIn) -> None:
    """The biases of all experts are one tensor, and a tensor has one learning rate."""
    with pytest.raises(
        ParityError, match=r"expected all logical tensors in .* to be in one parameter"
    ):
        parity_in(Cell("bf16", sequence="train")).check(
            layouts.grouped_experts, layouts.discrete_experts, workload=OneExpertFaster
        )


class OneExpertFaster(workloads.moe):  # type: ignore[misc]
    """The first expert has a group of its own."""

    def groups(self, model: torch.nn.Module) -> list[dict[str, object]]:
        first = [p for n, p in model.named_parameters() if ".experts.0." in n]
        rest = [p for n, p in model.named_parameters() if ".experts.0." not in n]
        return [{"params": first, "lr": 2e-2}, {"params": rest, "lr": 1e-2}]


def test_a_workload_without_experts_is_refused(parity_in: ParityIn) -> None:
    """There is nothing to store together."""
    with pytest.raises(ParityError, match=r"mixture\.Experts but got \w+, which has none"):
        parity_in(Cell("bf16")).check(
            layouts.grouped_experts, layouts.discrete_experts, workload=workloads.gpt
        )


def saved(layout: Callable[..., Engine], folder: str) -> dict[str, Tensor]:
    """On a rank: what a checkpoint of two steps has under which names."""
    engine = layout(MOE(), Cell("mxfp8", "quantized"))
    for step in (1, 2):
        engine.forward_backward(step)
        for phase in ("reduce_grads", "clip_grads", "optimizer_step"):
            getattr(engine, phase)()
    engine.save(Path(folder))
    state = engine.state_dict()
    return {**state["master"], **state["model"]}


def test_checkpoints_have_one_format(
    run_on_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """Names of single experts, masters and bytes alike, whichever layout has saved."""
    of_grouped, of_discrete = (
        run_on_ranks(1, saved, layout, str(tmp_path / name))[0]
        for name, layout in (("g", layouts.grouped_experts), ("d", layouts.discrete_experts))
    )
    assert of_grouped.keys() == of_discrete.keys()
    assert "blocks.0.experts.2.up.weight.columnwise.scale" in of_grouped
    assert all(torch.equal(of_grouped[name], of_discrete[name]) for name in of_grouped)


def stored(precision: str, primary_weight: str) -> tuple[list[str], list[tuple[int, ...]]]:
    """On a rank: violations of the storage contract, and the shapes of the experts' weights."""
    engine = layouts.grouped_experts(MOE(), Cell(precision, primary_weight))
    assert isinstance(engine, DistributedOptimizer)
    weights = [p for n, p in engine.model.named_parameters() if n.endswith("experts.up.weight")]
    return [*engine.violations()], [tuple(weight.shape) for weight in weights]


@pytest.mark.parametrize("primary_weight", ["bf16", "quantized"])
def test_one_weight_lies_in_the_buffer(
    run_on_ranks: Callable[..., list[Any]], primary_weight: str
) -> None:
    """All experts are one parameter, and it lies where the distributed optimizer gathers it."""
    ((violations, shapes),) = run_on_ranks(1, stored, "nvfp4", primary_weight)
    assert violations == []
    assert shapes == [(3, 41, 29)]
