"""Check a run's quantized weights, and its amax histories and scales of delayed scaling.

The scale of an operand under delayed scaling is that of the amaxes of earlier steps, so a run shows
from what each of its scales and histories was made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor

from pytest_precision.formats.delayed import DelayedScaling
from pytest_precision.formats.format import Format
from pytest_precision.formats.per_tensor import CurrentScaling, quantize_by
from pytest_precision.formats.registry import by_name, recipe
from pytest_precision.formats.scaling import FP32_MAXIMUM, tensor_amax
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.matrix.tensor_key import OperandPart, TensorKey, role_of, slot_of
from pytest_precision.modules.padding import quantize_padded
from pytest_precision.modules.parameter import tensors_of
from pytest_precision.probes.identities.identity_rules import EntriesByName, Judged, RunView
from pytest_precision.probes.identities.quantized_kinds import QUANTIZED
from pytest_precision.trace.moment import Moment


class Quantization:
    """Checks the quantized weights, amax histories and scales of a run.

    Args:
        cell: where it runs.
        shown: what it shows.
        resident: the weights that are resident in bytes, in the order in which they are judged.
        coarse: those whose masters show other weights than were cast.
    """

    def __init__(
        self, cell: Cell, shown: RunView, resident: Collection[str], coarse: Collection[str]
    ) -> None:
        self._shown = shown
        self._resident = resident
        self._coarse = coarse
        self._formats: dict[str, Format] = {}
        self._used: EntriesByName = {}
        self._stepped: set[str] = set()
        if PRECISIONS[cell.precision].quantized:
            formats = recipe(cell.precision)
            operands = ("input", "weight", "gradient")
            self._formats = {operand: by_name(getattr(formats, operand)) for operand in operands}
        delayed = isinstance(self._formats.get("weight"), DelayedScaling)
        self._delayed = delayed
        self._how = "quantized with the scale before it" if delayed else "quantized"

    def used(
        self, moment: Moment, tensors: EntriesByName, state: EntriesByName
    ) -> Iterator[Judged]:
        """Yield quantized weights in a forward that differ from a new quantization of the weights.

        Where resident ones are hidden since they are gathered in this forward, they must be made of
        the masters that the last step has left.

        Args:
            moment: after a forward.
            tensors: what it shows.
            state: what was held before it.
        """
        self._used = tensors
        quantized: dict[str, Mapping[str, Tensor]] = {}
        for full, entries in tensors["used_quantized"].items():
            key = TensorKey.of("used_quantized", full)
            name = key.owner
            operand = key.operand
            if operand is None:
                continue
            got = self._shown.whole(entries)
            tensor = "used_quantized", full
            source, weights = "used_param", tensors["used_param"]
            if name in self._resident:
                kind = QUANTIZED[operand.field]
                stored = state.get(kind, {}).get(TensorKey(name, operand.side).name(kind))
                if stored is not None:
                    exact = self._shown.whole(stored)
                    yield self._shown.equal(moment, tensor, f"the {kind} before it", got, exact)
                if stored is not None or name not in self._stepped:
                    continue
                source, weights = "the master before it", state.get("master", {})
            if name not in quantized:
                quantized[name] = self._quantized(name, self._shown.whole(weights.get(name)), state)
            identity = f"{source}, {self._how}"
            yield self._shown.equal(moment, tensor, identity, got, quantized[name].get(key.part))
        yield from self._turned(moment, "used_quantized", tensors, "data")

    def updated(
        self, moment: Moment, tensors: EntriesByName, state: EntriesByName
    ) -> Iterator[Judged]:
        """Yield quantized weights, amax histories and scales that a train step got wrong.

        Args:
            moment: after its update.
            tensors: what it shows.
            state: what was held before the step.
        """
        moved = [name for name in self._resident if self._moved(name, tensors, state)]
        if not self._delayed:  # what is hidden may be cast before or after its scale is updated
            self._stepped |= {*moved}.difference(self._coarse)
        yield from self._bytes(moment, moved, tensors, state)
        yield from self._turned(moment, "quantized", tensors, "")
        amaxes = dict(self._amaxes(moved, tensors))
        for name in tensors["scale"]:
            format = self._formats.get(role_of(name))
            if isinstance(format, DelayedScaling):
                yield from self._slot(moment, name, format, amaxes.get(name), (tensors, state))

    def loaded(self) -> None:
        """Forget which quantized weights a step has changed: a loaded checkpoint replaces them."""
        self._stepped.clear()

    def _quantized(
        self, name: str, weight: Tensor | None, state: EntriesByName
    ) -> Mapping[str, Tensor]:
        """Quantize a weight; return its parts by name, such as `rowwise.data`, or an empty dict."""
        format = self._formats.get("weight")
        if format is None or format.stochastic or weight is None or weight.dim() != 2:
            return {}
        values = weight.to(torch.bfloat16)
        if not isinstance(format, DelayedScaling):
            return dict(tensors_of(quantize_padded(format, values)))
        scale = self._shown.whole(state.get("scale", {}).get(slot_of(name)))
        if scale is None:
            return {}
        amax = tensor_amax(values)
        element = format.element
        return dict(tensors_of(quantize_by(format.name, values, scale, amax, element, "both")))

    def _moved(self, name: str, tensors: EntriesByName, state: EntriesByName) -> bool:
        """Return whether an optimizer step is known to have changed a master weight."""
        entries = tensors["master"].get(name)
        before = state.get("master", {}).get(name)
        if not entries or not before or self._shown.same(entries, before):
            return False
        master, then = self._shown.whole(entries), self._shown.whole(before)
        return master is not None and then is not None and not torch.equal(master, then)

    def _bytes(
        self, moment: Moment, moved: Collection[str], tensors: EntriesByName, state: EntriesByName
    ) -> Iterator[Judged]:
        """Yield contradictions where stored quantized bytes are not the quantized master weight."""
        for name in moved:
            if name in self._coarse:
                continue
            quantized = self._quantized(name, self._shown.whole(tensors["master"][name]), state)
            for key, exact in quantized.items():
                side, field = OperandPart.of(key)
                kind = QUANTIZED[field]
                full = TensorKey(name, side).name(kind)
                got = self._shown.whole(tensors[kind].get(full))
                identity = f"its master, {self._how}"
                yield self._shown.equal(moment, (kind, full), identity, got, exact)

    def _turned(
        self, moment: Moment, kind: str, tensors: EntriesByName, field: str
    ) -> Iterator[Judged]:
        """Yield columnwise copies of quantized weights that are not the rowwise ones transposed."""
        if not isinstance(self._formats.get("weight"), (CurrentScaling, DelayedScaling)):
            return
        for full, entries in tensors[kind].items():
            key = TensorKey.of(kind, full)
            if key.operand != OperandPart("columnwise", field):
                continue
            got = self._shown.whole(entries)
            rowwise = key._replace(part=OperandPart("rowwise", field).part).name(kind)
            exact = self._shown.whole(tensors[kind].get(rowwise))
            turned_tensor = None if exact is None else exact.t().contiguous()
            identity = "its rowwise bytes, transposed"
            yield self._shown.equal(moment, (kind, full), identity, got, turned_tensor)

    def _amaxes(
        self, moved: Collection[str], tensors: EntriesByName
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield, for each weight, the largest absolute value (amax) cast to fp8 in this step."""
        for name in self._used.get("used_param", {}):
            used = TensorKey(name, OperandPart("rowwise", "amax").part).name("used_quantized")
            entries = self._used["used_quantized"].get(used)
            if name in self._resident:
                resident = TensorKey(name, "rowwise").name("amax")
                entries = tensors["amax"].get(resident) if name in moved else None
            amax = self._shown.whole(entries)
            if amax is not None:
                yield slot_of(name), amax

    def _slot(
        self,
        moment: Moment,
        name: str,
        format: DelayedScaling,
        amax: Tensor | None,
        sides: tuple[EntriesByName, EntriesByName],
    ) -> Iterator[Judged]:
        """Yield a contradiction if an amax history or scale does not follow from the previous one.

        Args:
            moment: after the update.
            name: of an operand.
            format: its own.
            amax: of what was cast since the last update; None where that is not known.
            sides: what is held now, and what was before.
        """
        history = TensorKey(name, "history").name("amax")
        amaxes, then = (
            self._shown.whole(tensors.get("amax", {}).get(history)) for tensors in sides
        )
        scale, old = (self._shown.whole(tensors.get("scale", {}).get(name)) for tensors in sides)
        if amaxes is None or then is None or scale is None or old is None:
            return
        if amax is None:
            newest_tensor = amaxes[-1:]
            identity = "the history before it, rolled"
            if torch.equal(amaxes, then):
                newest_tensor = torch.zeros_like(newest_tensor)
        else:
            recorded = sides[1].get("recorded_amax", {}).get(history, [])
            new_amaxes = [amax, *(self._shown.whole([entry]) for entry in recorded)]
            newest_tensor = torch.stack(
                [tensor for tensor in new_amaxes if tensor is not None]
            ).amax(0)
            identity = "the history before it, rolled, and the largest amax since"
        rolls = float(newest_tensor) != 0
        exact_tensor = torch.cat([then[1:], newest_tensor]) if rolls else then
        yield self._shown.equal(moment, ("amax", history), identity, amaxes, exact_tensor)
        largest = torch.maximum(then.amax(0, keepdim=True), newest_tensor)
        expected = _scale(format.element.maximum, largest, old) if rolls else old
        identity = "that of the largest amax of its history"
        yield self._shown.equal(moment, ("scale", name), identity, scale, expected)


def _scale(maximum: float, amax: Tensor, old_tensor: Tensor) -> Tensor:
    """Return the scale of an amax in fp32; the old scale if the amax is not finite."""
    scale = torch.full_like(amax, maximum).div_(amax).clamp_(max=FP32_MAXIMUM)
    return scale if bool(amax.isfinite()) else old_tensor
