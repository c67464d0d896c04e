"""Install hooks on a model's modules and parameters, where torch's global hooks miss calls.

`module.compile()` puts what it has compiled in the place of the call of the module, for which torch
calls no hook. So what a hook would do there is done before that call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from pytest_precision._torch.dispatch import in_transform
from pytest_precision._torch.training import compiled_call, set_compiled_call
from pytest_precision.engine.capture import ModuleHook
from pytest_precision.ranks.state.accelerator import capturing
from pytest_precision.recorders.scripts.step_buffer import StepBuffer

CLIP = "clip_grad_norm_"
"""Name of the method."""


def unseen() -> str | None:
    """Return why a module's call cannot be observed at this moment; None if it can."""
    if in_transform():
        return "called inside a transform of torch.func"
    return "captured in a CUDA graph, whose replays call no hook" if capturing() else None


class ToldCall:
    """Wraps the compiled call of a module, to run registered functions before it.

    Args:
        call: what torch has compiled.

    Attributes:
        call: as given.
        told: functions to call first, in their order; inside of another compilation, none is.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.told: list[Callable[[], None]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the registered functions, then the compiled call, and return its result."""
        if not torch.compiler.is_compiling():
            for hook in [*self.told]:  # one of them may add another
                hook()
        return self.call(*args, **kwargs)


def _take_back(module: nn.Module, call: ToldCall) -> None:
    """Remove the wrapper around a module's compiled call, unless the module was compiled anew."""
    call.told.clear()  # a copy of the module may have the call, too
    if compiled_call(module) is call:
        set_compiled_call(module, call.call)


def readers(root: nn.Module) -> Iterator[tuple[nn.Module, tuple[nn.Module, ...]]]:
    """Yield (module, owners): a module whose call reads parameters, and the modules that own them.

    What is compiled reads all of its parameters in one call, inside of which nothing is called.
    """
    inside: set[nn.Module] = set()
    for module in root.modules():
        if module in inside:
            continue
        # By `compile()`, or by a wrapper.
        compiled = compiled_call(module) is not None or "_orig_mod" in dict(module.named_children())
        parts = tuple(module.modules()) if compiled else ()
        inside.update(parts)
        if parts or next(module.parameters(recurse=False), None) is not None:
            yield module, parts or (module,)


class ModelHooks:
    """Installs hooks on a model, which buffer the weights that it reads and its new gradients.

    Args:
        buffer: keeps what is read, and gradients.
        begins: is called before a forward of compiled code, for which torch calls no hook.
        clipped: is called with norm and limit after a model has clipped by a method of its own.

    Attributes:
        clips: whether such a method is running; on one rank, FSDP1's calls torch's function.
    """

    def __init__(
        self,
        buffer: StepBuffer,
        begins: Callable[[nn.Module], None],
        clipped: Callable[[Tensor, object], None],
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
        for module, read_modules in readers(root):
            if module in self._read:
                continue
            self._read.add(module)
            hook = ModuleHook(partial(self._before_forward, read_modules))
            self._handles.callback(module.register_forward_pre_hook(hook).remove)
            self.watch_call(module, hook)
            if module is called:
                hook()

    def watch_call(self, module: nn.Module, *hooks: ModuleHook) -> None:
        """Add hooks before a module's compiled call, if any, the first of which reports the call.

        Args:
            module: it.
            hooks: further hooks, which come after those that it has.
        """
        call = compiled_call(module)
        if call is not None and not isinstance(call, ToldCall):
            call = ToldCall(call)
            call.told.append(ModuleHook(partial(self._begins, module)))
            set_compiled_call(module, call)
            self._handles.callback(_take_back, module, call)
        if isinstance(call, ToldCall):
            call.told += hooks

    def watch_compiled(self, module: nn.Module) -> None:
        """Install hooks that buffer the weights read by a module just compiled."""
        self._read.discard(module)
        self.watch_reads(module)

    def watch_clip(self, root: nn.Module) -> None:
        """Wrap a model's `clip_grad_norm_` method, which FSDP1 has, to see its calls."""
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
            limit = args[0] if args else kwargs.get("max_norm")
            self._clipped(norm, limit)
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

    def _before_forward(self, read_modules: Sequence[nn.Module], *_: object) -> None:
        trains = not torch.compiler.is_compiling() and torch.is_grad_enabled()
        if trains and unseen() is None:  # else the hook of all modules has noted why
            self._buffer.used_by(read_modules)
