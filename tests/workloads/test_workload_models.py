"""What is particular about a model: the tied embedding, the idle expert, the cast of inputs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from workload_measures import CELL, seeded, train

from pytest_precision.workloads.language_model import Gpt
from pytest_precision.workloads.mixture import Moe
from pytest_precision.workloads.perceptron import Mlp
from pytest_precision.workloads.recipe import TrainingRecipe
from pytest_precision.workloads.routing import Router, over_capacity

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


# --- gpt ----------------------------------------------------------------------------------------


class Untied(Gpt):
    def model(self, cell: Any) -> nn.Module:
        model = super().model(cell)
        model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
        return model


def is_tied(model: nn.Module) -> bool:
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    return (
        model.head.weight is model.embedding.weight
        and {"embedding.weight", "head.weight"} <= set(names)
        and len(names) == len(list(model.parameters())) + 1
    )


@DTYPES
def test_gpt_embedding_is_tied(dtype: torch.dtype) -> None:
    """Embedding and head are one parameter, and stay one in another dtype."""
    assert is_tied(seeded(Gpt()).to(dtype))
    assert not is_tied(seeded(Untied()).to(dtype))


def test_gpt_embedding_gets_both_gradients() -> None:
    """Tokens that occur in no input get a gradient through the head, the others two."""
    gradients = []
    for workload in (Gpt(), Untied()):
        model = seeded(workload)
        workload.loss(model, workload.microbatches(CELL, 1)[0])[0].backward()
        gradients.append((model.embedding.weight.grad, model.head.weight.grad))
    (tied, _), (embedding, head) = gradients
    assert embedding.count_nonzero()
    assert head.count_nonzero()
    torch.testing.assert_close(tied, embedding + head)


def test_gpt_is_causal() -> None:
    """A token's logits do not depend on the tokens after it, but on those before it."""
    model = seeded(Gpt())
    tokens = torch.arange(14).view(2, 7)
    changed = tokens.clone()
    changed[:, 4] += 20
    same = torch.isclose(model(tokens), model(changed)).all(-1).all(0)
    assert same.tolist() == [True] * 4 + [False] * 3


# --- moe ----------------------------------------------------------------------------------------


class AlwaysBusy(Moe):
    def examples(self, generator: Any, shapes: Any, step: int) -> Any:
        return super().examples(generator, shapes, 1)


class AlwaysIdle(Moe):
    def examples(self, generator: Any, shapes: Any, step: int) -> Any:
        return super().examples(generator, shapes, 0)


def busy_microbatches(workload: Moe, model: nn.Module, step: int) -> list[int]:
    """Number of microbatches of `step` in which each block's last expert has tokens."""
    busy = [0] * len(model.blocks)
    for microbatch in workload.microbatches(CELL, step):
        before = [int(block.load[-1]) for block in model.blocks]
        model.zero_grad()
        workload.loss(model, microbatch)[0].backward()
        for index, block in enumerate(model.blocks):
            expert = block.experts[-1]
            got_tokens = int(block.load[-1]) > before[index]
            assert all(bool(p.grad.any()) == got_tokens for p in expert.parameters())
            busy[index] += got_tokens
    return busy


def idle_expert(workload: Moe, model: nn.Module) -> bool:
    """Whether one microbatch in odd steps, and none in even ones, occupies the last expert."""
    return all(set(busy_microbatches(workload, model, s)) == {s % 2} for s in range(5))


@DTYPES
def test_moe_expert_is_idle_in_even_steps(dtype: torch.dtype) -> None:
    """The last expert has tokens, and a gradient, in one microbatch of each odd step only."""
    assert idle_expert(Moe(), seeded(Moe()).to(dtype))
    for violator in (AlwaysBusy(), AlwaysIdle()):
        assert not idle_expert(violator, seeded(violator).to(dtype))


def test_moe_expert_stays_idle_when_trained() -> None:
    """Training the router does not change when the last expert is idle."""
    model = seeded(Moe())
    train(Moe(), model, steps=12)
    assert idle_expert(Moe(), model)


def test_moe_busy_microbatch_wanders() -> None:
    """Another microbatch, so another rank, occupies the expert each time."""
    workload = Moe()
    rare = [
        [bool((m.inputs >= 47).any()) for m in workload.microbatches(CELL, step)].index(True)
        for step in (1, 3, 5, 7)
    ]
    assert rare == [0, 1, 2, 3]


def test_moe_other_experts_have_work() -> None:
    """Every expert is chosen by some token of a step: routing is not decided by a constant."""
    workload, model = Moe(), seeded(Moe())
    for microbatch in workload.microbatches(CELL, 1):
        workload.loss(model, microbatch)
    for block in model.blocks:
        assert block.load.all()


def test_moe_load_counts_training_tokens() -> None:
    """The buffer counts two experts a token in training, and nothing in evaluation."""
    workload, model = Moe(), seeded(Moe())
    microbatches = workload.microbatches(CELL, 1)
    for mode in (True, False):
        model.train(mode)
        for microbatch in microbatches:
            workload.loss(model, microbatch)
    tokens = sum(microbatch.inputs.numel() for microbatch in microbatches)
    assert [int(block.load.sum()) for block in model.blocks] == [2 * tokens] * 2
    counters = [name for name, buffer in model.named_buffers() if not buffer.is_floating_point()]
    assert counters == ["blocks.0.load", "blocks.1.load"]


@pytest.mark.parametrize("experts", [3, 5, 7])
def test_moe_experts_drop_some_tokens(experts: int) -> None:
    """In each step, but fewer than half; what is dropped counts nothing."""
    workload = Moe(experts=experts)
    model = seeded(workload)
    for step in range(1, 5):
        dropped: list[list[Tensor]] = [[] for _ in model.blocks]
        for microbatch in workload.microbatches(CELL, step):
            workload.loss(model, microbatch)
            for block, its in zip(model.blocks, dropped, strict=True):
                its.append(block.dropped.flatten())
        assert all(0 < torch.cat(its).float().mean() < 0.5 for its in dropped)
    block.capacity = 0.0
    x = torch.randn(2, 5, workload.width)
    assert torch.equal(block(x, torch.zeros(2, 5, dtype=torch.bool)), x)


def test_moe_drops_the_smallest_shares_and_knows_the_margin() -> None:
    """Of equal ones the later; where an expert has room, nothing can change that by a little."""
    chosen = torch.tensor([[0, 1], [0, 2], [0, 1], [0, 2]])
    shares = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.75, 0.25], [0.6, 0.4]])
    dropped, margin = over_capacity(chosen, shares, 2)
    assert dropped.tolist() == [[False, False], [True, False], [False, False], [True, False]]
    assert margin.tolist() == pytest.approx([0.3, 0.15, 0.15, 0.15])
    dropped, margin = over_capacity(chosen, shares, 3)
    assert dropped.nonzero().tolist() == [[3, 0]]
    assert margin.tolist() == pytest.approx([0.3, 0, 0.15, 0])
    dropped, margin = over_capacity(chosen, shares, 4)
    assert not dropped.any()
    assert margin.isinf().all()


def test_moe_keeps_the_logits_of_routers_small() -> None:
    """The auxiliary loss is a part of the loss, and a model can be copied after it."""
    workload = Moe()
    model = seeded(workload)
    microbatch = workload.microbatches(CELL, 1)[0]
    loss, _ = workload.loss(model, microbatch)
    assert type(copy.deepcopy(model)) is type(model)
    cross_entropy, _ = TrainingRecipe.loss(workload, model, microbatch)
    assert 0.01 < float(loss - cross_entropy) / float(loss) < 0.5


def test_moe_needs_three_experts() -> None:
    """With two experts, an ordinary token would have to go to the reserved one."""
    with pytest.raises(ValueError, match=r"more than 2 experts.*experts=2 \(int\)"):
        Moe(experts=2)
    seeded(Moe(experts=3))


@DTYPES
def test_moe_ties_go_to_the_first_expert(dtype: torch.dtype) -> None:
    """Equal logits choose the lowest indices; a rare token chooses the last expert first."""
    router = Router(5, 29).to(dtype)
    nn.init.zeros_(router.logits.weight)
    nn.init.zeros_(router.logits.bias)
    rare = torch.arange(400) == 7
    chosen, shares = router(torch.randn(400, 29, dtype=dtype), rare)
    assert chosen[rare].tolist() == [[4, 0]]
    assert chosen[~rare].unique(dim=0).tolist() == [[0, 1]]
    assert shares.unique().tolist() == [0.5]


# --- mlp ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_mlp_casts_its_inputs(dtype: torch.dtype) -> None:
    """fp32 features are cast to the dtype of the weight that reads them."""
    features = Mlp().microbatches(CELL, 1)[0].inputs
    assert features.dtype == torch.float32
    assert seeded(Mlp()).to(dtype)(features).dtype == dtype


def test_plain_linear_does_not_cast() -> None:
    """Without the cast, a bf16 model refuses the features."""
    model = seeded(Mlp()).bfloat16()
    model.reader.__class__ = nn.Linear
    with pytest.raises(RuntimeError, match="dtype"):
        model(Mlp().microbatches(CELL, 1)[0].inputs)
