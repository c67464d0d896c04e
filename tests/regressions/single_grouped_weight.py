"""The defects of Megatron-LM #5464 and of its neighbours, planted into real layouts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pytest_precision.engine.engine import Engine
from pytest_precision.layouts.megatron.buffers import Bucket, Buffer, BufferSlot
from pytest_precision.layouts.megatron.experts import arrange
from pytest_precision.layouts.megatron.optimizer import DistributedOptimizer
from pytest_precision.layouts.megatron.stored_model import Arranged
from pytest_precision.matrix.cell import Cell
from pytest_precision.modules.grouped import GroupedLinear
from pytest_precision.modules.parameter import QuantizedParameter
from pytest_precision.workloads.base import Workload


def planted(
    workload: Workload,
    cell: Cell,
    *,
    engine: type[DistributedOptimizer] = DistributedOptimizer,
    layer: type[GroupedLinear] = GroupedLinear,
    forgetful: bool = False,
    **options: Any,
) -> Engine:
    """`grouped_experts` with another engine or layer, or one that forgets what it quantized."""
    put = partial(_arrange, layer=layer, forgetful=forgetful)
    return engine.of(workload, cell, put, **options)


def _arrange(
    model: nn.Module, cell: Cell, *, layer: type[GroupedLinear], forgetful: bool
) -> Arranged:
    arranged = arrange(model, cell, single_grouped_weight=True)
    for module in model.modules():
        if isinstance(module, GroupedLinear):
            module.__class__ = layer
            if layer is StaleStorage:
                module.kept = {name: p.detach() for name, p in module.named_parameters()}  # type: ignore[assignment]
    if forgetful:  # TransformerEngine #3225: packing dropped the value that was attached
        for parameter in model.parameters():
            if isinstance(parameter, QuantizedParameter):
                parameter.clear_high_precision_init()
    return arranged


class DirtyAfterEval(DistributedOptimizer):
    """Megatron-LM #5464: after an evaluation, the next gather is taken for done.

    The forced sync before the evaluation leaves its mark; masters are staged into the gradients'
    memory for the next step, nobody gathers them, and nobody zeroes what they have left there.
    """

    synced = False

    def evaluate(self) -> None:
        super().evaluate()
        self.synced = True

    def stage(self, *, shared: bool) -> None:
        super().stage(shared=shared)
        if shared and self.synced:
            self.synced = False
            for buffer in self.buffers:
                for bucket in buffer.buckets:
                    bucket.stale = bucket.stale and not buffer.shared


class StaleStorage(GroupedLinear):
    """Megatron-LM #5464: the forward reads the memory that the weights had before the buffer."""

    def read(self, kind: str) -> dict[str, Tensor]:
        live = super().read(kind)
        # The gradient goes to the parameter; only the values are those of other memory.
        return {name: self.kept[name] + (p - p.detach()) for name, p in live.items()}  # type: ignore[index, operator]


class StaleMembers(DistributedOptimizer):
    """The same of quantized bytes: experts keep the views that they had before the buffer."""

    def move_into(self, buffer: Buffer, slot: BufferSlot) -> None:
        parameter = slot.parameter
        before = [*parameter.members] if isinstance(parameter, QuantizedParameter) else []
        super().move_into(buffer, slot)
        if isinstance(parameter, QuantizedParameter):
            parameter._storage.members[:] = before


class SyncBeforeStaging(DistributedOptimizer):
    """Megatron-LM #5236: a forced sync gathers memory that no masters were staged in."""

    def save(self, folder: Path) -> None:
        for buffer in self.buffers:
            for bucket in buffer.buckets:
                bucket.stale = buffer.shared
        self.stage = lambda **_: None  # type: ignore[method-assign]
        super().save(folder)
        del self.stage


class RoundedSums(DistributedOptimizer):
    """TransformerEngine #1618: sums over microbatches are rounded to bf16 on their way to fp32."""

    def _accumulate(self, buffer: Buffer, bucket: Bucket, parameter: Tensor) -> None:
        super()._accumulate(buffer, bucket, parameter)
        main_grad = self.gradient(parameter)
        main_grad.copy_(main_grad.bfloat16())


class LoadsRowwiseOnly(DistributedOptimizer):
    """mcore-bridge #125: a load leaves the columnwise copies, which only backward reads."""

    def load(self, folder: Path) -> None:
        quantized = [p for p in self.model.parameters() if isinstance(p, QuantizedParameter)]
        before = [{key: t.clone() for key, t in p.stored.items()} for p in quantized]
        super().load(folder)
        for parameter, kept in zip(quantized, before, strict=True):
            for key, tensor in parameter.stored.items():
                if key.startswith("columnwise"):
                    tensor.copy_(kept[key])


class CachedByVersion(GroupedLinear):
    """Primus #983: quantized weights are kept until the parameter's version moves.

    The gather writes to the same memory through the buffer, and no version moves.
    """

    def _refresh(self, weights: Any, grouped: bool) -> None:
        key = [(w.data_ptr(), w._version, w.shape) for w in weights]
        if getattr(self, "key", None) != key:
            super()._refresh(weights, grouped)
        self.key = key
