"""Names of tensors are those of the model, whatever it is wrapped in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import unchanged
from checked import Recorded, named
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

NAMES = [name for name, _ in unchanged.Net().named_parameters()]


def looped(trained: nn.Module, **given: object) -> Callable[..., None]:
    """Make a script that trains a model."""

    def script(cell, record):  # type: ignore[no-untyped-def]
        with record(**given):
            unchanged.run(unchanged.accumulating(trained, 9))

    return script


def checkpointed(model: unchanged.Net) -> nn.Module:
    model.first = checkpoint_wrapper(model.first)
    return model


WRAPPERS = [
    DistributedDataParallel,
    fully_shard,
    lambda model: FullyShardedDataParallel(
        model, use_orig_params=True, device_id=torch.device("cpu")
    ),
    lambda model: torch.compile(model, backend="eager"),
    checkpointed,
    lambda model: DistributedDataParallel(torch.compile(checkpointed(model), backend="eager")),
]


@pytest.mark.parametrize("wrap", WRAPPERS, ids=["ddp", "fsdp2", "fsdp1", "compile", "ac", "all"])
def test_wrappers_leave_no_trace_in_names(
    recorded: Recorded, wrap: Callable[[nn.Module], nn.Module]
) -> None:
    """The same tensors have the same names, so that two wrappers can be compared."""
    trace = recorded(looped(wrap(unchanged.Net())))
    for kind in ("used_param", "reduced_grad", "final_grad", "exp_avg", "master", "param"):
        assert sorted({*named(trace, kind, 2)}) == sorted(NAMES), kind


def test_a_second_model_is_named_by_its_number(recorded: Recorded) -> None:
    """Tensors of two models do not meet under one name."""

    def two(cell, record):  # type: ignore[no-untyped-def]
        body, head = nn.Linear(3, 5), nn.Linear(5, 1)
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        with record():
            while True:
                head(body(torch.ones(2, 3))).sum().backward()
                optimizer.step()

    trace = recorded(two)
    assert named(trace, "final_grad") == ["weight", "bias", "model2.weight", "model2.bias"]


def test_a_model_that_is_never_called_is_given(recorded: Recorded) -> None:
    """Its parts have its names, then."""

    def parts(cell, record):  # type: ignore[no-untyped-def]
        model = nn.ModuleDict({"a": nn.Linear(3, 1)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record({"net": model}):
            while True:
                model["a"](torch.ones(2, 3)).sum().backward()
                optimizer.step()

    assert named(recorded(parts), "used_param") == ["net.a.weight", "net.a.bias"]


def test_a_part_that_is_called_before_its_model_has_a_name_in_it(recorded: Recorded) -> None:
    """It has the same name in all steps, whichever is called first in them."""

    def part_first(cell, record):  # type: ignore[no-untyped-def]
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record():
            while True:
                model(model[1](torch.ones(1, 3))).sum().backward()
                optimizer.step()

    trace = recorded(part_first)
    names = ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert [sorted(named(trace, "used_param", step)) for step in (1, 2)] == [names, names]
    assert sorted(named(trace, "param", 0)) == names


def test_what_no_module_holds_is_named_by_its_place(recorded: Recorded) -> None:
    """It is compared all the same, and the trace says so."""

    def masters(cell, record):  # type: ignore[no-untyped-def]
        model = nn.Linear(3, 1)
        copies = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        optimizer = torch.optim.AdamW(copies, lr=0.1)
        with record():
            while True:
                model(torch.ones(2, 3)).sum().backward()
                for copy, parameter in zip(copies, model.parameters(), strict=True):
                    copy.grad = parameter.grad
                optimizer.step()

    trace = recorded(masters)
    places = ["param_groups.0.params.0", "param_groups.0.params.1"]
    assert named(trace, "exp_avg") == places
    assert "param_groups.0.params.0 and 1 more" in trace.header.unobservable["unnamed"]


def test_a_weight_that_is_no_model_is_refused(recorded: Recorded) -> None:
    """The message shows what was given."""
    with pytest.raises(TypeError, match=r"expected a module or a dict.* but got model=3 \(int\)"):
        recorded(looped(nn.Linear(1, 1), model=3))


def test_a_model_beside_one_that_is_there_still_is_told(recorded: Recorded) -> None:
    """The names are then those of a second model, and the way out is named."""
    trace = recorded(partial(unchanged.rebuilt, kept=True), steps=4)
    assert "model2.head.bias" in named(trace, "exp_avg", 4)
    assert "@script(resume=function)" in trace.header.unobservable["names"]
