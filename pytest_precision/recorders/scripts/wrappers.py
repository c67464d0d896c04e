"""Recognise modules that only wrap a model, such as DDP, to leave them out of names."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import nn

from pytest_precision.matrix.tensor_key import WRAPPER_NAMES

ONLY_CHILDREN = frozenset({"module", "_module"})
"""Names that it has in wrappers without another child: DistributedDataParallel, Opacus."""


def stands_for(root: nn.Module) -> list[nn.Module]:
    """Return [module, ..., model]: a wrapper, the wrappers inside it, and the model they wrap.

    A module stands for a child that holds all of its parameters, if no name of the child's is one
    of its own.
    """
    chain = [root]
    while (inner_module := _only_holder(chain[-1])) is not None:
        chain.append(inner_module)
    return chain


def module_paths(
    root: nn.Module,
    path: str,
    through: Collection[nn.Module] = (),
    excluded: Collection[nn.Module] = (),
) -> Iterator[tuple[nn.Module, str]]:
    """Yield (module, path) of `root` and all others but `excluded`; paths leave out wrappers.

    Args:
        root: the module to begin with.
        path: of the root.
        through: modules that add nothing to their path, as the child of a wrapper does not.
        excluded: modules that have a path already.
    """
    visited = {root}

    def below(module: nn.Module, path: str) -> Iterator[tuple[nn.Module, str]]:
        if module not in excluded:
            yield module, path
        for name, child in module.named_children():
            if child not in visited:
                visited.add(child)
                level = "" if child in through or _wraps(module, name) else name
                yield from below(child, ".".join(filter(None, (path, level))))

    yield from below(root, path)


def structure(root: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter and buffer of a model by its name without wrappers."""
    chain = stands_for(root)
    return {
        name: tuple(tensor.shape)
        for module, path in module_paths(chain[0], "", chain)
        for listed in (module.named_parameters, module.named_buffers)
        for name, tensor in listed(path, recurse=False)
    }


def holds_anything(module: nn.Module) -> bool:
    """Return whether a module has any parameter or buffer, directly or in a child."""
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def _only_holder(module: nn.Module) -> nn.Module | None:
    parameters = {id(parameter) for parameter in module.parameters()}
    if not parameters or next(module.parameters(recurse=False), None) is not None:
        return None
    for name, child in module.named_children():
        if parameters == {id(parameter) for parameter in child.parameters()}:
            return child if _adds_no_name(module, name) else None
    return None


def _adds_no_name(module: nn.Module, child: str) -> bool:
    """Return whether a module and its child have no attribute name in common."""
    inner = module.get_submodule(child)
    return _own_names(module).isdisjoint(_own_names(inner) - {child})


def _own_names(module: nn.Module) -> set[str]:
    named = (module.named_children(), module.named_parameters("", False))
    names = {name for pairs in named for name, _ in pairs}
    return names | {name for name, _ in module.named_buffers("", False)}


def _wraps(module: nn.Module, child: str) -> bool:
    """Return whether a module only wraps this child, as DDP wraps its `module`."""
    if child in WRAPPER_NAMES:  # or it is a name of the user's own, with a weight beside it
        return _adds_no_name(module, child)
    if child not in ONLY_CHILDREN:
        return False
    return len([*module.children()]) == 1 and not [*module.parameters(recurse=False)]
