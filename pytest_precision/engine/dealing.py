"""Assign a step's microbatches to the ranks, and record the losses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor

from pytest_precision.engine.capture import Capture, ModuleHook
from pytest_precision.engine.decisions import decisions
from pytest_precision.engine.observable import full
from pytest_precision.engine.observation import Observation, Span
from pytest_precision.engine.quantizing import begin_microbatch
from pytest_precision.engine.restorable import Restorable
from pytest_precision.errors import expected_but_got, named
from pytest_precision.matrix import sequence
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.workloads.base import Workload


class Dealing(Restorable):
    """The part of a training engine that assigns microbatches to ranks and records their losses.

    Attributes:
        workload: gives the microbatches of all ranks.
        cell: the point of the matrix.
        data_parallel: rank and size of the data-parallel dimension.
        microbatch: number of the current microbatch among those of all ranks.
        step_tokens: number of tokens of all microbatches of the step on all ranks.
    """

    needs_even_shares: ClassVar[bool] = False
    """Whether forward or backward has collectives, as in DDP and FSDP2. If so, a step whose
    microbatches the ranks cannot share evenly is refused: a rank with more microbatches than the
    others would wait in a collective that they never enter."""

    workload: Workload
    cell: Cell
    data_parallel: tuple[int, int]
    microbatch = 0
    step_tokens = 0
    _microbatches = 0
    _computed: int | None = None

    @property
    def overflow_factor(self) -> float:
        """Return the factor on this rank's loss: 1, or infinity to make the step overflow."""
        return self.capture.overflow_factor

    @property
    def loss_factor(self) -> float:
        """Return the factor by which each loss is multiplied before its backward."""
        scale = 1.0 if self.scaler is None else self.scaler.scale
        return scale * self.grad_factor * self.overflow_factor

    def my_microbatches(self, step: int) -> Iterator[tuple[int, Any]]:
        """Yield (number, microbatch) for this rank's microbatches of a step.

        Numbers count the microbatches of all ranks. They are dealt one by one: a data-parallel rank
        has `microbatches[rank::size]`. Before each, the model's layers are told its number and
        `microbatch_context` is entered.
        """
        microbatches = self.workload.microbatches(self.cell, step)
        self._expect_shares(step, len(microbatches))
        self._microbatches = len(microbatches)
        self.step_tokens = sum(self.workload.tokens(microbatch) for microbatch in microbatches)
        rank, size = self.data_parallel
        share = range(rank, len(microbatches), size)
        for index in share:
            self.microbatch = self._computed = index
            begin_microbatch(self.model, step, index, first=index == share[0])
            with self.microbatch_context(last=index == share[-1]):
                yield index, microbatches[index]
        self._computed = None

    def microbatch_context(self, *, last: bool) -> AbstractContextManager[Any]:
        """Return the context that a microbatch runs in, such as DDP's `no_sync()`.

        `last` tells that it is the step's last one on this rank.
        """
        return nullcontext()

    def report_loss(self, number: int, loss: Tensor) -> None:
        """Record a microbatch's loss; an engine that overrides `losses` must call this.

        Args:
            number: the microbatch's number among those of all ranks, from `my_microbatches`.
            loss: sum over its tokens, divided by `step_tokens`, without `loss_factor`.

        Raises:
            ValueError: there is no such microbatch.
        """
        if not 0 <= number < self._microbatches:
            raise ValueError(
                expected_but_got(
                    f"the number of one of the step's {self._microbatches} microbatches",
                    named("number", number),
                    "take microbatches and their numbers from my_microbatches(step)",
                )
            )
        # One logical vector with an element per microbatch, so that it can be compared between
        # world sizes: which rank computed an element is no part of the mathematics.
        observation = Observation(
            "loss",
            "microbatches",
            full(loss.detach()).reshape(1),
            (self._microbatches,),
            Span(number, number + 1),
        )
        self.capture.keep("loss", str(number), [observation])

    def _keep_of_microbatch(self, kind: str, name: str, tensor: Tensor) -> None:
        """Copy a tensor of the current microbatch, before the next one overwrites it."""
        numbered = TensorKey(name, microbatch=self.microbatch).name(kind)
        observations = self.show(kind, numbered, tensor, self.capture, split=False, local=True)
        self.capture.keep(kind, numbered, observations)

    def start(self, capture: Capture) -> None:
        """Register the hook that records the model's discrete decisions, such as experts chosen.

        Args:
            capture: receives it.
        """
        super().start(capture)
        self.model.register_forward_hook(ModuleHook(self._keep_decisions))

    def _keep_decisions(self, *_call: Any) -> None:
        if self._computed is not None:  # else nobody knows of which microbatch the forward was
            observations = decisions(self.workload.decisions(self.model), self._computed)
            self.capture.keep("decision", str(self._computed), observations)

    def expect_even_shares(self) -> None:
        """Raise, before training, if a step's microbatches do not divide evenly among ranks.

        Only an engine with collectives in forward or backward needs this.

        Raises:
            ValueError: this engine needs even shares, and ranks cannot share some step evenly.
        """
        if self.needs_even_shares:
            for step in sequence.steps(self.cell.operations):
                self._expect_shares(step, len(self.workload.microbatches(self.cell, step)))

    def _expect_shares(self, step: int, microbatches: int) -> None:
        ranks = self.data_parallel[1]
        workload = type(self.workload).__name__
        if microbatches < ranks:
            raise ValueError(
                expected_but_got(
                    f"one microbatch or more for each rank, so {ranks} or more,",
                    f"{microbatches} in step {step}",
                    f"make cell.microbatches of them in {workload}.microbatches",
                )
            )
        if self.needs_even_shares and microbatches % ranks:
            raise ValueError(
                expected_but_got(
                    f"microbatches that ranks share evenly, since {type(self).__name__} has "
                    "collectives in forward or backward,",
                    f"{microbatches} % {ranks} = {microbatches % ranks} in step {step}",
                    f"make cell.microbatches of them in {workload}.microbatches",
                )
            )


def expect_sum(workload: str, loss_pair: object) -> None:
    """Raise unless a workload's `loss` returned a pair of a scalar tensor and a number of tokens.

    Raises:
        TypeError: with the name of the workload, and what a trainer that averages has to return.
    """
    if isinstance(loss_pair, tuple) and len(loss_pair) == 2:
        loss = loss_pair[0]
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return
    raise TypeError(
        expected_but_got(
            f"{workload}.loss() to return (sum, tokens), a scalar tensor and a number,",
            named("loss", loss_pair),
            "sum the loss over tokens; for a mean of the means of microbatches return (mean, 1), "
            "and 1 from tokens()",
        )
    )


def data_parallel_of(data_parallel: tuple[int, int] | None, world_size: int) -> tuple[int, int]:
    """Return the data-parallel (rank, size): `data_parallel`, or the rank among all ranks if None.

    Raises:
        ValueError: the size does not divide the number of ranks, or the rank is not below it.
    """
    if data_parallel is None:
        return dist.get_rank(), world_size
    rank, size = data_parallel
    if size < 1 or world_size % size or not 0 <= rank < size:
        raise ValueError(
            expected_but_got(
                f"(rank, size) with a size that divides {world_size} ranks, and a rank below it,",
                named("data_parallel", data_parallel),
                "give the rank and the size of the data-parallel dimension of the mesh",
            )
        )
    return data_parallel
