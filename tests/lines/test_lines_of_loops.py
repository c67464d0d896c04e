"""A failure of a training loop names the line that made the first wrong value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import in_this_process  # noqa: F401
import pytest
from followed_files import followed
from marked_lines import marked

from pytest_precision import Cell, Parity, ParityError, Verdict, command

ParityIn = Callable[[Cell], Parity]

LOOP = Path(__file__).with_name("loop.py")


def verdict(
    parity: Parity,
    file: Path,
    wrong: str,
    right: str = "nothing",
    runs: Callable[..., Any] = followed,
) -> Verdict:
    with pytest.raises(ParityError) as failure:
        parity.check(runs(file, wrong), runs(file, right))
    return failure.value.verdict


@pytest.mark.parametrize(
    ("wrong", "kind", "away"),
    [
        ("beta", "setting", 0),
        ("batch", "extra", 0),
        ("divide", "missing", 2),
        ("round", "cast", 0),
        ("seed", "data", 0),
        # Of a kind that another one has, or as one of the tests below has it.
        pytest.param("clip", "constant", 0, marks=pytest.mark.nightly),
        pytest.param("mode", "setting", 0, marks=pytest.mark.nightly),
        pytest.param("wipe", "setting", 0, marks=pytest.mark.nightly),
        pytest.param("twice", "setting", 0, marks=pytest.mark.nightly),
        pytest.param("fused", "unknown", 0, marks=pytest.mark.nightly),
    ],
)
def test_the_wrong_line_is_named(parity_here: ParityIn, wrong: str, kind: str, away: int) -> None:
    """The line is the marked one, or the one whose value lacks an operation."""
    found = verdict(parity_here(Cell(sequence="train4")), LOOP, wrong).culprit
    assert found is not None
    assert found.file == str(LOOP.relative_to(Path.cwd()))
    assert found.line == marked(LOOP, wrong) - away, found.text
    assert found.kind == kind, found.text


@pytest.mark.parametrize("precision", ["bf16", "autocast"])
@pytest.mark.parametrize("wrong", ["batch", "clip", "halve"])
def test_the_line_is_named_in_low_precision(
    parity_here: ParityIn, wrong: str, precision: str
) -> None:
    """The recorder watches products in such cells, and the user's lines call torch through that."""
    cell = Cell(sequence="train4", precision="bf16")
    right = followed(LOOP, "nothing", precision)
    with pytest.raises(ParityError) as failure:
        parity_here(cell).check(followed(LOOP, wrong, precision), right)
    found = failure.value.verdict.culprit
    assert found is not None
    assert found.line == marked(LOOP, wrong), found.text


def test_the_text_says_both_constants(parity_in: ParityIn) -> None:
    """The function is torch's, the line is the user's that calls it.

    In processes of the script's own, as users run it.
    """
    found = verdict(parity_in(Cell(sequence="train2")), LOOP, "clip", runs=command).culprit
    assert found is not None
    assert found.text == (
        "first wrong value: aten.mul.Tensor in clip_grad_norm_, called at "
        f"{found.file}:{marked(LOOP, 'clip')}: the reference multiplied by 0.3 here, "
        "the candidate by 100.0"
    )
    assert found.constants == {
        "candidate": {"constant 1": "100.0"},
        "reference": {"constant 1": "0.3"},
    }
    assert [line.number for line in found.source] == [
        *range(marked(LOOP, "clip") - 3, marked(LOOP, "clip") + 4)
    ]


def test_another_kernel_is_told_from_an_error(parity_here: ParityIn) -> None:
    """A fused optimizer rounds otherwise, and the text says that nothing shows it to be wrong."""
    found = verdict(parity_here(Cell(sequence="train2")), LOOP, "fused").culprit
    assert found is not None
    assert found.operation == "aten._fused_adamw_.default"
    assert found.text.endswith(": the reference has no such operation")


REDUCED = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(7, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    losses = model(torch.randn(5, 7)).square()
    loss = getattr(losses, sys.argv[1])()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_loss_is_wrong_where_it_is_reduced(parity_here: ParityIn, tmp_path: Path) -> None:
    """The backward of a sum lacks a division, so that the wrong loss leads to no wrong gradient."""
    file = tmp_path / "reduced.py"
    file.write_text(REDUCED)
    found = verdict(parity_here(Cell(sequence="train2")), file, "sum", "mean").culprit
    assert found is not None
    assert (found.operation, found.line) == ("aten.sum.default", 10)
    assert "which aten.mean.default" in found.text


DIVIDED = """
import sys
import torch

def loss_of(model, inputs):
    return (model(inputs) - inputs).square().mean()

torch.manual_seed(0)
model = torch.nn.Linear(7, 7)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    for microbatch in range(3):
        loss = loss_of(model, torch.randn(5, 7))
        (loss / 3 if sys.argv[1] == "divided" else loss).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_division_is_missing_where_its_backward_starts(
    parity_here: ParityIn, tmp_path: Path
) -> None:
    """The function that computes the loss is the same on both sides, and not to blame."""
    file = tmp_path / "divided.py"
    file.write_text(DIVIDED)
    found = verdict(parity_here(Cell(sequence="train2")), file, "not", "divided").culprit
    assert found is not None
    assert (found.kind, found.line) == ("missing", 14), found.text
    assert "the reference first runs aten.div" in found.text


SCHEDULED = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(7, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
for step in range(2):
    for microbatch in range(3):
        model(torch.randn(5, 7)).square().mean().backward()
        if sys.argv[1] == "inside":
            scheduler.step()
    optimizer.step()
    optimizer.zero_grad()
    if sys.argv[1] == "outside":
        scheduler.step()
"""


@pytest.mark.parametrize(
    ("wrong", "then"),
    [(("inside", "0.1"), "at the first update"), (("outside", "0.2"), "before the first step")],
)
def test_a_rate_that_moved_before_the_first_update_is_said_so(
    parity_here: ParityIn, tmp_path: Path, wrong: tuple[str, str], then: str
) -> None:
    """A script shows its optimizer at the first update; both sides began with the same rate."""
    file = tmp_path / "scheduled.py"
    file.write_text(SCHEDULED)
    with pytest.raises(ParityError) as failure:
        parity_here(Cell(sequence="train2")).check(
            followed(file, *wrong), followed(file, "outside", "0.1")
        )
    assert f"lr differs {then}: weight is " in failure.value.verdict.headline


LOGGED = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(7, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(2):
    outputs = model(torch.randn(5, 7))
    if sys.argv[1] == "logged":
        share = (outputs * 1.5).sigmoid().mean()
        outputs = outputs * 1.1
    loss = outputs.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_figure_for_a_log_is_not_named(parity_here: ParityIn, tmp_path: Path) -> None:
    """Nothing that is observed reads it, and each real change of a script has such lines."""
    file = tmp_path / "logged.py"
    file.write_text(LOGGED)
    found = verdict(parity_here(Cell(sequence="train2")), file, "logged", "plain").culprit
    assert found is not None
    assert (found.operation, found.line) == ("aten.mul.Tensor", 12), found.text
