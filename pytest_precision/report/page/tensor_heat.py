"""Tensor heat: tensors down, steps across, coloured by the logarithm of their relative L2 error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pytest_precision.report.page.heat import Heat, column_labels, error_heat


class TensorHeats(NamedTuple):
    """The tensors of one kind.

    Attributes:
        kind: of them.
        words: what can be seen, for those who do not see it.
        columns: labels of the operations.
        rows: of each tensor its name and its fields.
    """

    kind: str
    words: str
    columns: list[str]
    rows: list[tuple[str, list[Heat]]]


def tensor_heats(spread: Mapping[str, Any] | None) -> list[TensorHeats]:
    """Return a table per kind of which the errors of single tensors are known."""
    found = (spread or {}).get("tensors", {})
    return [_table(kind, of, column_labels(spread or {})) for kind, of in found.items()]


def _table(kind: str, of: Mapping[str, Any], columns: list[str]) -> TensorHeats:
    heat = error_heat(error for row in of["rel_l2"] for error in row)
    rows = [(name, [*map(heat, row)]) for name, row in zip(of["name"], of["rel_l2"], strict=True)]
    return TensorHeats(kind, _words(of), columns, rows)


def _words(of: Mapping[str, Any]) -> str:
    """Say from which tensor on, in the order of the model, how many differ."""
    wrong = [name for name, row in zip(of["name"], of["rel_l2"], strict=True) if any(row)]
    shown = len(of["name"])
    every = f" ({shown} of {of['tensors']} tensors are shown)" if shown < of["tensors"] else ""
    return f"{len(wrong)} of {shown} tensors differ, the first is {wrong[0]}{every}"
