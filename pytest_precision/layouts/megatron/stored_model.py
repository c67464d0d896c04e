"""A workload's model as the distributed optimizer stores it, and the optimizer's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got, named
from pytest_precision.layouts.dtypes import (
    STORED_MASTERS,
    STORED_MOMENTS,
    UNSCALED,
    resident,
    state_dtype,
)
from pytest_precision.layouts.megatron.packing import Parts, alone, logical_values
from pytest_precision.matrix.cell import Cell
from pytest_precision.modules.parameter import QuantizedParameter
from pytest_precision.workloads.base import Workload


class Arranged(NamedTuple):
    """Which tensors of the original model each parameter of a rearranged model holds.

    Attributes:
        parts: the logical tensors in each parameter that holds more than itself.
        names: prefix of names in the model to the prefix that every layout uses.
    """

    parts: Parts
    names: Mapping[str, str]


Arrange = Callable[[nn.Module, Cell], Arranged]
"""A function that puts modules of its own into a model that is already stored and quantized."""


_DTYPES = {
    "main_grads_dtype": UNSCALED,
    "main_params_dtype": STORED_MASTERS,
    "exp_avg_dtype": STORED_MOMENTS,
    "exp_avg_sq_dtype": STORED_MOMENTS,
}
"""Megatron-LM's options to the dtypes that they take."""


def hidden_by_overlaps(options: Any, cell: Cell) -> dict[str, str]:
    """Map each kind of tensor that overlapping communication makes unrecordable to the reason.

    Args:
        options: Megatron-core's, or `Options`, with `overlap_grad_reduce` and
            `overlap_param_gather`.
        cell: the point of the matrix.
    """
    hidden = {}
    if options.overlap_grad_reduce:
        hidden["grad"] = "overlap_grad_reduce reduces gradients inside backward"
    if options.overlap_param_gather:
        late = "overlap_param_gather brings parameters up to date when they are read"
        # Other scales and amaxes than those of parameters are up to date.
        stored = ("quantized", "scale", "amax") if cell.primary_weight == "quantized" else ()
        hidden |= dict.fromkeys(("param", *stored), late)
    return hidden


BUCKET_SIZE = 61 * 61
"""The number of elements of a matrix of `workloads.mlp`, which fills a bucket to the last one."""


@dataclass(frozen=True)
class Options:
    """Options of the distributed optimizer: bucket size, overlaps, dtypes of its tensors.

    See `layouts.distributed_optimizer`.
    """

    bucket_size: int = BUCKET_SIZE
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    reuse_grad_buffer_for_param_gather: bool = False
    main_grads_dtype: torch.dtype = torch.float32
    main_params_dtype: torch.dtype = torch.float32
    exp_avg_dtype: torch.dtype = torch.float32
    exp_avg_sq_dtype: torch.dtype = torch.float32
    store_param_remainders: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(getattr(type(self), name)) is bool and type(value) is not bool:
                raise ValueError(
                    expected_but_got("a bool", named(name, value), "write True or False")
                )
        size = self.bucket_size
        if type(size) is not int or size < 1:
            raise ValueError(
                expected_but_got(
                    "a whole number of elements from 1",
                    named("bucket_size", size),
                    "leave it out to have the default",
                )
            )

    @property
    def masters_in_state(self) -> bool:
        """Return whether the optimizer keeps masters in its state."""
        return self.store_param_remainders or self.main_params_dtype != torch.float32

    @classmethod
    def of(cls, cell: Cell, **options: Any) -> Options:
        """Make the distributed optimizer's options of keyword arguments, with dtypes given by name.

        Raises:
            ValueError: for an unknown dtype, an invalid size, and an option without effect.
        """
        named: dict[str, Any] = {
            name: state_dtype(name, value, _DTYPES[name]) if name in _DTYPES else value
            for name, value in options.items()
        }
        instance = cls(**named)
        instance._expect_effect(cell)
        return instance

    def _expect_effect(self, cell: Cell) -> None:
        """Raise ValueError for an option that does nothing, or not what it says, in `cell`."""
        if cell.grad_accum_fusion and self.main_grads_dtype != torch.float32:
            raise ValueError(
                "expected fp32 gradients, which is what GEMMs add to, for grad_accum_fusion=True "
                "but got main_grads_dtype='bf16' (str); leave one of them out"
            )
        stored = f"primary_weight={cell.primary_weight!r}"
        if self.reuse_grad_buffer_for_param_gather and not (
            cell.primary_weight == "quantized" and cell.precision == "mxfp8"
        ):
            raise ValueError(
                expected_but_got(
                    "quantized mxfp8 primary weights, which live outside the buffers, for "
                    "reuse_grad_buffer_for_param_gather=True",
                    f"precision={cell.precision!r}, {stored} (str)",
                    "leave the option out",
                )
            )
        scaled = self.main_params_dtype != torch.float32
        if scaled and cell.primary_weight not in ("bf16", "fp16"):
            raise ValueError(
                expected_but_got(
                    "primary weights of 16 bits, which the optimizer updates itself, for "
                    "main_params_dtype='fp16'",
                    f"{stored} (str)",
                    "leave the option out",
                )
            )
        if self.store_param_remainders and (cell.primary_weight != "bf16" or scaled):
            main = "fp16" if scaled else "fp32"
            raise ValueError(
                expected_but_got(
                    "bf16 primary weights, which are the upper halves of fp32 masters, for "
                    "store_param_remainders=True",
                    f"{stored}, main_params_dtype={main!r} (str)",
                    "leave the option out",
                )
            )


@dataclass(frozen=True)
class Arrangement:
    """A workload's model as a layout stores it, with initial values and parameter groups.

    Attributes:
        model: the model with the resident parameters.
        parts: the logical tensors in each of its parameters.
        names: prefix of names in the model to the prefix that every layout uses.
        initial: values that the masters start from, by the names of the logical tensors: those of
            the workload, unrounded.
        from_dequantized: logical tensors of which only the quantized weight was left.
        groups: parameter groups of the workload, with the names of logical tensors as `params`.
    """

    model: nn.Module
    parts: Parts
    names: Mapping[str, str]
    initial: Mapping[str, Tensor]
    from_dequantized: tuple[str, ...]
    groups: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, workload: Workload, cell: Cell, arrange: Arrange | None) -> Arrangement:
        """Make a workload's model, cast or quantize its parameters, and rearrange them."""
        model = workload.model(cell)
        initial_tensors = {name: p.detach().clone() for name, p in model.named_parameters()}
        names = {id(p): name for name, p in model.named_parameters()}
        groups = tuple(
            {**group, "params": frozenset(names[id(p)] for p in group["params"])}
            for group in workload.groups(model)
        )
        model, _ = resident(model, cell)
        arranged = Arranged({}, {}) if arrange is None else arrange(model, cell)
        parts = {
            # A tied parameter is used under each of its names.
            name: arranged.parts.get(name) or alone(name, p)
            for name, p in model.named_parameters(remove_duplicate=False)
        }
        lost: list[str] = []
        for name, parameter in model.named_parameters():
            if isinstance(parameter, QuantizedParameter):
                if parameter.high_precision_init is None:
                    lost += [part.name for part in parts[name]]
                    left = logical_values(parts[name], parameter.dequantize())
                    initial_tensors |= {name: value.float() for name, value in left}
                parameter.clear_high_precision_init()
        return cls(model, parts, arranged.names, initial_tensors, tuple(lost), groups)
