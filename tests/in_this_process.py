"""Sessions with ranks in the process of the tests, which share torch and the fork server with it.

A session of its own imports torch twice, for itself and for its fork server, which takes longer
than most of what is asked of it. pytester forgets what a session in this process has imported, and
neither torch nor classes that are compared can be imported twice: whoever runs one imports this
module, which has imported before what sessions need.
"""

from __future__ import annotations

import torch._dynamo  # which the first optimizer of a process imports
import torch._inductor.output_code  # which the naming of a line imports
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.tensor  # noqa: F401

import pytest_precision.check.parity
import pytest_precision.layouts.megatron.optimizer
import pytest_precision.layouts.sharded
import pytest_precision.plugin.fixtures
import pytest_precision.probes.declared_rule.update_watcher
import pytest_precision.probes.gradients.gradient_probe
import pytest_precision.recorders.engine_recorder
import pytest_precision.workloads.mixture
import pytest_precision.workloads.perceptron  # noqa: F401
