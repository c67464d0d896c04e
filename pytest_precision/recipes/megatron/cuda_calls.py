"""Make Megatron-core's CUDA calls work without a GPU and without Transformer Engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is Tensor.cuda:
            return args[0]
        result = func(*args, **kwargs)
        names_type = func is Tensor.type and len(args) == 1
        return result.replace("torch.", "torch.cuda.") if names_type else result


@contextmanager
def on_cpu() -> Iterator[None]:
    """Make Megatron-core's calls of CUDA work on a machine without a GPU, during the block."""
    current = patch("torch.cuda.current_device", lambda: torch.device("cpu"))
    with _OnCpu(), current, patch("torch.cuda.synchronize", lambda *_: None):
        yield
