"""What a test replaces in its own process does not reach the ranks, and is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import in_this_process  # noqa: F401
import pytest
from written import read_report

Run = Callable[..., pytest.RunResult]

NET = """
import functools
import types

import torch

from pytest_precision import Engine

FLAG = 1e-2
BETAS = (0.9, 0.999)
CALLS = 0
SEEN = {}
READY = False
_tool = None


CONFIG = types.SimpleNamespace(lr=1e-2)
TABLE = {"lr": 1e-2}
SET_BY_CONFTEST = 0


class Net:
    EPS = 1e-8

    @staticmethod
    def lr():
        return FLAG


class Child(Net):
    pass


class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


def betas():
    return BETAS


@functools.lru_cache
def cached(x):
    return x


def used():
    global CALLS, READY, _tool
    CALLS += 1
    READY = True
    SEEN[CALLS] = cached(CALLS)
    import decimal
    _tool = decimal.Decimal


def set_flag(value):
    global FLAG
    FLAG = value


def reads(workload, cell):
    assert SET_BY_CONFTEST == 1, "expected ranks to import conftest.py"
    model = workload.model(cell)
    optimizer = torch.optim.AdamW(
        workload.groups(model), lr=Child.lr(), betas=betas(), eps=Net.EPS
    )
    return Engine(workload, cell, model, optimizer)
"""

CONFTEST = """
import net

net.SET_BY_CONFTEST = 1
"""

SUITE = """
import types
from unittest import mock

import net
import pytest
from pytest_precision import layouts, workloads

def check(parity):
    other = parity.cell.replace(x=1)
    parity.check(net.reads, net.reads, workload=workloads.mlp, reference_cell=other)


@pytest.mark.parametrize(("name", "value"), [
    ("net.FLAG", 5e-2),
    ("net.FLAG", "text"),
    ("net.BETAS", (0.8, 0.999)),
    ("net.betas", lambda: (0.8, 0.9)),
    ("net.Net.EPS", 1e-4),
    ("net.Net.lr", staticmethod(lambda: 5e-2)),
    ("net.Child.lr", staticmethod(lambda: 5e-2)),
    ("torch.nn.functional.gelu", lambda x: x),
    ("torch.nn.Linear.forward", lambda self, x: x),
    ("torch.optim.AdamW.step", lambda self: None),
])
@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_replaced(parity, monkeypatch, name, value):
    monkeypatch.setattr(name, value)
    check(parity)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_inside_an_object(parity, monkeypatch):
    monkeypatch.setattr(net.CONFIG, "lr", 5e-2)
    check(parity)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_inside_a_mapping(parity):
    with mock.patch.dict(net.TABLE, lr=5e-2):
        check(parity)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_inside_a_function(parity, monkeypatch):
    monkeypatch.setattr(net.betas, "__defaults__", (1,))
    check(parity)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_removed(parity, monkeypatch):
    monkeypatch.delattr("net.betas")
    check(parity)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_set_by_a_function(parity, monkeypatch):
    monkeypatch.setattr(net, "FLAG", net.FLAG)
    net.set_flag(5e-2)
    check(parity)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_mock(parity):
    with mock.patch("net.betas", return_value=(0.8, 0.9)):
        check(parity)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_state(parity):
    net.used()
    net.helper = types.SimpleNamespace()
    net.SEEN["more"] = 1
    check(parity)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_state_of_torch(parity):
    # The first object of a class of optimizers has torch wrap the class's step.
    net.Own([net.torch.zeros(1, requires_grad=True)])
    check(parity)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_undone(parity, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(net, "FLAG", 5e-2)
    check(parity)
"""

LATE = """
import pytest
from pytest_precision import layouts, workloads


def relu(x):
    return x


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_assigned_by_hand(parity):
    import torch.nn.functional as functions
    before, functions.relu = functions.relu, relu
    try:
        parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)
    finally:
        functions.relu = before


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_patched(parity, monkeypatch):
    monkeypatch.setattr("torch.nn.functional.gelu", lambda x: x)
    parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], x=[0])
def test_nothing_is_replaced(parity):
    parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)
"""

OPTIONS = ("--precision-matrix", "--precision-device=cpu", "--precision-report=report")


def ran(run: Run, *options: str) -> dict[str, tuple[str, str]]:
    """Run the suite, and return outcome and reason of each test by its name."""
    run(*OPTIONS, "-Werror::FutureWarning", *options)
    cells = read_report("report/report.json")["cells"]
    return {cell["nodeid"].partition("::")[2]: (cell["outcome"], cell["reason"]) for cell in cells}


@pytest.mark.slow
def test_a_replacement_that_no_rank_sees_is_refused(pytester: pytest.Pytester) -> None:
    """It is named with what it was and is, and with the ways out; a module's own state is none.

    Ranks have what a conftest.py sets, without which no side of this suite passes.
    """
    pytester.makepyfile(net=NET, test_suite=SUITE, conftest=CONFTEST)
    found = ran(pytester.runpytest_inprocess)
    refused = {name: reason for name, (outcome, reason) in found.items() if outcome == "error"}
    assert sorted(set(found) - set(refused)) == sorted(
        name for name in found if name.startswith(("test_state", "test_undone"))
    )
    assert {found[name][0] for name in set(found) - set(refused)} == {"pass"}, found
    assert len(refused) == 16
    text = "\n".join(refused.values())
    for words in (
        "net.FLAG was 0.01, is 0.05",
        "net.FLAG was 0.01, is 'text'",
        "net.BETAS was (0.9, 0.999), is (0.8, 0.999)",
        "net.betas was net:betas, is test_suite:<lambda>",
        "net.betas was net:betas, is absent",
        "net.betas was net:betas, is <MagicMock",
        "net.Net.EPS was 1e-08, is 0.0001",
        "net.Net.lr was net:Net.lr, is test_suite:<lambda>",
        "net.Child.lr was net:Net.lr, is test_suite:<lambda>",
        "torch.nn.functional.gelu was torch._C._nn:gelu, is test_suite:<lambda>",
        "Linear.forward was torch.nn.modules.linear:Linear.forward, is test_suite:<lambda>",
        "around torch.optim.adam:Adam.step, is test_suite:<lambda>",
        "net.CONFIG.lr was 0.01, is 0.05",
        "net.TABLE['lr'] was 0.01, is 0.05",
        "net.betas.__defaults__ was None, is (1,)",
    ):
        assert words in text
    for reason in refused.values():
        assert "an axis of the matrix or an environment variable" in reason
        assert "--precision-ranks=inline" in reason


@pytest.mark.slow
def test_ranks_in_the_same_process_see_it(pytester: pytest.Pytester) -> None:
    """With inline ranks a replacement reaches the side, and is no error."""
    pytester.makepyfile(net=NET, test_suite=SUITE, conftest=CONFTEST)
    options = ("--precision-ranks=inline", "-oprecision_lines=off")
    found = ran(pytester.runpytest_inprocess, *options, "-k", "FLAG-0.05 or EPS or undone")
    assert [outcome for outcome, _ in found.values()].count("error") == 0, found
    (reason,) = (reason for name, (_, reason) in found.items() if "EPS" in name)
    assert "the optimizer has eps=0.0001" in reason


@pytest.mark.slow
def test_torch_that_the_test_itself_imports_first(pytester: pytest.Pytester) -> None:
    """Though nobody saw torch before: a patch by its own record, an assignment by who wrote it."""
    pytester.makepyfile(test_late=LATE)
    found = [*ran(pytester.runpytest_subprocess).values()]
    assert [outcome for outcome, _ in found] == ["error", "error", "pass"], found
    assert "got torch.nn.functional.relu is test_late:relu" in found[0][1]
    assert "got torch.nn.functional.gelu was torch._C._nn:gelu, is test_late:" in found[1][1]
