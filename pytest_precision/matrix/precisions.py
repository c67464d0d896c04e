"""Precisions: what a cell can compute in, and all that is known of each, in one table."""

from __future__ import annotations

from typing import NamedTuple

Capability = tuple[int, int]
"""Compute capability of a GPU: major and minor."""

Release = tuple[int, int]
"""Release of Transformer Engine: major and minor."""

PRIMARY_WEIGHTS = ("fp32", "bf16", "fp16", "quantized")
"""What resident parameters can be stored in."""


class Recipe(NamedTuple):
    """The formats that the linear layers of a precision multiply in, as names for `by_name`.

    Attributes:
        input: of the activations that a linear layer multiplies.
        weight: of its weight.
        gradient: of the gradient of its output.
        element: where the names have a `{}` for it: "e4m3" throughout, or "hybrid", which is e5m2
            for gradients; empty where they have none.
    """

    input: str
    weight: str
    gradient: str
    element: str = ""


class Support(NamedTuple):
    """GPUs that Transformer Engine has a precision on, as it is emulated.

    Attributes:
        first: the least compute capability.
        until: the least one, beyond `first`, that is not meant; None where there is none.
        since: the first release whose quantizers run there and make the numbers of the emulation.
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
    """What a precision is made of.

    Attributes:
        primary_weight: what resident parameters are stored in where the cell does not say.
        recipe: of linear layers that multiply quantized operands; None where nothing is quantized.
        native: GPUs and releases of Transformer Engine, of which a machine must have one to
            quantize natively; empty where no release does.
    """

    primary_weight: str
    recipe: Recipe | None = None
    native: tuple[Support, ...] = ()

    @property
    def quantized(self) -> bool:
        """Whether it has a quantized format that a primary weight could be stored in."""
        return self.recipe is not None

    @property
    def primary_weights(self) -> tuple[str, ...]:
        """What resident parameters can be stored in."""
        return tuple(w for w in PRIMARY_WEIGHTS if self.quantized or w != "quantized")


# Support: `check_fp8_support` and its siblings in transformer_engine/pytorch/quantization.py. What
# these ask of CUDA and cuBLAS in addition to the GPU is for GEMMs, and only quantizers are called.
# MXFP8 before 2.13 did not scale blocks of e8m0 code 0. NVFP4 before 2.14 divided by 6 where it now
# multiplies by 1/6, which is another e4m3 scale now and then; beyond capability 10.x its stochastic
# rounding stopped the GPU before 2.19.
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


def dotted(pair: Capability | Release) -> str:
    """Return a capability or a release as text: `10.0`."""
    return "{}.{}".format(*pair)
