"""Check whether FSDP, DDP or a pipeline stage rounds gradients, outputs or activations."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pytest_precision.auditing.facts import SetupFacts
from pytest_precision.auditing.finding import AuditFinding, below_fp32, short_dtype
from pytest_precision.auditing.parallelism import unmanaged


def reductions(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a warning if gradients are summed over ranks or microbatches below fp32."""
    units = [unit for unit in facts.units if unit.tensors and below_fp32(unit.reduces)]
    if units:
        yield AuditFinding(
            "reduce-below-fp32",
            "warning",
            f"{units[0].kind} reduces gradients in {short_dtype(units[0].reduces)}, in which "
            "each sum over ranks or microbatches is rounded",
            "store the model in fp32, whose gradients are fp32"
            if units[0].kind == "DDP"
            else "give the policy reduce_dtype=torch.float32",
            tuple(unit.name or "the model" for unit in units),
        )


def unreduced(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield an error if a trained parameter came after its model was wrapped by DDP or FSDP2."""
    late = {
        id(parameter)
        for model in facts.setup.models
        for module in model.modules()
        for parameter in unmanaged(module)
    }
    names = [name for name, parameter in facts.trained() if id(parameter) in late]
    if names:
        yield AuditFinding(
            "not-reduced",
            "error",
            "parameters came after the model was wrapped: nobody sums their gradients over the "
            "ranks, which move apart",
            "add them before DistributedDataParallel or fully_shard wraps the model",
            tuple(names),
        )


def rounded_outputs(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a warning if FSDP or DDP casts outputs to a less precise dtype than it computes in."""
    units = [unit for unit in facts.units if _narrower(unit.outputs, unit.computes)]
    if units:
        yield AuditFinding(
            "output-rounded",
            "warning",
            f"{units[0].kind} computes in {short_dtype(units[0].computes)} and casts outputs to "
            f"{short_dtype(units[0].outputs)}",
            "leave output_dtype out, or give the dtype of the computation",
            tuple(unit.name or "the model" for unit in units),
        )


def stages(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a finding for each pipeline stage that rounds its outputs or misstates their dtype."""
    for stage in facts.stages:
        returned = [stage.returns] if stage.returns else []
        if returned and any(d != stage.returns and d.is_floating_point for d in stage.declared):
            yield AuditFinding(
                "stage-declares-other",
                "error",
                f"the stage was made with outputs in {_words(stage.declared)} and returns "
                f"{_words(returned)}: the next stage receives into memory of another dtype",
                "give output_args in the dtype that the stage returns, or output_dtype to its "
                "policy",
                (stage.name,),
            )
        elif any(_narrower(sent_dtype, stage.computes) for sent_dtype in stage.sends):
            yield AuditFinding(
                "stage-sends-rounded",
                "warning",
                f"the stage computes in {short_dtype(stage.computes)} and sends "
                f"{_words(stage.sends)}: the boundary rounds activations that one model would "
                "not round",
                "give its policy no output_dtype, or that of the computation",
                (stage.name,),
            )


def _narrower(output_dtype: torch.dtype | None, computed_dtype: torch.dtype | None) -> bool:
    return bool(
        output_dtype
        and computed_dtype
        and output_dtype.is_floating_point
        and output_dtype.itemsize < computed_dtype.itemsize
    )


def _words(dtypes: list[torch.dtype] | tuple[torch.dtype, ...]) -> str:
    return " and ".join(dict.fromkeys(map(short_dtype, dtypes)))
