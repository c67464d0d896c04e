"""The jobs of `tiny_cells` as PyTorch tests its own: a process for each rank of each test."""

from __future__ import annotations

import torch
import torch.distributed as dist
from tiny_cells import JOB, NUMBER, training, trivial
from torch.testing._internal.common_distributed import MultiProcessTestCase

JOBS = {"trivial": trivial, "training": training}


class TestSpawned(MultiProcessTestCase):
    @property
    def world_size(self) -> int:
        return 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def cell(self) -> None:
        """One test, on each rank."""
        torch.set_num_threads(1)
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        JOBS[JOB]()
        dist.destroy_process_group()


for _number in range(NUMBER):
    setattr(TestSpawned, f"test_{_number}", lambda self: self.cell())
