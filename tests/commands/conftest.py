"""A training script of a user's, and the commands run on it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pytest_precision.__main__ import main
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.needs import Needs
from pytest_precision.ranks.process.rendezvous import reserved_port
from pytest_precision.revisions.run_servers import run_servers

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist

lr, steps = float(sys.argv[1]), int(sys.argv[2])
if "RANK" in os.environ:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 6))
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
generator = torch.Generator().manual_seed(0)
for step in range(steps):
    if step == 3:
        optimizer.param_groups[0]["lr"] = 0.5
    loss = model(torch.randn(4, 8, generator=generator)).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a script; torch's generator is put back."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    generator = torch.get_rng_state()
    yield tmp_path
    torch.set_rng_state(generator)
    assert not dist.is_initialized()


@pytest.fixture
def record(in_folder: Path) -> Callable[..., Path]:
    """Record the script into a folder; return it."""

    def made(name: str, *options: str, script: tuple[str, ...] = ("train.py", "0.01", "9")) -> Path:
        assert main(["record", "--out", name, *options, "--", *script]) == 0
        return in_folder / name

    return made


@pytest.fixture(params=["forks", pytest.param("torchrun", marks=pytest.mark.nightly)])
def on_two_ranks(
    request: pytest.FixtureRequest, in_folder: Path, resources: Resources
) -> Callable[..., None]:
    """Run the command line on two ranks: in processes such as torchrun starts, or by torchrun."""

    def run(*words: str) -> None:
        if request.param == "forks":
            ranks = resources.ranks(Settings(timeout=120, device="cpu"))
            assert ranks.run(2, main, words, needs=Needs(launched=True)) == [0, 0]
            return
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [sys.executable, *launch, "-m", "pytest_precision", *words]
        subprocess.run(command, check=True, timeout=120)

    return run


@pytest.fixture
def here_and_beside(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Run the command line on two ranks: this process, and a new interpreter beside it."""

    def run(words: list[str]) -> None:
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        with reserved_port() as port, monkeypatch.context() as patch:
            for name, value in (place | {"RANK": "0", "MASTER_PORT": str(port)}).items():
                patch.setenv(name, value)
            command = [sys.executable, "-m", "pytest_precision", *words]
            with subprocess.Popen(command, env=os.environ | {"RANK": "1"}) as other:
                try:
                    assert main(words) == 0
                    assert other.wait(timeout=100) == 0
                finally:
                    other.kill()  # else a failure of one would wait for the other without an end

    return run


@pytest.fixture(scope="session")
def servers() -> Iterator[None]:
    """Have all commands of the session fork what they run from the same servers."""
    with run_servers():
        yield


@pytest.fixture
def files_of_at_most() -> Iterator[Callable[[int], None]]:
    """Return a function after which files grow to so many bytes alone, as if a disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
