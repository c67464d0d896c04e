"""Stand-ins for the enumerations and classes of Transformer Engine's compiled module."""

from __future__ import annotations

from enum import IntEnum

import torch


class NVTE_Fused_Attn_Backend(IntEnum):  # noqa: N801
    """The backends of fused attention; on the CPU there is none."""

    NVTE_No_Backend = -1
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2


class NVTE_QKV_Format(IntEnum):  # noqa: N801
    """The possible orders of dimensions of queries, keys and values."""

    NVTE_SBHD = 0
    NVTE_BSHD = 1
    NVTE_THD = 2
    NVTE_BSHD_2SBHD = 3
    NVTE_SBHD_2BSHD = 4
    NVTE_THD_2BSHD = 5
    NVTE_THD_2SBHD = 6
    NVTE_BHSD = 7
    NVTE_QKV_Format_NOT_SET = 8


class NVTERoutingMapFormat(IntEnum):
    """How a router encodes chosen experts: one byte or one bit per expert."""

    BYTEMAP = 0
    BITMAP_U8 = 1


class NVTEQBHistogramMode(IntEnum):
    """How the router's histogram of quantile bins is made: by two kernels, or by one with atomics.

    The counts are equal.
    """

    TWO_KERNEL = 0
    FUSED_ATOMIC = 1


_FORWARD = [f"GEMM{number}_{part}" for number in "123" for part in ("INPUT", "WEIGHT", "OUTPUT")]
_BACKWARD = [f"GRAD_{part}{number}" for number in "123" for part in ("OUTPUT", "INPUT")]

FP8FwdTensors = IntEnum("FP8FwdTensors", _FORWARD, start=0)  # type: ignore[misc]
FP8BwdTensors = IntEnum("FP8BwdTensors", _BACKWARD, start=0)  # type: ignore[misc]


class FP8TensorMeta:
    """Delayed scaling's buffers of a module: scales, inverse scales and amax histories."""

    scale: torch.Tensor
    scale_inv: torch.Tensor
    amax_history: torch.Tensor


class _Named(type):
    """A metaclass for placeholder enumerations, in which any member name is valid."""

    _numbers: dict[str, int]

    def __getattr__(cls, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        return cls._numbers.setdefault(name, len(cls._numbers))


def named_only(name: str) -> type:
    """Return a placeholder enumeration, in which any member name is valid."""
    return _Named(name, (), {"_numbers": {}})
