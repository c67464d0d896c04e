"""Criteria of several kinds: which kind gets which, and what is refused."""

from __future__ import annotations

import pickle

import pytest

from pytest_precision import bitwise, close, ulp, unchecked
from pytest_precision.parity.compare.criteria import Criteria


def test_nothing_given_is_bitwise():
    """Without a criterion every kind is compared bit for bit."""
    criteria = Criteria.of(None)
    assert criteria.of_tensor("anything", "w").criterion == bitwise()
    assert str(criteria) == "bitwise"


def test_one_for_all():
    """A single criterion holds for every kind."""
    assert Criteria.of(ulp(1)).of_tensor("grad", "w").criterion == ulp(1)


def test_by_kind():
    """A mapping overrides the kinds that it names, whatever their names are."""
    criteria = Criteria.of({"default": ulp(1), "my_state": close(rtol=0, atol=1)})
    assert criteria.of_tensor("my_state", "w").criterion == close(rtol=0, atol=1)
    assert criteria.of_tensor("grad", "w").criterion == ulp(1)


def test_by_kind_without_default():
    """A mapping leaves the kinds that it does not name bitwise."""
    assert Criteria.of({"grad": ulp(1)}).of_tensor("param", "w").criterion == bitwise()


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("exp_avg", "blocks.0.qkv.bias", ulp(6)),
        ("exp_avg", "blocks.1.qkv.bias", ulp(5)),
        ("exp_avg", "blocks.1.up.bias", ulp(3)),
        ("exp_avg", "head.weight", ulp(2)),
        ("grad", "blocks.1.qkv.bias", ulp(4)),
        ("grad", "head.weight", ulp(1)),
    ],
)
def test_the_most_specific_key_decides(kind, name, expected):
    """A name before none, the kind before `default`, the longer pattern before the shorter."""
    keys = {
        "exp_avg:*": ulp(0),
        "exp_avg:blocks.0.qkv.bias": ulp(6),
        "exp_avg:blocks.?.qkv.bias": ulp(5),
        "default:*.qkv.bias": ulp(4),
        "exp_avg:blocks.*": ulp(3),
        "exp_avg:*.weight": ulp(2),
        "default": ulp(1),
    }
    for given in (keys, dict(reversed(keys.items()))):
        assert Criteria.of(given).of_tensor(kind, name).criterion == expected


def test_of_two_as_specific_the_later_decides():
    """So that a dict of its own can be merged into a common one."""
    same = {"grad:u*.bias": ulp(1), "grad:up*bias": ulp(2)}
    assert Criteria.of(same).of_tensor("grad", "up.bias").criterion == ulp(2)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("grda", "the criterion names the kind grda, which was not observed; there are grad, rng"),
        (
            "grad:*.qvk.*",
            "the criterion names grad:*.qvk.*, but no tensor has such a name; there are "
            "w0, w1, w2, w3, w4 and 2 more",
        ),
        (
            "default:cuda",
            "the criterion names default:cuda, but no tensor has such a name; there are "
            "w0, w1, w2, w3, w4 and 3 more",
        ),
        ("exp_avg", ""),
        ("exp_avg:*.qvk.*", ""),
        ("grad:w6", ""),
        ("default:cpu", ""),
    ],
)
def test_keys_that_fit_nothing(key, words):
    """A misspelt key is named, with what there is; a kind that not every cell has is none."""
    there = {"grad": [f"w{n}" for n in range(7)], "rng": ["cpu"]}
    assert Criteria.of({key: ulp(1)}).unknown(there) == words
    assert Criteria.of({key: unchecked(reason="a test")}).unknown(there) == ""


def test_criteria_are_kept():
    """What already says everything is taken as it is."""
    criteria = Criteria.of({"grad": ulp(1)})
    assert Criteria.of(criteria) is criteria


def test_criteria_in_one_line():
    """All criteria fit one line, the default first."""
    names = {"grad:*.bias": bitwise(), "grad": ulp(1), "rng": unchecked(reason="drawn anew")}
    assert str(Criteria.of(names)) == (
        "bitwise; grad: within 1 ulp; rng: not compared: drawn anew; grad:*.bias: bitwise"
    )


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


@pytest.mark.parametrize("key", ["", ":*.bias", "grad:"])
def test_half_a_key(key):
    """A kind or a pattern that was left out is no pattern of everything."""
    with pytest.raises(ValueError, match=r"expected a kind, or a kind and a pattern of names"):
        Criteria.of({key: ulp(1)})
