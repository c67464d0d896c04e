"""Every figure against a slow and independent computation in fractions, on tensors of all sorts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_precision import bitwise, close, ulp
from pytest_precision.parity.compare.bit_patterns import COMPLEX, INTEGERS
from pytest_precision.parity.compare.bounds import Close, Ulp
from pytest_precision.parity.compare.tensors import statistics

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.slow]

IEEE = {  # exponent bits, mantissa bits
    torch.float64: (11, 52),
    torch.float32: (8, 23),
    torch.float16: (5, 10),
    torch.bfloat16: (8, 7),
    torch.float8_e5m2: (5, 2),
}
FNUZ = {torch.float8_e4m3fnuz: (4, 3), torch.float8_e5m2fnuz: (5, 2)}
SMALL_FLOATS = (
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
FLOATS = (torch.float64, torch.float32, *SMALL_FLOATS)

INF = math.inf
Value = Fraction | float  # a float is a NaN or an infinity


def value(pattern: int, dtype: torch.dtype) -> Value:
    """What a bit pattern means, by the definition of its format."""
    if dtype in INTEGERS:
        signed = dtype.is_signed and pattern >> (8 * dtype.itemsize - 1)
        return Fraction(pattern - (signed << 8 * dtype.itemsize))
    if dtype is torch.bool:
        return Fraction(pattern)
    if dtype is torch.float8_e8m0fnu:
        return math.nan if pattern == 255 else Fraction(2) ** (pattern - 127)
    if dtype is torch.float8_e4m3fn:
        exponent_bits, mantissa_bits, bias = 4, 3, 7
        if pattern & 0x7F == 0x7F:
            return math.nan
    elif dtype in FNUZ:
        exponent_bits, mantissa_bits = FNUZ[dtype]
        bias = 2 ** (exponent_bits - 1)
        if pattern == 0x80:
            return math.nan
    else:
        exponent_bits, mantissa_bits = IEEE[dtype]
        bias = 2 ** (exponent_bits - 1) - 1
    mantissa = pattern & (2**mantissa_bits - 1)
    exponent = pattern >> mantissa_bits & (2**exponent_bits - 1)
    sign = -1 if pattern >> (exponent_bits + mantissa_bits) else 1
    if dtype in IEEE and exponent == 2**exponent_bits - 1:
        return math.nan if mantissa else sign * INF
    if exponent:
        mantissa += 2**mantissa_bits
    scale = max(exponent, 1) - bias - mantissa_bits
    return Fraction(sign * mantissa << max(scale, 0), 1 << max(-scale, 0))


@cache
def line(dtype: torch.dtype) -> list[float]:
    """The values of a small dtype in order, each once, as -0 and +0 are: a float holds them all."""
    values = {float(value(pattern, dtype)) for pattern in range(2 ** (8 * dtype.itemsize))}
    return sorted(v for v in values if v == v)


@cache
def place(dtype: torch.dtype) -> dict[float, int]:
    """Where each value of a dtype stands in that order."""
    return {v: at for at, v in enumerate(line(dtype))}


def ulps(c: Value, r: Value, dtype: torch.dtype) -> int | None:
    """Steps from one value to the other; None where they are too many to be walked."""
    if dtype in SMALL_FLOATS:
        return abs(place(dtype)[float(c)] - place(dtype)[float(r)])
    scalar = np.float32 if dtype is torch.float32 else np.float64
    low, high = sorted((scalar(float(c)), scalar(float(r))))
    with np.errstate(over="ignore"):
        for steps in range(20):
            if low >= high:
                return steps
            low = np.nextafter(low, high)
    return None


def distance(c: Value, r: Value) -> Fraction | None:
    """|c - r| of finite values."""
    return abs(c - r) if isinstance(c, Fraction) and isinstance(r, Fraction) else None


def within(c: Value, r: Value, dtype: torch.dtype, criterion: object) -> bool | None:
    """Whether two values with different bytes are within; None where float64 may not tell."""
    if isinstance(criterion, Close) and dtype is not torch.bool:
        if c != c or r != r:
            return c != c and r != r
        if distance(c, r) is None:
            return c == r
        exact = distance(c, r)
        bound = Fraction(criterion.atol) + Fraction(criterion.rtol) * abs(r)
        inexact = criterion.rtol or (dtype not in INTEGERS and rounded(exact) != exact)
        if inexact and bound and abs(exact - bound) <= bound * Fraction(2) ** -50:
            return None
        return exact <= bound
    if isinstance(criterion, Ulp) and dtype.is_floating_point:
        if c != c or r != r:
            return c != c and r != r
        steps = ulps(c, r, dtype)
        return steps is not None and steps <= criterion.n
    return False


def rounded(exact: Fraction) -> float:
    """The nearest float, an infinity beyond the largest."""
    try:
        return float(exact)
    except OverflowError:
        return INF if exact > 0 else -INF


def root(exact: Fraction) -> float:
    """The square root of a fraction that may be too large or small for a float."""
    with localcontext(Context(prec=40, Emax=10**6, Emin=-(10**6))):
        return float((Decimal(exact.numerator) / Decimal(exact.denominator)).sqrt())


@contextmanager
def sizes(span: int, chunk: int, sparse: int) -> Iterator[None]:
    """Other sizes of the parts that tensors are compared in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pytest_precision.parity.compare.bit_patterns.SPAN", span)
        patch.setattr("pytest_precision.parity.compare.dense.DENSE_ELEMENTS", chunk)
        patch.setattr("pytest_precision.parity.compare.dense.SPARSE", sparse)
        yield


def tensor(patterns: list[int], dtype: torch.dtype) -> torch.Tensor:
    """The tensor with these bit patterns."""
    raw = np.array(patterns, dtype=f"<u{dtype.itemsize}")
    return torch.from_numpy(raw.view(np.uint8)).view(dtype)


def patterns(dtype: torch.dtype) -> st.SearchStrategy[tuple[int, int]]:
    """Bit patterns of a candidate and a reference: equal, neighbours, opposites and unrelated."""
    width = 1 if dtype is torch.bool else 8 * dtype.itemsize
    top = 2**width - 1
    special = {pattern & top for pattern in (0, 1, top, top >> 1, (top >> 1) + 1, (top >> 1) + 2)}
    if dtype in IEEE:
        exponent_bits, mantissa_bits = IEEE[dtype]
        infinity = (2**exponent_bits - 1) << mantissa_bits
        one = (2 ** (exponent_bits - 1) - 1) << mantissa_bits
        special |= {infinity, infinity + 1, infinity - 1, one, 1 << mantissa_bits}
        special |= {pattern ^ (top ^ top >> 1) for pattern in special}
    one_side = st.sampled_from(sorted(special)) | st.integers(0, top)
    moved = st.sampled_from([0, 0, 1, -1, 2, -5, (top >> 1) + 1]) | st.integers(0, top)
    return st.tuples(one_side, moved).map(lambda pair: (pair[0], (pair[0] + pair[1]) & top))


TOLERANCES = st.sampled_from([0.0, 0.5, 1.0, 2.0**-10, 2.0**-24, 0.1, 3e38, 1e300])

CRITERIA = (
    st.just(bitwise())
    | st.builds(ulp, st.integers(0, 9))
    | st.builds(lambda rtol, atol: close(rtol=rtol, atol=atol), TOLERANCES, TOLERANCES)
)

PARTS = st.builds(
    sizes,
    st.sampled_from([16, 32, 2**20]),
    st.sampled_from([1, 3, 2**15]),
    st.sampled_from([0, 2, 16, 10**9]),
)


@dataclass
class Pair:
    """An element of both sides: bit patterns and their values."""

    bits: tuple[int, int]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        self.c, self.r = (value(pattern, self.dtype) for pattern in self.bits)
        self.differs = self.bits[0] != self.bits[1]
        self.nans = (self.c != self.c) + (self.r != self.r)
        self.distance = distance(self.c, self.r)

    def badness(self, criterion: object) -> tuple[bool, Value]:
        """How far off the element is, in the measure that ranks the worst."""
        if self.nans == 1:
            return True, 0
        if isinstance(criterion, Close) and self.dtype is not torch.bool:
            if self.distance is None:
                return False, INF if not self.nans and self.c != self.r else -INF
            bound = Fraction(criterion.atol) + Fraction(criterion.rtol) * abs(self.r)
            excess = self.distance - bound
            return False, excess if abs(rounded(excess)) < INF else rounded(excess)
        if self.nans == 2:
            return False, 0
        if not self.dtype.is_floating_point:
            return False, self.distance
        if self.dtype in SMALL_FLOATS:
            return False, ulps(self.c, self.r, self.dtype)
        half = 2 ** (8 * self.dtype.itemsize - 1)
        ordered = [half - pattern if pattern >= half else pattern for pattern in self.bits]
        return False, abs(ordered[0] - ordered[1])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@settings(max_examples=40)
@given(data=st.data(), criterion=CRITERIA, parts=PARTS)
def test_figures(dtype, data, criterion, parts):
    """Each figure is what its definition says, whatever the values and the parts."""
    drawn = data.draw(st.lists(patterns(dtype), min_size=1, max_size=24))
    pairs = [Pair(bits, dtype) for bits in drawn]
    with parts:
        got = statistics(
            *(tensor(list(side), dtype) for side in zip(*drawn, strict=True)), criterion
        )
    check_counts(got, pairs, criterion)
    check_magnitudes(got, pairs)
    check_ulps(got, pairs)
    check_worst(got, pairs, criterion)


def check_counts(got, pairs, criterion):
    """What is counted, and the first that is beyond."""
    infinite = [p.nans == 0 and p.distance is None and p.c != p.r for p in pairs]
    kept = [not p.differs or within(p.c, p.r, p.dtype, criterion) for p in pairs]
    assert got.numel == len(pairs)
    assert got.mismatched == sum(p.differs for p in pairs)
    assert got.nan_mismatched == sum(p.nans == 1 for p in pairs)
    assert got.inf_mismatched == sum(infinite)
    assert kept.count(False) <= got.beyond <= len(kept) - kept.count(True)
    if None not in kept:
        assert got.first == ((kept.index(False),) if False in kept else None)


def check_magnitudes(got, pairs):
    """The figures of finite differences, exact for integers and else to float32's rounding."""
    finite = [p for p in pairs if p.distance is not None]
    largest = max((p.distance for p in finite), default=Fraction(0))
    assert got.max_abs == pytest.approx(rounded(largest), rel=2**-22, abs=0)
    if not pairs[0].dtype.is_floating_point:
        assert got.max_abs == largest
    ratios = [rounded(p.distance / abs(p.r)) if p.r else INF for p in finite if p.distance]
    if rounded(largest) < INF:
        assert got.max_rel == pytest.approx(max(ratios, default=0), rel=2**-22, abs=0)
    squares = sum(p.distance**2 for p in finite)
    base = sum(p.r**2 for p in pairs if isinstance(p.r, Fraction))
    if not squares or not base:
        assert got.rel_l2 == (INF if squares else 0)
    elif 2.0**-1000 < root(squares) < INF and 2.0**-1000 < root(base) < INF:
        assert got.rel_l2 == pytest.approx(root(squares / base), rel=1e-5)


def check_ulps(got, pairs):
    """The largest number of steps, as far as they can be walked."""
    if not pairs[0].dtype.is_floating_point:
        assert got.max_ulp is None
        return
    steps = [ulps(p.c, p.r, p.dtype) for p in pairs if not p.nans]
    if None in steps:
        assert got.max_ulp >= 20
    else:
        assert got.max_ulp == max(steps, default=0)


def check_worst(got, pairs, criterion):
    """The worst is the first that no other is worse than; under `close` to float32's rounding."""
    ranks = {n: p.badness(criterion) for n, p in enumerate(pairs) if p.differs}
    if not ranks:
        assert got.worst is None
        return
    (worst,) = got.worst
    best = max(ranks.values())
    if isinstance(criterion, Close) and isinstance(best[1], Fraction):
        values = [abs(v) for n in ranks for v in (pairs[n].c, pairs[n].r) if abs(v) < INF]
        largest = criterion.atol + rounded(max(values)) * (2 + criterion.rtol)
        assert rounded(best[1] - ranks[worst][1]) <= 2.0**-20 * largest + 2.0**-120
    else:
        assert worst == min(n for n, rank in ranks.items() if rank == best)


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=str)
def test_every_value(dtype):
    """Each value of a small dtype is one step from the next, all of them in one tensor."""
    steps = line(dtype)
    by_value = {float(value(p, dtype)): p for p in reversed(range(2 ** (8 * dtype.itemsize)))}
    below = tensor([by_value[v] for v in steps[:-1]], dtype)
    above = tensor([by_value[v] for v in steps[1:]], dtype)
    got = statistics(above, below, ulp(1))
    assert (got.max_ulp, got.mismatched, got.beyond) == (1, len(steps) - 1, 0)
    assert statistics(above, below, ulp(0)).beyond == len(steps) - 1


@settings(max_examples=100)
@given(
    data=st.lists(
        st.tuples(*[st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0])] * 4),
        min_size=1,
        max_size=12,
    ),
    dtype=st.sampled_from(COMPLEX),
    rtol=TOLERANCES,
    atol=TOLERANCES,
    parts=PARTS,
)
def test_complex(data, dtype, rtol, atol, parts):
    """The figures of complex numbers are those of absolute values."""
    c = torch.tensor([complex(*row[:2]) for row in data], dtype=dtype)
    r = torch.tensor([complex(*row[2:]) for row in data], dtype=dtype)
    with parts:
        got = statistics(c, r, close(rtol=rtol, atol=atol))
    pairs = list(zip(c.tolist(), r.tolist(), strict=True))
    finite = [(abs(x - y), abs(y)) for x, y in pairs if all(map(np.isfinite, (x, y)))]
    relative = max((d / y if y else INF for d, y in finite if d), default=0)
    beyond = [
        (x != x) != (y != y)
        or (
            x == x
            and y == y
            and x != y
            and not (np.isfinite(x) and np.isfinite(y) and abs(x - y) <= atol + rtol * abs(y))
        )
        for x, y in pairs
    ]
    assert got.nan_mismatched == sum((x != x) != (y != y) for x, y in pairs)
    assert got.max_abs == pytest.approx(max((d for d, _ in finite), default=0), rel=1e-12)
    assert got.max_rel == pytest.approx(relative, rel=1e-12)
    assert got.beyond == sum(beyond)
    assert got.max_ulp is None
