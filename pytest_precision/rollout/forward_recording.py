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
from pytest_precision.recorders.scripts.script_file import ended_well, run_file
from pytest_precision.rollout.cached_prefixes import CachedPrefixes
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.inference_weights import WeightTable
from pytest_precision.rollout.module_outputs import ModuleOutputs
from pytest_precision.rollout.placed_rows import PlacedRows
from pytest_precision.rollout.score_folder import ScoreRecorder, calls_recorded
from pytest_precision.rollout.score_recording import of_scores
from pytest_precision.rollout.scorer import Scores
from pytest_precision.rollout.shown_weights import of_weights
from pytest_precision.trace.digests import digest
from pytest_precision.trace.header import FORWARDS
from pytest_precision.trace.lin8 import additive_digest


def record_forwards(file: Path, arguments: Sequence[str], folder: Path, steps: int) -> int:
    """Run a script file and record its first forwards without gradients; return their number.

    Raises:
        RecordingError: it makes none.
        Exception: whatever the script raises.
    """
    absent = f"{file} to call a module without gradients; write its calls in torch.no_grad()"
    with calls_recorded(folder, file, arguments, FORWARDS, absent) as recorder:
        with ForwardWatch(recorder, steps).watching(), ended_well():
            run_file(file, arguments)
        return recorder.calls


class ForwardWatch:
    """Records the outermost forwards that modules make without gradients.

    Args:
        recorder: of the calls.
        steps: most of them; the script is ended where it begins the one after them.
    """

    def __init__(self, recorder: ScoreRecorder, steps: int) -> None:
        self._recorder = recorder
        self._steps = steps
        self._within = False
        self._prefixes = CachedPrefixes()
        self._weights: dict[int, tuple[list[str], list[Observation]]] = {}

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
        finally:
            self._within = False
        rows.keep_cache(output)
        scores = Scores(dict(rows.logprobs(output)), rows, outputs)
        sequences = [piece.ids for piece in rows.pieces]
        self._recorder.add([*of_scores(scores, sequences)], self._weights_of(module))
        return output

    def _weights_of(self, module: nn.Module) -> list[Observation]:
        """Return the weights of a module, shown anew only if their bytes are not those of before.

        Versions of tensors would not tell: what is written through `.data` counts for none.
        """
        digests = [held_bytes(tensor) for tensor in (*module.parameters(), *module.buffers())]
        before, shown = self._weights.get(id(module), ([], []))
        if digests != before or not shown:
            shown = [*of_weights(WeightTable.of(module), SyncTerms(), delivered=False)]
            self._weights[id(module)] = digests, shown
        return shown


def held_bytes(tensor: Tensor) -> str:
    """Return a digest of what this process holds of a tensor, by what is fast where it is."""
    local: Any = tensor.detach()
    if is_dtensor(local):
        local = local.to_local()
    return digest(local) if local.device.type == "cpu" else additive_digest(local)
