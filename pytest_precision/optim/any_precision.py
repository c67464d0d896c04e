"""AnyPrecisionAdamW: AdamW in bf16 whose rounding errors are kept and added to the next update.

Source: AReaL's `adam_bf16` (`areal/engine/fsdp_utils/optimizer.py`), which comes from
llama-cookbook. The sequence of torch operations determines the bits, so it is the same here, except
for the square root of fp32, where `torch.sqrt` differs between CPUs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from pytest_precision.optim.exact_state import (
    ExactStateOptimizer,
    check_dtype,
    check_grad,
    check_group,
)
from pytest_precision.optim.kernel import sqrt

STATE_DTYPES = (torch.bfloat16, torch.float32)


class AnyPrecisionAdamW(ExactStateOptimizer):
    """AdamW with a dtype for each moment and Kahan summation of the updates.

    The update is added to the compensation first; the part that rounding of the parameter loses
    stays there. Without compensation, bf16 parameters lose every update below half a unit in the
    last place. With or without it, the weight decay of bf16 parameters is lost where
    `lr * weight_decay < 2**-9`, since it multiplies the parameter itself.

    Args:
        params: parameters (bf16, fp32), or groups of them; each group can have its own options.
        lr: learning rate.
        betas: decay of the moments.
        eps: term added to the denominator.
        weight_decay: decoupled weight decay.
        use_kahan_summation: whether to keep the compensation.
        momentum_dtype: dtype of `exp_avg`, bf16 or fp32.
        variance_dtype: dtype of `exp_avg_sq`, bf16 or fp32; in bf16 and with a beta above 0.996,
            `exp_avg_sq` never decreases.
        compensation_buffer_dtype: dtype of `compensation`, bf16 or fp32.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        use_kahan_summation: bool = True,
        momentum_dtype: torch.dtype = torch.bfloat16,
        variance_dtype: torch.dtype = torch.bfloat16,
        compensation_buffer_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "use_kahan_summation": use_kahan_summation,
            "momentum_dtype": momentum_dtype,
            "variance_dtype": variance_dtype,
            "compensation_buffer_dtype": compensation_buffer_dtype,
        }
        super().__init__(params, defaults)

    def master(self, param: Tensor) -> Tensor:
        """Return the weight that the next update starts from, in fp32: parameter plus compensation.

        The result may share memory with the parameter.
        """
        weight = param.detach().float()
        state = self.state.get(param)
        return weight + state["compensation"] if state and "compensation" in state else weight

    def state_dtypes(self, param: Tensor) -> dict[str, torch.dtype]:
        """Return the dtypes of the tensors that this optimizer keeps for `param`, by name."""
        group = next(g for g in self.param_groups if any(p is param for p in g["params"]))
        dtypes = {
            "step": torch.float32,
            "exp_avg": group["momentum_dtype"],
            "exp_avg_sq": group["variance_dtype"],
        }
        if group["use_kahan_summation"]:
            dtypes["compensation"] = group["compensation_buffer_dtype"]
        return dtypes

    def _check_group(self, group: dict[str, Any]) -> None:
        check_group(group, STATE_DTYPES)
        for name in ("momentum_dtype", "variance_dtype", "compensation_buffer_dtype"):
            check_dtype(name, group[name], STATE_DTYPES)

    def _step_group(self, group: dict[str, Any]) -> None:
        for param in group["params"]:
            if param.grad is not None:
                check_grad(param.grad)
                self._update(param, group)

    def _update(self, param: Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            for name, dtype in self.state_dtypes(param).items():
                zeros = torch.zeros_like(param, dtype=dtype)
                # torch's own optimizers keep the counter on the CPU too, for any default device.
                counter = torch.zeros((), dtype=dtype, device="cpu")
                state[name] = counter if name == "step" else zeros
        state["step"] += 1
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        grad = param.grad
        exp_avg = state["exp_avg"]
        exp_avg_sq = state["exp_avg_sq"]
        param.mul_(1 - lr * group["weight_decay"])
        exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        # The counter is an fp32 tensor, so the corrections are too; torch divides a number by a
        # tensor by multiplying the number by the tensor's reciprocal.
        step_size = float(lr / (1 - beta1 ** state["step"]))
        root_correction = sqrt(1 - beta2 ** state["step"])
        denominator = (sqrt(exp_avg_sq) / root_correction).add_(group["eps"])
        if "compensation" not in state:
            param.addcdiv_(exp_avg, denominator, value=-step_size)
            return
        compensation = state["compensation"]
        compensation.addcdiv_(exp_avg, denominator, value=-step_size)
        earlier_tensor = param.clone()
        param.add_(compensation)
        compensation.add_(earlier_tensor.sub_(param))
