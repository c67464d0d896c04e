"""Find optimizers inside wrappers, and the dtypes in which they keep and update parameters.

What it keeps is read from its state. Before the first step most have none, so it is read from what
the optimizer declares, or from what torch's optimizers do: they make state like the parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

MasterRounding = Literal["master", "stochastic", "compensated", "nearest", "unknown"]
"""What becomes of the part of an update that the parameter's dtype cannot hold."""

MASTER_NAMES = frozenset({"master_param", "master", "master_weight", "master_copy", "fp32_param"})
"""Names under which optimizers keep a master in their state."""

COMPENSATIONS = ("compensation", "kahan_comp", "shift", "residual")
"""Names under which optimizers keep what rounding has lost."""

TORCH_STATES: Mapping[str, tuple[str, ...]] = {
    "ASGD": ("ax",),
    "Adadelta": ("square_avg", "acc_delta"),
    "Adafactor": (),
    "Adamax": ("exp_avg", "exp_inf"),
    "LBFGS": (),
    "Muon": (),
    "RMSprop": ("square_avg",),
    "Rprop": ("prev", "step_size"),
    "SGD": (),
}
"""What optimizers of torch keep in the shape of every parameter; others are kinds of Adam."""

TORCH_OPTIONS = {
    "amsgrad": "max_exp_avg_sq",
    "momentum": "momentum_buffer",
    "centered": "grad_avg",
}
"""Options of theirs that keep one state more."""

PRECISE = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Holder:
    """An innermost optimizer, its name, and whether a framework, such as Megatron, wraps it.

    Attributes:
        optimizer: has `param_groups` and `state`.
        name: what messages call it: `torch AdamW`.
        in_framework: whether it lies in an object that is no optimizer of torch, such as those of
            Megatron and DeepSpeed, which copy masters to parameters.
    """

    optimizer: Any
    name: str
    in_framework: bool = False

    @classmethod
    def of(cls, optimizer: Any, *, in_framework: bool = False) -> Iterator[Holder]:
        """Yield the optimizers that update tensors, inside an optimizer's wrappers and chains."""
        of_framework = in_framework or not isinstance(optimizer, torch.optim.Optimizer)
        several = getattr(optimizer, "chained_optimizers", getattr(optimizer, "optimizers", None))
        if several is not None:
            parts = several.values() if isinstance(several, Mapping) else several
            for part in parts:
                yield from cls.of(part, in_framework=of_framework)
            return
        for attribute in ("optimizer", "optim"):
            inner = getattr(optimizer, attribute, None)
            if hasattr(inner, "param_groups"):
                yield from cls.of(inner, in_framework=of_framework)
                return
        kind = type(optimizer)
        of_torch = "torch " if kind.__module__.startswith("torch.") else ""
        yield cls(optimizer, f"{of_torch}{kind.__name__}", in_framework)

    def states(self, tensor: Tensor, group: Mapping[str, Any]) -> dict[str, torch.dtype] | None:
        """Return the dtypes of a tensor's optimizer state; None if unknown."""
        state = self.optimizer.state.get(tensor, {})
        if state:
            return {
                key: stored_dtype(value)
                for key, value in state.items()
                if isinstance(value, Tensor) and value.shape == tensor.shape and key != "step"
            }
        for dtypes_of in (_declared_by_optimizer, _transformer_engine, _any_precision, _torch):
            declared_dtypes: dict[str, torch.dtype] | None = dtypes_of(
                self.optimizer, tensor, group
            )
            if declared_dtypes is not None:
                return declared_dtypes
        return None

    def rounding(self, tensor: Tensor, group: Mapping[str, Any]) -> MasterRounding:
        """Return how updates of a tensor are rounded, such as `nearest` or `stochastic`."""
        states = self.states(tensor, group)
        if tensor.dtype in PRECISE or (states and not states.keys().isdisjoint(MASTER_NAMES)):
            return "master"
        if getattr(self.optimizer, "bf16_stochastic_round", group.get("stochastic_rounding")):
            return "stochastic"
        if states and not states.keys().isdisjoint(COMPENSATIONS):
            return "compensated"
        return "unknown" if states is None else "nearest"

    @property
    def moves_by_its_rate(self) -> bool:
        """Whether an element moves by about the learning rate in each step, as in Adam."""
        name = type(self.optimizer).__name__.lower()
        return "adam" in name or "lion" in name


def stored_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of a tensor's storage; for quantized tensors that of the codes."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.dtype
    names, _ = tensor.__tensor_flatten__()
    inner_dtypes = [stored_dtype(getattr(tensor, name)) for name in names]
    return min(inner_dtypes, key=lambda dtype: dtype.itemsize)


def _declared_by_optimizer(
    optimizer: Any, tensor: Tensor, _group: Any
) -> dict[str, torch.dtype] | None:
    if not hasattr(optimizer, "state_dtypes"):
        return None
    dtypes: dict[str, torch.dtype] = optimizer.state_dtypes(tensor)
    scalars = {"step", *(f"{name}_scale" for name in dtypes)}
    return {name: dtype for name, dtype in dtypes.items() if name not in scalars}


def _transformer_engine(
    optimizer: Any, tensor: Tensor, _group: Any
) -> dict[str, torch.dtype] | None:
    """Return the state dtypes of Transformer Engine's FusedAdam, from its attributes."""
    dtypes = getattr(optimizer, "name_to_dtype_map", None)
    if not isinstance(dtypes, Mapping) or "exp_avg" not in dtypes:
        return None
    state_dtypes = {name: dtypes[name] for name in ("exp_avg", "exp_avg_sq")}
    if getattr(optimizer, "master_weights", False):
        remainders = optimizer.store_param_remainders and tensor.dtype == torch.bfloat16
        state_dtypes["master_param"] = torch.int16 if remainders else dtypes["master_param"]
    return state_dtypes


def _any_precision(
    _optimizer: Any, _tensor: Tensor, group: Mapping[str, Any]
) -> dict[str, torch.dtype] | None:
    if not {"momentum_dtype", "variance_dtype"} <= group.keys():
        return None
    state_dtypes = {"exp_avg": group["momentum_dtype"], "exp_avg_sq": group["variance_dtype"]}
    if group.get("use_kahan_summation"):
        state_dtypes["compensation"] = group["compensation_buffer_dtype"]
    return state_dtypes


def _torch(
    optimizer: Any, tensor: Tensor, group: Mapping[str, Any]
) -> dict[str, torch.dtype] | None:
    """Return the state dtypes of torch's optimizers, and of subclasses that keep torch's `step`."""
    owner = next(kind for kind in type(optimizer).__mro__ if "step" in vars(kind))
    if not owner.__module__.startswith("torch.optim"):
        return None
    names = [*TORCH_STATES.get(owner.__name__, ("exp_avg", "exp_avg_sq"))]
    names += [name for option, name in TORCH_OPTIONS.items() if group.get(option)]
    return dict.fromkeys(names, tensor.dtype)
