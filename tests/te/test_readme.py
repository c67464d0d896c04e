"""The first example of the README where Transformer Engine does not run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
@pytest.mark.usefixtures("without_wheel")
def test_its_cells_are_skipped_with_the_reason(pytester: pytest.Pytester) -> None:
    """A newcomer without the wheel has a green session that says what to install."""
    (block,) = re.findall(r"```python\n(# test_mine\.py\n.*?)```", README.read_text(), re.DOTALL)
    pytester.makepyfile(test_mine=block)
    result = pytester.runpytest_inprocess("--precision-matrix", "-rs")
    result.assert_outcomes(skipped=6)
    missing = "expected Transformer Engine's wheel but got none installed"
    result.stdout.fnmatch_lines([f"*Transformer Engine: {missing}; pip install*"])
