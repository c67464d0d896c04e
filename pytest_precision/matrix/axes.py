"""Matrix: build cells and their test ids from a marker's axes, without senseless combinations."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from pytest_precision.errors import MatrixError, expected_but_got, named
from pytest_precision.matrix.cell import BUILT_IN_AXES, AxisValue, Cell
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.matrix.variables import Variables, plain_variables

NONSENSE: tuple[tuple[Callable[[Cell], bool], str], ...] = (
    (
        lambda cell: (
            cell.primary_weight == "quantized" and not PRECISIONS[cell.precision].quantized
        ),
        "precision {0.precision} has no quantized format",
    ),
)
"""Conditions under which a cell makes no sense, and reasons; the first that holds is the reason."""


class Matrix(NamedTuple):
    """All cells (combinations of axis values) of a `precision_matrix` marker, with their test ids.

    Attributes:
        cells: the cells that make sense; the last axis varies fastest.
        ids: ids of the cells, unique ASCII text.
        not_made: reason to number of cells that make no sense.
    """

    cells: tuple[Cell, ...]
    ids: tuple[str, ...]
    not_made: Mapping[str, int]


def build(
    arguments: Iterable[object], keywords: Mapping[str, Any], options: Sequence[str] = ()
) -> Matrix:
    """Build a test matrix: a cell for each combination of the axis values in a marker.

    Args:
        arguments: the positional arguments of the marker; there must be none.
        keywords: the keywords of the marker: axes, `environment` (for all cells), and options.
        options: the names of keywords that are options, which are ignored.

    Raises:
        MatrixError: an argument is not an axis with values, or no cell makes sense.
    """
    for argument in arguments:
        raise MatrixError(
            expected_but_got(
                "axes as keywords",
                f"{argument!r} ({type(argument).__name__})",
                "write precision_matrix(axis=[value, ...])",
            )
        )
    axis_values = {name: values for name, values in keywords.items() if name not in options}
    environment = _variables(axis_values.pop("environment", {}))
    user_axes = [name for name in axis_values if name not in BUILT_IN_AXES]
    for name in user_axes:
        _check_name(name, axis_values[name], options)
    # Ids must not depend on the order in which a marker happens to name the built-in axes.
    axes = {
        name: _values(name, axis_values[name], options)
        for name in BUILT_IN_AXES
        if name in axis_values
    }
    built_in = tuple(axes)
    axes.update({name: _values(name, axis_values[name], options) for name in user_axes})
    return _crossed_matrix(axes, built_in, tuple(user_axes), environment)


def axis_text(value: AxisValue) -> str:
    """Return an axis value as text for `--precision-select`, such as `mxfp8` or `true`."""
    plain = str(value)
    return plain.lower() if plain in ("True", "False", "None") else plain


def _crossed_matrix(
    axes: Mapping[str, tuple[AxisValue, ...]],
    built_in: tuple[str, ...],
    user_axes: tuple[str, ...],
    environment: Variables,
) -> Matrix:
    tokens = product(*([_token(name, value) for value in axes[name]] for name in axes))
    cells: dict[str, Cell] = {}
    not_made: Counter[str] = Counter()
    for point, words in zip(product(*axes.values()), tokens, strict=True):
        fields: dict[str, Any] = dict(zip(built_in, point, strict=False))
        extra = tuple(zip(user_axes, point[len(built_in) :], strict=True))
        cell = Cell(**fields, extra=extra, environment=environment)
        reason = next((why for holds, why in NONSENSE if holds(cell)), None)
        if reason is not None:
            not_made[reason.format(cell)] += 1
            continue
        cell_id = "-".join(words) or "defaults"
        if cell_id in cells:
            raise MatrixError(
                expected_but_got(
                    "a different id for each cell",
                    f"{cell_id!r} twice",
                    "change one of the values that give the same id",
                )
            )
        cells[cell_id] = cell
    if not cells:
        raise MatrixError(
            expected_but_got(
                "at least one valid combination of axis values",
                f"none: {', '.join(not_made)}",
                "add a value that is valid with those of the other axes",
            )
        )
    return Matrix(tuple(cells.values()), tuple(cells), not_made)


def _variables(environment: object) -> Variables:
    try:
        return plain_variables(environment)
    except (TypeError, ValueError) as error:
        raise MatrixError(f"{error}") from None


def _check_name(name: str, values: object, options: Sequence[str]) -> None:
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        raise MatrixError(
            expected_but_got(
                "an axis whose name is an ASCII identifier",
                f"{name!r}",
                "rename it with letters, digits and underscores",
            )
        )
    if name.startswith("_") or hasattr(Cell, name):
        raise MatrixError(
            expected_but_got(
                "an axis with a name of its own",
                f"{name!r}, which a cell has already",
                "rename the axis",
            )
        )
    # An axis that merely looks like a built-in one would run every cell at the default.
    intended_name = _intended_name(name, BUILT_IN_AXES)
    if intended_name is None:
        # Options have no lists of values, so that a plural with one is a word of the user's.
        others = [*options, "environment"]
        listed = isinstance(values, (list, tuple))
        intended_name = _intended_name(name, others, plurals=not listed)
    if intended_name is not None:
        raise MatrixError(
            expected_but_got(
                f"one of the axes {', '.join(BUILT_IN_AXES)}, one of the options "
                f"{', '.join(options)}, environment, or an axis of your own,",
                name,
                f"write {intended_name}, or give an axis of your own another name",
            )
        )


def _values(name: str, values: object, options: Sequence[str]) -> tuple[AxisValue, ...]:
    if not isinstance(values, (list, tuple)):
        raise MatrixError(
            expected_but_got(
                "a list of values",
                named(name, values),
                f"write {name}=[value, ...], or one of the options {', '.join(options)}, "
                "environment",
            )
        )
    if not values:
        raise MatrixError(
            expected_but_got("at least one value", f"{name}=[]", "add one, or leave the axis out")
        )
    for value in values:
        _check_value(name, value)
    for value, again in Counter(map(repr, values)).items():
        if again > 1:
            raise MatrixError(
                expected_but_got(
                    f"each value of {name} once", f"{value} {again} times", "write it once"
                )
            )
    return tuple(values)


def _check_value(name: str, value: Any) -> None:
    if type(value) not in (str, int, float, bool, type(None)):
        raise MatrixError(
            expected_but_got(
                "a value that is a str, int, float, bool or None",
                named(name, value),
                "write its name as a str",
            )
        )
    if name in BUILT_IN_AXES:
        try:
            cell_value = getattr(Cell(**{name: value}), name)
        except ValueError as error:
            raise MatrixError(f"{error}") from None
        if cell_value != value:
            raise MatrixError(
                expected_but_got(
                    f"a value for {name}",
                    f"{name}={value!r}",
                    "leave the axis out to have its default",
                )
            )


def _token(name: str, value: AxisValue) -> str:
    """Return how a test's id names an axis value, such as `w2` for two ranks."""
    if name == "grad_accum_fusion":
        return "fused" if value else "unfused"
    if name == "world_size":
        return f"w{value}"
    if name in BUILT_IN_AXES:
        return str(value)
    if isinstance(value, bool):
        return name if value else f"no_{name}"
    # Brackets, colons, spaces and the like cause trouble in node ids and shells.
    return re.sub(r"[^A-Za-z0-9_.+=-]", "_", f"{name}_{axis_text(value)}")


def _intended_name(name: str, known_names: Iterable[str], *, plurals: bool = True) -> str | None:
    """Return the known name of which `name` is probably a misspelling; None if there is none.

    Args:
        name: what somebody has written.
        known_names: names that mean something.
        plurals: whether the plural of a known name counts, too.
    """
    for known_name in known_names:
        if plurals and _folded(name) == _folded(known_name):
            return known_name
        if _is_misspelt(name, known_name):
            return known_name
    return None


LEAST_LETTERS = 6
"""Letters of a name from which one slip is told from another word: `bank` and `rank` are words."""


def _is_misspelt(name: str, known_name: str) -> bool:
    """Return whether two words differ by one typing error: a letter, or two exchanged letters.

    More slips than one are the distance between words: `decision` has two letters other than
    `precision`. Who writes a known name whole, with something added, means that: `precision_b`.
    """
    if re.search(rf"(?<![a-z]){known_name}(?![a-z])", name):
        return False
    ours, theirs = _folded(name), _folded(known_name)
    if min(len(ours), len(theirs)) < LEAST_LETTERS or ours == theirs:
        return False
    if len(ours) == len(theirs):
        others = sum(a != b for a, b in zip(ours, theirs, strict=True))
        return others == 1 or sorted(ours) == sorted(theirs)
    longer, shorter = sorted((ours, theirs), key=len, reverse=True)
    return len(longer) == len(shorter) + 1 and any(
        longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer))
    )


def _folded(name: str) -> str:
    return name.replace("_", "").lower().rstrip("s")
