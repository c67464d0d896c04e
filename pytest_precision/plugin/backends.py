"""Backends of number formats, as far as they are known before any rank has inspected its GPU.

Collection must not import torch, so it knows only what is installed and which device is requested.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pytest_precision.formats.backend import installed_version, native_refusal, release_of
from pytest_precision.matrix.precisions import PRECISIONS


class Asked(NamedTuple):
    """What the cells of one test and precision request.

    Attributes:
        test: node id, without parameters.
        precision: name of a quantized precision.
        backend: `auto`, `emulated` or `native`.
        device: value of `--precision-device`.
    """

    test: str
    precision: str
    backend: str
    device: str


def refusals(asked: Iterable[Asked]) -> list[str]:
    """Return a message for each test that asks for native formats which no GPU could give here."""
    return [
        f"{one.test}: {native_refusal(one.precision, lacks)}"
        for one in asked
        if one.backend == "native" and (lacks := _missing(one.precision, one.device))
    ]


def announcements(asked: Iterable[Asked]) -> list[str]:
    """Return what is known of the backends before any rank has inspected its GPU, each once."""
    return list(dict.fromkeys(map(_announced, asked)))


def _announced(one: Asked) -> str:
    lacks = _missing(one.precision, one.device)
    if one.backend == "emulated" or lacks:
        return "number formats emulated" + (f": {lacks}" if one.backend == "auto" else "")
    where = " where the GPU has them" if one.backend == "auto" else ""
    return f"number formats native{where}: Transformer Engine {installed_version()}"


def _missing(precision: str, device: str) -> str:
    """Return what is missing for a native format, as far as is known; empty if nothing is."""
    lacks = []
    engine = installed_version()
    native = PRECISIONS[precision].native
    if not native:
        lacks.append(f"no {precision} in Transformer Engine")
    elif engine is None:
        lacks.append("no Transformer Engine")
    elif release_of(engine) < min(one.since for one in native):
        lacks.append(f"a Transformer Engine too old for {precision} ({engine})")
    if device == "cpu":
        lacks.append("ranks on the CPU")
    return " and ".join(lacks)
