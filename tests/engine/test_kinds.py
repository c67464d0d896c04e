"""Kinds: the table, what follows from it, and what engines really show."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_precision import Capture, Cell, layouts, workloads
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.kinds import KINDS, causal_rank

KINDS_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kinds.md"


def test_the_reference_lists_the_kinds() -> None:
    """The table for users is that of the package, in its order."""
    rows = [
        f"| `{name}` | {kind.meaning} | {kind.dtype} |{' yes' if kind.local else ''} |"
        for name, kind in KINDS.items()
    ]
    assert "\n".join(rows) + "\n\n" in KINDS_PAGE.read_text()


def test_state_without_a_row_comes_before_the_master() -> None:
    """Whatever an optimizer keeps is a cause of what it updates."""
    ranks = [causal_rank(kind) for kind in ("exp_avg_sq", "momentum_buffer", "master")]
    assert ranks == sorted(set(ranks))


def test_what_shows_a_kind_in_use_is_compared_before_it() -> None:
    """The kind that stands in for a hidden one is a kind, and is looked at first."""
    for name, kind in KINDS.items():
        if kind.shown_by:
            assert causal_rank(kind.shown_by) < causal_rank(name)


@pytest.mark.parametrize(
    "cell",
    [Cell("fp16"), Cell("fp8_delayed", primary_weight="quantized"), Cell("mxfp8")],
    ids=lambda cell: f"{cell.precision}-{cell.primary_weight}",
)
@pytest.mark.usefixtures("one_rank")
def test_an_engine_shows_what_the_table_says(cell: Cell) -> None:
    """Dtypes that the table names are those observed, and no kind is missing from it."""
    layout = layouts.adamw if cell.primary_weight == "fp32" else layouts.master_adamw
    engine, capture = layout(workloads.moe(), cell), Capture()
    engine.start(capture)
    engine.forward_backward(1)
    shown = [*engine.observe("forward_backward", capture), *engine.observe("end", capture)]
    for phase in STEP_PHASES[1:]:
        getattr(engine, phase)()
        shown += engine.observe(phase, capture)
    for seen in shown:
        kind = KINDS[seen.kind]
        dtype = str(seen.tensor.dtype).removeprefix("torch.")
        assert kind.dtype == dtype or kind.dtype.startswith("of the "), (seen.kind, dtype)
        assert seen.local == kind.local
