"""Safetensors: tensors in a file that other languages read: a JSON header, and bytes after it.

The format is eight bytes with the length of the header, the header, and the tensors one after the
other. It is written and read here without its package, which would be needed for nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_precision.errors import expected_but_got
from pytest_precision.trace.digests import bytes_of, in_order
from pytest_precision.trace.files import mapped, regular

SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Names of dtypes in the format."""

HEADER_BYTES = 100 << 20
"""Bytes that a header may have, as in the format's own package."""


class _Placed(NamedTuple):
    name: str
    tensor: Tensor
    start: int
    stop: int


def write_safetensors(path: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write named tensors; one of a dtype that the format lacks is written as its bytes.

    Raises:
        ValueError: two have one name.
        OSError: the file cannot be written.
    """
    names = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}
    header: dict[str, Any] = {}
    placed: list[_Placed] = []
    end = 0
    for name, tensor in tensors:
        if name in header:
            raise ValueError(expected_but_got("tensors with a name each", f"{name!r} twice"))
        nbytes = tensor.numel() * tensor.element_size()
        known = names.get(tensor.dtype)
        header[name] = {
            "dtype": known or "U8",
            "shape": [*tensor.shape] if known else [nbytes],
            "data_offsets": [end, end + nbytes],
        }
        placed.append(_Placed(name, tensor, end, end + nbytes))
        end += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for one in placed:
            held = in_order(one.tensor.detach())
            file.write(bytes_of(held))


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, which is mapped copy-on-write.

    Raises:
        ValueError: it is none; nothing of a tensor has been looked at then.
        OSError: it cannot be read.
    """
    with regular(path) as (file, size):
        held = mapped(file, size)
    length = int.from_bytes(held[:8].numpy().tobytes(), "little") if size >= 8 else size
    if length > min(size - 8, HEADER_BYTES):
        raise ValueError(expected_but_got(f"a safetensors file in {path.name}", f"{size} bytes"))
    header = json.loads(held[8 : 8 + length].numpy().tobytes())
    if type(header) is not dict:
        got = type(header).__name__
        raise ValueError(expected_but_got(f"an object as the header of {path.name}", got))
    header.pop("__metadata__", None)
    data = held[8 + length :]
    return {name: _tensor(name, said, data) for name, said in header.items()}


def _tensor(name: str, said: Any, data: Tensor) -> Tensor:
    try:
        dtype, shape = SAFETENSORS_DTYPES[said["dtype"]], [*map(_whole, said["shape"])]
        start, stop = map(_whole, said["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            expected_but_got("dtype, shape and offsets", f"{name!r}: {said}")
        ) from error
    if stop > data.numel() or stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(
            expected_but_got(
                f"{name!r} to be {shape} of {said['dtype']}", f"bytes {start} to {stop}"
            )
        )
    # A tensor may lie at any byte, which torch cannot view in place.
    return data[start:stop].clone().view(dtype).view(shape)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value
