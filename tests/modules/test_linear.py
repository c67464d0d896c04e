"""Linear: the flow of operands, the cached weight, and where the weight gradient goes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pytest_precision import modules
from pytest_precision.engine.main_grad import main_grad
from pytest_precision.formats import by_name
from pytest_precision.formats.hadamard import transformed
from pytest_precision.formats.product import matmul
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.modules.rng import RoundingRng

QUANTIZED = [name for name, precision in PRECISIONS.items() if precision.quantized]
ROWS, IN, OUT = 37, 45, 23
"""Not multiples of any block; and 128 is more than all of them."""


def linear(precision: str, *, bias: bool = True, primary: str = "bf16") -> modules.Linear:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(IN, OUT, bias=bias)).bfloat16()
    made = modules.quantize_linears(model, precision, primary_weight=primary)[0]
    assert isinstance(made, modules.Linear)
    return made


def data(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, IN, generator=generator).bfloat16().requires_grad_()
    return x, torch.randn(rows, OUT, generator=generator).bfloat16()


def gradients(layer: modules.Linear, x: Tensor, dy: Tensor) -> list[Tensor]:
    """y, dx, dW, and db if there is one."""
    y = layer(x)
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], dy)]


@pytest.mark.parametrize("precision", QUANTIZED)
def test_the_result_is_near_that_of_exact_operands(precision: str) -> None:
    """Within what the format's mantissa allows of all three products, at sizes of no block."""
    layer, exact = linear(precision), nn.Linear(IN, OUT)
    with torch.no_grad():
        exact.weight.copy_(layer.weight)
        exact.bias.copy_(layer.bias)
    x, dy = data()
    y = exact(x.float())
    expected = [y, *torch.autograd.grad(y, [x, *exact.parameters()], dy.float())]
    for made, right in zip(gradients(layer, x, dy), expected, strict=True):
        assert made.shape == right.shape
        assert made.dtype == torch.bfloat16
        # e2m1 has 1 bit of mantissa, e4m3 3, e5m2 2: a relative error of a product's two operands.
        worst = 0.35 if precision == "nvfp4" else 0.15
        assert (made.float() - right.float()).norm() <= worst * right.float().norm()


def test_each_product_reads_the_operand_that_is_made_for_it() -> None:
    """MXFP8 by hand: rowwise in forward, columnwise of the weight in dgrad, of both in wgrad."""
    layer, (x, dy) = linear("mxfp8", bias=False), data()
    with torch.no_grad():
        for tensor in (x, dy, layer.weight):
            # Operands have the same values but for what underflows beside larger neighbours.
            tensor.mul_((6 * torch.randn(tensor.shape)).exp())
    form = by_name("mxfp8_e4m3")
    a, w, g = (form.quantize(t) for t in (x, layer.weight, dy))
    y, dx, dw = gradients(layer, x, dy)
    assert torch.equal(y, matmul(a.rowwise, w.rowwise, turn_right=True).bfloat16())
    assert torch.equal(dx, matmul(g.rowwise, w.columnwise).bfloat16())
    assert torch.equal(dw, matmul(g.columnwise, a.columnwise, turn_left=True).bfloat16())


def test_nvfp4_transforms_the_operands_of_the_weight_gradient_only() -> None:
    """The Hadamard transform of both cancels; the gradient alone is rounded stochastically."""
    layer, (x, dy) = linear("nvfp4", bias=False), data(48)
    recipe = layer.quantizers[0]
    names = (recipe.input.name, recipe.weight.name, recipe.gradient.name)
    assert names == ("nvfp4_1d_rht", "nvfp4_2d", "nvfp4_1d_rht_sr")
    made = recipe.input.quantize(torch.nn.functional.pad(x, (0, 3)))
    turned = transformed(torch.nn.functional.pad(x.detach(), (0, 3)))
    near = made.columnwise.dequantize() - turned.float()
    assert near.norm() < 0.15 * turned.float().norm()
    assert (made.rowwise.dequantize()[:, :IN] - x).norm() < 0.15 * x.float().norm()
    modules.begin_microbatch(layer, 1, 0, first=True)
    first = gradients(layer, x, dy)
    modules.begin_microbatch(layer, 2, 0, first=True)
    y, dx, dw = gradients(layer, x, dy)
    assert torch.equal(y, first[0])
    assert not torch.equal(dx, first[1])
    assert not torch.equal(dw, first[2])


def test_random_bits_go_by_module_step_and_microbatch() -> None:
    """Each changes them; drawing again does not, nor does drawing on another rank."""
    seen = {
        RoundingRng(stream, step, microbatch)
        .bits((16, 32), torch.device("cpu"))[0]
        .numpy()
        .tobytes()
        for stream in ("up", "down")
        for step in (1, 11)
        for microbatch in (1, 11)
        for _ in range(2)
    }
    assert len(seen) == 8


@pytest.mark.parametrize("precision", QUANTIZED)
def test_a_cached_weight_is_the_weight_quantized_again(precision: str) -> None:
    """Of microbatches after the first one, all bits are those of quantizing every time."""
    cached, fresh = linear(precision), linear(precision)
    for microbatch in range(3):
        for layer, first in ((cached, microbatch == 0), (fresh, True)):
            modules.begin_microbatch(layer, 1, microbatch, first=first)
        results = [gradients(layer, *data(5 + microbatch)) for layer in (cached, fresh)]
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    kept = cached.used_weights
    modules.begin_microbatch(cached, 1, 3, first=False)
    cached(data()[0])
    assert cached.used_weights is kept


def test_a_moved_weight_is_read_in_the_next_first_microbatch() -> None:
    """And not before, as in Transformer Engine."""
    layer, (x, _) = linear("mxfp8"), data()
    modules.begin_microbatch(layer, 1, 0, first=True)
    before = layer(x)
    with torch.no_grad():
        layer.weight.mul_(-1)
    modules.begin_microbatch(layer, 1, 1, first=False)
    assert torch.equal(layer(x), before)
    modules.begin_microbatch(layer, 2, 0, first=True)
    assert not torch.equal(layer(x), before)


def fused(precision: str, primary: str = "bf16") -> modules.Linear:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(IN, OUT)).bfloat16()
    modules.quantize_linears(model, precision, primary_weight=primary, fuse_wgrad_accumulation=True)
    layer = model[0]
    assert isinstance(layer, modules.Linear)
    layer.weight.main_grad = torch.zeros(OUT, IN)
    return layer


@pytest.mark.parametrize("primary", ["bf16", "quantized"])
@pytest.mark.parametrize("precision", QUANTIZED)
def test_of_one_microbatch_the_fused_gradient_rounds_to_the_unfused_one(
    precision: str, primary: str
) -> None:
    """The same GEMM; only whether its fp32 result is rounded differs. The rest is the same."""
    layer, (x, dy) = fused(precision, primary), data()
    y, dx, _, db = gradients(layer, x, dy)
    unfused = gradients(linear(precision, primary=primary), *data())
    pairs = zip((y, dx, db), (*unfused[:2], unfused[3]), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert torch.equal(layer.weight.main_grad.bfloat16(), unfused[2])
    assert not torch.equal(layer.weight.main_grad, unfused[2].float())


@pytest.mark.parametrize("precision", ["bf16", "mxfp8"])
def test_over_microbatches_fusing_saves_a_rounding_each(precision: str) -> None:
    """Each unfused gradient is off by half a unit in the last place of bf16, 2^-8 of it."""
    layer, plain = fused(precision), linear("mxfp8") if precision == "mxfp8" else None
    if plain is None:
        plain = nn.Linear(IN, OUT).bfloat16()
        plain.load_state_dict(layer.state_dict())
    summed, bound = torch.zeros(OUT, IN), torch.zeros(OUT, IN)
    for rows in (3, 37, 20):
        x, dy = data(rows)
        gradients(layer, x, dy)
        dw = gradients(plain, x, dy)[2].float()
        summed += dw
        # fp32 sums of at most 37 products, and of three gradients, in two orders each.
        products = dy.float().abs().t() @ x.detach().float().abs()
        bound += 2**-8 * dw.abs() + 2 * 40 * 2**-24 * products
    assert bool(((layer.weight.main_grad - summed).abs() <= bound).all())
    assert not torch.equal(layer.weight.main_grad, summed)


def test_what_a_fused_layer_returns_is_poison() -> None:
    """Not zeros, which nobody would see in a sum."""
    layer, (x, dy) = fused("mxfp8"), data()
    layer(x).backward(dy)
    assert bool(layer.weight.grad.isnan().all())
    assert layer.weight.grad_added_to_main_grad
    assert bool(layer.bias.grad.isfinite().all())


def test_a_fused_layer_in_bf16_computes_what_torch_does() -> None:
    """But for the weight gradient, which is not rounded; also with three dimensions."""
    layer, plain = fused("bf16"), nn.Linear(IN, OUT).bfloat16()
    plain.load_state_dict(layer.state_dict())
    x = data(36)[0].detach().view(3, 12, IN).requires_grad_()
    dy = data(36)[1].view(3, 12, OUT)
    (y, dx, _, db), expected = gradients(layer, x, dy), gradients(plain, x, dy)
    assert torch.equal(y, expected[0])
    assert torch.equal(dx, expected[1])
    torch.testing.assert_close(db, expected[3])


@pytest.mark.parametrize("held", [None, torch.zeros(OUT, IN).bfloat16(), torch.zeros(OUT)])
def test_a_buffer_that_does_not_fit_is_refused(held: Tensor | None) -> None:
    """A weight without an fp32 buffer of its shape would lose its gradient."""
    weight = nn.Parameter(torch.zeros(OUT, IN))
    weight.main_grad = held
    with pytest.raises(ValueError, match=r"expected (a )?main_grad .* but got"):
        main_grad(weight)


def test_without_rows_gradients_are_zero() -> None:
    """An idle expert has a gradient, which DistributedDataParallel waits for."""
    y, dx, dw, db = gradients(linear("nvfp4"), *data(0))
    assert y.shape == (0, OUT)
    assert dx.shape == (0, IN)
    assert not dw.any()
    assert not db.any()


@pytest.mark.parametrize("shape", [(3, IN + 1), (IN, 3), ()])
def test_rows_of_another_length_are_refused(shape: tuple[int, ...]) -> None:
    """Also where their elements would make whole rows."""
    with pytest.raises(ValueError, match=r"expected x of shape \[\.\.\., 45\] but got x\.shape="):
        linear("mxfp8")(torch.zeros(shape))


@pytest.mark.parametrize("precision", ["bf16", *QUANTIZED])
def test_autocast_changes_no_bit(precision: str) -> None:
    """Of the products of forward and of backward, whichever of them is inside."""
    expected = gradients(fused(precision), *data())
    for forward, backward in ((True, True), (True, False), (False, True)):
        layer, (x, dy) = fused(precision), data()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=forward):
            y = layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=backward):
            made = [y, *torch.autograd.grad(y, [x, *layer.parameters()], dy)]
        pairs = zip(made, expected, strict=True)
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
        summed, buffer = fused(precision), layer.weight.main_grad
        gradients(summed, *data())
        assert torch.equal(buffer, summed.weight.main_grad)


def test_layers_of_the_constructor_draw_their_own_bits() -> None:
    """By their places in the model, as converted layers do; not the same for all."""
    model = nn.Sequential(*(modules.Linear(IN, IN, precision="nvfp4") for _ in range(2)))
    modules.begin_microbatch(model, 1, 0, first=True)
    assert [layer.streams for layer in model] == [["0"], ["1"]]
    converted = modules.quantize_linears(nn.Sequential(nn.Linear(IN, IN)), "nvfp4")
    modules.begin_microbatch(converted, 1, 0, first=True)
    assert converted[0].streams == model[0].streams


def test_random_bits_follow_from_the_whole_seed() -> None:
    """Seeds that differ above their lowest 32 bits draw other bits."""

    class Seeded(RoundingRng):
        seed = 1

    class SeededAbove(RoundingRng):
        seed = 1 + (1 << 32)

    drawn = [kind("up").bits((4, 32), torch.device("cpu"))[0] for kind in (Seeded, SeededAbove)]
    assert not torch.equal(*drawn)


def test_random_bits_are_spread_over_all_bytes() -> None:
    """Each of the 256 comes about as often: within 6 standard deviations."""
    rowwise, columnwise = RoundingRng("up").bits((512, 512), torch.device("cpu"))
    for bits in (rowwise, columnwise):
        counts = torch.bincount(bits.flatten().long(), minlength=256)
        assert bool(((counts - 1024).abs() < 6 * 32).all())
    assert not torch.equal(rowwise, columnwise)
