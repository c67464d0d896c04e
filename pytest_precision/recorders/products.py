"""Record the dtypes of the matrix products that a run computes.

They go into the header of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from pytest_precision._torch.dispatch import tree_leaves
from pytest_precision.matrix.contract import dtype_name
from pytest_precision.recorders.probe import Probe, ProbedRun

PRODUCTS = frozenset(
    (
        "linear",
        "bilinear",
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "mm",
        "bmm",
        "mv",
        "dot",
        "addmm",
        "addmm_",
        "baddbmm",
        "baddbmm_",
        "addbmm",
        "addbmm_",
        "addmv",
        "addmv_",
        "einsum",
        "tensordot",
        "inner",
        "outer",
        "linalg_multi_dot",
        "_scaled_mm",
        "scaled_mm",
        "_grouped_mm",
        "grouped_mm",
        "_scaled_grouped_mm",
        "scaled_grouped_mm",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "scaled_dot_product_attention",
        "multi_head_attention_forward",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "lstm_cell",
        "gru_cell",
    )
)
"""Names of the functions of torch that multiply by weights, or activations by each other."""


class Products(TorchFunctionMode):
    """A context that records the dtypes of the results of matrix products inside it.

    It looks at results, since autocast casts operands out of sight. It sees modules and functions,
    on plain tensors and subclasses; it does not see a backward, or kernels that bypass torch.

    Args:
        dtypes: takes the names of dtypes, without `torch.`.
    """

    def __init__(self, dtypes: set[str]) -> None:
        super().__init__()
        self._dtypes = dtypes

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func`; if it is a matrix product, record the dtypes of its results."""
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", None) in PRODUCTS:
            tensors = (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
            self._dtypes.update(dtype_name(tensor.dtype) for tensor in tensors)
        return result


class ProductsProbe(Probe[ProbedRun]):
    """Looks at the forward and backward of an engine's first step, or at all that a loop does.

    Args:
        dtypes: see `Products`.
    """

    def __init__(self, dtypes: set[str]) -> None:
        self._products = Products(dtypes)

    def around(self, run: ProbedRun, call: str) -> AbstractContextManager[object]:
        """Return a context that records products; a null context for other calls."""
        is_first = call == "forward_backward" and run.step == 1
        return self._products if is_first or call == "loop" else nullcontext()
