"""Name a loop's tensors by their path in the model, without wrappers' prefixes."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

from torch import Tensor, nn

from pytest_precision._torch.distributed import flat_pieces
from pytest_precision._torch.training import own_parameters
from pytest_precision.engine import attributes
from pytest_precision.errors import expected_but_got, named
from pytest_precision.recorders.scripts.located import PieceFields, Pieces
from pytest_precision.recorders.scripts.wrappers import (
    holds_anything,
    module_paths,
    stands_for,
    structure,
)

PLACEHOLDER = re.compile("\0([0-9]+)\0(\\.?)")
"""What a path is until it is known, and the dot behind it."""

Models = nn.Module | Mapping[str, nn.Module] | None


class LoopNames:
    """Finds the models that a loop calls, and names their tensors by path.

    Modules have placeholders for names until an optimizer is about to make its first update: which
    of them is the model, and which one wraps it, is known then. A root that was given stays one,
    whatever has it. Without one, the model is what holds the parameters of the optimizer and is
    part of no other module that was called; what it is wrapped in is left out. The tensors of the
    first root have their names in it; those of a further one are named `model2.head.weight`.

    Attributes:
        roots: module to the beginning of the names of what it holds, empty or with a dot; there are
            none before `settle`.
        twins: beginning of the names of a model to an earlier one that is built alike, is there
            still, and was not called since.
    """

    def __init__(self) -> None:
        self.roots: dict[nn.Module, str] = {}
        self.twins: dict[str, weakref.ref[nn.Module]] = {}
        self._heads: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._settled = False
        self._given: dict[nn.Module, str] = {}
        self._called: dict[nn.Module, None] = {}
        self._modules: dict[nn.Module, str] = {}
        self._paths: list[str] = []
        # Keeps each tensor alive, and with it its id: FSDP2 puts two in turn into a module.
        self._named: dict[int, tuple[str, Tensor]] = {}
        # What FSDP1 keeps, by the id of a tensor that holds it: these live as long as the modules.
        self._flat: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()

    def add(self, models: Models) -> list[nn.Module]:
        """Register the models that a script passes to `record`; return them as a list.

        Raises:
            TypeError: what is given is no module, and no dict of modules.
        """
        by_name = models if isinstance(models, Mapping) else {"": models}
        roots = [*by_name.values()] if models is not None else []
        if models == {} or not all(isinstance(root, nn.Module) for root in roots):
            raise TypeError(
                expected_but_got(
                    "a module or a dict from name to module",
                    named("model", models),
                    "write record(model=model)",
                )
            )
        for name, root in zip(by_name, roots, strict=False):
            self._given[root] = f"{name}." if name else ""
            self._heads.add(root)
            self._hold_places(root)
        return roots

    def meet(self, module: nn.Module) -> bool:
        """Register a module that is called; return True if it is new and has tensors."""
        if module in self._modules or not holds_anything(module):
            return False
        self._heads.add(module)
        if self._settled:
            self._name_late(module)
        else:
            self._called[module] = None
            self._hold_places(module)
        return True

    @property
    def anything(self) -> bool:
        """Return whether any module with tensors has been registered."""
        return bool(self._modules)

    def knows(self, module: nn.Module) -> bool:
        """Return whether a module is registered, by itself or as part of a model."""
        return module in self._modules

    def lent(self, module: nn.Module) -> bool:
        """Return whether a module's parameters are replaced by tensors, as by `functional_call`."""
        if self._flat:  # FSDP1 has views of its flat parameter there
            return False
        return not all(isinstance(parameter, nn.Parameter) for parameter in module.parameters())

    def begins(self, module: nn.Module) -> bool:
        """Return whether the loop itself, and not another module, calls this module."""
        if module not in self._heads:
            return False
        if self.twins:
            parts = {*module.modules()}
            twins = self.twins.items()
            self.twins = {prefix: twin for prefix, twin in twins if twin() not in parts}
        return True

    def settle(self, trained: Iterable[Tensor]) -> bool:
        """Give all registered modules their final names; return False if they have them already.

        Args:
            trained: the parameters of an optimizer, which identify the model.
        """
        if self._settled or not self._modules:
            return False
        models = self._models(trained)
        placed, self._modules, self._settled = self._modules, {}, True
        for root, prefix in self._given.items():
            self._add_root(root, prefix, [root])
        for model in models:
            self._take_in(model)
        self._paths = [self._modules[module] for module in placed]
        self._given, self._called = {}, {}
        named, self._named = self._named, {}
        self.learn()
        for key, (name, tensor) in named.items():
            self._named.setdefault(key, (self.settled(name), tensor))
        return True

    def settled(self, name: str) -> str:
        """Return a name in which module paths replace the placeholders for modules."""

        def path(match: re.Match[str]) -> str:
            path = self._paths[int(match[1])]
            if not path and not match[2]:
                return attributes.WHOLE
            return path and path + match[2]

        return PLACEHOLDER.sub(path, name)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name without wrappers, parameter) for each parameter, once."""
        yielded = set()
        for module, path in [*self._modules.items()]:
            for attribute, parameter in own_parameters(module):
                identity = id(parameter)
                if identity in yielded:
                    continue
                yielded.add(identity)
                if identity not in self._named:
                    self._named[identity] = _joined(path, attribute), parameter
                yield self._named[identity][0], parameter

    def learn(self) -> None:
        """Rebuild the table of tensor names, because wrappers may replace parameters by shards."""
        for _ in self.parameters():
            pass

    def modules(self, root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Yield (name without wrappers, module) for a model and all modules in it."""
        paths = self._modules
        return ((paths[module], module) for module in root.modules() if module in paths)

    def spellings(self) -> Iterator[tuple[str, str]]:
        """Yield (path, path with wrappers) of modules that the loop's own models name otherwise.

        Each wrapper of a model counts the model's attribute into the names of its parameters.
        """
        wrappers = dict.fromkeys(module for head in self._heads for module in stands_for(head))
        for wrapper in wrappers:
            for path, module in wrapper.named_modules():
                if self._modules.get(module, path) != path:
                    yield self._modules[module], path

    def aliases(self) -> Iterator[tuple[str, ...]]:
        """Yield, for each parameter that several modules share, a tuple of its names."""
        names: dict[int, list[str]] = {}
        for module in self._modules:
            for name, parameter in self.own(module):
                names.setdefault(id(parameter), []).append(name)
        yield from (tuple(several) for several in names.values() if len(several) > 1)

    def own(self, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, parameter) for the parameters that a module holds directly."""
        path = self._modules[module]
        for attribute, parameter in own_parameters(module):
            yield _joined(path, attribute), parameter

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name without wrappers, buffer) for each buffer of the models."""
        for module, path in self._modules.items():
            yield from module.named_buffers(path, recurse=False)

    def saving_more(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield (name, module) for each module that has a `get_extra_state`."""
        for module, path in self._modules.items():
            if attributes.saves_more(module):
                yield path, module

    def of(self, tensor: Tensor) -> str | None:
        """Return a parameter's name without wrappers; None if it has none."""
        return self._named.get(id(tensor), (None,))[0]

    def pieces(self, tensor: Tensor) -> Pieces | None:
        """Return which parts of parameters an FSDP1 flat parameter holds; None for others."""
        module = self._flat.get(id(tensor)) if self._flat else None
        return None if module is None else self._pieces(module, tensor)

    def _pieces(self, module: nn.Module, tensor: Tensor) -> Iterator[PieceFields]:
        position = 0
        for piece in flat_pieces(module):
            if piece.holder is tensor:
                if piece.offset > position:
                    yield None, (), position, piece.offset
                path = ".".join(filter(None, (self._modules[piece.owner], piece.name)))
                yield path, piece.shape, piece.start, piece.stop
                position = piece.offset + piece.stop - piece.start
        if tensor.numel() > position:
            yield None, (), position, tensor.numel()

    def _hold_places(self, root: nn.Module) -> None:
        """Give each unnamed module of a model a placeholder, to be replaced by its path."""
        for module in root.modules():
            if module not in self._modules:
                self._modules[module] = f"\0{len(self._modules)}\0"
                # By name, since importing the class takes half a second that other loops can save.
                if type(module).__name__ == "FullyShardedDataParallel":
                    self._flat |= {id(piece.holder): module for piece in flat_pieces(module)}

    def _models(self, trained_tensors: Iterable[Tensor]) -> list[nn.Module]:
        """Return the called modules that are part of no other, with trained ones first."""
        parts = {part for called in self._called for part in called.modules() if part is not called}
        self.learn()
        modules = [*self._modules]
        matches = (PLACEHOLDER.match(self.of(tensor) or "") for tensor in trained_tensors)
        holders = {modules[int(match[1])] for match in matches if match is not None}
        models = (called for called in self._called if called not in parts)
        return sorted(models, key=lambda model: holders.isdisjoint(model.modules()))

    def _take_in(self, model: nn.Module) -> None:
        """Name a newly called model, which may be a wrapper of a model that is named already."""
        rest = [module for module in model.modules() if module not in self._modules]
        prefix = self._next_prefix()
        if len(rest) == len([*model.modules()]):
            self._add_root(model, prefix, stands_for(model))
        elif any(True for module in rest for _ in module.parameters(recurse=False)):
            self._add_root(model, prefix, [model])
        else:
            self._name_parts(model, prefix, [model])

    def _next_prefix(self) -> str:
        if not self.roots:
            return ""
        numbered = (f"model{n}." for n in count(len(self.roots) + 1))
        return next(prefix for prefix in numbered if prefix not in self.roots.values())

    def _add_root(self, root: nn.Module, prefix: str, through: list[nn.Module]) -> None:
        self.roots[through[-1]] = prefix
        self._name_parts(root, prefix, through)

    def _name_parts(self, root: nn.Module, prefix: str, through: list[nn.Module]) -> None:
        self._modules |= dict(module_paths(root, prefix.rstrip("."), through, self._modules))

    # --- modules that are called for the first time when names are settled ----------------------

    def _name_late(self, module: nn.Module) -> None:
        self._name_late_parts()
        if module in self._modules:
            return
        alike = self._alike(module)
        gone = [prefix for prefix in alike if prefix not in self.roots.values()]
        if gone:
            self._add_root(module, gone[0], stands_for(module))
            return
        before = {*self.roots}
        self._take_in(module)
        for root in self.roots.keys() - before if alike else ():
            self.twins[self.roots[root]] = next(iter(alike.values()))

    def _name_late_parts(self) -> None:
        """Name modules that were added to a model after it was named."""
        # Not in the caller, whose variable would keep a root alive.
        for root, prefix in self.roots.items():
            self._name_parts(root, prefix, [])

    def _alike(self, module: nn.Module) -> dict[str, weakref.ref[nn.Module]]:
        """Return registered models, by name prefix, with tensors of a module's names and shapes."""
        shape = structure(module)
        alike = {
            prefix: weakref.ref(root)
            for root, prefix in self.roots.items()
            if structure(root) == shape
        }
        if alike:
            self._forget_unreferenced()
        return alike

    def _forget_unreferenced(self) -> None:
        """Drop registered modules that nothing else in the process refers to."""
        modules = [(weakref.ref(module), path) for module, path in self._modules.items()]
        roots = [(weakref.ref(root), prefix) for root, prefix in self.roots.items()]
        self._modules, self.roots = {}, {}
        gc.collect()
        self._modules = {live: path for ref, path in modules if (live := ref()) is not None}
        self.roots = {live: prefix for ref, prefix in roots if (live := ref()) is not None}


def _joined(path: str, attribute: str) -> str:
    return f"{path}.{attribute}" if path else attribute
