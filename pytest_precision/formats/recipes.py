"""Recipes: the formats of inputs, weights and gradients per precision."""

from __future__ import annotations

from pytest_precision.errors import expect_one_of
from pytest_precision.matrix.precisions import PRECISIONS, Recipe

OPERAND_ELEMENTS = {"e4m3": ("e4m3", "e4m3"), "hybrid": ("e4m3", "e5m2")}
"""The elements (of inputs and weights, of gradients); no recipe uses e5m2 for all operands."""


def recipe(precision: str, element: str | None = None) -> Recipe:
    """Return the recipe of a precision, with complete names of formats.

    Args:
        precision: a quantized precision of cells.
        element: "e4m3" or "hybrid" if the recipe leaves it open; None for the recipe's default.

    Raises:
        ValueError: the precision or the element is unknown; the message lists the known ones.
    """
    known = {name: row.recipe for name, row in PRECISIONS.items() if row.recipe is not None}
    expect_one_of("precision", precision, known)
    found = known[precision]
    choices = OPERAND_ELEMENTS if found.element else {}
    expect_one_of("element", element, [None, *choices], f"{precision} has no others")
    chosen = found.element if element is None else element
    forward, gradient = choices.get(chosen, ("", ""))
    return Recipe(
        found.input.format(forward),
        found.weight.format(forward),
        found.gradient.format(gradient),
        chosen,
    )
