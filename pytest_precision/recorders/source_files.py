"""Which source files are torch's, and which are this package's that only pass calls on."""

from __future__ import annotations

import os
from pathlib import Path

import torch

TORCH = os.path.dirname(torch.__file__) + os.sep
PACKAGE_ROOT = str(Path(__file__).parents[1]) + os.sep
OURS = PACKAGE_ROOT + os.path.join("recorders", "")
PASSING_ON = tuple(OURS + name for name in ("torch_hooks.py", "products.py"))
"""The recorders' modules that the user's code calls torch through: they only pass its calls on."""

LOGGING = (
    PACKAGE_ROOT + os.path.join("recorders", "lines") + os.sep,
    PACKAGE_ROOT + "_torch" + os.sep,
)
"""Folders of the modules that stand around each operation which is logged."""
