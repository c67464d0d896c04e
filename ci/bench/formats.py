"""How fast the number formats are: in tiles, on whole matrices and compiled.

    python ci/bench/formats.py [--size 4096] [--rounds 5] [--threads 1] [--only mxfp8] [--compile]
                               [--device cuda]

MB/s of the input for the package, which works in tiles; its time over those of a clone and of
torch's own cast to fp8; and over its time those of the same arithmetic written plainly on whole
matrices, and of that compiled. A gain over whole matrices below the target is marked. Every form
must give the same bits.

With --compile, `first` is what the first call of the compiled form takes where nothing was compiled
before (the first line of the table also has what torch.compile sets up once), and `pays` the number
of calls of this shape after which the package would have been slower in all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

import measure
import torch

from pytest_precision import formats
from pytest_precision.formats.hadamard import SIGNS

Result = tuple[torch.Tensor, ...]

GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

TARGET = 3.0
"""Least time of the plain form on whole matrices, over that of the package."""

ROW = "{:28}{:>6}{:>7}{:>6}{:>7} {:6}{:>9}{:>8}{:>7}"


def cast_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Bytes of fp32 values."""
    return values.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)


def scale_of(amax: torch.Tensor, largest: float, *, power_of_two: bool) -> torch.Tensor:
    """448 / amax, with the cases that the kernels set apart."""
    scale = torch.full_like(amax, 448.0) / amax
    scale = torch.where(scale.isinf(), largest, scale)
    scale = torch.where((amax > 0) & amax.isfinite(), scale, 1.0)
    if power_of_two:
        scale = (scale.view(torch.int32) & -(1 << 23)).view(torch.float32)
    return scale


def current(x: torch.Tensor) -> Result:
    """One scale a tensor."""
    scale = scale_of(x.abs().amax().float(), torch.finfo(torch.float32).max, power_of_two=False)
    return cast_e4m3(x.float() * scale), scale.reciprocal().reshape(1)


def block_row(x: torch.Tensor) -> Result:
    """One scale for 128 elements of a row."""
    blocks = x.float().view(x.shape[0], -1, 128)
    amax = blocks.abs().amax(-1, keepdim=True)
    scale = scale_of(amax, torch.finfo(x.dtype).max, power_of_two=True)
    return cast_e4m3(blocks * scale).view(x.shape), scale.reciprocal().squeeze(-1)


def block_square(x: torch.Tensor) -> Result:
    """One scale for 128 x 128 elements."""
    blocks = x.float().view(x.shape[0] // 128, 128, -1, 128)
    amax = blocks.abs().amax((1, 3), keepdim=True)
    scale = scale_of(amax, torch.finfo(x.dtype).max, power_of_two=True)
    return cast_e4m3(blocks * scale).view(x.shape), scale.reciprocal().view(amax.shape[0], -1)


def mxfp8(x: torch.Tensor, axis: int) -> Result:
    """One e8m0 scale for 32 elements along an axis."""
    shape = (x.shape[0], -1, 32) if axis else (-1, 32, x.shape[1])
    within = 2 if axis else 1
    blocks = x.float().view(shape)
    quotient = blocks.abs().amax(within, keepdim=True) * torch.full((), 1 / 448.0)
    bits = quotient.view(torch.int32)
    up = ((bits & 0x7FFFFF) > 0) & (bits > 0x400000)
    codes = torch.clamp((bits >> 23) + up.int(), max=254)
    inverse = torch.clamp((254 - codes) << 23, min=1 << 22).view(torch.float32)
    return cast_e4m3(blocks * inverse).view(x.shape), codes.to(torch.uint8).squeeze(within)


def nvfp4(x: torch.Tensor, random: torch.Tensor | None = None, *, square: bool = False) -> Result:
    """One e4m3 scale for 16 elements, or for 16 x 16, under the amax of the tensor."""
    values = x.float()
    if square:
        blocks = values.view(x.shape[0] // 16, 16, -1, 16)
        amax = blocks.abs().amax((1, 3), keepdim=True)
    else:
        blocks = values.view(x.shape[0], 1, -1, 16)
        amax = blocks.abs().amax(3, keepdim=True)
    largest = x.abs().amax().float()
    tensor_scale = torch.full_like(largest, 2688.0) / largest
    scale = cast_e4m3(amax * (tensor_scale * torch.full_like(largest, 6.0).reciprocal()))
    decoded = scale.view(torch.float8_e4m3fn).float() * tensor_scale.reciprocal()
    encoding = decoded.reciprocal().clamp(max=torch.finfo(torch.float32).max)
    magnitude = (blocks * encoding).abs().clamp(max=6.0).view(x.shape)
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    if random is None:
        grid = torch.round(magnitude / step) * step
    else:
        raised = (magnitude + random.float() * (step / 256)).clamp(max=6.0)
        step = torch.where(raised < 2, 0.5, torch.where(raised < 4, 1.0, 2.0))
        grid = torch.floor(raised / step) * step
    codes = torch.where(grid < 2, grid * 2, torch.where(grid < 4, grid + 2, grid / 2 + 4))
    signed = codes.to(torch.uint8) | (values.signbit().to(torch.uint8) << 3)
    return signed[:, 0::2] | (signed[:, 1::2] << 4), scale[:, 0, :, 0].repeat_interleave(
        x.shape[0] // scale.shape[0], 0
    )


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """The transform of the transposed matrix, in fp64 and rounded once."""
    index = torch.arange(16)
    parity = torch.tensor(
        [[bin(i & j).count("1") % 2 for j in index.tolist()] for i in index.tolist()]
    )
    matrix = (1.0 - 2.0 * parity).double() * torch.tensor(SIGNS).double()[:, None] / 4
    return (x.t().double().reshape(-1, 16) @ matrix).bfloat16().view(x.shape[::-1])


def nvfp4_columns(x: torch.Tensor, *, turn: bool) -> Result:
    """The columnwise operand, with or without the Hadamard transform."""
    return nvfp4(hadamard(x) if turn else x.t().contiguous())


def mxfp8_values(operand: formats.Operand) -> Result:
    """What the bytes stand for."""
    values = operand.data.view(torch.float8_e4m3fn).float().view(*operand.scale.shape, 32)
    scale = operand.scale.view(torch.float8_e8m0fnu).float()[..., None]
    return ((values * scale).view(operand.data.shape),)


def nvfp4_values(operand: formats.Operand) -> Result:
    """What the codes stand for."""
    grid = torch.tensor(GRID)
    table = torch.cat((grid, -grid))
    codes = torch.stack((operand.data & 15, operand.data >> 4), -1)
    scale = operand.scale.view(torch.float8_e4m3fn).float() * operand.amax
    scale = scale * torch.full_like(operand.amax, 2688.0).reciprocal()
    values = table[codes.long()].view(*operand.scale.shape, 16) * scale[..., None]
    return (values.flatten(1),)


def cases(x: torch.Tensor) -> dict[str, tuple[Callable[[], Result], Callable[[], Result]]]:
    """For each operand its name, what the package does for it, and the plain form."""
    bits = torch.randint(0, 256, x.shape, dtype=torch.uint8)

    def package(name: str, usage: str = "rowwise", random: object = None) -> Callable[[], Result]:
        format_ = formats.by_name(name)

        def run() -> Result:
            operands = format_.quantize(x, random, usage=usage).operands.values()
            return tuple(part for operand in operands for part in (operand.data, operand.scale))

        return run

    mx, nv = (
        formats.by_name(name).quantize(x, usage="rowwise") for name in ("mxfp8_e4m3", "nvfp4_1d")
    )

    return {
        "fp8_current_e4m3 rowwise": (package("fp8_current_e4m3"), partial(current, x)),
        "fp8_block_1x128 rowwise": (package("fp8_block_1x128_e4m3_pow2"), partial(block_row, x)),
        "fp8_block_1x128 columnwise": (
            package("fp8_block_1x128_e4m3_pow2", "columnwise"),
            lambda: block_row(x.t().contiguous()),
        ),
        "fp8_block_128x128 rowwise": (
            package("fp8_block_128x128_e4m3_pow2"),
            partial(block_square, x),
        ),
        "mxfp8_e4m3 rowwise": (package("mxfp8_e4m3"), partial(mxfp8, x, 1)),
        "mxfp8_e4m3 columnwise": (package("mxfp8_e4m3", "columnwise"), partial(mxfp8, x, 0)),
        "mxfp8_e4m3 both": (
            package("mxfp8_e4m3", "both"),
            lambda: (*mxfp8(x, 1), *mxfp8(x, 0)),
        ),
        "mxfp8_e4m3 dequantized": (lambda: (mx.dequantize(),), partial(mxfp8_values, mx.rowwise)),
        "nvfp4_1d rowwise": (package("nvfp4_1d"), partial(nvfp4, x)),
        "nvfp4_1d columnwise": (
            package("nvfp4_1d", "columnwise"),
            partial(nvfp4_columns, x, turn=False),
        ),
        "nvfp4_1d_sr rowwise": (
            package("nvfp4_1d_sr", random=(bits, None)),
            partial(nvfp4, x, bits),
        ),
        "nvfp4_2d rowwise": (package("nvfp4_2d"), partial(nvfp4, x, square=True)),
        "nvfp4_1d dequantized": (lambda: (nv.dequantize(),), partial(nvfp4_values, nv.rowwise)),
        "nvfp4_1d_rht columnwise": (
            package("nvfp4_1d_rht", "columnwise"),
            partial(nvfp4_columns, x, turn=True),
        ),
    }


def same(left: Result, right: Result) -> bool:
    """Whether bytes and scales are equal."""
    return all(
        torch.equal(left_part, right_part)
        for left_part, right_part in zip(left, right, strict=True)
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.device != "cpu":  # what every tensor is made on, those of the plain forms too
        torch.set_default_device(options.device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.size, options.size, generator=generator, device="cpu").bfloat16()
    x = x.to(options.device)
    print(
        f"{x.shape[0]} x {x.shape[1]} bf16 on {options.device}, {options.threads} thread(s), "
        f"torch {torch.__version__}"
    )
    print(ROW.format("operand", "MB/s", "clone", "cast", "whole", "", "compiled", "first", "pays"))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for name, (package, whole) in cases(x).items():
            if options.only in name:
                print(row(name, x, package, whole, options), flush=True)


def row(
    name: str,
    x: torch.Tensor,
    package: Callable[[], Result],
    whole: Callable[[], Result],
    options: argparse.Namespace,
) -> str:
    """A line of the table."""
    expected = package()
    assert same(expected, whole()), f"{name}: the whole form gives other bits"
    forms: dict[str, Callable[[], object]] = {
        "clone": x.clone,
        "cast": partial(x.to, torch.float8_e4m3fn),
        "package": package,
        "whole": whole,
    }
    first = 0.0
    if options.compile:
        torch._dynamo.reset()
        forms["compiled"] = compiled = torch.compile(whole, dynamic=False)
        start = time.perf_counter()
        assert same(expected, compiled()), f"{name}: the compiled form gives other bits"
        first = time.perf_counter() - start
    del expected
    finished = {
        form_name: measure.finished(form, options.device) for form_name, form in forms.items()
    }
    seconds = measure.interleave(finished, options.rounds)
    speed = x.numel() * x.element_size() / 1e6 / statistics.median(seconds["package"])
    gain = measure.ratio(seconds, "whole", "package")
    compilation = ("", "", "")
    if options.compile:
        ratio = measure.ratio(seconds, "compiled", "package")
        saved = statistics.median(seconds["package"]) * (1 - ratio)
        pays = f"{first / saved:.0f}" if saved > 0 else "never"
        compilation = (f"{ratio:.2f}", f"{first:.1f} s", pays)
    return ROW.format(
        name,
        f"{speed:.0f}",
        f"{measure.ratio(seconds, 'package', 'clone'):.1f}",
        f"{measure.ratio(seconds, 'package', 'cast'):.1f}",
        f"{gain:.1f}",
        "" if gain >= TARGET else "missed",
        *compilation,
    )


if __name__ == "__main__":
    main()
