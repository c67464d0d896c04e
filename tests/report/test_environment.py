"""Environment: versions without imports."""

from __future__ import annotations

import subprocess
import sys


def test_versions_without_importing_torch():
    """No module of the report imports torch, and yet its version is known."""
    code = (
        "import sys, pytest_precision.report.session\n"
        "from pytest_precision.report.environment import environment\n"
        "found = environment(device='cpu', flags={'shard': '1/2'})\n"
        "assert found['versions']['torch'] and found['versions']['python']\n"
        "assert found['device'] == 'cpu' and found['flags'] == {'shard': '1/2'}\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
