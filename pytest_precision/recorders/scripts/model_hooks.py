"""Model hooks: hook the modules and parameters of a model to see what torch's global hooks miss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from pytest_precision._torch.dispatch import in_transform
from pytest_precision._torch.training import compiled_call
from pytest_precision.engine.capture import ModuleHook
from pytest_precision.ranks.state.accelerator import capturing
from pytest_precision.recorders.scripts.compiled import ToldCall, before_compiled_call
from pytest_precision.recorders.scripts.step_buffer import StepBuffer
from pytest_precision.recorders.scripts.wrappers import readers

CLIP = "clip_grad_norm_"
"""Name of the method."""


def unseen() -> str | None:
    """Return why a module's call cannot be observed at this moment; None if it can."""
    if in_transform():
        return "called inside a transform of torch.func"
    return "captured in a CUDA graph, whose replays call no hook" if capturing() else None


class ModelHooks:
    """Installs hooks on a model, which buffer the weights that it reads and its new gradients.

    Args:
        buffer: keeps what is read, and gradients.
        begins: is called before a forward of compiled code, for which torch calls no hook.
        clipped: is called with the norm after a model has clipped by a method of its own.

    Attributes:
        clips: whether such a method is running; on one rank, FSDP1's calls torch's function.
    """

    def __init__(
        self,
        buffer: StepBuffer,
        begins: Callable[[nn.Module], None],
        clipped: Callable[[Tensor], None],
    ) -> None:
        self._buffer = buffer
        self._begins = begins
        self._clipped = clipped
        self.clips = False
        self._handles = ExitStack()
        self._read: WeakSet[nn.Module] = WeakSet()
        self._watched: set[int] = set()

    def watch_reads(self, root: nn.Module, *, called: nn.Module | None = None) -> None:
        """Install hooks that buffer the weights which each of a model's modules reads.

        Args:
            root: the model.
            called: the module of it that is being called, whose call has listed its hooks already.
        """
        # After the hooks by which a wrapper gathers the shards that the forward reads.
        for module, read in readers(root):
            if module in self._read:
                continue
            self._read.add(module)
            hook = ModuleHook(partial(self._before_forward, read))
            self._handles.callback(module.register_forward_pre_hook(hook).remove)
            if self.watch_call(module):
                self._handles.callback(before_compiled_call(module, hook))
            if module is called:
                hook()

    def watch_call(self, module: nn.Module) -> bool:
        """Install a hook on a module's compiled call, if it has one; return whether it has."""
        call = compiled_call(module)
        if call is not None and not isinstance(call, ToldCall):
            begins = ModuleHook(partial(self._begins, module))
            self._handles.callback(before_compiled_call(module, begins))
        return call is not None

    def watch_compiled(self, module: nn.Module) -> None:
        """Install hooks that buffer the weights read by a module just compiled."""
        self._read.discard(module)
        self.watch_reads(module)

    def watch_clip(self, root: nn.Module) -> None:
        """Wrap a model's own `clip_grad_norm_` method, as FSDP1 has, to see its calls."""
        clip: Callable[..., Tensor] | None = getattr(root, CLIP, None)
        if not callable(clip) or CLIP in vars(root):
            return

        def clips(*args: Any, **kwargs: Any) -> Tensor:
            self._buffer.gradients()
            self.clips = True
            try:
                norm = clip(*args, **kwargs)
            finally:
                self.clips = False
            self._clipped(norm)
            return norm

        vars(root)[CLIP] = clips
        self._handles.callback(vars(root).pop, CLIP)

    def watch_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Install hooks that buffer each parameter's gradient after its backward."""
        for parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._watched:
                self._watched.add(id(parameter))
                handle = parameter.register_post_accumulate_grad_hook(self._buffer.accumulated)  # type: ignore[no-untyped-call]
                self._handles.callback(handle.remove)

    def close(self) -> None:
        """Remove all hooks from modules and parameters."""
        self._handles.close()

    def _before_forward(self, read: Sequence[nn.Module], *_: object) -> None:
        trains = not torch.compiler.is_compiling() and torch.is_grad_enabled()
        if trains and unseen() is None:  # else the hook of all modules has noted why
            self._buffer.used_by(read)
