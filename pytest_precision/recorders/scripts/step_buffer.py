"""StepBuffer: what a loop shows while one step runs, kept until the step is over and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.engine import groups
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observable import full
from pytest_precision.engine.observation import Observation, whole
from pytest_precision.engine.training_state import rng
from pytest_precision.recorders.scripts.located import PieceOfTensor
from pytest_precision.recorders.scripts.loop_reader import LoopReader, NamedObservations
from pytest_precision.recorders.scripts.loop_trace import LoopTrace


class StepBuffer:
    """Buffers what the end of a step overwrites (losses, norms, gradients) until it is written.

    Args:
        reader: what can be seen of the loop.
        trace: the captures that observations are kept in.
        step: number of the first step.

    Attributes:
        seen: kinds that were seen at all.
        shown: kind and name of what the script has shown of its own.
        unread: type of a module to the reason why what it reads was not seen in some of its calls.
        fresh: whether no step of this run is over.
        step: number of the step, whether it is written or not.
    """

    def __init__(self, reader: LoopReader, trace: LoopTrace, step: int) -> None:
        self.reader = reader
        self._trace = trace
        self.seen: set[str] = set()
        self.shown: dict[str, None] = {}
        self.unread: dict[str, str] = {}
        self.fresh = True
        self.step = step
        self._begun = False
        self._losses = self._norms = 0
        self._given: Counter[tuple[str, str]] = Counter()

    def cannot_read(self, module: nn.Module, why: str) -> None:
        """Note that what a module has read was not seen."""
        self.unread.setdefault(type(module).__name__, why)

    def read_anew(self, root: nn.Module) -> None:
        """Forget what a forward has read that was made without a backward after it."""
        kept = self._trace.step
        for module in root.modules():
            for name, _ in self.reader.names.held_by(module):
                kept.drop("used_param", name)

    def begin(self) -> None:
        """Keep what the run starts with, in its first step."""
        if not self._begun:
            self._begun = True
            self._trace.start(self.reader, self.step)
            self._trace.first.keep("rng", "", rng())
        self.keep_models()

    def keep_models(self) -> None:
        """Keep what the models that are known start with, in the first step."""
        if self.fresh:
            for name, seen in self.reader.weights_of_models():
                self._trace.first.keep("weights", name, seen)

    def begin_anew(self) -> None:
        """Keep once more what the run starts with: its first step begins only now."""
        first = self._trace.first
        first.drop("rng", "")
        first.keep("rng", "", rng())
        for name, seen in self.reader.weights_of_models():
            first.drop("weights", name)
            first.keep("weights", name, seen)

    def start(self, optimizer: Optimizer) -> None:
        """Keep what an optimizer starts with that may move weights before it calls its closure.

        Where no model is known yet, nothing has a name, and `meet` keeps it after the closure.
        """
        if self.fresh and self.reader.names_all_of(optimizer):
            self.begin()
            self.reader.take_in(optimizer)
            self._keep_start(optimizer, 0)

    def end(self, done: int) -> None:
        """Forget a step, after which `done` steps are over."""
        self.fresh = False
        self.step = done + 1
        self._losses = self._norms = 0
        self._given.clear()
        self.reader.part.step = self.step
        self._trace.begin(self.step)

    def meet(self, optimizer: Optimizer, *, goes_on: bool) -> None:
        """Keep what an optimizer starts with, and the numbers that it is about to read.

        See `LoopReader.meet` for `goes_on`.
        """
        self.settle(chain.from_iterable(own for _, own in groups.group_members(optimizer)))
        update = self.reader.meet(optimizer, goes_on=goes_on)
        if self.fresh:
            self._keep_start(optimizer, update)
            self._trace.first.keep("flags", "", self.reader.flags())
            self._trace.first.keep("loss_scale", "", self.reader.loss_scale())
            self.reader.begin()
        self._keep("numbers", self._named(optimizer, update), self.reader.numbers(optimizer))

    def settle(self, trained: Iterable[Tensor]) -> None:
        """Name what the step has shown, if it is the first; see `LoopNames.settle`."""
        if self.reader.names.settle(trained):
            self._trace.rename(self.reader.names.settled)

    def loss(self, loss: Tensor) -> None:
        """Keep the loss of a microbatch."""
        name = f"microbatch{self._losses}"
        self._keep("loss", name, iter([whole("loss", name, full(loss.detach()), local=True)]))
        self._losses += 1

    def norm(self, norm: Tensor) -> None:
        """Keep the norm of gradients."""
        name = f"total{self._norms + 1}" if self._norms else "total"
        self._keep("grad_norm", name, iter([whole("grad_norm", name, full(norm.detach()))]))
        self._norms += 1

    def gradients(self) -> None:
        """Keep gradients as they are before they are clipped."""
        self._keep_all("reduced_grad", self.reader.gradients())

    def read_by(self, optimizer: Optimizer) -> None:
        """Keep gradients as an optimizer reads them."""
        self.gradients()
        self._keep_all("final_grad", self.reader.read_by(optimizer))

    def accumulated(self, parameter: Tensor) -> None:
        """Keep the gradient of a parameter as a backward has left it."""
        name = self.reader.names.of(parameter) or ""
        self._keep_all("grad", self.reader.accumulated(name, parameter, self._losses - 1))

    def used_by(self, modules: Sequence[nn.Module]) -> None:
        """Keep what modules are about to read."""
        for module in modules:
            if not self._trace.running:  # the call is noted already
                continue
            try:
                self._keep_all("used_param", self.reader.used(module))
            except RuntimeError as error:  # no observer ends a run
                words = str(error).partition("\n")[0]
                self.cannot_read(module, f"its weights cannot be read: {words}")

    def given(
        self,
        kind: str,
        name: str,
        tensor: Tensor,
        of: PieceOfTensor | None,
        *,
        local: bool,
        phase: str,
    ) -> None:
        """Keep an observation of the script's own; the n-th of one name in a step is numbered."""
        self._given[kind, name] += 1
        times = self._given[kind, name]
        name += f" #{times}" if times > 1 else ""
        self.seen.add(kind)
        self.shown[f"{kind} {name}"] = None
        if self._trace.writes(self.step):
            seen = self.reader.given(kind, name, tensor, of, local=local)
            self._trace.step.keep(f"see in {phase}", f"{kind} {name}", seen)

    def phases(self) -> Iterator[tuple[str, Iterator[Observation]]]:
        """Yield each phase of the step with what it has shown; not what it leaves, in the last."""
        kept = self._trace.step.kept
        shown = (
            chain(kept("used_param"), kept("loss"), kept("grad")),
            kept("reduced_grad"),
            chain(kept("grad_norm"), kept("final_grad"), kept("numbers")),
            (),
        )
        for phase, seen in zip(STEP_PHASES, shown, strict=True):
            yield phase, chain(seen, kept(f"see in {phase}"))

    def rates(self) -> Iterator[Observation]:
        """Yield the learning rates that the step has started with."""
        return (seen for seen in self._trace.step.kept("numbers") if seen.kind == "lr")

    def _keep_start(self, optimizer: Optimizer, update: int) -> None:
        name = self._named(optimizer, update)
        self._trace.first.keep("numbers", name, self.reader.numbers(optimizer))
        self._trace.first.keep("state", name, self.reader.kept_by(optimizer))

    def _named(self, optimizer: Optimizer, update: int) -> str:
        return f"{self.reader.optimizers.index(optimizer)}, update {update}"

    def _keep_all(self, kind: str, shown: NamedObservations) -> None:
        for name, seen in shown:
            self._keep(kind, name, seen)

    def _keep(self, kind: str, name: str, seen: Iterator[Observation]) -> None:
        self.seen.add(kind)
        if self._trace.writes(self.step):
            self._trace.step.keep(kind, name, seen)
