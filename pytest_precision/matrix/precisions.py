"""A table of all precisions that a cell can compute in, with the properties of each."""

from __future__ import annotations

from typing import NamedTuple

Capability = tuple[int, int]
"""The compute capability of a GPU: major and minor."""

Release = tuple[int, int]
"""A release of Transformer Engine: major and minor."""

PRIMARY_WEIGHTS = ("fp32", "bf16", "fp16", "quantized")
"""The possible storage of resident parameters."""


class Recipe(NamedTuple):
    """The number formats of the operands of linear layers, by name.

    Attributes:
        input: format of the input of a linear layer.
        weight: format of its weight.
        gradient: format of the gradient of its output.
        element: the default for a `{}` in the names: "e4m3" for all, or "hybrid", which means e5m2
            for gradients and e4m3 otherwise; empty if the names have no `{}`.
    """

    input: str
    weight: str
    gradient: str
    element: str = ""


class Support(NamedTuple):
    """The GPUs and releases on which Transformer Engine's kernels match the emulation.

    Attributes:
        first: the lowest compute capability.
        until: the exclusive upper bound of the compute capability; None if there is none.
        since: the first release whose quantizers run there and give the numbers of the emulation.
    """

    first: Capability
    until: Capability | None = None
    since: Release = (2, 8)

    def __str__(self) -> str:
        text = (
            f"Transformer Engine {dotted(self.since)} or later and a GPU of compute capability "
            f"{dotted(self.first)} or higher"
        )
        return text if self.until is None else f"{text}, below {dotted(self.until)}"


class Precision(NamedTuple):
    """The properties of one precision: weight storage, quantization recipe and native support.

    Attributes:
        primary_weight: storage of resident parameters if the cell does not set it.
        recipe: formats of the operands of linear layers; None if nothing is quantized.
        native: combinations of GPU and release of Transformer Engine, one of which a machine needs
            to quantize natively; empty if no release can.
    """

    primary_weight: str
    recipe: Recipe | None = None
    native: tuple[Support, ...] = ()

    @property
    def quantized(self) -> bool:
        """Whether weights can be stored in a quantized format of this precision."""
        return self.recipe is not None

    @property
    def primary_weights(self) -> tuple[str, ...]:
        """The dtypes or formats in which parameters can be stored."""
        return tuple(w for w in PRIMARY_WEIGHTS if self.quantized or w != "quantized")


# Support: `check_fp8_support` and its siblings in transformer_engine/pytorch/quantization.py. Their
# conditions on CUDA and cuBLAS are left out: these concern GEMMs, and only quantizers are called.
# Before 2.13, MXFP8 did not scale blocks of e8m0 code 0. Before 2.14, NVFP4 divided by 6 where it
# now multiplies by 1/6, which sometimes gives another e4m3 scale. Before 2.19, its stochastic
# rounding crashed on GPUs beyond capability 10.x.
PRECISIONS = {
    "fp32": Precision("fp32"),
    "bf16": Precision("bf16"),
    "fp16": Precision("fp16"),
    "fp8_delayed": Precision(
        "bf16",
        Recipe("fp8_delayed_{}", "fp8_delayed_{}", "fp8_delayed_{}", "hybrid"),
        (Support((8, 9)),),
    ),
    "fp8_current": Precision(
        "bf16",
        Recipe("fp8_current_{}", "fp8_current_{}", "fp8_current_{}", "hybrid"),
        (Support((8, 9)),),
    ),
    "fp8_block": Precision(
        "bf16",
        Recipe(
            "fp8_block_1x128_{}_pow2",
            "fp8_block_128x128_{}_pow2",
            "fp8_block_1x128_{}_pow2",
            "e4m3",
        ),
        (Support((9, 0)),),
    ),
    "mxfp8": Precision(
        "bf16",
        Recipe("mxfp8_{}", "mxfp8_{}", "mxfp8_{}", "e4m3"),
        (Support((10, 0), until=(12, 0), since=(2, 13)),),
    ),
    "nvfp4": Precision(
        "bf16",
        Recipe("nvfp4_1d_rht", "nvfp4_2d", "nvfp4_1d_rht_sr"),
        (Support((10, 0), until=(11, 0), since=(2, 14)), Support((11, 0), since=(2, 19))),
    ),
}
"""Every precision that a cell can have."""

COMPUTED = {"bf16": "bfloat16", "fp16": "float16"}
"""Precision of a cell to the dtype that matrix products must have in it."""


def dotted(pair: Capability | Release) -> str:
    """Return a version pair as text, such as `10.0` for a GPU's compute capability (10, 0)."""
    return "{}.{}".format(*pair)
