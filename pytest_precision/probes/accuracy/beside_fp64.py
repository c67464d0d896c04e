"""Measure whether a side's new version is as close to exact fp64 results as its old one.

What is worse is further from the same step in exact arithmetic than it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pytest_precision.check.recordings import Recordings
from pytest_precision.errors import RanksSkipped, SideFailed
from pytest_precision.probes.accuracy.step_accuracy import OfTensors, StepAccuracy
from pytest_precision.recorders.variant import Variant
from pytest_precision.trace.moment import BEFORE_TRAINING
from pytest_precision.trace.segment_folders import folder_of, recorded_segments

AS_ACCURATE = {"gradients": 2.0, "updates": 4.0}
"""Factor of an error that is no loss of accuracy, for each kind. Sums in another order reach 1.2 in
gradients of the package's workloads, and 2.6 in updates, in which Adam divides by what is small."""

SAME_EXACT = 2.0**-30
"""How far two exact steps may be apart that compute the same: fp64, whose sums have another order,
and whose small terms cancel."""


class SquaredNorms(NamedTuple):
    """Squared L2 norms of errors and of the exact values, of one tensor or of several."""

    error: float
    size: float

    @property
    def share(self) -> float:
        """Return the L2 norm of the error relative to that of the exact values."""
        return math.sqrt(self.error / self.size) if self.size else math.sqrt(self.error)


@dataclass(frozen=True)
class Accuracy:
    """How far a run's gradients or updates are from fp64, with this code and at another revision.

    Attributes:
        here: norm of the error of all tensors now, as a share of that of the exact ones.
        there: the same share in the earlier version.
        tensor: the one whose error grew most; empty if none did.
        tensor_here, tensor_there: the same shares of that tensor.
        exact_moved: how far the exact ones are from those of then, as a share.
    """

    here: float
    there: float
    tensor: str
    tensor_here: float
    tensor_there: float
    exact_moved: float

    @classmethod
    def of(cls, new_tensors: OfTensors, old_tensors: OfTensors) -> Accuracy:
        """Compute a run's distance from fp64, now and at another revision (`old_tensors`)."""
        names = [name for name in new_tensors if name in old_tensors]
        new_norms, old_norms = (
            {name: _norms_of(*tensors[name]) for name in names}
            for tensors in (new_tensors, old_tensors)
        )
        grown = {name: new_norms[name].error - old_norms[name].error for name in names}
        most = max(names, key=lambda name: grown[name], default="")
        moved_squared_norms = _all(
            _norms_of(new_tensors[name].exact, old_tensors[name].exact) for name in names
        )
        worst = most if most and grown[most] > 0 else ""
        return cls(
            _all(new_norms.values()).share,
            _all(old_norms.values()).share,
            worst,
            new_norms[worst].share if worst else 0.0,
            old_norms[worst].share if worst else 0.0,
            moved_squared_norms.share,
        )

    @property
    def ratio(self) -> float | None:
        """Return the error now over the earlier error; None if only the earlier one is 0."""
        return _error_ratio(self.here, self.there)

    def words(self, kind: str, then: str) -> str:
        """Say how far `kind`, such as gradients, is from fp64 now and was at revision `then`."""
        said = (
            f"{kind} of the first step are {self.here:.2g} of their norm from fp64 here, "
            f"{self.there:.2g} at {then}: {_times(self.ratio)} as far"
        )
        if self.exact_moved > SAME_EXACT:
            return (
                f"{said}. The exact ones differ by {self.exact_moved:.2g}, too: it is not rounding "
                "alone that moved"
            )
        limit = AS_ACCURATE[kind]
        if self.ratio is not None and self.ratio <= limit:
            better = "more accurate than" if self.ratio < 1 / limit else "as accurate as"
            return f"{said}. The new ones are {better} the old ones"
        where = ""
        if self.tensor:
            grown = _times(_error_ratio(self.tensor_here, self.tensor_there))
            where = f", most in {self.tensor}, {grown} as far"
        return f"{said}{where}. The new ones are less accurate"


def _error_ratio(new_error: float, old_error: float) -> float | None:
    """Return `new_error` divided by `old_error`: 1 if both are 0, None if only `old_error` is 0."""
    if old_error:
        return new_error / old_error
    return None if new_error else 1.0


Accuracies = Mapping[str, Mapping[str, Accuracy | str]]
"""Each side to how accurate each kind is now and then, or why that is unknown."""


def measured(recordings_by_side: Mapping[str, Recordings]) -> Accuracies:
    """Measure how far candidate and reference are from fp64, now and at another revision.

    Args:
        recordings_by_side: each side to its recordings: as the candidate now, and as the
            reference then.
    """
    accuracies: dict[str, dict[str, Accuracy | str]] = {}
    for name, recordings in recordings_by_side.items():
        if recordings.candidate.workload is None:
            continue
        try:
            accuracies[name] = _accuracies_of_kinds(*errors_of_first_step(recordings))
        except (RanksSkipped, SideFailed, OSError, ValueError) as error:
            accuracies[name] = dict.fromkeys(AS_ACCURATE, str(error))
    return accuracies


def errors_of_first_step(recordings: Recordings) -> tuple[StepAccuracy, StepAccuracy]:
    """Run candidate and reference up to step 1, and return that step's errors against fp64.

    Raises:
        SideFailed, RanksSkipped, WorldSizeError: see `Recordings.both`.
        OSError, ValueError: what was recorded cannot be read.
    """
    folders = recordings.folders(BEFORE_TRAINING, Variant(beside_exact=True))
    candidate_step_accuracy, reference_step_accuracy = (
        StepAccuracy.read(
            folder_of(folder, recorded_segments(side.cell, BEFORE_TRAINING)[-1].number)
        )
        for folder, side in zip(folders, (recordings.candidate, recordings.reference), strict=True)
    )
    return candidate_step_accuracy, reference_step_accuracy


def _accuracies_of_kinds(
    new_step: StepAccuracy, old_step: StepAccuracy
) -> dict[str, Accuracy | str]:
    accuracies: dict[str, Accuracy | str] = {}
    for kind in AS_ACCURATE:
        silent = new_step.silent.get(kind) or old_step.silent.get(kind)
        steps = (step.tensors.get(kind, {}) for step in (new_step, old_step))
        accuracies[kind] = silent or Accuracy.of(*steps)
    return accuracies


def as_builtins(accuracies: Accuracies) -> dict[str, Any]:
    """Return the errors of candidate and reference as nested dicts, for report.json."""
    return {
        name: {
            kind: {"silent": accuracy}
            if isinstance(accuracy, str)
            else {**asdict(accuracy), "ratio": accuracy.ratio}
            for kind, accuracy in by_kind.items()
        }
        for name, by_kind in accuracies.items()
    }


def accuracy_lines(accuracies: Accuracies, then: str) -> Iterator[str]:
    """Yield sentences on how far candidate and reference are from fp64, now and at `then`.

    Args:
        accuracies: see `measured`.
        then: what messages call the other version.
    """
    said: dict[str, list[str]] = {}
    for name, by_kind in accuracies.items():
        for kind, accuracy in by_kind.items():
            words = (
                f"{kind} of the first step are not compared with fp64: {accuracy}"
                if isinstance(accuracy, str)
                else accuracy.words(kind, then)
            )
            said.setdefault(words, []).append(name)
    for words, names in said.items():
        whose = "Both sides'" if len(names) == 2 else f"The {names[0]}'s"
        yield f"{whose} {words}."


def _norms_of(actual_tensor: Tensor, exact_tensor: Tensor) -> SquaredNorms:
    return SquaredNorms(
        float((actual_tensor - exact_tensor).norm()) ** 2, float(exact_tensor.norm()) ** 2
    )


def _all(norms: Iterable[SquaredNorms]) -> SquaredNorms:
    errors, sizes = zip((0.0, 0.0), *norms, strict=True)
    return SquaredNorms(sum(errors), sum(sizes))


def _times(ratio: float | None) -> str:
    return "infinitely many times" if ratio is None else f"{ratio:.2g} times"
