"""The same defects in cells that are quantized."""

from __future__ import annotations

from functools import partial

from catalogue import (
    plant_in_both,
    wrong_gradient,
)

from both_sides.entries import (
    ENTRIES,
    planted,
)

for name, precision, refusal in (
    ("DropsLast", "nvfp4", wrong_gradient(1, "grad", "temperature", "microbatch 5 is left out")),
    (
        "RepeatsFirst",
        "fp8_block",
        wrong_gradient(1, "grad", "temperature", "microbatch 0 counts twice"),
    ),
    (
        "NeverDivided",
        "fp8_delayed",
        wrong_gradient(1, "grad", "temperature", "it is not divided by the tokens"),
    ),
    (
        "DividedTwice",
        "mxfp8",
        wrong_gradient(1, "grad", "temperature", "it is divided by the microbatches, too"),
    ),
    (
        "AlwaysTheFirst",
        "fp8_current",
        wrong_gradient(
            1,
            "grad",
            "reader.weight",
            "its microbatches count 6",
        ),
    ),
    (
        "StepBefore",
        "mxfp8",
        wrong_gradient(1, "loss", "microbatch 0", "the microbatches are those of the evaluation"),
    ),
    (
        "DataFromTheStart",
        "fp8_block",
        wrong_gradient(3, "loss", "microbatch 0", "the microbatches are those of step 1"),
    ),
    (
        "DoubledExperts",
        "mxfp8",
        wrong_gradient(
            1, "grad", "blocks.0.experts.0.up.weight", "it is 2 times what it should be"
        ),
    ),
    (
        "NegatedExpert",
        "nvfp4",
        wrong_gradient(
            1, "grad", "blocks.0.experts.0.up.weight", "it is -1 times what it should be"
        ),
    ),
    (
        "LostExpert",
        "fp8_delayed",
        wrong_gradient(
            1, "grad", "blocks.0.experts.1.up.weight", "it is 0 times what it should be"
        ),
    ),
    (
        "TiedTwice",
        "fp8_current",
        wrong_gradient(
            1,
            "grad",
            "embedding.weight",
            "it is 2 times what it should be, as only the tied weight is",
        ),
    ),
):
    entry = ENTRIES[name]
    plant_in_both(
        f"{name} in {precision}",
        *(
            partial(planted, name=name),
            entry.cell.replace(precision=precision, primary_weight="bf16"),
        ),
        refusal,
        workload=entry.workload,
    )
