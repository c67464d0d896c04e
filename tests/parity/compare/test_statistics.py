"""What the figures of a comparison mean, and that the parts it is made in do not show."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import fields

import numpy as np
import pytest
import torch

from pytest_precision import bitwise, close, ulp
from pytest_precision.parity.compare import dense
from pytest_precision.parity.compare.bit_patterns import SIGNED_FLOATS, SPAN, bits
from pytest_precision.parity.compare.tensors import compare, same_bytes, statistics

pytestmark = pytest.mark.filterwarnings("error")

INF, NAN = math.inf, math.nan

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64]


def fp32(*values):
    """A float32 vector."""
    return torch.tensor(values, dtype=torch.float32)


@pytest.fixture
def small_parts(monkeypatch):
    """Parts so small that small tensors have many, for two threads."""
    monkeypatch.setattr("pytest_precision.parity.compare.tensors.THREAD_BYTES", 16)
    monkeypatch.setattr("pytest_precision.parity.compare.bit_patterns.SPAN", 64)
    monkeypatch.setattr("pytest_precision.parity.compare.dense.DENSE_ELEMENTS", 4)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def test_equal():
    """Equal tensors have nothing to count and no element to name."""
    s = statistics(torch.ones(2, 3), torch.ones(2, 3))
    assert (s.numel, s.mismatched, s.beyond, s.max_ulp) == (6, 0, 0, 0)
    assert (s.max_abs, s.max_rel, s.rel_l2) == (0, 0, 0)
    assert s.first is s.worst is s.candidate_first is s.reference_worst is None


def test_within():
    """Figures do not stop at the criterion, and there is a worst element but no first one."""
    s = statistics(fp32(1, 2, 3), fp32(1, 2.25, 3.5), close(rtol=0, atol=1))
    assert (s.mismatched, s.beyond, s.first) == (2, 0, None)
    assert (s.worst, s.candidate_worst, s.reference_worst) == ((2,), 3, 3.5)


def test_relative_to_the_reference():
    """Relative figures divide by the reference, whichever side is larger."""
    s = statistics(fp32(3, 4), fp32(6, 8))
    assert (s.max_abs, s.max_rel, s.rel_l2) == (4, 0.5, 0.5)
    s = statistics(fp32(6, 8), fp32(3, 4))
    assert (s.max_abs, s.max_rel, s.rel_l2) == (4, 1, 1)


def test_norm_of_the_whole_reference():
    """The L2 error is relative to all elements of the reference, the equal ones too."""
    assert statistics(fp32(3, 4, 1), fp32(3, 4, 0)).rel_l2 == pytest.approx(0.2)


def test_zero_reference():
    """Relative to zero every difference is infinite, and equality is none."""
    s = statistics(fp32(0, 1), fp32(0, 0))
    assert (s.max_rel, s.rel_l2) == (INF, INF)
    s = statistics(fp32(0, -0.0), fp32(0, 0))
    assert (s.mismatched, s.max_rel, s.rel_l2) == (1, 0, 0)


def test_ratio_beyond_float32():
    """A ratio that float32 does not hold is no division by zero."""
    assert statistics(fp32(1, 0), fp32(2.0**-149, 0)).max_rel == 2.0**149 - 1


@pytest.mark.parametrize("scale", [2.0**-140, 2.0**-80, 2.0**-72, 2.0**80, 2.0**126])
def test_norm_of_extreme_values(scale):
    """Values whose squares float32 does not hold have a norm all the same."""
    reference = torch.linspace(1, 2, 8) * scale
    candidate = reference * 1.25
    expected = (candidate.double() - reference.double()).norm() / reference.double().norm()
    assert statistics(candidate, reference).rel_l2 == pytest.approx(expected.item(), rel=1e-6)


def test_index():
    """Elements are named by their index in the tensor's shape."""
    reference = torch.zeros(3, 4, 5)
    candidate = reference.clone()
    candidate[1, 2, 3], candidate[2, 0, 4] = 1, 2
    s = statistics(candidate, reference)
    assert (s.first, s.candidate_first, s.worst, s.candidate_worst) == ((1, 2, 3), 1, (2, 0, 4), 2)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, torch.bfloat16),
        (2**60 + 1, torch.int64),
        (True, torch.bool),
        (1 + 2j, torch.complex64),
    ],
)
def test_values_are_builtin(value, dtype):
    """Elements are given as Python's own types, exactly."""
    s = statistics(torch.tensor([value], dtype=dtype), torch.zeros(1, dtype=dtype))
    assert s.candidate_first == value
    assert type(s.candidate_first) is type(value)
    assert type(s.max_abs) in (int, float)
    assert all(type(i) is int for i in (*s.first, *s.worst, s.mismatched, s.beyond))


def test_worst_in_ulp():
    """Under bitwise and ulp the worst float is the most values away, not the most."""
    reference, candidate = fp32(100, 1e-3), fp32(100.001, 1.001e-3)
    assert statistics(candidate, reference).worst == (1,)
    assert statistics(candidate, reference, close(rtol=0, atol=0)).worst == (0,)


def test_worst_excess():
    """Under close the worst element exceeds its own bound the most."""
    s = statistics(fp32(100, 1), fp32(110, 2), close(rtol=0.1, atol=0))
    assert s.worst == (1,)


def test_worst_differs():
    """The worst element is one that differs, even where an equal one is nearer to its bound."""
    s = statistics(fp32(0, 1), fp32(0, 1.5), close(rtol=0.5, atol=0))
    assert s.worst == (1,)


def test_worst_of_zeros():
    """Where zeros of different sign are all that differs, the worst is the first of them."""
    s = statistics(fp32(0, -0.0, -0.0), fp32(0, 0, 0))
    assert (s.max_ulp, s.mismatched, s.worst) == (0, 2, (1,))


def test_worst_is_nan():
    """Nothing is worse than a NaN on one side only."""
    candidate, reference = fp32(1, 5, NAN, INF), fp32(1, -7, 1, 0)
    for criterion in (bitwise(), ulp(1), close(rtol=0, atol=1)):
        s = statistics(candidate, reference, criterion)
        assert s.worst == (2,)
        assert math.isnan(s.candidate_worst)
        assert (s.nan_mismatched, s.inf_mismatched) == (1, 1)


def test_first_is_beyond():
    """The first element is the first beyond the criterion, not the first that differs."""
    candidate, reference = fp32(1.5, 1, 3, 9), fp32(1, 1, 1, 1)
    assert statistics(candidate, reference).first == (0,)
    assert statistics(candidate, reference, close(rtol=0, atol=1)).first == (2,)
    assert statistics(candidate, reference, ulp(2**23)).first == (2,)


def test_figures_leave_out_what_is_not_finite():
    """An infinity or a NaN does not spoil the figures of the finite elements."""
    s = statistics(fp32(NAN, INF, INF, 3, 4), fp32(1, 1, INF, 0, 5))
    assert (s.max_abs, s.max_rel) == (3, INF)
    assert s.rel_l2 == pytest.approx(math.sqrt((9 + 1) / (1 + 1 + 25)))


def test_sign_changes_have_a_distance():
    """Opposite values are as far apart as the steps to zero and on, more than an int32 holds."""
    bits = torch.tensor([1.5]).view(torch.int32).item()
    assert statistics(fp32(1.5), fp32(-1.5)).max_ulp == 2 * bits
    largest = torch.finfo(torch.float32).max
    assert statistics(fp32(largest, 1), fp32(-largest, -1)).max_ulp == 2 * 0x7F7FFFFF


@pytest.mark.parametrize("dtype", SIGNED_FLOATS, ids=str)
def test_farthest_in_ulp(dtype):
    """From the largest value it is as far to zero as from there to the opposite of the largest."""
    largest, zero = torch.tensor([torch.finfo(dtype).max]), torch.zeros(1)
    if dtype is torch.float64:
        largest = torch.tensor([torch.finfo(dtype).max], dtype=dtype)
    half = statistics(zero.to(dtype), (-largest).to(dtype)).max_ulp
    assert half == bits(largest.to(dtype)).item()
    assert statistics(largest.to(dtype), (-largest).to(dtype)).max_ulp == 2 * half


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_largest_of_many_parts(dtype, seed):
    """The largest figures are found in whichever part they are."""
    generator = torch.Generator().manual_seed(seed)
    reference = (4 * torch.rand(400, generator=generator) ** 4 + 0.1).to(dtype)
    candidate = reference.clone()
    lanes = candidate.view(torch.int32 if dtype is torch.float32 else torch.int16)
    lanes += torch.randint(-4, 5, (400,), generator=generator).to(lanes.dtype)
    distance = (candidate.double() - reference.double()).abs()
    s = statistics(candidate, reference)
    assert s.max_abs == distance.max()
    assert s.max_rel == pytest.approx((distance / reference.double()).max().item(), rel=1e-6)


@pytest.mark.usefixtures("small_parts")
def test_step_into_the_next_octave():
    """As many steps are a larger difference where they lead to a higher power of two."""
    reference = torch.tensor([1.0] * 4 + [2 - 2.0**-23] * 4)
    candidate = (reference.view(torch.int32) + 3).view(torch.float32)
    assert statistics(candidate, reference).max_abs == 5 * 2.0**-23


def test_norm_of_a_whole_chunk():
    """The norm is that of all elements."""
    reference = torch.linspace(1, 2, dense.DENSE_ELEMENTS)
    candidate = reference + torch.linspace(-0.5, 0.1, dense.DENSE_ELEMENTS)
    expected = (candidate.double() - reference.double()).norm() / reference.double().norm()
    assert statistics(candidate, reference).rel_l2 == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("atol", [0, 1e-3])
def test_border_of_close(atol):
    """Next to the bound, where float32 cannot tell which side a value is on, float64 does."""
    reference = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    size = np.abs(reference.astype(np.float64))
    candidate = (reference + (atol + 0.1 * size) * np.sign(reference)).astype(np.float32)
    distance = np.abs(candidate.astype(np.float64) - reference)
    beyond = distance > atol + 0.1 * size
    s = statistics(
        torch.from_numpy(candidate), torch.from_numpy(reference), close(rtol=0.1, atol=atol)
    )
    assert 500 < s.beyond == beyond.sum() < 1500
    assert s.first == (beyond.argmax(),)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("numel", [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33])
def test_any_place(dtype, numel):
    """A single difference is found wherever it is, the ends of every part included."""
    reference = torch.ones(numel).to(dtype)
    for at in range(numel):
        candidate = reference.clone()
        candidate[at] = torch.tensor(2.0).to(dtype)
        assert not same_bytes(candidate, reference)
        s = compare(candidate, reference, bitwise()).statistics
        assert (s.mismatched, s.beyond, s.first, s.worst) == (1, 1, (at,), (at,))
    assert same_bytes(reference.clone(), reference)


@pytest.mark.parametrize(
    "at", [dense.DENSE_ELEMENTS - 1, dense.DENSE_ELEMENTS, SPAN // 4 - 1, SPAN // 4]
)
@pytest.mark.parametrize("extra", [0, 1])
def test_borders(at, extra):
    """So it is at the borders of the parts that are really used."""
    reference = torch.zeros(at + 1 + extra)
    candidate = reference.clone()
    candidate[at] = 1
    assert compare(candidate, reference, bitwise()).statistics.first == (at,)
    assert compare(candidate, reference, close(rtol=0, atol=0.5)).statistics.worst == (at,)


@pytest.mark.parametrize("criterion", [bitwise(), ulp(9), close(rtol=1e-3, atol=1e-3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("special", [(), (NAN, INF, -INF, 0.0, -0.0)])
def test_parts_do_not_show(dtype, criterion, special, monkeypatch):
    """The figures of a tensor are the same in parts of any size, dense or not."""
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(500, generator=generator)
    candidate = reference + 1e-2 * torch.randn(500, generator=generator).relu()
    for n, value in enumerate(special if dtype.is_floating_point else ()):
        candidate[50 * n], reference[30 * n] = value, value
    candidate, reference = (100 * candidate).to(dtype), (100 * reference).to(dtype)
    seen = []
    for span, chunk, sparse in [(64, 3, 2), (128, 7, 0), (256, 50, 10**9), (2**20, 2**15, 16)]:
        monkeypatch.setattr("pytest_precision.parity.compare.bit_patterns.SPAN", span)
        monkeypatch.setattr("pytest_precision.parity.compare.dense.DENSE_ELEMENTS", chunk)
        monkeypatch.setattr("pytest_precision.parity.compare.dense.SPARSE", sparse)
        seen.append(statistics(candidate, reference, criterion))
    for s in seen[:-1]:
        for name in (field.name for field in fields(s)):
            expected = getattr(seen[-1], name)
            if isinstance(expected, float):
                expected = pytest.approx(expected, rel=1e-6, nan_ok=True)
            assert getattr(s, name) == expected, name


@pytest.mark.parametrize(
    ("spoil", "dtype"),
    [
        (0.0, torch.bfloat16),
        (NAN, torch.bfloat16),
        (NAN, torch.complex128),
        pytest.param(0.0, torch.float64, marks=pytest.mark.nightly),
        pytest.param(NAN, torch.float64, marks=pytest.mark.nightly),
        pytest.param(0.0, torch.complex128, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_memory(dtype, spoil):
    """No more than 16 MB are needed beyond the tensors, whatever they hold and however they lie."""
    reference = torch.zeros(1024, 1536).to(dtype).t()
    candidate = (torch.ones(1536, 1024) + spoil).to(dtype)
    tracemalloc.start()
    try:
        for criterion in (bitwise(), close(rtol=0.5, atol=0.5)):
            assert statistics(candidate, reference, criterion).mismatched == reference.numel()
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
