"""Tensors whose values are computed on reading, so that a write to them would be lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from pytest_precision._torch.dispatch import (
    returns_view,
    tensor_of_class,
    tree_leaves,
    tree_map,
    without_torch_function,
    written_arguments,
)
from pytest_precision.errors import expected_but_got


class ReadOnly(Tensor):
    """A tensor subclass that computes with its dequantized values and refuses writes.

    Writes to its views are refused too: a view refers to a copy of the values, so a write to it
    would be lost.
    """

    __torch_function__ = without_torch_function()

    def tolist(self) -> list[Any]:
        """Return the values as Python numbers; torch's own method fails for a subclass."""
        values: list[Any] = self.dequantize().tolist()
        return values

    def quantized_state(self, name: str) -> Iterator[tuple[str, str, Tensor]]:
        """Yield (kind, name, tensor) of the bytes, scales and amaxes that it is computed from.

        Args:
            name: of this parameter in the model; each yielded name begins with it.
        """
        return iter(())

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
                target = (
                    "a view of quantized bytes" if isinstance(tensor, View) else "quantized bytes"
                )
                raise TypeError(
                    expected_but_got(
                        "quantized data to be changed by copy_ or requantize_",
                        f"{func} (OpOverload) on {target}",
                        "update a master in high precision and copy all of it",
                    )
                )
        result = func(*tree_map(writable, args), **tree_map(writable, kwargs))
        return tree_map(_view, result) if returns_view(func) else result


class View(ReadOnly):
    """A view of a read-only quantized tensor: some of its values, or all in another shape."""

    @staticmethod
    def __new__(cls, values: Tensor) -> Any:
        """Make a tensor of this class that shares memory with `values`."""
        return tensor_of_class(cls, values)

    def __init__(self, values: Tensor) -> None:
        self._held = values

    def dequantize(self) -> Tensor:
        """Return the values as a plain tensor."""
        return self._held


def writable(value: Any) -> Any:
    """Return a read-only tensor's values as a plain tensor, and any other value unchanged."""
    return value.dequantize() if isinstance(value, ReadOnly) else value


def _view(value: Any) -> Any:
    return View(value) if type(value) is Tensor else value


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that a torch operation writes to, including those inside lists."""
    if func.namespace == "c10d":  # schemas of collectives do not say which
        return tree_leaves((args, kwargs))
    return tree_leaves([*written_arguments(func, args, kwargs)])
