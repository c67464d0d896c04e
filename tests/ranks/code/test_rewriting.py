"""An assert that fails on a rank shows its values, as it would in the test itself."""

from __future__ import annotations

import in_this_process  # noqa: F401
import pytest

CONFTEST = """
    import pytest

    pytest.register_assert_rewrite("named")
"""

MODULE = """
    def check(value):
        assert value == 4
"""

SUITE = """
    import named, pytest, unnamed

    pytestmark = pytest.mark.world_size(1)

    def check(value):
        assert value == 4

    @pytest.mark.parametrize("function", [check, named.check, unnamed.check])
    def test_it(ranks, function):
        ranks.run(function, 3)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A test module, a module named to pytest and one that is not, each with an assert."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_suite=SUITE, named=MODULE, unnamed=MODULE)
    return pytester


@pytest.mark.parametrize(
    ("mode", "bytecode"),
    [("prepend", ""), pytest.param("importlib", "none", marks=pytest.mark.nightly)],
)
def test_asserts_show_their_values(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mode: str, bytecode: str
) -> None:
    """In the modules whose asserts pytest rewrites and in no others, with its bytecode or none."""
    suite.syspathinsert()
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", bytecode)
    run = suite.runpytest_subprocess if bytecode else suite.runpytest_inprocess
    result = run(f"--import-mode={mode}")
    result.stdout.fnmatch_lines(
        [
            "E * in *test_suite:check raised AssertionError: assert 3 == 4",
            "E * in named:check raised AssertionError: assert 3 == 4",
            "E * in unnamed:check raised AssertionError",
        ]
    )


def test_without_rewriting(suite: pytest.Pytester) -> None:
    """`--assert=plain` holds for ranks too."""
    result = suite.runpytest_subprocess("--assert=plain")
    result.assert_outcomes(failed=3)
    assert "assert 3 == 4" not in result.stdout.str()
