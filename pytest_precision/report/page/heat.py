"""Heat maps: tables whose fields show an error's size by colour and as a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_precision.parity.culprit import ModuleErrors
from pytest_precision.parity.words import percent

HEATS = ((0.01, "heat1"), (0.1, "heat2"), (0.5, "heat3"), (1.0, "heat4"))
"""Largest share of elements that differ to the class of the field."""

NO_FINDING = {"=": "equal", "~": "within", ".": "unseen"}
"""States that are no finding, to their class."""


class Heat(NamedTuple):
    """One field of a heat map: its text, CSS class and tooltip."""

    text: str
    style: str
    figures: str


def heat_rows(spread: Mapping[str, Any]) -> list[tuple[str, str, list[Heat]]]:
    """Return a heat map's rows: one per kind of tensor, with its dtypes and a field per column."""
    places = range(len(spread["step"]))
    return [
        (kind, _dtypes(of["dtypes"]), [_heat(of, place) for place in places])
        for kind, of in spread["kinds"].items()
    ]


def column_labels(spread: Mapping[str, Any]) -> list[str]:
    """Return the column labels of a heat map: the train step, or else the operation's name."""
    return [
        str(step) if operation == "train" else operation
        for operation, step in zip(spread["operation"], spread["step"], strict=True)
    ]


def module_heats(modules: Sequence[ModuleErrors]) -> list[tuple[str, Heat, Heat]]:
    """Return for each module the coloured fields of its forward and backward error.

    Four colours divide the errors of the table by their size. Rounding makes all of them about as
    large, so that less than a factor of ten is no reason for another colour.
    """
    heat = error_heat(error for module in modules for error in (module.forward, module.backward))
    return [(module.module, heat(module.forward), heat(module.backward)) for module in modules]


def error_heat(errors: Iterable[Any]) -> Callable[[Any], Heat]:
    """Return a function from a relative L2 error to its coloured field, scaled to all `errors`.

    The largest has the strongest colour, and one that is no number says that it was not seen.
    """
    finite_errors = [
        error for error in errors if type(error) in (int, float) and error and math.isfinite(error)
    ]
    least = min(finite_errors, default=1.0)
    decades = max(1.0, math.log10(max(finite_errors, default=1.0) / least))

    def heat(error: Any) -> Heat:
        if not isinstance(error, (int, float)):
            return Heat(".", NO_FINDING["."], "")
        if error == 0:
            return Heat("=", NO_FINDING["="], "")
        share = math.log10(error / least) / decades if math.isfinite(error) else 1.0
        return Heat(f"{error:.2g}", f"heat{min(4, 1 + int(4 * share))}", "")

    return heat


def share_heat(share: float | None) -> Heat:
    """Return the field of a share of tokens that differ; None for what was not seen."""
    if not share:
        state = "." if share is None else "="
        return Heat(state, NO_FINDING[state], "")
    style = next(name for most, name in HEATS if share <= most)
    return Heat(percent(share, 1), style, "")


def _dtypes(pairs: Iterable[Sequence[str]]) -> str:
    return ", ".join(ours if ours == theirs else f"{ours}, not {theirs}" for ours, theirs in pairs)


def _heat(of: Mapping[str, Any], place: int) -> Heat:
    state = of["state"][place]
    if state in NO_FINDING:
        return Heat(state, NO_FINDING[state], "")
    share = of.get("mismatched", {place: None})[place]
    words = "" if state == "values" else state
    text = words if share is None else f"{words} {percent(share, 1)}".strip()
    style = next((name for most, name in HEATS if share is not None and share <= most), "heat4")
    figures = [
        f"{label} {of[name][place]:.3g}"
        for name, label in (("max_ulp", "worst ulp"), ("rel_l2", "relative L2 error"))
        if isinstance(of.get(name, {}) and of[name][place], (int, float))
    ]
    return Heat(text or state, style, ", ".join(figures))


def tensor_heats(
    spread: Mapping[str, Any],
) -> Iterator[tuple[str, str, list[tuple[str, list[Heat]]]]]:
    """Yield, per kind of tensor with known errors, a summary and a row of fields per tensor."""
    for kind, of in spread.get("tensors", {}).items():
        heat = error_heat(error for row in of["rel_l2"] for error in row)
        rows = zip(of["name"], of["rel_l2"], strict=True)
        yield kind, _words(of), [(name, [*map(heat, row)]) for name, row in rows]


def _words(of: Mapping[str, Any]) -> str:
    """Return words on how many tensors differ, and which is the first in the model's order."""
    wrong = [name for name, row in zip(of["name"], of["rel_l2"], strict=True) if any(row)]
    shown = len(of["name"])
    every = f" ({shown} of {of['tensors']} tensors are shown)" if shown < of["tensors"] else ""
    return f"{len(wrong)} of {shown} tensors differ, the first is {wrong[0]}{every}"
