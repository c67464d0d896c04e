"""Kernels of Triton in plain form, by their names; each takes the arguments of its launch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import Tensor

from pytest_precision.te import cross_entropy, row_maps


def grouped_dbias(
    dy: Tensor,
    dbias: Tensor,
    offsets: Tensor,
    scales: Tensor,
    bias: Tensor,
    dscales: Tensor,
    hidden: int,
    *,
    HAS_SCALES: bool,  # noqa: N803 (the names are the kernel's)
    **_: Any,
) -> None:
    """Add the sum of each group's rows, scaled row by row if there are scales, to its bias."""
    ends = offsets.tolist()
    for group, (start, stop) in enumerate(pairwise(ends)):
        rows = dy[start:stop].float()
        if HAS_SCALES:
            dscales[start:stop] += (rows * bias[group].float()).sum(1)
            rows = rows * scales[start:stop].float().unsqueeze(1)
        dbias[group] += rows.sum(0)


KERNELS: dict[str, Any] = {
    "_grouped_dbias_kernel": grouped_dbias,
    **cross_entropy.KERNELS,
    **row_maps.KERNELS,
}
"""Name of a kernel to its plain form; a kernel without one needs a GPU."""
