"""Record the forwards without gradients that a script makes, whether or not it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision._torch.dispatch import version
from pytest_precision.engine.observation import Observation
from pytest_precision.recorders.scripts.script_file import ended_well, run_file
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.inference_weights import WeightTable
from pytest_precision.rollout.module_outputs import ModuleOutputs, output_tensors
from pytest_precision.rollout.score_folder import ScoreRecorder, calls_recorded
from pytest_precision.rollout.score_recording import of_scores
from pytest_precision.rollout.scorer import Scores
from pytest_precision.rollout.shown_weights import of_weights
from pytest_precision.rollout.token_rows import NO_TOKEN, SEQUENCE, TokenRows, places_of
from pytest_precision.rollout.ways import logprobs_of
from pytest_precision.trace.reader import FORWARDS


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


class PlacedRows(TokenRows):
    """The rows of a forward, each named by its number in the batch and its place in the row.

    Attributes:
        ids: of the forward, of shape [batch, tokens]; None if it has none.
    """

    def __init__(self) -> None:
        super().__init__([])
        self.ids: Tensor | None = None

    def read(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Take the rows from the ids of a forward, or else from its first tensor."""
        tensors = output_tensors((options.get("input_ids"), *arguments, *options.values()))
        if not tensors or not tensors[0].ndim:
            return
        first = tensors[0].detach()
        if first.is_floating_point() or first.ndim != 2:
            shape = first.shape[:2] if first.ndim > 2 else (len(first), 1)
            places = torch.arange(shape[1]).expand(shape)
        else:
            self.ids = first.cpu()
            places = places_of(self.ids, options)
        numbers = torch.arange(len(places)).unsqueeze(-1) * SEQUENCE
        self.codes = torch.where(places == NO_TOKEN, NO_TOKEN, places + numbers)

    def sequences(self) -> Iterator[Tensor]:
        """Yield the ids of each row without padding."""
        assert self.ids is not None
        assert self.codes is not None
        for ids, codes in zip(self.ids, self.codes, strict=True):
            yield ids[codes != NO_TOKEN].long()


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
        self._weights: dict[int, tuple[list[tuple[int, int]], list[Observation]]] = {}

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
        rows = PlacedRows()
        outputs = ModuleOutputs(rows)
        self._within = True
        try:
            with outputs.watching(module):
                output = forward(module, *arguments, **options)
        finally:
            self._within = False
        sequences = [] if rows.ids is None else [*rows.sequences()]
        scores = Scores(dict(logprobs_by_row(rows, output)), rows, outputs)
        self._recorder.add([*of_scores(scores, sequences)], self._weights_of(module))
        return output

    def _weights_of(self, module: nn.Module) -> list[Observation]:
        """Return the weights of a module, digested anew only if one has been written to."""
        tensors = (*module.parameters(), *module.buffers())
        versions = [(tensor.data_ptr(), version(tensor)) for tensor in tensors]
        before, shown = self._weights.get(id(module), ([], []))
        if versions != before or not shown:
            shown = [*of_weights(WeightTable.of(module), SyncTerms(), delivered=False)]
            self._weights[id(module)] = versions, shown
        return shown


def logprobs_by_row(rows: PlacedRows, output: Any) -> Iterator[tuple[int, Tensor]]:
    """Yield the log-probabilities of the tokens of each row, if a forward has ids and logits."""
    tensors = output_tensors(output)
    if rows.ids is None or rows.codes is None or not tensors or tensors[0].ndim != 3:
        return
    logits = tensors[0]
    if logits.shape[:2] != rows.ids.shape or int(rows.ids.max()) >= logits.shape[2]:
        return
    for number, ids in enumerate(rows.sequences()):
        if len(ids) > 1:
            present = (rows.codes[number] != NO_TOKEN).to(logits.device)
            yield number, logprobs_of(logits[number][present].cpu(), ids)
