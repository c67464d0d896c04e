"""The mark of tests that need Transformer Engine's wheel, which the extra `te-cpu` installs."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

NEEDED = pytest.mark.skipif(
    find_spec("transformer_engine") is None,
    reason="needs Transformer Engine's wheel: pip install 'pytest-precision[te-cpu]'",
)
