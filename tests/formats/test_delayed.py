"""Delayed scaling: what is recorded, what an update does, and what an evaluation leaves behind."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_precision.formats import DelayedScaling
from pytest_precision.formats.scaling import FP32_MAXIMUM


def filled(value: float) -> torch.Tensor:
    """A matrix of one value."""
    return torch.full((4, 8), value)


def test_the_first_cast_has_scale_one() -> None:
    """A cast uses the scale of earlier steps, not of its own input."""
    slot = DelayedScaling()
    quantized = slot.quantize(filled(896.0))
    assert torch.equal(quantized.dequantize(), filled(448.0))
    slot.update()
    assert torch.equal(slot.quantize(filled(896.0)).dequantize(), filled(896.0))


def test_microbatches_record_their_largest_amax() -> None:
    """Row 0 grows from call to call and is cleared by the update."""
    slot = DelayedScaling(history_length=4)
    for value in (2.0, -5.0, 3.0):
        slot.quantize(filled(value))
    assert slot.history.tolist() == [5.0, 0.0, 0.0, 0.0]
    slot.update()
    assert slot.history.tolist() == [0.0, 0.0, 0.0, 5.0]


@pytest.mark.parametrize(("algorithm", "amax"), [("max", 8.0), ("most_recent", 2.0)])
def test_the_algorithm_picks_the_amax(algorithm: str, amax: float) -> None:
    """The scale comes from the whole history, or from its newest entry."""
    slot = DelayedScaling(algorithm=algorithm, margin=1)
    for value in (8.0, 2.0):
        slot.quantize(filled(value))
        slot.update()
    assert float(slot.scale) == 224.0 / amax


def test_an_evaluation_changes_the_next_training_step() -> None:
    """Calls without an update still record: train-eval-train is not train-train."""
    only_trained, evaluated = DelayedScaling(), DelayedScaling()
    for slot in (only_trained, evaluated):
        slot.quantize(filled(1.0))
        slot.update()
    evaluated.quantize(filled(100.0))
    for slot in (only_trained, evaluated):
        slot.quantize(filled(1.0))
        slot.update()
    assert float(only_trained.scale) == 448.0
    assert float(evaluated.scale) == float(torch.tensor(448.0) / torch.tensor(100.0))


def test_an_infinite_amax_freezes_the_scale() -> None:
    """The scale is left alone until the history has forgotten it."""
    slot = DelayedScaling(history_length=3)
    scales = []
    for value in (7.0, math.inf, 2.0, 2.0, 2.0):
        slot.quantize(filled(value))
        slot.update()
        scales.append(float(slot.scale))
    assert scales == [64.0, 64.0, 64.0, 64.0, 224.0]


def test_a_nan_is_no_amax() -> None:
    """One that is handed over is ignored, as that of a matrix is: the scale goes on."""
    slot = DelayedScaling(history_length=3)
    slot.quantize_with(filled(2.0), torch.tensor([math.nan]))
    slot.quantize(filled(2.0))
    slot.update()
    assert slot.history.tolist() == [0.0, 0.0, 2.0]
    assert float(slot.scale) == 224.0


@pytest.mark.parametrize("update", ["fused", "unfused"])
@pytest.mark.parametrize(
    ("margin", "scale"),
    [(-3000, FP32_MAXIMUM), (-119, 2.0**120), (120, 2.0**-119), (3000, 0.0)],
)
def test_a_margin_is_a_power_of_two_in_fp32(update: str, margin: int, scale: float) -> None:
    """Beyond the range of fp32, the scale is the largest number, or 0."""
    slot = DelayedScaling(margin=margin, update=update)
    slot.quantize(filled(224.0))
    slot.update()
    assert float(slot.scale) == scale


def test_an_amax_of_zero_moves_only_the_unfused_history() -> None:
    """The fused update does nothing at all after a step of zeros."""
    histories = []
    for update in ("fused", "unfused"):
        slot = DelayedScaling(history_length=3, update=update)
        for value in (4.0, 0.0):
            slot.quantize(filled(value))
            slot.update()
        histories.append(slot.history.tolist())
    assert histories == [[0.0, 0.0, 4.0], [0.0, 4.0, 0.0]]


def test_the_amax_is_reduced_over_ranks() -> None:
    """The injected reduction gets this rank's amax, and its result is remembered."""
    seen = []

    def largest_of_ranks(amax: torch.Tensor) -> torch.Tensor:
        seen.append(float(amax))
        return amax.clamp(min=56.0)

    slot = DelayedScaling(reduce_amax=largest_of_ranks)
    slot.quantize(filled(3.0))
    slot.update()
    assert seen == [3.0]
    assert float(slot.scale) == 8.0
    assert float(slot.history[-1]) == 56.0


def test_an_update_leaves_earlier_tensors_alone() -> None:
    """What was quantized keeps the scale that it was quantized with."""
    slot = DelayedScaling()
    quantized = slot.quantize(filled(2.0))
    slot.update()
    assert torch.equal(quantized.dequantize(), filled(2.0))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("algorithm", "mean"),
        ("update", "lazy"),
        ("history_length", 0),
        ("history_length", 2.5),
        ("element", "e2m1"),
        ("margin", 1.5),
        ("reduce_amax", 3),
        ("device", "nowhere"),
    ],
)
def test_unknown_options_are_refused(option: str, value: object) -> None:
    """The message names the option and what it was."""
    with pytest.raises(ValueError, match=rf"expected .* but got {option}={value!r} \("):
        DelayedScaling(**{option: value})
