"""The first example of the README where Transformer Engine does not run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_its_cells_are_skipped_with_the_reason(pytester: pytest.Pytester) -> None:
    """A newcomer without the wheel has a green session that says what is missing."""
    (block,) = re.findall(r"```python\n(# test_mine\.py\n.*?)```", README.read_text(), re.DOTALL)
    pytester.makepyfile(test_mine=block)
    result = pytester.runpytest_subprocess("--precision-matrix", "--precision-te=off", "-rs")
    result.assert_outcomes(skipped=6)
    result.stdout.fnmatch_lines(["*Transformer Engine: expected GPUs, or the stand-in*"])
