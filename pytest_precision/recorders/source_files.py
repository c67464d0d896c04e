"""Which source files are torch's, and which are this package's that only pass calls on."""

from __future__ import annotations

import os
from pathlib import Path

import torch

TORCH = os.path.dirname(torch.__file__) + os.sep
PACKAGE_ROOT = str(Path(__file__).parents[1]) + os.sep
OURS = tuple(PACKAGE_ROOT + folder + os.sep for folder in ("recorders", "probes"))
"""Folders of the modules that record and judge a run while it goes on."""

PASSING_ON = tuple(
    PACKAGE_ROOT + os.path.join("recorders", name) for name in ("torch_hooks.py", "products.py")
)
"""The recorders' modules that the user's code calls torch through: they only pass its calls on."""

LOGGING = (
    PACKAGE_ROOT + os.path.join("probes", "lines", "log") + os.sep,
    PACKAGE_ROOT + "_torch" + os.sep,
)
"""Folders of the modules that stand around each operation which is logged."""
