"""Delay Ctrl-C while torch is imported: an interrupt there is lost, or leaves numpy half imported.

The garbage collector interrupts an import of torch, too, and at the end of the process once more.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import FrameType, ModuleType


@contextmanager
def postponed() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block.

    Python handles signals in its main thread only, so this does nothing in another one.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def uncollected() -> Iterator[None]:
    """Turn garbage collection off in a block of imports, and then freeze all objects (`gc.freeze`).

    Imported modules stay until the process ends. To look at their objects again and again takes a
    quarter of the time in which torch is imported and, at the end of the process, let go.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


class AroundImport(MetaPathFinder):
    """An import hook that runs the import of one module inside a context.

    Args:
        name: of the module.
        around: makes the context.
    """

    def __init__(self, name: str, around: Callable[[], AbstractContextManager[object]]) -> None:
        self._name = name
        self._around = around

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Install the import hook during the block, and remove it once the module is imported."""
        if self._name not in sys.modules:
            sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            if self in sys.meta_path:  # a script may have put other finders there
                sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the import spec of the awaited module, loaded in a context; None for others."""
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Enclosed(spec.loader, self, self._around)
        return spec


class WholeTorch(AroundImport):
    """An import hook that delays Ctrl-C and garbage collection while torch is imported.

    torch's native code imports numpy and clears whatever exception comes out of that, also a
    KeyboardInterrupt: the session would go on, perhaps with half of numpy.
    """

    def __init__(self) -> None:
        super().__init__("torch", _whole)


@contextmanager
def _whole() -> Iterator[None]:
    with postponed(), uncollected():
        yield


class _Enclosed(Loader):
    def __init__(
        self,
        loader: Loader,
        finder: AroundImport,
        around: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._loader = loader
        self._finder = finder
        self._around = around

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        with self._around():
            self._loader.exec_module(module)
        if self._finder in sys.meta_path:  # of no use to the imports that follow
            sys.meta_path.remove(self._finder)
