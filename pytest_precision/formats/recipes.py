"""Which format the recipes of Transformer Engine give to inputs, weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recipe:
    """The formats of one precision, as names for `by_name`.

    Attributes:
        name: of the recipe: a cell's precision.
        input: of the activations that a linear layer multiplies.
        weight: of its weight.
        gradient: of the gradient of its output.
    """

    name: str
    input: str
    weight: str
    gradient: str


ELEMENTS = ("e4m3", "hybrid")
"""e4m3 throughout, or e5m2 for gradients; nothing trains with e5m2 throughout."""

# The patterns of the names, and the element that the recipe takes by itself.
_PATTERNS = {
    "fp8_current": ("fp8_current_{}", "fp8_current_{}", "hybrid"),
    "fp8_delayed": ("fp8_delayed_{}", "fp8_delayed_{}", "hybrid"),
    "fp8_block": ("fp8_block_1x128_{}_pow2", "fp8_block_128x128_{}_pow2", "e4m3"),
    "mxfp8": ("mxfp8_{}", "mxfp8_{}", "e4m3"),
}


def recipe(name: str, element: str | None = None) -> Recipe:
    """The recipe of a precision.

    Args:
        name: "fp8_current", "fp8_delayed", "fp8_block", "mxfp8" or "nvfp4".
        element: "e4m3" or "hybrid" where the recipe has fp8; its own default if None.

    Raises:
        ValueError: an unknown name or element; the known ones are listed.
    """
    if name == "nvfp4" and element is None:
        return Recipe(name, "nvfp4_1d_rht", "nvfp4_2d", "nvfp4_1d_rht_sr")
    if name not in _PATTERNS:
        known = ", ".join((*_PATTERNS, "nvfp4 (without element)"))
        raise ValueError(
            f"expected a recipe but got name={name!r} ({type(name).__name__}); use one of {known}"
        )
    activation, weight, default = _PATTERNS[name]
    chosen = default if element is None else element
    if chosen not in ELEMENTS:
        raise ValueError(
            f"expected an element for {name} but got element={element!r} "
            f"({type(element).__name__}); use one of {', '.join(ELEMENTS)}"
        )
    return Recipe(
        name,
        activation.format("e4m3"),
        weight.format("e4m3"),
        activation.format("e5m2" if chosen == "hybrid" else "e4m3"),
    )
