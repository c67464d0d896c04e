"""A clip is seen however a loop has come by torch's function: by name, by module, or bound."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from checked import Recorded, named, values
from clipping_loop import SMALL, Clip, loop
from torch import nn
from torch.nn import utils
from torch.nn.utils import (
    clip_grad,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from torch.nn.utils.clip_grad import clip_grad_norm_ as norm_of_module
from torch.nn.utils.clip_grad import clip_grad_value_ as value_of_module

from pytest_precision import Cell
from pytest_precision._torch.training import place_of
from pytest_precision.probes.coverage_gaps.gaps import unexercised
from pytest_precision.trace.data_log import DataLog
from pytest_precision.trace.reader import Trace


def in_two(parameters: list[nn.Parameter]) -> None:
    """Clip as loops do that look at the norm before they clip."""
    norm = get_total_norm([own.grad for own in parameters if own.grad is not None])
    clip_grads_with_norm_(parameters, SMALL, norm)


BY_NORM: dict[str, Clip] = {
    "from torch.nn.utils": lambda held: clip_grad_norm_(held, SMALL),
    "from torch.nn.utils.clip_grad": lambda held: norm_of_module(held, max_norm=SMALL),
    "utils.clip_grad_norm_": lambda held: utils.clip_grad_norm_(held, SMALL),
    "torch.nn.utils.clip_grad_norm_": lambda held: torch.nn.utils.clip_grad_norm_(held, SMALL),
    "clip_grad.clip_grad_norm_": lambda held: clip_grad.clip_grad_norm_(held, SMALL),
    "partial": partial(clip_grad_norm_, max_norm=SMALL, foreach=False),
    "clip_grads_with_norm_": in_two,
}
BY_VALUE: dict[str, Clip] = {
    "from torch.nn.utils": lambda held: clip_grad_value_(held, SMALL),
    "from torch.nn.utils.clip_grad": lambda held: value_of_module(held, clip_value=SMALL),
    "utils.clip_grad_value_": lambda held: utils.clip_grad_value_(held, SMALL),
    "torch.nn.utils.clip_grad_value_": lambda held: torch.nn.utils.clip_grad_value_(held, SMALL),
    "clip_grad.clip_grad_value_": lambda held: clip_grad.clip_grad_value_(held, SMALL),
    "partial": partial(clip_grad_value_, clip_value=SMALL, foreach=False),
}


def is_before_the_clip(trace: Trace) -> bool:
    """Return whether gradients were seen before they were clipped, and after it."""
    before, after = (values(trace, kind, "weight") for kind in ("reduced_grad", "final_grad"))
    assert len(before) == len(after) == 2
    return all(abs(one) > 2 * abs(two) for one, two in zip(before, after, strict=True))


@pytest.mark.parametrize("spelling", BY_NORM)
def test_a_clip_by_norm_is_seen(recorded: Recorded, spelling: str) -> None:
    """Gradients are shown as they are before it, and the norm."""
    trace = recorded(partial(loop, clip=BY_NORM[spelling]))
    assert named(trace, "grad_norm") == ["total"]
    assert is_before_the_clip(trace)


@pytest.mark.parametrize("spelling", BY_VALUE)
def test_a_clip_by_value_is_seen(recorded: Recorded, spelling: str) -> None:
    """Gradients are shown as they are before it; there is no norm."""
    trace = recorded(partial(loop, clip=BY_VALUE[spelling]))
    assert named(trace, "grad_norm") == []
    assert is_before_the_clip(trace)


@pytest.mark.parametrize(
    ("clip", "said"),
    [
        (BY_NORM["clip_grads_with_norm_"], ["clipping: active in every step"]),
        (partial(clip_grad_norm_, max_norm=1e9), ["clipping: active in no step"]),
        (partial(clip_grad_norm_, max_norm=math.inf), ["clipping: no limit"]),
        (BY_VALUE["partial"], []),
    ],
)
def test_a_run_says_what_its_clips_did(recorded: Recorded, clip: Clip, said: list[str]) -> None:
    """A loop has no limit to show, but its gradients tell whether it was reached."""
    trace = recorded(partial(loop, clip=clip))
    never = unexercised(trace, Cell(sequence="train2"), DataLog((), (), {}))
    assert [words for words in never if words.startswith("clipping")] == said


def test_the_functions_are_as_before(recorded: Recorded) -> None:
    """Whoever imported them calls torch's own once the block has ended."""
    places = [place_of(clip_grad, name) for name in ("clip_grad_value_", "_clip_grads_with_norm_")]
    held = [getattr(*place) for place in places]
    recorded(partial(loop, clip=BY_VALUE["partial"]))
    assert [getattr(*place) for place in places] == held


def test_a_function_that_wraps_nothing_lies_where_it_is_defined() -> None:
    """Another release of torch may have no wrapper around its clips."""
    assert place_of(clip_grad, "_no_grad") == (clip_grad, "_no_grad")
