"""Operation logger: log every tensor operation of a run, with digests of inputs and results."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pytest_precision._torch.around import (
    around_calls,
    around_operations,
    draws_random_numbers,
    transfers,
    wait_for,
)
from pytest_precision._torch.dispatch import returns_view, tree_leaves
from pytest_precision._torch.regions import around_regions
from pytest_precision.ranks.state.accelerator import capturing
from pytest_precision.recorders.lines.arguments import (
    changed_by,
    filled_in_part,
    logged_arguments,
    overwritten_unread,
)
from pytest_precision.recorders.lines.forward_lines import ForwardLines, Origin
from pytest_precision.recorders.lines.frames import Frames
from pytest_precision.recorders.lines.settings import SettingsWatch
from pytest_precision.recorders.lines.sketches import Sketches
from pytest_precision.recorders.lines.user_calls import UserCalls
from pytest_precision.recorders.lines.values import Values, generator_state, has_values
from pytest_precision.trace.moment import LogRequest
from pytest_precision.trace.operations import (
    DETACH,
    GRAPH,
    REGION,
    Holding,
    LoggedArgument,
    LoggedOperation,
    OperationLog,
    Value,
)

CHANCE = ("aten.empty", "aten.new_empty", "aten._unsafe_empty", "aten.set_.source_Storage")
"""How names of operators begin whose results nobody has computed."""


class OperationLogger:
    """Logs the tensor operations of one rank, with digests of their inputs and results.

    Args:
        scope: how.

    Attributes:
        log: what was logged.
        active: whether operations are logged now.
    """

    def __init__(self, scope: LogRequest) -> None:
        self.log = OperationLog(pieces=scope.pieces, rows=scope.rows)
        self.active = False
        self.frames = Frames()
        self._scope = scope
        self._values = Values(scope.pieces, rows=scope.rows)
        self._sketches = Sketches()
        self.settings = SettingsWatch(self.frames, self.log)
        self._lines = ForwardLines(self.frames)
        self._user_calls = UserCalls(self.frames, self.log, lambda: self.active)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the hooks on operations, which log only while `active` is set."""
        with (
            self._lines.followed(),
            self.settings.followed(),
            around_operations(self._operation),
            around_regions(self._region),
            around_calls(torch.cuda.CUDAGraph, "replay", self._replayed),
            self._user_calls.followed(),
            old_objects_left_alone(),
        ):
            yield

    @contextmanager
    def on(self, enabled: bool = True) -> Iterator[None]:
        """Log tensor operations inside the context if `enabled` is true; otherwise do nothing."""
        before = self.active
        self.active = enabled or self.active
        if self.active and not before:
            self._values.forget()
        try:
            yield
        finally:
            self.active = before

    def start(self) -> None:
        """Clear the log, and log operations from now on."""
        self.log.operations.clear()
        self.log.restores.clear()
        self.log.entries.clear()
        self.log.steps.clear()
        self.log.cut = 0
        self._values.forget()
        self.active = True

    def give(self, named: Iterable[tuple[Holding, Tensor]]) -> None:
        """Store digests of these named tensors as they are before the operations to be logged."""
        self.log.initial_values |= self._named(named)

    def leave(self, named: Iterable[tuple[Holding, Tensor]]) -> None:
        """Store digests of these named tensors as they are after the logged operations."""
        self.log.left |= self._named(named)

    def _named(self, named: Iterable[tuple[Holding, Tensor]]) -> dict[Holding, Value]:
        local = (
            (name, tensor.to_local() if isinstance(tensor, DTensor) else tensor)
            for name, tensor in named
        )
        return {name: self._values.of(tensor) for name, tensor in local if has_values(tensor)}

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.active or torch.compiler.is_compiling() or capturing():
            return func(*args, **kwargs)
        if returns_view(func):
            if func is torch.ops.aten.detach.default and args[0].requires_grad:
                self._detached(args[0])
            return func(*args, **kwargs)
        if transfers(func):  # what arrives is known by its digest from the log of the sender
            return self._unlogged(func, args, kwargs)
        origin = self._lines.origin(func)
        if len(self.log.operations) >= self._scope.limit:
            self.log.cut = self._scope.limit
        elif origin.line is not None or origin.backward:
            with self._user_calls.paused():
                return self._logged(origin, func, args, kwargs)
        return self._unlogged(func, args, kwargs)  # of the recorder

    def _detached(self, tensor: Tensor) -> None:
        """Log that a line of the user's takes a value out of the graph of a backward.

        What a library detaches for it is the library's matter.
        """
        origin = self._lines.origin(torch.ops.aten.detach.default)
        line = origin.line
        by_user = line is not None and line.is_users and not line.called
        if (
            by_user
            and not origin.backward
            and has_values(tensor)
            and len(self.log.operations) < self._scope.limit
        ):
            self._note(origin, DETACH, [self._values.of(tensor)])

    def _unlogged(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        for tensor in changed_by(func, args, kwargs):
            self._values.overwritten(tensor)
        return result

    def _logged(
        self, origin: Origin, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        arguments, inputs = logged_arguments(self._values, args, kwargs)
        if draws_random_numbers(func):
            device = next(
                (tensor.device for tensor in inputs), torch.device(kwargs.get("device") or "cpu")
            )
            arguments.append(generator_state(kwargs.get("generator"), device))
        result = func(*args, **kwargs)
        wait_for(func, result)
        name = func.overloadpacket.__name__
        changed = [*changed_by(func, args, kwargs)]
        part = filled_in_part(name, args)
        for tensor in (*changed, *part):
            self._values.overwritten(tensor)
        outputs = [tensor for tensor in tree_leaves(result) if has_values(tensor)]
        output_ids = {id(tensor) for tensor in outputs}
        outputs += [tensor for tensor in changed if id(tensor) not in output_ids]
        if not inputs and not outputs:
            return result
        self._values.cuts.follow(name, args, inputs, outputs, changed)
        outputs = [tensor for tensor in outputs if not any(tensor is buffer for buffer in part)]
        operator = str(func)  # with its overload, as `aten.mul.Tensor`
        results = () if operator.startswith(CHANCE) else tuple(map(self._values.of, outputs))
        written = overwritten_unread(func, name, args, kwargs)
        self._note(origin, operator, arguments, results, written, self._sketched(outputs, results))
        return result

    def _note(
        self,
        origin: Origin,
        operator: str,
        arguments: Sequence[LoggedArgument] = (),
        results: tuple[Value, ...] = (),
        written: tuple[int, ...] = (),
        sketches: tuple[tuple[float, ...], ...] = (),
    ) -> None:
        where = origin.module, origin.backward, origin.line, sketches, self.frames.sites()
        operation = LoggedOperation(operator, tuple(arguments), results, written, *where)
        self.log.operations.append(operation)

    def _replayed(self, replay: Any, graph: Any) -> None:
        """Log the replay of a CUDA graph as one operation."""
        replay(graph)
        self._values.forget()
        if self.active and len(self.log.operations) < self._scope.limit:
            self._note(self._lines.origin(), GRAPH)

    def _region(
        self, run: Callable[[Sequence[Any]], Any], inputs: Sequence[Any], written: tuple[int, ...]
    ) -> Any:
        """Log a compiled region as one operation, since its kernels are not torch operators."""
        if not self.active or len(self.log.operations) >= self._scope.limit:
            return run(inputs)
        self.active = False  # for what the region does, and the digests that are taken around it
        try:
            origin = self._lines.origin()
            changed = [inputs[place] for place in written if has_values(inputs[place])]
            arguments, _ = logged_arguments(self._values, tuple(inputs), {})
            result = run(inputs)
            for tensor in changed:
                self._values.overwritten(tensor)
            outputs = [tensor for tensor in tree_leaves(result) if has_values(tensor)] + changed
            results = tuple(map(self._values.of, outputs))
            self._note(origin, REGION, arguments, results, (), self._sketched(outputs, results))
            return result
        finally:
            self.active = True

    def _sketched(
        self, outputs: Sequence[Tensor], results: Sequence[Value]
    ) -> tuple[tuple[float, ...], ...]:
        """Return short random projections of results; an empty tuple if the log is to have none.

        `results` are the values of `outputs`, or none where nobody has computed them.
        """
        if not self._scope.sketches:
            return ()
        return tuple(
            self._sketches.of(tensor, (value.dtype, value.digest))
            for tensor, value in zip(outputs, results, strict=False)
        )


@contextmanager
def old_objects_left_alone() -> Iterator[None]:
    """Exclude existing objects from Python's garbage collection inside the context.

    A log makes many objects, and each collection would also search all of torch's. Where these are
    frozen already, as in ranks, they stay so: after `unfreeze` all objects are searched.
    """
    gc.collect()  # garbage may be memory of a device
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
