"""Weights under several names."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import nn

from pytest_precision import audit


class Tied(nn.Module):
    """A language model as Hugging Face's describe themselves."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.config = SimpleNamespace(tie_word_embeddings=True)
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def test_a_tied_weight_is_a_note() -> None:
    """It has one row and both names."""
    model = Tied(tied=True)
    audited = audit(model, torch.optim.SGD(model.parameters()))
    (found,) = audited.findings
    assert (found.severity, found.names) == ("note", ("embedding.weight", "head.weight"))
    assert len(audited.rows) == 1


def test_wrappers_have_no_part_in_the_names_of_a_tie() -> None:
    """As in the table."""
    model = Tied(tied=True)
    wrapped = torch.compile(model)
    (found,) = audit(wrapped, torch.optim.SGD(model.parameters())).findings
    assert found.names == ("embedding.weight", "head.weight")


def test_a_broken_tie(rules: Callable[..., dict[str, str]]) -> None:
    """The model says that it ties, and has two tensors."""
    model = Tied(tied=False)
    assert rules(model, torch.optim.SGD(model.parameters())) == {"tie-broken": "error"}
    model.config.tie_word_embeddings = False
    assert rules(model, torch.optim.SGD(model.parameters())) == {}
