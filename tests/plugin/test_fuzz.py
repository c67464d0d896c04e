"""--precision-fuzz: each matrix test has one more item, whose cells are drawn."""

from __future__ import annotations

import in_this_process  # noqa: F401
import pytest
from hypothesis import core

from pytest_precision.options import Settings
from pytest_precision.plugin import fuzz
from pytest_precision.plugin.collection import Collection

# Its first evaluation changes a moment, which no cell of the test shows.
SUITE = """
    import pytest
    from torch.optim import AdamW
    from functools import partial
    from pytest_precision import Engine, layouts, workloads

    small = partial(workloads.mlp, width=7, depth=1)

    class ForgetsTheMoment(Engine):
        def evaluate(self):
            super().evaluate()
            for state in self.optimizer.state.values():
                state["exp_avg"].zero_()

    def forgets(workload, cell):
        model = workload.model(cell)
        return ForgetsTheMoment(workload, cell, model, AdamW(workload.groups(model)))

    @pytest.mark.precision_matrix(precision=["fp32"], primary_weight=["fp32"], width=[1, 2])
    def test_forgets(cell, parity):
        parity.check(forgets, layouts.adamw, workload=small)

    @pytest.mark.precision_matrix(precision=["fp32"], world_size=[1, 9999])
    def test_sound(cell, parity):
        parity.check(layouts.ddp, layouts.adamw, workload=small)

    def test_plain():
        pass
"""


def test_a_failure_is_the_simplest_cell_to_paste(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells of the tests themselves all pass."""
    pytester.makepyfile(SUITE)
    monkeypatch.setattr(core, "global_force_seed", None)  # which the option sets for good
    found = pytester.runpytest_inprocess(
        *("--precision-matrix", "--precision-fuzz=5", "--precision-ranks=inline", "-rA"),
        "-oprecision_lines=off",  # naming a line would import torch's compiler
        *("-p", "hypothesispytest"),
        "--hypothesis-seed=1",  # five draws of another seed may have no evaluation
    )
    found.assert_outcomes(passed=5, failed=1, skipped=1)
    found.stdout.fnmatch_lines(
        [
            "E   exp_avg differs after eval, which follows step 1, all zero*",
            "*To have this cell, paste above the test: @pytest.mark.precision_matrix("
            "precision=[[]'fp32'[]], sequence=[[]'train-eval'[]], width=[[]1[]])",
            "*Draw again with: pytest --precision-matrix --precision-fuzz 5 *[[]drawn[]]*",
            "*PASSED *::test_sound[[]drawn[]]",
        ]
    )


def test_a_selection_is_one_of_drawn_cells_too(pytester: pytest.Pytester) -> None:
    """A test of which nothing is selected has none."""
    pytester.makepyfile(SUITE)
    options = ("--precision-matrix", "--precision-fuzz=2", "--collect-only", "-q")
    found = pytester.runpytest_inprocess(*options, "--precision-select", "width=2")
    found.stdout.fnmatch_lines(["*test_forgets[[]fp32-fp32-width_2[]]", "*test_forgets[[]drawn[]]"])
    found.stdout.no_fnmatch_line("*test_sound*")


def test_without_hypothesis_the_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.setattr(fuzz, "find_spec", lambda name: None)
    with pytest.raises(pytest.UsageError, match=r"expected hypothesis .* pip install '.*\[fuzz\]'"):
        fuzz.Fuzz(Collection(Settings(fuzz=2)))
