"""What is kept of a run on a device is kept on the host: bytes are counted on one made up here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from fake_memory import MEMORY, BroughtBack, OnDevice, more
from torch import nn

from pytest_precision import Capture, whole
from pytest_precision.engine.observation import Observation
from pytest_precision.probes.declared_rule.oracle.adam import AdamScalars
from pytest_precision.probes.declared_rule.oracle.batch import Batch, Clipping, PiecePart
from pytest_precision.probes.declared_rule.oracle.held import HostCopies
from pytest_precision.probes.declared_rule.oracle.update import (
    NO_ROUNDING,
    Rounding,
    Roundings,
    State,
)
from pytest_precision.probes.lost_updates.measured import UpdateMeter
from pytest_precision.recorders.weights import MEASURED_AT_ONCE, Weight

ELEMENTS = 1 << 16
BYTES = 4 * ELEMENTS


@pytest.fixture(autouse=True)
def measured_at_once(monkeypatch: pytest.MonkeyPatch) -> int:
    """A chunk of a sixteenth of a tensor, on what says `meta`."""
    monkeypatch.setitem(MEASURED_AT_ONCE, "meta", ELEMENTS // 16)
    return ELEMENTS // 16


def one_piece(name: str, tensor: torch.Tensor) -> list[Observation]:
    """A tensor of the device as all that there is of its name."""
    seen = whole("lost_updates", name, torch.empty(tensor.shape))
    return [Observation("lost_updates", name, tensor, seen.shape, seen.place)]


def asked_for(call: Callable[[], object]) -> tuple[int, int]:
    """How often a call waits for the device, and how many bytes it has of it."""
    waits, copied = MEMORY.waits, MEMORY.copied
    call()
    return MEMORY.waits - waits, MEMORY.copied - copied


@pytest.fixture
def trained() -> tuple[torch.optim.Optimizer, nn.Parameter]:
    """A parameter on the device that an optimizer has updated once."""
    parameter = nn.Parameter(OnDevice(torch.linspace(-1, 1, ELEMENTS)))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    parameter.grad = OnDevice(torch.ones(ELEMENTS))
    optimizer.step()
    return optimizer, parameter


def test_what_a_step_shows_is_copied_to_the_host() -> None:
    """The weights that a forward has read, gradients and losses, of which a device had copies."""
    tensor = OnDevice(torch.ones(ELEMENTS))
    capture = Capture()
    seen = whole("used_param", "w", torch.empty(0))
    kept = [type(seen)("used_param", "w", tensor, (ELEMENTS,), seen.place)]
    assert more(lambda: capture.keep("used_param", "w", kept)) == 0
    [copy] = capture.kept("used_param")
    assert copy.tensor.device.type == "cpu"


def test_weights_before_an_update_are_kept_on_the_host(trained, measured_at_once: int) -> None:
    """They are brought back chunk by chunk, to be measured where the weights are."""
    optimizer, parameter = trained
    meter = UpdateMeter()
    weight = Weight(
        "w",
        parameter,
        parameter.detach,
        lambda tensor: [type(seen)("lost_updates", "w", tensor, (ELEMENTS,), seen.place)],
    )
    seen = whole("lost_updates", "w", torch.empty(0))
    watched: list[object] = []
    assert more(lambda: watched.extend(meter.before(optimizer, [weight]))) == 0
    optimizer.step()
    with BroughtBack():
        taken = more(lambda: meter.after(optimizer, watched, 1))
    assert 0 < taken <= 16 * 8 * measured_at_once
    [(_, [row])] = meter._steps
    assert row[1:3] == (ELEMENTS, 0)


def test_a_step_of_lost_updates_comes_to_the_host_at_once() -> None:
    """As six numbers a tensor, for which the host waits once."""
    parameters = [nn.Parameter(OnDevice(torch.linspace(-1, 1, size))) for size in (40, 7, ELEMENTS)]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    weights = [
        Weight(str(number), parameter, parameter.detach, partial(one_piece, str(number)))
        for number, parameter in enumerate(parameters)
    ]
    for parameter in parameters:
        parameter.grad = OnDevice(torch.ones(parameter.shape))
    meter = UpdateMeter()
    watched = meter.before(optimizer, weights)
    optimizer.step()
    with BroughtBack():
        waits, copied = asked_for(lambda: meter.after(optimizer, watched, 1))
    assert waits == 1
    assert copied <= 64 * len(parameters)


def test_an_update_is_judged_on_the_device() -> None:
    """The host waits once for the largest error of each moment and of the weight."""
    device = [OnDevice(torch.rand(100)) for _ in range(3)]
    host = [torch.rand(100) for _ in range(4)]
    seen = whole("final_grad", "w", torch.empty(100))
    part = PiecePart(0, seen, 0, State.of(host), tuple(device))
    rounding = Rounding.of(torch.float32)
    storage = Roundings((rounding, rounding), rounding, rounding, NO_ROUNDING)
    group = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    batch = Batch(0, storage, Clipping(1.0, rounding), [part])
    with BroughtBack():
        scalars = AdamScalars.of(group, 1, decoupled=True)
        waits, copied = asked_for(lambda: batch.worst(scalars, storage))
    assert waits == 1
    assert copied <= 64


def test_what_an_update_is_judged_by_is_kept_on_the_host(measured_at_once: int) -> None:
    """Moments, gradient and weight, before the update and after it."""
    device = [OnDevice(torch.ones(measured_at_once)) for _ in range(4)]
    held: list[torch.Tensor] = []
    assert more(lambda: held.extend(HostCopies().of(device))) == 0
    assert {tensor.device.type for tensor in held} == {"cpu"}
    seen = whole("final_grad", "w", torch.empty(measured_at_once))
    part = PiecePart(0, seen, 0, State.of(held), tuple(device[:3]))
    storage = Roundings((NO_ROUNDING, NO_ROUNDING), NO_ROUNDING, NO_ROUNDING, NO_ROUNDING)
    before = MEMORY.live
    batch = Batch(0, storage, Clipping(1.0, NO_ROUNDING), [part])
    assert MEMORY.live == before
    with BroughtBack():
        assert isinstance(batch.run_state, OnDevice)
