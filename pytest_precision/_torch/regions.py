"""Private names of torch on regions that its default compiler has compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch

from pytest_precision._torch.around import around_calls
from pytest_precision._torch.call_stack import is_within

Run = Callable[[Sequence[Any]], Any]
"""Takes the inputs of a region, which it may take out of their list, and returns its results."""

DYNAMO_CALLS = "torch/_dynamo/eval_frame.py"
"""How the name of the file ends in which torch calls what it has compiled."""


def in_compiled_call() -> bool:
    """Return whether this thread is inside a call of a function that `torch.compile` has made."""
    return is_within("compile_wrapper", DYNAMO_CALLS)


@contextmanager
def around_regions(call: Callable[[Run, Sequence[Any], tuple[int, ...]], Any]) -> Iterator[None]:
    """Make torch run `call` instead of each region that torch.compile compiled, during the block.

    `call` gets the region, its inputs, and the numbers of the inputs that the region overwrites.

    The compiler takes a second to import, so its class is only looked for once something is
    compiled.
    """
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_replaced_call(call))
        else:
            original = torch.compile

            @wraps(original)
            def compiling(*args: Any, **kwargs: Any) -> Any:
                torch.compile = original
                stack.enter_context(_replaced_call(call))
                return original(*args, **kwargs)

            torch.compile = compiling
            stack.callback(setattr, torch, "compile", original)
        yield


@contextmanager
def _replaced_call(
    call: Callable[[Run, Sequence[Any], tuple[int, ...]], Any],
) -> Iterator[None]:
    try:
        from torch._inductor.output_code import CompiledFxGraph
    except ImportError:  # of Triton, say, which its stand-in for a CPU lacks: nothing is compiled
        yield
        return

    def run(original: Callable[..., Any], graph: CompiledFxGraph, inputs: Sequence[Any]) -> Any:
        return call(partial(original, graph), inputs, tuple(graph.mutated_input_idxs))

    with around_calls(CompiledFxGraph, "__call__", run):
        yield
