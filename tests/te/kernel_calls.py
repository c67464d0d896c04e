"""Calls of Transformer Engine's kernels: what went in, and what came out.

On a GPU they are recorded while its Python layer runs (`python tests/te/kernel_scenes.py FILE`).
Anywhere else the stand-in gets the same arguments, and has to return, and to write, the same.
"""

from __future__ import annotations

import functools
import hashlib
import lzma
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

FILE = Path(__file__).parents[2] / "fixtures" / "golden" / "kernels_h100.pt.xz"
"""What was recorded on an H100."""

LARGEST = 1 << 17
"""Bytes of a tensor that is kept; a larger one is a workspace, whose bytes say nothing."""

TRITON = {
    "permutation": (
        "make_row_id_map permute_with_mask_map unpermute_with_mask_map make_chunk_sort_map "
        "unpermute_with_mask_map_bwd_with_merging_probs sort_chunks_by_map"
    ),
    "cross_entropy": "cross_entropy_forward cross_entropy_backward",
    "pad": "pad_columnwise_scale_inv",
}
"""Functions that launch a kernel of Triton, by module of `transformer_engine.pytorch.triton`."""

QUANTIZED = "transformer_engine.pytorch.tensor.storage"


class Calls:
    """Recorded calls, as plain values and a pool of tensors.

    Attributes:
        calls: for each call its function, arguments, and what these and the result are afterwards.
        tensors: each tensor once.
        scene: calls of one kind in two scenes of different names are both recorded.
    """

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.tensors: list[Tensor] = []
        self._numbers: dict[str, int] = {}
        self._kinds: set[str] = set()
        self.scene = ""
        self._inside = False
        self._places: dict[tuple[Any, ...], int] = {}

    def save(self, path: Path) -> None:
        """Write them to a file, which `Replay` reads."""
        with lzma.open(path, "wb") as file:
            torch.save({"calls": self.calls, "tensors": self.tensors}, file)

    def watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that records its first call of each kind; calls in calls are none."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._places = {}
            given = self.plain([list(args), kwargs])
            kind = f"{self.scene} {name} {_kind(given, self.tensors)}"
            self._inside = True
            try:
                made = function(*args, **kwargs)
            finally:
                self._inside = False
            if kind not in self._kinds:
                self._kinds.add(kind)
                left = self.plain([list(args), kwargs])
                self.calls.append(
                    {"name": name, "given": given, "left": left, "made": self.plain(made)}
                )
            return made

        return call

    def plain(self, value: Any) -> Any:
        """Return a value in dictionaries, lists, numbers, texts and places of tensors."""
        if value is None or (isinstance(value, (bool, int, float, str)) and not _is_enum(value)):
            return value
        if isinstance(value, (list, tuple)):
            return [self.plain(one) for one in value]
        if isinstance(value, dict):
            return {"dict": {key: self.plain(one) for key, one in value.items()}}
        if hasattr(value, "get_metadata"):
            name = type(value).__name__.removesuffix("Storage") + "Storage"
            return {"storage": name, "given": self.plain(value.get_metadata())}
        if isinstance(value, Tensor):
            place = (value.data_ptr() if value.numel() else id(value), tuple(value.shape))
            alias = self._places.setdefault(place, len(self._places))
            return {"tensor": self._number(value), "alias": alias}
        if _is_enum(value):
            return {"enum": type(value).__name__, "value": int(value)}
        if isinstance(value, (torch.dtype, torch.device)):
            return {"torch": str(value).removeprefix("torch.")}
        if type(value).__name__.endswith("Quantizer"):
            kept = {k: v for k, v in vars(value).items() if not callable(v)}
            return {"quantizer": type(value).__name__, "attributes": self.plain(kept)}
        return {"unknown": type(value).__name__}

    def _number(self, tensor: Tensor) -> int:
        tensor = tensor.detach().as_subclass(Tensor)
        if tensor.nbytes > LARGEST:
            kept = torch.empty(0, dtype=tensor.dtype)
        else:
            kept = tensor.cpu().contiguous().clone()
        raw = kept.reshape(-1).view(torch.uint8).numpy().tobytes() if kept.numel() else b""
        shape = tuple(tensor.shape)
        key = f"{hashlib.sha256(raw).hexdigest()} {kept.dtype} {shape}"
        if key not in self._numbers:
            self._numbers[key] = len(self.tensors)
            self.tensors.append(kept)
        return self._numbers[key]


def _is_enum(value: Any) -> bool:
    return hasattr(type(value), "__members__")


def _kind(given: Any, tensors: list[Tensor]) -> str:
    """Return what tells kinds of calls apart: all but the values in tensors."""
    if isinstance(given, dict):
        if "tensor" in given:
            tensor = tensors[given["tensor"]]
            return f"{tensor.dtype}{tensor.dim()}{tensor.numel() > 0}"
        return "{" + ",".join(f"{key}:{_kind(one, tensors)}" for key, one in given.items()) + "}"
    if isinstance(given, list):
        return "[" + ",".join(dict.fromkeys(_kind(one, tensors) for one in given)) + "]"
    return "number" if isinstance(given, float) else repr(given)


@contextmanager
def recorded(names: list[str]) -> Iterator[Calls]:
    """Record what is called of the compiled module, by name, and of Triton's kernels."""
    import transformer_engine.pytorch  # noqa: F401 (its modules are looked through)

    calls, compiled = Calls(), sys.modules["transformer_engine_torch"]
    own = {name: getattr(compiled, name) for name in names if hasattr(compiled, name)}
    for area, functions in TRITON.items():
        module = import_module(f"transformer_engine.pytorch.triton.{area}")
        own |= {f"{area}.{name}": getattr(module, name) for name in functions.split()}
    # Modules have imported them by name, so that each has its own reference.
    watched = {id(function): calls.watched(name, function) for name, function in own.items()}
    with ExitStack() as stack:
        for module in [*sys.modules.values()]:
            if getattr(module, "__name__", "").startswith("transformer_engine"):
                for name, value in [*vars(module).items()]:
                    if id(value) in watched:
                        stack.enter_context(patch.object(module, name, watched[id(value)]))
        yield calls


class Replay:
    """Recorded calls whose arguments are made again on the CPU."""

    def __init__(self, path: Path) -> None:
        with lzma.open(path) as file:
            found = torch.load(BytesIO(file.read()), weights_only=True)
        self.calls, self.tensors = found["calls"], found["tensors"]

    def arguments(self, call: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call, which nobody else has."""
        self._aliases: dict[int, Tensor] = {}
        args, kwargs = self._made(call["given"])
        return args, kwargs

    def _made(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._made(one) for one in value]
        if not isinstance(value, dict):
            return value
        [kind, *_] = value
        if kind == "tensor":
            made = self.tensors[value[kind]].clone()
            return self._aliases.setdefault(value["alias"], made)
        if kind == "dict":
            return {key: self._made(one) for key, one in value[kind].items()}
        if kind == "torch":
            return (
                getattr(torch, value[kind]) if hasattr(torch, value[kind]) else torch.device("cuda")
            )
        if kind == "enum":
            return getattr(sys.modules["transformer_engine_torch"], value[kind])(value["value"])
        if kind == "storage":
            given = self._made(value["given"])
            return getattr(import_module(QUANTIZED), value[kind])(**given)
        if kind == "quantizer":
            pytorch = import_module("transformer_engine.pytorch")
            made = object.__new__(getattr(pytorch, value[kind]))
            vars(made).update(self._made(value["attributes"]))
            return made
        raise ValueError(f"expected an argument of a known kind but got {value[kind]}")
