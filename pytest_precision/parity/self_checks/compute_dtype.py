"""Check that a run computed in the dtype that the precision of its cell names."""

from __future__ import annotations

from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import COMPUTED
from pytest_precision.trace.store import Trace


def computed_elsewhere(trace: Trace, cell: Cell) -> str | None:
    """Return why a bf16 or fp16 run proves nothing about that precision, or None.

    One matrix product in the dtype is enough: the layout decides which layers stay in fp32. In a
    model without matrix products, the dtypes of the weights that it used decide.
    """
    expected = COMPUTED.get(cell.precision)
    if expected is None:
        return None
    products = trace.header.products
    seen = products or {*trace.dtypes().get("used_param", {}).values()}
    if expected in seen:
        return None
    what = "matrix products" if products else "no matrix product was seen, and weights"
    others = f" ({what} were in {', '.join(sorted(seen))})" if seen else ""
    return f"nothing was computed in {expected}{others}, but the precision is {cell.precision}"
