"""Which line of a stack is the user's."""

from __future__ import annotations

import importlib
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from logged_blocks import operations
from marked_lines import marked
from torch.utils._python_dispatch import TorchDispatchMode

import pytest_precision
from pytest_precision.probes.lines.log.frames import INSTALLED, NOBODY, USER, Frames
from pytest_precision.probes.lines.operations import CodeLine, Site
from pytest_precision.recorders.products import Products

HELPER = "def doubled(values):\n    return values * 2.0\n"


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as `pip install --target` leaves it, with a package and a module of the user's."""
    for name in ("installed_helper", "own_helper"):
        (tmp_path / f"{name}.py").write_text(HELPER)
        monkeypatch.delitem(sys.modules, name, raising=False)  # of another test
    record = tmp_path / "installed_helper-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("installed_helper.py,,\ninstalled_helper-1.0.dist-info/RECORD,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def line_of(module: ModuleType) -> CodeLine:
    """Return the line of a product that a module computes for this test."""
    with operations() as logger:
        module.doubled(torch.arange(3.0))
    line = logger.log.operations[-1].line
    assert line is not None
    return line


def test_what_is_installed_in_any_folder_is_not_the_users(target: Path) -> None:
    """The line is that which calls it, and a module beside it is the user's own."""
    inside = line_of(importlib.import_module("installed_helper"))
    assert (inside.file, inside.called, inside.is_users) == (__file__, "doubled", True)
    beside = line_of(importlib.import_module("own_helper"))
    assert (beside.file, beside.line, beside.is_users) == (str(target / "own_helper.py"), 2, True)


def test_a_copy_of_an_installed_function_is_the_users(target: Path) -> None:
    """Python takes the code of both for equal, since it does not look at their files."""
    installed = importlib.import_module("installed_helper")
    copied = importlib.import_module("own_helper")
    with operations() as logger:
        for module in (installed, copied):
            module.doubled(torch.arange(3.0))
    *_, line = (one.line for one in logger.log.operations if one.base == "mul")
    assert line is not None
    assert (line.file, line.line) == (str(target / "own_helper.py"), 2)


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        (pytest.__file__, INSTALLED),
        (sysconfig.__file__, NOBODY),
        (torch.nn.__file__, NOBODY),
        ("<frozen importlib>", NOBODY),
        ("<string>", USER),
        (__file__, USER),
    ],
)
def test_a_file_has_one_owner(file: str, owner: int) -> None:
    """Folders for installed packages lie in that of Python's library, and are not of it."""
    assert Frames()._owner(compile("0", file, "exec")) == owner


def test_this_package_has_the_same_places_wherever_it_is_found() -> None:
    """Ranks of another commit have it in a folder of their own, and sides are told by places."""
    held: dict[str, Any] = {}
    file = Path(pytest_precision.__file__).with_name("trace") / "data_log.py"
    exec(compile("def tokens(count):\n    return count()", file, "exec"), held)
    site = held["tokens"](lambda: Frames().site_of_call(sys._getframe()))
    assert site == Site("trace/data_log.py", 2)


class Halving(TorchDispatchMode):
    """A mode of the user's that passes operations on and computes with what they make."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))  # passed on
        return made - 0.5  # computed


def test_what_a_mode_passes_on_belongs_to_the_line_that_asks_for_it() -> None:
    """What the mode computes by itself belongs to the mode's line."""
    values = torch.arange(3.0)
    with operations() as logger, Halving():
        values * 2.0  # asked for
    named = {one.base: one.line.line for one in logger.log.operations if one.line is not None}
    here = Path(__file__)
    assert named == {"mul": marked(here, "asked for"), "sub": marked(here, "computed")}


def test_a_mode_of_the_recorder_passes_calls_on() -> None:
    """It stands between the user's line and torch, and computes nothing by itself."""
    values = torch.arange(3.0)
    with operations() as logger, Products(set()):
        values.square()  # recorded
    (square,) = logger.log.operations
    assert square.line is not None
    assert square.line.line == marked(Path(__file__), "recorded")
