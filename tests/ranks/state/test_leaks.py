"""Process-global state that a job leaves behind is named, and its ranks get no other job."""

from __future__ import annotations

import gc
import locale
import os
import signal
import sys
import warnings
from collections.abc import Callable

import pytest
import torch

from pytest_precision import PrecisionLeakWarning, RankError
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.state.leaks import Leak, between


def set_default_dtype():
    import torch

    torch.set_default_dtype(torch.float64)


def set_default_device():
    import torch

    torch.set_default_device("meta")


def set_matmul_precision():
    import torch

    torch.set_float32_matmul_precision("medium")


def allow_tf32():
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True


def forbid_bf16_reduction():
    import torch

    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def benchmark_cudnn():
    import torch

    torch.backends.cudnn.benchmark = True


def use_other_kernels():
    """Flags that choose the kernels of matrix products, convolutions and attention."""
    import torch

    backends = torch.backends
    backends.mkldnn.enabled = False
    backends.mkldnn.deterministic = True
    backends.mkldnn.conv.fp32_precision = "bf16"
    backends.mkldnn.rnn.fp32_precision = "bf16"
    backends.nnpack.set_flags(False)
    quantized = backends.quantized
    quantized.engine = next(
        other for other in quantized.supported_engines if other not in ("none", quantized.engine)
    )
    backends.cuda.enable_flash_sdp(False)
    backends.cuda.enable_mem_efficient_sdp(False)
    backends.cuda.enable_math_sdp(False)
    backends.cuda.enable_cudnn_sdp(False)
    backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    backends.mha.set_fastpath_enabled(False)
    if backends.cuda.is_built():  # other builds have only one library
        backends.cuda.preferred_linalg_library("cusolver")
        backends.cuda.preferred_blas_library("cublaslt")


KERNELS = (
    "oneDNN enabled",
    "oneDNN deterministic",
    "fp32 precision of oneDNN convolutions",
    "fp32 precision of oneDNN RNNs",
    "NNPACK enabled",
    "engine of quantized operators",
    "flash attention",
    "memory-efficient attention",
    "math attention",
    "cuDNN attention",
    "reduced precision reduction of math attention",
    "fast path of multi-head attention",
)
LIBRARIES = ("preferred linear algebra library", "preferred BLAS library")


def drop_determinism():
    import torch

    torch.use_deterministic_algorithms(False)


def flush_subnormals():
    import torch

    torch.set_flush_denormal(True)


def take_threads():
    import torch

    torch.set_num_threads(2)


def switch_grad_off():
    import torch

    torch.set_grad_enabled(False)


def stay_in_autocast():
    import torch

    torch.autocast("cpu", torch.bfloat16).__enter__()


def hook(*args):
    return None


def hook_all_modules():
    import torch

    torch.nn.modules.module.register_module_forward_hook(hook)


def hook_all_optimizers():
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(hook)


def set_variable():
    os.environ["PLANTED"] = "yes"


def change_directory():
    os.chdir("/")


def extend_path():
    sys.path.insert(0, "/planted")


def set_umask():
    os.umask(0o27)


def handle_signal():
    signal.signal(signal.SIGUSR2, hook)


def stop_collecting_garbage():
    gc.disable()


def filter_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)


def ignore_overflows():
    import numpy as np

    np.seterr(over="ignore")


def set_locale():
    locale.setlocale(locale.LC_ALL, "C.UTF-8")


def put_back():
    import torch

    torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)
    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    handle.remove()
    sys.path.insert(0, sys.path[-1])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.rand(1)


def leak_on_rank_1():
    import torch.distributed as dist

    if dist.get_rank() == 1:
        set_default_dtype()
    return "result"


def leak_and_fail():
    set_default_dtype()
    raise KeyError("planted")


def process():
    return os.getpid()


LEAKS: list[tuple[Callable[[], None], str]] = [
    (set_default_dtype, "default dtype was torch.float32, is torch.float64"),
    (set_default_device, "default device was cpu, is meta"),
    (set_matmul_precision, "float32 matmul precision was highest, is medium"),
    (allow_tf32, "fp32 precision of CUDA matmul was none, is tf32"),
    # Whether it is one value or two depends on the release of torch.
    (forbid_bf16_reduction, "bf16 reduced precision reduction was "),
    (benchmark_cudnn, "cuDNN benchmark was False, is True"),
    (drop_determinism, "deterministic algorithms was True, is False"),
    (flush_subnormals, "flush of subnormals was False, is True"),
    (take_threads, "number of threads was 1, is 2"),
    (switch_grad_off, "grad mode was True, is False"),
    (stay_in_autocast, "autocast on cpu was False, is True"),
    (hook_all_modules, "hook of all modules: forward_hooks hook was absent, is registered"),
    (hook_all_optimizers, "hook of all optimizers: optimizer_post_hooks hook was absent"),
    (set_variable, "environment variable PLANTED was absent, is yes"),
    (change_directory, f"current directory was {os.getcwd()}, is /"),
    (extend_path, "entry of sys.path /planted was absent, is present"),
    (set_umask, "umask was 0o22, is 0o27"),
    (handle_signal, "handler of signal SIGUSR2 was SIG_DFL, is hook"),
    (stop_collecting_garbage, "garbage collection was True, is False"),
    (filter_warnings, "warnings filter ignore::RuntimeWarning::0 was absent, is present"),
    (ignore_overflows, "numpy's handling of floating-point errors over was warn, is ignore"),
    (set_locale, "locale was "),
]


def leak_all(*, alone):
    """Leave one thing that another one hides, or all others.

    A default device of meta comes last, on which nothing can be computed.
    """
    for function, _ in sorted(LEAKS, key=lambda leak: leak[0] is set_default_device):
        if (function is set_matmul_precision) == alone:
            function()


@pytest.fixture(scope="module")
def told(shared_pool: RankPool) -> str:
    """What is said of jobs that leave all of them; each time the next one has another rank."""
    texts = []
    for alone in (True, False):
        before = shared_pool.run(1, process)
        with pytest.warns(PrecisionLeakWarning) as caught:
            shared_pool.run(1, leak_all, alone=alone)
        [warning] = caught
        texts.append(str(warning.message))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert shared_pool.run(1, process) != before
    return "\n".join(texts)


@pytest.mark.parametrize(
    "line", [line for _, line in LEAKS], ids=[function.__name__ for function, _ in LEAKS]
)
def test_a_leak_is_named(told, line):
    """What, before, after and rank; the next job gets ranks that are as they were."""
    assert "test_leaks:leak_all left" in told
    assert f"\n  rank 0: {line}" in told


def test_flags_that_choose_kernels_are_named(pool):
    """Each of them changes bits on some machine."""
    with pytest.warns(PrecisionLeakWarning) as caught:
        pool.run(1, use_other_kernels)
    [warning] = caught
    told = str(warning.message)
    flags = (*KERNELS, *(LIBRARIES if torch.backends.cuda.is_built() else ()))
    assert [flag for flag in flags if f"\n  rank 0: {flag} was " not in told] == []


def test_what_is_put_back_is_no_leak(pool):
    """Hooks that are off again, context managers, one more of an entry that was there."""
    before = pool.run(2, process)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.run(2, put_back)
    assert pool.run(2, process) == before


def import_setuptools():
    import setuptools

    assert any(entry.endswith("_vendor") for entry in sys.path), setuptools.__version__


def test_what_setuptools_adds_to_the_path_is_no_leak(pool):
    """Whatever imports it first, such as a framework; nobody can put that back."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionLeakWarning)
        pool.run(1, import_setuptools)


def name_the_assembler():
    os.environ["TRITON_PTXAS_PATH"] = "/torch/bin/ptxas"


def test_what_torch_sets_to_compile_for_a_gpu_is_no_leak(pool):
    """Inductor names its own assembler to Triton by a variable, for the whole process."""
    before = pool.run(1, process)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.run(1, name_the_assembler)
    assert pool.run(1, process) == before


def load_by_workers():
    from torch.utils.data import DataLoader

    assert [len(batch) for batch in DataLoader(range(4), 2, num_workers=1)] == [2, 2]
    assert callable(signal.getsignal(signal.SIGCHLD)), "expected torch to watch its workers"


def test_how_torch_watches_workers_of_a_loader_is_no_leak(pool):
    """Its handler stays from the first loader with workers on, and only tells of their death."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionLeakWarning)
        pool.run(1, load_by_workers)


def test_the_ranks_that_leak_are_listed(pool):
    """The results of the job come all the same."""
    with pytest.warns(PrecisionLeakWarning, match="\n  rank 1: default dtype"):
        assert pool.run(2, leak_on_rank_1) == ["result", "result"]
    with pytest.warns(PrecisionLeakWarning, match="\n  rank 0, 1: default dtype"):
        pool.run(2, set_default_dtype)


def test_a_failure_comes_before_a_leak(pool):
    """A job that failed had no chance to put anything back."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RankError, match="planted"):
            pool.run(2, leak_and_fail)


def test_inline_leaks_are_named_too():
    """The caller's process gets its state back, and the warning is the same."""
    import torch

    ranks = RankPool("inline", timeout=30)
    with pytest.warns(PrecisionLeakWarning, match=r"rank 0: default dtype(.|\n)*In inline mode"):
        ranks.run(1, set_default_dtype)
    assert torch.get_default_dtype() == torch.float32


def test_only_what_differs_is_told():
    """Mappings entry by entry; long values cut."""
    before = {"a": 1, "many": {"x": "1", "y": "2"}}
    after = {"a": 1, "many": {"x": "1", "z": "3" * 999}}
    assert between(before, before) == ()
    assert between(before, after) == (
        Leak("many y", "was 2, is absent"),
        Leak("many z", "was absent, is " + "3" * 200 + "..."),
    )
