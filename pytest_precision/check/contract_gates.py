"""Compare what a side stored and did, as its trace shows, with what its contracts require."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_precision.matrix.contract import Contract
from pytest_precision.trace.store import Trace

WIDER = {"float32": ("float64", "complex64", "complex128")}
"""Dtypes that hold all values of another one, and so keep what a cell asks for."""


def violation(trace: Trace, contract: Contract) -> str | None:
    """Return the first dtype that a contract does not allow, in words, or None."""
    held = trace.dtypes()
    for kind, dtype in contract.dtypes.items():
        for name, own in held.get(kind, {}).items():
            if own != dtype:
                return f"{kind} {name} is {own}, the contract says {dtype}"
    for kind, dtype in contract.some.items():
        if kind in held and not {*held[kind].values()} & {dtype, *WIDER.get(dtype, ())}:
            others = ", ".join(sorted(set(held[kind].values())))
            return f"no {kind} is stored in {dtype}, but all in {others},"
    return None


def not_exercised(trace: Trace, contracts: Sequence[Contract]) -> str | None:
    """Return what a contract names and the side lacks, so that agreement proves nothing."""
    held = trace.dtypes()
    for contract in contracts:
        for path in contract.paths:
            if path not in trace.header.paths:
                return f"the {path} path was not taken"
        for kind in contract.dtypes:
            if kind not in held:
                return f"the contract names the dtype of {kind}, which was not observed"
    return None
