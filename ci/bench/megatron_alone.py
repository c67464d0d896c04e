"""pytest -p megatron_alone: Megatron-core's unit tests without what only its own image has.

Their conftest downloads data sets when a session starts, which the tests that ci/te runs do not
read. And Megatron-core is written for Python 3.12, of which it needs one name.
"""

from __future__ import annotations

import sys
import typing
from pathlib import Path
from types import ModuleType

import typing_extensions

DOWNLOAD = "tests.test_utils.python_scripts.download_unit_tests_dataset"


def download_and_extract_asset(assets_dir: Path) -> bool:
    """Download nothing, and say that it is there."""
    return True


module = ModuleType(DOWNLOAD)
module.download_and_extract_asset = download_and_extract_asset  # type: ignore[attr-defined]
sys.modules[DOWNLOAD] = module
if not hasattr(typing, "override"):
    typing.override = typing_extensions.override  # type: ignore[attr-defined]
