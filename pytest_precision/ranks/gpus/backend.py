"""Choose whether number formats are emulated, or computed by Transformer Engine's kernels.

The decision depends on plain data alone: what is installed, and which GPU a rank has.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from pytest_precision.errors import BackendError, expected_but_got
from pytest_precision.matrix.precisions import PRECISIONS, Capability, Release, dotted


class Machine(NamedTuple):
    """Transformer Engine's version and the GPU of a rank.

    Attributes:
        transformer_engine: its version; None if it is not installed or cannot be imported.
        capability: compute capability of the rank's GPU; None if the rank runs on the CPU.
        problem: why Transformer Engine cannot be imported; empty if it can, or is not installed.
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
    """The chosen way to quantize, "emulated" or "native", and why it was chosen.

    Attributes:
        backend: "emulated" or "native".
        reason: why it was chosen.
    """

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def choose(requested_backend: str, precision: str, machine: Machine) -> Choice:
    """Choose "emulated" or "native" quantization for a precision on a given machine.

    Args:
        requested_backend: `auto`, `emulated` or `native`.
        precision: a quantized precision.
        machine: the machine that the cell runs on.

    Raises:
        BackendError: `native` was requested, and the machine cannot quantize this precision.
    """
    if requested_backend == "emulated":
        return Choice("emulated", "it was requested")
    if _has(precision, machine):
        return Choice("native", str(machine))
    if requested_backend == "native":
        raise BackendError(native_refusal(precision, str(machine)))
    return Choice("emulated", f"native {precision} needs {_needs(precision)}; here is {machine}")


def decide(requested_backend: str, precision: str, device: str) -> Choice:
    """Choose "emulated" or "native" quantization for a precision on this process's machine.

    Transformer Engine is imported only if its version and the GPU allow the native backend.

    Args:
        requested_backend: `auto`, `emulated` or `native`.
        precision: a quantized precision.
        device: `cpu` or `cuda`.

    Raises:
        BackendError: `native` was requested, and this process cannot quantize natively.
    """
    machine = Machine(installed_version(), None)
    if device == "cuda" and requested_backend != "emulated":
        import torch

        machine = machine._replace(capability=torch.cuda.get_device_capability())
    choice = choose(requested_backend, precision, machine)
    if choice.backend == "native":
        try:
            import_module("transformer_engine.pytorch")
        except Exception as error:  # its import looks for CUDA's libraries, and has assertions
            problem = f"{type(error).__name__}: {error}".partition("\n")[0]
            return choose(requested_backend, precision, Machine(None, machine.capability, problem))
    return choice


def installed_version() -> str | None:
    """Return the version of Transformer Engine without importing it; None if not installed."""
    try:
        return version("transformer-engine")
    except PackageNotFoundError:
        return None


def release_of(version: str) -> Release:
    """Return the release (major, minor) that a version of Transformer Engine belongs to."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def native_refusal(precision: str, got: str) -> str:
    """Return the error message that a machine, which has `got`, cannot run `precision` natively.

    Args:
        precision: a quantized precision.
        got: what the machine has instead of what the precision needs.
    """
    return expected_but_got(
        f"{_needs(precision)} for {precision} with --precision-backend=native",
        got,
        f"use --precision-backend=auto or emulated, or leave {precision} out of the matrix",
    )


def _has(precision: str, machine: Machine) -> bool:
    engine = machine.transformer_engine
    capability = machine.capability
    if engine is None or capability is None:
        return False
    return any(
        support.since <= release_of(engine)
        and support.first <= capability
        and (support.until is None or capability < support.until)
        for support in PRECISIONS[precision].native
    )


def _needs(precision: str) -> str:
    ways = map(str, PRECISIONS[precision].native)
    return ", or ".join(ways) or "a quantizer that no release of Transformer Engine has"
