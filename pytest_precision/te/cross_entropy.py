"""Transformer Engine's Triton kernels for cross entropy, written as torch operations in fp32.

Gradients are rounded once. The statistics of a row are its largest logit and the sum of
exp(logit - largest logit). With several ranks, each rank has a part of the columns, and computes
four numbers for each row: the two statistics, the logit of the target (minus infinity if another
rank has it) and the sum of the logits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def forward(
    *,
    X_ptr: Tensor,  # noqa: N803 (the names are the kernels')
    saved_input_ptr: Tensor,
    Y_ptr: Tensor,  # noqa: N803
    loss_ptr: Tensor,
    stats_ptr: Tensor,
    n_non_ignore: Tensor,
    n_cols: int,
    ignore_idx: int,
    label_smoothing: float,
    COUNT_NON_IGNORE: bool,  # noqa: N803
    COPY_INPUT: bool,  # noqa: N803
    **_: Any,
) -> None:
    """Fill the caller's tensors with each row's loss, largest logit and sum of exponentials.

    If asked, copy the logits, and count the rows that are not ignored.
    """
    local = _statistics(X_ptr, Y_ptr, 0)
    if COPY_INPUT:
        saved_input_ptr.copy_(X_ptr)
    if COUNT_NON_IGNORE:
        n_non_ignore += (Y_ptr != ignore_idx).sum()
    _loss(local, Y_ptr, loss_ptr, stats_ptr, n_cols, ignore_idx, label_smoothing)


def tp_pre(
    *,
    X_ptr: Tensor,  # noqa: N803
    saved_input_ptr: Tensor,
    Y_ptr: Tensor,  # noqa: N803
    local_data_ptr: Tensor,
    n_non_ignore: Tensor,
    rank: int,
    n_cols: int,
    ignore_idx: int,
    COUNT_NON_IGNORE: bool,  # noqa: N803
    COPY_INPUT: bool,  # noqa: N803
    **_: Any,
) -> None:
    """Fill a tensor with each row's largest logit, exponentials' sum, target logit, logits' sum.

    They are those of this rank's columns. If asked, copy the logits, and count the rows that are
    not ignored.
    """
    local_data_ptr.copy_(_statistics(X_ptr, Y_ptr, rank * n_cols))
    if COPY_INPUT:
        saved_input_ptr.copy_(X_ptr)
    if COUNT_NON_IGNORE:
        n_non_ignore += (Y_ptr != ignore_idx).sum()


def tp_post(
    *,
    gathered_data_ptr: Tensor,
    Y_ptr: Tensor,  # noqa: N803
    loss_ptr: Tensor,
    stats_ptr: Tensor,
    world_size: int,
    n_rows: int,
    n_cols: int,
    ignore_idx: int,
    label_smoothing: float,
    **_: Any,
) -> None:
    """Combine all ranks' statistics into each row's loss, largest logit and sum of exponentials."""
    total, *others = gathered_data_ptr.view(world_size, n_rows, 4).unbind(0)
    for part in others:
        largest = torch.maximum(total[:, 0], part[:, 0])
        sums = [stats[:, 1] * (stats[:, 0] - largest).exp() for stats in (total, part)]
        target = torch.maximum(total[:, 2], part[:, 2])
        total = torch.stack((largest, sums[0] + sums[1], target, total[:, 3] + part[:, 3]), 1)
    columns = n_cols * world_size
    _loss(total, Y_ptr, loss_ptr, stats_ptr, columns, ignore_idx, label_smoothing)


def backward(
    *,
    saved_input_ptr: Tensor,
    Y_ptr: Tensor,  # noqa: N803
    stats_ptr: Tensor,
    n_non_ignore_ptr: Tensor,
    grad_output_ptr: Tensor,
    rank: int,
    world_size: int,
    n_cols: int,
    ignore_idx: int,
    reduce_loss: bool,
    label_smoothing: float,
    **_: Any,
) -> None:
    """Overwrite the saved logits with their gradient, which is 0 in ignored rows."""
    logits, target = saved_input_ptr.view(-1, n_cols), Y_ptr.reshape(-1)
    gradient = grad_output_ptr.float().reshape(-1, 1)
    if reduce_loss:
        gradient = gradient / n_non_ignore_ptr
    largest, total = stats_ptr[:, :1], stats_ptr[:, 1:]
    logits_grad = (logits.float() - largest).exp() / total - label_smoothing / (n_cols * world_size)
    is_target = torch.arange(rank * n_cols, (rank + 1) * n_cols) == target.unsqueeze(1)
    logits_grad = (logits_grad - is_target.float() * (1.0 - label_smoothing)) * gradient
    logits.copy_(logits_grad.masked_fill((target == ignore_idx).unsqueeze(1), 0.0))


def _statistics(logits: Tensor, target: Tensor, first_column: int) -> Tensor:
    """Return each row's largest logit, sum of exponentials, target logit and sum of logits."""
    exact = logits.float().reshape(-1, logits.shape[-1])
    column = target.reshape(-1, 1) - first_column
    is_local = (column >= 0) & (column < exact.shape[1])
    target_logit = exact.gather(1, column.clamp(0, exact.shape[1] - 1)).masked_fill(
        ~is_local, -math.inf
    )
    largest = exact.amax(1, keepdim=True)
    sums = (exact - largest).exp().sum(1, keepdim=True), exact.sum(1, keepdim=True)
    return torch.cat((largest, sums[0], target_logit, sums[1]), 1)


def _loss(
    statistics: Tensor,
    target: Tensor,
    loss: Tensor,
    stats: Tensor,
    columns: int,
    ignore_idx: int,
    label_smoothing: float,
) -> None:
    """Fill tensors with each row's loss (0 if ignored), largest logit and sum of exponentials."""
    largest, total, target_logit, logits = statistics.unbind(1)
    stats.copy_(statistics[:, :2])
    row_loss = largest + total.log() - target_logit
    if label_smoothing > 0:
        even = label_smoothing * (largest + total.log()) - label_smoothing / columns * logits
        row_loss = row_loss * (1.0 - label_smoothing) + even
    loss.copy_(row_loss.masked_fill(target.reshape(-1) == ignore_idx, 0.0))


CROSS_ENTROPY_KERNELS = {
    "cross_entropy_backward_kernel": backward,
    "cross_entropy_forward_kernel": forward,
    "cross_entropy_tp_post_kernel": tp_post,
    "cross_entropy_tp_pre_kernel": tp_pre,
}
"""Name of a Triton kernel to the torch function that computes the same."""
