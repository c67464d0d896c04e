"""Criteria: their words, and what they refuse."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_precision import bitwise, close, norm, ulp, unchecked


@pytest.mark.parametrize(
    ("criterion", "words"),
    [
        (bitwise(), "bitwise"),
        (bitwise(check_dtype=False), "bitwise, whatever the storage dtypes"),
        (ulp(2), "within 2 ulp"),
        (ulp(0, check_dtype=False), "within 0 ulp, whatever the storage dtypes"),
        (
            close(rtol=1e-3, atol=1),
            "|difference| <= atol + rtol*|reference|, rtol=0.001, atol=1.0, the caller's own",
        ),
        (norm(rel=0.01), "||difference|| <= rel*||reference||, rel=0.01, the caller's own"),
        (unchecked(reason="sampled anew"), "not compared: sampled anew"),
    ],
)
def test_words(criterion, words):
    """A criterion is its own description in reports."""
    assert str(criterion) == words


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ulp(-1), ValueError, r"expected an int from 0 but got n=-1 \(int\); ulp\(1\)"),
        (lambda: ulp(1.5), TypeError, r"expected an int from 0 but got n=1.5 \(float\)"),
        (lambda: ulp(True), TypeError, r"expected an int from 0 but got n=True \(bool\)"),
        (lambda: close(rtol=-0.1, atol=0), ValueError, r"but got rtol=-0.1 \(float\)"),
        (lambda: close(rtol=0, atol=float("inf")), ValueError, r"but got atol=inf \(float\)"),
        (lambda: close(rtol=float("nan"), atol=0), ValueError, r"but got rtol=nan \(float\)"),
        (lambda: close(rtol="1", atol=0), TypeError, r"but got rtol='1' \(str\)"),
        (lambda: close(rtol=0, atol=False), TypeError, r"but got atol=False \(bool\)"),
        (lambda: norm(rel=1), ValueError, r"below 1 but got rel=1.0 \(float\); 1 % is rel=0.01"),
        (lambda: norm(rel=True), TypeError, r"but got rel=True \(bool\)"),
        (lambda: unchecked(reason=" "), ValueError, r"expected a sentence but got reason=' '"),
        (lambda: unchecked(reason=None), TypeError, r"but got reason=None \(NoneType\)"),
        (lambda: bitwise(check_dtype=0), TypeError, r"but got check_dtype=0 \(int\)"),
        (lambda: ulp(1, check_dtype="no"), TypeError, r"but got check_dtype='no' \(str\)"),
        (lambda: close(rtol=0, atol=0, check_dtype=None), TypeError, r"but got check_dtype=None"),
    ],
)
def test_refused(make, error, message):
    """What is no criterion is refused where it is made, with its name, value and type."""
    with pytest.raises(error, match=message):
        make()


def test_tolerances_have_no_defaults():
    """Every tolerance is the caller's own."""
    with pytest.raises(TypeError, match="atol"):
        close(rtol=0)  # type: ignore[call-arg]


def test_no_torch():
    """A test file can name criteria without paying for torch."""
    code = "import sys, pytest_precision.parity.compare.criterion; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
