"""Spelling: names of a marker that are typing errors, and names that are the user's own."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_precision.errors import MatrixError
from pytest_precision.matrix.axes import build
from pytest_precision.options import MARKER_OPTIONS

SLIPS = {
    "precision": "precison precisoin presicion percision precisionn prescision pricision Precision",
    "sequence": "seqence sequnce seqeunce sequance sequencee secuence sequences seqeunces",
    "primary_weight": "primary_weigths primary_weigth primry_weight primaryweight primary_wieght",
    "world_size": "wrld_size word_size wolrd_size world_sze worldsize worlds_size world_sizes",
    "grad_accum_fusion": "grad_acum_fusion grad_accum_fusoin gradaccumfusion grad_accum_fusions",
    "coverage": "coverge covarage",
    "timeout": "timout timeuot",
    "environment": "enviroment environmnet",
    "backend": "bakend backedn",
}

WORDS = """
    precision_of_kv kv_precision precision_b precision2 decision provision precise prediction
    sequence_length sequential subsequence seq seqlen frequency
    weight primary primary_weight_dtype weight_decay
    workload_size size world tp_size batch_size grid_size world_size_of_experts local_world_size
    grad_accum fusion fused grad_accum_steps grad_accumulation
    glu_interleave fused_adam rank ranks_of_lora banks tanks devices device_map backends
    backbone environ cover covariance time_out_of_peers tile mutation mute jitters fuzzy
"""


@pytest.mark.parametrize("values", [["a"], "a"])
@pytest.mark.parametrize(
    ("name", "right"), [(name, right) for right, names in SLIPS.items() for name in names.split()]
)
def test_slips_are_refused(name: str, right: str, values: object) -> None:
    """A name with one slip of the keys is refused with the word that was meant."""
    with pytest.raises(MatrixError, match=f"but got {name}; write {right}, or"):
        build((), {name: values}, MARKER_OPTIONS)


@pytest.mark.parametrize("name", WORDS.split())
def test_words_are_axes(name: str) -> None:
    """A word of the user's own is an axis, however close to one of the matrix."""
    (cell,) = build((), {name: ["a"]}, MARKER_OPTIONS).cells
    assert getattr(cell, name) == "a"


@pytest.mark.parametrize(
    ("keywords", "right"),
    [
        ({"timeouts": 60}, "timeout"),
        ({"devices": "cpu"}, "device"),
        ({"environments": {"A": "1"}}, "environment"),
    ],
)
def test_plurals_of_options(keywords: dict[str, Any], right: str) -> None:
    """The plural of an option is meant to be that, unless it has a list of values."""
    with pytest.raises(MatrixError, match=f"write {right}, or"):
        build((), keywords, MARKER_OPTIONS)
