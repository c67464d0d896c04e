"""QuantizedParameter: bytes that look like a bf16 parameter."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from pytest_precision import modules
from pytest_precision.formats import by_name
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.modules import QuantizedParameter
from pytest_precision.modules.slots import Quantizers

QUANTIZED = [name for name, precision in PRECISIONS.items() if precision.quantized]
SHAPE = (41, 29)


def values(seed: int, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parameter(precision: str = "mxfp8") -> QuantizedParameter:
    return QuantizedParameter.of(values(0), Quantizers(precision).weight)


def bytes_of(of: QuantizedParameter) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in of.stored.items()}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [key for key in one if not torch.equal(one[key], other[key])]


@pytest.mark.parametrize("precision", QUANTIZED)
def test_it_is_a_parameter_of_bf16(precision: str) -> None:
    """To modules, autograd and whoever looks at it; its gradient is a plain tensor."""
    weight = parameter(precision)
    assert isinstance(weight, nn.Parameter)
    assert isinstance(weight, QuantizedParameter)
    assert (weight.dtype, weight.shape, weight.requires_grad) == (torch.bfloat16, SHAPE, True)
    torch.nn.functional.linear(values(1, (3, 29)).bfloat16(), weight).sum().backward()
    assert type(weight.grad) is Tensor
    assert (weight.grad.dtype, weight.grad.shape) == (torch.bfloat16, SHAPE)


@pytest.mark.parametrize("precision", [p for p in QUANTIZED if p != "fp8_delayed"])
def test_copying_a_master_into_it_quantizes_the_master_in_bf16(precision: str) -> None:
    """In place: whoever holds the memory sees the new bytes."""
    weight, master = parameter(precision), values(7)
    memory = {key: tensor.data_ptr() for key, tensor in weight.stored.items()}
    with torch.no_grad():
        weight.copy_(master)
    assert {key: tensor.data_ptr() for key, tensor in weight.stored.items()} == memory
    fresh = QuantizedParameter.of(master.bfloat16(), Quantizers(precision).weight)
    assert differing(weight.stored, fresh.stored) == []
    other = QuantizedParameter.of(values(8), Quantizers(precision).weight)
    assert "rowwise.data" in differing(weight.stored, other.stored)


def test_masters_are_rounded_to_bf16_before_they_are_quantized() -> None:
    """Quantized from fp32, some bytes would be others."""
    master, format = values(3, (256, 256)), by_name("mxfp8_e4m3")
    made = QuantizedParameter.of(master, format).quantized.rowwise.data
    assert torch.equal(made, format.quantize(master.bfloat16()).rowwise.data)
    assert not torch.equal(made, format.quantize(master).rowwise.data)


def test_the_value_that_it_was_made_from_can_be_given_up() -> None:
    """Masters start from it, and not from dequantized weights."""
    weight = parameter()
    assert torch.equal(weight.high_precision_init, values(0).bfloat16())
    assert not torch.equal(weight.high_precision_init, weight.dequantize())
    weight.clear_high_precision_init()
    assert weight.high_precision_init is None


@pytest.mark.parametrize("precision", QUANTIZED)
def test_bytes_may_live_in_a_buffer_of_somebody_else(precision: str) -> None:
    """The operands that GEMMs read are views of it, also after the next master."""
    weight = QuantizedParameter.of(
        values(0, (3, *SHAPE)), [Quantizers(precision).weight for _ in range(3)]
    )
    before = bytes_of(weight)
    held = weight.stored["rowwise.data"]
    buffer = torch.zeros(held.numel() + 5, dtype=torch.uint8)
    weight.rebase_("rowwise.data", buffer[5:].view(held.shape))
    assert differing(weight.stored, before) == []
    buffer[5] ^= 1
    assert weight.members[0].rowwise.data.flatten()[0] != before["rowwise.data"].flatten()[0]
    weight.requantize_(values(1, (3, *SHAPE)))
    assert weight.members[2].rowwise.data.data_ptr() > buffer.data_ptr()
    assert torch.equal(weight.members[2].rowwise.data.flatten(), buffer[-held[2].numel() :])


@pytest.mark.parametrize("precision", QUANTIZED)
def test_a_checkpoint_holds_its_bytes(precision: str) -> None:
    """All of them, the columnwise operand too; and a checkpoint without them is refused."""
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(29, 41)).bfloat16()
        models.append(modules.quantize_linears(model, precision, primary_weight="quantized"))
    saved, fresh = models
    state = {name: tensor.clone() for name, tensor in saved.state_dict().items()}
    assert "0.weight" not in state
    fresh.load_state_dict(state)
    assert differing(fresh[0].weight.stored, saved[0].weight.stored) == []
    del state["0.weight.columnwise.data"]
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.weight\.columnwise\.data"):
        fresh.load_state_dict(state)


def quantized(precision: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 32)).bfloat16()
    return modules.quantize_linears(model, precision, primary_weight="quantized")


@pytest.mark.parametrize("strict", [True, False])
def test_a_checkpoint_of_another_format_is_refused(strict: bool) -> None:
    """Scales of blocks would fit by broadcasting; the weight is left alone as a whole."""
    model, other = quantized("mxfp8"), quantized("fp8_block", 1)
    before = bytes_of(model[0].weight)
    words = (
        r"expected 0\.weight\.rowwise\.scale to be torch\.uint8 \(32, 1\) but got torch\.float32"
    )
    with pytest.raises(RuntimeError, match=words):
        model.load_state_dict(other.state_dict(), strict=strict)
    assert differing(model[0].weight.stored, before) == []


def test_a_checkpoint_in_high_precision_has_other_keys() -> None:
    """Which are an error, or what `load_state_dict` returns; the bytes are left alone."""
    model, high = quantized("mxfp8"), nn.Sequential(nn.Linear(32, 32))
    before = bytes_of(model[0].weight)
    with pytest.raises(
        RuntimeError, match=r'Missing key.*rowwise\.data[\s\S]*Unexpected.*"0\.weight"'
    ):
        model.load_state_dict(high.state_dict())
    found = model.load_state_dict(high.state_dict(), strict=False)
    assert sorted(found.missing_keys) == sorted(f"0.weight.{key}" for key in before)
    assert found.unexpected_keys == ["0.weight"]
    assert differing(model[0].weight.stored, before) == []


@pytest.mark.parametrize("precision", QUANTIZED)
def test_a_copy_of_a_model_has_bytes_of_its_own(precision: str) -> None:
    """And a state of delayed scaling of its own; all that hangs on the weight comes along."""
    model = quantized(precision)
    weight = model[0].weight.requires_grad_(False)
    weight.main_grad = torch.ones(32, 32)
    copied = deepcopy(model)[0]
    before = bytes_of(weight)
    assert (type(copied.weight), copied.weight.requires_grad) == (QuantizedParameter, False)
    assert torch.equal(copied.weight.main_grad, weight.main_grad)
    assert differing(copied.weight.stored, before) == []
    assert copied.weight.formats[0] is copied.quantizers[0].weight
    copied.weight.requantize_(values(1, (32, 32)))
    assert differing(weight.stored, before) == []
    assert "rowwise.data" in differing(copied.weight.stored, before)


def test_delayed_scaling_moves_on_with_each_master() -> None:
    """The cast takes the scale of the one before, and no end of a forward moves it."""
    quantizers = Quantizers("fp8_delayed")
    weight = QuantizedParameter.of(values(0), quantizers.weight)
    modules.finish_step(quantizers)
    assert float(quantizers.weight.scale) == 1
    weight.requantize_(values(1))
    assert float(weight.quantized.rowwise.scale) == 1
    largest = max(float(values(seed).bfloat16().abs().max()) for seed in (0, 1))
    assert float(quantizers.weight.scale) == pytest.approx(448 / largest, rel=1e-6)


def test_what_would_change_bytes_in_another_way_is_refused() -> None:
    """An optimizer that adds to the parameter itself has no master to add to."""
    weight = parameter()
    with torch.no_grad(), pytest.raises(TypeError, match="by copy_ or requantize_ but got"):
        weight.add_(1)
    with pytest.raises(ValueError, match="expected a value of shape"):
        weight.requantize_(values(0, (3, 3)))
    with pytest.raises(ValueError, match="keep vectors in high precision"):
        QuantizedParameter.of(values(0, (3,)), by_name("mxfp8_e4m3"))
