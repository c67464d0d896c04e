"""Entries of the catalogue whose classes stand in `tests/layouts/planted*.py`."""

from __future__ import annotations

from functools import partial

import both_sides
import planted
import planted_quantization as quantization
from catalogue import (
    PASSED,
    Layout,
    differs,
    disturbs,
    plant,
)
from defects.gradients import RoundsBeforeAccumulating

from pytest_precision import Cell, Engine, layouts, workloads


def engine(kind: type[Engine]) -> Layout:
    """Replicated AdamW in fp32 by an engine of another class."""
    return partial(planted.planted, kind=kind)


# --- where a defect first shows -----------------------------------------------------------------

READER = "reader.weight"

for kind, sequence, refusal in (
    (planted.NeverSteps, "train4", differs(1, "step", READER, "missing", "optimizer_step")),
    (
        both_sides.EvalLeavesGradients,
        "train2-eval-train2",
        differs(3, "grad", "head.weight", phase="forward_backward"),
    ),
    (
        both_sides.EvalTouchesMoments,
        "train-eval-train",
        differs(1, "exp_avg_sq", READER, "factor", "evaluate"),
    ),
    (both_sides.LoadsModelOnly, "train-save-load-train", differs(1, "lr", READER, phase="load")),
    (both_sides.LoadsNothing, "train-save-load-train", differs(1, "lr", READER, phase="load")),
    (
        planted.LosesDecayOnLoad,
        "train-save-load",
        differs(1, "hyper", f"weight_decay of {READER}", phase="load"),
    ),
    (
        planted.LosesBetasOnLoad,
        "train-save-load",
        differs(1, "hyper", f"betas.1 of {READER}", phase="load"),
    ),
    (
        planted.LosesEpsOnLoad,
        "train-save-load",
        differs(1, "hyper", f"eps of {READER}", phase="load"),
    ),
    (planted.HalvesTheLastRate, "train2", differs(2, "lr", READER, phase="end")),
    (
        planted.StaysInEvalMode,
        "train-eval-train",
        differs(1, "flag", "head in evaluation mode", "extra", "evaluate"),
    ),
    (planted.StepsOnOverflow, "train-skip-train", differs(1, "step", READER, "factor", "skip")),
    (planted.DecaysOnOverflow, "train-skip-train", differs(1, "lr", READER, phase="skip")),
):
    plant(
        f"{kind.__name__} of the candidate",
        *(engine(kind), Cell(sequence=sequence), refusal),
        workload=workloads.mlp,
    )

for kind, sequence, refusal in (
    (
        planted.DoubledGrads,
        "train2",
        differs(1, "reduced_grad", "head.weight", "factor", "reduce_grads"),
    ),
    (planted.LooksAtOneTensor, "train-skip-train", differs(1, "lr", READER, phase="skip")),
    (
        planted.RankDrift,
        "train2",
        differs(1, "master", "temperature", "replicas", "optimizer_step"),
    ),
):
    plant(
        f"{kind.__name__} of the candidate",
        *(engine(kind), Cell(sequence=sequence, world_size=2), refusal),
        workload=workloads.mlp,
    )

plant(
    "WritesBackwards",
    *(engine(planted.WritesBackwards), Cell(sequence="train-save-load-train"), PASSED),
    workload=workloads.mlp,
    unseen="the layout that wrote the checkpoint reads it in the same wrong order",
)
plant(
    "WritesBackwards for another layout",
    *(engine(planted.WritesBackwards), Cell(sequence="train-save-swap-train")),
    disturbs(1, "master", "blocks.0.linear.weight", "reordered", "load"),
    workload=workloads.mlp,
)
for kind, right, sequence, refusal in (
    (
        planted.AveragesTooFast,
        planted.AveragesWeights,
        "train-save-load",
        differs(1, "state", "average.temperature", "update", "optimizer_step"),
    ),
    (
        planted.LosesTheAverage,
        planted.AveragesWeights,
        "train-save-load",
        differs(1, "state", "average.temperature", phase="load"),
    ),
    (
        planted.LosesTheAverageByItself,
        planted.AveragesByItself,
        "train-save-load",
        differs(1, "state", "average.temperature", phase="load"),
    ),
):
    plant(
        f"{kind.__name__}",
        *(engine(kind), Cell(sequence=sequence), refusal),
        workload=workloads.mlp,
        against=engine(right),
    )

# --- quantized training -------------------------------------------------------------------------

STALE = differs(
    2, "used_quantized", "blocks.0.linear.weight.rowwise.data", "stale", "forward_backward"
)

for kind, cell, refusal in (
    (quantization.StaleWeights, Cell("mxfp8"), STALE),
    (quantization.StaleWeights, Cell("fp8_current"), STALE),
    (
        quantization.ColumnwiseWeights,
        Cell("mxfp8"),
        STALE._replace(step=1, tensor="blocks.0.linear.weight.columnwise.data", rule=""),
    ),
    (
        quantization.ColumnwiseInputs,
        Cell("nvfp4"),
        differs(1, "grad", "blocks.1.linear.weight", phase="forward_backward"),
    ),
    (
        quantization.SameBits,
        Cell("nvfp4"),
        differs(2, "grad", "blocks.1.linear.bias", phase="forward_backward"),
    ),
    (
        quantization.LocalAmaxes,
        Cell("fp8_delayed", world_size=2),
        differs(1, "scale", "blocks.0.linear.quantizers.0.input", "replicas", "optimizer_step"),
    ),
    (
        quantization.ClipsScaled,
        Cell("fp16", "fp32"),
        differs(1, "grad_norm", "total", phase="clip_grads"),
    ),
):
    plant(
        f"{kind.__name__} in {cell.precision}",
        *(partial(quantization.planted_quantized, kind=kind), cell.replace(sequence="train2")),
        refusal,
        workload=workloads.mlp,
    )

for kind, precision, refusal in (
    (
        RoundsBeforeAccumulating,
        "nvfp4",
        differs(1, "grad", "microbatch 0: blocks.0.linear.weight", "rounded", "forward_backward"),
    ),
    (
        quantization.ForgetsAMicrobatch,
        "bf16",
        differs(
            1, "grad", "microbatch 3: blocks.1.linear.bias", "other tensor", "forward_backward"
        ),
    ),
):
    plant(
        f"{kind.__name__} in {precision}",
        partial(quantization.planted_main_grad, kind=kind),
        Cell(precision, "bf16", True, sequence="train2"),
        refusal,
        workload=workloads.mlp,
        against=layouts.master_adamw,
    )
