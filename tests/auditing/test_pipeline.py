"""Stages of torch.distributed.pipelining: what they will send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from pytest_precision import Audit, audit

if TYPE_CHECKING:  # its import takes long, and each worker of a session imports this file
    from torch.distributed.pipelining import PipelineStage

BF16, FP32 = torch.bfloat16, torch.float32

pytestmark = pytest.mark.usefixtures("one_rank")


def stage(number: int, outputs: torch.dtype | None = None, policy: Any = None) -> PipelineStage:
    """One stage of two, with an example of its output if it has a dtype for it."""
    from torch.distributed.pipelining import PipelineStage

    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    if policy is not None:
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy))
    example = {}
    if outputs is not None:
        example = {"input_args": torch.ones(2, 8), "output_args": torch.ones(2, 8, dtype=outputs)}
    return PipelineStage(module, number, 2, torch.device("cpu"), **example)


def audited(made: PipelineStage) -> Audit:
    return audit(made, torch.optim.AdamW(made.submod.parameters()))


def serious(found: Audit) -> dict[str, str]:
    return {one.rule: one.severity for one in found.at_least("warning")}


@pytest.mark.parametrize(
    ("outputs", "policy", "sent"),
    [
        (None, None, [FP32]),
        (FP32, None, [FP32]),
        (None, {"param_dtype": BF16, "reduce_dtype": FP32}, [BF16]),
        (BF16, {"param_dtype": BF16, "reduce_dtype": FP32}, [BF16]),
        (None, {"param_dtype": BF16, "reduce_dtype": FP32, "output_dtype": FP32}, [FP32]),
    ],
)
def test_what_is_computed_is_sent(outputs: Any, policy: Any, sent: list[torch.dtype]) -> None:
    """In the dtype of the computation, or a wider one."""
    found = audited(stage(0, outputs, policy))
    assert serious(found) == {}
    assert [*found.stages[0].sends] == sent


def test_a_stage_that_sends_less_than_it_computes() -> None:
    """Its policy casts outputs, which the whole model would not have cast."""
    policy = {"param_dtype": FP32, "output_dtype": BF16}
    assert serious(audited(stage(0, policy=policy))) == {
        "output-rounded": "warning",
        "stage-sends-rounded": "warning",
    }
    assert serious(audited(stage(1, policy=policy))) == {"output-rounded": "warning"}


def test_a_stage_that_declares_another_dtype() -> None:
    """The next stage would receive into memory of the wrong size."""
    found = audited(stage(0, BF16))
    assert serious(found) == {"stage-declares-other": "error"}
    (one,) = found.at_least("error")
    assert one.names == ("stage 0 of 2",)
    assert "outputs in bf16 and returns fp32" in one.reason


def test_the_text_says_what_is_sent() -> None:
    """One line per stage."""
    first, last = audited(stage(0)), audited(stage(1))
    assert str(first).splitlines()[-1] == "stage 0 of 2: computes in fp32, sends fp32"
    assert str(last).splitlines()[-1] == "stage 1 of 2: computes in fp32, sends nothing on"
