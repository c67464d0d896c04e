"""Sort the parts of a training loop, such as models and optimizers, by their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pytest_precision.errors import NoSetupError, expected_but_got, named
from pytest_precision.recorders.scripts.loop_names import LoopNames

AUDITED_KINDS = "modules, optimizers, schedulers, pipeline stages and data loaders"


@dataclass
class TrainingSetup:
    """A training loop's models, optimizers, schedulers, pipeline stages and data loaders.

    Attributes:
        models: the modules that are trained, wrappers included.
        optimizers: as the loop calls them, wrappers included.
        schedulers: of learning rates.
        stages: of `torch.distributed.pipelining`.
        dataloaders: where the batches come from.
        names: the logical names of the models' tensors.
    """

    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    stages: list[Any] = field(default_factory=list)
    dataloaders: list[Any] = field(default_factory=list)
    names: LoopNames = field(default_factory=LoopNames)

    @classmethod
    def of(cls, *parts: Any) -> TrainingSetup:
        """Sort the parts of a training loop by their types, also inside lists and dicts.

        Raises:
            NoSetupError: a part is none of these, there is no model or no optimizer, or a
                parameter has no shape yet.
        """
        setup = cls()
        for place, part in enumerate(parts):
            setup._take(part, f"part {place}")
        setup.models += [
            stage.submod
            for stage in setup.stages
            if not any(stage.submod in [*model.modules()] for model in setup.models)
        ]
        for role, role_parts in (("model", setup.models), ("optimizer", setup.optimizers)):
            if not role_parts:
                all_parts = [setup.models, setup.optimizers, setup.schedulers]
                all_parts += [setup.stages, setup.dataloaders]
                raise NoSetupError(
                    expected_but_got(
                        f"at least one {role}",
                        ", ".join(type(part).__name__ for parts in all_parts for part in parts)
                        or "nothing",
                        "give audit the model and the optimizer of your training loop",
                    )
                )
        if any(is_lazy(parameter) for model in setup.models for parameter in model.parameters()):
            raise NoSetupError(
                expected_but_got(
                    "a model whose parameters have shapes",
                    "a lazy module before its first forward",
                    "call the model once before audit",
                )
            )
        alone = len(setup.models) == 1
        setup.names.add(
            setup.models[0] if alone else {f"model{n}": m for n, m in enumerate(setup.models)}
        )
        setup.names.settle(())
        return setup

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter once, with the name that it has without wrappers."""
        for name, parameter in self.names.parameters():
            pieces = self.names.pieces(parameter)
            inside = [piece[0] for piece in pieces or () if piece[0]]
            # A flat parameter of FSDP1 is named by what lies in it.
            yield "+".join(dict.fromkeys(inside)) or name, parameter

    def shapes(self, parameter: Tensor) -> list[tuple[int, ...]]:
        """Return the unsharded shapes of all tensors that lie in a (perhaps flat) parameter."""
        pieces = self.names.pieces(parameter)
        if pieces is not None:
            return [tuple(piece[1]) for piece in pieces if piece[0]]
        # DeepSpeed's stage 3 leaves an empty parameter behind.
        return [tuple(getattr(parameter, "ds_shape", parameter.shape))]

    def _take(self, part: Any, place: str) -> None:
        home = self._home(part)
        if home is not None:
            home.append(part)
        elif isinstance(part, Mapping):
            for key, value in part.items():
                self._take(value, str(key))
        elif isinstance(part, (list, tuple)):  # others may yield batches, and never end
            for number, value in enumerate(part):
                self._take(value, f"{place}.{number}")
        elif part is not None:
            raise NoSetupError(
                expected_but_got(
                    AUDITED_KINDS, part_in_words(place, part), "give what is in it, or leave it out"
                )
            )

    def _home(self, part: Any) -> list[Any] | None:
        """Return the list, such as `models`, to which a part is added; None for other types."""
        if isinstance(part, nn.Module):
            return self.models
        if hasattr(part, "submod") and hasattr(part, "stage_index"):
            return self.stages
        if hasattr(part, "step") and (
            hasattr(part, "param_groups") or hasattr(part, "chained_optimizers")
        ):
            return self.optimizers
        if hasattr(part, "get_last_lr") or (hasattr(part, "optimizer") and hasattr(part, "get_lr")):
            return self.schedulers
        if hasattr(part, "dataset") and hasattr(part, "__iter__"):
            return self.dataloaders
        return None


def part_in_words(place: str, part: Any) -> str:
    """Return place and type of a part, with a short value or a shape; others may be long."""
    if isinstance(part, (str, int, float)):
        return named(place, part)
    shape = f" of shape {tuple(part.shape)}" if isinstance(part, Tensor) else ""
    return f"{place} ({type(part).__name__}{shape})"
