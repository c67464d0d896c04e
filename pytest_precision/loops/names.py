"""Names: the logical names of a loop's tensors, whatever wraps the modules that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from pytest_precision._torch import flat_pieces
from pytest_precision.errors import expected_but_got, named
from pytest_precision.loops.locate import PieceFields, Pieces

WRAPPERS = frozenset({"_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod"})
"""Names of the one child that a wrapper of torch has: activation checkpointing, FSDP, compile."""

Models = nn.Module | Mapping[str, nn.Module] | None


class LoopNames:
    """Finds the modules of a loop as they are called, and names what they hold.

    A module that is called, and is part of no other one that was, is a root. The first root's
    tensors have their names in it; those of a further one are named `model2.head.weight`.

    Attributes:
        roots: module to the beginning of the names of what it holds, empty or with a dot.
    """

    def __init__(self) -> None:
        self.roots: dict[nn.Module, str] = {}
        self._modules: dict[nn.Module, str] = {}
        # Keeps each tensor alive, and with it its id: FSDP2 puts two in turn into a module.
        self._named: dict[int, tuple[str, Tensor]] = {}
        # What FSDP1 keeps, by the id of a tensor that holds it: these live as long as the modules.
        self._flat: dict[int, nn.Module] = {}

    def add(self, models: Models) -> list[nn.Module]:
        """Take in roots that calls do not show, by name where there are several; list them.

        Raises:
            TypeError: what is given is no module, and no dict of modules.
            ValueError: a part of a model was called before, by itself.
        """
        given = models if isinstance(models, Mapping) else {"": models}
        roots = [*given.values()] if models is not None else []
        if not all(isinstance(root, nn.Module) for root in roots):
            raise TypeError(
                expected_but_got(
                    "a module or a dict from name to module",
                    named("model", models),
                    "write record(model=model)",
                )
            )
        for name, root in zip(given, roots, strict=False):
            self._add(root, f"{name}." if name else "")
        return roots

    def meet(self, module: nn.Module) -> bool:
        """Take in a module that is called; return whether it is a root that was not known.

        Raises:
            ValueError: a part of it was called before, by itself.
        """
        if module in self._modules or not _holds_anything(module):
            return False
        number = len(self.roots) + 1
        self._add(module, "" if number == 1 else f"model{number}.")
        return True

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter once, by logical name."""
        seen = set()
        for module in self._modules:
            for name, parameter in self.own(module):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    self._named.setdefault(id(parameter), (name, parameter))
                    yield self._named[id(parameter)][0], parameter

    def modules(self, root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Yield a root and all modules in it, each with its logical name."""
        known = self._modules
        return ((known[module], module) for module in root.modules() if module in known)

    def aliases(self) -> Iterator[tuple[str, ...]]:
        """Yield all names of every parameter that has several."""
        names: dict[int, list[str]] = {}
        for module in self._modules:
            for name, parameter in self.own(module):
                names.setdefault(id(parameter), []).append(name)
        yield from (tuple(several) for several in names.values() if len(several) > 1)

    def own(self, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters that `module` itself holds, also those that another one shares."""
        yield from module.named_parameters(self._modules[module], recurse=False)

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every buffer by logical name."""
        for module, path in self._modules.items():
            yield from module.named_buffers(path, recurse=False)

    def of(self, tensor: Tensor) -> str | None:
        """Return the name of a parameter that `parameters` has shown, or None."""
        return self._named.get(id(tensor), (None,))[0]

    def pieces(self, tensor: Tensor) -> Pieces | None:
        """Return what lies in a tensor of FSDP1, and None for any other tensor."""
        module = self._flat.get(id(tensor))
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

    def _add(self, root: nn.Module, prefix: str) -> None:
        for module in root.modules():
            if module in self._modules:
                raise ValueError(
                    expected_but_got(
                        "the whole model to be called before a part of it",
                        f"a call of {type(module).__name__} and then one of "
                        f"{type(root).__name__}, which has it",
                        "name the model: record(model=model)",
                    )
                )
            # By name, since importing the class takes half a second that other loops can save.
            if type(module).__name__ == "FullyShardedDataParallel":
                self._flat |= {id(piece.holder): module for piece in flat_pieces(module)}
        self.roots[root] = prefix
        self._modules[root] = prefix.rstrip(".")
        self._name_children(root)

    def _name_children(self, module: nn.Module) -> None:
        path = self._modules[module]
        for name, child in module.named_children():
            if child not in self._modules:
                own = "" if _wraps(module, name) else name
                self._modules[child] = ".".join(filter(None, (path, own)))
                self._name_children(child)


def readers(root: nn.Module) -> Iterator[tuple[nn.Module, tuple[nn.Module, ...]]]:
    """Yield each module whose call shows what is read, and the modules that then read.

    What is compiled reads all of its parameters in one call, inside of which nothing is called.
    """
    inside: set[nn.Module] = set()
    for module in root.modules():
        if module in inside:
            continue
        parts = tuple(module.modules()) if "_orig_mod" in dict(module.named_children()) else ()
        inside.update(parts)
        if parts or next(module.parameters(recurse=False), None) is not None:
            yield module, parts or (module,)


def _wraps(module: nn.Module, child: str) -> bool:
    """Return whether a module has nothing but a child that it stands for."""
    if child in WRAPPERS:
        return True
    alone = len([*module.children()]) == 1 and not [*module.parameters(recurse=False)]
    return child == "module" and alone


def _holds_anything(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())
