"""Lay out what checks of log-probabilities have measured: figures, and modules by layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

FIGURES = (
    "rollout_probs_diff_max",
    "rollout_probs_diff_mean",
    "rollout_probs_diff_std",
    "rollout_actor_probs_pearson_corr",
    "train_rollout_logprob_abs_diff",
    "train_rollout_logprob_abs_diff_p99",
    "k3_kl",
)
"""The figures of a table, of those in report.json, under the names of the curves."""

MOST_LINES = 20
"""Lines of figures in a terminal."""

OUTSIDE = "outside"
"""The column of modules that belong to no layer."""

_LAYER = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")


class ScoredWay(NamedTuple):
    """What one check has measured of one way of scoring.

    Attributes:
        nodeid: of the test.
        way: its name.
        tokens: that both sides score.
        bound: that `noise()` allows; None for another criterion.
        statistics: name of each figure to its value.
        modules: name, tokens, and how many of them differ.
        rerouted: router to the tokens that it sent to other experts.
    """

    nodeid: str
    way: str
    tokens: int
    bound: float | None
    statistics: Mapping[str, Any]
    modules: Sequence[tuple[str, int, int]]
    rerouted: Mapping[str, int]

    @property
    def figures(self) -> list[str]:
        """Return the figures of a row of the table as text."""
        return [figure_text(self.statistics.get(name)) for name in FIGURES]


def scored_ways(entries: Iterable[Mapping[str, Any]]) -> Iterator[ScoredWay]:
    """Yield the figures of each way to score, from each check's entry in report.json."""
    for entry in entries:
        rollout = entry.get("rollout") or {}
        for name, way in rollout.get("ways", {}).items():
            modules = [tuple(module) for module in way["modules"]]
            rest = way["tokens"], rollout.get("bound"), way["statistics"], modules
            yield ScoredWay(entry["nodeid"], name, *rest, way["rerouted"])


def figure_text(figure: Any) -> str:
    """Return a figure in few digits; a point where there is none."""
    return f"{figure:.3g}" if isinstance(figure, (int, float)) else "."


def by_layer(
    modules: Sequence[tuple[str, int, int]],
) -> tuple[list[str], list[tuple[str, list[float | None]]]]:
    """Return the columns of a heat map, and a row for each module that layers have alike.

    The fields are the share of the tokens for which the module's output differs; None for a module
    that the layer has not.
    """
    layers: dict[int, None] = {}
    rows: dict[str, dict[int | None, float]] = {}
    for name, tokens, differing in modules:
        match = _LAYER.search(name)
        layer = None if match is None else int(match[0])
        label = name if match is None else f"{name[: match.start()]}*{name[match.end() :]}"
        if layer is not None:
            layers[layer] = None
        rows.setdefault(label, {})[layer] = differing / tokens if tokens else 0.0
    columns: list[int | None] = [*sorted(layers)]
    if any(None in row for row in rows.values()):
        columns.append(None)
    labels = [OUTSIDE if layer is None else str(layer) for layer in columns]
    return labels, [(name, [row.get(layer) for layer in columns]) for name, row in rows.items()]


def lines_of_session(entries: Sequence[Mapping[str, Any]], _: object) -> list[str]:
    """Return a line of figures for each way in which cells that passed have scored.

    A cell that failed has them in its message.
    """
    lines = []
    for way in scored_ways(entry for entry in entries if entry["outcome"] == "pass"):
        pairs = zip(FIGURES, way.figures, strict=True)
        figures = ", ".join(f"{name} {figure}" for name, figure in pairs if figure != ".")
        if figures:
            lines.append(f"{way.nodeid} ({way.way}): {figures}")
    more = len(lines) - MOST_LINES
    return lines if more <= 0 else [*lines[:MOST_LINES], f"figures of {more} more in report.json"]
