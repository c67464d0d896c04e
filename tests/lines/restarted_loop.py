"""A training loop that is resumed from a checkpoint, and leaves out one part of it."""

from __future__ import annotations

from itertools import count

import torch
from torch import nn

from pytest_precision import Cell, script
from pytest_precision.recorders.scripts.script_recorder import Record


def train(record: Record, *, resumes: bool, forgets: str = "") -> None:
    torch.manual_seed(resumes)  # the first weights are others, until they are loaded
    model = nn.Sequential(nn.Linear(7, 19), nn.Dropout(0.2), nn.Linear(19, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    file, done, averaged = record.folder / "saved.pt", 0, 0
    if resumes:
        saved = torch.load(file)
        done, average = saved["done"], average if forgets == "average" else saved["average"]
        model.load_state_dict(saved["model"])  # moments
        if forgets != "moments":
            optimizer.load_state_dict(saved["optimizer"])  # average, generator, count, scale
        if forgets != "scale":
            scaler.load_state_dict(saved["scaler"])
        if forgets != "generator":
            torch.set_rng_state(saved["generator"])
        averaged = 0 if forgets == "count" else done
    with record():
        for step in count(done + 1):
            inputs = torch.randn(5, 7, generator=torch.Generator().manual_seed(step))
            scaler.scale(model(inputs).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            averaged += 1
            for own, parameter in zip(average, model.parameters(), strict=True):
                own.lerp_(parameter.detach(), 1 / (1 + averaged))
            if step == record.save_after:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                states["scaler"] = scaler.state_dict()
                states |= {"average": average, "generator": torch.get_rng_state(), "done": step}
                torch.save(states, file)


def resumed(cell: Cell, record: Record, forgets: str) -> None:
    train(record, resumes=True, forgets=forgets)


@script(resume=resumed)
def loop(cell: Cell, record: Record, forgets: str) -> None:
    train(record, resumes=False)


def train_from_first_batch(record: Record, *, resumes: bool) -> None:
    """Train on batches that begin anew after a restart; all that is saved is loaded."""
    torch.manual_seed(resumes)  # the first weights are others, until they are loaded
    model = nn.Linear(7, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    file = record.folder / "saved.pt"
    if resumes:
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    batches = torch.randn(9, 5, 7, generator=torch.Generator().manual_seed(2))
    with record():
        for step, inputs in enumerate(batches, 1):
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == record.save_after:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(states, file)


def resumed_at_first_batch(cell: Cell, record: Record) -> None:
    train_from_first_batch(record, resumes=True)


@script(resume=resumed_at_first_batch)
def loop_from_first_batch(cell: Cell, record: Record) -> None:
    train_from_first_batch(record, resumes=False)
