"""Backend: whether number formats are emulated or quantized by Transformer Engine, and why.

The decision is made of plain data. Collection, which must not import torch, knows a part of it:
what is installed. A rank knows the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

Capability = tuple[int, int]
"""Compute capability of a GPU: major and minor."""

Release = tuple[int, int]
"""Release of Transformer Engine: major and minor."""


class Support(NamedTuple):
    """GPUs that Transformer Engine has a precision on, as it is emulated.

    Attributes:
        first: the least compute capability.
        until: the least one, beyond `first`, that is not meant; None where there is none.
        since: the first release whose quantizers run there and make the numbers of the emulation.
    """

    first: Capability
    until: Capability | None = None
    since: Release = (2, 8)

    def __str__(self) -> str:
        text = (
            f"Transformer Engine {_dotted(self.since)} or later and a GPU of compute capability "
            f"{_dotted(self.first)} or higher"
        )
        return text if self.until is None else f"{text}, below {_dotted(self.until)}"


# `check_fp8_support` and its siblings in transformer_engine/pytorch/quantization.py. What these ask
# of CUDA and cuBLAS beside the GPU is for GEMMs, and only quantizers are called here.
# MXFP8 before 2.13 did not scale blocks of e8m0 code 0. NVFP4 before 2.14 divided by 6 where it now
# multiplies by 1/6, which is another e4m3 scale now and then; beyond capability 10.x its stochastic
# rounding stopped the GPU before 2.19.
SUPPORT = {
    "fp8_delayed": (Support((8, 9)),),
    "fp8_current": (Support((8, 9)),),
    "fp8_block": (Support((9, 0)),),
    "mxfp8": (Support((10, 0), until=(12, 0), since=(2, 13)),),
    "nvfp4": (Support((10, 0), until=(11, 0), since=(2, 14)), Support((11, 0), since=(2, 19))),
}
"""The precisions that have quantized formats, and what each of them needs one of."""


class Machine(NamedTuple):
    """What a rank has.

    Attributes:
        transformer_engine: its version; None where it is not installed, or cannot be imported.
        capability: of the rank's GPU; None where it runs on the CPU.
        problem: why Transformer Engine cannot be imported, empty where it can or is not there.
    """

    transformer_engine: str | None
    capability: Capability | None
    problem: str = ""

    def __str__(self) -> str:
        engine = "no Transformer Engine"
        if self.transformer_engine is not None:
            engine = f"Transformer Engine {self.transformer_engine}"
        elif self.problem:
            engine = f"a Transformer Engine that cannot be imported ({self.problem})"
        if self.capability is None:
            return f"{engine} and ranks on the CPU"
        return f"{engine} and compute capability {_dotted(self.capability)}"


class Choice(NamedTuple):
    """What was taken.

    Attributes:
        backend: "emulated" or "native".
        reason: why.
    """

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


class BackendError(RuntimeError):
    """Native formats were asked for that cannot be had.

    Ask for `auto`, which takes them where they are, or for `emulated`.
    """


def choose(asked: str, precision: str, machine: Machine) -> Choice:
    """The backend for cells of a precision.

    Args:
        asked: `auto`, `emulated` or `native`.
        precision: one of `SUPPORT`.
        machine: that the cell runs on.

    Raises:
        BackendError: `native` was asked for, and is not there for this precision.
    """
    if asked == "emulated":
        return Choice("emulated", "it was asked for")
    if _has(precision, machine):
        return Choice("native", str(machine))
    if asked == "native":
        raise BackendError(_refusal(precision, str(machine)))
    return Choice("emulated", f"native {precision} needs {_needs(precision)}; here is {machine}")


def decide(asked: str, precision: str, device: str) -> Choice:
    """As `choose`, on this process's GPU; Transformer Engine is imported where all else is there.

    Args:
        asked: `auto`, `emulated` or `native`.
        precision: one of `SUPPORT`.
        device: `cpu` or `cuda`.

    Raises:
        BackendError: as `choose`.
    """
    machine = Machine(installed(), None)
    if device == "cuda" and asked != "emulated":
        import torch

        machine = machine._replace(capability=torch.cuda.get_device_capability())
    choice = choose(asked, precision, machine)
    if choice.backend == "native":
        try:
            import_module("transformer_engine.pytorch")
        except Exception as error:  # it looks for CUDA's libraries, and asserts
            problem = f"{type(error).__name__}: {error}".partition("\n")[0]
            return choose(asked, precision, Machine(None, machine.capability, problem))
    return choice


class Asked(NamedTuple):
    """What the cells of one precision of a test ask for, as it is known without torch.

    Attributes:
        test: node id, without parameters.
        precision: one of `SUPPORT`.
        backend: `auto`, `emulated` or `native`.
        device: of `--precision-device`.
    """

    test: str
    precision: str
    backend: str
    device: str


def refusals(asked: Iterable[Asked]) -> list[str]:
    """Messages on what asks for `native` and cannot have it, whatever GPU there is."""
    return [
        f"{one.test}: {_refusal(one.precision, lacks)}"
        for one in asked
        if one.backend == "native" and (lacks := _missing(one.precision, one.device))
    ]


def announcements(asked: Iterable[Asked]) -> list[str]:
    """What can be said, each thing once, before any rank has looked at its GPU."""
    return list(dict.fromkeys(map(_announced, asked)))


def _announced(one: Asked) -> str:
    lacks = _missing(one.precision, one.device)
    if one.backend == "emulated" or lacks:
        return "number formats emulated" + (f": {lacks}" if one.backend == "auto" else "")
    where = " where the GPU has them" if one.backend == "auto" else ""
    return f"number formats native{where}: Transformer Engine {installed()}"


def _missing(precision: str, device: str) -> str:
    """What a native format lacks as far as it is known without torch; empty where nothing is."""
    lacks = []
    engine = installed()
    if engine is None:
        lacks.append("no Transformer Engine")
    elif release(engine) < min(one.since for one in SUPPORT[precision]):
        lacks.append(f"a Transformer Engine too old for {precision} ({engine})")
    if device == "cpu":
        lacks.append("ranks on the CPU")
    return " and ".join(lacks)


def installed() -> str | None:
    """The version of Transformer Engine, read without importing it."""
    try:
        return version("transformer-engine")
    except PackageNotFoundError:
        return None


def release(version: str) -> Release:
    """The release that a version of Transformer Engine belongs to."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _refusal(precision: str, got: str) -> str:
    return (
        f"expected {_needs(precision)} for {precision} with --precision-backend=native but got "
        f"{got}; take --precision-backend=auto or emulated, or leave {precision} out of the matrix"
    )


def _has(precision: str, machine: Machine) -> bool:
    engine, capability = machine.transformer_engine, machine.capability
    if engine is None or capability is None:
        return False
    return any(
        one.since <= release(engine)
        and one.first <= capability
        and (one.until is None or capability < one.until)
        for one in SUPPORT[precision]
    )


def _needs(precision: str) -> str:
    return ", or ".join(map(str, SUPPORT[precision]))


def _dotted(pair: Capability | Release) -> str:
    return "{}.{}".format(*pair)
