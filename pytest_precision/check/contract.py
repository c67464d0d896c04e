"""Whether a run kept a storage contract, as far as its trace tells."""

from __future__ import annotations

from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.contract import Contract
from pytest_precision.parity.computed import computed_elsewhere
from pytest_precision.parity.guards import vacuous
from pytest_precision.trace.store import Trace


def judged(trace: Trace, cell: Cell, asked: Contract | None) -> tuple[str, str]:
    """An outcome and why, without words where the run kept what it had to and proves something.

    Args:
        trace: of one side.
        cell: that it ran in, which asks for something by itself.
        asked: what is asked for beside that.
    """
    contracts = [Contract.of(cell), *([] if asked is None else [asked])]
    for contract in contracts:
        words = _breach(trace, contract)
        if words is not None:
            return "fail", words
    nothing = vacuous(trace, cell) or computed_elsewhere(trace, cell)
    for contract in contracts:
        nothing = nothing or _not_exercised(trace, contract)
    return "vacuous", nothing or ""


def _breach(trace: Trace, contract: Contract) -> str | None:
    """The first breach in words, or None: what the engine declares, then dtypes."""
    if trace.header.breaches:
        return trace.header.breaches[0]
    held = trace.dtypes()
    for kind, dtype in contract.dtypes.items():
        for name, own in held.get(kind, {}).items():
            if own != dtype:
                return f"{kind} {name} is {own}, the contract says {dtype}"
    for kind, dtype in contract.some.items():
        if kind in held and dtype not in held[kind].values():
            return f"no {kind} is stored in {dtype}"
    return None


def _not_exercised(trace: Trace, contract: Contract) -> str | None:
    """What the contract asks for and the run has not got, so that agreement says nothing of it."""
    for path in contract.paths:
        if path not in trace.header.paths:
            return f"the {path} path was not taken"
    held = trace.dtypes()
    for kind in contract.dtypes:
        if kind not in held:
            return f"the contract names the dtype of {kind}, which was not observed"
    return None
