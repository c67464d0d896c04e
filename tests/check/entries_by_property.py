"""Entries of the catalogue that one property of a workload shows, and that pass without it.

Their classes stand in `planted_by_property`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import planted
import planted_by_property as by_property
from catalogue import PASSED, Layout, Refusal, differs, plant

from pytest_precision import Cell, Engine, Workload, layouts, workloads

TRAIN4, TRAIN = Cell(), Cell(sequence="train")
Made = Callable[..., Workload]


def shown_by(
    defect: type[Engine] | Layout,
    cell: Cell,
    shows: Made,
    lacks: Made,
    why: str,
    refusal: Refusal,
    right: type[Engine] | Layout = Engine,
) -> None:
    """Enter a defect of a candidate twice: with a workload that shows it, and one that cannot.

    Args:
        defect: the engine or the layout that has it.
        cell: of both checks.
        shows: a workload with the property.
        lacks: a workload without it.
        why: what that one lacks.
        refusal: where there is the property.
        right: the same without the defect.
    """
    candidate, reference = (
        partial(planted.planted, kind=side) if isinstance(side, type) else side
        for side in (defect, right)
    )
    name = defect.__name__
    plant(name, candidate, cell, refusal, workload=shows, against=reference)
    plant(
        f"{name} where it does not show",
        *(candidate, cell, PASSED),
        workload=lacks,
        against=reference,
        unseen=f"the workload has no {why}",
    )


shown_by(
    *(by_property.ScalesUp, TRAIN4, workloads.mlp, by_property.NeverQuiet),
    "step whose gradients are below the limit of their norm",
    differs(4, "exp_avg", "reader.weight", phase="optimizer_step"),
)
shown_by(
    *(by_property.MeanOfNothing, TRAIN4, workloads.mlp, by_property.NeverQuiet),
    "microbatch without a token that counts",
    differs(4, "loss", "microbatches", "not finite", "forward_backward"),
    by_property.WeighsMeans,
)
shown_by(
    *(by_property.DecaysFrozen, TRAIN, workloads.mlp, by_property.NothingFrozen),
    "frozen weight",
    differs(1, "param", "blocks.2.linear.weight", "factor", "optimizer_step"),
)
shown_by(
    *(by_property.TrainsFrozen, TRAIN, workloads.mlp, by_property.NothingFrozen),
    "frozen weight",
    differs(0, "lr", "blocks.2.linear.weight", "extra", "init"),
)
shown_by(
    *(by_property.masters_of_rounded, Cell("bf16", sequence="train")),
    *(workloads.mlp, partial(workloads.mlp, rounded=True)),
    "initial value that bf16 does not hold",
    differs(0, "master", "head.weight", "rounded", "init"),
    layouts.master_adamw,
)
shown_by(
    *(by_property.LosesFullBuckets, Cell(sequence="train", world_size=2)),
    *(workloads.mlp, partial(workloads.mlp, width=59)),
    "matrix as large as a bucket",
    differs(1, "reduced_grad", "blocks.0.linear.weight", "replicas", "reduce_grads"),
    by_property.Buckets,
)
shown_by(
    *(by_property.DropsAuxiliary, TRAIN, workloads.moe, by_property.NoAuxiliary),
    "auxiliary loss",
    differs(1, "loss", "microbatches", phase="forward_backward"),
)
shown_by(
    *(by_property.RoundsBuffers, TRAIN, workloads.moe, by_property.NoPrior),
    "buffer that changes a number",
    differs(
        1, "decision", "microbatch3: blocks.1.router: expert of token", phase="forward_backward"
    ),
)
shown_by(
    *(by_property.floored, TRAIN, workloads.moe, partial(workloads.moe, capacity=5.0)),
    "expert that drops tokens beyond its capacity",
    differs(1, "decision", "microbatch0: blocks.0: drop of token", phase="forward_backward"),
)
