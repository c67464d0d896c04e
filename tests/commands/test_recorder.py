"""A `Recorder` records a loop from within as the command `record` does a script."""

from __future__ import annotations

import json
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_precision import Recorder, RecordingError
from pytest_precision.__main__ import main
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.needs import Needs
from pytest_precision.trace.row_table import TABLE_KEYS
from pytest_precision.trace.whole_recording import whole_recording

LOOP = """
import torch

def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 6))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)

def train(model, optimizer, steps, ended=lambda: None, rate=None):
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        if step == 1 and rate:
            optimizer.param_groups[0]["lr"] = rate
        loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        ended()

if __name__ == "__main__":
    train(*made(), 9)
"""

Loop = dict[str, Callable[..., Any]]


@pytest.fixture
def loop(in_folder: Path) -> Loop:
    """The functions of a script that trains."""
    (in_folder / "loop.py").write_text(LOOP)
    return runpy.run_path("loop.py", run_name="loop")


def moments(folder: str, rank: int = 0) -> tuple[Any, Any]:
    """Return what was recorded of a rank, and when, with all bits."""
    index = json.loads((Path(folder) / f"rank{rank}.json").read_text())
    content = (Path(folder) / f"rank{rank}.bin").read_bytes()
    return {key: index[key] for key in TABLE_KEYS}, content[index["table"] :]


def test_it_is_what_the_command_records(loop: Loop) -> None:
    """As a context and step by step; the latter lets the loop go on after its last step."""
    assert main(["record", "--out", "command", "--steps", "3", "--", "loop.py"]) == 0
    model, optimizer = loop["made"]()
    with Recorder(model, optimizer, out="context", steps=3):
        loop["train"](model, optimizer, 9)
        pytest.fail("the block goes on after the third step")
    model, optimizer = loop["made"]()
    recorder = Recorder(model, optimizer, out="steps", steps=3)
    recorder.start()
    counts: list[int] = []
    loop["train"](model, optimizer, 9, lambda: counts.append(recorder.step()))
    assert counts == [1, 2, 3, 3, 3, 3, 3, 3, 3]
    assert moments("context") == moments("command")
    for folder in ("context", "steps"):
        assert main(["compare", folder, "command"]) == 0


def test_the_header_has_no_seed_that_it_did_not_set(loop: Loop) -> None:
    """The command seeds torch, and says so; a Recorder does not."""
    assert main(["record", "--out", "command", "--steps", "1", "--", "loop.py"]) == 0
    model, optimizer = loop["made"]()
    with Recorder(model, optimizer, out="context", steps=1):
        loop["train"](model, optimizer, 1)
    seeds = [
        json.loads(Path(folder, "rank0.json").read_text())["environment"].get("seed")
        for folder in ("command", "context")
    ]
    assert seeds == ["1234", None]


@pytest.mark.parametrize("arguments", [{"out": "b"}, {"replay": True}])
def test_a_second_one_at_a_time_is_refused(loop: Loop, arguments: dict[str, Any]) -> None:
    """Each would record the other's loop, or a replay; when the first has ended, it may begin."""
    first, later = loop["made"](), loop["made"]()
    second = Recorder(*later, **arguments)
    with Recorder(*first, out="a", steps=1):
        with pytest.raises(RuntimeError, match="one Recorder at a time in a process"):
            second.start()
        loop["train"](*first, 1)
    with second:
        with pytest.raises(RuntimeError, match="one Recorder at a time in a process"):
            Recorder(*first, out="c").start()
        loop["train"](*later, 1)
    assert second.stop() == 1


def test_another_rate_is_red(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    """At the step from which it holds."""
    for folder, rate in (("a", 0.02), ("b", None)):
        model, optimizer = loop["made"]()
        with Recorder(model, optimizer, out=folder, steps=3):
            loop["train"](model, optimizer, 9, rate=rate)
    assert main(["compare", "a", "b"]) == 1
    said = capsys.readouterr().out
    assert "lr differs at step 2" in said
    assert "record with" not in said  # no command repeats it


def test_what_repeats_it_is_no_command(loop: Loop) -> None:
    """It is a Recorder that keeps more values."""
    model, optimizer = loop["made"]()
    with Recorder(model, optimizer, out="a", steps=2):
        loop["train"](model, optimizer, 2)
    manifest = whole_recording("candidate", Path("a")).manifest
    assert manifest is not None
    again = [manifest.again(values) for values in ("0-2", "2", "")]
    assert again == [
        "Recorder(..., steps=2, values=range(0, 3))",
        "Recorder(..., steps=2, values=range(2, 3))",
        "Recorder(..., steps=2)",
    ]


def record_as_actor(place: tuple[str, int]) -> int:
    """Record as an actor of two, which has made no process group; return its steps."""
    folder, rank = place
    loop = runpy.run_path(f"{folder}/../loop.py", run_name="loop")
    model, optimizer = loop["made"]()
    with Recorder(model, optimizer, out=folder, rank=rank, world_size=2, steps=2) as recorder:
        loop["train"](model, optimizer, 2)
    return recorder.stop()


def test_actors_need_no_process_group(loop: Loop, in_folder: Path, resources: Resources) -> None:
    """Each says which rank it is; the last to end makes the recording whole."""
    ranks = resources.ranks(Settings(timeout=120, device="cpu"))
    for folder in ("a", "b"):
        for rank in range(2):
            assert ranks.run(1, record_as_actor, (str(in_folder / folder), rank)) == [2]
    assert main(["compare", "a", "b"]) == 0
    assert moments("a", 0) == moments("a", 1)


def record_late(folder: str) -> int:
    """Record as a rank of a process group; the second one starts when the first has begun."""
    dist.init_process_group("gloo")
    loop = runpy.run_path(f"{folder}/../loop.py", run_name="loop")
    model, optimizer = loop["made"]()
    until = time.monotonic() + 60
    while dist.get_rank() and not Path(folder, "rank0.bin").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    with Recorder(model, optimizer, out=folder, steps=2) as recorder:
        loop["train"](model, optimizer, 2)
    dist.destroy_process_group()
    return recorder.stop()


def test_ranks_of_a_group_may_start_apart(
    loop: Loop, in_folder: Path, resources: Resources
) -> None:
    """Files of another rank are no other recording, though no rank was told its number."""
    ranks = resources.ranks(Settings(timeout=120, device="cpu"))
    needs = Needs(launched=True)
    assert ranks.run(2, record_late, str(in_folder / "a"), needs=needs) == [2, 2]
    assert moments("a", 0) == moments("a", 1)
    assert json.loads(Path("a", "recording.json").read_text())["world_size"] == 2


def test_an_error_of_the_loop_leaves_no_whole_recording(loop: Loop) -> None:
    """It is raised on, torch is as before, and another Recorder can begin."""
    model, optimizer = loop["made"]()

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Recorder(model, optimizer, out="a", steps=3):
        loop["train"](model, optimizer, 9, fail)
    with pytest.raises(SystemExit):
        main(["compare", "a", "a"])
    model, optimizer = loop["made"]()
    with Recorder(model, optimizer, out="b", steps=1) as recorder:
        loop["train"](model, optimizer, 1)
    assert recorder.stop() == 1


MODEL = torch.nn.Linear(2, 2)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": 3}, r"a torch\.nn\.Module but got model=3"),
        ({"optimizer": MODEL}, "the one whose step"),
        ({"steps": 0}, "a number from 1 on but got steps=0"),
        ({"every": "2"}, "a number from 1 on but got every='2'"),
        ({"only": "0.*"}, "a sequence of patterns"),
        ({"values": [11]}, "from 0 to the last one, 10, but got 11"),
        ({"rank": 2}, "rank=2, world_size=None"),
        ({"rank": 2, "world_size": 2}, "a rank from 0 to before world_size"),
        ({"out": None}, "out=, watch= or replay= but got none of them"),
        ({"watch": 1}, "watch=, replay= and on_mismatch= alone"),
        ({"out": None, "watch": 0}, "a number from 1 on but got watch=0"),
        ({"out": None, "replay": True, "on_mismatch": "warn"}, "or a function of a mismatch"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], words: str) -> None:
    """Before anything is made."""
    usual: dict[str, Any] = {"model": MODEL, "optimizer": OPTIMIZER, "out": "out"}
    with pytest.raises((TypeError, ValueError), match=words):
        Recorder(**usual | arguments)
    assert not Path("out").exists()


def test_calls_in_another_order_are_refused(in_folder: Path) -> None:
    """A step before the start, a second start, a folder that is taken, no step at all."""
    recorder = Recorder(MODEL, OPTIMIZER, out="a")
    with pytest.raises(RuntimeError, match="a Recorder that has started"):
        recorder.step()
    with pytest.raises(RecordingError, match="steps of the SGD"), recorder:
        pass
    with pytest.raises(RuntimeError, match="one start of a Recorder"):
        recorder.start()
    with pytest.raises(RecordingError, match="a new or empty folder"):
        Recorder(MODEL, OPTIMIZER, out=in_folder).start()
