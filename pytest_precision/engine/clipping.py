"""Compute the norm of all gradients, and scale the gradients down to a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from pytest_precision.engine.observable import full
from pytest_precision.errors import expected_but_got, named

Clip = Callable[[Sequence[Tensor], float], "Tensor | float"]
"""A function that scales the gradients of some parameters down to a norm and returns the previous
norm, as `torch.nn.utils.clip_grad_norm_` does; the limit is infinite where nothing is clipped."""

CLIP_RULES = ("fp64", "torch")
"""The rules that have a name: the engine's own, and `torch.nn.utils.clip_grad_norm_`."""


def expect_rule(clip: object) -> None:
    """Raise unless `clip` is the name of a known clipping rule or a callable.

    Raises:
        ValueError: it is neither one of `CLIP_RULES` nor callable.
    """
    if clip not in CLIP_RULES and not callable(clip):
        raise ValueError(
            expected_but_got(
                "'fp64', 'torch' or a callable (parameters, max_norm) -> norm",
                named("clip", clip),
                "leave it out for 'fp64'",
            )
        )


def clip_by(rule: str | Clip, owners: Sequence[Tensor], max_norm: float | None) -> Tensor:
    """Clip gradients by a given function or by torch's; return their norm before clipping.

    The norm is a scalar tensor.

    Raises:
        TypeError: the rule has returned no norm.
    """
    clip = rule if callable(rule) else nn.utils.clip_grad_norm_
    norm = clip(owners, math.inf if max_norm is None else max_norm)
    if not isinstance(norm, (Tensor, float)):
        raise TypeError(
            expected_but_got(
                "clip to return the norm before clipping",
                f"{norm!r} ({type(norm).__name__})",
                "return what torch.nn.utils.clip_grad_norm_ returns",
            )
        )
    return full(torch.as_tensor(norm).detach())


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of all gradients together in fp64; a collective if they are sharded."""
    doubled = [gradient.double() for gradient in gradients]
    norms = [full(nn.utils.get_total_norm(part)) for part in _by_mesh(doubled)]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def scale_down(owners: Sequence[Tensor], max_norm: float, norm: Tensor) -> None:
    """Scale parameters' gradients, whose L2 norm is `norm`, to a norm of at most `max_norm`."""
    for part in _by_mesh(owners):
        nn.utils.clip_grads_with_norm_(part, max_norm, norm)


def _by_mesh(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group tensors into lists with the same device mesh, as torch's norm operations need."""
    meshes = [getattr(tensor, "device_mesh", None) for tensor in tensors]
    for mesh in dict.fromkeys(meshes or [None]):
        yield [tensor for tensor, its in zip(tensors, meshes, strict=True) if its == mesh]
