"""What a layout on the distributed optimizer makes of a workload's model, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pytest_precision.cell import Cell
from pytest_precision.layouts.parts import Parts, alone, values
from pytest_precision.layouts.storage import DTYPES, resident
from pytest_precision.modules.parameter import QuantizedParameter
from pytest_precision.workloads.base import Workload


class Arranged(NamedTuple):
    """What was put into a model.

    Attributes:
        parts: what those of its parameters hold that hold not just themselves.
        names: prefixes of names in the model to what they are in every layout.
    """

    parts: Parts
    names: Mapping[str, str]


Arrange = Callable[[nn.Module, Cell], Arranged]
"""Puts modules of its own into a model that is stored and quantized already, in place."""


@dataclass(frozen=True)
class Options:
    """Of the distributed optimizer; see `layouts.distributed_optimizer`."""

    bucket_size: int = 4096
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    reuse_grad_buffer_for_param_gather: bool = False
    main_grads_dtype: torch.dtype = torch.float32
    exp_avg_dtype: torch.dtype = torch.float32
    exp_avg_sq_dtype: torch.dtype = torch.float32
    store_param_remainders: bool = False

    def __post_init__(self) -> None:
        size = self.bucket_size
        if type(size) is not int or size < 1:
            raise ValueError(
                f"expected elements from 1 but got bucket_size={size!r} ({type(size).__name__}); "
                "leave it out for a few buckets of the built-in workloads"
            )

    @property
    def unobservable(self) -> dict[str, str]:
        """Kinds that cannot be shown after every phase, each with the reason."""
        hidden = {}
        if self.overlap_grad_reduce:
            hidden["grad"] = "overlap_grad_reduce reduces gradients inside backward"
        if self.overlap_param_gather:
            late = "overlap_param_gather brings parameters up to date when they are read"
            hidden |= dict.fromkeys(("param", "quantized", "scale", "amax"), late)
        return hidden

    @classmethod
    def of(cls, cell: Cell, **options: Any) -> Options:
        """With dtypes by their names.

        Raises:
            ValueError: for a dtype or a size that cannot be, and for an option without effect.
        """
        if options.get("reuse_grad_buffer_for_param_gather") and not (
            cell.primary_weight == "quantized" and cell.precision == "mxfp8"
        ):
            raise ValueError(
                "expected quantized mxfp8 primary weights, which live outside the buffers, for "
                "reuse_grad_buffer_for_param_gather=True but got "
                f"precision={cell.precision!r}, primary_weight={cell.primary_weight!r} (str); "
                "leave the option out"
            )
        if options.get("store_param_remainders") and cell.primary_weight != "bf16":
            raise ValueError(
                "expected bf16 primary weights, which are the upper halves of their masters, for "
                f"store_param_remainders=True but got primary_weight={cell.primary_weight!r} (str);"
                " leave the option out"
            )
        named: dict[str, Any] = {
            name: _dtype(name, value) if name.endswith("_dtype") else value
            for name, value in options.items()
        }
        return cls(**named)


@dataclass(frozen=True)
class Group:
    """A parameter group of the workload.

    Attributes:
        options: all but the parameters.
        names: of the logical tensors in it.
    """

    options: Mapping[str, Any]
    names: frozenset[str]


@dataclass(frozen=True)
class Arrangement:
    """A model as a layout stores it.

    Attributes:
        model: with the resident parameters.
        parts: what its parameters hold.
        names: prefixes of names in the model to what they are in every layout.
        initial: values that the masters start from, by the names of the logical tensors.
        from_dequantized: logical tensors that only the quantized weight was left of.
        groups: of the workload.
    """

    model: nn.Module
    parts: Parts
    names: Mapping[str, str]
    initial: Mapping[str, Tensor]
    from_dequantized: tuple[str, ...]
    groups: tuple[Group, ...]

    @classmethod
    def of(
        cls, workload: Workload, cell: Cell, layout: str, arrange: Arrange | None
    ) -> Arrangement:
        """Make the model of a workload and store it as the cell says.

        Raises:
            ValueError: for a cell that `layout` does not do.
        """
        model = workload.model(cell)
        initial = {name: p.detach().clone() for name, p in model.named_parameters()}
        names = {id(p): name for name, p in model.named_parameters()}
        groups = tuple(
            Group(
                {key: value for key, value in group.items() if key != "params"},
                frozenset(names[id(p)] for p in group["params"]),
            )
            for group in workload.groups(model)
        )
        model, _ = resident(model, cell, layout)
        arranged = Arranged({}, {}) if arrange is None else arrange(model, cell)
        parts = {
            # A tied parameter is used under each of its names.
            name: arranged.parts.get(name) or alone(name, p)
            for name, p in model.named_parameters(remove_duplicate=False)
        }
        lost: list[str] = []
        for name, parameter in model.named_parameters():
            if isinstance(parameter, QuantizedParameter):
                kept = parameter.high_precision_init
                if kept is None:
                    lost += [part.name for part in parts[name]]
                source = parameter.dequantize() if kept is None else kept
                initial |= {n: value.float() for n, value in values(parts[name], source)}
                parameter.clear_high_precision_init()
        return cls(model, parts, arranged.names, initial, tuple(lost), groups)


_KNOWN = ("fp32", "bf16")


def _dtype(option: str, name: str) -> torch.dtype:
    # Scaled dtypes are missing: a scale of a whole shard depends on where it was cut.
    if name not in _KNOWN:
        raise ValueError(
            f"expected {option} to be one of {', '.join(_KNOWN)} but got {option}={name!r} "
            f"({type(name).__name__}); dtypes are given by these names"
        )
    return DTYPES[name]
