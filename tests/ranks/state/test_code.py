"""Code that a job replaces, and data that it leaves in modules of the user's own, are named."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import code_to_watch as user
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from pytest_precision import PrecisionLeakWarning
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.state.code import Code


@pytest.fixture
def code() -> Iterator[Code]:
    """That of this process, which has it again after the test."""
    found = Code()
    yield found
    found.put_back([])


def replace_step() -> None:
    torch.optim.AdamW.step = user.count  # type: ignore[assignment]


def replace_reduction() -> None:
    dist.all_reduce = dist.barrier  # type: ignore[assignment]


def add_operator() -> None:
    torch.Tensor.__matmul__ = user.gelu  # type: ignore[method-assign, assignment]


def remove_function() -> None:
    del F.gelu


CHANGES: list[tuple[Callable[[], object], str]] = [
    (lambda: setattr(F, "gelu", user.gelu), "torch.nn.functional.gelu was replaced by {}:gelu"),
    (lambda: setattr(F, "gelu", F.silu), "torch.nn.functional.gelu was replaced by torch.nn.funct"),
    (
        lambda: setattr(F, "gelu", torch.compile(F.gelu)),
        "torch.nn.functional.gelu was replaced by torch._dynamo.eval_frame:",
    ),
    (
        lambda: setattr(torch.nn.Linear, "forward", user.count),
        "torch.nn.Linear.forward was replaced by {}:count",
    ),
    (lambda: setattr(torch.nn, "GELU", user.Framework), "torch.nn.GELU was replaced by {}:Framew"),
    (replace_step, "torch.optim.AdamW.step was replaced by {}:count"),
    (
        replace_reduction,
        "torch.distributed.all_reduce was replaced by torch.distributed.c10d_logger:wrapper around "
        "torch.distributed.distributed_c10d:barrier",
    ),
    (add_operator, "torch.Tensor.__matmul__ was replaced by {}:gelu"),
    (lambda: setattr(torch.Tensor, "own", user.gelu), "torch.Tensor.own was absent, is {}:gelu"),
    (remove_function, "torch.nn.functional.gelu was removed"),
    (user.count, "{}.COUNT was 0, is 1"),
    (lambda: user.CALLS.append(7), "{}.CALLS was [], is [7]"),
    (lambda: user.TABLE["calls"].append(7), "{}.TABLE was {{'calls': []}}, is {{'calls': [7]}}"),
    (lambda: setattr(user, "gelu", user.count), "{}.gelu was replaced by {}:count"),
    (lambda: setattr(user, "late", 1), "{}.late was absent, is 1"),
    (lambda: setattr(user.Framework, "depth", 1), "{}.Framework.depth was 0, is 1"),
    (lambda: user.STATE.seen.append(7), "{}.STATE.seen was [], is [7]"),
    (lambda: setattr(user.gelu, "calls", 1), "{}.gelu.calls was absent, is 1"),
    (user.remembers, "{}.remembers.defaults was ({{}},), is ({{'calls': 1}},)"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_a_change_is_named_and_can_be_put_back(
    code: Code, change: Callable[[], object], words: str
):
    """The name, what it was and what it is; the functions by the module that they are from."""
    assert code.changes() == ()
    change()
    [leak] = code.changes()
    assert str(leak).startswith(words.format(user.__name__, user.__name__))
    code.put_back([])
    assert code.changes() == ()


def test_a_tensor_that_was_written_to_is_named(code: Code):
    """By the number of writes, since its values may be many."""
    user.WRITTEN.add_(1)
    [leak] = code.changes()
    assert str(leak) == f"{user.__name__}.WRITTEN was a Tensor with 0 writes, is tensor([1., 1.])"


def test_what_torch_does_by_itself_is_no_change(code: Code):
    """First uses of optimizers, schedulers and the compiler replace methods of torch's classes."""

    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    user.Own = Own  # type: ignore[attr-defined]
    code = Code()
    model = torch.nn.Linear(2, 2)
    torch.compile(model, backend="eager")(torch.ones(1, 2)).sum().backward()
    for kind in (torch.optim.AdamW, torch.optim.Adagrad, Own):
        optimizer = kind(model.parameters(), lr=0.1)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        optimizer.step()
    del user.Own  # type: ignore[attr-defined]
    assert [str(leak) for leak in code.changes()] == [f"{user.__name__}.Own was removed"]


def test_a_default_dtype_is_no_change_of_code(code: Code):
    """It replaces `torch.Storage`, and is looked at by itself."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    changes = code.changes()
    torch.set_default_dtype(before)
    assert changes == ()


def test_imports_and_what_the_compiler_writes_are_no_change(code: Code):
    """Modules, and names with two underscores in front."""
    user.os = os  # type: ignore[attr-defined]
    user.__compiled_fn_0 = user.gelu  # type: ignore[attr-defined]
    assert code.changes() == ()
    del user.os, user.__compiled_fn_0  # type: ignore[attr-defined]


def test_a_module_that_is_imported_later_is_new_until_it_is_taken_in(code: Code, tmp_path: Path):
    """What it was like at first is not known; what is installed has no such name."""
    (tmp_path / "planted_late.py").write_text("COUNT = 0")
    sys.path.insert(0, str(tmp_path))
    try:
        import planted_late
    finally:
        sys.path.remove(str(tmp_path))
    assert code.has_new()
    code.take_in()
    assert not code.has_new()
    planted_late.COUNT = 1
    assert [str(leak) for leak in code.changes()] == ["planted_late.COUNT was 0, is 1"]
    del sys.modules["planted_late"]


def test_what_others_change_between_two_jobs_is_how_the_next_begins(
    monkeypatch: pytest.MonkeyPatch, code: Code
):
    """They fill and replace what is theirs, replace code of torch, and import modules anew.

    `code` is put back first, to what is patched here, and then the patches are undone.
    """
    user.CALLS.append(7)
    monkeypatch.setattr(user, "Framework", type("Framework", (), {"__module__": user.__name__}))
    monkeypatch.setattr(F, "gelu", user.gelu)
    first, second, gone = (ModuleType("planted") for _ in range(3))
    for count, module in enumerate((first, second, gone)):
        module.__file__, module.COUNT = user.__file__, count  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "again", first)
    monkeypatch.setitem(sys.modules, "gone", gone)
    code.renew()
    assert code.changes() == ()
    monkeypatch.setitem(sys.modules, "again", second)
    monkeypatch.delitem(sys.modules, "gone")
    code.renew()
    user.CALLS.append(8)
    user.Framework.depth = 1
    F.gelu = user.count  # type: ignore[assignment]
    for module in (first, second, gone):
        module.COUNT = 7  # type: ignore[attr-defined]
    found = sorted(str(leak).replace(user.__name__, "user") for leak in code.changes())
    code.put_back([])
    assert user.CALLS == [7]
    user.CALLS.clear()
    assert found == [
        "again.COUNT was 1, is 7",
        "torch.nn.functional.gelu was replaced by user:count",
        "user.CALLS was [7], is [7, 8]",
        "user.Framework.depth was absent, is 1",
    ]


def patch() -> int:
    F.gelu = user.gelu  # type: ignore[assignment]
    return os.getpid()


def count_calls() -> int:
    return user.count()


def import_late(folder: str) -> tuple[int, int]:
    sys.path.append(folder)
    import planted_counter

    sys.path.remove(folder)
    planted_counter.COUNT += 1
    return os.getpid(), planted_counter.COUNT


def process() -> int:
    return os.getpid()


def test_ranks_with_other_code_get_no_other_job(pool: RankPool):
    """The warning has the name, and the next job its own ranks."""
    line = f"rank 0, 1: torch.nn.functional.gelu was replaced by {user.__name__}:gelu"
    with pytest.warns(PrecisionLeakWarning, match=line):
        patched = pool.run(2, patch)
    assert set(patched).isdisjoint(pool.run(2, process))


def test_every_job_counts_from_the_same_number(pool: RankPool):
    """Whatever the jobs before it did to the module."""
    for _ in range(2):
        with pytest.warns(PrecisionLeakWarning, match=r"code_to_watch.COUNT was 0, is 1"):
            assert pool.run(1, count_calls) == [1]


def test_a_module_imported_in_the_middle_of_a_job_costs_its_ranks(pool: RankPool, tmp_path: Path):
    """A job that imports a module of the user's while it runs has its ranks for itself.

    Nobody knows how the module was at first, so that what the job changed in it cannot be told: the
    next job must not find it. New ranks do what the first ones did, and import it in the same place
    and no earlier, so that each counts from the same number. Nothing is said about it.
    """
    (tmp_path / "planted_counter.py").write_text("COUNT = 0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranks = {pool.run(1, import_late, str(tmp_path))[0] for _ in range(3)}
    assert len(ranks) == 3
    assert {count for _, count in ranks} == {1}


def test_inline_code_is_put_back():
    """There are no other ranks for the next job: it would be the one that finds it."""
    before = F.gelu
    with pytest.warns(PrecisionLeakWarning, match="functional.gelu was replaced"):
        RankPool("inline", timeout=30).run(1, patch)
    assert F.gelu is before


PLANTED_READER = """
import sys
import torch

AT_IMPORT = torch.are_deterministic_algorithms_enabled(), [*sys.argv], torch.rand(1).item()


def facts():
    return AT_IMPORT, torch.are_deterministic_algorithms_enabled()
"""


def test_modules_are_imported_before_the_state_of_torch_is_set(
    pool: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A module reads while it is imported what it read in pytest, and nothing of pytest's.

    So torch's settings are its own then, and those of ranks follow. Generators are seeded before,
    so that what a module draws is the same on all ranks. `sys.argv` has one empty word: a module
    that parses arguments finds none, where pytest's would have ended it.
    """
    (tmp_path / "planted_reader.py").write_text(PLANTED_READER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest", "--precision-matrix"])
    planted = importlib.import_module("planted_reader")
    first, second = pool.run(2, planted.facts)
    ((deterministic, argv, _), later) = first
    assert first == second
    assert (deterministic, argv, later) == (False, [""], True)
