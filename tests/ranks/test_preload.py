"""Modules that ranks are started with: imported once, or refused by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import in_this_process  # noqa: F401
import pytest
import torch

from pytest_precision import RankError
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.process import preloaded

Open = Callable[[str], RankPool]
Write = Callable[[str, str], Path]
Server = Callable[[str], tuple[bool, str | None]]

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the modules of all tests lie, of which each has another name."""
    return tmp_path_factory.mktemp("frameworks")


@pytest.fixture
def framework(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module to where ranks find it; `{log}` in it is a file's path, which is returned."""
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.syspath_prepend(folder)

    def write(name: str, text: str) -> Path:
        log = folder / "imports"
        (folder / f"{name}.py").write_text(text.format(log=str(log)))
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


def forked(function: Callable[..., Any], *arguments: object) -> Any:
    """Return what a function returns in a fork of this process; an error there is one here."""
    receiving, sending = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            sending.send(function(*arguments))
        except Exception as error:
            sending.send(error)
        finally:
            os._exit(0)
    sending.close()
    answer = receiving.recv()
    os.waitpid(child, 0)
    if isinstance(answer, Exception):
        raise answer
    return answer


def of_a_rank() -> tuple[bool, str | None]:
    preloaded.join_preloaded({**os.environ})
    return usable()


def of_a_server(name: str) -> Any:
    """Do what a fork server does that gets a module to import, and return what its rank finds."""
    os.environ[preloaded.VARIABLE] = name
    preloaded.take_in()
    return forked(of_a_rank)


@pytest.fixture
def server(run_on_ranks: Callable[..., list[Any]]) -> Server:
    """What a rank finds whose server has imported a module, in forks of a rank that has torch.

    A server of its own would import torch first.
    """
    return lambda name: run_on_ranks(1, forked, of_a_server, name)[0]


# The next tests take the fork server that there is; each of those below replaces it.


def test_what_cannot_be_imported_is_refused(framework: Write, server: Server) -> None:
    """By name, with what is missing."""
    framework("framework_without_another", "import no_such_module")
    name = "framework_without_another"
    reason = f"that can be imported, .* '{name}': ModuleNotFoundError: No module named 'no_such_mo"
    with pytest.raises(RankError, match=reason):
        server(name)


def test_a_module_may_ask_whether_there_is_cuda(framework: Write, server: Server) -> None:
    """As torchao does while it is imported: the question does not start CUDA's driver."""
    asks = "os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK') != '1'"
    framework("framework_that_asks", asking(poisons=asks, gpus=1))
    assert server("framework_that_asks") == (False, None)


def test_a_module_that_starts_cuda_is_refused(framework: Write, server: Server) -> None:
    """Each rank would end at its first use of a GPU, with torch's words about forks."""
    framework("framework_that_starts_cuda", asking(poisons="True", gpus=1))
    with pytest.raises(RankError, match=r"'framework_that_starts_cuda': CUDA was initialized;"):
        server("framework_that_starts_cuda")


def test_a_module_that_finds_no_gpu_is_not(framework: Write, server: Server) -> None:
    """A build for CUDA asks CUDA itself where no driver is installed; the ranks lose nothing."""
    framework("framework_on_a_laptop", asking(poisons="True", gpus=0))
    assert server("framework_on_a_laptop") == (True, None)


def test_what_cannot_be_forked_is_refused(framework: Write, pool: Open) -> None:
    """Before a job starts, and by name."""
    framework(
        "framework_with_a_thread",
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=[600], name='poller', daemon=True).start()",
    )
    reason = "that leaves no thread and no GPU open, .* 'framework_with_a_thread': thread poller;"
    with pytest.raises(RankError, match=reason):
        pool("framework_with_a_thread").run(2, found)


def test_a_module_is_imported_once_for_all_ranks(
    framework: Write, pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process that is none of them; and they have the variables that its import sets."""
    log = framework("framework_of_all", FRAMEWORK)
    ranks = pool("framework_of_all")
    ours = [*ranks.run(1, found)]
    *_, process = imports = log.read_text().split()
    ours += ranks.run(2, found)
    monkeypatch.setenv("PLANTED", "by the test")
    ours += ranks.run(2, found)
    assert [own for own, *_ in ours] == [True] * 5
    assert [variables for *_, variables, _ in ours] == ["was imported"] * 5
    assert [planted for *_, planted in ours] == ["by the framework"] * 3 + ["by the test"] * 2
    assert log.read_text().split() == imports
    assert int(process) not in {number for _, number, *_ in ours}


def test_the_session_says_what_it_preloads(framework: Write, pytester: pytest.Pytester) -> None:
    """In the line above the tests."""
    framework("framework_of_all", FRAMEWORK)
    pytester.makepyfile(
        test_a="""
        import sys
        import pytest

        def imported():
            return "framework_of_all" in sys.modules

        @pytest.mark.world_size(2)
        def test_a(ranks):
            assert ranks.run(imported) == [True, True]

        @pytest.mark.precision_matrix(world_size=[2])
        def test_b(cell):
            assert cell.world_size == 2
        """
    )
    pytester.makeini("[pytest]\nprecision_preload = framework_of_all")
    result = pytester.runpytest_inprocess("--precision-matrix", "--precision-device=cpu")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines("*; framework_of_all preloaded")


def test_other_pools_start_without_it(framework: Write, pool: Open) -> None:
    """Also while one with it is open."""
    framework("framework_of_all", FRAMEWORK)
    assert pool("framework_of_all").run(1, found)[0][0]
    with closing(RankPool(timeout=60)) as ranks:
        assert not ranks.run(1, found)[0][0]


def asking(*, poisons: str, gpus: int) -> str:
    return ASKS_FOR_CUDA.replace("{poisons}", poisons).replace("{gpus}", str(gpus))


def usable() -> tuple[bool, str | None]:
    return torch.cuda._is_in_bad_fork(), os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
