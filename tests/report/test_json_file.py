"""report.json: valid at any moment, strict, and cheap."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_up import divergence, verdict
from written import read_report

from pytest_precision.report.json_file import WRITING_SHARE, JsonFile, encode

ADD_FOREVER = """
import sys
import time
from itertools import count
from pathlib import Path
from made_up import verdict
from pytest_precision.report import json_file

json_file.SHARE = 1  # writes without a pause: the kill hits a write
file = json_file.JsonFile(Path(sys.argv[1]), {"device": "cpu"})
end = time.monotonic() + 60  # nobody may be left to kill it
for number in count():
    if time.monotonic() > end:
        break
    file.put(number, [verdict(reason="x" * 1000)])
    if number == 0:
        print("started", flush=True)
"""


def read(folder: Path) -> dict:
    """The file as a strict reader sees it."""
    return read_report(folder / "report.json")


def test_schema(tmp_path):
    """One object with schema, environment and the cells in order; a new folder is made."""
    file = JsonFile(tmp_path / "new" / "folder", {"device": "cpu"})
    file.put("a", [verdict(), verdict("fail", "why", divergence=divergence())])
    file.put("b", [verdict("skip", "no GPU", axes={"world_size": 1})])
    file.close()
    found = read(tmp_path / "new" / "folder")
    assert found["schema"] == 1
    assert found["environment"] == {"device": "cpu", "world_sizes": [1, 2]}
    assert (found["finished"], found["planned"]) == (True, None)
    assert [entry["outcome"] for entry in found["cells"]] == ["pass", "fail", "skip"]
    assert found["cells"][1]["divergence"]["index"] == [3, 17]


def test_valid_from_the_start(tmp_path):
    """The file of an earlier session does not outlive the start of the next one."""
    JsonFile(tmp_path, {}).put("of an earlier session", [verdict()])
    JsonFile(tmp_path, {})
    assert read(tmp_path)["cells"] == []
    assert read(tmp_path)["finished"] is False


def test_planned(tmp_path):
    """The number of cells that are to run stands in the file before any of them has."""
    JsonFile(tmp_path, {}).plan(7)
    assert (read(tmp_path)["planned"], read(tmp_path)["finished"]) == (7, False)


def test_same_key_replaces(tmp_path):
    """The entries of a rerun take the place of the first ones."""
    file = JsonFile(tmp_path, {})
    file.put("a", [verdict("fail", "flaky")])
    file.put("b", [verdict()])
    file.put("a", [verdict(seconds=7.0)])
    file.close()
    assert [entry["seconds"] for entry in read(tmp_path)["cells"]] == [7.0, 0.25]


def test_not_finite_floats_are_strings():
    """JSON has no NaN and no infinity, so they are texts, however deep they lie."""
    value = {"a": [float("nan"), {"b": (float("inf"), float("-inf"), 1.5)}], "c": 2}
    assert json.loads(encode(value)) == {"a": ["nan", {"b": ["inf", "-inf", 1.5]}], "c": 2}


def test_odd_texts_are_ascii():
    """Text is ASCII in the file, and what no encoding takes (half a surrogate pair) is escaped."""
    value = {"reason": "é\udcff\n", "\ud800": ["\N{GRINNING FACE}"]}
    found = json.loads(encode(value).decode("ascii"))
    assert found == {"reason": "é\\udcff\n", "\\ud800": ["\N{GRINNING FACE}"]}
    assert all(not "\ud800" <= letter <= "\udfff" for letter in str(found))


def test_what_killed_sessions_left_is_removed(tmp_path):
    """A temporary file goes with the next session, if the process that wrote it is gone."""
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    names = {n: tmp_path / f"report.json.partial{n}" for n in (gone.pid, os.getppid(), "mine")}
    for left in names.values():
        left.touch()
    names["killed"] = tmp_path / f"report.json.partial{gone.pid}-0"
    names["killed"].write_text('{"schema": 1, "finished": false, "planned": nu')
    names["theirs"] = tmp_path / f"report.json.partial{gone.pid}-1"
    names["theirs"].write_text("of another tool")
    JsonFile(tmp_path, {}).close()
    left = [name for name, path in names.items() if path.exists()]
    assert left == [os.getppid(), "mine", "theirs"]


def test_a_failing_write_leaves_no_temporary_file(tmp_path):
    """Such as one onto a full disk: the next session's file is not the first to clean up."""
    file = JsonFile(tmp_path, {})
    (tmp_path / "report.json").unlink()
    (tmp_path / "report.json").mkdir()
    file.close()
    assert "could not be written" in file.problem
    assert list(tmp_path.glob("*.partial*")) == []


def test_folder_in_the_way_of_a_file(tmp_path):
    """A folder that cannot be written to is refused at the start, with its name."""
    (tmp_path / "file").touch()
    with pytest.raises(pytest.UsageError, match=r"--precision-report=.*file/sub .*another folder"):
        JsonFile(tmp_path / "file" / "sub", {})


def test_lost_folder_does_not_end_the_tests(tmp_path):
    """A write that fails later is kept for the summary, and the next one may succeed."""
    folder = tmp_path / "report"
    file = JsonFile(folder, {})
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    file.close()
    assert file.problem == f"{folder}/report.json could not be written: No such file or directory"
    folder.mkdir()
    file.close()
    assert file.problem == ""


def test_a_cell_that_cannot_be_written_is_left_out(tmp_path):
    """It is named, the others are there, and nobody takes the file for a finished one."""
    endless: list = []
    endless.append(endless)
    file = JsonFile(tmp_path, {})
    file.put("bad", [verdict(), verdict("fail", "why") | {"curves": endless}])
    file.put("good", [verdict()])
    file.close()
    assert "report.json lacks bad: RecursionError: " in file.problem
    assert [entry["outcome"] for entry in read(tmp_path)["cells"]] == ["pass"]
    assert read(tmp_path)["finished"] is False


class SlowDisk:
    """A clock on which every look takes a second: one write costs one."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_writes_wait_for_their_share(tmp_path):
    """After a write that took a second, the next waits until 19 more are over."""
    clock = SlowDisk()
    file = JsonFile(tmp_path, {}, clock=clock)
    file.put("a", [verdict()])
    file.put("b", [verdict()])
    assert len(read(tmp_path)["cells"]) == 1
    clock.now += WRITING_SHARE
    file.put("c", [verdict()])
    assert len(read(tmp_path)["cells"]) == 3
    file.close()


def test_waiting_write_comes_by_itself(tmp_path):
    """What ended before a long cell is in the file soon, though no test ends meanwhile."""
    file = JsonFile(tmp_path, {})
    for number in range(50):
        file.put(number, [verdict()])
    deadline = time.monotonic() + 30
    while len(read(tmp_path)["cells"]) < 50:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "milliseconds",
    [70, 310, *(pytest.param(late, marks=pytest.mark.nightly) for late in (20, 150, 470))],
)
def test_kill_leaves_a_valid_file(tmp_path, milliseconds):
    """After a SIGKILL at any moment the file is whole, and before it the file only ever grows."""
    command = [sys.executable, "-c", ADD_FOREVER, str(tmp_path)]
    path = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={"PYTHONPATH": ":".join(path)}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        sizes = []
        end = time.monotonic() + milliseconds / 1000
        while time.monotonic() < end:
            sizes.append(len(read(tmp_path)["cells"]))
        process.send_signal(signal.SIGKILL)
    sizes.append(len(read(tmp_path)["cells"]))
    assert sizes == sorted(sizes)
    assert sizes[-1] > 0
