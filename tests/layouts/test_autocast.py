"""fp32 parameters under torch.autocast: what a loop that is written out computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch

from pytest_precision import Cell, Parity, ParityError, layouts, script, unchecked, workloads

ParityIn = Callable[[Cell], Parity]
BF16 = Cell("bf16", "fp32", sequence="train2")
OF_A_SCRIPT = {
    "loss": unchecked(reason="a script does not number microbatches over all ranks"),
    "rng": unchecked(reason="an engine starts with the generator as it was before its model"),
}


ONE_BLOCK = partial(workloads.gpt, depth=1)


class Gpt(workloads.gpt):
    """The ready workload with the clip of most loops."""

    clip = "torch"


@script
def written_out(cell, record):  # type: ignore[no-untyped-def]
    """As torch's tutorial has it: the forward inside, the loss and the backward outside."""
    workload = Gpt()
    model = workload.model(cell)
    optimizer = torch.optim.AdamW(workload.groups(model))
    scheduler = workload.scheduler(optimizer)

    def forward(*inputs):  # type: ignore[no-untyped-def]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(*inputs)

    with record():
        for step in itertools.count(1):
            data = workload.microbatches(cell, step)
            tokens = sum(map(workload.tokens, data))
            for microbatch in data:
                (workload.loss(forward, microbatch)[0] / tokens).backward()
            clipped = [p for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(clipped, workload.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


def test_it_is_the_loop_of_most_scripts(parity_in: ParityIn) -> None:
    """Bit for bit, with gradients, moments and weights in fp32."""
    verdict = parity_in(BF16).check(
        layouts.autocast, written_out, workload=Gpt, criterion=OF_A_SCRIPT
    )
    assert verdict.observations > 100


# In CI, the one that has a loss scale beside its weights.
@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.nightly), "fp16"])
def test_a_checkpoint_changes_nothing(parity_in: ParityIn, precision: str) -> None:
    """On two ranks, with the loss scale that fp16 needs."""
    cell = Cell(precision, "fp32", sequence="train2-save-load-train", world_size=2)
    parity_in(cell).check(
        layouts.autocast,
        layouts.autocast,
        workload=workloads.mlp,
        reference_cell=cell.replace(sequence="train3"),
    )


def test_it_is_not_a_model_whose_weights_are_cast(parity_in: ParityIn) -> None:
    """Norms are computed in fp32, so the two differ from the first loss on."""
    weights = {"used_param": unchecked(reason="autocast casts out of sight")}
    with pytest.raises(ParityError, match="loss differs at step 1 after forward_backward"):
        parity_in(BF16.replace(sequence="train")).check(
            layouts.autocast, layouts.adamw, workload=ONE_BLOCK, criterion=weights
        )
