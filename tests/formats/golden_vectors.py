"""The golden vectors: which inputs a file was made from, and its arrays case by case."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import torch

from pytest_precision import formats
from pytest_precision.formats import layout
from pytest_precision.formats.hadamard import transformed
from pytest_precision.formats.scaling import scale_from_amax

FOLDER = Path(
    os.environ.get("PRECISION_GOLDEN_DIR")
    or Path(__file__).resolve().parents[2] / "fixtures" / "golden"
)

INPUTS = {
    "fp8_current_e4m3": "inputs_A",
    "fp8_current_e4m3_pow2": "inputs_A",
    "fp8_current_e5m2": "inputs_A",
    "fp8_block_128x128_e4m3_f32": "inputs_B",
    "fp8_block_128x128_e4m3_pow2": "inputs_B",
    "fp8_block_1x128_e4m3_f32": "inputs_B",
    "fp8_block_1x128_e4m3_pow2": "inputs_B",
    "fp8_block_1x128_e5m2_pow2": "inputs_B",
    "mxfp8_e4m3": "inputs_A",
    "mxfp8_e4m3_2d": "inputs_A",
    "mxfp8_e5m2": "inputs_A",
    "nvfp4_1d": "inputs_A4",
    "nvfp4_1d_rht": "inputs_A4",
    "nvfp4_1d_rht_sr": "inputs_A4",
    "nvfp4_2d": "inputs_A4",
}
"""The files of the formats without a state, and the files of their inputs."""

OF_REFERENCE: dict[str, tuple[str, dict[str, object]]] = {
    "nvfp4_1d_row": ("nvfp4_1d_row", {}),
    "nvfp4_1d_4over6": ("nvfp4_1d_4over6", {}),
    "nvfp4_1d_row_4over6_mse_256": (
        "nvfp4_1d_row_4over6",
        {"error": "MSE", "scale_maximum": 256},
    ),
    "nvfp4_2d_4over6_256_scaled": (
        "nvfp4_2d_4over6",
        {"scale_maximum": 256, "scaled_error": True},
    ),
}
"""The files that Transformer Engine's reference in Python made of the inputs of NVFP4 but for the
special case, and the formats with the options that they are in."""

SPECIAL = 19
"""The case with inf and NaN: it records what the kernels say, and references differ on it."""


@cache
def arrays(file: str) -> dict[str, np.ndarray]:
    """All arrays of a file."""
    with np.load(FOLDER / f"{file}.npz", allow_pickle=False) as opened:
        return {key: opened[key] for key in opened.files}


@cache
def cases(file: str) -> tuple[dict[str, object], ...]:
    """The `meta` of a file: an object a case."""
    return tuple(json.loads(str(arrays(file)["meta"])))


def fields(file: str, case: int) -> dict[str, np.ndarray]:
    """The arrays of one case, by their names without its number."""
    prefix = f"{case:02d}_"
    return {
        key.removeprefix(prefix): array
        for key, array in arrays(file).items()
        if key.startswith(prefix)
    }


def tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor of its own; uint16 holds the bits of bf16."""
    made = torch.from_numpy(array.copy())
    return made.view(torch.bfloat16) if array.dtype == np.uint16 else made


def matrix(name: str, case: int) -> torch.Tensor:
    """The input of a case of a format."""
    x = tensor(fields(INPUTS[name], case)["x"])
    return x.bfloat16() if "rht" in name else x


def differing_bytes(made: torch.Tensor, golden: torch.Tensor) -> int:
    """How many elements differ in their bits; all of them where shape or dtype does."""
    if made.shape != golden.shape or made.dtype != golden.dtype:
        return max(made.numel(), golden.numel(), 1)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[made.element_size()]
    return int((made.contiguous().view(bits) != golden.contiguous().view(bits)).sum())


def without_zero_signs(packed: torch.Tensor) -> torch.Tensor:
    """Packed e2m1 codes with +0 for -0, until its sign was seen on hardware."""
    low, high = packed & 0x0F, packed & 0xF0
    return low.masked_fill((low & 0x07) == 0, 0) | high.masked_fill((high & 0x70) == 0, 0)


def quantized(name: str, case: int, device: str = "cpu") -> formats.QuantizedTensor:
    """The case's input in the format, with the case's random bits where it is stochastic."""
    bits = None
    if name.endswith("_sr"):
        recorded = fields(name, case)
        bits = tuple(tensor(recorded[side]).to(device) for side in ("rbits", "rbits_t"))
    return formats.by_name(name).quantize(matrix(name, case).to(device), bits)


def made(name: str, own: formats.QuantizedTensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the golden file should hold, by the names of its fields."""
    rowwise, columnwise = own.rowwise, own.columnwise
    found = {"data": rowwise.data, "dequant": own.dequantize()}
    if name.startswith("fp8_current"):
        scale = scale_from_amax(
            rowwise.amax,
            rowwise.storage.element.maximum,
            power_of_two=name.endswith("pow2"),
        )
        assert differing_bytes(columnwise.data, rowwise.data.t()) == 0
        found |= {"amax": rowwise.amax, "scale": scale, "scale_inv": rowwise.scale}
    elif name.startswith("fp8_block"):
        found |= {"scale_inv": rowwise.scale, "data_t": columnwise.data}
        found |= {"scale_inv_t": columnwise.scale}
    elif name.startswith("mxfp8"):
        found |= {"scale": rowwise.scale, "data_c": columnwise.data, "scale_c": columnwise.scale}
        found |= {"scale_swizzled": layout.swizzled_scale(rowwise.scale)}
    else:
        found |= {"scale": rowwise.scale, "amax": rowwise.amax, "data_t": columnwise.data}
        found |= {"scale_t": columnwise.scale, "amax_t": columnwise.amax}
    if "rht" in name:
        found["rht_xt"] = transformed(x).t()
    return found


def differing_fields(name: str, case: int, device: str = "cpu") -> list[str]:
    """The fields of a case that the format, computed on a device, has otherwise in any bit."""
    expected = fields(name, case)
    x = matrix(name, case).to(device)
    found = {key: one.cpu() for key, one in made(name, quantized(name, case, device), x).items()}
    digest = expected.pop("dequant_sha256", None)
    expected = {field: array for field, array in expected.items() if "rbits" not in field}
    wrong = []
    if digest is not None:
        raw = found.pop("dequant").numpy().tobytes()
        wrong += ["dequant"] if hashlib.sha256(raw).hexdigest() != str(digest) else []
    for field in found.keys() | expected.keys():
        if field not in found or field not in expected:
            wrong.append(field)
            continue
        ours, theirs = found[field], tensor(expected[field])
        if name.startswith("nvfp4") and field in ("data", "data_t"):
            ours, theirs = map(without_zero_signs, (ours, theirs))
        if name.startswith("nvfp4") and field == "dequant":
            ours, theirs = ours + 0.0, theirs + 0.0
        wrong += [field] if differing_bytes(ours, theirs) else []
    return sorted(wrong)


def differing_steps(case: int, update: str, device: str = "cpu") -> list[tuple[int, str]]:
    """Step and field of what delayed scaling, computed on a device, has otherwise in any bit.

    Args:
        case: number of the case; each has 40 steps.
        update: "fused", whose casts are in the file, or "unfused", of which the scales are.
        device: where it is computed.
    """
    about = cases("fp8_delayed")[case]
    expected = {key: tensor(array) for key, array in fields("fp8_delayed", case).items()}
    slot = formats.by_name(
        "fp8_delayed",
        element=about["fmt"],
        algorithm=about["algo"],
        history_length=about["history_len"],
        margin=about["margin"],
        update=update,
        device=device,
    )
    after = "scale_after" if update == "fused" else "scale_after_unfused"
    wrong = []
    for step in range(40):
        found = {"scale_used": slot.scale[0].clone()}
        cast = slot.quantize(expected[f"x{step:02d}"].to(device)).rowwise
        slot.update()
        found |= {"data": cast.data, "amax": cast.amax[0]}
        found = (found if update == "fused" else {}) | {after: slot.scale[0]}
        wrong += [
            (step, field)
            for field, own in found.items()
            if differing_bytes(own.cpu(), expected[field][step])
        ]
    return wrong
