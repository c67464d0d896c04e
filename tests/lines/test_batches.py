"""Values of other batches, or of another place, are not blamed on the operation that has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import in_this_process  # noqa: F401
import pytest
from followed_files import followed

from pytest_precision import Cell, Parity, ParityError

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


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        (5, "the sides batch their rows otherwise: aten.embedding.default at scored.py:14 makes"),
        (
            48,
            "the logprob of all of the candidate is a value that the reference has elsewhere, "
            "made by aten.addmm.default at scored.py:11",
        ),
    ],
)
def test_no_line_is_named(
    parity_here: Callable[[Cell], Parity], tmp_path: Path, trained: int, words: str
) -> None:
    """Products of other shapes round otherwise, and the embedding's rows are equal."""
    file = tmp_path / "scored.py"
    file.write_text(SCORED)
    sides = (followed(file, form, trained) for form in ("packed", "single"))
    with pytest.raises(ParityError) as failure:
        parity_here(Cell(sequence="train2")).check(*sides)
    verdict = failure.value.verdict
    assert verdict.culprit is None
    assert any(f"No line is named: {words}" in line for line in verdict.details), verdict.details
