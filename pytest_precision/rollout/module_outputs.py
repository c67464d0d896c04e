"""Record the output of each module for each token, as digests, while a side scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pytest_precision.matrix.contract import dtype_name
from pytest_precision.rollout.inference_weights import logical_name
from pytest_precision.rollout.token_rows import NO_TOKEN, TokenRows

POSITIONS = "position_ids"
"""The name under which the positions stand that a forward is given, before all modules."""

ROOT = "(logits)"
"""The name under which the output of the model as a whole stands, after all modules."""

ROOTS = ("", "base_model", "base_model.model")
"""The names of the model as a whole, and of what PEFT puts around it."""

Codes = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """What one call of a module has shown.

    Attributes:
        codes: tokens of the rows, see `coded`.
        digests: of each row.
        values: the rows themselves, where they were asked for; or choices.
    """

    codes: Tensor
    digests: Tensor
    values: Tensor | None = None


class ByToken(NamedTuple):
    """All that a module has shown, in the order of its tokens, of each the last.

    Attributes:
        codes: of the tokens, ascending.
        digests: of each token.
        values: of each token, where they were asked for.
    """

    codes: Codes
    digests: Codes
    values: Tensor | None


class ModuleOutputs:
    """The outputs of all modules of a model, by token.

    Args:
        rows: tells which token each row is.
        values_of: the module whose values are wanted, too; empty for none.

    Attributes:
        dtypes: name of each module to the dtype of its output, in the order in which they end.
        widths: name of each module to the number of elements of its output that a token has.
    """

    def __init__(self, rows: TokenRows, values_of: str = "") -> None:
        self._rows = rows
        self._values_of = values_of
        self._shown: dict[str, list[Rows]] = {}
        self._choices: dict[str, list[Rows]] = {}
        self.dtypes: dict[str, str] = {}
        self.widths: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of the modules that have shown an output, in the order of their ends."""
        return [*self._shown]

    @property
    def routers(self) -> list[str]:
        """Return the names of the modules that have chosen experts."""
        return [*self._choices]

    def of(self, name: str) -> ByToken:
        """Return what a module has shown, by token."""
        return by_token(self._shown[name])

    def choices(self, name: str) -> ByToken:
        """Return the experts that a router has chosen, by token: the last column is the margin."""
        return by_token(self._choices[name])

    def join(self, other: ModuleOutputs, renamed: Callable[[Tensor], Tensor]) -> None:
        """Add what other forwards have shown, with a function of their tokens' codes."""
        for ours, theirs in ((self._shown, other._shown), (self._choices, other._choices)):
            for name, calls in theirs.items():
                rows = [call._replace(codes=renamed(call.codes)) for call in calls]
                ours.setdefault(name, []).extend(rows)
        self.dtypes |= other.dtypes
        self.widths |= other.widths

    def stored(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each module's name, dtype and width as a text, and its tokens and digests."""
        for name in self.names:
            shown = self.of(name)
            columns = [torch.from_numpy(part.copy()) for part in (shown.codes, shown.digests)]
            yield f"{self.dtypes[name]} {self.widths[name]} {name}", torch.stack(columns)

    def restore(self, words: str, table: Tensor) -> None:
        """Take what a module has shown from such a text and such a table."""
        dtype, width, name = words.split(" ", 2)
        self._shown[name] = [Rows(table[0], table[1])]
        self.dtypes[name], self.widths[name] = dtype, int(width)

    def stored_choices(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield each router's name, a table of its tokens and their experts, and the margins."""
        for name in self.routers:
            chosen = self.choices(name)
            assert chosen.values is not None
            codes = torch.from_numpy(chosen.codes.copy()).unsqueeze(-1)
            experts, margins = chosen.values[:, :-1], chosen.values[:, -1]
            yield name, torch.cat([codes, experts.long()], -1), margins

    def restore_choices(self, name: str, table: Tensor, margins: Tensor) -> None:
        """Take what a router has chosen from such a table, with the margins."""
        experts = table[:, 1:]
        values = torch.cat([experts.double(), margins.double().unsqueeze(-1)], -1)
        self._choices[name] = [Rows(table[:, 0], row_digests(experts), values)]

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Record the forwards of the block."""
        hooks = [model.register_forward_pre_hook(self._begin, with_kwargs=True)]
        for name, module in model.named_modules():
            chosen = experts_chosen(model, name)
            hook = partial(self._end, module_name_of(name), chosen)
            hooks.append(module.register_forward_hook(hook))
        try:
            yield
        finally:
            for handle in hooks:
                handle.remove()

    def _begin(self, _: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._rows.read(arguments, options)
        positions = options.get(POSITIONS)
        if isinstance(positions, Tensor) and self._rows.codes is not None:
            self._add(POSITIONS, [positions.unsqueeze(-1)])

    def _end(self, name: str, chosen: int, _: nn.Module, __: Any, output: Any) -> None:
        if self._rows.codes is None:
            return
        tensors = output_tensors(output)
        self._add(name, [tensor for tensor in tensors if tensor.shape == tensors[0].shape])
        if chosen:
            self._choose(name, chosen, tensors)

    def _add(self, name: str, tensors: list[Tensor]) -> None:
        laid = [self._laid(tensor) for tensor in tensors]
        rows = [row for row in laid if row is not None]
        if not rows or len(rows) < len(laid):
            return
        assert self._rows.codes is not None
        digests = sum((row_digests(row) for row in rows[1:]), row_digests(rows[0]))
        values = rows[0].to("cpu", copy=True) if name == self._values_of else None
        shown = Rows(self._rows.codes.flatten(), digests.cpu(), values)
        self._shown.setdefault(name, []).append(shown)
        self.dtypes[name] = dtype_name(tensors[0].dtype)
        self.widths[name] = rows[0].shape[1]

    def _choose(self, name: str, chosen: int, tensors: list[Tensor]) -> None:
        """Note which experts a router has chosen, the least first, and by which margin."""
        logits = self._laid(tensors[0])
        if logits is None or logits.shape[1] <= chosen:
            return
        assert self._rows.codes is not None
        top = logits.float().topk(chosen + 1)
        experts = top.indices[:, :chosen].sort().values
        margin = (top.values[:, chosen - 1] - top.values[:, chosen]).unsqueeze(-1)
        values = torch.cat([experts.double(), margin.double()], -1).cpu()
        shown = Rows(self._rows.codes.flatten(), row_digests(experts).cpu(), values)
        self._choices.setdefault(name, []).append(shown)

    def _laid(self, tensor: Tensor) -> Tensor | None:
        """Return a tensor as a matrix with a row for each of the forward; None if it has none."""
        assert self._rows.codes is not None
        rows, tokens = self._rows.codes.shape
        tensor = tensor.detach()
        if tensor.ndim >= 2 and tensor.shape[:2] == (1, tokens):
            tensor = tensor.expand(rows, *tensor.shape[1:])
        if tensor.ndim >= 2 and tensor.shape[:2] == (rows, tokens):
            return tensor.reshape(rows * tokens, -1)
        if tensor.ndim >= 2 and tensor.shape[0] == rows * tokens:
            return tensor.reshape(rows * tokens, -1)
        return None


def by_token(calls: list[Rows]) -> ByToken:
    """Join what all calls of a module have shown; of a token that is there twice, the last."""
    codes = torch.cat([call.codes for call in calls]).numpy()[::-1]
    digests = torch.cat([call.digests for call in calls]).numpy()[::-1]
    unique, first = np.unique(codes, return_index=True)
    tokens = unique != NO_TOKEN
    order = first[tokens]
    values = [call.values for call in calls if call.values is not None]
    rows = torch.cat(values).flip(0)[torch.from_numpy(order.copy())] if values else None
    return ByToken(unique[tokens], digests[order], rows)


def output_tensors(output: Any) -> list[Tensor]:
    """Return the tensors that a module gives back, the main one first."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = [output.get("logits"), output.get("last_hidden_state"), *output.values()]
    if isinstance(output, (tuple, list)):
        return [part for part in output if isinstance(part, Tensor)]
    return []


def module_name_of(name: str) -> str:
    """Return the logical name of a module, from its name in the model that is called."""
    return ROOT if name in ROOTS else logical_name(name)


def experts_chosen(model: nn.Module, name: str) -> int:
    """Return how many experts a router chooses for each token; 0 for a module that is none."""
    if not name.endswith((".gate", ".router")):
        return 0
    for owner in (model.get_submodule(name), model.get_submodule(name.rpartition(".")[0])):
        for attribute in ("top_k", "num_experts_per_tok"):
            number = getattr(owner, attribute, 0)
            if isinstance(number, int) and number:
                return number
    return 0


def row_digests(rows: Tensor) -> Tensor:
    """Return 64 bits of each row of a matrix, which differ where any byte of it does.

    Each digest is a sum of the row's 4-byte pieces, each times an odd number of its own. It needs
    three passes of whole matrices, where a hash of each row would cost a call for each token.
    """
    width = rows.shape[1] * rows.itemsize
    lane = torch.int32 if width % 4 == 0 else torch.int16 if width % 2 == 0 else torch.uint8
    rows = rows.contiguous()
    pieces = (rows.view(torch.uint8) if rows.dtype is torch.bool else rows).view(lane)
    wide = pieces.to(torch.int64)
    return wide.mul_(_factors(wide.shape[1]).to(wide.device)).sum(-1)


@cache
def _factors(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(-(1 << 62), 1 << 62, (number,), generator=generator) * 2 + 1
