"""Model hooks: those in the modules and parameters of one loop, where torch's global ones end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pytest_precision.loops.names import readers


class ModelHooks:
    """Tells what modules read and which gradients are there, until it is closed.

    Args:
        reads: is called before modules read their weights in a forward with gradients.
        accumulated: is called after a backward has added to the gradient of a parameter.
    """

    def __init__(
        self,
        reads: Callable[[Sequence[nn.Module]], None],
        accumulated: Callable[[str, Tensor], None],
    ) -> None:
        self._reads, self._accumulated = reads, accumulated
        self._handles: list[RemovableHandle] = []
        self._watched: set[int] = set()

    def watch_reads(self, root: nn.Module, *, called: bool) -> None:
        """Watch what the modules of a model read.

        Args:
            root: the model.
            called: whether it is being called, so that this call has listed its hooks already.
        """
        # After the hooks by which a wrapper gathers the shards that the forward reads.
        for module, read in readers(root):
            hook = partial(self._before_forward, read)
            self._handles.append(module.register_forward_pre_hook(hook))
            if called and module is root:
                hook()

    def watch_gradients(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Watch the gradients of those parameters that are not watched yet."""
        for name, parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._watched:
                self._watched.add(id(parameter))
                hook = partial(self._accumulated, name)
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._handles.append(handle)

    def close(self) -> None:
        """Take back what was put into modules and parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before_forward(self, read: Sequence[nn.Module], *_: object) -> None:
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            self._reads(read)
