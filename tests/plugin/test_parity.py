"""Whole sessions with real ranks: verdicts, reports and exit codes, plain and under xdist."""

from __future__ import annotations

import shlex
from xml.etree import ElementTree

import in_this_process  # noqa: F401
import pytest
from written import read_report

SUITE = """
import os
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

from pytest_precision import Engine, layouts, workloads


def bf16(workload, cell):
    model = workload.model(cell).to(torch.bfloat16)
    return Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def dies(workload, cell):
    if dist.get_rank() == 1:
        os._exit(3)
    return layouts.adamw(workload, cell)


def hangs(workload, cell):
    if dist.get_rank() == 1:
        time.sleep(600)
    dist.barrier()


def sum_of_ranks(weight=1):
    total = torch.tensor(dist.get_rank() * weight)
    dist.all_reduce(total)
    return total.item()


def raises():
    raise KeyError("on every rank")


@pytest.mark.precision_matrix(sequence=["train2"], world_size=[1, 2])
def test_agrees(parity):
    parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)


@pytest.mark.precision_matrix(precision=["bf16"], sequence=["train2"])
def test_diverges(parity):
    parity.check(bf16, layouts.master_adamw, workload=workloads.mlp)


@pytest.mark.precision_matrix(sequence=["train2"])
def test_proves_nothing(parity):
    parity.check(layouts.ddp, layouts.ddp, workload=workloads.mlp)


@pytest.mark.precision_matrix(sequence=["train2"], world_size=[2])
def test_dies(parity):
    parity.check(dies, layouts.adamw, workload=workloads.mlp)


@pytest.mark.precision_matrix(sequence=["train2"], world_size=[2], timeout=20)
def test_hangs(parity):
    parity.check(hangs, layouts.adamw, workload=workloads.mlp)


@pytest.mark.precision_matrix(sequence=["train2"], world_size=[2])
def test_agrees_after_all_that(parity):
    parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)


@pytest.mark.precision_matrix(sequence=["train2"])
def test_checks_nothing(parity):
    pass


@pytest.mark.precision_matrix(sequence=["train2"])
def test_skips(parity):
    pytest.skip("not today")


@pytest.mark.world_size(2)
def test_ranks(ranks):
    assert ranks.run(sum_of_ranks, weight=3) == [3, 3]
    with pytest.raises(Exception, match="KeyError: 'on every rank'"):
        ranks.run(raises)


def test_ranks_without_a_number(ranks):
    pass


@pytest.mark.world_size("2")
def test_ranks_with_a_wrong_number(ranks):
    pass
"""

RED_INLINE = ("--precision-matrix", "--precision-ranks=inline", "-oprecision_lines=off")
"""Options of a red cell whose message alone matters."""


def test_the_short_summary_names_the_divergence(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CI, where pytest cuts nothing, it is one line; and in 80 columns it has room for it."""
    pytester.makepyfile(test_suite=SUITE)
    monkeypatch.setenv("COLUMNS", "80")
    words = [*RED_INLINE, "-k", "test_diverges", "-p", "no:cacheprovider"]
    monkeypatch.delenv("CI", raising=False)
    result = pytester.runpytest_inprocess(*words)
    line = r"FAILED test_suite\.py::test_diverges\[bf16-train2\] - master differs before"
    result.stdout.re_match_lines_random([f"{line}.*"])
    monkeypatch.setenv("CI", "true")
    result = pytester.runpytest_inprocess(*words)
    result.stdout.re_match_lines_random([f"{line} the first step: .*"])
    text = " ".join(str(result.stdout).replace("\nE ", "\n").split())  # elsewhere it is wrapped
    assert text.count("is bfloat16 here, float32 in the reference") == 3
    assert str(result.stdout).count("is bfloat16 here, float32 in the reference") == 1
    assert str(result.stdout).count("Repeat with:") == 1


# With workers, CI has red cells, one with a death, and the reports in `modes/test_same_answers.py`.
@pytest.mark.parametrize(
    "distribution",
    [[], pytest.param(["-n", "2"], marks=pytest.mark.nightly)],
    ids=["plain", "xdist"],
)
def test_a_session_ends_as_its_cells_do(pytester: pytest.Pytester, distribution: list[str]) -> None:
    """Each failure is one test's, the others run, and every report says the same."""
    pytester.makepyfile(test_suite=SUITE)
    run = pytester.runpytest_subprocess if distribution else pytester.runpytest_inprocess
    result = run(
        "--precision-matrix", "--precision-report=out", "--junit-xml=out/junit.xml", *distribution
    )
    result.assert_outcomes(passed=4, failed=5, errors=2, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(
        [
            "E   master differs before the first step: *.weight is bfloat16 here,",
            "E     float32 in the reference",
            "E*train2: vacuous: the candidate and the reference are the same layout in the same*",
            "E*train2-w2: error: the candidate failed: rank 1 of 2 *died: exit status 3",
            "E*train2-w2: error: the candidate failed: *hung*20 s*",
            "vacuous: the test asked for `parity` and made no check; *",
            "*test_ranks_without_a_number: expected a marker with one int*got no marker*",
            "*expected a marker with one int from 1 but got world_size('2')*",
            "*= precision matrix =*",
        ]
    )
    cells = read_report("out/report.json")["cells"]
    outcomes = {cell["nodeid"].partition("::")[2]: cell["outcome"] for cell in cells}
    assert outcomes == {
        "test_agrees[train2-w1]": "pass",
        "test_agrees[train2-w2]": "pass",
        "test_diverges[bf16-train2]": "fail",
        "test_proves_nothing[train2]": "vacuous",
        "test_dies[train2-w2]": "error",
        "test_hangs[train2-w2]": "error",
        "test_agrees_after_all_that[train2-w2]": "pass",
        "test_checks_nothing[train2]": "fail",
        "test_skips[train2]": "skip",
    }
    junit = ElementTree.parse("out/junit.xml")
    properties = {
        case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
        for case in junit.iter("testcase")
    }
    assert properties["test_diverges[bf16-train2]"]["precision.divergence.kind"] == "master"
    assert properties["test_agrees[train2-w2]"]["precision.outcome"] == "pass"


def test_the_command_in_a_failure_repeats_it(pytester: pytest.Pytester) -> None:
    """Copied from the last line of the message, it runs that one cell."""
    pytester.makepyfile(test_suite=SUITE)
    command = ["--precision-matrix", "test_suite.py::test_diverges[bf16-train2]"]
    result = pytester.runpytest_inprocess(*command, *RED_INLINE)
    result.assert_outcomes(failed=1)
    assert f"Repeat with: pytest {command[0]} '{command[1]}'" in result.stdout.str()


def test_the_command_is_quoted_for_the_shell(pytester: pytest.Pytester) -> None:
    """An id may have quotes and dollar signs of its own."""
    pytester.makepyfile(
        test_quoted="""
        import pytest
        from pytest_precision import layouts, workloads


        @pytest.mark.precision_matrix(sequence=["train2"])
        @pytest.mark.parametrize("option", ["it's $HOME"])
        def test_same(parity, option):
            parity.check(layouts.adamw, layouts.adamw, workload=workloads.mlp)
        """
    )
    result = pytester.runpytest_inprocess("--precision-matrix")
    line = result.stdout.str().partition("Repeat with: ")[2].splitlines()[0]
    program, *command = shlex.split(line)
    assert program == "pytest"
    pytester.runpytest_inprocess(*command).assert_outcomes(failed=1)


def test_a_debugger_gets_the_rank(pytester: pytest.Pytester) -> None:
    """Inline, the one rank is the pytest process; more than one cannot be had and is skipped."""
    pytester.makepyfile(test_suite=SUITE)
    result = pytester.runpytest_inprocess(
        "--precision-matrix", "--precision-ranks=inline", "-k", "test_agrees", "-rs"
    )
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED*expected at most 1 ranks*but got world_size=2"])


def test_threads_may_check_at_once(pytester: pytest.Pytester) -> None:
    """They wait for each other; neither gets the other's ranks or recordings."""
    pytester.makepyfile(
        test_threads="""
        from concurrent.futures import ThreadPoolExecutor

        import pytest
        from pytest_precision import layouts, workloads


        @pytest.mark.precision_matrix(sequence=["train"])
        def test_two(parity):
            with ThreadPoolExecutor(2) as threads:
                candidates = layouts.ddp, layouts.fsdp2, layouts.ddp, layouts.fsdp2
                check = lambda c: parity.check(c, layouts.adamw, workload=workloads.mlp)
                assert [v.outcome for v in threads.map(check, candidates)] == ["pass"] * 4
        """
    )
    pytester.runpytest_inprocess("--precision-matrix").assert_outcomes(passed=1)


def test_names_do_not_steer_the_terminal(pytester: pytest.Pytester) -> None:
    """Control characters in the name of a tensor are shown as escape sequences."""
    pytester.makepyfile(
        test_names=f"""{SUITE.partition("def dies")[0]}

class Coloured(workloads.mlp):
    def model(self, cell):
        model = super().model(cell)
        model.register_parameter("red\\x1b[31m", torch.nn.Parameter(torch.ones(1, 1)))
        return model


@pytest.mark.precision_matrix(precision=["bf16"], sequence=["train2"])
def test_red(parity):
    parity.check(bf16, layouts.master_adamw, workload=Coloured)
"""
    )
    result = pytester.runpytest_inprocess(*RED_INLINE)
    result.stdout.fnmatch_lines(["*master differs before the first step: red\\x1b[[]31m is *"])
    assert "\x1b" not in result.stdout.str()
