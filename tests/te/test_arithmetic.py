"""The functions of the stand-in against `formats`, `optim` and plain torch; none needs a rank."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_precision import formats, optim
from pytest_precision.formats.scaling import NVFP4_RANGE
from pytest_precision.formats.transformer_engine.kernel_dtypes import DType
from pytest_precision.te import (
    activations,
    amaxes,
    apex,
    expert_groups,
    gemm,
    masters,
    norms,
    optimizers,
    rows,
    softmax,
    transposes,
    triton,
)

FP32, BF16 = DType.kFloat32, DType.kBFloat16
NOOP = torch.zeros(1, dtype=torch.int32)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(made: Tensor, exact: Tensor) -> None:
    """Compare with a reference in fp64, by the error that fp32 arithmetic of this size has."""
    torch.testing.assert_close(made.double(), exact, rtol=1e-5, atol=1e-5)


def multiplied(a: Tensor, b: Tensor, out: Tensor | None = None, **options: object) -> Tensor:
    """Call the GEMM as `general_gemm` does, in the layout TN unless told otherwise."""
    given = {"transa": True, "transb": False, "bias": None, "grad": False, "accumulate": False}
    given |= {"gelu": False, "gelu_in": None} | options
    return gemm.generic_gemm(
        *(a, given["transa"], b, given["transb"], out, None, FP32, given["bias"], FP32),
        *(given["gelu"], given["gelu_in"], given["grad"], torch.empty(0), 0),
        *(given["accumulate"], False),
    )


def test_gemm_is_a_linear_layer_and_its_gradients() -> None:
    """TN is the forward with its bias, NN the gradient of the input, NT that of the weight."""
    x, weight, bias, grad = drawn(5, 8), drawn(3, 8, seed=1), drawn(3, seed=2), drawn(5, 3, seed=3)
    y, *_ = multiplied(weight, x, bias=bias)
    assert torch.equal(y, x @ weight.t() + bias)
    dx, *_ = multiplied(weight, grad, transa=False)
    assert torch.equal(dx, grad @ weight)
    dw, dbias, *_ = multiplied(x, grad, transa=False, transb=True, bias=bias, grad=True)
    assert torch.equal(dw, grad.t() @ x)
    assert torch.equal(dbias, grad.sum(0))


def test_gemm_accumulates_into_what_it_is_given() -> None:
    """The product is added to an fp32 buffer, which is written in place."""
    x, grad, buffer = drawn(5, 8), drawn(5, 3, seed=1), torch.ones(3, 8)
    made, *_ = multiplied(x, grad, buffer, transa=False, transb=True, accumulate=True)
    assert made is buffer
    assert torch.equal(buffer, 1.0 + grad.t() @ x)


def test_the_gradient_of_gelu_is_of_the_whole_sum() -> None:
    """A GEMM computes it last, of the product and what that is added to."""
    x, weight, before, held = drawn(5, 8), drawn(3, 8, seed=1), drawn(5, 3, seed=2), drawn(5, 3)
    exact = before.double().requires_grad_()
    after = F.gelu(exact, approximate="tanh")
    (expected,) = torch.autograd.grad(after, exact, (x @ weight.t() + held).double())
    given = {"gelu": True, "gelu_in": before, "grad": True, "accumulate": True}
    close(multiplied(weight, x, held, **given)[0], expected)


def test_the_input_of_gelu_is_kept() -> None:
    """The output is written in place, and the input is what it held plus the product."""
    x, weight, held = drawn(5, 8), drawn(3, 8, seed=1), drawn(5, 3, seed=2)
    expected = held + x @ weight.t()
    made, _, before, _ = multiplied(weight, x, held, gelu=True, accumulate=True)
    assert before is not None
    close(before, expected.double())
    close(made, F.gelu(expected.double(), approximate="tanh"))


def test_a_grouped_gemm_leaves_an_idle_expert_alone() -> None:
    """An expert without rows has the gradient 0, or keeps what was accumulated."""
    x, grads = [drawn(4, 8), torch.empty(0, 8)], [drawn(4, 3, seed=1), torch.empty(0, 3)]
    for accumulate, rest in ((False, 0.0), (True, 1.0)):
        out = [torch.ones(3, 8), torch.ones(3, 8)]
        nothing = [torch.empty(0)] * 2
        gemm.te_general_grouped_gemm(
            *(x, False, grads, True, out, FP32, [4, 0], nothing, FP32, False, nothing, True),
            *([], 0, accumulate, False, 0),
        )
        assert torch.equal(out[0], grads[0].t() @ x[0] + float(accumulate))
        assert torch.equal(out[1], torch.full((3, 8), rest))


@pytest.mark.parametrize("zero_centered", [False, True])
def test_layer_norm_and_its_gradients(zero_centered: bool) -> None:
    """They are torch's, computed in fp64."""
    x, weight, bias, grad = (
        drawn(6, 16),
        drawn(16, seed=1),
        drawn(16, seed=2),
        drawn(6, 16, seed=3),
    )
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    y = F.layer_norm(exact[0], (16,), exact[1] + zero_centered, exact[2], 1e-5)
    expected = torch.autograd.grad(y, exact, grad.double())
    made, mean, inverse = norms.layernorm_fwd(
        x, weight, bias, 1e-5, None, None, FP32, 0, zero_centered
    )
    close(made, y.detach())
    found = norms.layernorm_bwd(grad, x, mean, inverse, weight, 0, zero_centered)
    for one, other in zip(found, expected, strict=True):
        close(one, other)


def test_rms_norm_and_its_gradients() -> None:
    """They are torch's in fp64, and a residual gradient is added before rounding."""
    x, weight, grad = drawn(6, 16), drawn(16, seed=1), drawn(6, 16, seed=2)
    exact = [t.double().requires_grad_() for t in (x, weight)]
    y = F.rms_norm(exact[0], (16,), exact[1], 1e-5)
    expected = torch.autograd.grad(y, exact, grad.double())
    made, _, inverse = norms.rmsnorm_fwd(x, weight, 1e-5, None, None, FP32, 0, False)
    close(made, y.detach())
    for one, other in zip(
        norms.rmsnorm_bwd(grad, x, inverse, weight, 0, False), expected, strict=True
    ):
        close(one, other)
    added, _ = norms.rmsnorm_bwd_add(grad, x, torch.ones_like(x), inverse, weight, 0, False)
    close(added, expected[0] + 1)


PLAIN = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "srelu": lambda x: F.relu(x) ** 2,
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "glu": F.glu,
    "swiglu": lambda x: F.silu(x[:, :4]) * x[:, 4:],
    "geglu": lambda x: F.gelu(x[:, :4], approximate="tanh") * x[:, 4:],
    "reglu": lambda x: F.relu(x[:, :4]) * x[:, 4:],
    "qgeglu": lambda x: x[:, :4] * torch.sigmoid(1.702 * x[:, :4]) * x[:, 4:],
    "sreglu": lambda x: F.relu(x[:, :4]) ** 2 * x[:, 4:],
}


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "glu"])
def test_an_activation_and_its_gradient(name: str) -> None:
    """They are what the formula gives in fp64."""
    x = drawn(5, 8)
    exact = x.double().requires_grad_()
    y = PLAIN[name](exact)
    grad = drawn(*y.shape, seed=1)
    (expected,) = torch.autograd.grad(y, exact, grad.double())
    close(activations.FUNCTIONS[name](x), y.detach())
    close(activations.FUNCTIONS[f"d{name}"](grad, x), expected)


def test_glu_gates_by_its_first_half() -> None:
    """Torch's gates by its second one."""
    x = drawn(5, 8)
    assert torch.equal(activations.FUNCTIONS["glu"](x), F.glu(x.roll(4, 1)))


def test_an_activation_with_scales_and_interleaved_halves() -> None:
    """A row is multiplied by its scale, whose gradient is summed over the row."""
    x, scales, grad = drawn(5, 8), drawn(5, seed=1), drawn(5, 4, seed=2)
    turns = torch.stack(list(x.view(5, 2, 4).unbind(1)), 2).view(5, 8)  # gate, linear, gate, ...
    made = activations.FUNCTIONS["scaled_swiglu"](turns, scales, None, 1)
    assert torch.equal(made, activations.FUNCTIONS["swiglu"](x) * scales[:, None])
    _, of_scales = activations.FUNCTIONS["scaled_dswiglu"](grad, turns, scales, None, 1)
    close(of_scales, (grad.double() * PLAIN["swiglu"](x.double())).sum(1))


def test_softmax_and_its_gradient() -> None:
    """Causal scores are those before the query, and a row without any is 0."""
    scores, grad = drawn(2, 3, 4, 6), drawn(2, 3, 4, 6, seed=1)
    causal = torch.ones(4, 6, dtype=torch.bool).tril(2)
    exact = scores.double().requires_grad_()
    y = torch.softmax((exact * 0.5).masked_fill(~causal, float("-inf")), -1)
    (expected,) = torch.autograd.grad(y, exact, grad.double())
    made = softmax.scaled_aligned_causal_masked_softmax_forward(scores, 0.5)
    close(made, y.detach())
    close(softmax.scaled_softmax_backward(grad, made, 0.5), expected)
    hidden = torch.ones(2, 1, 4, 6, dtype=torch.uint8)
    assert not softmax.scaled_masked_softmax_forward(scores, hidden, 0.5).any()


def test_adam_is_that_of_the_package() -> None:
    """Bit for bit, with masters, and with masters that are kept as remainders."""
    for remainders in (False, True):
        weight = drawn(300).bfloat16()
        own = torch.nn.Parameter(weight.clone())
        theirs = optim.FusedAdam(
            [own], lr=1e-2, master_weights=True, store_param_remainders=remainders
        )
        low = torch.zeros(300, dtype=torch.int16) if remainders else weight.float()
        lists = [weight, torch.zeros(300), torch.zeros(300), low]
        update = (
            optimizers.multi_tensor_adam_param_remainder
            if remainders
            else optimizers.multi_tensor_adam
        )
        for step in (1, 2, 3):
            own.grad = drawn(300, seed=step).bfloat16()
            theirs.step()
            given = [[one] for one in (own.grad, *lists)]
            update(1 << 16, NOOP, given, 1e-2, 0.9, 0.999, 1e-8, step, 1, True, 0.0)
        assert torch.equal(weight, own.data)
        assert torch.equal(lists[1], theirs.state[own]["exp_avg"])
        assert torch.equal(low, theirs.state[own]["master_param"])


def test_a_kernel_refuses_a_tensor_without_memory() -> None:
    """A group of tensors has none that it could update, on a GPU either."""

    class Group(Tensor):
        pass

    lists = [
        [torch.zeros(2)],
        [torch.zeros(2).as_subclass(Group)],
        [torch.zeros(2)],
        [torch.zeros(2)],
    ]
    with pytest.raises(
        RuntimeError, match="expected tensors with memory of their own but got a Group"
    ):
        optimizers.multi_tensor_adam(1, NOOP, lists, 1e-2, 0.9, 0.999, 1e-8, 1, 1, True, 0.0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_torchs(nesterov: bool) -> None:
    """With momentum, weight decay and Nesterov's correction."""
    weight, velocity = drawn(50), torch.zeros(50)
    own = torch.nn.Parameter(weight.clone())
    theirs = torch.optim.SGD([own], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    for step in range(3):
        own.grad = drawn(50, seed=step + 1)
        theirs.step()
        lists = [[own.grad], [weight], [velocity]]
        optimizers.multi_tensor_sgd(
            1, NOOP, lists, 0.01, 0.9, 0.0, 0.1, nesterov, step == 0, False, 1.0
        )
    torch.testing.assert_close(weight, own.data, rtol=1e-6, atol=1e-6)


def test_norms_of_many_tensors() -> None:
    """Each has its own, and all together have one; a scale may come first."""
    tensors = [drawn(4, 5), drawn(7, seed=1)]
    total, each = optimizers.multi_tensor_l2norm(1, NOOP, [tensors], True)
    close(total, torch.cat([t.double().flatten() for t in tensors]).norm().reshape(1))
    close(each, torch.stack([t.double().norm() for t in tensors]))
    halved, _ = optimizers.multi_tensor_unscale_l2norm(1, NOOP, [tensors], torch.tensor(0.5))
    close(halved, total.double() / 2)


def test_scaling_notices_what_is_not_finite() -> None:
    """The flag is set, and the products are written all the same."""
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(2)
    optimizers.multi_tensor_scale(1, flag, [[torch.tensor([1.0, 2.0])], [out]], 3.0)
    assert (flag.item(), out.tolist()) == (0, [3.0, 6.0])
    optimizers.multi_tensor_scale(1, flag, [[torch.tensor([1.0, float("inf")])], [out]], 3.0)
    assert flag.item() == 1


@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
def test_delayed_scales_are_those_of_the_format(algorithm: str) -> None:
    """Also where nothing was quantized, and after an infinite amax."""
    format = formats.DelayedScaling(algorithm=algorithm, history_length=4, margin=1)
    scale, history = torch.ones(1), torch.zeros(4, 1)
    for amax in (3.0, 0.5, 0.0, 7.0, float("inf"), 2.0):
        format.record(torch.tensor([amax]))
        history[0] = torch.fmax(history[0], torch.tensor([amax]))
        format.update()
        amaxes.fused_amax_and_scale_update_after_reduction(
            history[0].clone(), [history], [scale], algorithm, DType.kFloat8E4M3, 1
        )
        assert torch.equal(scale, format.scale)
        assert torch.equal(history[:, 0], format.history)


def test_many_modules_are_updated_as_each_by_itself() -> None:
    """Also with histories of other lengths, and where a module quantized nothing."""
    lengths, widths = (4, 2, 4, 2), (3, 1, 2, 3)
    drawn_from = torch.Generator().manual_seed(0)
    both = []
    for _ in range(2):
        drawn_from.manual_seed(1)
        sizes = zip(lengths, widths, strict=True)
        histories = [torch.rand(n, m, generator=drawn_from) for n, m in sizes]
        histories[2][0] = 0.0
        both.append((histories, [torch.full((m,), 2.0) for m in widths]))
    reduced = torch.cat([torch.rand(m, generator=drawn_from) for m in widths])
    reduced[4:6] = 0.0
    (together, scales), (alone, factors) = both
    update = amaxes.fused_amax_and_scale_update_after_reduction
    update(reduced, together, scales, "max", DType.kFloat8E4M3, 0)
    own = zip(reduced.split(widths), alone, factors, strict=True)
    for part, history, factor in own:
        update(part, [history], [factor], "max", DType.kFloat8E4M3, 0)
    assert torch.equal(scales[2], torch.full((2,), 2.0))
    assert all(map(torch.equal, together + scales, alone + factors))
    assert len({float(scale[0]) for scale in scales}) == 4


def shards(x: Tensor, cuts: list[int]) -> list[tuple[Tensor, int]]:
    """Cut a flattened matrix, and say where each part begins."""
    ends = [*cuts, x.numel()]
    return [(x.flatten()[a:b], a) for a, b in zip([0, *cuts], ends, strict=True)]


def test_shards_of_masters_become_mxfp8_weights() -> None:
    """Amaxes reduced over shards, and partial casts, give what the whole matrix is quantized to."""
    x = drawn(64, 96)
    parts = shards(x, [1000, 3001])
    row, column = torch.zeros(128, 4), torch.zeros(4, 128)
    for shard, start in parts:
        found = torch.empty_like(row), torch.empty_like(column)
        masters.mxfp8_scaling_compute_partial_amax(shard, *found, 64, 96, start)
        row, column = torch.maximum(row, found[0]), torch.maximum(column, found[1])
    scales = [torch.zeros(t.shape, dtype=torch.uint8) for t in (row, column)]
    optimizers.multi_tensor_compute_scale_inv_e8m0(1, NOOP, [[row, column], scales])
    codes = torch.zeros(2, x.numel(), dtype=torch.uint8)
    for shard, start in parts:
        here = slice(start, start + shard.numel())
        masters.mxfp8_scaling_partial_cast(
            shard, codes[0, here], codes[1, here], *scales, 64, 96, start
        )
    whole = formats.by_name("mxfp8_e4m3").quantize(x)
    for made, scale, side in zip(codes, scales, (whole.rowwise, whole.columnwise), strict=True):
        assert torch.equal(made.view(64, 96), side.data)
        assert torch.equal(scale[: side.scale.shape[0], : side.scale.shape[1]], side.scale)


def test_shards_of_masters_become_blockwise_weights() -> None:
    """Likewise fp8 in square blocks, which may be partial."""
    x = drawn(130, 200)
    amax = torch.zeros(2, 4)
    for shard, start in shards(x, [7777]):
        found = torch.empty_like(amax)
        masters.fp8_block_scaling_compute_partial_amax(shard, found, 130, 200, start, 128)
        amax = torch.maximum(amax, found)
    scale, inverse = torch.empty_like(amax), torch.empty_like(amax)
    optimizers.multi_tensor_compute_scale_and_scale_inv(
        1, NOOP, [[amax], [scale], [inverse]], 448.0, True, 0.0
    )
    codes = torch.zeros(x.numel(), dtype=torch.uint8)
    for shard, start in shards(x, [7777]):
        here = codes[start : start + shard.numel()]
        masters.fp8_block_scaling_partial_cast(
            shard, here, scale, 130, 200, start, 128, DType.kFloat8E4M3
        )
    whole = formats.by_name("fp8_block_128x128_e4m3_pow2").quantize(x).rowwise
    assert torch.equal(codes.view(130, 200), whole.data)
    assert torch.equal(inverse[:, :2], whole.scale)


def test_shards_of_masters_become_nvfp4_weights() -> None:
    """Likewise NVFP4 in blocks of 16 x 16, and its transpose."""
    x, cut = drawn(64, 48), 1002
    amax, largest = torch.zeros(4, 3), torch.zeros(1)
    for shard, start in shards(x, [cut]):
        found = torch.empty_like(amax)
        masters.nvfp4_multi_tensor_compute_partial_amax(
            [shard], [found], [largest], [64], [48], [start]
        )
        amax = torch.maximum(amax, found)
    per_block, stored, kept = (
        torch.empty_like(amax),
        torch.zeros(128, 4, dtype=torch.uint8),
        torch.zeros(1),
    )
    masters.nvfp4_multi_tensor_fused_scale(
        [amax], [largest], [per_block], [stored], [kept], [4], [3], [128]
    )
    scale = torch.empty(1)
    masters.nvfp4_compute_global_scale(largest, scale)
    close(scale, NVFP4_RANGE / x.double().abs().max().reshape(1))
    codes = torch.zeros(x.numel() // 2, dtype=torch.uint8)
    for shard, start in shards(x, [cut]):
        here = codes[start // 2 : (start + shard.numel()) // 2]
        masters.nvfp4_multi_tensor_2d_partial_cast(
            [shard], [here], [per_block], [scale], [64], [48], [start]
        )
    whole = formats.by_name("nvfp4_2d").quantize(x)
    assert torch.equal(codes.view(64, 24), whole.rowwise.data)
    assert torch.equal(stored[:64, :3], whole.rowwise.scale)
    assert torch.equal(kept, whole.rowwise.amax)
    turned, scales = torch.empty(48, 32, dtype=torch.uint8), torch.zeros(128, 4, dtype=torch.uint8)
    transposes.nvfp4_2d_multi_tensor_transpose(
        [codes.view(64, 24)], [turned], [stored], [scales], [64], [48]
    )
    assert torch.equal(turned, whole.columnwise.data)
    assert torch.equal(scales[:48, :4], whole.columnwise.scale)


def test_an_nvfp4_shard_within_a_byte_is_refused() -> None:
    """Two elements share a byte, which belongs to two ranks then."""
    with pytest.raises(
        NotImplementedError, match=r"each of two elements, but got start_offset=3 and 5"
    ):
        masters.nvfp4_multi_tensor_2d_partial_cast(
            [torch.zeros(5)], [torch.zeros(3)], [torch.ones(1, 1)], [torch.ones(1)], [16], [16], [3]
        )


def test_rows_are_padded_and_cut_again() -> None:
    """Each part begins where its padded length says, and padding is 0."""
    x, padded, back = drawn(7, 3), torch.full((12, 3), 9.0), torch.empty(7, 3)
    rows.fused_multi_row_padding(x, padded, [3, 0, 4], [4, 0, 8])
    assert torch.equal(padded[:3], x[:3])
    assert not padded[3].any()
    assert torch.equal(padded[4:8], x[3:])
    rows.fused_multi_row_unpadding(padded, back, [4, 0, 8], [3, 0, 4])
    assert torch.equal(back, x)


def test_dropout_keeps_the_mean_and_its_mask() -> None:
    """The gradient passes where the value passed."""
    torch.manual_seed(0)
    x = torch.ones(10_000)
    made, mask = rows.dropout_fwd(x, 0.25)
    assert 0.72 < mask.float().mean() < 0.78
    assert torch.equal(made, mask / 0.75)
    assert torch.equal(rows.dropout_bwd(x, mask, 0.25), made)


def test_offsets_of_groups() -> None:
    """They are in elements, with or without a leading 0."""
    assert expert_groups.splits_to_offsets(torch.tensor([2, 0, 3]), 4).tolist() == [0, 8, 8, 20]
    sizes, (with_zero, without) = expert_groups.splits_to_offsets_multi(
        [2, 0, 3],
        "cpu",
        strides=[1, 4],
        include_leading_zero=[True, False],
        dtypes=[torch.int64, torch.int32],
    )
    assert (sizes.tolist(), with_zero.tolist(), without.tolist()) == (
        [2, 0, 3],
        [0, 2, 2, 5],
        [8, 8, 20],
    )


def test_a_grouped_bias_gradient_is_the_sum_of_its_rows() -> None:
    """Scaled row by row if there are scales, whose gradients come with it."""
    dy, bias, scales = drawn(5, 3), drawn(2, 3, seed=1), drawn(5, seed=2)
    made, of_scales = torch.zeros(2, 3), torch.zeros(5)
    offsets = torch.tensor([0, 2, 5])
    triton.grouped_dbias(dy, made, offsets, scales, bias, of_scales, 3, HAS_SCALES=True)
    scaled = dy * scales[:, None]
    close(made, torch.stack([scaled[:2].sum(0), scaled[2:].sum(0)]).double())
    close(of_scales, (dy * bias.repeat_interleave(torch.tensor([2, 3]), 0)).sum(1).double())


def test_swapped_and_transposed_bytes() -> None:
    """They are copies, in memory of their own or in what was given."""
    x = torch.arange(24, dtype=torch.uint8).view(2, 3, 4)
    assert torch.equal(transposes.swap_first_dims(x), x.transpose(0, 1))
    turned = transposes.fp8_transpose(x, DType.kFloat8E4M3)
    assert turned.shape == (4, 2, 3)
    assert torch.equal(turned.view(4, 6), x.view(6, 4).t())
    out = torch.empty(4, 2, 3, dtype=torch.uint8)
    assert transposes.fp8_transpose(x, DType.kFloat8E4M3, out=out) is out
    assert torch.equal(out, turned)


def test_an_unknown_quantizer_is_refused_by_name() -> None:
    """What has no arithmetic here is not guessed."""
    from pytest_precision.te.quantize import quantized

    class MyQuantizer:
        pass

    with pytest.raises(NotImplementedError, match="got a MyQuantizer, for which the stand-in"):
        quantized(drawn(16, 16), MyQuantizer(), ["rowwise"])
    nvfp4 = type("NVFP4Quantizer", (SimpleNamespace,), {})
    mixed = nvfp4(
        row_scaled_nvfp4=True,
        nvfp4_use_4over6=False,
        with_2d_quantization=True,
        with_rht=False,
        stochastic_rounding=False,
    )
    with pytest.raises(NotImplementedError, match="got nvfp4_2d_row, which the stand-in"):
        quantized(drawn(16, 16), mixed, ["rowwise"])


def test_gradients_of_megatrons_own_layers_are_added_in_their_buffers_dtype() -> None:
    """In fp32 the sum is exact to fp32; in bf16 it is rounded once, and not the product before."""
    rows, gradient = drawn(3, 2, 8).bfloat16(), drawn(3, 2, 4, seed=1).bfloat16()
    product = gradient.flatten(0, 1).double().t() @ rows.flatten(0, 1).double()
    main = drawn(4, 8, seed=2)
    exact = main.double() + product
    apex.wgrad_gemm_accum_fp32(rows, gradient, main)
    close(main, exact)
    short = drawn(4, 8, seed=2).bfloat16()
    once = (short.double() + product).float().bfloat16()
    twice = short + product.float().bfloat16()
    apex.wgrad_gemm_accum_fp16(rows, gradient, short)
    assert torch.equal(short, once)
    assert not torch.equal(short, twice)
