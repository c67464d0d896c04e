"""Write what this process is, as a script finds it, and train a step: a script that is recorded."""

import atexit
import gc
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings

STARTED = {
    "__main__": sorted(set(vars()) - {"STARTED"}),
    "modules": sorted(sys.modules),
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "path": sys.path,
    "flags": repr(sys.flags),
    "folder": os.getcwd(),
    "variables": dict(os.environ),
    "hooks": [repr(type(one)) for one in sys.meta_path] + [repr(sys.excepthook)],
    "signals": {one.name: repr(signal.getsignal(one)) for one in signal.Signals},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "wakes": signal.set_wakeup_fd(-1),
    "threads": [one.name for one in threading.enumerate()],
    "main thread": threading.current_thread() is threading.main_thread(),
    "at exit": atexit._ncallbacks(),
    "handlers": repr(logging.getLogger().handlers),
    "levels": logging.getLogger().level,
    "filters": repr(warnings.filters),
    "collected": [gc.isenabled(), gc.get_threshold()],
    "process": multiprocessing.current_process().name,
    "parent": repr(multiprocessing.parent_process()),
    "start method": multiprocessing.get_start_method(allow_none=True),
    "descriptors": len(os.listdir("/proc/self/fd")),
    "streams": [(os.isatty(n), os.get_inheritable(n)) for n in (0, 1, 2)],
    "same": os.fstat(1) == os.fstat(2),
    "encodings": [
        (one.encoding, one.errors, one.line_buffering)
        for one in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "input": sys.stdin.read(),
    "mask": os.umask(0),
    "limits": [resource.getrlimit(one) for one in range(16)],
    "processors": sorted(os.sched_getaffinity(0)),
    "group": os.getpgrp(),
    "session": os.getsid(0),
    "locale": locale.setlocale(locale.LC_ALL),
    "times": time.tzname,
}
DRAWN = random.random()

import numpy as np  # noqa: E402
import torch  # noqa: E402

STARTED |= {
    "torch": [
        torch.initial_seed(),
        torch.get_num_threads(),
        torch.get_num_interop_threads(),
        torch.are_deterministic_algorithms_enabled(),
        str(torch.get_default_dtype()),
        torch.is_grad_enabled(),
        torch.rand(3).tolist(),
    ],
    "numpy": np.geterr(),
    "OpenMP": torch.__config__.parallel_info(),
}

torch.use_deterministic_algorithms(True)  # memory that nobody has written yet is of no other run
model = torch.nn.Linear(512, 512)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
data = torch.from_numpy(np.linspace(0, 1, 512 * 512, dtype=np.float32).reshape(512, 512))
STARTED["product"] = float((np.ones((300, 300)) @ data[:300, :300].numpy()).sum())
print(json.dumps({"drawn": [DRAWN, float(np.random.rand())], "started": STARTED}))
random.seed(0)
np.random.seed(0)
torch.set_num_threads(1)  # a product of several threads sums in another order on a busy machine

for _ in range(3):
    model(data @ data).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
