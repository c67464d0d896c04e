"""Environment: versions without imports."""

from __future__ import annotations

import subprocess
import sys

from pytest_precision.report.provenance import differing


def test_versions_without_importing_torch():
    """No module of the report imports torch, and yet its version is known."""
    code = (
        "import sys, pytest_precision.report.session\n"
        "from pytest_precision.report.provenance import environment\n"
        "found = environment(device='cpu', flags={'shard': '1/2'})\n"
        "assert found['versions']['torch'] and found['versions']['python']\n"
        "assert found['device'] == 'cpu' and found['flags'] == {'shard': '1/2'}\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_what_differs_between_sides_is_told_apart():
    """A name that one side lacks differs; sides that are alike leave nothing."""
    ours = {"torch": "2.13", "seed": "1", "NVTE_FLASH_ATTN": "0"}
    theirs = {"torch": "2.12", "seed": "1"}
    assert differing({"candidate": ours, "reference": theirs}) == {
        "candidate": {"torch": "2.13", "NVTE_FLASH_ATTN": "0"},
        "reference": {"torch": "2.12"},
    }
    assert differing({"candidate": ours, "reference": dict(ours)}) == {}
