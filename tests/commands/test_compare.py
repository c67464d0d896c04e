"""Two recordings agree, part at a named place, or cannot be compared, and the status says which."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from edits import sealed_again
from written import read_report

import pytest_precision
from pytest_precision import Cell, Parity, ParityError, RecordingError, ulp
from pytest_precision.__main__ import main
from pytest_precision.options import Settings
from pytest_precision.trace.cache import TraceCache

RecordFile = Callable[..., Path]
Output = pytest.CaptureFixture[str]

PACKAGE = Path(pytest_precision.__file__).parent

NO_REPORT: dict[str, object] = {"type": "object", "required": [], "properties": {}}
"""In place of what the schema asks of a whole report."""

OTHER = ("other.py", "0.01", "9")
"""The script with another learning rate of its last layer from the third step on."""


@pytest.fixture
def other(in_folder: Path) -> tuple[str, ...]:
    """A script that parts from the first one in its third step."""
    text = (in_folder / "train.py").read_text()
    planted = (
        "if step == 2:\n        optimizer.param_groups[0]['betas'] = (0.8, 0.999)\n    if step"
    )
    (in_folder / "other.py").write_text(text.replace("if step", planted, 1))
    return OTHER


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is small: digests alone are kept."""
    monkeypatch.setattr("pytest_precision.recorders.scripts.loop_trace.SMALL_RUN", 0)


def refused(capsys: Output, *words: str) -> str:
    """What is said when two recordings cannot be compared."""
    with pytest.raises(SystemExit, match="2"):
        main(["compare", *words])
    return capsys.readouterr().err


def test_two_runs_of_a_script_agree(record: RecordFile, capsys: Output) -> None:
    """The status is 0, and what was not compared is said."""
    record("a")
    record("b")
    assert main(["compare", "a", "b"]) == 0
    found = capsys.readouterr().out
    assert found.startswith("a against b: 686 tensors in 9 steps agree; criterion bitwise\n")
    assert "grad is not compared: candidate: --see grad shows it" in found


def test_how_they_were_made_is_said_of_those_that_agree(
    record: RecordFile, in_folder: Path, capsys: Output
) -> None:
    """Two releases that agree are the reason for comparing them."""
    (in_folder / "copy.py").write_text((in_folder / "train.py").read_text())
    record("a", "--steps", "1")
    record("b", "--steps", "1", script=("copy.py", "0.01", "99"))
    assert main(["compare", "b", "a"]) == 0
    found = capsys.readouterr().out
    assert "  script: copy.py here, train.py in the reference\n" in found
    assert "  arguments: 0.01 99 here, 0.01 9 in the reference\n" in found


def test_another_gpu_or_driver_is_said(record: RecordFile, capsys: Output) -> None:
    """G11: it may add in another order, and whoever compares two machines asks for it first."""
    gpus = {
        "a": {"gpu": "NVIDIA A100-SXM4-80GB", "driver": "550.54.15", "nccl": "2.28.3"},
        "b": {"gpu": "NVIDIA H100 80GB HBM3", "driver": "580.65.06", "nccl": "2.28.3"},
    }
    for name, of_gpu in gpus.items():
        header = record(name, "--steps", "1") / "rank0.json"
        written = json.loads(header.read_text())
        written["environment"] |= of_gpu
        header.write_text(json.dumps(written))
        sealed_again(header.parent, header.name)
    assert main(["compare", "b", "a"]) == 0
    found = capsys.readouterr().out
    for name in ("gpu", "driver"):
        assert f"  {name}: {gpus['b'][name]} here, {gpus['a'][name]} in the reference\n" in found
    assert "nccl" not in found


def test_the_first_divergence_is_named(
    record: RecordFile, other: tuple[str, ...], capsys: Output
) -> None:
    """As a failing cell names it, with the command that compares again."""
    record("a")
    record("b", script=other)
    assert main(["compare", "b", "a"]) == 1
    found = capsys.readouterr().out
    assert found.startswith("b against a: hyper differs at step 3 after clip_grads: betas.0 of 0.w")
    assert "step 2 agreed" in found
    assert "script: other.py here, train.py in the reference" in found
    assert "Repeat with: python -m pytest_precision compare b a" in found


@pytest.mark.usefixtures("large")
def test_digests_say_where_and_how_to_see_more(
    record: RecordFile, other: tuple[str, ...], capsys: Output
) -> None:
    """The command that keeps the values is that of each side."""
    record("a")
    record("b", script=other)
    words = ["--criterion", "hyper=unchecked(reason='planted')"]
    assert main(["compare", "b", "a", *words]) == 1
    found = capsys.readouterr().out
    assert "exp_avg differs at step 3 after optimizer_step: 0.weight; step 2 agreed" in found
    again = "python -m pytest_precision record --out DIR --steps 10 --values 3 -- other.py 0.01 9"
    assert again in found
    assert "exp_avg float32 = = differs" in " ".join(found.split())


@pytest.mark.usefixtures("large")
def test_values_are_compared_with_digests(record: RecordFile, other: tuple[str, ...]) -> None:
    """One recording may have values of a step of which the other one has digests."""
    record("a", "--values", "0-10")
    record("b")
    record("c", script=other)
    assert main(["compare", "a", "b"]) == main(["compare", "b", "a"]) == 0
    assert main(["compare", "a", "c"]) == main(["compare", "c", "a"]) == 1


@pytest.mark.usefixtures("large")
def test_elements_are_named_where_both_have_values(
    record: RecordFile, other: tuple[str, ...], capsys: Output
) -> None:
    """Of the step in question alone, so that little is kept."""
    record("a", "--values", "3")
    record("b", "--values", "3", script=other)
    main(["compare", "b", "a", "-v", "--criterion", "hyper=unchecked(reason='planted')"])
    found = capsys.readouterr().out
    assert "exp_avg differs at step 3 after optimizer_step" in found
    assert "Greatest absolute difference" in found


@pytest.mark.usefixtures("large")
def test_a_tolerance_needs_values(record: RecordFile, capsys: Output) -> None:
    """Digests cannot tell how far two tensors are apart."""
    record("a")
    record("b")
    found = refused(capsys, "a", "b", "--criterion", "exp_avg=ulp(1)")
    assert "values of all steps for within 1 ulp but got a digest of exp_avg 0.weight" in found
    assert "--steps 10 --values 0-10 -- train.py 0.01 9" in found


def test_a_criterion_decides(record: RecordFile) -> None:
    """It is written as in a test, and the option is repeated for further kinds."""
    record("a", "--steps", "1")
    record("b", "--steps", "1", script=("train.py", "0.0100001", "9"))
    near = [f"{kind}=close(rtol=0, atol=1e-6)" for kind in ("lr", "master", "param")]
    words = [word for text in near for word in ("--criterion", text)]
    assert main(["compare", "a", "b", *words]) == 0
    assert main(["compare", "a", "b", *words[2:]]) == 1


def test_one_recording_proves_nothing(record: RecordFile, capsys: Output) -> None:
    """It agrees with itself whatever it holds."""
    record("a")
    assert main(["compare", "a", "./a"]) == 1
    assert (
        "vacuous: the candidate and the reference are the same recording" in capsys.readouterr().out
    )


def test_a_script_reads_the_verdict(
    record: RecordFile, other: tuple[str, ...], capsys: Output
) -> None:
    """Of either outcome, as a check that the schema of report.json describes, and nothing else."""
    record("a")
    record("b")
    record("c", script=other)
    schema = json.loads((PACKAGE / "report" / "schema.json").read_text())
    capsys.readouterr()
    for candidate, status, outcome in (("b", 0, "pass"), ("c", 1, "fail")):
        assert main(["compare", candidate, "a", "--json"]) == status
        check = json.loads(capsys.readouterr().out)
        jsonschema.validate(check, schema | {"$ref": "#/$defs/check"} | NO_REPORT)
        assert (check["outcome"], check["candidate"]) == (outcome, candidate)


def test_the_report_has_the_verdict(
    record: RecordFile, other: tuple[str, ...], in_folder: Path, capsys: Output
) -> None:
    """In report.json, as that of a cell, and on a page."""
    record("a")
    record("b", script=other)
    main(["compare", "b", "a", "--report", "out"])
    report = read_report(in_folder / "out" / "report.json")
    page = (in_folder / "out" / "report.html").read_text()
    assert "1 of 1 cell failed" in page
    assert report["seconds"] > 0
    assert "candidate: other.py 0.01 9 · " in page
    [cell] = report["cells"]
    assert (report["finished"], cell["outcome"], cell["candidate"]) == (True, "fail", "b")
    assert (cell["divergence"]["step"], cell["divergence"]["kind"]) == (3, "hyper")
    assert "expected a folder that can be written to but got --report=train.py" in refused(
        capsys, "b", "a", "--report", "train.py"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exp_avg=near(1)", "'exp_avg=near(1)': there is no such criterion; criteria are bitwise"),
        ("ulp", "'ulp': a criterion is written as a call, such as ulp(2)"),
        ("ulp(open('train.py'))", "open('train.py') is neither a number nor a quoted text"),
        ("ulp(-1)", "'ulp(-1)': expected"),
    ],
)
def test_what_is_no_criterion_is_refused(
    record: RecordFile, capsys: Output, text: str, message: str
) -> None:
    """Nothing in it is run but the criterion itself."""
    record("a", "--steps", "1")
    record("b", "--steps", "1")
    assert message in refused(capsys, "a", "b", "--criterion", text)


def test_bad_recordings_are_refused(record: RecordFile, capsys: Output) -> None:
    """With status 2, which is no disagreement."""
    record("a", "--steps", "2")
    record("b", "--steps", "3")
    assert "got 2 in a and 3 in b; record both with --steps 2" in refused(capsys, "a", "b")
    assert "which has no recording.json; make one with" in refused(capsys, "a", ".")


@pytest.fixture
def parity() -> Parity:
    """The fixture of that name; recordings need no ranks."""
    ranks: object = None
    return Parity("test", Cell(), Settings(), ranks, TraceCache())  # type: ignore[arg-type]


def test_a_test_compares_recordings(
    record: RecordFile, other: tuple[str, ...], parity: Parity
) -> None:
    """With the verdicts and errors of a check."""
    record("a")
    record("b")
    record("c", script=other)
    assert parity.compare("a", "b", criterion={"exp_avg": ulp(0)}).outcome == "pass"
    with pytest.raises(ParityError, match="hyper differs at step 3"):
        parity.compare("c", "a")
    assert [verdict.outcome for verdict in parity.verdicts] == ["pass", "fail"]
    with pytest.raises(RecordingError, match="got no none; make one"):
        parity.compare("a", "none")


@pytest.mark.slow
def test_recordings_of_other_world_sizes_are_compared(
    on_two_ranks: Callable[..., None], capsys: Output
) -> None:
    """By logical tensors; the ranks of a launch write one recording, and its end is no failure."""
    words = ["record", "--steps", "2", "--out"]
    script = ["--", "train.py", "0.01", "9"]
    on_two_ranks(*words, "two", *script)
    assert main([*words, "one", *script]) == 0
    assert main(["compare", "two", "one"]) == 0
    assert "loss is not compared: every rank has its own" in capsys.readouterr().out


@pytest.mark.slow
def test_a_reader_may_have_had_enough(
    record: RecordFile, other: tuple[str, ...], in_folder: Path
) -> None:
    """`compare a b | head -1` says nothing of pipes, and the status is that of the verdict."""
    record("a")
    record("b", script=other)
    words = [sys.executable, "-m", "pytest_precision", "compare", "b", "a"]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as closed:
        ended = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=100)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_rate_is_no_number_of_units_in_the_last_place(record: RecordFile, capsys: Output) -> None:
    """It was chosen and not computed; how far apart two of them are is said in other words."""
    record("a", "--steps", "1")
    record("b", "--steps", "1", script=("train.py", "0.011", "9"))
    assert main(["compare", "b", "a", "-v"]) == 1
    found = capsys.readouterr().out
    assert "lr differs before the first step" in found
    assert "Greatest absolute difference: 0.001" in found
    assert "units in the last place" not in found


def test_the_table_follows_the_first_line(
    record: RecordFile, other: tuple[str, ...], capsys: Output
) -> None:
    """How they were made stands between them, and the rest is said with -v."""
    record("a")
    record("b", script=other)
    main(["compare", "b", "a"])
    brief = capsys.readouterr().out.splitlines()
    main(["compare", "b", "a", "-v"])
    whole = capsys.readouterr().out.splitlines()
    assert brief[0] == whole[0]
    assert brief[1] == "  script: other.py here, train.py in the reference"
    assert brief[2].startswith("  To name the line, record with: ")
    assert brief[3] == "  "
    assert brief[4].split()[:4] == ["kind", "dtype", "…", "1"]
    assert (
        brief[-1] == "  -v shows the figures, the bounds that would pass, and what is not compared"
    )
    rest = [line for line in whole if line not in brief]
    for words in (
        "Mismatched elements",
        "would pass",
        "grad is not compared",
        "criterion  bitwise",
    ):
        assert any(words in line for line in rest)
        assert not any(words in line for line in brief[:-1])


def test_brief(record: RecordFile, capsys: Output) -> None:
    """One line says that both agree, or what differs first."""
    record("a", "--steps", "1")
    record("b", "--steps", "1", script=("train.py", "0.0100001", "9"))
    record("c", "--steps", "1")
    assert main(["compare", "c", "a", "--brief"]) == 0
    (agreed,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"c against a: \d+ tensors agree", agreed)
    assert main(["compare", "b", "a", "--brief"]) == 1
    (told,) = capsys.readouterr().out.splitlines()
    assert told.startswith("b against a: lr differs before the first step")


def test_what_is_offered_to_paste_is_an_option(record: RecordFile, capsys: Output) -> None:
    """The command line takes it as it stands, and then both agree."""
    record("a", "--steps", "1")
    record("b", "--steps", "1", script=("train.py", "0.0100001", "9"))
    words = ["compare", "b", "a", "--criterion", "lr=unchecked(reason='planted')"]
    assert main([*words, "-v"]) == 1
    found = re.search(r"with room for other data: (--criterion .*)", capsys.readouterr().out)
    assert found is not None
    assert main([*words, *shlex.split(found[1])]) == 0


def test_a_hidden_kind_is_accepted_by_an_option(
    record: RecordFile, in_folder: Path, capsys: Output
) -> None:
    """One line names all that a loop hides, which shows no loss and lends its model weights."""
    text = (in_folder / "train.py").read_text()
    hidden = text.replace("loss.backward()", "torch.autograd.backward(loss)")
    lent = "functional_call(model, {n: p * 1 for n, p in model.named_parameters()}, "
    hidden = "from torch.func import functional_call\n" + hidden.replace("model(", lent)
    (in_folder / "hides.py").write_text(hidden)
    for name in ("a", "b"):
        record(name, "--steps", "1", script=("hides.py", "0.01", "9"))
    assert main(["compare", "a", "b"]) == 1
    found = re.search(r"say so with (--criterion .*)", capsys.readouterr().out)
    assert found is not None
    assert main(["compare", "a", "b", *shlex.split(found[1])]) == 0


def test_names_are_given_in_the_file(record: RecordFile, in_folder: Path, capsys: Output) -> None:
    """A recorded file has no engine, and takes the package's `record`."""
    text = (in_folder / "train.py").read_text()
    named = "from pytest_precision import record\nrecord({'net': model})\nfor step in"
    (in_folder / "named.py").write_text(text.replace("for step in", named))
    record("a", "--steps", "1")
    record("b", "--steps", "1", script=("named.py", "0.01", "9"))
    assert main(["compare", "b", "a", "-v"]) == 1
    found = capsys.readouterr().out
    assert "let the file name the bare model: `from pytest_precision import record`" in found
    assert "Engine" not in found
    assert "--see grad shows it" in found


def test_five_lines_say_what_was_not_compared() -> None:
    """All are said with -v: two frameworks may keep much that nobody computes with."""
    from pytest_precision import Verdict
    from pytest_precision.commands.compare import FEW, lines
    from pytest_precision.parity.verdict import Ruling

    names = {f"attribute calls of layer{n}": "the reference has none" for n in range(FEW + 3)}
    verdict = Verdict(
        nodeid="a against b",
        axes={"sequence": "train2"},
        candidate="a",
        reference="b",
        workload="",
        criterion="bitwise",
        ruling=Ruling(),
        figures={"left_out": names},
    )
    assert len(lines(verdict)) == 1 + FEW + 1
    assert lines(verdict)[-1] == "  and 3 more; -v shows all"
    assert len(lines(verdict, verbose=True)) == 1 + FEW + 3
