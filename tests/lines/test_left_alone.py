"""What one side leaves alone has a line: a result, an average, a weight, or a stale cast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import in_this_process  # noqa: F401
import pytest
from followed_files import followed

from pytest_precision import Cell, Parity, ParityError

LOOP = """
import sys
import torch

FORM = sys.argv[1]

class Adds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, loss):
        ctx.save_for_backward(loss)
        return values.clone()  # dropped

    @staticmethod
    def backward(ctx, grad):
        (loss,) = ctx.saved_tensors
        return grad, torch.ones_like(loss)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
model[1].requires_grad_(FORM != "frozen")
average = torch.optim.swa_utils.AveragedModel(model)
trained = [one for one in model.parameters() if one.requires_grad]
optimizer = torch.optim.SGD(trained, lr=0.1)  # frozen
model.requires_grad_(True)
for step in range(2):
    hidden = model[0](torch.randn(4, 8))
    if FORM == "dropped":
        Adds.apply(hidden, hidden.square().mean())
    else:
        hidden = Adds.apply(hidden, hidden.square().mean())
    model[1](hidden).square().mean().backward()
    optimizer.step()
    if FORM != "unmoved":
        average.update_parameters(model)  # unmoved
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("dropped", "nothing reads its result, which aten."),
        ("unmoved", "here, a line that the candidate never runs"),
        ("frozen", "weight is in no group here, in the reference it is in one"),
    ],
)
def test_the_line_is_named(
    parity_here: Callable[[Cell], Parity], tmp_path: Path, form: str, words: str
) -> None:
    """Each operation of it makes what the reference has, and none is wrong by itself."""
    file = tmp_path / "left.py"
    file.write_text(LOOP)
    with pytest.raises(ParityError) as failure:
        parity_here(Cell(sequence="train2")).check(followed(file, form), followed(file, "right"))
    culprit = failure.value.verdict.culprit
    assert culprit is not None
    lines = LOOP.splitlines()
    assert culprit.line == next(n for n, line in enumerate(lines, 1) if f"# {form}" in line)
    assert words in culprit.text, culprit.text


CAST = """
import sys
import torch
from contextlib import nullcontext

torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
whole, each = (
    torch.autocast("cpu", torch.bfloat16) if sys.argv[1] == form else nullcontext()
    for form in ("whole", "each")
)
with whole:
    for step in range(3):
        with each:
            outputs = model(torch.randn(16, 8))
        outputs.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("forms", "words"),
    [
        (("whole", "each"), "what it makes of weight at step 1 is stale where aten.addmm.default"),
        (("each", "whole"), "the reference makes none at step 2: aten.addmm.default"),
    ],
)
def test_a_cast_that_outlives_an_update_is_said_of_either_side(
    parity_here: Callable[[Cell], Parity], tmp_path: Path, forms: tuple[str, str], words: str
) -> None:
    """Autocast keeps casts until its context ends, and the side that makes them anew is right."""
    file = tmp_path / "cast.py"
    file.write_text(CAST)
    with pytest.raises(ParityError) as failure:
        parity_here(Cell(sequence="train3", precision="bf16")).check(
            *(followed(file, form) for form in forms)
        )
    culprit = failure.value.verdict.culprit
    assert culprit is not None
    assert (culprit.line, words in culprit.text) == (16, True), culprit.text
