"""Criteria: their words, what they refuse, and which kind gets which."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from pytest_precision.parity.criterion import Criteria, bitwise, close, ulp, unchecked


@pytest.mark.parametrize(
    ("criterion", "words"),
    [
        (bitwise(), "bitwise"),
        (bitwise(storage=False), "bitwise, whatever the storage dtypes"),
        (ulp(2), "within 2 ulp"),
        (ulp(0, storage=False), "within 0 ulp, whatever the storage dtypes"),
        (
            close(rtol=1e-3, atol=1),
            "|difference| <= atol + rtol*|reference|, rtol=0.001, atol=1.0, the caller's own",
        ),
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
        (lambda: unchecked(reason=" "), ValueError, r"expected a sentence but got reason=' '"),
        (lambda: unchecked(reason=None), TypeError, r"but got reason=None \(NoneType\)"),
        (lambda: bitwise(storage=0), TypeError, r"but got storage=0 \(int\)"),
        (lambda: ulp(1, storage="no"), TypeError, r"but got storage='no' \(str\)"),
        (lambda: close(rtol=0, atol=0, storage=None), TypeError, r"but got storage=None"),
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


def test_nothing_given_is_bitwise():
    """Without a criterion every kind is compared bit for bit."""
    criteria = Criteria.of(None)
    assert criteria.for_kind("anything") == bitwise()
    assert str(criteria) == "bitwise"


def test_one_for_all():
    """A single criterion holds for every kind."""
    assert Criteria.of(ulp(1)).for_kind("grad") == ulp(1)


def test_by_kind():
    """A mapping overrides the kinds that it names, whatever their names are."""
    criteria = Criteria.of({"default": ulp(1), "my_state": close(rtol=0, atol=1)})
    assert criteria.for_kind("my_state") == close(rtol=0, atol=1)
    assert criteria.for_kind("grad") == ulp(1)


def test_by_kind_without_default():
    """A mapping leaves the kinds that it does not name bitwise."""
    assert Criteria.of({"grad": ulp(1)}).for_kind("param") == bitwise()


def test_criteria_are_kept():
    """What already says everything is taken as it is."""
    criteria = Criteria.of({"grad": ulp(1)})
    assert Criteria.of(criteria) is criteria


def test_criteria_in_one_line():
    """All criteria fit one line, the default first."""
    criteria = Criteria.of({"grad": ulp(1), "rng": unchecked(reason="drawn anew")})
    assert str(criteria) == "bitwise; grad: within 1 ulp; rng: not compared: drawn anew"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (0.1, r"expected a criterion but got criterion=0.1 \(float\)"),
        (bitwise, r"expected a criterion but got criterion=<function bitwise"),
        ({"grad": 0.1}, r"expected a criterion but got criterion\['grad'\]=0.1 \(float\)"),
        ({1: ulp(1)}, r"expected the name of a kind but got 1 \(int\)"),
    ],
)
def test_no_criteria(given, message):
    """Anything but criteria is refused, with the functions that make one."""
    with pytest.raises(TypeError, match=message):
        Criteria.of(given)


def test_travels():
    """Criteria cross process borders."""
    criteria = Criteria.of({"grad": ulp(1), "rng": unchecked(reason="drawn anew")})
    assert pickle.loads(pickle.dumps(criteria)) == criteria


def test_no_torch():
    """A test file can name criteria without paying for torch."""
    code = "import sys, pytest_precision.parity.criterion; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
