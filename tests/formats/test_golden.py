"""Every array of the golden files, bit for bit."""

from __future__ import annotations

import golden_vectors as golden
import pytest
import torch
from surroundings import foreign_at_night

from pytest_precision import formats
from pytest_precision.formats.elements import ELEMENT_OF_NAME

FIELDS = {
    "fp8_current": {"data", "amax", "scale", "scale_inv", "dequant"},
    "fp8_block": {"data", "scale_inv", "data_t", "scale_inv_t", "dequant_sha256"},
    "mxfp8": {"data", "scale", "data_c", "scale_c", "dequant", "scale_swizzled"},
    "nvfp4": {"data", "scale", "amax", "data_t", "scale_t", "amax_t", "dequant"},
}


@pytest.mark.parametrize("name", golden.INPUTS)
def test_quantized_arrays(name: str) -> None:
    """Bytes, scales, amaxes and values equal the golden ones in every bit, in every case."""
    cases = [case for case in range(20) if case != golden.SPECIAL]
    found = {case: golden.differing_fields(name, case) for case in cases}
    assert {case: wrong for case, wrong in found.items() if wrong} == {}


def test_files_hold_nothing_else() -> None:
    """No array of a file is left unchecked because its name is unknown."""
    for name in golden.INPUTS:
        family = next(family for family in FIELDS if name.startswith(family))
        extra = {"rht_xt"} if "rht" in name else set()
        extra |= {"rbits", "rbits_t"} if name.endswith("_sr") else set()
        assert len(golden.cases(golden.INPUTS[name])) == 20, name
        for case in range(20):
            assert golden.fields(name, case).keys() == FIELDS[family] | extra, (name, case)
        assert len(golden.arrays(name)) == 20 * len(FIELDS[family] | extra), name


@foreign_at_night
@pytest.mark.parametrize("file", golden.OF_REFERENCE)
def test_what_the_reference_of_transformer_engine_makes(file: str) -> None:
    """Bytes, scales and amaxes of both operands are those of its own Python, but for -0."""
    name, options = golden.OF_REFERENCE[file]
    for case in range(golden.SPECIAL):
        expected = golden.fields(file, case)
        quantized = formats.by_name(name, **options).quantize(golden.matrix("nvfp4_1d", case))
        sides = {"": quantized.rowwise, "_t": quantized.columnwise}
        assert expected.keys() == {f"{f}{s}" for f in ("data", "scale", "amax") for s in sides}
        for suffix, operand in sides.items():
            for field in ("data", "scale", "amax"):
                ours = getattr(operand, field)
                theirs = golden.tensor(expected[f"{field}{suffix}"])
                if field == "data":
                    ours, theirs = map(golden.without_zero_signs, (ours, theirs))
                assert golden.differing_bytes(ours, theirs) == 0, f"{case} {field}{suffix}"


def one_nan(name: str, field: str, values: torch.Tensor) -> torch.Tensor:
    """The same values with one NaN for all of them, whose bits are not the same on all machines."""
    if values.is_floating_point():
        return values.masked_fill(values.isnan(), torch.nan)
    if name.startswith("nvfp4") or not field.startswith("data"):
        return values
    element = ELEMENT_OF_NAME["e5m2" if "e5m2" in name else "e4m3"]
    return values.masked_fill(values.view(element.dtype).float().isnan(), 0x7F)


@pytest.mark.parametrize("name", golden.INPUTS)
def test_special_values_are_quantized(name: str) -> None:
    """Beside infinities and NaNs every array is that of the file; NaN is compared as a class."""
    x, expected = golden.matrix(name, golden.SPECIAL), golden.fields(name, golden.SPECIAL)
    assert bool(x.isnan().any())
    assert bool(x.isinf().any())
    fields = golden.made(name, golden.quantized(name, golden.SPECIAL), x)
    # The digest is that of one machine's NaN.
    compared = expected.keys() - {"dequant_sha256", "rbits", "rbits_t"}
    assert compared <= fields.keys()
    for field in compared:
        ours, theirs = fields[field], golden.tensor(expected[field])
        ours, theirs = (one_nan(name, field, values) for values in (ours, theirs))
        assert golden.differing_bytes(ours, theirs) == 0, field


@pytest.mark.parametrize("update", ["fused", "unfused"])
def test_delayed_scaling(update: str) -> None:
    """40 steps: the scale of each cast, its bytes and amax, and the scale after each update."""
    found = {case: golden.differing_steps(case, update) for case in range(20)}
    assert {case: wrong for case, wrong in found.items() if wrong} == {}
    of_steps = {f"x{step:02d}" for step in range(40)}
    after = {"amax", "scale_used", "data", "scale_after", "scale_after_unfused"}
    for case in range(20):
        assert golden.fields("fp8_delayed", case).keys() == of_steps | after, case
