"""The dtypes of Transformer Engine's compiled module, by their numbers there."""

from __future__ import annotations

from enum import IntEnum


class DType(IntEnum):
    """The kernels' dtypes, all of which Transformer Engine requires at import."""

    kByte = 0  # noqa: N815 (the names are the compiled module's)
    kInt32 = 2  # noqa: N815
    kFloat32 = 4  # noqa: N815
    kFloat16 = 5  # noqa: N815
    kBFloat16 = 6  # noqa: N815
    kFloat8E4M3 = 7  # noqa: N815
    kFloat8E5M2 = 8  # noqa: N815
    kFloat4E2M1 = 10  # noqa: N815
