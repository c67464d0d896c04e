"""Modules that ranks are started with: imported once, or refused by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from pytest_precision import RankError
from pytest_precision.ranks import RankPool

Open = Callable[[str], RankPool]
Write = Callable[[str, str], Path]

FRAMEWORK = """
import os

os.environ["FRAMEWORK"] = "was imported"
os.environ.setdefault("PLANTED", "by the framework")
with open({log!r}, "a") as file:
    print(os.getpid(), file=file)
"""


ASKS_FOR_CUDA = """
import os
import torch

# What torch does in a build for CUDA, where it was not told to ask the driver's library.
if {poisons}:
    torch.cuda._is_in_bad_fork = lambda own=os.getpid(): os.getpid() != own
    torch.cuda.device_count = lambda: {gpus}
"""


def found() -> tuple[bool, int, str | None, str | None]:
    own = "framework_of_all" in sys.modules
    return own, os.getpid(), os.environ.get("FRAMEWORK"), os.environ.get("PLANTED")


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module to where ranks find it; `{log}` in it is a file's path, which is returned."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> Path:
        log = tmp_path / "imports"
        (tmp_path / f"{name}.py").write_text(text.format(log=str(log)))
        return log

    return write


@pytest.fixture
def pool() -> Iterator[Open]:
    """Open a pool whose ranks start with a module."""
    opened: list[RankPool] = []

    def open_pool(name: str) -> RankPool:
        opened.append(RankPool(timeout=60, preload=(name,)))
        return opened[-1]

    yield open_pool
    for one in opened:
        one.close()


def test_a_module_is_imported_once_for_all_ranks(
    framework: Write, pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process that is none of them; and they have the variables that its import sets."""
    log = framework("framework_of_all", FRAMEWORK)
    ranks = pool("framework_of_all")
    ours = [*ranks.run(1, found), *ranks.run(2, found)]
    monkeypatch.setenv("PLANTED", "by the test")
    ours += ranks.run(2, found)
    assert [own for own, *_ in ours] == [True] * 5
    assert [variables for *_, variables, _ in ours] == ["was imported"] * 5
    assert [planted for *_, planted in ours] == ["by the framework"] * 3 + ["by the test"] * 2
    (process,) = log.read_text().split()
    assert int(process) not in {number for _, number, *_ in ours}


def test_other_pools_start_without_it(framework: Write, pool: Open) -> None:
    """Also while one with it is open."""
    framework("framework_of_all", FRAMEWORK)
    assert pool("framework_of_all").run(1, found)[0][0]
    with closing(RankPool(timeout=60)) as ranks:
        assert not ranks.run(1, found)[0][0]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        pytest.param(
            "framework_with_a_thread",
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=[600], name='poller', daemon=True).start()",
            "that leaves no thread and no GPU open, .* 'framework_with_a_thread': thread poller;",
        ),
        pytest.param(
            "framework_without_another",
            "import no_such_module",
            "that can be imported, .* ModuleNotFoundError: No module named 'no_such_module';",
        ),
    ],
)
def test_what_cannot_be_forked_is_refused(
    framework: Write, pool: Open, name: str, text: str, reason: str
) -> None:
    """Before a job starts, and by name."""
    framework(name, text)
    with pytest.raises(RankError, match=reason):
        pool(name).run(2, found)


def test_a_module_may_ask_whether_there_is_cuda(framework: Write, pool: Open) -> None:
    """As torchao does while it is imported: the question does not start CUDA's driver."""
    asks = "os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK') != '1'"
    framework("framework_that_asks", asking(poisons=asks, gpus=1))
    for cannot, variable in pool("framework_that_asks").run(2, usable):
        assert not cannot
        assert variable is None


def test_a_module_that_starts_cuda_is_refused(framework: Write, pool: Open) -> None:
    """Each rank would end at its first use of a GPU, with torch's words about forks."""
    framework("framework_that_starts_cuda", asking(poisons="True", gpus=1))
    with pytest.raises(RankError, match=r"'framework_that_starts_cuda': CUDA was initialized;"):
        pool("framework_that_starts_cuda").run(2, usable)


def test_a_module_that_finds_no_gpu_is_not(framework: Write, pool: Open) -> None:
    """A build for CUDA asks CUDA itself where no driver is installed; the ranks lose nothing."""
    framework("framework_on_a_laptop", asking(poisons="True", gpus=0))
    assert [cannot for cannot, _ in pool("framework_on_a_laptop").run(2, usable)] == [True, True]


def asking(*, poisons: str, gpus: int) -> str:
    return ASKS_FOR_CUDA.replace("{poisons}", poisons).replace("{gpus}", str(gpus))


def usable() -> tuple[bool, str | None]:
    return torch.cuda._is_in_bad_fork(), os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")


def test_the_session_says_what_it_preloads(pytester: pytest.Pytester) -> None:
    """In the line above the tests."""
    pytester.makepyfile(
        test_a="""
        import sys
        import pytest

        def imported():
            return "fractions" in sys.modules

        @pytest.mark.world_size(2)
        def test_a(ranks):
            assert ranks.run(imported) == [True, True]

        @pytest.mark.precision_matrix(world_size=[2])
        def test_b(cell):
            assert cell.world_size == 2
        """
    )
    pytester.makeini("[pytest]\nprecision_preload = fractions")
    result = pytester.runpytest_subprocess("--precision-matrix")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines("*; fractions preloaded")
