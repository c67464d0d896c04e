"""Tracebacks of wrong arguments: the caller's line and the message, and nothing of the package."""

from __future__ import annotations

import pytest
import torch  # noqa: F401  in-process suites import it, and that cannot be done twice

CALLS = (
    'command("nope.py")',
    "parity.check(lambda workload, cell: None, layouts.ddp, workload=workloads.mlp)",
    "parity.check(layouts.adamw, layouts.ddp)",
    "parity.check(layouts.adamw, layouts.ddp, workload=workloads.mlp, criterion=3)",
    "parity.check(layouts.adamw, layouts.ddp, workload=workloads.mlp, reference_cell=3)",
    "parity.check(layouts.adamw, layouts.ddp, workload=workloads.mlp, max_lost_updates='x')",
    "parity.check(layouts.adamw, layouts.ddp, workload=workloads.mlp, contract=3)",
    'parity.compare("nope", "nope")',
    "cell.replace(nope=3)",
    'cell.replace(sequence="trian4")',
    "cell.replace(world_size=0)",
    "cell.nope",
    "ulp(-1)",
    'close(rtol="x", atol=0)',
    "norm(rel=-1)",
    'unchecked(reason="")',
)

HEAD = """
import pytest
from pytest_precision import close, command, layouts, norm, ulp, unchecked, workloads

pytestmark = pytest.mark.precision_matrix(precision=["fp32"])
"""

SHOWN = 7
"""Lines of a failure: its title, blank, the function's two lines, blank, the message, the place."""


def test_no_line_of_the_package_is_shown(pytester: pytest.Pytester) -> None:
    """An error about an argument shows the test's own lines and its message."""
    tests = (f"def test_{n}(parity, cell):\n    {call}\n" for n, call in enumerate(CALLS))
    pytester.makepyfile(test_it="\n\n".join([HEAD, *tests]))
    found = pytester.runpytest_inprocess("--precision-matrix", "-p", "no:cacheprovider")
    found.assert_outcomes(failed=len(CALLS))
    failures = found.stdout.str().partition("= FAILURES =")[2].partition("precision matrix")[0]
    sections = failures.split("\n____")[1:]
    assert len(sections) == len(CALLS)
    for call, section in zip(CALLS, sections, strict=True):
        lines = [line for line in section.splitlines() if not line.startswith(("====", "cell = C"))]
        assert not any("/pytest_precision/" in line for line in lines), section
        # pytest shows the arguments of a test above its lines.
        assert len([line for line in lines if line]) <= SHOWN, (call, section)


def test_what_is_no_bad_input_is_shown(pytester: pytest.Pytester) -> None:
    """An error that is not about an argument keeps each frame, also those of the package."""
    odd = 'type("Odd", (), {"__fspath__": lambda self: 1 / 0})()'
    pytester.makepyfile(test_it=f"{HEAD}\ndef test_it(cell):\n    command({odd})\n")
    found = pytester.runpytest_inprocess("--precision-matrix", "-p", "no:cacheprovider")
    found.assert_outcomes(failed=1)
    assert "scripts/command.py:" in found.stdout.str()
