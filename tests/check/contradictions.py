"""Engines that contradict themselves, in a module of its own so that ranks can import them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from planted_by_property import TrainsFrozen
from torch import nn

from pytest_precision import Cell, Engine, Workload, layouts, workloads
from pytest_precision.engine.loss_scale import LossScale
from pytest_precision.engine.quantizing import scaling_states
from pytest_precision.formats import QuantizedTensor
from pytest_precision.formats.scaling import scale_from_amax
from pytest_precision.layouts import compute_in, resident
from pytest_precision.layouts.megatron.buffers import Bucket, Buffer
from pytest_precision.layouts.megatron.optimizer_engine import DistributedOptimizer
from pytest_precision.layouts.replicated import MasterEngine
from pytest_precision.modules.layer import Layer
from pytest_precision.modules.slots import DelayedScalingState


class Averaged(Engine):
    """Averages gradients of a loss that is over all tokens already."""

    def reduce_grads(self) -> None:
        super().reduce_grads()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.cell.world_size)


class LastTwice(Engine):
    """Sums the gradient of one tensor twice, as a parameter in two buckets has it."""

    def reduce_grads(self) -> None:
        super().reduce_grads()
        *_, last = (p.grad for p in self.model.parameters() if p.grad is not None)
        last.mul_(self.cell.world_size)


class PerToken(Engine):
    """Divides by the tokens of the step after the reduction, as Megatron's per-token loss does."""

    def forward_backward(self, step: int) -> None:
        self.optimizer.zero_grad()
        for number, microbatch in self.my_microbatches(step):
            total, _ = self.workload.loss(self.forward_model, microbatch)
            self.report_loss(number, total / self.step_tokens)
            total.backward()

    def reduce_grads(self) -> None:
        super().reduce_grads()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.step_tokens)


class SaysSo(PerToken):
    """Does the same, and says by what its local gradients are divided later."""

    def forward_backward(self, step: int) -> None:
        super().forward_backward(step)
        self.grad_factor = self.step_tokens


class HalfTheNorm(Engine):
    """A norm that leaves out gradients, as one of a single shard does."""

    def clip_grads(self) -> None:
        super().clip_grads()
        self.grad_norm = self.grad_norm / 2


class GrowsEachStep(Engine):
    """Doubles the loss scale after each step."""

    def optimizer_step(self) -> None:
        super().optimizer_step()
        assert self.scaler is not None
        self.scaler.scale *= 2


class CountsSkipped(Engine):
    """Counts a step that has overflowed as a good one."""

    def optimizer_step(self) -> None:
        assert self.scaler is not None
        good = self.scaler.good_steps
        super().optimizer_step()
        if not torch.isfinite(self.grad_norm):
            self.scaler.good_steps = good + 1


class Constant(LossScale):
    """A loss scale with a rule of its own, which is no contradiction."""

    def update(self, *, overflowed: bool) -> None:
        """Halve the scale after an overflow alone."""
        self.scale /= 2 if overflowed else 1


class OwnScale(Engine):
    """Scales its losses by another rule."""

    def forward_backward(self, step: int) -> None:
        if type(self.scaler) is LossScale:
            self.scaler = Constant()
        super().forward_backward(step)


class OtherWeights(Engine):
    """Reads other weights than it holds, as a copy that is not kept up to date has."""

    def forward_backward(self, step: int) -> None:
        held = [parameter.detach().clone() for parameter in self.model.parameters()]
        with torch.no_grad():
            for parameter in self.model.parameters() if step > 1 else ():
                parameter.mul_(1.5)
        super().forward_backward(step)
        with torch.no_grad():
            for parameter, own in zip(self.model.parameters(), held, strict=True):
                parameter.copy_(own)


class EvaluatesHalf(Engine):
    """Evaluates other weights than it trains, which is no contradiction."""

    def evaluate(self) -> None:
        held = [parameter.detach().clone() for parameter in self.model.parameters()]
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(0.5)
        super().evaluate()
        with torch.no_grad():
            for parameter, own in zip(self.model.parameters(), held, strict=True):
                parameter.copy_(own)


class AveragesFrozen(Engine):
    """Has a weight of its model follow another one, as a momentum encoder's do."""

    @torch.no_grad()
    def update_weights(self) -> None:
        super().update_weights()
        blocks = self.model.get_submodule("blocks")
        first, frozen = (blocks.get_parameter(f"{number}.linear.weight") for number in (0, 2))
        frozen.lerp_(first, 0.1)


def averages_what_its_optimizer_has(workload: Workload, cell: Cell) -> Engine:
    """The same, where the optimizer is given all weights, and skips one without a gradient."""
    model = workload.model(cell)
    groups = workload.groups(model)
    groups[0]["params"].extend(own for own in model.parameters() if not own.requires_grad)
    return AveragesFrozen(workload, cell, model, torch.optim.AdamW(groups))


class FixedTemperature(workloads.mlp):
    """Freezes its only weight of one element."""

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        model.get_parameter("temperature").requires_grad_(False)
        return model

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        trained = [own for own in model.parameters() if own.requires_grad]
        return [{"params": trained, "lr": 1e-3}]


class Anneals(Engine):
    """Lowers a frozen temperature, which is a factor of what it was, as any number is."""

    @torch.no_grad()
    def update_weights(self) -> None:
        super().update_weights()
        self.model.get_parameter("temperature").sub_(0.01)


class StaleBytes(Engine):
    """Goes on with the quantized weights of the first step."""

    def my_microbatches(self, step: int) -> Iterator[tuple[int, Any]]:
        for number, microbatch in super().my_microbatches(step):
            for layer in self.model.modules():
                if isinstance(layer, Layer) and step > 1:
                    layer.is_first_microbatch = False
            yield number, microbatch


class GatheredElsewhere(DistributedOptimizer):
    """Gathers bytes one element too far, as ranks do that have other bounds of their shards.

    These are the first 64 of a bucket: further on there is padding, whose NaN would be found first.
    """

    def _start(self, buffer: Buffer, bucket: Bucket) -> None:
        super()._start(buffer, bucket)
        if bucket.works and buffer.gathers_bytes:
            buffer.wait(bucket)
            for flat in buffer.gathered.values():
                own = flat[bucket.span.start : bucket.span.start + 64]
                own.copy_(own.roll(1))


class Truncated(MasterEngine):
    """Cuts masters off instead of rounding them."""

    @torch.no_grad()
    def _round_masters(self) -> None:
        for parameter, master in self._pairs():
            bits = master.view(torch.int32) & ~0xFFFF
            parameter.copy_(bits.view(torch.float32))


class ReadBack(MasterEngine):
    """Makes masters of the weights before each step but the first, which loses their low bits."""

    def forward_backward(self, step: int) -> None:
        with torch.no_grad():
            for parameter, master in self._pairs() if step > 1 else ():
                master.copy_(parameter)
        super().forward_backward(step)


class ReadBackLate(MasterEngine):
    """Does so before the gradients are clipped, when the forward has read its weights."""

    def clip_grads(self) -> None:
        with torch.no_grad():
            for parameter, master in self._pairs() if self.optimizer.state else ():
                master.copy_(parameter)
        super().clip_grads()


class Offloads(MasterEngine):
    """Moves masters to other memory between two steps, and clamps one number to one of bf16."""

    def forward_backward(self, step: int) -> None:
        with torch.no_grad():
            for master in self.master_model.parameters():
                master.data = master.data.clone()
            self.master_model.get_parameter("temperature").clamp_(max=0.5)
        super().forward_backward(step)


class RolledBack(DelayedScalingState):
    """Makes the newest amax the one that is forgotten first."""

    def update(self) -> None:
        recorded = self.history.clone()
        super().update()
        self.history.copy_(recorded.roll(1))
        self.history[:1] = 0.0


class Halved(DelayedScalingState):
    """Leaves a margin that no recipe has."""

    def update(self) -> None:
        super().update()
        self.scale.div_(2)


class OneStepOld(DelayedScalingState):
    """Casts with the scale before the one that is due."""

    def update(self) -> None:
        due = getattr(self, "due", self.scale.clone())
        super().update()
        self.due = self.scale.clone()
        self.scale.copy_(due)


class NewScale(DelayedScalingState):
    """Casts with the scale of the very tensor, as current scaling does."""

    def quantize(self, x: torch.Tensor, *args: Any, **options: Any) -> QuantizedTensor:
        held = self.scale.clone()
        self.scale.copy_(scale_from_amax(self.amaxes(x), 448.0))
        made = super().quantize(x, *args, **options)
        self.scale.copy_(held)
        return made


class HalfTheAmax(DelayedScalingState):
    """Records another amax than that of what it casts."""

    def update(self) -> None:
        self.history[:1].div_(2)
        super().update()


def delayed(workload: Workload, cell: Cell, *, kind: type[DelayedScalingState]) -> Engine:
    engine = layouts.master_adamw(workload, cell)
    for _, slot in scaling_states(engine.model):
        slot.__class__ = kind
    return engine


def here(workload: Workload, cell: Cell, *, kind: type[Engine] = Engine) -> Engine:
    model, compute = resident(workload.model(cell), cell)
    optimizer = torch.optim.AdamW(workload.groups(model))
    return kind(workload, cell, model, optimizer, forward_model=compute_in(model, compute))


def there(workload: Workload, cell: Cell, *, kind: type[Engine] = Engine) -> Engine:
    """The same on the other side, as a shared helper has it."""
    return here(workload, cell, kind=kind)


def trains_frozen(workload: Workload, cell: Cell) -> Engine:
    model = workload.model(cell)
    return TrainsFrozen(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def gathered_elsewhere(workload: Workload, cell: Cell) -> Engine:
    return GatheredElsewhere.of(workload, cell, overlap_param_gather=True)


def on_masters(workload: Workload, cell: Cell, *, kind: type[MasterEngine]) -> Engine:
    master = workload.model(cell)
    model, _ = resident(deepcopy(master), cell)
    return kind(workload, cell, model, master)


def on_masters_too(workload: Workload, cell: Cell, *, kind: type[MasterEngine]) -> Engine:
    """The same on the other side."""
    return on_masters(workload, cell, kind=kind)
