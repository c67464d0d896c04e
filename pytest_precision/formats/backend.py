"""Backend: whether number formats are emulated or quantized by Transformer Engine, and why.

The decision is made of plain data: what is installed, and which GPU a rank has.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from pytest_precision.errors import BackendError, expected_but_got
from pytest_precision.matrix.precisions import PRECISIONS, Capability, Release, dotted


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
        return f"{engine} and compute capability {dotted(self.capability)}"


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


def choose(asked: str, precision: str, machine: Machine) -> Choice:
    """The backend for cells of a precision.

    Args:
        asked: `auto`, `emulated` or `native`.
        precision: a quantized one.
        machine: that the cell runs on.

    Raises:
        BackendError: `native` was asked for, and is not there for this precision.
    """
    if asked == "emulated":
        return Choice("emulated", "it was asked for")
    if _has(precision, machine):
        return Choice("native", str(machine))
    if asked == "native":
        raise BackendError(refusal(precision, str(machine)))
    return Choice("emulated", f"native {precision} needs {_needs(precision)}; here is {machine}")


def decide(asked: str, precision: str, device: str) -> Choice:
    """As `choose`, on this process's GPU; Transformer Engine is imported where all else is there.

    Args:
        asked: `auto`, `emulated` or `native`.
        precision: a quantized one.
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


def refusal(precision: str, got: str) -> str:
    """Return what is said where `native` was asked for and cannot be had.

    Args:
        precision: a quantized one.
        got: what was found instead of what it needs.
    """
    return expected_but_got(
        f"{_needs(precision)} for {precision} with --precision-backend=native",
        got,
        f"take --precision-backend=auto or emulated, or leave {precision} out of the matrix",
    )


def _has(precision: str, machine: Machine) -> bool:
    engine, capability = machine.transformer_engine, machine.capability
    if engine is None or capability is None:
        return False
    return any(
        one.since <= release(engine)
        and one.first <= capability
        and (one.until is None or capability < one.until)
        for one in PRECISIONS[precision].native
    )


def _needs(precision: str) -> str:
    ways = map(str, PRECISIONS[precision].native)
    return ", or ".join(ways) or "a quantizer that no release of Transformer Engine has"
