"""Contract: what a run must have stored and done, whatever its numbers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_precision.cell import Cell

PATHS = ("fused", "grouped", "quantized")
"""What a forward and backward can do: accumulate weight gradients by the GEMM, multiply by a single
weight of many experts, read parameters that are stored quantized."""

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Contract:
    """What is asked of a run.

    Attributes:
        dtypes: kind of observation to the dtype that all of its tensors must have, without
            `torch.`: `{"master": "float32", "reduced_grad": "float32"}`.
        paths: of `PATHS`, that must really have been taken.
        some: as `dtypes`, of which one tensor must have it.

    Raises:
        ValueError: for a path that is not known, and for a dtype named as a precision is.
    """

    dtypes: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    some: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in self.paths:
            if path not in PATHS:
                raise ValueError(
                    f"expected paths of {', '.join(PATHS)} but got {path!r} "
                    f"({type(path).__name__}); engines declare these"
                )
        for kind, dtype in (*self.dtypes.items(), *self.some.items()):
            if dtype in _DTYPES:
                raise ValueError(
                    f"expected torch's name of a dtype but got {kind}={dtype!r} "
                    f"({type(dtype).__name__}); write {_DTYPES[dtype]!r}"
                )

    @classmethod
    def of(cls, cell: Cell) -> Contract:
        """What the cell says by itself: storage of parameters, and the paths of its axes."""
        paths = []
        if cell.grad_accum_fusion:
            paths.append("fused")
        if cell.primary_weight == "quantized":
            paths.append("quantized")
        stored = _DTYPES.get(cell.primary_weight)
        return cls(paths=tuple(paths), some={} if stored is None else {"param": stored})
