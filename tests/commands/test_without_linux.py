"""`record`, `compare` and `report` of one rank ask nothing that only Linux has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from written import read_report

ELSEWHERE = """
import os, select, signal, sys
import torch
import torch.distributed
from torch.utils._pytree import tree_map  # what torch itself asks of Linux comes before

ASKED = []

def elsewhere(event, args):
    if event in ("open", "os.listdir", "os.scandir"):
        if str(args[0]).startswith(("/proc", "/sys")):
            ASKED.append(str(args[0]))
            raise FileNotFoundError(2, "No such file or directory", args[0])
    elif event == "ctypes.dlsym" and args[1] in ("prctl", "syscall", "gettid"):
        raise AttributeError(args[1])

for module, names in {
    os: ("sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create", "pipe2",
         "eventfd", "posix_fadvise", "copy_file_range", "splice", "getrandom", "unshare"),
    select: ("epoll",),
    signal: ("SIGRTMIN", "SIGRTMAX", "sigtimedwait", "pidfd_send_signal", "SIGPOLL"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.addaudithook(elsewhere)

from pytest_precision.__main__ import main

for name, rate in (("before", "0.1"), ("after", "0.1"), ("other", "0.2")):
    words = ["record", "--out", name, "--steps", "2", "--", "train.py", rate]
    assert main(words) == 0
assert main(["compare", "after", "before", "--report", "report"]) == 0
assert main(["compare", "other", "before", "--report", "red"]) == 1
assert main(["report", "summary", "red"]) == 0
assert main(["report", "merge", "--out", "merged", "report"]) == 0
print("ASKED", ASKED)
"""

TRAIN = """
import sys, torch
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=float(sys.argv[1]))
for _ in range(3):
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_one_rank_is_recorded_and_compared_without_linux(tmp_path: Path) -> None:
    """As on macOS: without /proc, and without what `os`, `select` and `signal` have on Linux."""
    (tmp_path / "train.py").write_text(TRAIN)
    found = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    (cell,) = read_report(tmp_path / "red" / "report.json")["cells"]
    assert cell["divergence"]["kind"] == "lr"
    assert (tmp_path / "merged" / "report.html").exists()
