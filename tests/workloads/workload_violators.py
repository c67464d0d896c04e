"""Workloads that lack one property each: a test that accepts them would prove nothing."""

from __future__ import annotations

from typing import Any

import torch
import workload_properties as properties
from torch import nn
from torch.nn import functional as F

from pytest_precision.workloads.batches import IGNORED, Microbatch
from pytest_precision.workloads.language_model import Gpt
from pytest_precision.workloads.perceptron import Mlp


class EvenWidth(Mlp):
    def __init__(self) -> None:
        super().__init__(width=64)


class EvenTotal(Mlp):
    def __init__(self) -> None:
        super().__init__(depth=2)


class FullShards(Mlp):
    def model(self, cell):
        return nn.Linear(13, 7)


class UnitGains(Gpt):
    def model(self, cell):
        model = super().model(cell)
        nn.init.ones_(model.norm.weight)
        return model


class ZeroBias(Gpt):
    def model(self, cell):
        model = super().model(cell)
        nn.init.zeros_(model.blocks[1].up.bias)
        return model


class Unrounded(Mlp):
    def model(self, cell):
        model = super().model(cell)
        nn.init.normal_(model.reader.weight)
        return model


class Rounded(Mlp):
    def __init__(self) -> None:
        super().__init__(rounded=True)


class OwnSeed(Mlp):
    def model(self, cell):
        torch.manual_seed(5)
        return super().model(cell)


class FiveMicrobatches(Mlp):
    def microbatches(self, cell, step):
        return super().microbatches(cell, step)[:5]


class AlwaysSix(Mlp):
    def microbatches(self, cell, step):
        return super().microbatches(cell.replace(world_size=1), step)


class NeverOneEach(Mlp):
    def microbatches(self, cell, step):
        return super().microbatches(cell, 1)


class EqualLengths(Mlp):
    def microbatches(self, cell, step):
        generator = torch.Generator().manual_seed(step)
        return [
            Microbatch(
                torch.randn(3, 11, 13, generator=generator),
                torch.randint(7, (3, 11), generator=generator),
            )
            for _ in range(6)
        ]


class SameCounts(Mlp):
    """Every microbatch is another, but each step has equally many tokens."""

    def microbatches(self, cell, step):
        shapes = super().microbatches(cell, 1)
        generator = torch.Generator().manual_seed(step)
        return [m._replace(inputs=torch.randn(m.inputs.shape, generator=generator)) for m in shapes]


class ZeroPadding(Gpt):
    def microbatches(self, cell, step):
        return [
            m._replace(inputs=m.inputs.masked_fill(m.targets == IGNORED, 0))
            for m in super().microbatches(cell, step)
        ]


class SameData(Mlp):
    def microbatches(self, cell, step):
        return super().microbatches(cell, 1)


class TrainedOnEvaluation(Mlp):
    def microbatches(self, cell, step):
        return super().microbatches(cell, max(step, 1))


class GlobalData(Mlp):
    def microbatches(self, cell, step):
        return [
            m._replace(inputs=m.inputs + torch.randn(13)) for m in super().microbatches(cell, step)
        ]


class GlobalDraw(Mlp):
    def microbatches(self, cell, step):
        torch.rand(1)
        return super().microbatches(cell, step)


class MeanLoss(Mlp):
    def loss(self, model, microbatch):
        loss, tokens = super().loss(model, microbatch)
        return loss / tokens, tokens


class LowPrecisionLoss(Mlp):
    def loss(self, model, microbatch):
        logits, targets = model(microbatch.inputs).flatten(0, 1), microbatch.targets.flatten()
        return F.cross_entropy(logits, targets, reduction="sum"), self.tokens(microbatch)


class PaddingCounts(Mlp):
    def tokens(self, microbatch):
        return microbatch.targets.numel()


class Unused(Mlp):
    def model(self, cell):
        model = super().model(cell)
        model.unused = nn.Linear(5, 5)
        return model


class Altered(Mlp):
    """A workload whose head is wrapped in another module."""

    wrapper: Any

    def model(self, cell):
        model = super().model(cell)
        model.head = nn.Sequential(model.head, self.wrapper())
        return model


class Counting(nn.Module):
    """Remembers how often it was called."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Unwritten(nn.Module):
    """Reads memory that nobody wrote, as a padded buffer may."""

    def forward(self, x):
        return x + 0 * torch.empty_like(x)


class Upcasting(nn.Module):
    """Computes in fp32 whatever its parameters are."""

    def forward(self, x):
        return x.float()


class WithDropout(Altered):
    wrapper = nn.Dropout


class Stateful(Altered):
    wrapper = Counting


class Uninitialised(Altered):
    wrapper = Unwritten


class Upcast(Altered):
    wrapper = Upcasting


class OneGroup(Mlp):
    def groups(self, model):
        return [{"params": list(model.parameters()), "lr": self.lr, "weight_decay": 0.1}]


class SameRates(Mlp):
    def groups(self, model):
        return [group | {"lr": self.lr} for group in super().groups(model)]


class SameDecays(Mlp):
    def groups(self, model):
        return [group | {"weight_decay": 0.1} for group in super().groups(model)]


class Forgotten(Mlp):
    def groups(self, model):
        matrices, vectors = super().groups(model)
        return [matrices, vectors | {"params": vectors["params"][1:]}]


class NoClipping(Mlp):
    max_norm = None


class IdleClipping(Mlp):
    max_norm = 2.0


class NeverQuiet(Mlp):
    """The fourth step is like any other."""

    def microbatches(self, cell, step):
        return super().microbatches(cell, step + 10 * (step == 4))


class ConstantRate(Mlp):
    def scheduler(self, optimizer):
        return None


class Plateau(Mlp):
    def scheduler(self, optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda steps: min(1, (steps + 1) / 3))


class Extinct(Mlp):
    def scheduler(self, optimizer):
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda steps: (steps + 1) / 3 if steps < 3 else 0.9**steps
        )


class TinyRate(Mlp):
    def __init__(self) -> None:
        super().__init__(lr=1e-5)


class NothingFrozen(Mlp):
    def model(self, cell):
        return super().model(cell).requires_grad_(True)


class Unlearnable(Mlp):
    def examples(self, generator, shapes, step):
        inputs, targets = super().examples(generator, shapes, step)
        return inputs, targets.flatten()[torch.randperm(targets.numel())].view_as(targets)


VIOLATIONS = [
    (properties.odd_sizes, EvenWidth),
    (properties.odd_sizes, EvenTotal),
    (properties.empty_shard, FullShards),
    (properties.odd_vectors, UnitGains),
    (properties.odd_vectors, ZeroBias),
    (properties.bf16_values, Unrounded),
    (properties.bf16_values, Rounded),
    (properties.seeded_by_caller, OwnSeed),
    (properties.shared_microbatches, FiveMicrobatches),
    (properties.shared_microbatches, AlwaysSix),
    (properties.shared_microbatches, NeverOneEach),
    (properties.uneven_tokens, EqualLengths),
    (properties.uneven_tokens, SameCounts),
    (properties.ragged, EqualLengths),
    (properties.nonzero_padding, ZeroPadding),
    (properties.fresh_data, SameData),
    (properties.fresh_data, TrainedOnEvaluation),
    (properties.own_generator, GlobalData),
    (properties.own_generator, GlobalDraw),
    (properties.token_sum, MeanLoss),
    (properties.token_sum, LowPrecisionLoss),
    (properties.token_sum, PaddingCounts),
    (properties.complete_gradients, Unused),
    (properties.same_bits_in_company, WithDropout),
    (properties.same_bits_in_company, Stateful),
    (properties.poison_proof, Uninitialised),
    (properties.functional, Upcast),
    (properties.two_groups, OneGroup),
    (properties.two_groups, SameRates),
    (properties.two_groups, SameDecays),
    (properties.two_groups, Forgotten),
    (properties.partly_frozen, NothingFrozen),
    (properties.clipping_bites, NoClipping),
    (properties.clipping_bites, IdleClipping),
    (properties.clipping_bites, NeverQuiet),
    (properties.countless, NeverQuiet),
    (properties.moving_rate, ConstantRate),
    (properties.moving_rate, Plateau),
    (properties.moving_rate, Extinct),
    (properties.moving_weights, TinyRate),
    (properties.moving_weights, Forgotten),
    (properties.learnable, Unlearnable),
]
