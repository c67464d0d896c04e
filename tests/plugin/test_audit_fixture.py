"""The fixture `precision_audit`, which needs neither a cell nor an option."""

from __future__ import annotations

import in_this_process  # noqa: F401
import pytest

TESTS = """
    import pytest
    import torch
    from pytest_precision import Audit

    @pytest.mark.parametrize(
        ("dtype", "options"),
        [
            pytest.param(torch.float32, {}, id="sound"),
            pytest.param(torch.bfloat16, {}, id="loses_updates"),
            pytest.param(torch.float32, {"fail_on": "note"}, id="strict"),
            pytest.param(torch.float32, {"fail_on": "grave"}, id="unknown"),
        ],
    )
    def test_it(precision_audit, dtype, options):
        model = torch.nn.Linear(3, 2).to(dtype)
        found = precision_audit(model, torch.optim.AdamW(model.parameters(), lr=1e-5), **options)
        assert isinstance(found, Audit)
        assert [row.name for row in found.rows] == ["weight", "bias"]
"""


def test_a_test_fails_where_an_error_is_found(pytester: pytest.Pytester) -> None:
    """Or something less bad, if it asks for that; an unknown severity is refused."""
    pytester.makepyfile(TESTS)
    found = pytester.runpytest_inprocess("-rA")
    found.assert_outcomes(passed=1, failed=3)
    found.stdout.fnmatch_lines(
        ["E * [[]*[]]", "*AuditError*", "*expected fail_on to be one of error, warning, note but*"]
    )
    found.stdout.fnmatch_lines(["PASSED *sound[]]"])
    for refused in ("loses_updates", "strict", "unknown"):
        found.stdout.fnmatch_lines([f"FAILED *{refused}[]]*"])
