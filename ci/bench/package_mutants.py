"""Plant 20 defects in the package itself, one at a time, and have `ci/test`'s tests find each.

    python ci/bench/package_mutants.py [NAME ...] [--everything]

A mutant is caught if a test fails that passes without it. The test files that are named beside it
run; with --everything all tests of the day run, until the first fails. The work tree is not
touched: each mutant is planted in a copy of what git would commit.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """A defect of the package.

    Attributes:
        name: what is wrong, in a few words.
        file: the module below `pytest_precision`.
        right: what stands there, once.
        wrong: what stands there instead.
        tests: files or folders below `tests` that should find it.
    """

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "the last divergence is named, not the first",
        "parity/compare/divergences.py",
        "judgement.first = judgement.first or finding",
        "judgement.first = finding",
        ("parity/compare/test_divergences.py",),
    ),
    Mutant(
        "the dtypes of masters are not held against the contract",
        "check/gates.py",
        "            if actual_dtype != dtype:",
        '            if actual_dtype != dtype and kind != "master":',
        ("check/test_storage_contract.py", "check"),
    ),
    Mutant(
        "a gradient norm of zero proves enough",
        "parity/self_checks/vacuity.py",
        '    ("grad_norm", _no_gradient),\n',
        "",
        ("parity/self_checks/test_vacuity.py",),
    ),
    Mutant(
        "replicas of the last rank are not compared",
        "parity/compare/pairs.py",
        "    for piece in pieces[1:]:\n        if not trace.same_bytes",
        "    for piece in pieces[1:-1]:\n        if not trace.same_bytes",
        ("parity/compare/test_pairs.py", "parity"),
    ),
    Mutant(
        "elements that no rank holds count as held",
        "parity/compare/pairs.py",
        "    if missing and not first.local:",
        "    if missing and first.local:",
        ("parity/compare/test_pairs.py", "parity"),
    ),
    Mutant(
        "the oracle of Adam adds eps within the root",
        "probes/declared_rule/oracle/adam.py",
        "        return corrected.sqrt_().add_(self.eps)",
        "        return corrected.add_(self.eps).sqrt_()",
        ("check/test_declared_rule.py", "check"),
    ),
    Mutant(
        "updates that moved a weight count as lost",
        "probes/lost_updates/measured.py",
        "still = moved.eq_(0)",
        "still = moved.ne_(0)",
        ("recorders/test_lost_updates.py",),
    ),
    Mutant(
        "the reference is not looked at for what disturbs training",
        "check/gates.py",
        "    for number, side in enumerate(case.judged):\n        finding = _disturbed",
        "    for number, side in enumerate(case.judged[:1]):\n        finding = _disturbed",
        ("check/test_gates.py",),
    ),
    Mutant(
        "a skipped step may change the moments",
        "matrix/sequence.py",
        '"scale", "amax", "recorded_amax", "loss_scale"',
        '"scale", "amax", "recorded_amax", "loss_scale", "exp_avg"',
        ("check/test_gates.py",),
    ),
    Mutant(
        "power-of-two scales keep their mantissa",
        "formats/scaling.py",
        "_EXPONENT_BITS = -(1 << 23)",
        "_EXPONENT_BITS = -(1 << 22)",
        ("formats/test_delayed.py", "formats"),
    ),
    Mutant(
        "two tensors of other dtypes with the same digest are alike",
        "parity/compare/pairs.py",
        "alike = (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)",
        "alike = ours.shape == theirs.shape",
        ("parity/compare/test_divergences.py",),
    ),
    Mutant(
        "the loss scale stays after an overflow",
        "engine/loss_scale.py",
        "        if overflowed:\n            self.scale /= 2",
        "        if overflowed:\n            self.scale /= 1",
        ("engine/test_loss_scale.py", "engine"),
    ),
    Mutant(
        "races are looked for on no CPU",
        "probes/races/late_ranks.py",
        'cell.device != "cpu" or any(segment.world_size > 1',
        'cell.device != "cpu" or any(segment.world_size > 8',
        ("check/test_races.py",),
    ),
    Mutant(
        "a vacuous test does not fail the session",
        "report/status.py",
        '"vacuous": Status("V", "vacuous", "red", failing=True)',
        '"vacuous": Status("V", "vacuous", "red", failing=False)',
        ("report/test_json_file.py", "report/test_collect.py", "report", "plugin"),
    ),
    Mutant(
        "a bisection takes good for bad",
        "commands/bisect.py",
        'good = verdict.outcome == "pass"',
        'good = verdict.outcome != "pass"',
        ("commands/test_bisect.py",),
    ),
    Mutant(
        "main gradients are not zeroed before a step",
        "layouts/replicated.py",
        "        self.model.zero_grad()\n        super().forward_backward(step)",
        "        super().forward_backward(step)",
        ("layouts/test_precisions.py", "layouts"),
    ),
    Mutant(
        "a norm is computed of the gradients that one mesh has",
        "engine/clipping.py",
        "norms[0] if len(norms) == 1 else",
        "norms[0] if norms else",
        ("layouts/test_two_dimensional.py", "engine", "layouts"),
    ),
    Mutant(
        "digests of transposed tensors are those of their memory",
        "trace/digests.py",
        ".resolve_conj().resolve_neg().contiguous()",
        ".resolve_conj().resolve_neg()",
        ("trace",),
    ),
    Mutant(
        "within a tolerance is beyond it, by one ulp",
        "parity/compare/bounds.py",
        "        return self.n\n",
        "        return self.n + 1\n",
        ("parity/compare",),
    ),
    Mutant(
        "a baseline keeps nothing of the last moment",
        "probes/baselines/baseline_trace.py",
        "for moment in segment_moments\n",
        "for moment in [*segment_moments][:-1]\n",
        ("check/test_baselines.py", "check/test_baseline_text.py", "check"),
    ),
)


def copied(folder: Path) -> None:
    """Copy into a folder what git would commit of the work tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    # rsync is not everywhere; tar keeps links and modes.
    packed = subprocess.run(
        ["tar", "-C", ROOT, "--null", "-T", "-", "-cf", "-"],
        input=listed,
        capture_output=True,
        check=False,
    ).stdout
    subprocess.run(["tar", "-C", folder, "-xf", "-"], input=packed, check=True)
    subprocess.run(["git", "init", "-q", folder], check=True)


def plant(folder: Path, mutant: Mutant) -> None:
    """Change the copy's module; raise ValueError if what is right does not stand there once."""
    path = folder / "pytest_precision" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.right) != 1:
        raise ValueError(
            f"expected {mutant.right!r} once in {mutant.file} but got it "
            f"{text.count(mutant.right)} times; write the mutant {mutant.name!r} anew"
        )
    path.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")


def failing_test(folder: Path, tests: tuple[str, ...]) -> str:
    """Run tests in the copy, and return the first that fails; empty if none does."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    for chosen in tests or ("",):
        options = f"-x -q -p no:cacheprovider -m 'not nightly' tests/{chosen}"
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "--precision-matrix", *shlex.split(options)],
            cwd=folder,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        for line in ended.stdout.splitlines():
            if line.startswith(("FAILED", "ERROR")):
                return line.partition(" - ")[0]
        if ended.returncode not in (0, 5):
            return f"(exit status {ended.returncode}) {ended.stdout[-300:]}{ended.stderr[-300:]}"
    return ""


def main() -> int:
    """Print for each mutant which test caught it; return 1 if any was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="words that a mutant's name has; all by default")
    parser.add_argument("--everything", action="store_true", help="run all tests of the day")
    args = parser.parse_args()
    chosen = [m for m in MUTANTS if not args.names or any(n in m.name for n in args.names)]
    missed = 0
    for mutant in chosen:
        with tempfile.TemporaryDirectory() as folder_name:
            folder = Path(folder_name)
            copied(folder)
            plant(folder, mutant)
            began = time.monotonic()
            test = failing_test(folder, () if args.everything else mutant.tests)
        missed += not test
        seconds = time.monotonic() - began
        print(
            f"{'caught' if test else 'MISSED'} {seconds:5.0f} s  {mutant.name}: {test}", flush=True
        )
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
