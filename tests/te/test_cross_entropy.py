"""Cross entropy against torch's, on one rank and with the columns divided among ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_precision.te import cross_entropy

ROWS, COLUMNS, IGNORED = 6, 8, -100


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_loss_and_gradient_are_torchs(ranks: int, mean: bool, smoothing: float) -> None:
    """A row whose target is ignored has neither, and the mean leaves it out."""
    logits, target = drawn(2, 3, COLUMNS), torch.tensor([[1, 7, IGNORED], [0, 3, 4]])
    exact = logits.double().requires_grad_()
    how = {"label_smoothing": smoothing, "reduction": "mean" if mean else "none"}
    expected = F.cross_entropy(exact.view(ROWS, COLUMNS), target.flatten(), **how)
    grad = drawn(1 if mean else ROWS, seed=1)
    (of_logits,) = torch.autograd.grad(expected.reshape(-1), exact, grad.double())
    parts = [part.contiguous() for part in logits.chunk(ranks, -1)]
    common = {"Y_ptr": target, "ignore_idx": IGNORED, "n_cols": COLUMNS // ranks}
    loss, stats = torch.empty(ROWS), torch.empty(ROWS, 2)
    after = {"loss_ptr": loss, "stats_ptr": stats, "label_smoothing": smoothing}
    counted = [torch.zeros(1, dtype=torch.int64) for _ in parts]
    saved = [torch.empty_like(part) for part in parts]
    local = torch.empty(ranks, ROWS, 4)
    for rank, part in enumerate(parts):
        given = {"X_ptr": part, "saved_input_ptr": saved[rank], "n_non_ignore": counted[rank]}
        given |= {"COUNT_NON_IGNORE": True, "COPY_INPUT": True, **common}
        if ranks == 1:
            cross_entropy.forward(**given, **after)
        else:
            cross_entropy.tp_pre(**given, rank=rank, local_data_ptr=local[rank])
    if ranks > 1:
        sizes = {"world_size": ranks, "n_rows": ROWS}
        cross_entropy.tp_post(gathered_data_ptr=local.flatten(0, 1), **sizes, **common, **after)
    assert [int(number) for number in counted] == [5] * ranks
    made = loss.sum() / counted[0] if mean else loss
    torch.testing.assert_close(made.double().reshape(-1), expected.detach().reshape(-1))
    for rank, (part, copy) in enumerate(zip(parts, saved, strict=True)):
        assert torch.equal(copy, part)
        cross_entropy.backward(
            saved_input_ptr=copy,
            stats_ptr=stats,
            n_non_ignore_ptr=counted[0],
            grad_output_ptr=grad,
            rank=rank,
            world_size=ranks,
            reduce_loss=mean,
            label_smoothing=smoothing,
            **common,
        )
    found = torch.cat(saved, -1).double()
    torch.testing.assert_close(found, of_logits, rtol=1e-5, atol=1e-6)
