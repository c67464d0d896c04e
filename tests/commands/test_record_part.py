"""Parts of a big run: tensors by name and by step are recorded, and a pass says of what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_precision import RecordingError
from pytest_precision.__main__ import main
from pytest_precision.check.recorded_pair import expect_the_same_part
from pytest_precision.trace.whole_recording import whole_recording

RecordFile = Callable[..., Path]
Output = pytest.CaptureFixture[str]

ALWAYS = {"loss", "grad_norm", "lr", "hyper", "flag", "rng"}


def seen(folder: Path) -> dict[int, dict[str, set[str]]]:
    """Return step to kind to the names of what was recorded."""
    found: dict[int, dict[str, set[str]]] = {}
    trace = whole_recording("candidate", folder).trace
    for moment in trace.moments:
        kinds = found.setdefault(moment.step, {})
        for entry in trace.entries(moment):
            kinds.setdefault(entry.kind, set()).add(entry.name)
    return found


def test_tensors_by_name(record: RecordFile) -> None:
    """Of weights, gradients and state those of the pattern; of what is small, everything."""
    found = seen(record("a", "--steps", "2", "--only", "0.*"))
    whole = seen(record("b", "--steps", "2"))
    for step, kinds in whole.items():
        for kind, names in kinds.items():
            kept = names if kind in ALWAYS else {n for n in names if n.startswith("0.")}
            assert found[step].get(kind, set()) == kept, (step, kind)
    assert whole[2]["param"] > found[2]["param"] > set()


def test_tensors_by_step(record: RecordFile) -> None:
    """In the first step, in each n-th after it and in the last; losses in all."""
    found = seen(record("a", "--steps", "6", "--every", "2"))
    assert {step for step, kinds in found.items() if "param" in kinds} == {0, 1, 3, 5, 6}
    assert {step for step, kinds in found.items() if "used_param" in kinds} == {1, 3, 5, 6}
    assert {step for step, kinds in found.items() if "loss" in kinds} == {1, 2, 3, 4, 5, 6}


def test_an_evaluation_between_two_steps_leaves_the_first_one(record: RecordFile) -> None:
    """What it has left is read anew when the next one runs, and is of the same step."""
    text = Path("train.py").read_text()
    evaluating = f"{text}    with torch.no_grad():\n        model(torch.ones(1, 8))\n"
    Path("evaluating.py").write_text(evaluating)
    script = ("evaluating.py", "0.01", "9")
    found = seen(record("a", "--steps", "4", "--every", "2", script=script))
    for kind in ("param", "exp_avg"):
        assert {step for step, kinds in found.items() if kind in kinds} - {0} == {1, 3, 4}


def test_a_pass_says_of_what_it_is(record: RecordFile, capsys: Output) -> None:
    """Which tensors and steps were left out, and where else a difference would be seen."""
    part = ("--steps", "5", "--only", "0.*", "--only", "2.bias", "--every", "2")
    record("a", *part)
    record("b", *part)
    capsys.readouterr()
    assert main(["compare", "b", "a"]) == 0
    told = capsys.readouterr().out
    assert "each tensor but 0.* or 2.bias is not compared: candidate: record --only; " in told
    assert "tensors of other steps than 1, 3, 5 … and the last is not compared: " in told


def test_a_difference_in_the_part_is_found(record: RecordFile, capsys: Output) -> None:
    """And one beside it by the losses that follow from it."""
    record("a", "--steps", "3", "--only", "0.*")
    record("b", "--steps", "3", "--only", "0.*", script=("train.py", "0.02", "9"))
    assert main(["compare", "b", "a", "--criterion", "lr=unchecked(reason='planted')"]) == 1
    assert "b against a: master differs at step 1 after optimizer_step" in capsys.readouterr().out


def test_other_parts_are_no_comparison(record: RecordFile, capsys: Output) -> None:
    """What one side lacks would be called missing; both options are named instead."""
    record("a", "--steps", "2")
    record("b", "--steps", "2", "--only", "0.*", "--every", "2")
    with pytest.raises(SystemExit):
        main(["compare", "b", "a"])
    told = " ".join(capsys.readouterr().err.split())
    assert "expected two recordings of the same tensors and steps but got" in told
    assert (
        "'--only=0.*' --every=2 in b and --every=1 in a; record both with the same --only" in told
    )


def test_a_name_that_is_not_there_is_refused(record: RecordFile, capsys: Output) -> None:
    """Else a wrong pattern would record nothing, and the comparison of nothing would pass."""
    with pytest.raises(SystemExit):
        record("a", "--steps", "1", "--only", "layers.0.*")
    told = capsys.readouterr().err
    assert "error: expected --only to match the name of a tensor but got 'layers.0.*'" in told
    assert "; there are 0.weight, " in told


NESTED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))

    def forward(self, batch):
        return self.layers(batch)

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} done")
"""


def test_both_names_of_a_tensor_are_one(record: RecordFile) -> None:
    """That of a recording, and that of `named_parameters`, which counts what only wraps."""
    Path("nested.py").write_text(NESTED)
    shown = [
        seen(record(name, "--steps", "2", "--only", pattern, script=("nested.py",)))
        for name, pattern in (("a", "0.*"), ("b", "layers.0.*"), ("c", "layers.0.weight"))
    ]
    assert shown[0] == shown[1]
    assert shown[1][2]["param"] == {"0.weight", "0.bias"}
    assert shown[2][2]["param"] == {"0.weight"}
    record("again", "--steps", "2", "--only", "layers.0.*", script=("nested.py",))
    assert main(["compare", "again", "b"]) == 0


def test_a_wrong_name_ends_the_script_after_its_first_step(
    record: RecordFile, capsys: Output
) -> None:
    """And not when all steps have run."""
    Path("nested.py").write_text(NESTED)
    with pytest.raises(SystemExit):
        record("a", "--steps", "3", "--only", "layer.0.*", script=("nested.py",))
    output = capsys.readouterr()
    assert "step 0 done" in output.out
    assert "step 1 done" not in output.out
    assert "--only to match the name of a tensor but got 'layer.0.*'" in output.err


def test_the_command_that_records_again_has_the_part(record: RecordFile) -> None:
    """A failure tells it, for values of a step."""
    folder = record("a", "--steps", "2", "--only", "0.*", "--every", "2")
    manifest = whole_recording("candidate", folder).manifest
    assert manifest is not None
    assert " --only '0.*' --every 2 -- train.py" in manifest.again("1")


@pytest.mark.slow
def test_ranks_record_a_part(
    on_two_ranks: Callable[..., None], in_folder: Path, capsys: Output
) -> None:
    """And a pattern that no rank has matched is refused, which each may have left to the others."""
    words = ["record", "--steps", "3", "--only", "0.*", "--every", "2", "--out"]
    script = ["--", "train.py", "0.01", "9"]
    on_two_ranks(*words, "two", *script)
    assert main([*words, "one", *script]) == 0
    capsys.readouterr()
    assert main(["compare", "two", "one"]) == 0
    assert "each tensor but 0.* is not compared: candidate: record" in capsys.readouterr().out
    two = whole_recording("candidate", in_folder / "two")
    assert two.manifest is not None
    wrong = replace(two, manifest=replace(two.manifest, only=("0.*", "layers.*")))
    told = r"--only to match .* got 'layers.\*' in .*two; there are 0.weight, 0.bias, "
    with pytest.raises(RecordingError, match=told):
        expect_the_same_part(wrong, wrong)
