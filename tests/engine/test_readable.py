"""What an observed tensor is stored in is shown, and what cannot be read is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from pytest_precision import Cell, Chunk, Engine, Observation, layouts, whole, workloads
from pytest_precision.engine.readable import stored
from pytest_precision.trace.moment import INIT
from pytest_precision.trace.writer import TraceWriter


def freed() -> Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


UNREADABLE = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "layout=torch.sparse_coo"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "layout=torch.sparse_csr"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2)]), "a nested tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
        "a nested tensor",
    ),
    "meta": (lambda: torch.ones(3, device="meta"), "device=meta"),
    "fake": (lambda: FakeTensorMode().from_tensor(torch.ones(3)), "a FakeTensor without memory"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(3)), "a Tensor without memory"),
    "freed": (freed, "a Tensor without memory"),
    "opaque": (lambda: TwoTensor(torch.ones(3), torch.ones(3)), "a TwoTensor without memory"),
}


@pytest.mark.parametrize(("make", "problem"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_named(make, problem: str, tmp_path: Path) -> None:
    """Whoever makes the observation: read all the same, it would end the rank by a signal."""
    expected = f"expected exp_avg 'weight' to be dense, with memory of its own, but got {problem}; "
    with pytest.raises(ValueError, match=expected):
        whole("exp_avg", "weight", make())
    seen = Observation("exp_avg", "weight", make(), (3,), Chunk((0,), (3,)))
    with TraceWriter(tmp_path, 0) as writer, pytest.raises(ValueError, match=expected):
        writer.add(INIT, [seen])


def test_a_subclass_is_opened() -> None:
    """Also one within another; one that has no `dequantize` has no value of its own."""
    one, other = torch.zeros(2), torch.ones(2)
    inner = TwoTensor(one, other)
    opened = [*stored("param", TwoTensor(inner, inner))]
    assert [part.kind for part in opened] == ["param.a.a", "param.a.b", "param.b.a", "param.b.b"]
    assert opened[0].tensor is one
    assert opened[1].tensor is other


@pytest.mark.parametrize("make", [Tensor.to_sparse, Tensor.to_sparse_csr, Tensor.to_sparse_csc])
def test_a_sparse_tensor_is_shown_with_its_zeros(make: Callable[[Tensor], Tensor]) -> None:
    """Such as the gradient of an embedding with `sparse=True`."""
    (part,) = stored("grad", make(torch.eye(3)))
    assert part.kind == "grad"
    assert torch.equal(part.tensor, torch.eye(3))


def test_an_empty_tensor_can_be_read() -> None:
    """It has no address, and nothing is read there."""
    assert whole("param", "shard", torch.empty(0)).shape == (0,)


def with_complex_weight() -> nn.Module:
    model = nn.Linear(2, 2)
    model.spectrum = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    return model


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (with_complex_weight, r"real parameters but got spectrum \(torch.complex64\)"),
        (lambda: nn.Sequential(nn.Embedding(3, 2, sparse=True)), "gradients but got 0 with sparse"),
        (lambda: nn.Sequential(nn.EmbeddingBag(3, 2, sparse=True)), "but got 0 with sparse=True"),
    ],
)
def test_what_an_engine_cannot_train_is_refused(make, words: str) -> None:
    """Before it trains something else."""
    model = make()
    with pytest.raises(ValueError, match=words):
        Engine(workloads.mlp(), Cell("fp32"), model, torch.optim.AdamW(model.parameters()))


class Spectral(workloads.mlp):
    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        model.spectrum = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        return model


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("layout", ["adamw", "fused_adam", "any_precision_adamw"])
def test_layouts_refuse_it_by_name(layout: str) -> None:
    """Before an optimizer complains of a dtype, or a buffer takes the real part."""
    with pytest.raises(ValueError, match=r"real parameters but got spectrum \(torch.complex64\)"):
        getattr(layouts, layout)(Spectral(), Cell("bf16", "bf16"))
