"""Values of other batches, or of another place, are not blamed on the operation that has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import in_this_process  # noqa: F401
import pytest
from followed_files import followed

from pytest_precision import Cell, Parity, ParityError, Verdict

SCORED = """
import sys
import torch
from pytest_precision import record

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(64, 256), torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokens = torch.arange(48)
for step in range(2):
    loss = model(tokens[None, :int(sys.argv[2])]).square().mean()
    with torch.no_grad():
        batches = [tokens] if sys.argv[1] == "packed" else tokens.reshape(48, 1)
        scores = torch.cat([model(batch[None])[0] for batch in batches])
    record.see("logprob", "all", scores)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def verdict(parity_here: Callable[[Cell], Parity], tmp_path: Path) -> Callable[..., Verdict]:
    """Returns the verdict on a score of one form beside the other form."""
    file = tmp_path / "scored.py"
    file.write_text(SCORED)

    def verdict(trained: int, *forms: str) -> Verdict:
        sides = (followed(file, form, trained) for form in forms)
        with pytest.raises(ParityError) as failure:
            parity_here(Cell(sequence="train2")).check(*sides)
        return failure.value.verdict

    return verdict


@pytest.mark.parametrize("forms", [("packed", "single"), ("single", "packed")])
def test_rows_of_other_batches_are_followed(
    verdict: Callable[..., Verdict], forms: tuple[str, str]
) -> None:
    """The embedding's rows are equal, and the product of another shape is the first to round."""
    culprit = verdict(5, *forms).culprit
    assert culprit is not None
    assert (culprit.operation, culprit.line) == ("aten.addmm.default", 14), culprit.text
    assert "it makes other bits of the same rows in a batch of shape" in culprit.text


def test_no_line_is_named_of_a_value_that_was_made_elsewhere(
    verdict: Callable[..., Verdict],
) -> None:
    """The reference has it, too: in its forward that trains."""
    refused = verdict(48, "packed", "single")
    assert refused.culprit is None
    words = (
        "No line is named: the logprob of all of the candidate is a value that the reference has "
        "elsewhere, made by aten.addmm.default at scored.py:11"
    )
    assert any(words in line for line in refused.details), refused.details
