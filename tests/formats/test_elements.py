"""Every code of e4m3, e5m2, e2m1 and e8m0, and rounding to them, against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_precision.formats import e2m1
from pytest_precision.formats.elements import ELEMENT_OF_NAME, e8m0_decode, element_named
from pytest_precision.formats.scaling import e8m0_ceil, e8m0_floor

# exponent bits, mantissa bits, bias; whether the top exponent holds numbers
SHAPES = {"e4m3": (4, 3, 7, True), "e5m2": (5, 2, 15, False), "e2m1": (2, 1, 1, True)}
GRID = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def defined_value(name: str, code: int) -> float:
    """The value of a code, from the number of bits of its parts."""
    exponent_bits, mantissa_bits, bias, finite = SHAPES[name]
    mantissa = code & ((1 << mantissa_bits) - 1)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    if name != "e2m1" and exponent == (1 << exponent_bits) - 1:
        if not finite:
            return math.nan if mantissa else sign * math.inf
        if mantissa == (1 << mantissa_bits) - 1:
            return math.nan
    fraction = mantissa / (1 << mantissa_bits)
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias)
    return sign * (1 + fraction) * 2.0 ** (exponent - bias)


def codes_of(magnitudes: torch.Tensor) -> torch.Tensor:
    """e2m1 codes of fp32 magnitudes."""
    scratch = [magnitudes.clone(), torch.empty_like(magnitudes), torch.empty_like(magnitudes)]
    return e2m1.codes_(*scratch).to(torch.uint8)


def cast(name: str, values: torch.Tensor) -> torch.Tensor:
    """Bytes of fp32 values."""
    data = torch.empty(values.shape, dtype=torch.uint8)
    element_named(name).cast_(values.clone(), data)
    return data


def same_values(ours: torch.Tensor, theirs: list[float]) -> bool:
    """Whether bits are equal, any NaN being one NaN."""
    theirs = torch.tensor(theirs, dtype=torch.float32)
    both_nan = ours.isnan() & theirs.isnan()
    return bool(((ours.view(torch.int32) == theirs.view(torch.int32)) | both_nan).all())


@pytest.mark.parametrize("name", ELEMENT_OF_NAME)
def test_every_byte_is_decoded(name: str) -> None:
    """All 256 bytes have the value that the definition gives them."""
    data = torch.arange(256).to(torch.uint8)
    decoded = element_named(name).decode(data, torch.empty(256))
    assert same_values(decoded, [defined_value(name, code) for code in range(256)])


@pytest.mark.parametrize("name", ELEMENT_OF_NAME)
def test_finite_bytes_come_back(name: str) -> None:
    """Casting a value that a byte stands for gives that byte, -0 included."""
    element = element_named(name)
    data = torch.arange(256).to(torch.uint8)
    values = element.decode(data, torch.empty(256))
    finite = values.isfinite()
    assert torch.equal(cast(name, values)[finite], data[finite])


@pytest.mark.parametrize("name", ELEMENT_OF_NAME)
def test_values_between_bytes_go_to_the_nearest(name: str) -> None:
    """A tie goes to the even byte, and one ulp to either side of it to the nearer byte."""
    last = 0x7E if name == "e4m3" else 0x7B
    values = torch.tensor([defined_value(name, code) for code in range(last + 1)])
    middle = (values[:-1] + values[1:]) / 2
    below = torch.arange(last).to(torch.uint8)
    assert torch.equal(cast(name, middle), below + (below & 1))
    assert torch.equal(cast(name, torch.nextafter(middle, values[:-1])), below)
    assert torch.equal(cast(name, torch.nextafter(middle, values[1:])), below + 1)


@pytest.mark.parametrize("name", ELEMENT_OF_NAME)
def test_beyond_the_largest_value_a_cast_saturates(name: str) -> None:
    """Everything above the maximum, infinity too, becomes the maximum; NaN stays NaN."""
    element = element_named(name)
    above = torch.tensor([1.0001, 1.05, 2.0, 1e30]) * element.maximum
    values = torch.cat((above, torch.tensor([math.inf])))
    values = torch.cat((values, -values))
    decoded = element.decode(cast(name, values), torch.empty(10))
    assert torch.equal(decoded, values.sign() * element.maximum)
    nan = element.decode(cast(name, torch.tensor([math.nan])), torch.empty(1))
    assert nan.isnan()


def test_the_reciprocal_is_that_of_fp32() -> None:
    """The constant equals the rounded quotient."""
    for element in ELEMENT_OF_NAME.values():
        assert element.reciprocal == float(torch.tensor(element.maximum).reciprocal())


def test_every_e2m1_code_is_decoded() -> None:
    """The 256 bytes of two codes are decoded, the low nibble first."""
    data = torch.arange(256).to(torch.uint8)[:, None]
    decoded = e2m1.E2M1.decode(data, torch.empty(256, 2))
    expected = [
        defined_value("e2m1", nibble) for byte in range(256) for nibble in (byte & 15, byte >> 4)
    ]
    assert same_values(decoded.flatten(), expected)
    assert [defined_value("e2m1", code) for code in range(8)] == GRID


def test_e2m1_ties_go_to_the_even_code() -> None:
    """.25 to 0, .75 to 1, 1.25 to 1, 1.75 to 2, 2.5 to 2, 3.5 to 4, 5 to 4; an ulp off, nearer."""
    grid = torch.tensor(GRID)
    middle = (grid[:-1] + grid[1:]) / 2
    assert codes_of(middle).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert codes_of(torch.nextafter(middle, grid[:-1])).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert codes_of(torch.nextafter(middle, grid[1:])).tolist() == [1, 2, 3, 4, 5, 6, 7]


def magnitudes(largest: float) -> torch.Tensor:
    """Every bf16 number up to `largest`, and the fp32 numbers beside each of them."""
    last = int(torch.tensor(largest).bfloat16().view(torch.int16))
    values = torch.arange(last + 1).to(torch.int16).view(torch.bfloat16).float()
    beside = [torch.nextafter(values, torch.tensor(end)) for end in (0.0, largest)]
    return torch.cat((values, *beside))


def test_e2m1_rounds_to_the_nearest() -> None:
    """No other code is nearer, and saturation is at 6."""
    values = magnitudes(8.0)
    grid, held = torch.tensor(GRID), values.clamp(max=6)
    distance = (grid[codes_of(values).long()] - held).abs()
    assert torch.equal(distance, (grid[:, None] - held).abs().amin(0))


def test_stochastic_e2m1_follows_its_bits() -> None:
    """The code is the largest whose value does not exceed value + bits / 256 of the step."""
    grid, values = torch.tensor(GRID, dtype=torch.float64), magnitudes(6.0)[::37]
    step = torch.where(values < 2, 0.5, torch.where(values < 4, 1.0, 2.0)).double()
    for bits in range(256):
        random, scratch = torch.full_like(values, bits), torch.empty(2, len(values))
        codes = e2m1.stochastic_codes_(values.clone(), random, *scratch).to(torch.uint8)
        raised = (values.double() + bits / 256 * step).float().double()
        expected = torch.searchsorted(grid, raised.clamp(max=6), right=True) - 1
        assert torch.equal(codes.long(), expected), bits


def test_packing_puts_the_even_one_low() -> None:
    """Along rows and along columns, the even neighbour is the low nibble."""
    codes = torch.arange(64).remainder(16).to(torch.uint8).view(8, 8)
    by_columns, by_rows = torch.empty(8, 4, dtype=torch.uint8), torch.empty(4, 8, dtype=torch.uint8)
    e2m1.pack_columns(codes, by_columns)
    e2m1.pack_rows(codes, by_rows)
    assert torch.equal(by_columns, codes[:, 0::2] + 16 * codes[:, 1::2])
    assert torch.equal(by_rows, codes[0::2] + 16 * codes[1::2])


def test_every_e8m0_code_is_decoded() -> None:
    """2**(code - 127), the subnormal 2**-127 for 0 and NaN for 255."""
    decoded = e8m0_decode(torch.arange(256).to(torch.uint8))
    assert same_values(decoded, [2.0 ** (code - 127) for code in range(255)] + [math.nan])


@pytest.mark.parametrize("name", ELEMENT_OF_NAME)
def test_e8m0_ceil_is_the_least_scale_that_does_not_saturate(name: str) -> None:
    """At and around maximum * 2**k for every k; the multiplier is the inverse of the scale."""
    element = element_named(name)
    codes = torch.arange(1, 255).double()
    edge = element.maximum * torch.exp2(codes - 127)
    codes, edge = codes[edge < 3e38], edge[edge < 3e38].float()
    scale, multiplier = e8m0_ceil(edge, element)
    assert torch.equal(scale.double(), codes)
    assert torch.equal(multiplier * e8m0_decode(scale), torch.ones_like(edge))
    above = torch.nextafter(edge, torch.tensor(math.inf))
    assert torch.equal(e8m0_ceil(above, element)[0].double(), codes + 1)


def test_e8m0_at_the_ends() -> None:
    """Zero and subnormal quotients have code 0, infinity code 254."""
    amax = torch.tensor([0.0, 1e-45, 448 * 2.0**-127, 448 * 2.0**-126, 3.4e38, math.inf])
    scale, multiplier = e8m0_ceil(amax, ELEMENT_OF_NAME["e4m3"])
    assert scale.tolist() == [0, 0, 0, 1, 247, 254]
    assert multiplier.tolist() == [2.0**127, 2.0**127, 2.0**127, 2.0**126, 2.0**-120, 2.0**-127]


def test_e8m0_floor_is_the_exponent() -> None:
    """OCP: the largest power of two of the amax over that of the element; NaN is kept."""
    amax = torch.tensor([500.0, 256.0, 255.0, 1e-37, 0.0, math.inf, math.nan])
    scale, multiplier = e8m0_floor(amax, ELEMENT_OF_NAME["e4m3"])
    assert scale.tolist() == [127, 127, 126, 0, 0, 247, 255]
    assert multiplier.tolist() == [1.0, 1.0, 2.0, 2.0**126, 2.0**126, 2.0**-120, 0.0]
