"""torchao's optimizers in a plain engine: state in 8 and 4 bits and in fp8, rounding at random.

They run eagerly: compiled, each would take seconds for its first step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from one_step import finish_step

from pytest_precision import Cell, Engine, Parity, ParityError, Workload, layouts, workloads

ParityIn = Callable[[Cell], Parity]

pytest.importorskip(
    "torchao", reason="torchao is not installed: pip install 'pytest-precision[torchao]'"
)

SEQUENCES = {
    "train-eval-train": "train2",
    "train-save-load-train": "train2",
    "train-skip-train": "train2",
    "train2": "train-save-load-train",
}
"""Each with another one that must train to the same bits."""

PARTS = {
    "AdamW8bit": {"codes", "scale", "qmap"},
    "AdamW4bit": {"codes", "scale", "qmap"},
    "AdamWFp8": {"codes", "scale"},
}

# Wide enough for a matrix of 4,096 elements: smaller ones are not quantized.
wide = partial(workloads.mlp, width=128, depth=1)

eagerly = layouts.with_environment(TORCHDYNAMO_DISABLE="1")


# What differs is an axis, so that one group of ranks serves all: each imports torch for itself.
@eagerly
def through_torchao(workload: Workload, cell: Cell) -> Engine:
    """Moments in codes, with a scale for each block of them; or weights in bf16 without a master.

    The weights are rounded to nearest or at random.
    """
    import torchao.optim

    model = workload.model(cell)
    if cell.precision == "bf16":
        model = model.to(torch.bfloat16)
        options = {"bf16_stochastic_round": cell.stochastic}
        made = torchao.optim._AdamW(workload.groups(model), **options)
    else:
        made = getattr(torchao.optim, cell.optimizer)(workload.groups(model))
    return Engine(workload, cell, model, made)


def in_ci(name: str, sequence: str, world_size: int) -> bool:
    """Tell whether a case is in CI: a checkpoint of each, and of the first what else interrupts."""
    interrupted = sequence == "train-save-load-train"
    interrupted |= name == "AdamW8bit" and sequence != "train2"
    # Of two ranks each imports torch for itself.
    return world_size == 1 and interrupted


@pytest.mark.parametrize(
    ("name", "sequence", "world_size"),
    [
        pytest.param(*case, marks=() if in_ci(*case) else pytest.mark.nightly)
        for case in product(PARTS, SEQUENCES, (1, 2))
    ],
)
def test_low_bit_state_is_the_same_whatever_comes_between(
    parity_in: ParityIn, name: str, sequence: str, world_size: int
) -> None:
    """Bit for bit in codes, scales and values."""
    cell = Cell("fp32", sequence=sequence, world_size=world_size, extra=(("optimizer", name),))
    other = cell.replace(sequence=SEQUENCES[sequence])
    sides = through_torchao, through_torchao
    verdict = parity_in(cell).check(*sides, workload=wide, reference_cell=other)
    assert verdict.outcome == "pass"


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("sequence", ["train-eval-train", "train-save-load-train"])
def test_stochastic_rounding_draws_the_same_numbers_again(
    parity_in: ParityIn, sequence: str, world_size: int
) -> None:
    """After an evaluation, and from a checkpoint's generator."""
    extra = (("stochastic", True),)
    cell = Cell("bf16", sequence=sequence, world_size=world_size, extra=extra)
    straight = cell.replace(sequence="train2")
    sides = through_torchao, through_torchao
    parity_in(cell).check(*sides, workload=wide, reference_cell=straight)


def test_stochastic_rounding_is_seen(parity_in: ParityIn) -> None:
    """Where weights are rounded, which is when they are updated first."""
    cell = Cell("bf16", sequence="train2", extra=(("stochastic", True),))
    nearest = cell.replace(stochastic=False)
    sides = through_torchao, through_torchao
    with pytest.raises(ParityError) as failure:
        parity_in(cell).check(*sides, workload=wide, reference_cell=nearest)
    found = failure.value.verdict.divergence
    assert (found.step, found.phase, found.kind) == (1, "optimizer_step", "master")


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(("name", "parts"), PARTS.items())
def test_codes_scales_and_values_are_shown(
    name: str, parts: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value under the state's own name, the rest under names of their own."""
    with torch.compiler.set_stance("force_eager"):
        engine = through_torchao(wide(), Cell("fp32", extra=(("optimizer", name),)))
        engine.forward_backward(1)
        finish_step(engine)
    seen = [*engine.observe("optimizer_step", engine.capture)]
    weight = "blocks.0.linear.weight"
    values = {o.kind: o.tensor for o in seen if o.name == weight}
    assert {f"exp_avg.{part}" for part in parts} <= values.keys()
    assert type(values["exp_avg"]) is torch.Tensor
    state = engine.optimizer.state[engine.model.get_parameter(weight)]["exp_avg"]
    assert torch.equal(values["exp_avg"], state.dequantize())
    assert torch.equal(values["exp_avg.scale"], state.scale)
