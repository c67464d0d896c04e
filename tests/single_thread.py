"""Leave torch one thread in all processes of the tests, as ranks have.

On the small tensors of tests a second thread costs more than it does, most of all beside other
workers. It is imported before torch.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
