"""What agrees and what does not, rule by rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_precision import bitwise, close, norm, ulp
from pytest_precision.parity.compare.tensors import COMPARABLE, compare, same_bytes, statistics

INF, NAN = float("inf"), float("nan")

FLOATS = [dtype for dtype in COMPARABLE if dtype.is_floating_point]

EVERY_CRITERION = [bitwise(), ulp(3), close(rtol=0, atol=0.5)]


def patterns(dtype, numel, seed=0):
    """A tensor with random bits, so that it holds every kind of value there is."""
    raw = np.random.default_rng(seed).integers(0, 256, numel * dtype.itemsize, np.uint8)
    raw = raw % 2 if dtype is torch.bool else raw
    return torch.from_numpy(raw).view(dtype)


def fp32(*values):
    """A float32 vector."""
    return torch.tensor(values, dtype=torch.float32)


def nan32(payload):
    """A float32 NaN with these low bits."""
    return torch.tensor([0x7FC00000 + payload], dtype=torch.int32).view(torch.float32)


@pytest.fixture
def two_threads(monkeypatch):
    """Small tensors are shared between two threads too."""
    monkeypatch.setattr("pytest_precision.parity.compare.tensors.THREAD_BYTES", 16)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", COMPARABLE, ids=str)
@pytest.mark.parametrize("criterion", EVERY_CRITERION, ids=str)
def test_equal_bytes_agree(dtype, criterion):
    """Equal bytes are within every criterion, NaN and infinities included."""
    tensor = patterns(dtype, 301)
    assert compare(tensor.clone(), tensor, criterion) is None


@pytest.mark.parametrize("dtype", COMPARABLE, ids=str)
@pytest.mark.parametrize("at", [0, 150, 300])
def test_one_bit(dtype, at):
    """One bit that differs anywhere, in a tensor of any dtype, is a difference under bitwise."""
    reference = patterns(dtype, 301)
    candidate = reference.clone()
    candidate.view(torch.uint8)[(at + 1) * dtype.itemsize - 1] ^= 1
    difference = compare(candidate, reference, bitwise())
    assert difference.reason == "values"
    assert difference.statistics.mismatched == difference.statistics.beyond == 1
    assert difference.statistics.first == difference.statistics.worst == (at,)


@pytest.mark.parametrize("criterion", EVERY_CRITERION, ids=str)
def test_shape(criterion):
    """Equal values in another shape differ, broadcastable or not, also where there are none."""
    for ours, theirs in [((2, 3), (3, 2)), ((1,), ()), ((0, 2), (2, 0)), ((1, 3), (3,))]:
        difference = compare(torch.zeros(ours), torch.zeros(theirs), criterion)
        assert difference.reason == "shape"
        assert difference.statistics is None


@pytest.mark.parametrize("criterion", EVERY_CRITERION, ids=str)
def test_dtype(criterion):
    """Equal values in another storage dtype differ, also where there are none."""
    for numel in (0, 3):
        ours, theirs = torch.zeros(numel, dtype=torch.bfloat16), torch.zeros(numel)
        difference = compare(ours, theirs, criterion)
        assert difference.reason == "dtype"
        assert difference.statistics is None


@pytest.mark.parametrize("dtype", COMPARABLE, ids=str)
def test_empty(dtype):
    """Empty tensors of one shape and dtype agree."""
    empty = torch.empty(0, 3, dtype=dtype)
    assert compare(empty, empty.clone(), bitwise()) is None


def test_no_dimensions():
    """A tensor without dimensions is compared, and its one index is the empty one."""
    difference = compare(torch.tensor(1.0), torch.tensor(2.0), bitwise())
    assert difference.statistics.first == ()
    assert (difference.statistics.candidate_first, difference.statistics.reference_first) == (1, 2)
    assert compare(torch.tensor(1.0), torch.tensor(1.0), bitwise()) is None


def test_sign_of_zero():
    """-0 and +0 differ bitwise, are no distance apart in ulp, and are close."""
    ours, theirs = fp32(-0.0, 1), fp32(0.0, 1)
    assert compare(ours, theirs, bitwise()).statistics.max_ulp == 0
    assert compare(ours, theirs, ulp(0)) is None
    assert compare(ours, theirs, close(rtol=0, atol=0)) is None


def test_payload_of_nan():
    """NaN of different payloads differ bitwise, and agree in ulp and where close."""
    ours, theirs = nan32(1), nan32(2)
    assert compare(ours, theirs, bitwise()).statistics.nan_mismatched == 0
    assert compare(ours, theirs, ulp(0)) is None
    assert compare(ours, theirs, close(rtol=0, atol=0)) is None


@pytest.mark.parametrize("criterion", [bitwise(), ulp(2**70), close(rtol=1, atol=1e9)], ids=str)
@pytest.mark.parametrize("other", [1.0, INF])
def test_nan_against_number(criterion, other):
    """A NaN on one side only is beyond every criterion, whatever its bound."""
    for ours, theirs in [(NAN, other), (other, NAN)]:
        difference = compare(fp32(1, ours), fp32(1, theirs), criterion)
        assert difference.statistics.nan_mismatched == 1
        assert difference.statistics.first == (1,)


@pytest.mark.parametrize("other", [1.0, -INF])
def test_infinity_is_not_close(other):
    """An infinity is close to itself only, although `rtol * inf` is a bound that all keep."""
    criterion = close(rtol=1, atol=1)
    assert compare(fp32(INF), fp32(INF), criterion) is None
    for ours, theirs in [(INF, other), (other, INF)]:
        assert compare(fp32(ours), fp32(theirs), criterion).statistics.inf_mismatched == 1


def test_infinity_in_ulp():
    """Infinity is the neighbour of the largest finite value, as the bit patterns say."""
    largest = torch.finfo(torch.float32).max
    assert compare(fp32(INF), fp32(largest), ulp(1)) is None
    assert compare(fp32(INF), fp32(largest), ulp(0)).statistics.inf_mismatched == 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ulp_bound(dtype):
    """`ulp(n)` allows a distance of n and not of n + 1."""
    reference = torch.full((5,), 64, dtype=torch.uint8).repeat_interleave(dtype.itemsize)
    candidate = reference.clone()
    candidate[2 * dtype.itemsize] += 3  # the lowest byte of the element 2
    pair = candidate.view(dtype), reference.view(dtype)
    assert compare(*pair, ulp(3)) is None
    assert compare(*pair, ulp(2)).statistics.max_ulp == 3


def test_ulp_across_zero():
    """The distance across zero counts the values on both sides of it."""
    smallest = 2.0**-149
    ours, theirs = fp32(2 * smallest), fp32(-smallest)
    assert compare(ours, theirs, ulp(3)) is None
    assert compare(ours, theirs, ulp(2)).statistics.max_ulp == 3


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str)
def test_ulp_without_line(dtype):
    """Dtypes without representable neighbours must be equal under ulp, and have no max_ulp."""
    difference = compare(torch.ones(3).to(dtype), torch.zeros(3).to(dtype), ulp(2**70))
    assert difference.statistics.beyond == 3
    assert difference.statistics.max_ulp is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int32])
def test_close_bound(dtype):
    """`close` allows atol + rtol * |reference| and no more, and looks at the reference only."""
    ours, theirs = torch.tensor([13, -13]).to(dtype), torch.tensor([8, -8]).to(dtype)
    assert compare(ours, theirs, close(rtol=0.5, atol=1)) is None
    assert compare(ours, theirs, close(rtol=0.5, atol=0.875)).statistics.beyond == 2
    assert compare(ours, theirs, close(rtol=0.25, atol=2.5)).statistics.beyond == 2
    assert compare(theirs, ours, close(rtol=5 / 13, atol=1e-9)) is None


def test_close_integers_beyond_float64():
    """Integers that float64 does not tell apart are told apart."""
    big = torch.tensor([2**53, 2**62, -(2**63)])
    assert compare(big + 1, big, close(rtol=0, atol=0)).statistics.beyond == 3
    assert compare(big + 1, big, close(rtol=0, atol=1)) is None
    far = torch.tensor([2**53 + 1])
    assert compare(far, torch.tensor([0]), close(rtol=0, atol=2.0**53)).statistics.beyond == 1


def test_close_extremes_of_int64():
    """The distance of the two ends of int64 is no overflow."""
    low, high = torch.tensor([-(2**63)]), torch.tensor([2**63 - 1])
    assert compare(low, high, close(rtol=0, atol=2.0**63)).statistics.max_abs == 2**64 - 1
    assert compare(low, high, close(rtol=2, atol=0)) is None


def test_close_where_float64_overflows():
    """A difference and a bound beyond float64 are still compared."""
    ours, theirs = (torch.tensor([x], dtype=torch.float64) for x in (1.7e308, -1.7e308))
    assert compare(ours, theirs, close(rtol=1.5, atol=0)).statistics.beyond == 1
    assert compare(ours, theirs, close(rtol=2.5, atol=0)) is None


def test_close_bool():
    """True is never close to False."""
    pair = torch.tensor([True]), torch.tensor([False])
    assert compare(*pair, close(rtol=0, atol=2)).statistics.beyond == 1


def test_bytes_of_bool():
    """Two bytes that both mean True are different bytes of one value."""
    ours, theirs = (torch.tensor([n], dtype=torch.uint8).view(torch.bool) for n in (2, 1))
    assert compare(ours, theirs, bitwise()).statistics.max_abs == 0


def test_infinities_of_complex():
    """Complex infinities that are equal but for the sign of a zero are close, and no mismatch."""
    ours, theirs = torch.tensor([complex(INF, 0.0)]), torch.tensor([complex(INF, -0.0)])
    assert compare(ours, theirs, bitwise()).statistics.inf_mismatched == 0
    assert compare(ours, theirs, close(rtol=0, atol=0)) is None


def test_close_complex():
    """Complex numbers are close by the absolute value of their difference."""
    ours, theirs = torch.tensor([3 + 4j]), torch.tensor([0j])
    assert compare(ours, theirs, close(rtol=0, atol=5)) is None
    assert compare(ours, theirs, close(rtol=0, atol=4.9)).statistics.max_abs == 5


@pytest.mark.parametrize("make", [bitwise, lambda check_dtype: ulp(0, check_dtype=check_dtype)])
@pytest.mark.parametrize("narrow", [d for d in FLOATS if d.itemsize < 4], ids=str)
def test_check_dtype(narrow, make):
    """Unchecked, a float of any dtype agrees with its exact upcast, and no other value."""
    codes = patterns(narrow, 256)
    # By bytes: not every release of torch can index every float8 dtype.
    bits = codes.view(torch.uint8 if narrow.itemsize == 1 else torch.int16)
    values = bits[~codes.float().isnan()].view(narrow)
    assert compare(values, values.float(), make(check_dtype=False)) is None
    assert compare(values.double(), values, make(check_dtype=False)) is None
    moved = values.float()
    moved.view(torch.int32)[7] ^= 1
    assert compare(values, moved, make(check_dtype=False)).statistics.first == (7,)


def test_check_dtype_of_two_narrow_dtypes():
    """Two narrow dtypes that do not hold each other's values meet in float32."""
    ours, theirs = torch.tensor([0.5, 1e-7]).half(), torch.tensor([0.5, 1e-7]).bfloat16()
    assert compare(ours[:1], theirs[:1], bitwise(check_dtype=False)) is None
    statistics_ = compare(ours, theirs, bitwise(check_dtype=False)).statistics
    assert statistics_.candidate_first == ours[1].item()
    assert statistics_.reference_first == theirs[1].item()


def test_check_dtype_of_float64():
    """Against float64 the values are compared in float64."""
    ours, theirs = torch.tensor([1 + 2.0**-40], dtype=torch.float64), fp32(1)
    assert compare(ours, theirs, ulp(1, check_dtype=False)).statistics.max_ulp == 2**12
    assert compare(theirs, ours, bitwise(check_dtype=False)).statistics.beyond == 1


@pytest.mark.parametrize(
    "pair",
    [
        (torch.int32, torch.int64),
        (torch.float32, torch.int32),
        (torch.bool, torch.uint8),
        (torch.complex64, torch.complex128),
    ],
)
def test_check_dtype_without_common_dtype(pair):
    """Unchecked, dtypes differ all the same unless both are floating."""
    ours, theirs = (torch.zeros(1, dtype=dtype) for dtype in pair)
    assert compare(ours, theirs, bitwise(check_dtype=False)).reason == "dtype"


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[::3, 1:],
        lambda t: t[5],
        lambda t: t[:1].expand(4, -1),
        lambda t: t.unfold(0, 3, 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int64])
@pytest.mark.usefixtures("two_threads")
def test_strides(view, dtype, monkeypatch):
    """Tensors are compared element by element, however they lie in memory."""
    monkeypatch.setattr("pytest_precision.parity.compare.bit_patterns.SPAN", 64)
    ours = view(patterns(dtype, 12 * 18).view(12, 18))
    assert compare(ours, ours.contiguous(), bitwise()) is None
    other = ours.contiguous().clone()
    index = tuple(n - 1 for n in other.shape)
    other[index] = torch.tensor(1.0).to(dtype)
    assert compare(ours, other, bitwise()).statistics.first == index
    assert compare(other, ours, bitwise()).statistics.first == index


def test_pending_conjugation():
    """What counts is a lazy view's value, not the bytes behind it."""
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert compare(tensor.conj(), tensor.conj().resolve_conj(), bitwise()) is None
    assert compare(tensor.conj(), tensor, bitwise()).statistics.beyond == 2
    for numel in (1, 2):
        negative = tensor[:numel].conj().imag
        assert negative.is_neg()
        assert compare(negative, torch.tensor([-2.0, 4.0])[:numel], bitwise()) is None


def test_autograd_and_inference():
    """Parameters and inference tensors are compared, in and out of inference mode."""
    parameter = torch.nn.Parameter(fp32(1, 2))
    assert compare(parameter, fp32(1, 3), bitwise()).statistics.first == (1,)
    assert compare(parameter.half(), parameter, bitwise(check_dtype=False)) is None
    assert compare(parameter.view(1, 2).t(), fp32(1, 2).view(2, 1), bitwise()) is None
    with torch.inference_mode():
        inside = torch.ones(3, 2).t()
        assert compare(inside, torch.zeros(2, 3), bitwise()).statistics.beyond == 6
    assert compare(inside, torch.zeros(2, 3), bitwise()).statistics.beyond == 6
    assert compare(torch.ones(3, 2).t(), torch.zeros(2, 3), bitwise()).statistics.beyond == 6


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("criterion", EVERY_CRITERION, ids=str)
def test_inputs_are_not_written(tmp_path, criterion):
    """Tensors in read-only memory are compared: a write to them would end the process."""
    values = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    for name in ("ours", "theirs"):
        values.tofile(tmp_path / name)
        values[::2] *= -1.5
    ours, theirs = (
        torch.from_numpy(np.memmap(tmp_path / name, np.float32, "r")) for name in ("ours", "theirs")
    )
    assert compare(ours, theirs, criterion).statistics.mismatched == 1000
    assert compare(ours.view(40, 50).t(), theirs.view(50, 40), criterion) is not None


def test_meta():
    """Tensors without data are no equal tensors."""
    with pytest.raises(NotImplementedError, match="meta"):
        compare(torch.ones(2, device="meta"), torch.ones(2, device="meta"), bitwise())


@pytest.mark.parametrize("criterion", EVERY_CRITERION, ids=str)
def test_bits_count_where_torch_has_no_values(criterion):
    """Of a dtype that packs values into an element, whatever is tolerated: and its name counts."""
    packed = torch.float4_e2m1fn_x2
    tensor = torch.arange(4, dtype=torch.uint8)
    assert compare(tensor.view(packed), tensor.clone().view(packed), criterion) is None
    difference = compare(tensor.view(packed), (tensor ^ 1).view(packed), criterion)
    assert (difference.reason, difference.statistics.mismatched) == ("values", 4)
    assert difference.statistics.candidate_first == 0
    assert compare(tensor.view(packed), tensor, criterion).reason == "dtype"


def test_same_bytes():
    """`same_bytes` is about bytes, shape and dtype."""
    one = fp32(1, -0.0, NAN)
    assert same_bytes(one, one.clone())
    assert same_bytes(torch.ones(3, 2).t(), torch.ones(2, 3))
    assert not same_bytes(one, fp32(1, 0.0, NAN))
    assert not same_bytes(one, one.view(1, 3))
    assert not same_bytes(one, one.view(torch.int32))
    assert not same_bytes(fp32(1), fp32(1).double())


def test_statistics_need_values():
    """Statistics of what has no values to compare are refused."""
    with pytest.raises(ValueError, match=r"expected .* \(2,\) of torch.float32, but got .*\(1,\)"):
        statistics(fp32(1), fp32(1, 2))
    with pytest.raises(ValueError, match=r"compare\(\) says what is different"):
        statistics(fp32(1).half(), fp32(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32])
def test_norm_bound(dtype):
    """The error of the whole tensor counts: one element may be far off."""
    reference = torch.tensor([3, 4, 0] * 100, dtype=dtype)
    candidate = reference.clone()
    candidate[2] = 1
    error = 1 / (5 * 100**0.5)
    assert compare(candidate, reference, norm(rel=error * 1.01)) is None
    found = compare(candidate, reference, norm(rel=error * 0.99))
    assert found.statistics.rel_l2 == pytest.approx(error)


@pytest.mark.parametrize("odd", [NAN, INF])
def test_norm_is_no_bound_of_what_is_not_finite(odd):
    """A NaN or an infinity on one side only is beyond any."""
    reference = torch.ones(64)
    candidate = reference.clone()
    candidate[3] = odd
    assert compare(candidate, reference, norm(rel=0.9)) is not None
    assert compare(candidate, candidate.clone(), norm(rel=0.0)) is None


def test_norm_of_bool_and_of_zeros():
    """Bools must be the same, and nothing but zeros is near zeros."""
    mask = torch.ones(64, dtype=torch.bool)
    other = mask.clone()
    other[0] = False
    assert compare(other, mask, norm(rel=0.9)) is not None
    assert compare(torch.full((4,), 1e-30), torch.zeros(4), norm(rel=0.9)) is not None
    assert compare(-torch.zeros(4), torch.zeros(4), norm(rel=0.0)) is None


@pytest.mark.parametrize(
    ("dtype", "criterion", "worst", "allowed"),
    [
        (torch.float32, close(rtol=0.1, atol=0.25), 8, "0.65"),
        (torch.int32, close(rtol=0, atol=1), 8, "1"),
        (torch.float32, ulp(3), 8, "3 ulp"),
        (torch.int32, ulp(3), 8, ""),
        (torch.float32, close(rtol=0.1, atol=0.25), INF, "0.65"),
        (torch.float32, bitwise(), 8, ""),
        (torch.float32, norm(rel=0.1), 8, ""),
    ],
)
def test_what_is_allowed_at_the_worst_element(dtype, criterion, worst, allowed):
    """In the unit of the criterion, where one element has a bound of its own."""
    found = compare(
        torch.tensor([1, worst], dtype=dtype), torch.tensor([1, 4], dtype=dtype), criterion
    )
    assert found.allowed == allowed


def test_nothing_is_allowed_where_the_reference_is_not_finite():
    """Its bound would be infinite."""
    found = compare(torch.ones(1), torch.tensor([NAN]), close(rtol=0.1, atol=0.0))
    assert found.allowed == ""
