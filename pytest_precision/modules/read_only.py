"""Tensors whose values are computed when they are read: what is written to them would be lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


class ReadOnly(Tensor):
    """Its operations compute on its dequantized values; what would write to it is refused.

    Of the views of it, too: they are made of a copy, which nobody reads again.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def tolist(self) -> list[Any]:
        """The values as Python numbers, which torch does not give of a subclass."""
        values: list[Any] = self.dequantize().tolist()
        return values

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _written(func, args, kwargs):
            if isinstance(tensor, ReadOnly):
                what = (
                    "a view of quantized bytes" if isinstance(tensor, View) else "quantized bytes"
                )
                raise TypeError(
                    f"expected copy_ or requantize_ but got {func} (OpOverload) on {what}; "
                    "update a master in high precision and copy it as a whole"
                )
        result = func(*tree_map(plain, args), **tree_map(plain, kwargs))
        kinds = [returned.alias_info for returned in func._schema.returns]
        if any(kind is not None and not kind.is_write for kind in kinds):
            return tree_map(_view, result)
        return result


class View(ReadOnly):
    """Some of the values, or all of them in another shape."""

    @staticmethod
    def __new__(cls, values: Tensor) -> Any:
        return torch.Tensor._make_subclass(cls, values)

    def __init__(self, values: Tensor) -> None:
        self._held = values

    def dequantize(self) -> Tensor:
        """The values as a plain tensor."""
        return self._held


def plain(value: Any) -> Any:
    """The values of a tensor of this package; anything else as it is."""
    return value.dequantize() if isinstance(value, ReadOnly) else value


def _view(value: Any) -> Any:
    return View(value) if type(value) is Tensor else value


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operation writes to, those in lists too."""
    if func.namespace == "c10d":  # schemas of collectives do not say
        return tree_leaves((args, kwargs))
    declared = func._schema.arguments
    given = {**dict(zip((a.name for a in declared), args, strict=False)), **kwargs}
    return tree_leaves(
        [
            given[argument.name]
            for argument in declared
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and argument.name in given
        ]
    )
