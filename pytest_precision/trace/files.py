"""Files of a trace: an index is whole or not there, and bytes are mapped rather than read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


def write_whole(path: Path, value: Any) -> None:
    """Write `value` as JSON and move it into place, so that no partial file looks whole."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value))
    os.replace(partial, path)


def mapped(path: Path) -> Tensor:
    """Map a file into memory, copy-on-write, as a tensor of uint8."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="c"))
