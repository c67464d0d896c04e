"""Transformer Engine's multi-tensor optimizer functions, computed tensor by tensor on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from pytest_precision.errors import expected_but_got
from pytest_precision.formats.elements import E4M3
from pytest_precision.formats.scaling import e8m0_ceil, scale_from_amax
from pytest_precision.formats.transformer_engine.storages import ELEMENTS
from pytest_precision.optim import remainder
from pytest_precision.optim.kernel import KernelScalars, adam_

Lists = Sequence[Sequence[Tensor]]
"""The lists of one call: gradients, parameters, states; each has one tensor per parameter."""


def multi_tensor_adam(chunk_size: int, noop: Tensor, tensor_lists: Lists, *scalars: Any) -> None:
    """Update parameters by Adam; fp32 masters in a fifth list are updated and rounded to them.

    The rounded masters are written to the parameters.
    """
    kernel_scalars = _scalars(*scalars)
    _expect_memory(tensor_lists)
    for gradient, parameter, first, second, *masters in zip(*tensor_lists, strict=True):
        updated = masters[0] if masters else parameter
        exact = updated.float()
        _update(gradient, exact, first, second, kernel_scalars)
        if exact is not updated:
            updated.copy_(exact)
        if masters:
            parameter.copy_(exact)


def multi_tensor_adam_param_remainder(
    chunk_size: int, noop: Tensor, tensor_lists: Lists, *scalars: Any
) -> None:
    """Update by Adam the masters that are stored as bf16 parameters and 16-bit remainders."""
    kernel_scalars = _scalars(*scalars)
    for gradient, parameter, first, second, low in zip(*tensor_lists, strict=True):
        master = remainder.join(parameter, low)
        _update(gradient, master, first, second, kernel_scalars)
        rounded, rest = remainder.split(master)
        parameter.copy_(rounded)
        low.copy_(rest)


def multi_tensor_adam_fp8(
    chunk_size: int, noop: Tensor, tensor_lists: Lists, *scalars_and_dtype: Any
) -> None:
    """Update fp32 masters by Adam, cast them to fp8 by the old scale, and record their amaxes."""
    *scalars, dtype = scalars_and_dtype
    kernel_scalars = _scalars(*scalars)
    for gradient, data, first, second, master, scale, amax, inverse in zip(
        *tensor_lists, strict=True
    ):
        _update(gradient, master, first, second, kernel_scalars)
        codes = torch.empty(master.shape, dtype=torch.uint8)
        ELEMENTS[int(dtype)].cast_(master * scale, codes)
        data.copy_(codes.view(data.dtype))
        amax.copy_(torch.maximum(amax, master.abs().max().reshape(amax.shape)))
        inverse.copy_(scale.reciprocal())


def multi_tensor_adam_capturable(
    chunk_size: int, noop: Tensor, tensor_lists: Lists, *scalars_and_inverse: Any
) -> None:
    """Unscale gradients in place, and update parameters by Adam; do nothing if `noop` is 1."""
    if int(noop.reshape(-1)[0]) == 1:
        return
    *scalars, inverse_scale = scalars_and_inverse
    for gradient in tensor_lists[0]:
        gradient.copy_(gradient.float() * inverse_scale)
    multi_tensor_adam(chunk_size, noop, tensor_lists, *scalars)


multi_tensor_adam_capturable_master = multi_tensor_adam_capturable


def multi_tensor_sgd(
    chunk_size: int,
    noop: Tensor,
    tensor_lists: Lists,
    weight_decay: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    weight_decay_after_momentum: bool,
    scale: float,
) -> None:
    """Update parameters by SGD with momentum, and their fp16 copies if a fourth list holds some.

    Do nothing if `noop` is 1.
    """
    if int(noop.reshape(-1)[0]) == 1:
        return
    for gradient, parameter, velocity, *copies in zip(*tensor_lists, strict=True):
        step = gradient.float() * scale
        decay = parameter.float() * weight_decay
        if not weight_decay_after_momentum:
            step = step + decay
        if momentum:
            added = step * (1.0 - dampening)
            velocity.copy_(step if first_run else velocity * momentum + added)
            step = step + velocity * momentum if nesterov else velocity.float()
        if weight_decay_after_momentum:
            step = step + decay
        parameter.copy_(parameter.float() - step * lr)
        for half in copies:
            half.copy_(parameter)


def multi_tensor_scale(
    chunk_size: int, noop: Tensor, tensor_lists: Lists, scale: float | Tensor
) -> None:
    """Write inputs times `scale` to outputs, and set `noop` to 1 if an input is not finite."""
    for tensor, out in zip(*tensor_lists, strict=True):
        if not bool(torch.isfinite(tensor).all()):
            noop.fill_(1)
        out.copy_(tensor.float() * float(scale))


multi_tensor_scale_tensor = multi_tensor_scale


def multi_tensor_l2norm(
    chunk_size: int, noop: Tensor, tensor_lists: Lists, per_tensor: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the L2 norm of all tensors together and, with `per_tensor`, of each tensor."""
    squares = [tensor.float().square().sum() for tensor in tensor_lists[0]]
    if not squares:
        return torch.zeros(1, dtype=torch.float32), torch.zeros(0, dtype=torch.float32)
    each = torch.stack(squares)
    return each.sum().sqrt().reshape(1), each.sqrt() if per_tensor else torch.zeros(
        0, dtype=torch.float32
    )


def multi_tensor_unscale_l2norm(
    chunk_size: int,
    noop: Tensor,
    tensor_lists: Lists,
    inv_scale: Tensor,
    per_tensor: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the L2 norms of tensors after multiplication by `inv_scale`."""
    unscaled = [tensor.float() * inv_scale for tensor in tensor_lists[0]]
    return multi_tensor_l2norm(chunk_size, noop, [unscaled], per_tensor)


def multi_tensor_compute_scale_and_scale_inv(
    chunk_size: int,
    noop: Tensor,
    tensor_lists: Lists,
    max_fp8: float,
    force_pow_2_scales: bool,
    amax_epsilon: float,
) -> None:
    """Compute the scales of fp8 tensors, and their inverses, from their amaxes."""
    for amax, scale, inverse in zip(*tensor_lists, strict=True):
        new_scale = scale_from_amax(
            amax, max_fp8, power_of_two=force_pow_2_scales, epsilon=amax_epsilon
        )
        scale.copy_(new_scale)
        inverse.copy_(new_scale.reciprocal())


def multi_tensor_compute_scale_inv_e8m0(chunk_size: int, noop: Tensor, tensor_lists: Lists) -> None:
    """Compute the e8m0 scales of MXFP8 blocks from their amaxes."""
    for amax, inverse in zip(*tensor_lists, strict=True):
        inverse.copy_(e8m0_ceil(amax.float(), E4M3)[0])


def _scalars(
    lr: Any,
    beta1: float,
    beta2: float,
    eps: float,
    step: Any,
    mode: int,
    bias_correction: Any,
    weight_decay: float,
) -> KernelScalars:
    group = {
        "lr": float(lr),
        "betas": (beta1, beta2),
        "eps": eps,
        "step": int(step),
        "bias_correction": bool(bias_correction),
        "weight_decay": weight_decay,
    }
    return KernelScalars.of(group, adam_w_mode=bool(mode))


def _expect_memory(tensor_lists: Lists) -> None:
    """Raise RuntimeError for a tensor without plain memory, such as a quantized or grouped one."""
    for tensor in (tensor for tensors in tensor_lists for tensor in tensors):
        if type(tensor) not in (Tensor, Parameter):
            raise RuntimeError(
                expected_but_got(
                    "tensors with memory of their own",
                    f"a {type(tensor).__name__}, whose data are in other tensors",
                    "update an fp32 master and store it in the parameter",
                )
            )


def _update(
    gradient: Tensor, exact: Tensor, first: Tensor, second: Tensor, by: KernelScalars
) -> None:
    """Update an fp32 weight by Adam, with moments that may be stored in a narrower dtype."""
    moments = first.float(), second.float()
    adam_(exact, gradient, *moments, by)
    for stored, moment in zip((first, second), moments, strict=True):
        if moment is not stored:
            stored.copy_(moment)
