"""Values: what Python objects hold, leaf by leaf."""

from __future__ import annotations

import logging

import torch

from pytest_precision.engine.values import as_tensor, leaves


def names(value: object) -> list[str]:
    return [path for path, _ in leaves(value)]


def test_an_entry_is_called_by_its_key() -> None:
    """Texts, small numbers and what is made of them are the same in every process."""
    assert names({"a": 1, 2: 1, (3, "b"): 1, torch.float32: 1}) == [
        *(".a", ".2", ".(3, 'b')", ".torch.float32")
    ]


def test_an_entry_whose_key_may_be_an_address_is_called_by_its_place() -> None:
    """Another process has the same memory elsewhere, and no entry is missing there."""
    held = torch.zeros(2)
    for key in (id(held), (held.data_ptr(), 2), held, object()):
        assert names({"first": 1, key: 2}) == [".first", ".#1"]


def test_a_view_of_what_has_become_part_of_a_graph_is_not_read() -> None:
    """Torch raises where it is asked for the graph of such a view, which ended the run."""
    base = torch.ones(4)
    with torch.no_grad():
        view = base[:2]
    assert as_tensor(view) is not None
    base.mul_(torch.nn.Parameter(torch.ones(4)))
    assert as_tensor(view) is None
    assert names([view, 1]) == [".1"]


def test_a_logger_is_not_looked_into() -> None:
    """It has all loggers of the process, whose levels and caches decide about no number."""
    held = {"log": logging.getLogger("of a module"), "out": logging.StreamHandler(), "rate": 0.5}
    assert names(held) == [".rate"]


def test_a_text_that_utf_8_has_not_is_read() -> None:
    """The name of a file, in a setting, may be no text; half of a surrogate pair tells its byte."""
    one, other = as_tensor("data/\udcff"), as_tensor("data/\udcfe")
    assert one is not None
    assert other is not None
    assert one.shape == other.shape
    assert not one.equal(other)
