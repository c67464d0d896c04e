"""What comparing costs as recordings grow: by tensors, train steps and ranks.

    python ci/bench/growth.py [--tensors 10000] [--steps 5] [--ranks 1]

Two recordings with the same digests are written, as AdamW of that many weights shows them, and the
command `compare` reads them. Where there are several ranks, each has a shard of every weight. Of
the command are said: seconds of wall time and of the processor, and its largest memory; of one
recording, its bytes and files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import xxhash

from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observation import Observation, Span, whole
from pytest_precision.trace.header import Header
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.moment import END, INIT, Moment
from pytest_precision.trace.rank_log import sealed_logs
from pytest_precision.trace.writer import TraceWriter

ELEMENTS = 1 << 20
"""Elements of each weight."""

STATE = ("param", "master", "exp_avg", "exp_avg_sq")

OF_PHASE = {
    "init": ("param", "master"),
    "forward_backward": ("used_param", "grad"),
    "reduce_grads": ("reduced_grad",),
    "clip_grads": ("reduced_grad",),
    "optimizer_step": STATE,
    END: (),
}
"""Phase to the kinds of which each weight shows one."""


def observed(moment: Moment, tensors: int, rank: int, ranks: int) -> Iterator[Observation]:
    """Yield what one rank shows at a moment, with digests that no tensor was read for."""
    if moment.phase == "forward_backward":
        yield whole("loss", "microbatch0", torch.tensor(1.0 / moment.step), local=True)
    size = ELEMENTS // ranks
    part = torch.empty(size, device="meta")
    place = Span(rank * size, (rank + 1) * size)
    for kind in OF_PHASE[moment.phase]:
        for number in range(tensors):
            name = f"model.layers.{number // 8}.block{number % 8}.weight"
            said = f"{kind}/{name}/{rank}/{moment.step}"
            digest = xxhash.xxh3_128_hexdigest(said.encode())
            yield Observation(kind, name, part, (size * ranks,), place, digest=digest)


def record(folder: Path, tensors: int, steps: int, ranks: int) -> None:
    """Write a recording as `record` does, whichever way its files are laid out."""
    folder.mkdir()
    Manifest.now(folder / "train.py", [], steps, []).write(folder, ranks)
    course = [
        INIT,
        *(Moment(n, "train", n + 1, phase) for n in range(steps) for phase in STEP_PHASES),
        Moment(steps - 1, "train", steps, END),
    ]
    for rank in range(ranks):
        with TraceWriter(folder, rank, digests=True, digest_name=LIN8) as writer:
            for moment in course:
                writer.add(moment, [*observed(moment, tensors, rank, ranks)])
            writer.finish(Header(ranks, {}, {}, digests=True))
        for log in sealed_logs():
            log.store(folder, rank, log.nothing())
        Manifest.seal(folder, rank, ranks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tensors", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides = [Path(folder) / name for name in ("candidate", "reference")]
        started = time.perf_counter()
        record(sides[0], args.tensors, args.steps, args.ranks)
        written = time.perf_counter() - started
        shutil.copytree(*sides)
        sizes = [path.stat().st_size for path in sides[0].iterdir()]
        command = [sys.executable, "-m", "pytest_precision", "compare", *map(str, sides)]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    print(
        f"{args.tensors} tensors, {args.steps} steps, {args.ranks} ranks: "
        f"written {written:.1f} s, {sum(sizes) / 2**20:.1f} MiB in {len(sizes)} files, "
        f"compared {seconds:.1f} s ({usage.ru_utime + usage.ru_stime:.1f} s of processor), "
        f"{usage.ru_maxrss / 2**10:.0f} MiB; {said.partition(': ')[2]}"
    )
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
