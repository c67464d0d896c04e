"""Workload: what is trained, and how; the layout says where the numbers are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.optim.lr_scheduler import LRScheduler

    from pytest_precision.matrix.cell import Cell


class Workload(ABC):
    """A model with its data, loss and recipe, the same for candidate and reference.

    Subclass it at the top level of a module and pass the class to `parity.check`; each rank makes
    its own instance, without arguments. For a class with arguments, pass a `functools.partial`.

        class Classifier(Workload):
            max_norm = 0.1

            def model(self, cell):
                return torch.nn.Linear(13, 7).to(cell.device)

            def groups(self, model):
                return [{"params": list(model.parameters()), "lr": 1e-2}]

            def microbatches(self, cell, step):
                generator = torch.Generator().manual_seed(step)
                rows = range(1, cell.microbatches + 1)
                return [torch.randn(n, 13, generator=generator) for n in rows]

            def tokens(self, microbatch):
                return len(microbatch)

            def loss(self, model, microbatch):
                return model(microbatch).float().square().sum(), len(microbatch)

    This one is for fp32 alone: in a cell that computes in bf16 or fp16, `forward` sees weights in
    that dtype, whatever they are stored in, and casts what it reads: `x.to(self.weight.dtype)`.
    Outside of `forward`, as in `loss`, a parameter shows the dtype that it is stored in.

    Whatever a workload leaves equal, even, zero or inactive hides a family of defects: equal token
    counts hide a wrong divisor, even sizes hide a wrong offset, a norm below `max_norm` hides
    clipping. The built-in workloads avoid all that they know of; a workload of your own hides what
    it does not vary.

    Attributes:
        max_norm: total L2 norm that the engine clips the gradient of the mean loss (the sum over
            all tokens of the step, divided by their number) to; None for no clipping.
        clip: rule by which it does so: `"fp64"` has the same bits however gradients are sharded;
            `"torch"` is `torch.nn.utils.clip_grad_norm_`; a method `clip(self, parameters,
            max_norm)` that clips and returns the norm before is a framework's own.
    """

    max_norm: float | None = None
    clip: Any = "fp64"

    @abstractmethod
    def model(self, cell: Cell) -> torch.nn.Module:
        """A new model in fp32 on `cell.device`, initialised from torch's global generator.

        The caller seeds the generator, so that the same seed is the same model. A layout may cast
        the model, wrap it, shard it block by block (`model.blocks`, where there is such a
        `ModuleList`) or call it with other parameters (`torch.func.functional_call`): each
        parameter must be read by the forward of the module that holds it, and must take part in
        every backward unless it is frozen (`requires_grad=False`). Buffers keep their dtype
        whatever the parameters are stored in. Whatever the layout does, the
        same weights and the same microbatch must give the same bits: no dropout, and no atomic
        additions.
        """

    @abstractmethod
    def groups(self, model: torch.nn.Module) -> list[dict[str, Any]]:
        """Parameter groups of `model` as a torch optimizer takes them.

        There is no default, so that the learning rate is always the workload's own. Parameters that
        are frozen are left out.

        Args:
            model: what `model(cell)` returned, perhaps cast or sharded, but with its modules.
        """

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
        """The learning-rate scheduler, stepped after every train step; None for a constant rate."""
        return None

    @abstractmethod
    def microbatches(self, cell: Cell, step: int) -> Sequence[Any]:
        """All microbatches of one step, of every rank, in a fixed order, on `cell.device`.

        The engine deals them to the data-parallel ranks one by one, `[rank::size]`: make
        `cell.microbatches` of them, which the ranks of both sides share evenly, and in some step
        `cell.fewest_microbatches`, so that a rank's first one is its last. Engines with collectives
        in forward or backward refuse a number that ranks cannot share evenly. They must depend on
        `step` alone and not on what ran before: draw from a `torch.Generator` of your own, never
        from torch's global one. What every rank of both sides is given is compared; other data are
        an `error` of the workload.

        Args:
            cell: only its `microbatches`, its `device` and axes of your own should matter.
            step: train step, from 1; step 0 is the evaluation data.
        """

    @abstractmethod
    def tokens(self, microbatch: Any) -> int:
        """Number of tokens that count in the loss of `microbatch`, known before the forward."""

    @abstractmethod
    def loss(self, model: torch.nn.Module, microbatch: Any) -> tuple[torch.Tensor, int]:
        """Loss of `microbatch`: a sum over its tokens, and `tokens(microbatch)`.

        The engine divides by the number of tokens of the whole step, so that every split into
        ranks and microbatches is the same mathematics.

        Args:
            model: to be called as a module (`model(...)`), since it may be a wrapper.
            microbatch: one of `microbatches(cell, step)`.

        Returns:
            A scalar in fp32, whatever dtype the model computes in, and the number of tokens.
        """
