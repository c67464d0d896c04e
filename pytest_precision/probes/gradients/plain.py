"""Compute a step's losses and gradients by a simple loop, in one process, with fp64 sums.

In a quantized precision the same linear layers quantize by the same recipe as in the cell, from
what the side started from: its weights, the bytes of those that are stored as bytes, and the scales
of delayed scaling, which are buffers. So what a format rounds is rounded on both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pytest_precision import modules
from pytest_precision._torch.around import around_operations
from pytest_precision._torch.dispatch import tree_map
from pytest_precision.engine.quantizing import begin_microbatch
from pytest_precision.layouts.compute import compute_in
from pytest_precision.layouts.dtypes import DTYPE_OF_NAME, resident
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.matrix.tensor_key import unwrapped
from pytest_precision.probes.gradients.fp64 import computing_in_fp64
from pytest_precision.trace.data_log import contents_of
from pytest_precision.workloads.base import Workload

LossOf = Literal["whole", "unmasked", "auxiliary"]

Gradients = dict[str, Tensor]
"""Logical tensor to its gradient, fp64."""


def _unwrapped(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) with the parts of the name removed that wrappers of modules add."""
    return ((unwrapped(path), tensor) for path, tensor in named)


class PlainMicrobatch(NamedTuple):
    """The recomputed loss and gradients of one microbatch.

    Attributes:
        number: among those of all ranks.
        tokens: that count in its loss.
        batch: what the workload gave.
        loss: over the tokens of the step.
        gradients: of that loss.
    """

    number: int
    tokens: int
    batch: Any
    loss: float
    gradients: Gradients

    @property
    def positions(self) -> int:
        """Return the element count, masked ones included, of the largest target or mask."""
        tensors = [
            tensor
            for tensor in _tensors(self.batch)
            if not tensor.is_floating_point() or _masks(tensor)
        ]
        return max((tensor.numel() for tensor in tensors), default=0)


MOST_FITTED = 1 << 25
"""Elements of all microbatches together up to which they are kept, and fitted."""

OTHER_BITS = 1 << 20
"""Steps away are the random bits of a perturbed computation, for stochastic rounding."""

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
"""Namespaces of the operations in which all ranks must take part."""


def without_collectives() -> Any:
    """Return a context in which collectives raise, because the other ranks do not take part."""

    def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.namespace in COLLECTIVES:
            raise RuntimeError(f"{func} is called by one rank alone")
        return func(*args, **kwargs)

    return around_operations(call)


class OutputsDetached(nn.Module):
    """Wraps a model to detach its outputs, so that only its auxiliary losses have gradients."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's outputs for these arguments, detached from the autograd graph."""
        return tree_map(_detached, self.model(*args, **kwargs))


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


class PlainLoop:
    """Computes a workload's losses and gradients at given weights, in one process.

    Args:
        workload: gives model, microbatches and loss.
        cell: says in which dtype is computed.
        exact: whether all is stored and computed in fp64 instead, whatever the model casts, and
            nothing is quantized.

    Raises:
        RuntimeError: the model talks to other ranks, here or in its first microbatch.
    """

    def __init__(self, workload: Workload, cell: Cell, *, exact: bool = False) -> None:
        self._workload, self._cell = workload, cell
        self._tried, self._scale, self._bits = cell.world_size == 1, 1.0, 0
        self._computing = computing_in_fp64 if exact else nullcontext
        with without_collectives():
            self._model = workload.model(cell)
        self._dtype = DTYPE_OF_NAME.get(cell.precision, torch.bfloat16)
        if exact:
            self._model, self._dtype = self._model.double(), torch.float64
        elif PRECISIONS[cell.precision].quantized:
            self._model, _ = resident(self._model, replace(cell, grad_accum_fusion=False))
        self._forward = compute_in(self._model, self._dtype)

    @property
    def unit(self) -> float:
        """Return the unit roundoff of the dtype in which the model computes."""
        return float(torch.finfo(self._dtype).eps) / 2

    @cached_property
    def tied(self) -> frozenset[str]:
        """Return the names of weights that the model holds under more than one name."""
        names: dict[int, list[str]] = defaultdict(list)
        for name, parameter in _unwrapped(self._model.named_parameters(remove_duplicate=False)):
            names[id(parameter)].append(name)
        return frozenset(name for aliases in names.values() if len(aliases) > 1 for name in aliases)

    def lacking(self, weights: Iterable[str], buffers: Iterable[str]) -> list[str]:
        """Return the parameters and buffers of the model that are not among the given names."""
        weight_names, buffer_names = {*weights}, {*buffers}
        parameters = (name for name, _ in self._stored() if name not in weight_names)
        model_buffers = (name for name, _ in _unwrapped(self._model.named_buffers()))
        return [*parameters, *(name for name in model_buffers if name not in buffer_names)]

    def is_masked(self, step: int) -> bool:
        """Return whether the microbatches of a step have masks with zeros."""
        batches = [*self._workload.microbatches(self._cell, step)]
        return any(map(_masks, _tensors(batches)))

    def _stored(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) for each parameter's memory: bytes and scales if it is quantized."""
        for name, parameter in _unwrapped(self._model.named_parameters()):
            if isinstance(parameter, modules.QuantizedParameter):
                yield from ((f"{name}.{key}", tensor) for key, tensor in parameter.stored.items())
            else:
                yield name, parameter

    @torch.no_grad()
    def put(
        self,
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        scale: float = 1.0,
        seed: int | None = None,
    ) -> None:
        """Load weights and buffers into the model, and set its loss scale and rounding seed.

        Args:
            weights: of the model, and the bytes and scales of those that are stored as such.
            buffers: of the model, by name.
            scale: factor on each loss in its backward, without which fp16 may have no values for
                its gradients; those that are yielded are free of it.
            seed: draws which weights are up and which are down by a unit roundoff, and the bits of
                stochastic rounding; without it no weight is, and the bits are the step's.
        """
        self._scale, self._bits = scale, 0 if seed is None else seed * OTHER_BITS
        draw = None if seed is None else torch.Generator().manual_seed(seed)
        for name, tensor in self._stored():
            tensor.copy_(weights[name])
            if draw is not None and isinstance(tensor, nn.Parameter):
                sign = torch.randint(0, 2, tensor.shape, generator=draw).mul_(2).sub_(1)
                tensor.mul_(1 + self.unit * sign.to(tensor))
        for name, buffer in _unwrapped(self._model.named_buffers()):
            buffer.copy_(buffers[name])

    def microbatches(self, step: int, of: LossOf = "whole") -> Iterator[PlainMicrobatch]:
        """Yield each microbatch's gradients and loss, as `of` selects, at the weights set by `put`.

        Args:
            step: number of the train step.
            of: the whole loss; that without masks; or the auxiliary losses alone, which are what
                does not follow from what the model returns.
        """
        batches = [*self._workload.microbatches(self._cell, step)]
        tokens = [self._workload.tokens(batch) for batch in batches]
        forward = OutputsDetached(self._forward) if of == "auxiliary" else self._forward
        for number, batch in enumerate(batches):
            self._model.zero_grad()
            begin_microbatch(self._model, step + self._bits, number, first=number == 0)
            with self._computing(), nullcontext() if self._tried else without_collectives():
                total, _ = self._workload.loss(
                    forward, _unmasked(batch) if of == "unmasked" else batch
                )
                loss = total / sum(tokens)
                if of != "auxiliary" or loss.requires_grad:
                    (loss * self._scale).backward()  # type: ignore[no-untyped-call]
            self._tried = True
            gradients = {
                name: parameter.grad.to("cpu", torch.float64) / self._scale
                for name, parameter in _unwrapped(self._model.named_parameters())
                if parameter.grad is not None
            }
            value = float(loss.detach())
            yield PlainMicrobatch(number, tokens[number], batch, value, gradients)


class Sums(NamedTuple):
    """The losses of a step, and its gradients summed per rank and over all ranks.

    Attributes:
        losses: of each microbatch.
        shares: position in the data-parallel dimension to the sum of its microbatches.
        total: the sum of all.
    """

    losses: list[float]
    shares: list[Gradients]
    total: Gradients

    @classmethod
    def of(cls, microbatches: Iterable[PlainMicrobatch], size: int) -> Sums:
        """Sum gradients per rank, where microbatch n belongs to rank n modulo `size`."""
        losses: list[float] = []
        shares: list[Gradients] = [{} for _ in range(size)]
        for microbatch in microbatches:
            losses.append(microbatch.loss)
            _add(shares[microbatch.number % size], microbatch.gradients)
        return cls.of_shares(losses, shares)

    @classmethod
    def of_shares(cls, losses: list[float], shares: list[Gradients]) -> Sums:
        """Return a step's losses and per-rank gradients, with the gradients' sum over ranks."""
        total = dict(shares[0])
        for share in shares[1:]:
            _add(total, share)
        return cls(losses, shares, total)


def _add(sums: Gradients, more: Gradients) -> None:
    """Add gradients in place to those of the same name in `sums`."""
    for name, gradient in more.items():
        sums[name] = sums[name] + gradient if name in sums else gradient


def _unmasked(microbatch: Any) -> Any:
    """Return a copy of a microbatch whose masks are all ones."""
    copy = deepcopy(microbatch)
    for tensor in _tensors(copy):
        if _masks(tensor):
            tensor.fill_(1)
    return copy


def _masks(tensor: Tensor) -> bool:
    """Return whether a tensor is a mask: all its elements are 0 or 1, and some are 0."""
    if tensor.dtype is torch.bool:
        return not bool(tensor.all())
    return bool(((tensor == 0) | (tensor == 1)).all()) and bool((tensor == 0).any())


def _tensors(value: Any, within: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in within:
        for _, part in contents_of(value):
            yield from _tensors(part, within | {id(value)})
