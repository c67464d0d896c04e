"""Real torch layouts agree bit for bit where they should, and what they cannot do they refuse."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from planted import no_engine

from pytest_precision import Cell, Parity, ParityError, layouts, workloads

ParityIn = Callable[[Cell], Parity]

# Of blocks one is enough: `mlp` has several.
SMALL_GPT, SMALL_MOE = (partial(made, depth=1) for made in (workloads.gpt, workloads.moe))
WORKLOADS = {"mlp": workloads.mlp, "gpt": workloads.gpt, "moe": SMALL_MOE}


@pytest.mark.parametrize(
    ("workload", "world_size"),
    [
        ("mlp", 2),
        # In CI, test_workload_ranks.py has gradients of FSDP2 in each workload.
        *(pytest.param(workload, 2, marks=pytest.mark.nightly) for workload in ("gpt", "moe")),
        *(pytest.param(workload, 1, marks=pytest.mark.nightly) for workload in WORKLOADS),
    ],
)
def test_fsdp2_in_fp32_is_replicated_adamw(
    parity_in: ParityIn, workload: str, world_size: int
) -> None:
    """Through every operation that there is."""
    sequence = "train-save-load-eval-skip-train-swap-train"
    verdict = parity_in(Cell(sequence=sequence, world_size=world_size)).check(
        layouts.fsdp2, layouts.adamw, workload=WORKLOADS[workload]
    )
    assert verdict.outcome == "pass"
    assert verdict.observations > 500


# In CI, the test above has fsdp2 save and load the same workload on as many ranks.
@pytest.mark.parametrize("layout", ["adamw", pytest.param("fsdp2", marks=pytest.mark.nightly)])
def test_a_checkpoint_changes_nothing(parity_in: ParityIn, layout: str) -> None:
    """Each rank goes on with its own: the expert counters of `moe` are another on every rank."""
    cell = Cell(sequence="train-save-load-train", world_size=2)
    parity_in(cell).check(
        getattr(layouts, layout),
        getattr(layouts, layout),
        workload=SMALL_MOE,
        reference_cell=cell.replace(sequence="train2"),
    )


# In CI, DDP casts likewise for delayed scaling in test_precisions.py.
@pytest.mark.parametrize("layout", [pytest.param("ddp", marks=pytest.mark.nightly), "fsdp2"])
def test_bf16_compute_on_fp32_storage_is_one_computation(parity_in: ParityIn, layout: str) -> None:
    """Casting in the forward and gathering in bf16 are the same, on three ranks too."""
    cell = Cell("bf16", "fp32", sequence="train2", world_size=3)
    parity_in(cell).check(getattr(layouts, layout), layouts.adamw, workload=SMALL_GPT)


# In CI, regressions/test_automodel_2248.py has the same of two ranks.
@pytest.mark.nightly
def test_the_root_casts_its_output(parity_in: ParityIn) -> None:
    """Blocks hand on what they computed; the loss is computed in fp32 either way."""
    cell = Cell("bf16", "fp32", sequence="train")
    candidate = partial(layouts.fsdp2, output_dtype="fp32")
    parity_in(cell).check(candidate, layouts.fsdp2, workload=SMALL_GPT)


def test_ddp_overwrites_buffers_and_is_seen_to(parity_in: ParityIn) -> None:
    """Torch broadcasts rank 0's expert counters before every forward: a real difference."""
    with pytest.raises(ParityError, match="buffer differs at step 2") as failure:
        parity_in(Cell(sequence="train2", world_size=2)).check(
            layouts.ddp, layouts.adamw, workload=SMALL_MOE
        )
    assert failure.value.verdict.divergence is not None
    assert failure.value.verdict.divergence.rank == 1


@pytest.mark.parametrize(
    ("layout", "axes", "words"),
    [
        ("adamw", {"precision": "fp16"}, "knows primary_weight fp32 in fp16 but .*='fp16'"),
        ("ddp", {"primary_weight": "quantized", "precision": "nvfp4"}, "weight='quantized'"),
        ("fsdp2", {"grad_accum_fusion": True}, "knows grad_accum_fusion False"),
        ("master_adamw", {}, "knows precision bf16, fp16, .* but .* precision='fp32'"),
        (
            "master_adamw",
            {"precision": "bf16", "primary_weight": "fp32"},
            "knows primary_weight bf16 in bf16 but .* primary_weight='fp32'",
        ),
        (
            "master_adamw",
            {"precision": "fp16", "grad_accum_fusion": True},
            "knows grad_accum_fusion False in fp16",
        ),
    ],
)
def test_what_a_layout_cannot_do_it_refuses(
    parity_in: ParityIn, layout: str, axes: dict[str, object], words: str
) -> None:
    """A cell must not pass by running something else than it says."""
    cell = Cell(**axes)  # type: ignore[arg-type]
    with pytest.raises(ParityError, match=words) as failure:
        parity_in(cell).check(
            getattr(layouts, layout),
            layouts.adamw,
            workload=workloads.mlp,
            reference_cell=Cell(world_size=2),
        )
    assert failure.value.verdict.outcome == "error"


def test_unequal_train_steps_are_refused(parity_in: ParityIn) -> None:
    """Before anything runs, with a verdict of its own for the report."""
    parity = parity_in(Cell(sequence="train2-eval-train2"))
    words = r"the same number of train steps .* got 4 .*='train2-eval-train2' and 3 .*='train3'"
    with pytest.raises(ParityError, match=words):
        parity.check(
            layouts.adamw,
            no_engine,
            workload=workloads.mlp,
            reference_cell=Cell(sequence="train3"),
        )
    assert [verdict.outcome for verdict in parity.verdicts] == ["error"]


def shard_sizes() -> list[int]:
    """On a rank: the number of elements of each of its shards of the smallest workload."""
    from torch.distributed.tensor import DTensor

    engine = layouts.fsdp2(workloads.mlp(), Cell(world_size=3))
    shards = [parameter for _, parameter in engine.masters()]
    assert all(isinstance(shard, DTensor) for shard in shards)
    return [shard.to_local().numel() for shard in shards]  # type: ignore[attr-defined]


def test_shards_are_uneven_and_some_are_empty(run_on_ranks: Callable[..., list[Any]]) -> None:
    """The agreement above is one of shards that a wrong offset would not survive."""
    sizes = run_on_ranks(3, shard_sizes)
    by_parameter = list(zip(*sizes, strict=True))
    assert any(len(set(held)) > 1 for held in by_parameter)
    assert any(0 in held for held in by_parameter)


def test_a_layout_that_cannot_travel_is_refused(parity_in: ParityIn) -> None:
    """What cannot be imported on a rank is refused before anything runs."""
    with pytest.raises(TypeError, match="a lambda has no import path"):
        parity_in(Cell()).check(lambda w, c: None, layouts.adamw, workload=workloads.mlp)
