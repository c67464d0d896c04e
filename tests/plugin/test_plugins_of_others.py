"""A judgement of another plugin, as its how-to page has it, refuses what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import in_this_process  # noqa: F401
import pytest

DOCS = Path(__file__).parents[2] / "docs"


def files_of(page: str) -> dict[str, str]:
    """The files of a page, by the names of their modules."""
    fence = re.compile(r"^```python\n# (\w+)\.py\n(.*?)^```$", re.M | re.S)
    return dict(fence.findall((DOCS / page).read_text()))


FILES = files_of("how-to/write-a-judgement.md")

LOOPS = """
    import pytest
    import torch
    from pytest_precision import script

    def train(record, scale):
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record():
            for _ in range(9):
                optimizer.zero_grad()
                (model(scale * torch.ones(2, 3)) / scale).square().mean().backward()
                optimizer.step()

    @script
    def quiet(cell, record):
        train(record, 1.0)

    @script
    def loud(cell, record):
        train(record, 1e6)

    @pytest.mark.parametrize("loop", [quiet, loud])
    @pytest.mark.precision_matrix(sequence=["train2"])
    def test_loop(cell, parity, loop):
        parity.repeat(loop)
"""

SMALL = "-oprecision_lines=off", "--precision-matrix", "-q", "-rA"


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A suite of another plugin, with an engine and a loop that it refuses, and two that it not."""
    pytester.makepyfile(test_loop=LOOPS, **FILES)
    return pytester


def test_it_refuses_the_planted_runs_alone(suite: pytest.Pytester) -> None:
    """Both sides agree in each cell, and nothing else refuses any."""
    found = suite.runpytest_inprocess(*SMALL, "--precision-ranks=inline", "-k", "w1 or loop")
    found.assert_outcomes(passed=2, failed=2)
    failures = [line for line in found.outlines if line.startswith("FAILED")]
    assert all("an activation of" in line for line in failures), failures
    assert {re.search(r"-(\w+)\]", line)[1] for line in failures} == {"Loud", "loud"}  # type: ignore[index]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("options", [("-n2",), ("--precision-ranks=fresh",)], ids=str)
def test_it_does_so_wherever_it_runs(suite: pytest.Pytester, options: tuple[str, ...]) -> None:
    """In workers of xdist, and on ranks that are started anew, with two of them."""
    found = suite.runpytest_subprocess(*SMALL, *options)
    found.assert_outcomes(passed=3, failed=3)
    assert found.stdout.str().count("an activation of") >= 3


@pytest.mark.parametrize(
    ("line", "wrong", "words"),
    [
        ("largest > 65504", "undefined", "the judgement 'activations': conftest:in_range raised N"),
        ("output.detach()", "undefined", "the probe conftest:ActivationProbe of another plugin ra"),
        ("loop=ActivationProbe", 'loop="a:b"', "expected the judgement 'activations' to have a p"),
    ],
    ids=["gate", "probe", "import"],
)
def test_what_raises_passes_no_cell(
    suite: pytest.Pytester, line: str, wrong: str, words: str
) -> None:
    """Whose it is, is named; ranks in this process raise what they raise."""
    assert line in FILES["conftest"]
    suite.makeconftest(FILES["conftest"].replace(line, wrong))
    found = suite.runpytest_inprocess(*SMALL, "--precision-ranks=inline", "-k", "quiet")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines([f"*{words}*"])


def test_a_wrong_judgement_ends_the_session_before_a_cell(suite: pytest.Pytester) -> None:
    """As a wrong option does."""
    suite.makeconftest(FILES["conftest"].replace('after="vacuity"', 'after="emptiness"'))
    found = suite.runpytest_inprocess(*SMALL, "-k", "quiet")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines(["ERROR: expected the judgement 'activations' to have its gate*"])


@pytest.mark.parametrize(
    ("line", "wrong", "words"),
    [
        ("max(", "max(", "precision: the slowest cell is test_loop.py::test_loop*quiet*"),
        ("max(", "most(", "precision: the reporter 'slowest': conftest:slowest raised NameError*"),
    ],
    ids=["right", "raises"],
)
def test_a_reporter_says_its_lines(
    suite: pytest.Pytester, line: str, wrong: str, words: str
) -> None:
    """What it raises is told, and changes no result."""
    suite.makeconftest(files_of("reference/hooks.md")["conftest"].replace(line, wrong))
    words_of_session = suite.runpytest_inprocess(
        *("-oprecision_lines=off", "--precision-matrix", "--precision-ranks=inline", "-k", "quiet")
    )
    words_of_session.assert_outcomes(passed=1)
    words_of_session.stdout.fnmatch_lines([words])
