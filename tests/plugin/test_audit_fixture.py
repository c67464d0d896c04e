"""The fixture `precision_audit`, which needs neither a cell nor an option."""

from __future__ import annotations

import pytest
import torch  # noqa: F401, see conftest.py

TESTS = """
    import torch
    from pytest_precision import Audit

    def test_it(precision_audit):
        model = torch.nn.Linear(3, 2).to({dtype})
        found = precision_audit(model, torch.optim.AdamW(model.parameters()){options})
        assert isinstance(found, Audit)
        assert [row.name for row in found.rows] == ["weight", "bias"]
"""


@pytest.mark.parametrize(
    ("dtype", "options", "outcome"),
    [
        ("torch.float32", "", "passed"),
        ("torch.bfloat16", "", "failed"),
        ("torch.float32", ", fail_on='note'", "failed"),
    ],
)
def test_a_test_fails_where_an_error_is_found(
    pytester: pytest.Pytester, dtype: str, options: str, outcome: str
) -> None:
    """Or something less bad, if it asks for that."""
    pytester.makepyfile(TESTS.format(dtype=dtype, options=options))
    found = pytester.runpytest_inprocess()
    found.assert_outcomes(**{outcome: 1})
    if outcome == "failed":
        found.stdout.fnmatch_lines(["E * [[]*[]]", "*AuditError*"])


def test_an_unknown_severity_is_refused(pytester: pytest.Pytester) -> None:
    """With the known ones."""
    pytester.makepyfile(TESTS.format(dtype="torch.float32", options=", fail_on='grave'"))
    found = pytester.runpytest_inprocess()
    found.stdout.fnmatch_lines(["*expected fail_on to be one of error, warning, note but got*"])
