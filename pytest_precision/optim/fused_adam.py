"""FusedAdam: Adam with Transformer Engine's arithmetic and storage of weights and moments.

Source: `transformer_engine/pytorch/optimizers/fused_adam.py` of Transformer Engine (TE) 2.20.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pytest_precision.optim import remainder
from pytest_precision.optim.exact_state import (
    ExactStateOptimizer,
    check,
    check_dtype,
    check_grad,
    check_group,
)
from pytest_precision.optim.kernel import KernelScalars, adam_
from pytest_precision.optim.scaled_state import RANGES, decode_scaled, encode_, scale_name

PARAM_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MASTER_DTYPES = (torch.float32, torch.float16)
MOMENT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)


class FusedAdam(ExactStateOptimizer):
    """Adam whose master weights and moments can each be stored in a dtype that the user chooses.

    It takes those arguments of `transformer_engine.pytorch.optimizers.FusedAdam` that change
    numbers.
    The state of a parameter has TE's names: `exp_avg`, `exp_avg_sq` and `master_param`; a tensor
    that is stored as fp16 or fp8 has a scale in addition, e.g. `exp_avg_scale`. An fp32 parameter
    is its own master. The step counter belongs to the group, `group["step"]`, and advances in empty
    groups too, so that ranks whose share of a group is empty stay in step; the counter of a group
    that is added later starts at 0. A parameter's state is made in the first step, with or without
    a gradient.

    Args:
        params: parameters (fp32, bf16, fp16), or groups of them.
        lr: learning rate; like all scalars here, it is rounded to fp32.
        betas: decay of the moments; `1 - beta` is computed in fp32.
        eps: term added to the denominator.
        weight_decay: decoupled weight decay; without `adam_w_mode`, L2 regularisation.
        amsgrad: must be false, as in TE.
        bias_correction: whether to divide the moments by `1 - beta**step`.
        adam_w_mode: whether to decouple the weight decay from the moments.
        master_weights: whether to update a copy of each bf16 or fp16 parameter; the parameter is
            the copy, rounded to nearest even.
        master_weight_dtype: dtype of that copy, fp32 or fp16.
        exp_avg_dtype: dtype of `exp_avg`: fp32, bf16, fp16, or uint8, which means fp8 (e4m3).
        exp_avg_sq_dtype: dtype of `exp_avg_sq`, one of the same four.
        use_decoupled_grad: whether to take gradients from `param.decoupled_grad`, whose dtype may
            differ from the parameter's.
        store_param_remainders: whether to store fp32 masters of bf16 parameters as 16-bit
            remainders; the parameter is then rounded to nearest with ties away from zero. It has no
            effect on other parameters, on fp16 masters, or without `master_weights`.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        master_weights: bool = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
    ) -> None:
        check(not amsgrad, "no AMSGrad", "amsgrad", amsgrad)
        if master_weights:
            check_dtype("master_weight_dtype", master_weight_dtype, MASTER_DTYPES)
        check_dtype("exp_avg_dtype", exp_avg_dtype, MOMENT_DTYPES)
        check_dtype("exp_avg_sq_dtype", exp_avg_sq_dtype, MOMENT_DTYPES)
        self.adam_w_mode = adam_w_mode
        self.master_weights = master_weights
        self.master_weight_dtype = master_weight_dtype
        self.exp_avg_dtype = exp_avg_dtype
        self.exp_avg_sq_dtype = exp_avg_sq_dtype
        self.use_decoupled_grad = use_decoupled_grad
        self.store_param_remainders = (
            store_param_remainders and master_weights and master_weight_dtype == torch.float32
        )
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "step": 0,
        }
        super().__init__(params, defaults)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset each parameter's `grad`, and its `decoupled_grad` if the optimizer uses that."""
        super().zero_grad(set_to_none)
        if not self.use_decoupled_grad:
            return
        for group in self.param_groups:
            for param in group["params"]:
                if set_to_none:
                    param.decoupled_grad = None
                elif self._grad(param) is not None:
                    param.decoupled_grad.zero_()

    def master(self, param: Tensor) -> Tensor:
        """Return the weight of `param` that the next update starts from, in fp32.

        It is the stored master, the parameter joined with its remainder, or the parameter itself.
        The result may share memory with these.
        """
        state = self.state.get(param)
        if not state or "master_param" not in state:
            return param.detach().float()
        if state["master_param"].dtype == torch.int16:
            return remainder.join(param.detach(), state["master_param"])
        return self._decode(state, "master_param")

    def state_dtypes(self, param: Tensor) -> dict[str, torch.dtype]:
        """Return the dtypes of the tensors that this optimizer keeps for `param`, by name."""
        stored_dtypes = self._stored_dtypes(param)
        return stored_dtypes | {
            scale_name(n): torch.float32 for n, d in stored_dtypes.items() if d in RANGES
        }

    def _check_group(self, group: dict[str, Any]) -> None:
        check_group(group, PARAM_DTYPES)

    def _step_group(self, group: dict[str, Any]) -> None:
        group["step"] += 1
        scalars = KernelScalars.of(group, self.adam_w_mode)
        for param in group["params"]:
            if not self.state[param]:
                self._initialize(param)
            grad = self._grad(param)
            if grad is not None:
                check_grad(grad)
                self._update(param, grad, scalars)

    def _grad(self, param: Tensor) -> Tensor | None:
        return getattr(param, "decoupled_grad" if self.use_decoupled_grad else "grad", None)

    def _stored_dtypes(self, param: Tensor) -> dict[str, torch.dtype]:
        dtypes = {"exp_avg": self.exp_avg_dtype, "exp_avg_sq": self.exp_avg_sq_dtype}
        if self.master_weights and param.dtype != torch.float32:
            remainders = self.store_param_remainders and param.dtype == torch.bfloat16
            dtypes["master_param"] = torch.int16 if remainders else self.master_weight_dtype
        return dtypes

    def _initialize(self, param: Tensor) -> None:
        state = self.state[param]
        for name, dtype in self._stored_dtypes(param).items():
            state[name] = torch.zeros_like(param, dtype=dtype)
            if dtype in RANGES:
                state[scale_name(name)] = torch.ones((), dtype=torch.float32, device=param.device)
        if "master_param" in state and state["master_param"].dtype != torch.int16:
            self._encode(state, "master_param", param.float())

    def _update(self, param: Tensor, grad: Tensor, scalars: KernelScalars) -> None:
        state = self.state[param]
        master = self.master(param)
        exp_avg, exp_avg_sq = self._decode(state, "exp_avg"), self._decode(state, "exp_avg_sq")
        adam_(master, grad, exp_avg, exp_avg_sq, scalars)
        self._encode(state, "exp_avg", exp_avg)
        self._encode(state, "exp_avg_sq", exp_avg_sq)
        if "master_param" in state and state["master_param"].dtype == torch.int16:
            rounded, low = remainder.split(master)
            param.copy_(rounded)
            state["master_param"].copy_(low)
            return
        if param.dtype != torch.float32:
            param.copy_(master)
        if "master_param" in state:
            self._encode(state, "master_param", master)

    @staticmethod
    def _decode(state: dict[str, Tensor], name: str) -> Tensor:
        return decode_scaled(state[name], state.get(scale_name(name)))

    @staticmethod
    def _encode(state: dict[str, Tensor], name: str, values: Tensor) -> None:
        encode_(state[name], state.get(scale_name(name)), values)


def decoupled_owners(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return fp32 tensors that carry each `decoupled_grad` as their `grad`, for torch's clipping.

    torch's clipping takes parameters and reads their `grad`, and a bf16 tensor has no fp32 `grad`.
    """
    owners = []
    for parameter in parameters:
        gradient = getattr(parameter, "decoupled_grad", None)
        if gradient is not None:
            owners.append(torch.empty_like(gradient))
            owners[-1].grad = gradient
    return owners
