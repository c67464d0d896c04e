"""Names, recipes, and what is said to who asks for something else."""

from __future__ import annotations

import re
import subprocess
import sys

import golden_vectors
import pytest
import torch

from pytest_precision import formats
from pytest_precision.formats.elements import E4M3
from pytest_precision.formats.mxfp8 import Mxfp8
from pytest_precision.formats.nvfp4 import Nvfp4


def test_every_golden_file_has_its_format() -> None:
    """The names are those of the files."""
    assert set(golden_vectors.INPUTS) | {"fp8_delayed"} <= set(formats.names())


def test_a_format_knows_its_name() -> None:
    """What by_name gives says the name that it was asked for."""
    assert [formats.by_name(name).name for name in formats.names()] == [*formats.names()]


def test_an_unknown_name_lists_the_known_ones() -> None:
    """The next step is in the message."""
    with pytest.raises(ValueError, match=r"one of .* but got name='fp8' \(str\)") as caught:
        formats.by_name("fp8")
    assert all(name in str(caught.value) for name in formats.names())


def test_an_option_that_a_format_lacks_is_refused() -> None:
    """MXFP8 reduces no amax."""
    with pytest.raises(TypeError, match="reduce_amax"):
        formats.by_name("mxfp8_e4m3", reduce_amax=lambda amax: amax)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("fp8_block_1x128_e4m3_pow2", "power_of_two", False),
        ("fp8_current_e4m3", "power_of_two", True),
        ("fp8_delayed_e5m2", "element", "e4m3"),
        ("mxfp8_e4m3", "element", "e4m3"),
        ("mxfp8_e4m3", "rounding", "floor"),
        ("nvfp4_1d", "stochastic", True),
    ],
)
def test_what_a_name_says_is_no_option(name: str, option: str, value: object) -> None:
    """What is made would be called by the name of something else."""
    words = rf"expected options that {name} leaves open but got {option}={value!r} \("
    with pytest.raises(ValueError, match=words):
        formats.by_name(name, **{option: value})


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("fp8_current_e4m3", "epsilon", -1),
        ("fp8_block_1x128_e4m3_pow2", "epsilon", float("nan")),
        ("fp8_block_1x128_e4m3_pow2", "epsilon", "1"),
        ("fp8_block_1x128_e4m3_pow2", "if_infinite", 0.0),
        ("fp8_current_e4m3", "reduce_amax", 3),
        ("nvfp4_1d", "reduce_amax", "max"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_refused(
    name: str, option: str, value: object
) -> None:
    """When the format is made, and not at the first cast, or never."""
    with pytest.raises(ValueError, match=rf"expected .* but got {option}={value!r} \("):
        formats.by_name(name, **{option: value})


def test_a_choice_is_one_of_those_that_are_known() -> None:
    """Anything else would silently be the default."""
    with pytest.raises(ValueError, match=r"expected one of ceil, floor but got rounding='floor '"):
        Mxfp8(name="mine", element=E4M3, rounding="floor ")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected one of .*torchao but got scaling='torch_ao'"):
        Nvfp4(name="mine", scaling="torch_ao")  # type: ignore[arg-type]


def test_delayed_scaling_is_a_new_slot_each_time() -> None:
    """Two tensors do not share a history by accident."""
    first, second = formats.by_name("fp8_delayed"), formats.by_name("fp8_delayed")
    first.quantize(torch.ones(2, 2))
    assert float(second.history[0]) == 0.0


@pytest.mark.parametrize("precision", ["fp8_current", "fp8_delayed", "fp8_block", "mxfp8"])
def test_hybrid_means_e5m2_for_gradients(precision: str) -> None:
    """Inputs and weights stay e4m3; all names exist."""
    hybrid, uniform = (formats.recipe(precision, element) for element in ("hybrid", "e4m3"))
    assert "e5m2" in hybrid.gradient
    assert (hybrid.input, hybrid.weight) == (uniform.input, uniform.weight)
    assert {hybrid.gradient, uniform.input, uniform.weight, uniform.gradient} <= set(
        formats.names()
    )


def test_the_defaults_of_recipes() -> None:
    """Transformer Engine's: hybrid for one scale a tensor, e4m3 for blocks, RHT and SR in NVFP4."""
    assert formats.recipe("fp8_current").gradient == "fp8_current_e5m2"
    assert formats.recipe("fp8_block").weight == "fp8_block_128x128_e4m3_pow2"
    assert formats.recipe("mxfp8").gradient == "mxfp8_e4m3"
    nvfp4 = formats.recipe("nvfp4")
    assert (nvfp4.input, nvfp4.weight, nvfp4.gradient) == (
        "nvfp4_1d_rht",
        "nvfp4_2d",
        "nvfp4_1d_rht_sr",
    )


@pytest.mark.parametrize("arguments", [("fp32",), ("fp4",), ("mxfp8", "e5m2"), ("nvfp4", "e4m3")])
def test_unknown_recipes_are_refused(arguments: tuple[str, ...]) -> None:
    """Nothing trains with e5m2 throughout, and NVFP4 has one element."""
    with pytest.raises(ValueError, match=r"expected (precision|element) to be one of .* but got "):
        formats.recipe(*arguments)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ([1.0], TypeError, r"expected a torch\.Tensor but got x=\[1\.0\] \(list\); wrap it"),
        (
            torch.ones(16, 16, dtype=torch.float64),
            TypeError,
            r"got x\.dtype=torch\.float64 .* cast",
        ),
        (torch.ones(2, 16, 16), ValueError, r"got x\.shape=\(2, 16, 16\) \(Size\); flatten"),
        (torch.ones(16, 16, device="meta"), ValueError, r"expected x with data but got"),
    ],
)
def test_unfit_inputs_are_refused(x: object, error: type[Exception], message: str) -> None:
    """By every format, with what was expected, what came and what to do."""
    said = {}
    for name in formats.names():
        try:
            formats.by_name(name).quantize(x)
        except error as refusal:
            said[name] = str(refusal)
    assert said.keys() == {*formats.names()}
    assert {name: text for name, text in said.items() if not re.search(message, text)} == {}


@pytest.mark.parametrize("shape", [(16, 24), (24, 16)])
def test_nvfp4_needs_multiples_of_16(shape: tuple[int, int]) -> None:
    """In both dimensions."""
    with pytest.raises(ValueError, match=r"multiples of 16 but got .* pad x with zeros"):
        formats.by_name("nvfp4_1d").quantize(torch.ones(shape))


def test_random_bits_for_rounding_to_nearest_are_refused() -> None:
    """Bits that nobody reads are a mistake, of every format."""
    x = torch.ones(16, 16).bfloat16()
    for name in formats.names():
        if not name.endswith("sr"):
            words = rf"expected random_bits=None .*{name}.* rounds to nearest"
            with pytest.raises(TypeError, match=words):
                formats.by_name(name).quantize(x, (x, x))


# A process of its own, which has no surroundings of this one.
@pytest.mark.parametrize("surroundings", ["usual"], indirect=True, scope="module")
def test_importing_the_package_imports_no_torch() -> None:
    """Names are loaded when they are used."""
    program = (
        "import sys, pytest_precision.formats as f; assert 'torch' not in sys.modules; "
        "f.by_name; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
