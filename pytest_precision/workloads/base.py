"""The interface of workloads: model, data, loss and parameter groups, without storage dtypes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.optim.lr_scheduler import LRScheduler

    from pytest_precision.matrix.cell import Cell
    from pytest_precision.workloads.rules import OptimizerRule


class Workload(ABC):
    """A model with its data, loss and parameter groups, the same for candidate and reference.

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
                return [torch.randn(n, 13, generator=generator).to(cell.device) for n in rows]

            def tokens(self, microbatch):
                return len(microbatch)

            def loss(self, model, microbatch):
                return model(microbatch).float().square().sum(), len(microbatch)

    This example works in fp32 only. In a cell that computes in bf16 or fp16, `forward` sees weights
    in that dtype, whatever they are stored in, and must cast its input: `x.to(self.weight.dtype)`.
    Outside of `forward`, for example in `loss`, a parameter has the dtype in which it is stored.

    Whatever a workload leaves equal, even, zero or inactive hides a family of defects: equal token
    counts hide a wrong divisor, even sizes hide a wrong offset, a norm below `max_norm` hides
    clipping. The built-in workloads avoid all such cases that are known; a workload of your own
    hides the defects that depend on what it does not vary. So does what both sides share: a helper
    that the workload calls and a script or an engine calls too has its defects on both sides, and
    no comparison sees them.

    Attributes:
        max_norm: total L2 norm to which the engine clips the gradient of the mean loss (the sum
            over all tokens of the step, divided by their number); None for no clipping.
        clip: rule of the clipping: `"fp64"` gives the same bits however gradients are sharded;
            `"torch"` is `torch.nn.utils.clip_grad_norm_`; for a rule of your own, a method
            `clip(self, parameters, max_norm)` that clips and returns the norm before clipping.
        optimizer_rule: rule by which the weights are updated, such as `rules.AdamW(eps=1e-6)`; each
            update of both sides is then judged by it, at the rates of `groups` and `scheduler`,
            clipped to `max_norm`. None says nothing, and no update is judged by itself.
    """

    max_norm: float | None = None
    clip: Any = "fp64"
    optimizer_rule: OptimizerRule | None = None

    @abstractmethod
    def model(self, cell: Cell) -> torch.nn.Module:
        """Make a new model in fp32 on `cell.device`, initialised from torch's global generator.

        The caller seeds the generator, so that the same seed gives the same model. A layout may
        cast the model, wrap it, shard it block by block (`model.blocks`, if there is such a
        `ModuleList`) or call it with other parameters (`torch.func.functional_call`). Therefore
        each parameter must be read by the forward of the module that holds it, and must take part
        in every backward unless it is frozen (`requires_grad=False`). Buffers keep their dtype
        whatever the parameters are stored in. Whatever the layout does, the same weights and the
        same microbatch must give the same bits: no dropout, and no atomic additions.
        """

    @abstractmethod
    def groups(self, model: torch.nn.Module) -> list[dict[str, Any]]:
        """Return the parameter groups of `model` in the form that a torch optimizer takes.

        There is no default, so that the learning rate is always the workload's own. Leave out
        parameters that are frozen.

        Args:
            model: the result of `model(cell)`, perhaps cast or sharded, but with the same modules.
        """

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
        """Return a learning-rate scheduler, stepped per train step; None for a constant rate.

        None means that the learning rate is constant.
        """
        return None

    @abstractmethod
    def microbatches(self, cell: Cell, step: int) -> Sequence[Any]:
        """Make all microbatches of one step, for all ranks, in a fixed order, on `cell.device`.

        The engine deals them to the data-parallel ranks one by one, `[rank::size]`. Make
        `cell.microbatches` of them, which the ranks of both sides share evenly, and in some step
        `cell.fewest_microbatches`, so that a rank's first microbatch is its last. Fewer than one
        for each rank are refused, and engines with collectives in forward or backward refuse a
        number that ranks cannot share evenly. The microbatches must depend on `step` alone and not
        on what ran before: draw from a `torch.Generator` of your own, never from torch's global
        one. The microbatches of all ranks of both sides are compared; a difference is an `error` of
        the workload.

        Args:
            cell: the result should depend only on its `microbatches`, its `device` and axes of your
                own.
            step: train step, from 1; step 0 is the evaluation data.
        """

    @abstractmethod
    def tokens(self, microbatch: Any) -> int:
        """Return how many tokens of `microbatch` count in its loss, without running a forward."""

    @abstractmethod
    def loss(self, model: torch.nn.Module, microbatch: Any) -> tuple[torch.Tensor, int]:
        """Compute the loss of `microbatch`, summed over its tokens.

        The engine divides by the number of tokens of the whole step, so that every split into
        ranks and microbatches is the same mathematics.

        Args:
            model: the model; call it as a module (`model(...)`), since it may be a wrapper.
            microbatch: one of `microbatches(cell, step)`.

        Returns:
            A scalar in fp32, whatever dtype the model computes in, and `tokens(microbatch)`.
        """

    def decisions(self, model: torch.nn.Module) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return the discrete choices of the last forward, such as the experts of each token.

        Choices are compared bit for bit, under tolerances too, since integers are. Each has a
        margin: by how much what was chosen is ahead of what was not. If rounding can make up for
        it, the two sides may choose differently although neither is wrong.

        Args:
            model: the result of `model(cell)`, perhaps cast or sharded, but with the same modules;
                a module may keep what it has chosen as an attribute.

        Returns:
            Name to choices, as integers or bools, and their margins; each with one row for each
            thing that was chosen for. A name ends with the word for one of these things:
            `blocks.0.router: expert of token` reads on as `expert of token 3 is 1 here`.
        """
        return {}
