"""Names of observations are put together and taken apart by one module."""

from __future__ import annotations

import pytest

from pytest_precision.matrix.tensor_key import (
    OperandPart,
    TensorKey,
    inner_kind,
    is_beside_masters,
    is_inner,
    is_master,
    outer_kind,
    resident_kind,
    role_of,
    slot_of,
    unwrapped,
)


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [
        ("param", "blocks.0.up.weight", TensorKey("blocks.0.up.weight")),
        ("hyper", "weight_decay of head.weight", TensorKey("head.weight", "weight_decay")),
        ("hyper", "betas.0 of head.weight", TensorKey("head.weight", "betas.0")),
        ("grad", "microbatch 3: head.weight", TensorKey("head.weight", microbatch=3)),
        ("decision", "microbatch0: blocks.0.router", TensorKey("blocks.0.router", microbatch=0)),
        ("decision", "norm is clipped", TensorKey("norm is clipped")),
        ("average", "ema: blocks.0.weight", TensorKey("ema", "blocks.0.weight")),
        ("quantized", "up.weight.rowwise", TensorKey("up.weight", "rowwise")),
        ("amax", "up.weight3.columnwise", TensorKey("up.weight3", "columnwise")),
        ("used_quantized", "up.weight.rowwise.data", TensorKey("up.weight", "rowwise.data")),
        ("scale", "up.quantizers.0.input", TensorKey("up.quantizers.0.input")),
        ("amax", "up.quantizers.0.input.history", TensorKey("up.quantizers.0.input", "history")),
        (
            "used_quantized",
            "microbatch 1: up.scaling_fwd.amax",
            TensorKey("up.scaling_fwd.amax", microbatch=1),
        ),
    ],
)
def test_a_name_is_taken_apart_and_put_together(kind: str, name: str, key: TensorKey) -> None:
    """What a recording holds under a name is found under the same one, in every release."""
    assert TensorKey.of(kind, name) == key
    assert key.name(kind) == name


def test_only_operands_are_operands() -> None:
    """A history is none, and neither is a weight whose name ends like one."""
    assert TensorKey("up.weight", "rowwise.data").operand == OperandPart("rowwise", "data")
    assert TensorKey("up.weight", "columnwise").operand == OperandPart("columnwise")
    assert TensorKey("up.quantizers.0.input", "history").operand is None
    assert TensorKey.of("param", "up.rowwise.data").operand is None
    assert OperandPart.of("rowwise.data").part == "rowwise.data"


def test_a_weight_has_a_slot() -> None:
    """The scale of a weight under delayed scaling is found by the weight's name."""
    assert slot_of("up.weight3") == "up.quantizers.3.weight"
    assert slot_of("weight") == "quantizers.0.weight"
    assert slot_of("up.bias") == ""
    assert [role_of(f"up.quantizers.3.{role}") for role in ("input", "gradient", "bias")] == [
        "input",
        "gradient",
        "",
    ]


def test_kinds_of_what_is_inside_a_subclass() -> None:
    """They are found from outside, in use and between steps."""
    assert inner_kind("used_param", "scale") == "used_param.scale"
    assert outer_kind("used_param.scale") == outer_kind("used_param") == "used_param"
    assert [is_inner(kind) for kind in ("used_param.scale", "used_param")] == [True, False]
    assert resident_kind("used_param.scale") == "param.scale"


def test_what_an_optimizer_keeps_for_its_masters() -> None:
    """A scale beside a master is no master."""
    assert [is_master(kind) for kind in ("master_param", "master_param_scale", "exp_avg")] == [
        True,
        False,
        False,
    ]
    assert [is_beside_masters(kind) for kind in ("master_param_scale", "master")] == [True, False]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("blocks.0._orig_mod.up.weight", "blocks.0.up.weight"),
        ("_orig_mod._fsdp_wrapped_module.head.weight", "head.weight"),
        ("blocks.1._checkpoint_wrapped_module", "blocks.1"),
        ("my_orig_mod.weight", "my_orig_mod.weight"),
    ],
)
def test_wrappers_are_taken_out_of_a_name(name: str, plain: str) -> None:
    """Whole parts of the path alone."""
    assert unwrapped(name) == plain


def test_a_name_without_wrappers_is_the_same_object() -> None:
    """Megatron's engine keeps the range of a shard with the name of its piece."""

    class PieceName(str):
        """A name with more in it."""

    name = PieceName("head.weight")
    assert unwrapped(name) is name
