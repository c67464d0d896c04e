"""The optimizers, bit for bit against golden vectors of a second implementation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from pytest_precision.optim import AnyPrecisionAdamW, FusedAdam
from pytest_precision.optim.remainder import join, split
from pytest_precision.optim.scaled_state import decode_scaled

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden"
GOLDEN = np.load(Path(os.environ.get("PRECISION_GOLDEN_DIR", FOLDER)) / "optim_fused_adam.npz")
CASES = json.loads(str(GOLDEN["meta"]))
SPLIT = ("split_fp32_bits", "split_bf16_bits", "split_remainder")


def arrays(case: dict[str, Any]) -> dict[str, NDArray[Any]]:
    prefix = f"{case['i']:02}_"
    return {k.removeprefix(prefix): GOLDEN[k] for k in GOLDEN.files if k.startswith(prefix)}


def torch_dtype(text: str) -> torch.dtype:
    dtype = getattr(torch, text.removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype


def optimizer_of(case: dict[str, Any], param: nn.Parameter) -> FusedAdam | AnyPrecisionAdamW:
    cls = AnyPrecisionAdamW if case["name"].startswith("anyprecision") else FusedAdam
    options = {
        name: torch_dtype(value) if isinstance(value, str) else value
        for name, value in case["kwargs"].items()
    }
    return cls([param], **options)


def observed(optimizer: FusedAdam | AnyPrecisionAdamW, param: nn.Parameter, name: str) -> Any:
    state = optimizer.state[param]
    if name == "p":
        return param.detach().float().numpy()
    if name == "master":
        return optimizer.master(param).numpy()
    if name == "remainder":
        return state["master_param"].numpy()
    if name == "compensation":
        return state["compensation"].float().numpy()
    key = {"m": "exp_avg", "v": "exp_avg_sq"}[name]
    return decode_scaled(state[key], state.get(f"{key}_scale")).numpy()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_array_of_every_step_matches_bit_for_bit(case: dict[str, Any]) -> None:
    """Parameters, effective weights, moments, remainders, compensation, whatever a run holds."""
    golden = arrays(case)
    dtype = torch_dtype(case.get("param_dtype", "torch.bfloat16"))
    param = nn.Parameter(torch.from_numpy(golden.pop("p0")).to(dtype))
    optimizer = optimizer_of(case, param)
    gradients = golden.pop("grads")
    assert {"p", "m", "v"} <= golden.keys()
    for step, gradient in enumerate(gradients):
        param.grad = torch.from_numpy(gradient).to(dtype)
        optimizer.step()
        for name, expected in golden.items():
            actual = observed(optimizer, param, name)
            assert actual.dtype == expected.dtype
            assert actual.tobytes() == expected[step].tobytes(), f"{name} after step {step + 1}"


def test_masters_are_split_as_the_table_says() -> None:
    """And joined again."""
    masters, parameters, remainders = (torch.from_numpy(GOLDEN[name]) for name in SPLIT)
    parameter, remainder = split(masters.view(torch.float32))
    assert torch.equal(parameter.view(torch.int16), parameters)
    assert torch.equal(remainder, remainders)
    assert torch.equal(join(parameter, remainder).view(torch.int32), masters)


def test_no_array_of_the_file_is_left_out() -> None:
    """Every array belongs to a run or to the table."""
    prefixes = tuple(f"{case['i']:02}_" for case in CASES)
    rest = {name for name in GOLDEN.files if not name.startswith(prefixes)}
    assert rest == {"meta", *SPLIT}
    assert len(CASES) == 14
