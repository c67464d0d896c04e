"""Compute the hyperparameters that a workload declares for each parameter group and step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.tensor_key import unwrapped
from pytest_precision.probes.declared_rule.oracle.adam import adam_formula
from pytest_precision.probes.declared_rule.oracle.sgd import sgd_formula
from pytest_precision.probes.declared_rule.oracle.update import Formula
from pytest_precision.workloads.base import Workload
from pytest_precision.workloads.rules import SGD, AdamW, OptimizerRule


class _Still(torch.optim.Optimizer):
    """An optimizer whose `step` changes no weight, for a scheduler that changes its options."""

    def step(self, closure: Any = None) -> Any:
        """Do nothing; a scheduler expects this call before its own step."""


class UpdatePlan:
    """The hyperparameters of every step, from the workload's rule, groups and scheduler.

    No optimizer of a layout is asked: one that has taken over a wrong rate would confirm it.

    Args:
        workload: declares a rule.
        cell: the workload's model is made for it, to learn the names in each group.

    Attributes:
        formula: that of the rule.
        groups: logical tensor to the number of its group.
        frozen: names of the weights that get no gradient, and that no group has.
    """

    def __init__(self, workload: Workload, rule: OptimizerRule, cell: Cell) -> None:
        self.formula = _formula(rule)
        devices = [torch.cuda.current_device()] if cell.device == "cuda" else []
        with torch.random.fork_rng(devices):
            model = workload.model(cell)
            groups = workload.groups(model)
        parameters = [(unwrapped(path), parameter) for path, parameter in model.named_parameters()]
        names = {id(parameter): name for name, parameter in parameters}
        self.groups = {
            names[id(parameter)]: number
            for number, group in enumerate(groups)
            for parameter in group["params"]
        }
        self.frozen = [
            name
            for name, parameter in parameters
            if not parameter.requires_grad and name not in self.groups
        ]
        still_groups = [{**group, "params": [torch.zeros(1)]} for group in groups]
        self._optimizer = _Still(still_groups, {"lr": 1e-3, **asdict(rule)})
        self._scheduler = workload.scheduler(self._optimizer)
        self._steps: list[list[Mapping[str, Any]]] = []

    def at(self, steps_done: int) -> list[Mapping[str, Any]]:
        """Return per parameter group the hyperparameters of the step after `steps_done` steps."""
        while len(self._steps) <= steps_done:
            self._steps.append(
                [
                    {key: float(value) if key == "lr" else value for key, value in group.items()}
                    for group in self._optimizer.param_groups
                ]
            )
            self._optimizer.step()
            if self._scheduler is not None:
                self._scheduler.step()
        return self._steps[steps_done]

    def full_rate(self, group: int) -> float:
        """Return a group's learning rate without the scheduler's factor."""
        options = self._optimizer.param_groups[group]
        return float(options.get("initial_lr", options["lr"]))


def _formula(rule: OptimizerRule) -> Formula:
    if isinstance(rule, SGD):
        return sgd_formula(momentum=bool(rule.momentum))
    return adam_formula(decoupled=isinstance(rule, AdamW))
