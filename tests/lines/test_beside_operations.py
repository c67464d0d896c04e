"""What a loop does beside its operations: it cuts graphs, drops gradients and goes over batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import in_this_process  # noqa: F401
import pytest
import torch
from followed_files import followed
from logged_blocks import operations
from torch import nn

from pytest_precision import Cell, Parity, ParityError, Verdict
from pytest_precision.probes.lines.explain.calls import calls
from pytest_precision.probes.lines.operations import DETACH


def test_a_scaler_divides_each_gradient_by_itself() -> None:
    """Whether all of them are finite it makes of all of them, beside its list."""
    gradients = [torch.arange(3.0), torch.arange(5.0)]
    flag, factor = torch.zeros(1), torch.full((1,), 0.5)
    with operations() as logger:
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, flag, factor)
    first, second, whole = calls(logger.log)
    assert [call.read[0].shape for call in (first, second)] == [(3,), (5,)]
    assert [call.results[0].shape for call in (first, second, whole)] == [(3,), (5,), (1,)]
    assert [value.shape for value in whole.read] == [(3,), (5,), (1,), (1,)]


def test_a_value_that_leaves_a_graph_is_logged() -> None:
    """What has no graph leaves none, and torch's own calls are no line of a user's."""
    with operations() as logger:
        (torch.ones(3, requires_grad=True) * 2).detach()
        torch.ones(3).detach()
    (detach,) = [call for call in calls(logger.log) if call.operation.name == DETACH]
    assert detach.line is not None
    assert Path(detach.line.file) == Path(__file__)
    assert (detach.read[0].shape, detach.results) == ((3,), ())


def test_a_dropped_gradient_is_logged_by_its_name() -> None:
    """A call that zeroes gradients is one already, and torch's class is as it was afterwards."""
    model = nn.Sequential(nn.Linear(2, 2))
    with operations() as logger:
        logger.settings.name(model)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        model[0].bias.grad = None
        model[0].bias.grad = None
        model.zero_grad()
    dropped = [setting for setting in logger.log.settings if setting.drops_gradient]
    assert [setting.name for setting in dropped] == ["grad of 0.bias"]
    assert "__setattr__" not in vars(torch.Tensor)


LOOP = """
import sys
import torch

torch.manual_seed(0)
first, second = torch.nn.Linear(7, 7), torch.nn.Linear(7, 7)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
rows = torch.randn(2, 5, 7)
for step in range(2):
    for batch in rows[:1] if sys.argv[1] == "fewer" else rows:
        hidden = first(batch).tanh()
        rest = hidden
        if sys.argv[1] in ("cut", "both"):
            rest = hidden.detach()
        if sys.argv[1] in ("shown", "both"):
            print(hidden.detach().sum().item())
        (second(hidden) + rest).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def verdict(parity_here: Callable[[Cell], Parity], tmp_path: Path) -> Callable[..., Verdict]:
    """Returns the verdict on the loop in one form beside another one."""
    file = tmp_path / "cut.py"
    file.write_text(LOOP)

    def verdict(form: str, right: str) -> Verdict:
        with pytest.raises(ParityError) as failure:
            parity_here(Cell(sequence="train2")).check(followed(file, form), followed(file, right))
        return failure.value.verdict

    return verdict


@pytest.mark.parametrize(
    ("form", "right", "kind", "words"),
    [
        ("cut", "plain", "extra", "it cuts the gradient off here, the reference passes it on"),
        ("both", "shown", "extra", "it cuts the gradient off here, the reference passes it on"),
        ("plain", "cut", "missing", "the reference cuts the gradient off at cut.py:14"),
    ],
)
def test_the_line_that_cuts_a_graph_is_named(
    verdict: Callable[..., Verdict], form: str, right: str, kind: str, words: str
) -> None:
    """A backward makes too little after it, or too much; a figure for a log cuts nothing off."""
    culprit = verdict(form, right).culprit
    assert culprit is not None
    assert (culprit.kind, words in culprit.text) == (kind, True), culprit.text
    if kind == "extra":
        assert (culprit.operation, culprit.line) == (DETACH, 14), culprit.text


def test_a_loop_over_fewer_batches_has_no_line(verdict: Callable[..., Verdict]) -> None:
    """The failure says how often either side goes backward, and `-v` what may be the line."""
    refused = verdict("fewer", "plain")
    assert refused.culprit is None
    words = "No line is named: the candidate goes backward once at step 1, the reference 2 times"
    assert any(words in line for line in refused.ruling.brief), refused.ruling.brief
    candidates = [line.startswith("perhaps ") for line in refused.ruling.details]
    assert 1 <= sum(candidates) <= 2, refused.ruling.details
    assert not any(line.startswith("perhaps ") for line in refused.ruling.brief)
