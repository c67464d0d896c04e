"""Options of parameter groups: decay on vectors, and what the optimizer does not read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_precision import audit
from pytest_precision.auditing.checks.group_options import refused_option
from pytest_precision.optim import FusedAdam


def test_decay_on_vectors_is_a_note(model: nn.Module) -> None:
    """AdamW decays everything unless it is told otherwise."""
    (found,) = audit(model, torch.optim.AdamW(model.parameters())).findings
    assert (found.rule, found.severity) == ("decay-on-vectors", "note")
    assert found.names == ("0.bias", "1.weight", "1.bias", "2.bias")


def test_vectors_in_a_group_of_their_own(model: nn.Module) -> None:
    """Without decay."""
    matrices = [own for own in model.parameters() if own.dim() > 1]
    vectors = [own for own in model.parameters() if own.dim() == 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    assert audit(model, torch.optim.AdamW(groups)).findings == ()


def test_an_option_that_nobody_reads(model: nn.Module) -> None:
    """FusedAdam has no `foreach`, torch's AdamW has."""
    groups = [{"params": [*model.parameters()], "foreach": False, "is_expert": True}]
    (found,) = audit(model, FusedAdam(groups)).at_least("warning")
    assert found.reason.startswith("group 0 says foreach=False, an option that FusedAdam does not")
    assert audit(model, torch.optim.AdamW(groups)).at_least("warning") == []


def test_an_option_that_is_refused(model: nn.Module) -> None:
    """What Python says of it becomes a finding; other errors stay errors."""
    with pytest.raises(TypeError) as refused:
        FusedAdam(model.parameters(), foreach=False)  # type: ignore[call-arg]
    found = refused_option(refused.value)
    assert found is not None
    assert (found.rule, found.names) == ("option-refused", ("FusedAdam",))
    with pytest.raises(TypeError) as other:
        nn.Linear(2, 2, colour="red")  # type: ignore[call-arg]
    assert refused_option(other.value) is None
