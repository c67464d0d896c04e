"""The base of optimizers whose state is loaded bit for bit, and checks of their options."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from pytest_precision.errors import expected_but_got, named


class ExactStateOptimizer(Optimizer):
    """An optimizer base class that loads saved state without casts, or raises ValueError.

    `Optimizer.load_state_dict` casts what it loads to the parameter's dtype: fp32 moments of a bf16
    parameter lose 16 bits, and an int16 remainder becomes a bf16 number.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, or raise ValueError for one that the optimizer cannot update.

        Raises:
            ValueError: this optimizer does not support the options or dtypes of the group.
        """
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except ValueError:
            del self.param_groups[-1]
            raise

    @abstractmethod
    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise `ValueError` for a parameter group that this optimizer cannot update."""

    @abstractmethod
    def state_dtypes(self, param: Tensor) -> dict[str, torch.dtype]:
        """Return the dtypes of the tensors that this optimizer keeps for `param`, by name."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; return the loss that `closure` computes."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    @abstractmethod
    def _step_group(self, group: dict[str, Any]) -> None:
        """Update the parameters of one group; autograd is disabled."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a copy of the `state_dict()` of an optimizer with the same options.

        Raises:
            ValueError: tensors are missing, unknown or of another dtype; then nothing is loaded.
        """
        saved_ids = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        loaded_tensors: dict[Tensor, dict[str, Tensor]] = {}
        # torch refuses different lengths below, before anything is loaded.
        for index, (saved_id, param) in enumerate(zip(saved_ids, params)):  # noqa: B905
            saved = state_dict["state"].get(saved_id)
            if saved:
                self._check(index, param, saved)
                # A step counter stays on its device, as with torch's own optimizers.
                loaded_tensors[param] = {
                    name: value.to(value.device if name == "step" else param.device, copy=True)
                    for name, value in saved.items()
                }
        super().load_state_dict({**state_dict, "state": {}})
        self.state.update(loaded_tensors)

    def _check(self, index: int, param: Tensor, saved: Mapping[str, Tensor]) -> None:
        expected_dtypes = self.state_dtypes(param)
        if saved.keys() != expected_dtypes.keys():
            raise ValueError(
                expected_but_got(
                    f"state {sorted(expected_dtypes)} of parameter {index}",
                    sorted(saved),
                    "load the state of an optimizer with the same options",
                )
            )
        for name, dtype in expected_dtypes.items():
            if saved[name].dtype == dtype:
                continue
            advice = "load the state of an optimizer with the same options"
            if torch.int16 in (dtype, saved[name].dtype):
                advice = (
                    "an int16 remainder is the low half of the master's bits, so a cast cannot "
                    "convert it: use pytest_precision.optim.remainder.split or join"
                )
            raise ValueError(
                expected_but_got(
                    f"{name} of parameter {index} to be {dtype}", saved[name].dtype, advice
                )
            )


def check_group(group: Mapping[str, Any], param_dtypes: Sequence[torch.dtype]) -> None:
    """Raise ValueError if Adam cannot update a parameter group: a value or dtype is not allowed.

    Args:
        group: a group with `params`, `lr`, `betas`, `eps` and `weight_decay`.
        param_dtypes: the dtypes that a parameter may have.

    Raises:
        ValueError: a value is out of its range, or a parameter has another dtype.
    """
    for name in ("lr", "eps", "weight_decay"):
        check(group[name] >= 0, f"{name} >= 0", name, group[name])
    betas = group["betas"]
    check(len(betas) == 2 and all(0 <= b < 1 for b in betas), "two betas in [0, 1)", "betas", betas)
    for param in group["params"]:
        check_dtype("param.dtype", param.dtype, param_dtypes)


def check_dtype(name: str, dtype: Any, allowed: Sequence[torch.dtype]) -> None:
    """Raise ValueError for a dtype that is not in `allowed`.

    Raises:
        ValueError: the dtype is not allowed; the message lists the allowed ones.
    """
    check(dtype in allowed, f"{name} of {', '.join(map(str, allowed))}", name, dtype)


def check_grad(grad: Tensor) -> None:
    """Raise ValueError for a gradient that is not dense, or not of fp32, bf16 or fp16.

    Raises:
        ValueError: the gradient has another layout or dtype, which the message names.
    """
    check(grad.layout == torch.strided, "a dense gradient", "grad.layout", grad.layout)
    check_dtype("grad.dtype", grad.dtype, (torch.float32, torch.bfloat16, torch.float16))


def check(holds: bool, expected: str, name: str, value: Any) -> None:
    """Raise a ValueError that names an argument and its value, if the condition `holds` is false.

    Raises:
        ValueError: "expected ... but got name=value (type)", if `holds` is false.
    """
    if not holds:
        raise ValueError(
            expected_but_got(
                expected, named(name, value), "see the arguments in the optimizer's docstring"
            )
        )
