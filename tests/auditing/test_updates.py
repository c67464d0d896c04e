"""Parameters below fp32: found where updates are rounded away, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_precision import NoSetupError, audit
from pytest_precision.optim import AnyPrecisionAdamW, FusedAdam

Rules = Callable[..., dict[str, str]]

TORCH = [
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type)
    and kind.__module__.startswith("torch.optim")
    # These need a closure, sparse gradients, and matrices alone; the last one keeps factors.
    and kind.__name__ not in ("Optimizer", "LBFGS", "SparseAdam", "Muon", "Adafactor")
]
"""The optimizers of torch that keep tensors in the shapes of parameters."""


def test_torch_adamw_on_bf16(model: nn.Module) -> None:
    """The finding says what is stored in what, how much is lost, and both remedies."""
    model.bfloat16()
    (found,) = audit(model, torch.optim.AdamW(model.parameters(), lr=1e-5)).at_least("warning")
    assert (found.rule, found.severity) == ("update-below-fp32", "error")
    assert found.reason.startswith("torch AdamW on bf16 parameters: moments and update are bf16")
    assert "of updates as large as the learning rate (1e-05) about 9" in found.reason
    assert "MixedPrecisionPolicy(param_dtype=torch.bfloat16)" in found.remedy
    assert "FusedAdam(master_weights=True)" in found.remedy
    assert found.names == tuple(name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adam,
        torch.optim.NAdam,
        torch.optim.SGD,
        torch.optim.Adagrad,
        torch.optim.RMSprop,
        lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
        FusedAdam,
        lambda parameters: AnyPrecisionAdamW(parameters, use_kahan_summation=False),
    ],
    ids=["Adam", "NAdam", "SGD", "Adagrad", "RMSprop", "momentum", "FusedAdam", "no Kahan"],
)
def test_any_optimizer_on_bf16(model: nn.Module, rules: Rules, make: Any) -> None:
    """Not only torch's Adam: all that keep no master and no compensation."""
    model.bfloat16()
    assert rules(model, make(model.parameters())) == {"update-below-fp32": "error"}


@pytest.mark.parametrize("options", [{}, {"store_param_remainders": True}], ids=["fp32", "int16"])
def test_masters_in_the_optimizer(model: nn.Module, options: Any) -> None:
    """FusedAdam with masters of its own is what the finding asks for."""
    model.bfloat16()
    found = audit(model, FusedAdam(model.parameters(), master_weights=True, **options))
    assert found.findings == ()
    assert {row.master.split(" in the ")[1] for row in found.rows} == {"optimizer's state"}


def test_what_an_optimizer_declares_is_what_it_keeps(model: nn.Module) -> None:
    """An audit before the first step says what one after it says."""
    model.bfloat16()
    makes: list[Any] = [
        *TORCH,
        lambda own: torch.optim.SGD(own, momentum=0.9),
        lambda own: torch.optim.RMSprop(own, momentum=0.9, centered=True),
        lambda own: torch.optim.AdamW(own, amsgrad=True),
        lambda own: FusedAdam(own, master_weights=True, exp_avg_dtype=torch.bfloat16),
        AnyPrecisionAdamW,
    ]
    for make in makes:
        optimizer = make([*model.parameters()])
        before = audit(model, optimizer).rows
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert [row.states for row in before] == [
            row.states for row in audit(model, optimizer).rows
        ]


def test_a_model_without_values(rules: Rules) -> None:
    """On the meta device, where large models are looked at before they are loaded."""
    with torch.device("meta"):
        model = nn.Linear(8, 4).bfloat16()
    (found,) = audit(model, torch.optim.AdamW(model.parameters(), lr=1e-5)).at_least("warning")
    assert found.reason == "torch AdamW on bf16 parameters: moments and update are bf16"
    masters = [own.detach().float().requires_grad_() for own in model.parameters()]
    assert rules(model, torch.optim.AdamW(masters)) == {}
    assert rules(model, torch.optim.AdamW(masters[:1])) == {"in-no-group": "warning"}


def test_a_lazy_model_has_no_shapes(rules: Rules) -> None:
    """What is to be done is said."""
    model = nn.LazyLinear(4)
    with pytest.raises(
        NoSetupError, match="got a lazy module before its first forward; call the model"
    ):
        rules(model, torch.optim.SGD(model.parameters()))


def test_fp32_storage(model: nn.Module, rules: Rules) -> None:
    """Whatever the optimizer."""
    for make in (torch.optim.AdamW, torch.optim.SGD, FusedAdam):
        assert rules(model, make(model.parameters(), lr=1e-5)) == {}


def test_frozen_bf16_under_trained_fp32(model: nn.Module, rules: Rules) -> None:
    """What is not trained may be stored in anything, as under an adapter."""
    model[0].bfloat16().requires_grad_(False)
    assert rules(model, torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)) == {}


def test_compensated_updates_lose_their_decay(model: nn.Module) -> None:
    """AnyPrecisionAdamW holds updates, but not a decay below 2**-9 per step."""
    model.bfloat16()
    held = AnyPrecisionAdamW(model.parameters(), lr=1e-2, weight_decay=0.25)
    lost = AnyPrecisionAdamW(model.parameters(), lr=1e-2, weight_decay=0.19)
    assert audit(model, held).at_least("warning") == []
    (found,) = audit(model, lost).at_least("warning")
    assert (found.rule, found.severity) == ("decay-lost", "warning")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    lost.step()
    assert all(map(torch.equal, before, model.parameters()))
    held.step()
    assert not any(map(torch.equal, before[:1], model.parameters()))


def test_states_in_few_digits_are_a_note(model: nn.Module) -> None:
    """Where the weights themselves are held."""
    model.bfloat16()
    optimizer = FusedAdam(model.parameters(), master_weights=True, exp_avg_dtype=torch.bfloat16)
    (found,) = audit(model, optimizer).findings
    assert (found.severity, found.reason) == ("note", "FusedAdam keeps exp_avg in bf16")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16], ids=["fp8", "fp16"])
def test_states_of_eight_bits_are_few_digits(model: nn.Module, dtype: torch.dtype) -> None:
    """They lie in bytes, and their scales are no states of their own."""
    optimizer = FusedAdam(
        model.bfloat16().parameters(), master_weights=True, exp_avg_sq_dtype=dtype
    )
    found = audit(model, optimizer)
    words = {torch.uint8: "codes", torch.float16: "fp16"}[dtype]
    assert [one.reason for one in found.findings] == [f"FusedAdam keeps exp_avg_sq in {words}"]
    states = (("exp_avg", "fp32"), ("exp_avg_sq", words), ("master_param", "fp32"))
    assert {row.states for row in found.rows} == {states}


def test_states_in_codes_and_scales() -> None:
    """Torchao's 8-bit states call themselves fp32; their numbers are not."""
    torchao_optim = pytest.importorskip("torchao.optim")
    from torchao.optim.subclass_fp8 import OptimStateFp8

    large = nn.Linear(128, 64, bias=False)
    optimizer = torchao_optim.AdamWFp8(large.parameters(), weight_decay=0)
    # As its first step makes it, which takes half a minute to compile.
    made = {name: OptimStateFp8.zeros(large.weight.shape) for name in ("exp_avg", "exp_avg_sq")}
    optimizer.state[large.weight] = {"step": torch.tensor(1.0)} | made
    (found,) = audit(large, optimizer).findings
    assert found.reason == "AdamWFp8 keeps exp_avg in fp8, exp_avg_sq in fp8"


class TeStates(torch.optim.Adam):
    """Says what it will keep as Transformer Engine's FusedAdam does, which needs a GPU."""

    def __init__(self, params: Any, **options: bool) -> None:
        super().__init__(params, weight_decay=0.0)
        self.name_to_dtype_map = dict.fromkeys(
            ("exp_avg", "exp_avg_sq", "master_param"), torch.float32
        )
        self.master_weights = options.get("master_weights", False)
        self.store_param_remainders = options.get("store_param_remainders", False)


@pytest.mark.parametrize(
    ("options", "master"),
    [
        ({}, "none"),
        ({"master_weights": True}, "fp32 in the optimizer's state"),
        (
            {"master_weights": True, "store_param_remainders": True},
            "fp32 as 16 more bits in the optimizer's state",
        ),
    ],
    ids=["none", "fp32", "remainders"],
)
def test_transformer_engine_on_bf16(model: nn.Module, options: Any, master: str) -> None:
    """With masters of its own it loses nothing, in whichever form it keeps them."""
    found = audit(model.bfloat16(), TeStates(model.parameters(), **options))
    expected = [] if options else ["update-below-fp32"]
    assert [one.rule for one in found.findings] == expected
    assert {row.master for row in found.rows} == {master}


def test_masters_of_parameters_that_need_none(model: nn.Module) -> None:
    """Transformer Engine keeps them all the same, twice the memory; ours does not."""
    found = audit(model, TeStates(model.parameters(), master_weights=True))
    assert [(one.rule, one.severity) for one in found.findings] == [("master-doubled", "note")]
    assert {row.master for row in found.rows} == {"the parameter itself"}
    assert audit(model, FusedAdam(model.parameters(), master_weights=True)).findings == ()
    assert audit(model, TeStates(model.parameters())).findings == ()


class OwnStep(torch.optim.Optimizer):
    """Keeps nobody knows what."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("master_weight", parameter.float())


def test_an_unknown_optimizer_is_asked_after_a_step(model: nn.Module, rules: Rules) -> None:
    """Before it, nobody knows whether it keeps masters."""
    model.bfloat16()
    optimizer = OwnStep(model.parameters())
    assert rules(model, optimizer) == {"update-unknown": "warning"}
    optimizer.step()
    assert rules(model, optimizer) == {}


def test_stochastic_rounding(model: nn.Module, rules: Rules) -> None:
    """Torchao's optimizers lose nothing on average with it, and everything without."""
    pytest.importorskip("torchao")
    from torchao.optim import _AdamW

    model.bfloat16()
    assert rules(model, _AdamW(model.parameters(), bf16_stochastic_round=True)) == {}
    assert rules(model, _AdamW(model.parameters())) == {"update-unknown": "warning"}
