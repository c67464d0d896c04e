"""The dtypes and code paths that a run must show, whatever its numbers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_precision.errors import expect_type, expected_but_got, is_bad_input, named
from pytest_precision.matrix.cell import Cell

__tracebackhide__ = is_bad_input

PATHS = ("fused", "grouped", "quantized")
"""Code paths of forward and backward: weight gradients accumulated by the GEMM, a single weight for
several experts, parameters that are stored quantized."""

DTYPE_NAMES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
    "bool",
)
"""torch's names of the dtypes that can be compared, listed so that nothing here imports torch."""

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Contract:
    """The dtypes and code paths, such as `quantized` parameters, that a run's recording must show.

    Attributes:
        dtypes: kind of observation to the dtype, one of `DTYPE_NAMES`, that all of its tensors must
            have: `{"master": "float32", "reduced_grad": "float32"}`.
        paths: the paths, of `PATHS`, that the run must take.
        some: kind of observation to the dtype that at least one of its tensors must have.

    Raises:
        TypeError: `paths` is not a tuple or list, `dtypes` or `some` is not a mapping, or a dtype
            is not given by its name.
        ValueError: a path or a dtype is unknown.
    """

    dtypes: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    some: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expect_type(
            "paths", self.paths, (tuple, list), "a tuple of paths", "write paths=('grouped',)"
        )
        for path in self.paths:
            if path not in PATHS:
                raise ValueError(
                    expected_but_got(
                        f"each of paths to be one of {', '.join(PATHS)}",
                        f"{path!r} ({type(path).__name__})",
                        "correct it, or leave it out",
                    )
                )
        for name, dtypes in (("dtypes", self.dtypes), ("some", self.some)):
            advice = f"write {name}={{'master': 'float32'}}"
            expect_type(name, dtypes, Mapping, "a mapping from kind to dtype", advice)
            for kind, dtype in dtypes.items():
                _expect_dtype(kind, dtype)

    @classmethod
    def of(cls, cell: Cell) -> Contract:
        """Return the dtypes and paths that a cell's axes demand of a run."""
        paths = []
        if cell.grad_accum_fusion:
            paths.append("fused")
        if cell.primary_weight == "quantized":
            paths.append("quantized")
        stored = _DTYPES.get(cell.primary_weight)
        return cls(paths=tuple(paths), some={} if stored is None else {"param": stored})


def dtype_name(dtype: object) -> str:
    """Return torch's name of a dtype, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def _expect_dtype(kind: str, dtype: object) -> None:
    if dtype in DTYPE_NAMES:
        return
    name = dtype_name(dtype)
    name = _DTYPES.get(name, name)
    advice = f"write {name!r}" if name in DTYPE_NAMES else f"use one of {', '.join(DTYPE_NAMES)}"
    error = ValueError if isinstance(dtype, str) else TypeError
    raise error(expected_but_got("torch's name of a dtype", named(kind, dtype), advice))
