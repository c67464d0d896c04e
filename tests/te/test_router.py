"""Router: the experts, weights and gradients of plain softmax, sigmoid and topk in fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_precision.te import aux_loss, router
from pytest_precision.te.enums import NVTEQBHistogramMode, NVTERoutingMapFormat

BYTES, BITS = NVTERoutingMapFormat.BYTEMAP, NVTERoutingMapFormat.BITMAP_U8
TOKENS, EXPERTS, TOPK = 20, 13, 4
FUNCTIONS = ("softmax", "sigmoid", "sqrtsoftplus")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(made: Tensor, exact: Tensor) -> None:
    """Compare with fp64, by the error that fp32 arithmetic of this size has."""
    torch.testing.assert_close(made.double(), exact.double(), rtol=1e-5, atol=1e-6)


def scores_of(logits: Tensor, function: str) -> Tensor:
    if function == "softmax":
        return logits.softmax(-1)
    if function == "sigmoid":
        return logits.sigmoid()
    return torch.log1p(logits.exp()).sqrt()


def plain(logits: Tensor, function: str, late: bool, bias: Tensor | None = None) -> Tensor:
    """Return the weights that torch's topk gives, with a scaling of 2.5."""
    scores = logits if late else scores_of(logits, function)
    chosen = (scores if bias is None else scores + bias).topk(TOPK).indices
    weights = scores.gather(-1, chosen)
    if late:
        weights = weights.softmax(-1)
    elif function != "softmax":
        weights = weights / weights.sum(-1, keepdim=True)
    return torch.zeros_like(logits).scatter(-1, chosen, 2.5 * weights)


def routed(logits: Tensor, function: str = "softmax", **options: object) -> tuple[Tensor, ...]:
    known = {"early": True, "groups": None, "best": None, "factor": 2.5, "bias": None, "map": BYTES}
    known |= options
    return router.fused_topk_with_score_function_fwd(
        *(logits, TOPK, known["early"], known["groups"], known["best"], known["factor"]),
        *(function, known["bias"], known["map"], known.get("indices")),
    )


def gradient(
    forward: tuple[Tensor, ...], grad: Tensor, function: str, early: bool = True, **known: object
) -> Tensor:
    made = torch.empty_like(grad)
    router.fused_topk_with_score_function_bwd(
        *(forward[1], forward[2], grad, made, TOPK, early, 2.5, function),
        *(bool(known.get("dense")), known.get("map", BYTES)),
    )
    return made


CASES = [*((function, True) for function in FUNCTIONS), ("softmax", False)]


@pytest.mark.parametrize(("function", "early"), CASES)
def test_weights_and_gradients_are_those_of_plain_torch(function: str, early: bool) -> None:
    """For each score function, and a softmax before or after the choice."""
    logits, grad = drawn(TOKENS, EXPERTS), drawn(TOKENS, EXPERTS, seed=1)
    bias = None if function == "softmax" else drawn(EXPERTS, seed=2)
    exact = logits.double().requires_grad_()
    expected = plain(exact, function, function == "softmax" and not early, bias)
    forward = routed(logits, function, early=early, bias=bias)
    close(forward[0], expected.detach())
    assert torch.equal(forward[1], expected != 0)
    (of_logits,) = torch.autograd.grad(expected, exact, grad.double())
    close(gradient(forward, grad, function, early), of_logits)


def test_three_outputs_say_the_same() -> None:
    """A byte an expert, a bit an expert, and the numbers of the experts, best first."""
    logits, grad = drawn(TOKENS, EXPERTS), drawn(TOKENS, EXPERTS, seed=1)
    by_byte, by_bit = (routed(logits, map=kind) for kind in (BYTES, BITS))
    memory = torch.empty(TOKENS, TOPK, dtype=torch.int16)
    dense = routed(logits, indices=memory)
    assert dense[1] is memory
    assert torch.equal(memory.long(), logits.topk(TOPK).indices)
    assert by_bit[1].shape == (TOKENS, 2)
    for expert in range(EXPERTS):
        set_bits = (by_bit[1][:, expert // 8] >> (expert % 8)) & 1
        assert torch.equal(set_bits.bool(), by_byte[1][:, expert])
    made = gradient(by_byte, grad, "softmax")
    assert torch.equal(gradient(by_bit, grad, "softmax", map=BITS), made)
    assert torch.equal(gradient(dense, grad, "softmax", dense=True), made)


@pytest.mark.parametrize(
    ("groups", "best"), [(3, 3), (5, 2), (2, 4), (6, 1), (0, 2)], ids=lambda value: str(value)
)
def test_groups_that_the_kernels_refuse_are_refused(groups: int, best: int) -> None:
    """Of 12 experts 4 are chosen: 3 divide no 4, 5 no 12, 4 of 2 groups, 4 of one of 2, none."""
    with pytest.raises(
        RuntimeError, match=f"but got topk=4, group_topk={best}, num_groups={groups}"
    ):
        routed(drawn(TOKENS, 12), "sigmoid", groups=groups, best=best)


def test_experts_come_from_the_best_groups() -> None:
    """A group is as good as the sum of its best experts."""
    logits = torch.tensor([[9.0, -9.0, -9.0, 5.0, 4.9, -9.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0]])
    _, mask, _ = routed(logits, "sigmoid", groups=4, best=2, bias=torch.zeros(12))
    assert mask.nonzero()[:, 1].tolist() == [3, 4, 6, 7]


def test_of_equal_scores_the_first_expert_is_chosen() -> None:
    """As the kernels' selection does."""
    _, mask, _ = routed(torch.zeros(2, EXPERTS))
    assert mask.nonzero()[:, 1].tolist() == [0, 1, 2, 3] * 2


def test_weights_are_rounded_once() -> None:
    """In bf16, all arithmetic is fp32's until the weights are stored."""
    logits = drawn(TOKENS, EXPERTS).bfloat16()
    low, high = routed(logits, "sigmoid"), routed(logits.float(), "sigmoid")
    assert low[0].dtype is torch.bfloat16
    assert torch.equal(low[0], high[0].bfloat16())
    assert torch.equal(low[2], high[2])


@pytest.mark.parametrize("mode", NVTEQBHistogramMode)
def test_quantile_balancing_counts_how_much_experts_miss(mode: int) -> None:
    """The best score that was not chosen, minus each expert's own without bias, in uniform bins."""
    logits, bias = drawn(TOKENS, EXPERTS), drawn(EXPERTS, seed=1) / 4
    histogram, bounds = torch.ones(EXPERTS, 6, dtype=torch.int32), torch.tensor([-0.5, 0.7])
    probs, mask, scores, cutoff, counted = router.fused_topk_with_score_function_qb_fwd(
        *(logits, TOPK, 2.5, bias, BYTES, None, histogram, bounds, mode, False)
    )
    without = routed(logits, "sigmoid", bias=bias)
    assert torch.equal(probs, without[0])
    assert torch.equal(mask, without[1])
    assert torch.equal(cutoff, (scores + bias).topk(TOPK + 1).values[:, -1])
    expected = torch.ones(EXPERTS, 6, dtype=torch.int32)
    for token in range(TOKENS):
        for expert in range(EXPERTS):
            place = int((cutoff[token] - scores[token, expert] + 0.5) // 0.2)
            expected[expert, min(max(place, 0), 5)] += 1
    assert counted is histogram
    assert torch.equal(counted, expected)


def test_what_the_kernels_refuse_is_refused() -> None:
    """A function, a number of experts, a bias or bounds that they do not take."""
    logits, bias = drawn(TOKENS, EXPERTS), torch.zeros(EXPERTS)
    with pytest.raises(RuntimeError, match=r"score function in \(sigmoid, softmax, .*score_func"):
        routed(logits, "relu")
    with pytest.raises(RuntimeError, match=r"number of experts up to 3 but got topk=4"):
        routed(logits[:, :3])
    with pytest.raises(RuntimeError, match=r"beside an expert_bias but got score_function"):
        routed(logits, "softmax", bias=bias)
    with pytest.raises(RuntimeError, match=r"finite with lower < upper but got bin_bounds"):
        router.fused_topk_with_score_function_qb_fwd(
            *(logits, TOPK, 1.0, bias, BYTES, None, torch.zeros(EXPERTS, 6, dtype=torch.int32)),
            *(torch.tensor([1.0, 0.0]), 0, False),
        )


@pytest.mark.parametrize("function", FUNCTIONS)
def test_scores_of_the_auxiliary_loss(function: str) -> None:
    """All experts' scores have the sum 1, and the gradient is plain torch's."""
    logits, grad = drawn(TOKENS, EXPERTS), drawn(TOKENS, EXPERTS, seed=1)
    exact = logits.double().requires_grad_()
    raw = scores_of(exact, function)
    expected = raw / raw.sum(-1, keepdim=True)
    (of_logits,) = torch.autograd.grad(expected, exact, grad.double())
    scores, mask, kept = aux_loss.fused_score_for_moe_aux_loss_fwd(logits, TOPK, function, BYTES)
    close(scores, expected.detach())
    assert torch.equal(mask, routed(logits, function)[1])
    made = torch.empty_like(logits)
    aux_loss.fused_score_for_moe_aux_loss_bwd(kept, grad, made, TOPK, function)
    close(made, of_logits)


@pytest.mark.parametrize("tokens", [TOKENS, torch.tensor(TOKENS)])
def test_the_auxiliary_loss_and_its_gradient(tokens: int | Tensor) -> None:
    """The loss is E c / (k T**2) times the sum of scores times loads, of which a batch has many."""
    probs, load = drawn(TOKENS, 2 * EXPERTS).softmax(-1), torch.arange(2 * EXPERTS)
    exact = probs.double().requires_grad_()
    expected = (exact.sum(0) * load).sum() * EXPERTS * 0.01 / TOPK / TOKENS**2
    (of_probs,) = torch.autograd.grad(expected, exact, torch.tensor(3.0, dtype=torch.float64))
    loss, kept = aux_loss.fused_moe_aux_loss_fwd(
        *(probs, load, tokens, EXPERTS, TOKENS, 2 * EXPERTS, TOPK, 0.01)
    )
    close(loss, expected.detach())
    made = aux_loss.fused_moe_aux_loss_bwd(kept, load, TOKENS, 2 * EXPERTS, torch.tensor(3.0))
    close(made, of_probs)
