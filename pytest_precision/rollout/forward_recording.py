"""Record the forwards without gradients that a script makes, whether or not it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision._torch.distributed import is_dtensor
from pytest_precision.engine.observation import Observation
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.recorders.scripts.script_file import ended_well, run_file
from pytest_precision.rollout.cached_prefixes import CachedPrefixes
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.inference_weights import WeightTable, active_adapters
from pytest_precision.rollout.module_outputs import ModuleOutputs
from pytest_precision.rollout.placed_rows import PlacedRows
from pytest_precision.rollout.score_folder import ScoreRecorder, calls_recorded
from pytest_precision.rollout.score_recording import of_noise, of_scores
from pytest_precision.rollout.scorer import Scorer, Scores
from pytest_precision.rollout.shown_weights import of_table, of_weights
from pytest_precision.trace.digests import digest
from pytest_precision.trace.header import FORWARDS
from pytest_precision.trace.lin8 import additive_digest

HONEST_WAYS = 6
"""Ways that are measured for a bound."""


def record_forwards(
    file: Path, arguments: Sequence[str], folder: Path, steps: int, *, measures: bool = False
) -> int:
    """Run a script file and record its first forwards without gradients; return their number.

    Args:
        file: the script.
        arguments: of the script.
        folder: new or empty.
        steps: most forwards.
        measures: see `ForwardWatch`.

    Raises:
        RecordingError: it makes none, or none whose honest ways can be measured.
        Exception: whatever the script raises.
    """
    absent = f"{file} to call a module without gradients; write its calls in torch.no_grad()"
    with calls_recorded(folder, file, arguments, FORWARDS, absent) as recorder:
        watch = ForwardWatch(recorder, steps, measures=measures)
        with watch.watching(), ended_well():
            run_file(file, arguments)
        if watch.measures:
            expected = "a forward of whole sequences with their logits, to measure honest ways of"
            raise RecordingError(expected_but_got(expected, "none", "leave --honest-ways out"))
        return recorder.calls


class ForwardWatch:
    """Records the outermost forwards that modules make without gradients.

    Args:
        recorder: of the calls.
        steps: most of them; the script is ended where it begins the one after them.
        measures: whether honest ways are measured of the first model that scores whole sequences,
            for `noise()` of `compare`.

    Attributes:
        measures: as given, until they are measured.
    """

    def __init__(self, recorder: ScoreRecorder, steps: int, *, measures: bool = False) -> None:
        self._recorder = recorder
        self._steps = steps
        self.measures = measures
        self._within = False
        self._prefixes = CachedPrefixes()
        self._weights: dict[int, tuple[object, list[Observation], list[Observation]]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the forwards of the block."""
        original = nn.Module.__call__

        def called(module: nn.Module, *arguments: Any, **options: Any) -> Any:
            if self._within or torch.is_grad_enabled():
                return original(module, *arguments, **options)
            if self._recorder.calls == self._steps:
                raise SystemExit(0)
            return self._recorded(original, module, arguments, options)

        # Hooks of all modules are not given the arguments that have names.
        nn.Module.__call__ = called  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]

    def _recorded(
        self,
        forward: Callable[..., Any],
        module: nn.Module,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        rows = PlacedRows(self._prefixes)
        outputs = ModuleOutputs(rows)
        self._within = True
        try:
            with outputs.watching(module):
                output = forward(module, *arguments, **options)
            scores = Scores(dict(rows.logprobs(output)), rows, outputs)
            sequences = [piece.ids for piece in rows.pieces]
            shown = [*of_scores(scores, sequences), *self._noise_of(module, rows, scores)]
        finally:
            self._within = False
        rows.keep_cache(output)
        facts, weights = self._weights_of(module)
        self._recorder.add([*shown, *facts], weights)
        return output

    def _noise_of(
        self, module: nn.Module, rows: PlacedRows, scores: Scores
    ) -> Iterator[Observation]:
        """Yield how far honest ways are apart, once, of a forward that has scored sequences."""
        sequences = [piece.ids for piece in rows.pieces]
        scored = len(scores.logprobs) == len(sequences) > 0
        if not self.measures or not scored or any(piece.start for piece in rows.pieces):
            return
        try:
            with torch.random.fork_rng():
                yield from of_noise(Scorer(model=module), sequences, HONEST_WAYS, None)
        except ValueError as error:
            raise RecordingError(str(error)) from error
        self.measures = False

    def _weights_of(self, module: nn.Module) -> tuple[list[Observation], list[Observation]]:
        """Return what is said of a module's weights, and these.

        They are read anew only if their bytes are not those of before, or other adapters compute.
        Versions of tensors would not tell: what is written through `.data` counts for none.
        """
        digests = [held_bytes(tensor) for tensor in (*module.parameters(), *module.buffers())]
        state = digests, active_adapters(module)
        if id(module) not in self._weights or self._weights[id(module)][0] != state:
            table = WeightTable.of(module)
            weights = [*of_weights(table, SyncTerms(), delivered=False)]
            self._weights[id(module)] = state, [*of_table(table)], weights
        return self._weights[id(module)][1:]


def held_bytes(tensor: Tensor) -> str:
    """Return a digest of what this process holds of a tensor, by what is fast where it is."""
    local: Any = tensor.detach()
    if is_dtensor(local):
        local = local.to_local()
    return digest(local) if local.device.type == "cpu" else additive_digest(local)
