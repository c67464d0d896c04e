"""Links from a report page to the documentation of tensor kinds and of error patterns.

Pages leave the machine that made them, so that the addresses are whole and their anchors stay.
"""

from __future__ import annotations

DOCS = "https://github.com/pytest-precision/pytest-precision/blob/main/docs"

MEANING = f"{DOCS}/reference/report.md"
"""The page that says what each kind of culprit means, and where to look."""

WHERE_TO_LOOK = f"{DOCS}/how-to/read-a-failing-cell.md"

KINDS_WITH_A_ROW = (
    "master",
    "param",
    "used_param",
    "loss",
    "grad",
    "reduced_grad",
    "grad_norm",
    "final_grad",
    "lr",
    "hyper",
    "step",
    "exp_avg",
    "exp_avg_sq",
    "rng",
)
"""Kinds of which the table of where to look has a row."""

ERRORS_WITH_A_ROW = (
    "factor",
    "per rank",
    "loss scale",
    "zero",
    "rounded",
    "edge",
    "stretch",
    "transposed",
    "reordered",
    "stale",
    "other tensor",
    "not updated",
    "update",
    "not zeroed",
    "accumulation",
    "microbatches",
    "weights",
    "not finite",
    "sign of zero",
    "dtype",
    "shape",
    "missing",
    "extra",
    "replicas",
    "uncovered",
    "pieces",
)
"""Words for errors, of which the table of what a difference looks like has a row."""


def of_kind(kind: str) -> str:
    """Return the URL of advice on failures that begin in a tensor of `kind`, such as `grad`."""
    row = f"first-{kind}" if kind in KINDS_WITH_A_ROW else "where-to-look-by-the-first-kind"
    return f"{WHERE_TO_LOOK}#{row}"


def of_error(error: str) -> str:
    """Return the URL of advice on an error pattern, such as `factor`; empty if there is none."""
    has_row = error in ERRORS_WITH_A_ROW
    return f"{WHERE_TO_LOOK}#error-{error.replace(' ', '-')}" if has_row else ""
