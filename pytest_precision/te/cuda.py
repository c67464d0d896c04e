"""Replacements of `torch.cuda`'s functions that report one idle GPU on a machine without any."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from pytest_precision._torch.dispatch import start_cuda_at_once
from pytest_precision.te.device import HERE

CAPABILITY = (10, 0)
"""The compute capability that Transformer Engine is told: the one with the most recipes.

Block scaling is native to 9.0; on 10.0 Transformer Engine computes it with MXFP8's GEMM."""


class _Properties:
    """Properties of a fake GPU: those that Transformer Engine reads from torch."""

    name = "CPU"
    multi_processor_count = 132
    total_memory = 80 << 30
    shared_memory_per_block_optin = 227 << 10

    def __init__(self, capability: tuple[int, int]) -> None:
        self.major, self.minor = capability


class _Stream:
    """A fake CUDA stream, whose work is always complete."""

    cuda_stream = 0
    stream_id = 0
    device = HERE

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def record(self, *_: Any) -> None:
        pass

    synchronize = wait = wait_event = wait_stream = record


class _Event(_Stream):
    """A fake CUDA event, which is always complete."""

    def elapsed_time(self, other: Any) -> float:
        return 0.0


def enter(capability: tuple[int, int] = CAPABILITY) -> None:
    """Patch `torch.cuda` so that this process sees one GPU of a given compute capability.

    Args:
        capability: compute capability of the device; recipes depend on it.
    """
    for name, value in {**_answers(capability), **_generators()}.items():
        setattr(torch.cuda, name, value)
        if hasattr(torch.cuda.random, name):
            setattr(torch.cuda.random, name, value)
    start_cuda_at_once()
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, _saying(None))
    if torch.version.cuda is None:
        torch.version.cuda = "13.1"  # the recipe of block scaling asks for 12.9 or later


def _answers(capability: tuple[int, int]) -> dict[str, Any]:
    properties, main = _Properties(capability), _Stream()
    constant = {
        "is_available": True,
        "is_initialized": True,
        "is_current_stream_capturing": False,
        "is_bf16_supported": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": capability,
        "get_device_name": properties.name,
        "get_device_properties": properties,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "mem_get_info": (properties.total_memory, properties.total_memory),
        "current_stream": main,
        "default_stream": main,
    }
    functions: dict[str, Any] = {name: _saying(value) for name, value in constant.items()}
    functions |= dict.fromkeys(
        ("init", "set_device", "set_stream", "synchronize", "empty_cache"), _saying(None)
    )
    functions |= dict.fromkeys(("stream", "device", "device_of"), _saying(contextlib.nullcontext()))
    return functions | {"Stream": _Stream, "ExternalStream": _Stream, "Event": _Event}


def _generators() -> dict[str, Any]:
    """Return replacements of `torch.cuda`'s random functions that use the CPU's generator."""
    generator = torch.default_generator
    return {
        "manual_seed": generator.manual_seed,
        "manual_seed_all": generator.manual_seed,
        "seed": generator.seed,
        "initial_seed": generator.initial_seed,
        "get_rng_state": lambda *_, **__: generator.get_state(),
        "set_rng_state": lambda state, *_, **__: generator.set_state(state),
        "default_generators": (generator,),
    }


def _saying(value: Any) -> Any:
    return lambda *_, **__: value
