"""Criteria of several kinds: which kind gets which, and what is refused."""

from __future__ import annotations

import pickle

import pytest

from pytest_precision.parity.criteria import Criteria
from pytest_precision.parity.criterion import bitwise, close, ulp, unchecked


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
