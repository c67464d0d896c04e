"""Made-up verdicts, reports and cells: plain data, as the parity layer and pytest have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import product
from typing import Any

import pytest

from pytest_precision import Verdict
from pytest_precision.parity.culprit import CalledAt, Culprit, Following, ModuleErrors, SourceLine
from pytest_precision.parity.figures import DEFAULT_FIGURES
from pytest_precision.parity.verdict import Divergence, Ruling
from pytest_precision.report.cell_result import CellResult, CheckResult

NODEID = "test_moe.py::test_experts[bf16-train2-w2]"
AXES = {"precision": "bf16", "sequence": "train2", "world_size": 2}
RULED = {field.name for field in fields(Ruling)}
REASON = "param differs at step 2: 38 % of layers.0.weight, worst 1 ulp"


def divergence(**changes: Any) -> Divergence:
    """A divergence of layers.0.weight at step 2."""
    fields: dict[str, Any] = {
        "op": 1,
        "step": 2,
        "phase": "optimizer_step",
        "kind": "param",
        "name": "layers.0.weight",
        "rank": 0,
        "index": (3, 17),
        "candidate": 1.5,
        "reference": 1.25,
        "ulp": 1,
        "rel_l2": 1e-3,
        "mismatched": 0.38,
        "signature": "",
        "error": "",
        "evidence": {"looked_at": 1, "likewise": []},
    }
    return Divergence(**fields | changes)


def culprit(
    modules: Iterable[tuple[str, float | None, float | None]] = (), **changes: Any
) -> Culprit:
    """A clip at 100 for 0.3, in line 69 of train.py, with every field."""
    fields: dict[str, Any] = {
        "text": "first wrong value: aten.mul.Tensor in clip_grad_norm_, called at train.py:69: "
        "the reference multiplied by 0.3 here, the candidate by 100.0",
        "kind": "constant",
        "operation": "aten.mul.Tensor",
        "function": "train",
        "file": "train.py",
        "line": 69,
        "module": "blocks.0",
        "rank": 1,
        "constants": {"candidate": {"other": 100.0}, "reference": {"other": 0.3}},
        "reference": CalledAt(
            "aten.mul.Tensor", "train", "train.py", 69, (SourceLine(69, "    clip(model, 0.3)"),)
        ),
        "source": (SourceLine(68, "    loss.backward()"), SourceLine(69, "    clip(model, 100)")),
        "following": (
            Following(
                "aten.add.Tensor",
                "train.py",
                71,
                "aten.add.Tensor at train.py:71: the reference added 1",
            ),
        ),
        "modules": tuple(
            ModuleErrors(*row) for row in modules or [("blocks.0", 1e-7, 1e-3), ("head", 0.5, None)]
        ),
    }
    return Culprit(**fields | changes)


def verdict(outcome: str = "pass", reason: str = "", **changes: Any) -> dict[str, Any]:
    """A verdict as it crosses processes; `changes` are of its ruling, figures or other fields."""
    measured = {"observations": 96, "bytes": 4096, "seconds": 0.25}
    measured |= {name: changes.pop(name) for name in changes.keys() & DEFAULT_FIGURES.keys()}
    ruled = {name: changes.pop(name) for name in changes.keys() & RULED}
    own: dict[str, Any] = {
        "nodeid": NODEID,
        "axes": dict(AXES),
        "candidate": "layouts:grouped",
        "reference": "layouts:discrete",
        "workload": "workloads:moe",
        "criterion": "bitwise",
    } | changes
    less = outcome == "pass" and own["criterion"] != "bitwise"
    ruling = Ruling(outcome=outcome, reason=reason, **{"in_part": less} | ruled)
    return Verdict(ruling=ruling, figures=measured, **own).as_dict() | {"reason": reason}


def reports(
    *phases: tuple[str, str],
    verdicts: list[dict[str, Any]] | None = None,
    nodeid: str = NODEID,
    text: Any = None,
    raised: tuple[int, ...] = (),
    **extra: Any,
) -> list[pytest.TestReport]:
    """The reports of one run of a matrix cell: (phase, outcome) pairs, half a second each.

    `raised` are the positions of the verdicts whose errors the call has not caught.
    """
    return [
        pytest.TestReport(
            nodeid,
            ("test_moe.py", 1, "test_experts"),
            {},
            outcome,  # type: ignore[arg-type]
            text if outcome != "passed" or "wasxfail" in extra else None,
            when,  # type: ignore[arg-type]
            duration=0.5,
            precision_cell={"test": nodeid.partition("[")[0], "axes": dict(AXES)},
            precision=(verdicts or []) if when == "call" else [],
            precision_raised=raised if when == "call" else (),
            **extra if when == "call" else {},
        )
        for when, outcome in phases
    ]


def run(call: str = "passed", **more: Any) -> list[pytest.TestReport]:
    """The reports of a run whose fixtures work."""
    return reports(("setup", "passed"), ("call", call), ("teardown", "passed"), **more)


def cell(
    status: str = "pass",
    axes: dict[str, Any] | None = None,
    *,
    reason: str = "",
    number: int = 0,
    test: str = "test_moe.py::test_experts",
    entry: dict[str, Any] | None = None,
) -> CellResult:
    """How one cell ended."""
    axes = dict(AXES) if axes is None else axes
    nodeid = f"{test}[{'-'.join(map(str, axes.values()))}]"
    return CellResult(
        nodeid,
        test,
        axes,
        number,
        1,
        0.5,
        (CheckResult(status, reason, entry or {"axes": axes, "reason": reason}),),
    )


def matrix(
    status: Callable[[dict[str, Any]], str] = lambda axes: "pass",
    keep: Callable[[dict[str, Any]], bool] = lambda axes: True,
    test: str = "test_moe.py::test_experts",
    **axes: list[Any],
) -> list[CellResult]:
    """All points of the axes that are kept, each with its status."""
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return [
        cell(status(point), point, number=number, test=test)
        for number, point in enumerate(points)
        if keep(point)
    ]
