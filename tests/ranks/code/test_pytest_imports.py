"""Ranks import what pytest imported to collect a test, once, before their first job."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_precision.errors import RankError
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.needs import Needs

pytestmark = pytest.mark.filterwarnings("error::pytest_precision.PrecisionLeakWarning")

Write = Callable[..., ImportPath]


def state(names: tuple[str, ...] = ()) -> list[object]:
    """Return values of modules on this rank, each given as `module:name`."""
    import importlib

    modules = (importlib.import_module(name.partition(":")[0]) for name in names)
    return [getattr(m, n.partition(":")[2]) for m, n in zip(modules, names, strict=True)]


@pytest.fixture
def pool() -> Iterator[RankPool]:
    ranks = RankPool(timeout=60)
    yield ranks
    ranks.close()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module, and return its import path."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(file: str, text: str, name: str = "") -> ImportPath:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return ImportPath(name or path.stem, "", str(path))

    return make


def test_what_they_change_holds_in_each_job(write: Write, pool: RankPool) -> None:
    """Two conftest.py files of one name come in their order, once; the job's own folder stays."""
    write("planted_net.py", "VALUE, IMPORTS = 1, []\n")
    outer = write(
        "conftest.py",
        """
        import os
        import sys

        import planted_net
        import torch

        planted_net.VALUE = 2
        planted_net.IMPORTS.append(("outer", sys.argv))
        os.chdir("/")
        sys.path.insert(0, "/nowhere")
        torch.backends.cudnn.benchmark = True
        torch.set_default_dtype(torch.float64)
        """,
    )
    inner = write(
        "inner/conftest.py",
        """
        import planted_net

        planted_net.VALUE *= 10
        planted_net.IMPORTS.append(("inner", __name__))
        """,
    )
    needs = Needs(collected=(outer, inner))
    asked = ("planted_net:VALUE", "planted_net:IMPORTS")
    assert pool.run(1, os.getcwd, needs=needs) == [os.getcwd()]
    for _ in range(2):
        ((value, imports),) = pool.run(1, state, asked, needs=needs)
        assert value == 20
        assert imports == [("outer", [""]), ("inner", "conftest")]
    assert pool.run(1, state, ("planted_net:VALUE",)) == [[1]]


def test_numbers_that_they_draw_are_those_of_all_ranks(write: Write, pool: RankPool) -> None:
    """A table that a test module draws while it is imported is one table."""
    drawn = write(
        "planted_drawn.py",
        """
        import random

        import numpy
        import torch

        VALUES = random.random(), float(numpy.random.rand()), float(torch.rand(1))
        """,
    )
    first, second = pool.run(2, state, ("planted_drawn:VALUES",), needs=Needs(collected=(drawn,)))
    assert first == second


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import planted_missing", "which raised ModuleNotFoundError: No module named"),
        ("import pytest; pytest.skip('no', allow_module_level=True)", "which raised Skipped: no"),
        ("import sys; sys.exit(3)", "which raised SystemExit: 3"),
    ],
    ids=["missing", "skip", "exit"],
)
def test_one_that_ranks_cannot_import_is_an_error(
    write: Write, pool: RankPool, line: str, words: str
) -> None:
    """It names the file and what it raised; a skip that pytest did not see is none."""
    module = write("planted_wrong.py", line)
    with pytest.raises(RankError) as error:
        pool.run(1, os.getpid, needs=Needs(collected=(module,)))
    assert f"{module.file}, {words}" in str(error.value)
    assert "move what needs pytest's own process into a fixture" in str(error.value)
