"""The kinds in which a run shows quantized weights, told without importing a number format."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.matrix.tensor_key import TensorKey, is_inner, outer_kind

QUANTIZED = {"data": "quantized", "scale": "scale", "amax": "amax"}
"""Tensor of a quantized weight in use to the kind of the resident one."""

QUANTIZED_KINDS = frozenset({"used_quantized", *QUANTIZED.values()})
"""Kinds of a run with quantized weights, whatever the precision of its cell."""


def stored_quantized(dtypes: dict[str, dict[str, str]], *, resident: bool) -> Iterator[str]:
    """Yield the names of weights that are stored quantized, and so differ from their cast masters.

    Args:
        dtypes: kind to name to dtype.
        resident: whether the weights that are used in bytes are resident in bytes, too.
    """
    for kind, names in dtypes.items():
        for name in names:
            if kind == "quantized" or (kind == "used_quantized" and resident):
                yield TensorKey.of(kind, name).owner
            elif is_inner(kind) and outer_kind(kind) in ("param", "used_param"):
                yield name


def shows_quantized(cell: Cell, kinds: Collection[str]) -> bool:
    """Return whether a run of a cell shows quantized weights.

    Args:
        cell: of the run.
        kinds: of the tensors that it shows.
    """
    return PRECISIONS[cell.precision].quantized or not QUANTIZED_KINDS.isdisjoint(kinds)
