"""The number formats by name, and each precision's formats of inputs, weights and gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

from pytest_precision.errors import expect_one_of, expected_but_got, named
from pytest_precision.formats import blockwise, delayed, mxfp8, nvfp4, per_tensor
from pytest_precision.formats.format import Format, Makers
from pytest_precision.matrix.precisions import PRECISIONS, Recipe

_MODULES = (blockwise, delayed, mxfp8, nvfp4, per_tensor)

_FORMATS: Makers = dict(
    sorted((name, make) for module in _MODULES for name, make in module.FORMATS.items())
)

_IN_NAMES = {
    field for make in _FORMATS.values() if isinstance(make, partial) for field in make.keywords
}
"""Fields that a name determines; for a field that the name does not mention, it is the default."""


def names() -> tuple[str, ...]:
    """Return the names of all formats, in alphabetical order."""
    return tuple(_FORMATS)


def by_name(name: str, **options: Any) -> Format:
    """Return a new number format by `name`; it shares no delayed scaling state with others.

    Args:
        name: one of `names()`.
        **options: fields of the format that the name leaves open, such as `reduce_amax`,
            `epsilon`, or `history_length`; and the `element` of `fp8_delayed`.

    Raises:
        ValueError: the name is unknown (the message lists the known ones), the name determines an
            option that is given, or an option cannot have the given value.
        TypeError: the format does not have an option that is given.
    """
    expect_one_of("name", name, _FORMATS)
    for option, value in options.items():
        if option in _IN_NAMES and (name, option) != ("fp8_delayed", "element"):
            raise ValueError(
                expected_but_got(
                    f"options that {name} leaves open",
                    f"{named(option, value)}, which the name determines",
                    "leave it out, or choose another of names()",
                )
            )
    return _FORMATS[name](name=name, **options)


OPERAND_ELEMENTS = {"e4m3": ("e4m3", "e4m3"), "hybrid": ("e4m3", "e5m2")}
"""The elements (of inputs and weights, of gradients); no recipe uses e5m2 for all operands."""


def recipe(precision: str, element: str | None = None) -> Recipe:
    """Return the names of the formats of a precision's inputs, weights and gradients.

    Args:
        precision: a quantized precision of cells.
        element: "e4m3" or "hybrid" if the recipe leaves it open; None for the recipe's default.

    Raises:
        ValueError: the precision or the element is unknown; the message lists the known ones.
    """
    recipes = {name: row.recipe for name, row in PRECISIONS.items() if row.recipe is not None}
    expect_one_of("precision", precision, recipes)
    template = recipes[precision]
    choices = OPERAND_ELEMENTS if template.element else {}
    expect_one_of("element", element, [None, *choices], f"{precision} has no others")
    chosen = template.element if element is None else element
    forward, gradient = choices.get(chosen, ("", ""))
    return Recipe(
        template.input.format(forward),
        template.weight.format(forward),
        template.gradient.format(gradient),
        chosen,
    )
