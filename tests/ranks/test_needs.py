"""What ranks serve alone: plain data, so that no rank is needed to see it."""

from __future__ import annotations

from functools import partial

import pytest

from pytest_precision import Cell, layouts, workloads
from pytest_precision.check.side import Side
from pytest_precision.matrix.declared import Declared
from pytest_precision.ranks import ImportPath
from pytest_precision.ranks.needs import Needs, code_of
from pytest_precision.ranks.state.environment import Environment


def layout(workload, cell, rate=1.0):
    return layouts.adamw(workload, cell)


def other(workload, cell):
    return layouts.adamw(workload, cell)


def workload(size=1):
    return workloads.mlp()


def code(layout, workload=workloads.mlp, swapped=None):
    paths = [None if f is None else ImportPath.of(f) for f in (layout, swapped, workload)]
    return code_of(*paths)


SAME = ImportPath.of(layout)


def test_the_packages_own_share_their_ranks():
    """Whatever is bound to them, as long as it is no code of the user's."""
    import torch

    bound = partial(layouts.fused_adam, store_param_remainders=True)
    sized = partial(workloads.gpt, dtype=torch.bfloat16)
    assert code(layouts.ddp) == code(bound) == code(layouts.adamw, sized) == ()


def test_a_layout_of_the_users_has_its_own():
    """Another function of the same module, or other bound arguments, is another layout."""
    assert code(layout) == (SAME,)
    found = {code(layout), code(other), code(partial(layout, rate=2.0)), code(layouts.adamw)}
    assert len(found) == 4
    assert code(partial(layout, rate=2.0)) == code(partial(layout, rate=2.0))


def test_a_workload_counts_where_it_is_the_users():
    """Then the two sides never meet, even if both layouts are the package's."""
    assert code(layout, partial(workloads.mlp)) == code(layout, workloads.gpt)
    assert code(layout, workload) == (SAME, ImportPath.of(workload))
    assert code(layouts.ddp, workload) != code(layouts.adamw, workload)
    assert code(layout, workload) != code(layout, partial(workload, size=2))


def test_a_function_of_the_users_that_is_bound_to_one_of_the_packages_counts():
    """It runs too."""
    assert code(partial(layouts.adamw, hook=layout)) != ()


def test_a_swap_brings_the_other_layout_along():
    """The ranks of the reference run the candidate too, so they are its own as well."""
    paths = ImportPath.of(layouts.adamw), ImportPath.of(layout), ImportPath.of(workloads.mlp)
    assert Side.of(*paths, Cell(sequence="train1")).needs.code == ()
    assert Side.of(*paths, Cell(sequence="train1-save-swap")).needs.code == paths[:2]


def test_functions_of_one_module_share_their_ranks():
    """But for what they declare."""
    needs = [Needs.of(ImportPath.of(f), Declared()) for f in (layout, partial(layout, 1), other)]
    assert needs[0] == needs[1] == needs[2]
    assert needs[0].code == (ImportPath(__name__, "", __file__),)
    assert Needs.of(SAME, Declared(fresh_ranks=True)) != needs[0]
    assert Needs.of(ImportPath.of(layouts.adamw), Declared()).code == ()


def test_the_environment_of_the_check_is_part_of_a_run(monkeypatch):
    """Recorded runs are kept by it: what a test sets later belongs to another one."""
    paths = SAME, SAME, ImportPath.of(workloads.mlp)
    before = Side.of(*paths, Cell())
    caller = Environment.now()
    monkeypatch.setenv("NVTE_PLANTED", "1")
    assert Side.of(*paths, Cell()) != before
    assert Side.of(*paths, Cell(), caller=caller) == before


def test_declarations_are_added_up():
    """A partial's to its function's, and the workload's to the layout's; the first wins."""
    inner = layouts.may_leave("a")(partial(layout))
    outer = layouts.fresh_ranks(layouts.may_leave("b")(partial(inner)))
    assert Declared.of(outer) == Declared((), True, ("b", "a"))
    assert Declared.of(layout, outer).fresh_ranks
    assert Declared.of(layout, workload) == Declared()


def test_patterns_are_text():
    """Anything else is refused with its value and type."""
    with pytest.raises(TypeError, match=r"expected patterns that are text but got 1 \(int\)"):
        layouts.may_leave(1)
