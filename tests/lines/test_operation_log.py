"""The log of operations: what it has, how long it is, and where it ends."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp  # has operators of its own
from logged_blocks import operations

from pytest_precision.probes.lines.log.operation_log import OperationLogger
from pytest_precision.probes.lines.operation_files import (
    FORM,
    path_of,
    read_operations,
    write_operations,
)


def logged(times: int = 3, **wanted: Any) -> OperationLogger:
    """Log some products and a sum in place."""
    values = torch.arange(12.0).reshape(3, 4)
    with operations(**wanted) as logger:
        for _ in range(times):
            values = values * 1.5
            values.t().add_(1.0)
    return logger


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Values, constants, lines and sketches too."""
    log = logged(sketches=True).log
    write_operations(log, tmp_path, 0)
    assert read_operations(tmp_path, 0) == log
    assert path_of(tmp_path, 0).stat().st_size < 1024 * len(log.operations)


def test_a_log_in_another_form_is_refused(tmp_path: Path) -> None:
    """Another version of the package has written it."""
    write_operations(logged().log, tmp_path, 0)
    file = path_of(tmp_path, 0)
    file.write_text(file.read_text().replace(f'"form": {FORM}', '"form": 1'))
    with pytest.raises(ValueError, match=f"expected operations in form {FORM} but got form 1 of"):
        read_operations(tmp_path, 0)


def test_an_operation_has_its_values_and_its_line() -> None:
    """What it makes is what the next one reads, a view of it included."""
    first, second, *_ = logged().log.operations
    assert (first.name, first.base, second.base) == ("aten.mul.Tensor", "mul", "add")
    assert first.results[0].storage == second.read[0].storage
    assert first.line is not None
    assert Path(first.line.file) == Path(__file__)
    assert first.line.is_users


def test_a_model_that_is_gone_is_not_kept() -> None:
    """A script may build another one, which would seem to stand beside it."""
    with operations() as logger:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2))
        gone = weakref.ref(model)
        del model
        assert gone() is None
    assert logger.log.operations[-1].module == "0"


def test_equal_values_have_equal_digests_in_any_process() -> None:
    """And a value that differs in one bit another one."""
    ours, theirs = (logged().log.operations for _ in range(2))
    assert [o.results[0].digest for o in ours] == [o.results[0].digest for o in theirs]
    assert ours[0].results[0].digest == "9aca049393c15758"
    assert len({o.results[0].digest for o in ours}) == len(ours)


def test_a_flat_buffer_has_the_values_that_were_joined_in_it() -> None:
    """And what is made of it by elements has its own, whatever memory that is in."""
    parts = torch.arange(3.0), torch.arange(4.0, 9.0), torch.arange(2.0)
    with operations() as logger:
        torch.cat(parts).mul_(2.0)
        doubled = [part * 2.0 for part in parts]
        torch.cat([part.view(1, -1) for part in parts], 1)
    joined, scaled, *single, other = logger.log.operations
    assert len(doubled) == len(single)
    assert joined.results[0].pieces == tuple(value.digest for value in joined.read)
    assert scaled.results[0].pieces == tuple(one.results[0].digest for one in single)
    assert other.results[0].pieces == ()


def test_what_nobody_has_written_to_yet_is_no_value() -> None:
    """FSDP2 puts a rank's part into a buffer, whose rest the gather of all parts fills."""
    parts = [torch.arange(3.0), torch.arange(2.0)]
    seen = []
    for before in (1.0, 2.0):
        buffer = torch.full((10,), before)
        with operations() as logger:
            torch.ops.fsdp.all_gather_copy_in(parts, buffer, [3, 2], 5, 1)
        (one,) = logger.log.operations
        seen.append((one.read, [value.digest for value in one.results]))
    assert seen[0][1] == seen[1][1]
    assert [[value.shape for value in read] for read, _ in seen] == [[(3,), (2,)]] * 2


def test_memory_that_is_about_to_be_written_is_no_value() -> None:
    """Torch copies a storage, as for `copy.deepcopy`, by tensors that it lays over both."""
    made = []
    for before in (1, 2):
        source, target = torch.arange(3.0).untyped_storage(), torch.UntypedStorage(12).fill_(before)
        with operations() as logger:
            target.copy_(source)
        made.append([value.digest for one in logger.log.operations for value in one.results])
    assert made[0] == made[1] != []


def test_a_log_ends_at_its_limit() -> None:
    """The rest of a step of a million operations is not logged, and the log says so."""
    log = logged(limit=4).log
    assert (len(log.operations), log.cut) == (4, 4)
    assert logged(limit=7).log.cut == 0


def test_what_torch_does_not_dispatch_is_seen_at_the_next_read() -> None:
    """A kernel that writes to memory by itself makes another value of it."""
    values = torch.arange(12.0)
    with operations() as logger:
        values * 1.0
        values.numpy()[:] = 7.0
        values * 1.0
    before, after = (one.read[0] for one in logger.log.operations)
    assert before.digest != after.digest
    assert after.uniform


def test_a_collective_without_work_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL returns none for a synchronous one, which is in order on the stream of its caller."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(dist.Work, "unbox", lambda box: None)
    values = torch.arange(12.0)
    try:
        with operations() as logger:
            dist.all_reduce(values)
    finally:
        dist.destroy_process_group()
    assert [one.name for one in logger.log.operations] == ["c10d.allreduce_.default"]


def test_an_option_that_is_set_after_a_load_is_logged() -> None:
    """A load puts other groups in the place of those that were watched."""
    with operations() as logger:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.param_groups[0]["lr"] = 0.3
    assert (logger.log.settings[-1].name, logger.log.settings[-1].value) == ("lr of group 0", "0.3")
