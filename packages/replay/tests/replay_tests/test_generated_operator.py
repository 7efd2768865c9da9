"""`air::generated`: a kernel of a library is called with its parameters in their order, and after a fork elsewhere."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from npucompose.machine import compiler
from npucompose_replay import generated
from npucompose_replay.generated import GeneratedKernel

SOURCE = """
#include <sys/syscall.h>
#include <unistd.h>
extern "C" void kernel(const float* x, float* out, long long n, long long* thread) {
    for (long long i = 0; i < n; ++i) out[i] = 2 * x[i];
    *thread = syscall(SYS_gettid);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("generated")
    (folder / "kernel.cpp").write_text(SOURCE)
    built = folder / "kernel.so"
    subprocess.run([str(compiler()), "-shared", "-fPIC", "-O1", "-o", built, folder / "kernel.cpp"], check=True)
    return built


def doubling(library: Path, *, parallel: bool) -> GeneratedKernel:
    generated._kernels.pop(generated.address_of(generated.entry(str(library))), None)
    return generated.from_library(str(library), name="doubling", order="rwnw", parallel=parallel)


def called(kernel: GeneratedKernel, process: int | None = None) -> tuple[torch.Tensor, int]:
    """The result, and the thread that it was computed on."""
    x, out, thread = torch.arange(5.0), torch.zeros(5), torch.zeros(1, dtype=torch.long)
    given = generated.arguments(kernel, [x, out, 4, thread])
    torch.ops.air.generated(*given[:-1], given[-1] if process is None else process)
    assert torch.equal(x, torch.arange(5.0))
    return out, int(thread)


def test_a_library_is_called_with_tensors_and_numbers_in_their_order(library: Path) -> None:
    kernel = doubling(library, parallel=False)
    out, thread = called(kernel)
    assert out.tolist() == [0, 2, 4, 6, 0]
    assert thread == threading.get_native_id()
    assert generated.of_address(kernel.address) is kernel


@pytest.mark.parametrize("parallel", [True, False])
def test_what_asks_for_threads_is_called_on_another_one_in_the_child_of_a_fork(library: Path, parallel: bool) -> None:
    kernel = doubling(library, parallel=parallel)
    assert generated.arguments(kernel, [torch.ones(1), torch.ones(1), 0, torch.ones(1)])[-1] == parallel * os.getpid()
    assert called(kernel)[1] == threading.get_native_id(), "in the process that loaded it"
    out, thread = called(kernel, process=parallel * os.getppid())
    assert out.tolist() == [0, 2, 4, 6, 0]
    assert (thread != threading.get_native_id()) == parallel
