"""Figures of log-probabilities are in the terminal and on the page, with modules by layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages import entry, parse

from pytest_precision.report.score_tables import by_layer, lines_of_session

MODULES = [
    ("model.embed_tokens", 10, 0),
    ("model.layers.0.mlp", 10, 0),
    ("model.layers.1.mlp", 10, 5),
    ("model.layers.1.mlp.gate", 10, 1),
]


def scored(status: str = "pass", **changes: Any) -> dict[str, Any]:
    """A check that scored in one way."""
    statistics = {"rollout_probs_diff_max": 0.25, "k3_kl": "nan"}
    way = {"tokens": 10, "statistics": statistics, "modules": [[*row] for row in MODULES]}
    rollout = {"ways": {"left": way | {"rerouted": {"model.layers.1.mlp.gate": 3}}}, "bound": 0.5}
    return entry(status, rollout=rollout, culprit=None, **changes)


def test_modules_that_layers_have_alike_are_one_row() -> None:
    """Layers are the columns; what is in no layer has one of its own."""
    columns, rows = by_layer(MODULES)
    assert columns == ["0", "1", "outside"]
    assert rows == [
        ("model.embed_tokens", [None, None, 0.0]),
        ("model.layers.*.mlp", [0.0, 0.5, None]),
        ("model.layers.*.mlp.gate", [None, 0.1, None]),
    ]


def test_the_page_has_a_heat_map_of_modules_and_layers(
    make: Callable[..., Path],
) -> None:
    """Also of a cell that passed, with its figures."""
    page = parse(make(scored()))
    figures, *_ = (table for table in page.all("table") if "rollout_probs_diff_max" in table.text)
    assert "left" in figures.text
    assert "0.25" in figures.text
    (heat,) = page.all("table", **{"class": "heat"})
    rows = [[field.text for field in row.children] for row in heat.all("tr")]
    assert rows[0] == ["module", "0", "1", "outside"]
    assert rows[2] == ["model.layers.*.mlp", "=", "50 %", "."]
    assert "model.layers.1.mlp.gate" in page.text


def test_a_pass_has_its_figures_in_the_terminal() -> None:
    """A failure has them in its message; what is no number is left out."""
    (line,) = lines_of_session([scored(), scored("fail")], None)
    assert line.endswith("(left): rollout_probs_diff_max 0.25")
    *_, last = lines_of_session([scored() for _ in range(25)], None)
    assert last == "figures of 5 more in report.json"
