"""A script file with arguments is a side of a check."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked import ParityIn, failed

from pytest_precision import Cell, Parity, ParityError, bitwise, command, unchecked

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
import next_to_it

assert not dist.is_initialized()
if "--alone" not in sys.argv:
    dist.init_process_group("gloo")
    assert dist.get_world_size() == int(os.environ["WORLD_SIZE"])
model = torch.nn.Linear(3, 2)
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
lr = float(sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
os.chdir("/")
for step in range(2 if "--short" in sys.argv else next_to_it.STEPS):
    model(torch.randn(4, 3, generator=generator)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a script and a module beside it."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "next_to_it.py").write_text("STEPS = 100\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.filterwarnings("error::pytest_precision.PrecisionLeakWarning")
def test_a_file_runs_as_a_launcher_starts_it(parity_in: ParityIn) -> None:
    """Each rank has its place in the environment, and the file makes the process group."""
    parity = parity_in(Cell(sequence="train3", world_size=2))
    verdict = parity.check(command("train.py", 0.1), command("train.py", "1e-1"))
    assert verdict.observations > 50


@pytest.mark.usefixtures("folder")
def test_axes_of_the_cell_are_in_the_arguments(parity_in: ParityIn) -> None:
    """So that a command line is as long as it is without a matrix."""
    parity = parity_in(Cell(sequence="train2", extra=(("lr", 0.1),)))
    other = parity.cell.replace(lr=0.2)
    sides = command("train.py", "{lr}", "--alone"), command("train.py", "{lr}", "--alone", "x")
    found = failed(parity, *sides, reference_cell=other).divergence
    assert found is not None
    assert (found.kind, found.candidate, found.reference) == ("lr", 0.1, 0.2)


@pytest.mark.usefixtures("folder")
def test_a_file_may_be_configured_by_variables(parity_in: ParityIn, folder: Path) -> None:
    """One side has them, from the start of its ranks on, and the other side has none."""
    told = "import os, sys\nassert ('RATE' in os.environ) == (sys.argv[1] == 'told')\n"
    rate = "os.environ.get('RATE', sys.argv[1])"
    (folder / "by_variable.py").write_text(told + SCRIPT.replace("sys.argv[1]", rate))
    candidate = command("by_variable.py", "told", "--alone", env={"RATE": "0.1"})
    parity_in(Cell(sequence="train2")).check(candidate, command("by_variable.py", "0.1", "--alone"))
    assert "RATE" not in os.environ


@pytest.mark.nightly
@pytest.mark.usefixtures("folder")
def test_each_side_may_have_variables(parity_in: ParityIn, folder: Path) -> None:
    """Each side has its own ones."""
    (folder / "by_variable.py").write_text(SCRIPT.replace("sys.argv[1]", "os.environ['RATE']"))
    parity = parity_in(Cell(sequence="train2"))
    sides = (command("by_variable.py", "--alone", env={"RATE": rate}) for rate in ("0.1", "0.2"))
    verdict = failed(parity, *sides)
    assert verdict.divergence is not None
    assert (verdict.divergence.candidate, verdict.divergence.reference) == (0.1, 0.2)
    assert "RATE" not in os.environ


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("env", "words"),
    [
        (["RATE"], r"got env=\['RATE'\] \(list\); write env="),
        ({"RATE": 0.1}, r"text but got RATE=0\.1 \(float\)"),
    ],
)
def test_variables_that_no_process_can_have_are_refused(env: Any, words: str) -> None:
    """Before anything starts."""
    with pytest.raises(TypeError, match=words):
        command("train.py", env=env)


@pytest.mark.usefixtures("folder")
def test_a_file_may_tell_more(
    parity_in: ParityIn, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the recording that is open, and runs without one."""
    inside = SCRIPT.replace("for step", "record({'net': model}, see={'grad'})\nfor step")
    inside += "    record.see('weights', 'sum', model.weight.detach().sum())\n"
    text = f"from pytest_precision import record\n{inside}"
    (folder / "telling.py").write_text(text)
    parity = parity_in(Cell(sequence="train2"))
    sides = (command("telling.py", lr, "--alone") for lr in (0.1, 0.2))
    no_rates = {"default": unchecked(reason="another rate"), "weights": bitwise()}
    found = failed(parity, *sides, criterion=no_rates).divergence
    assert found is not None
    assert (found.step, found.kind, found.name) == (1, "weights", "sum")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(sys, "argv", ["telling.py", "0.1", "--alone", "--short"])
    monkeypatch.syspath_prepend(folder)
    assert runpy.run_path("telling.py", run_name="__main__")["step"] == 1
    del sys.modules["next_to_it"]


@pytest.mark.usefixtures("folder")
def test_braces_without_an_axis_are_an_error(parity_in: ParityIn) -> None:
    """The axes are listed."""
    parity = parity_in(Cell(sequence="train2"))
    with pytest.raises(ParityError, match="expected an axis in braces, one of precision, "):
        parity.check(command("train.py", "{rate}"), command("train.py", "0.1"))


@pytest.mark.usefixtures("folder")
def test_a_command_that_fails_is_an_error(parity_in: ParityIn) -> None:
    """Its own exception is shown, and its peers are not waited for."""
    parity = parity_in(Cell(sequence="train2", world_size=2))
    verdict = failed(parity, command("train.py", "fast"), command("train.py", "0.1"))
    assert "could not convert string to float: 'fast'" in verdict.reason


def test_a_file_that_does_not_exist_is_refused(folder: Path) -> None:
    """Nothing is started."""
    with pytest.raises(FileNotFoundError, match=r"got file='test.py' \(str\); relative paths"):
        command("test.py")


@pytest.mark.usefixtures("folder")
def test_this_process_is_as_it_was(parity_in: ParityIn) -> None:
    """A command in the only rank leaves arguments, paths, directory and environment alone."""
    before = [*sys.argv], [*sys.path], Path.cwd(), dict(os.environ)
    parity = parity_in(Cell(sequence="train2"))
    parity.check(command("train.py", "0.1"), command("train.py", "0.1", "--alone"))
    assert before == (sys.argv, sys.path, Path.cwd(), dict(os.environ))


FACTS = """
import json, multiprocessing, os, random, sys, threading
import torch, torch.distributed as dist
import next_to_it

main = sys.modules["__main__"]
alone = main.__dict__ is globals()
spec = (main.__spec__, main.__package__, type(main.__loader__).__name__, main.__file__)
places = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")
told = sorted(name for name in os.environ if name.startswith(
    ("RANK", "WORLD", "LOCAL", "GROUP", "ROLE", "MASTER", "TORCHELASTIC", "PYTEST"))
)
began = multiprocessing.get_start_method(allow_none=True)
multiprocessing.set_start_method("spawn")
facts = {
    "main": [alone, *spec, "__mp_main__" in sys.modules],
    "arguments": sys.argv[1:],
    "path": sys.path,
    "folder": os.getcwd(),
    "told": [name for name in told if name not in (
        "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"
    )],
    "places": [os.environ[name] for name in places],
    "process": [
        began, multiprocessing.current_process().name, str(multiprocessing.parent_process())
    ],
    "torch": [
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        str(torch.get_default_dtype()),
        dist.is_initialized(),
        torch.initial_seed(),
    ],
}
side = os.environ.get("SIDE", "")
with open(f"facts{side}{os.environ['RANK']}.json", "w", encoding="utf-8") as file:
    json.dump(facts, file)
if side == "itself":
    sys.exit()
"""

ONE_LAUNCH = """
SIDE=itself "$PYTHON" -u asking.py 0.1 --short &&
exec "$PYTHON" -u -m pytest_precision record --out recorded --steps 2 -- asking.py 0.1 --short
"""
"""What each rank of a launch does: run the file by itself, up to its loop, and record it."""


def facts_of(folder: Path, ranks: int, side: str = "") -> list[dict[str, Any]]:
    files = [folder / f"facts{side}{rank}.json" for rank in range(ranks)]
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for file in files:
        file.unlink()
    return found


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.long(reason="Python, torchrun, `record` and a cell are what it holds alike.")
def test_a_file_finds_the_process_that_python_makes_for_it(
    parity_by: Callable[..., Parity], folder: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """What a file can ask of its process has one answer in a cell, by `record` and by itself.

    These are `__main__`, the arguments, `sys.path` (pytest's has more), the folder, the names of
    torchrun's variables and this rank's place, none of pytest's variables, what multiprocessing
    says of the process, and torch's settings, of which a recording sets the seed alone. The cell
    has `--precision-ranks=inline`: a command has processes of its own there, too, forks of the
    server or, where it declares variables, new interpreters.
    """
    (folder / "asking.py").write_text(FACTS + SCRIPT, encoding="utf-8")
    monkeypatch.syspath_prepend(folder / "of_pytest")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTEST_VERSION", "8")
    with monkeypatch.context() as plain:
        plain.delenv("PYTEST_VERSION")
        for name in [name for name in os.environ if name.startswith("PYTEST_")]:
            plain.delenv(name)
        launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        both = [*launch, "--no-python", "sh", "-c", ONE_LAUNCH]
        subprocess.run(both, check=True, env=os.environ | {"PYTHON": sys.executable})
        expected, recorded = facts_of(folder, ranks, "itself"), facts_of(folder, ranks)
    parity = parity_by(Cell(sequence="train2", world_size=ranks), lines="off", ranks="inline")
    others = command("asking.py", "0.1", "--short", env={"SIDE": "new"})
    parity.check(others, command("asking.py", "0.1", "--short"))
    for facts in expected:  # nobody has seeded it, and torch's own number stands there
        facts["torch"][-1] = recorded[0]["torch"][-1]
    assert recorded == expected
    assert facts_of(folder, ranks) == expected  # forked
    assert facts_of(folder, ranks, "new") == expected  # a new interpreter


SCRIPTS = Path(__file__).parents[3] / "fixtures" / "scripts"


def test_every_cell_of_a_session_imports_what_a_file_imports_where_it_does(
    parity_in: ParityIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module beside the file reads its arguments while it is imported, in each cell anew.

    The reference runs first, and the sides take turns in having the argument, so that a process
    which had the module, or knew that it would be imported, would hide the difference in one of the
    cells. The first cell and the last one say the same.
    """
    monkeypatch.chdir(SCRIPTS)
    fast, slow = ("rate_by_module.py", "--fast"), ("rate_by_module.py",)
    parity = parity_in(Cell(sequence="train2"))
    for sides in ((fast, slow), (slow, fast)) * 2:
        found = failed(parity, *(command(*words) for words in sides)).divergence
        assert found is not None
        rates = [1e-2 if words is fast else 1e-3 for words in sides]
        assert (found.kind, found.candidate, found.reference) == ("lr", *rates)


def test_a_second_name_of_main_is_nothing_that_is_imported(
    parity_in: ParityIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that gives its `__main__` another name runs once for each side, and is ended.

    The package multiprocess does so, which many frameworks import. Whoever took that name for a
    module of the user's would run the whole file, without its arguments and to its end.
    """
    monkeypatch.chdir(SCRIPTS)
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    parity_in(Cell(sequence="train2")).check(
        command("alias_of_main.py"), command("alias_of_main.py", "again")
    )
    runs = (tmp_path / "runs").read_text(encoding="utf-8")
    assert runs.split() == ["__main__", "again", "__main__"]


def test_a_file_that_is_a_link_is_found_beside_what_it_leads_to(
    parity_in: ParityIn, folder: Path
) -> None:
    """Python's own rule: `__file__` is the link, and modules are found beside the file itself."""
    (folder / "elsewhere").mkdir()
    link = folder / "elsewhere" / "link.py"
    link.symlink_to(folder / "train.py")
    text = SCRIPT + f"\nassert __file__ == {str(link)!r}\n"
    (folder / "train.py").write_text(text, encoding="utf-8")
    parity = parity_in(Cell(sequence="train2"))
    words = "elsewhere/link.py", "0.1", "--alone", "--short"
    assert parity.check(command(*words), command(*words, "x")).outcome == "pass"
