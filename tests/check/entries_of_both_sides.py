"""Entries of the catalogue that both sides have: contradictions, and updates by another rule.

Their classes stand in `contradictions` and `wrong_rules`, where ranks import them; those of
`both_sides` and of `fixtures/defects` are entered where they stand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import contradictions as own
import planted
import planted_by_property
import planted_quantization as quantization
import wrong_rules
from both_sides import Small
from catalogue import (
    PASSED,
    Layout,
    Refusal,
    contradicts,
    disturbs,
    plant_in_both,
    proves_nothing,
    wrong_gradient,
    wrong_update,
)

from pytest_precision import Cell, Engine, Workload, workloads
from pytest_precision.probes.identities.consistency import FROZEN

TRAIN2, TRAIN3 = Cell(sequence="train2"), Cell(sequence="train3")
TWO = TRAIN2.replace(world_size=2)
BF16 = Cell("bf16", "bf16", sequence="train2")
FP16 = Cell("fp16", "fp32", sequence="train-skip-train4")
MXFP8 = Cell("mxfp8", "bf16", sequence="train2")
MXFP8_BYTES = MXFP8.replace(primary_weight="quantized")
DELAYED = Cell("fp8_delayed", "bf16", sequence="train2")
DELAYED_BYTES = DELAYED.replace(primary_weight="quantized")

# --- what contradicts itself --------------------------------------------------------------------

NORM = contradicts(1, "grad_norm", "total", "the norm of reduced_grad", factor=0.5)
USED = contradicts(2, "used_param", "temperature", "the param before it", factor=1.5)
SCALE = contradicts(1, "loss_scale", "scale", "what its rule makes of it", factor=2.0)
SUM = contradicts(1, "reduced_grad", "temperature", "the sum of grad over the ranks")
FROZEN_WEIGHT = contradicts(1, "param", "blocks.2.linear.weight", FROZEN, factor=0.9997)
BYTES = "blocks.0.linear.weight.rowwise.data"


def engine(name: str, kind: type[Engine], cell: Cell, refusal: Refusal) -> None:
    """Enter an engine that contradicts itself."""
    layout = partial(own.here, kind=kind)
    plant_in_both(name, layout, cell, refusal, workload=workloads.mlp)


engine("HalfTheNorm", own.HalfTheNorm, TRAIN2, NORM)
engine("HalfTheNorm in fp16", own.HalfTheNorm, FP16, NORM)
engine("OtherWeights", own.OtherWeights, TRAIN2, USED)
engine("OtherWeights in bf16", own.OtherWeights, BF16, USED)
engine(
    "StaleBytes",
    own.StaleBytes,
    MXFP8,
    contradicts(2, "used_quantized", BYTES, "used_param, quantized"),
)
engine("GrowsEachStep", own.GrowsEachStep, FP16, SCALE)
engine("CountsSkipped", own.CountsSkipped, FP16, SCALE._replace(tensor="good_steps", factor=None))
engine("Averaged", own.Averaged, TWO, SUM._replace(factor=0.5, everywhere=True))
engine("LastTwice", own.LastTwice, TWO, SUM._replace(tensor="head.weight", factor=2.0))
engine("PerToken", own.PerToken, TWO, SUM._replace(factor=0.005181, everywhere=True))
engine("DecaysFrozen of both sides", planted_by_property.DecaysFrozen, TRAIN2, FROZEN_WEIGHT)

for name, made, cell, refusal in (
    (
        "GatheredElsewhere",
        own.gathered_elsewhere,
        MXFP8_BYTES,
        contradicts(2, "used_quantized", BYTES, "the master before it, quantized"),
    ),
    (
        "Truncated",
        partial(own.on_masters, kind=own.Truncated),
        BF16,
        contradicts(1, "param", "reader.weight", "its master"),
    ),
    ("TrainsFrozen of both sides", own.trains_frozen, TRAIN2, FROZEN_WEIGHT),
):
    plant_in_both(name, made, cell, refusal, workload=workloads.mlp)

QUANTIZERS = "blocks.0.linear.quantizers.0"
ROLLED = "the history before it, rolled"
OF_HISTORY = contradicts(
    1, "scale", f"{QUANTIZERS}.input", "that of the largest amax of its history", factor=0.5
)

for kind, cell, refusal in (
    (own.RolledBack, DELAYED, contradicts(1, "amax", f"{QUANTIZERS}.input.history", ROLLED)),
    (
        own.HalfTheAmax,
        DELAYED,
        contradicts(
            *(1, "amax", f"{QUANTIZERS}.weight.history"),
            f"{ROLLED}, and the largest amax since",
        ),
    ),
    (own.Halved, DELAYED, OF_HISTORY),
    (own.Halved, DELAYED_BYTES.replace(world_size=2), OF_HISTORY),
    (own.OneStepOld, DELAYED, OF_HISTORY._replace(factor=0.02121)),
    (
        own.NewScale,
        DELAYED,
        contradicts(1, "used_quantized", BYTES, "used_param, quantized with the scale before it"),
    ),
    (
        own.NewScale,
        DELAYED_BYTES,
        contradicts(
            *(1, "quantized", "blocks.0.linear.weight.rowwise"),
            "its master, quantized with the scale before it",
        ),
    ),
):
    plant_in_both(
        f"{kind.__name__} of {cell.primary_weight} weights",
        *(partial(own.delayed, kind=kind), cell, refusal),
        workload=workloads.mlp,
    )

# --- updates by another rule --------------------------------------------------------------------

ADAM = {
    "eps": (1, "master", "eps is added inside the root"),
    "l2": (1, "exp_avg", "weight decay is part of the gradient (L2), not decoupled"),
    "full decay": (
        1,
        "master",
        "weight decay is scaled by the full learning rate, not by the step's",
    ),
    "no decay": (1, "master", "there is no weight decay"),
    "uncorrected": (1, "master", "moments are not corrected for bias"),
    "other group": (1, "master", "the learning rate is that of another parameter group"),
    "next rate": (1, "master", "the learning rate is that of the next step"),
    "last rate": (2, "master", "the learning rate is that of the step before"),
    "step ahead": (1, "master", "steps are counted as one more than were made"),
    "step behind": (2, "master", "steps are counted as one less than were made"),
    "bf16 m": (1, "exp_avg", "exp_avg is rounded to bf16"),
    "fp16 m": (1, "exp_avg", "exp_avg is rounded to fp16"),
    "bf16 v": (1, "exp_avg_sq", "exp_avg_sq is rounded to bf16"),
    "fp16 v": (1, "exp_avg_sq", "exp_avg_sq is rounded to fp16"),
    "bf16 w": (1, "master", "the weight is rounded to bf16"),
    "fp16 w": (1, "master", "the weight is rounded to fp16"),
}
"""What `wrong_rules.Adam` does wrong: the step and the kind in which it shows, and the rule."""

SGD = {
    "decoupled": (1, "momentum_buffer", "weight decay is decoupled, not part of the gradient (L2)"),
    "no decay": (1, "momentum_buffer", "there is no weight decay"),
    "other momentum": (1, "master", "the momentum is Nesterov's"),
    "undampened": (2, "momentum_buffer", "gradients are not dampened"),
    "first dampened": (1, "momentum_buffer", "the first gradient is dampened, too"),
    "rate within": (
        1,
        "momentum_buffer",
        "the learning rate is a factor in the momentum buffer, not of it",
    ),
    "bf16 buffer": (1, "momentum_buffer", "momentum_buffer is rounded to bf16"),
}
"""What `wrong_rules.SGD` does wrong: the step and the kind in which it shows, and the rule."""

FIRST = "reader.weight"


def update(
    name: str, layout: Layout, workload: Callable[..., Workload], step: int, kind: str, rule: str
) -> None:
    """Enter a defect of both sides whose updates are by another rule than the workload's."""
    plant_in_both(name, layout, TRAIN3, wrong_update(step, kind, FIRST, rule), workload=workload)


for wrong, said in ADAM.items():
    update(f"AdamW: {wrong}", partial(wrong_rules.here, wrong=wrong), Small, *said)
for wrong, said in SGD.items():
    made = partial(wrong_rules.sgd_here, wrong=wrong, **wrong_rules.MOMENTUM)
    update(f"SGD: {wrong}", made, wrong_rules.WithSgd, *said)
for how, workload, rule in (
    ("unclipped", workloads.mlp, "gradients are not clipped"),
    (
        "unlimited",
        wrong_rules.Unclipped,
        "gradients below the limit of their norm are scaled up to it",
    ),
    ("one_by_one", workloads.mlp, ""),
):
    update(f"clip: {how}", partial(wrong_rules.clipped, how=how), workload, 1, "exp_avg", rule)

right, other = partial(wrong_rules.here, wrong=""), wrong_rules.other
update("AdamW for L2", right, wrong_rules.WithL2, 1, "exp_avg", SGD["decoupled"][2])
update("AdamW by name", partial(other, kind=wrong_rules.AdamW), Small, 1, "exp_avg_sq", "")
update("AdamW twice", partial(other, kind=wrong_rules.Derived), Small, 1, "exp_avg", "")
plant_in_both(
    "LAMB at half its rate",
    *(partial(other, kind=wrong_rules.LAMB), TRAIN3, PASSED),
    workload=Small,
    unseen="an optimizer of another class may have a formula of its own, so that it is not judged",
)

# --- what else both sides may have --------------------------------------------------------------

for kind in (planted.NeverSteps, planted.ZeroGrads, planted.LossIsNaN):
    plant_in_both(
        f"{kind.__name__} of both sides",
        *(partial(planted.planted, kind=kind), TRAIN2, proves_nothing()),
        workload=workloads.mlp,
    )

for kind, sequence, refusal in (
    (planted.DecaysOnOverflow, "train-skip-train", Refusal("contract")),
    (
        planted.GainsABuffer,
        "train-save-load-train",
        disturbs(1, "buffer", "gained", "extra", "load"),
    ),
):
    plant_in_both(
        f"{kind.__name__} of both sides",
        *(partial(planted.planted, kind=kind), Cell(sequence=sequence), refusal),
        workload=workloads.mlp,
    )

plant_in_both(
    "unquantized",
    *(quantization.unquantized, Cell("mxfp8", sequence="train2"), proves_nothing()),
    workload=workloads.mlp,
)
plant_in_both(
    "Doubles",
    *(
        partial(quantization.planted_main_grad, kind=quantization.Doubles),
        MXFP8_BYTES,
    ),
    wrong_gradient(1, "grad", "temperature", "it is 2 times what it should be"),
    workload=workloads.mlp,
)
