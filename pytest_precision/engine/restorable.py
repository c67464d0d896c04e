"""Save an engine's state to a checkpoint, and load it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.groups import updated_tensors
from pytest_precision.engine.observable import Observable
from pytest_precision.engine.observation import Observation, tensors_in
from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.tensor_key import unwrapped
from pytest_precision.ranks.state.accelerator import generator_states, set_generator_states

CHECKPOINT_ELSEWHERE = frozenset(
    {"model", "optimizer", "master", "rng", "buffers", "scheduler", "loss_scale"}
)
"""Parts of a checkpoint that are observed as kinds of their own; a scheduler as the rates that it
sets."""


def saved_names(folder: Path) -> Collection[str]:
    """Return the names of all entries in a checkpoint."""
    # Torch's checkpoints, here and below, are imported when one is saved or loaded: they take half
    # as long as torch itself, and what compares recordings imports this module, too.
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    names: Collection[str] = FileSystemReader(folder).read_metadata().state_dict_metadata
    return names


class Restorable(Observable):
    """The part of an engine that saves and loads checkpoints.

    A checkpoint must hold all that the next step reads: the resident weights, the masters where
    they are not the weights themselves, the state of the optimizer and its step counters, the
    numbers of its parameter groups, the scheduler, dynamic loss scaling, the buffers, and each
    rank's random number generators, that of its device too. Whatever is missing shows after `load`,
    or one step later.

    Attributes:
        scheduler: scheduler of the learning rate, or None.
        rank: rank of this process.
    """

    fixed_world_size: ClassVar[str] = ""
    """Why a checkpoint can be loaded by as many ranks only as have saved it; empty where any number
    can, which sequences with `load@2` are for."""

    scheduler: LRScheduler | None
    rank: int

    def expect_world_sizes(self, world_sizes: Collection[int]) -> None:
        """Raise, before training, if the number of ranks changes but checkpoints do not allow that.

        Args:
            world_sizes: numbers of ranks that run a part of the sequence.

        Raises:
            ValueError: there are several, and a checkpoint has a fixed one.
        """
        if len(world_sizes) > 1 and self.fixed_world_size:
            raise ValueError(
                expected_but_got(
                    f"a sequence on one number of ranks, since {self.fixed_world_size},",
                    f"one on {', '.join(map(str, sorted(world_sizes)))} ranks",
                    f"leave @ out, or unset {type(self).__name__}.fixed_world_size",
                )
            )

    def observe(self, phase: str, capture: Capture) -> Iterator[Observation]:
        """Yield the tensors that `phase` may change, and after a save or load the checkpoint's.

        Those are the entries that a subclass's own `state_dict` adds.
        """
        yield from super().observe(phase, capture)
        if phase in ("save", "load") and type(self).state_dict is not Restorable.state_dict:
            beside = self.state_beside_weights().keys()
            state = {key: value for key, value in self.state_dict().items() if key not in beside}
            yield from self._show_further(state, capture)

    def observe_state(self, capture: Capture) -> Iterator[Observation]:
        """Yield all state carried to the next step, and further entries that a checkpoint has."""
        yield from super().observe_state(capture)
        state = self.state_beside_weights()
        self._expect_generators(state)
        yield from self._show_further(state, capture)

    def _show_further(self, state: Mapping[str, Any], capture: Capture) -> Iterator[Observation]:
        # In the order of the state, which ranks share: what is shown may be gathered.
        further = [key for key in state if key not in CHECKPOINT_ELSEWHERE]
        for key in further:
            for path, tensor in tensors_in(state[key]):
                yield from self.show("state", f"{key}{path}", tensor, capture, split=False)

    def save(self, folder: Path) -> None:
        """Write a checkpoint that a new engine of any world size can load."""
        from torch.distributed.checkpoint.state_dict_saver import save

        save(self.state_dict(), checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        """Load a checkpoint into this engine, also if fewer ranks have saved it."""
        from torch.distributed.checkpoint.state_dict_loader import load

        with _without_gradients(self.optimizer):
            state = self.state_dict()
        rank = str(self.rank)
        if rank in state.get("rng", {}) and f"rng.{rank}.cpu" not in saved_names(folder):
            # The saving run did not have this rank, so nothing is there under its number.
            state["rng"] = {"0": state["rng"][rank]}
            state.pop("buffers", None)
        load(state, checkpoint_id=folder)
        self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Return all training state by fully qualified names; DTensors stay sharded.

        Raises:
            ValueError: for an optimizer whose state is not kept per parameter: torch would write
                it and then not load it; also for one whose parameters are not this model's.
        """
        from torch.distributed.checkpoint.state_dict import get_state_dict

        self._expect_state_by_parameter()
        model, optimizer = get_state_dict(self.optimized_model, self.optimizer)
        return {"model": model, "optimizer": optimizer, **self.state_beside_weights()}

    def _expect_generators(self, state: Mapping[str, Any]) -> None:
        """Refuse what an override returns alone: a load would go on with other random numbers."""
        if "rng" not in state:
            raise ValueError(
                expected_but_got(
                    "random generators in what state_beside_weights returns",
                    f"{', '.join(map(str, state)) or 'nothing'} of {type(self).__name__}",
                    "return super().state_beside_weights() | {...}, and begin "
                    "load_state_beside_weights with super().load_state_beside_weights(state)",
                )
            )

    def _expect_state_by_parameter(self) -> None:
        parameter_ids = {id(parameter) for parameter in self.optimized_model.parameters()}
        foreign = [
            tensor for tensor in updated_tensors(self.optimizer) if id(tensor) not in parameter_ids
        ]
        if foreign:
            shapes = ", ".join(str([*tensor.shape]) for tensor in foreign[:3])
            raise ValueError(
                expected_but_got(
                    "an optimizer of parameters of the engine's model alone, by which a checkpoint "
                    "of torch names its state,",
                    f"{type(self.optimizer).__name__} with {len(foreign)} others, of shapes "
                    f"{shapes}{', ...' * (len(foreign) > 3)}",
                    "make it of the model's parameters, or override state_dict and load_state_dict "
                    "of the engine",
                )
            )
        trained = [
            (name, parameter) for name, parameter in self.masters() if parameter.requires_grad
        ]
        without = [name for name, parameter in trained if not self.optimizer.state.get(parameter)]
        closure = signature(self.optimizer.step).parameters.get("closure")
        if 0 < len(without) < len(trained):
            problem = (
                f"has state of {len(trained) - len(without)} of {len(trained)}, not of {without[0]}"
            )
        elif closure is not None and closure.default is closure.empty:
            problem = "needs a closure for its step, with which torch makes missing state"
        else:
            return
        raise ValueError(
            "expected an optimizer with state of all parameters or of none, which a checkpoint of "
            f"torch's can hold, but {type(self.optimizer).__name__} {problem}; override "
            "state_dict and load_state_dict of the engine"
        )

    def state_beside_weights(self) -> dict[str, Any]:
        """Return checkpoint entries for random generators, buffers, scheduler and loss scale."""
        # Generators and buffers are rank-local, so each rank keeps its own under a key of its own;
        # a buffer in the model's state is that of one rank.
        buffers = {name: buffer.clone() for name, buffer in self.named_buffers()}
        state: dict[str, Any] = {"rng": {str(self.rank): generator_states()}}
        if buffers:
            state["buffers"] = {str(self.rank): buffers}
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler.state_dict()
        if self.scaler is not None:
            state["loss_scale"] = self.scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned on an engine that was built the same way."""
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(
            self.optimized_model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.load_state_beside_weights(state)

    def load_state_beside_weights(self, state: dict[str, Any]) -> None:
        """Load random generators, buffers, scheduler and loss scale from a checkpoint."""
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["loss_scale"])
        # A rank that the saving run did not have continues with the generators of rank 0.
        rng = state["rng"]
        set_generator_states(rng[str(self.rank) if str(self.rank) in rng else "0"])
        buffers = state.get("buffers", {}).get(str(self.rank), state["model"])
        for name, buffer in self.named_buffers():
            buffer.copy_(buffers[name])

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name without wrappers, buffer) for the model's buffers on this rank."""
        return ((unwrapped(name), buffer) for name, buffer in self.model.named_buffers())


@contextmanager
def _without_gradients(optimizer: Optimizer) -> Iterator[None]:
    """Remove gradients in the context, as torch creates no state to load while there are any.

    Those of another dtype or shape than their parameter's, which cannot be put back, stay.
    """
    gradients = [
        (parameter, gradient)
        for parameter in updated_tensors(optimizer)
        if (gradient := parameter.grad) is not None
        and (gradient.dtype, gradient.shape) == (parameter.dtype, parameter.shape)
    ]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
