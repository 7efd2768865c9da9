"""What npucompose gives the orchestrator: the variables that a worker sees, the place of the store, errors as ours.

A worker starts with what Python, torch, compilers and devices read, and nothing else. What a person's shell holds
beside that (tokens, addresses of services) is no business of a model, of a pass, or of a recipe that somebody else
wrote. docs/recipes.md has the list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from airflow_free.errors import InvalidRequest, OrchestratorError
from airflow_free.fresh_python import SAFE_PATH
from airflow_free.store import Store
from npucompose.errors import ConfigError, NpuComposeError
from npucompose.input_safety import SECRET
from npucompose.machine import THREAD_VARIABLES
from npucompose.vendor.variables import FAMILIES, fits, read_by_ascend

PROGRAM = "npucompose"
STORE_VARIABLE = "NPUCOMPOSE_STORE"
DEFAULT_STORE = ".npucompose"
ALSO = "NPUCOMPOSE_PASS_ENV"
"""Names and globs of a person's own, between commas: `MY_MODEL_ROOT,MYLIB_*`; they pass whatever they are called."""
PASSED: Mapping[str, tuple[str, ...]] = {
    "the system": (
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TMPDIR", "TEMP", "TMP", "TZ", "LANG", "LANGUAGE", "LC_*",
        "TERM", "COLUMNS", "LINES", "NO_COLOR", "XDG_*", "SYSTEMROOT", "WINDIR", "COMSPEC", "PATHEXT", "APPDATA",
        "LOCALAPPDATA", "USERPROFILE",
    ),
    "Python": ("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "COVERAGE_*", "COV_CORE_*"),
    "compilers and the linker": (
        "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
        "LIBRARY_PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_*", "CCACHE_*", "MAX_JOBS", "ASAN_OPTIONS",
        "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS",
    ),
    "threads and memory": (
        "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "VECLIB_*", "NUMEXPR_*", "DNNL_*", "ONEDNN_*",
        "ATEN_*", "MALLOC_*", "MIMALLOC_*", "TCMALLOC_*",
    ),
    "torch": (
        "TORCH*", "PYTORCH_*", "TRITON_*", "CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "RANK",
        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    ),
    "Ascend": (*FAMILIES, "TOOLCHAIN_HOME"),
    "engines": ("VLLM_*", "SGLANG_*"),
    "model libraries": ("HF_HOME", "HF_HUB_*", "TRANSFORMERS_*"),
    "npucompose": ("NPUCOMPOSE_*",),
}  # fmt: skip
"""Families of names by who reads them; what torch_npu, TorchAir and CANN read beside is named in their data file."""


def worker_environment(given: Mapping[str, str]) -> dict[str, str]:
    """What a worker starts with: `given`, over what passes of this process's environment."""
    also = [pattern.strip() for pattern in os.environ.get(ALSO, "").split(",") if pattern.strip()]
    kept = {name: value for name, value in os.environ.items() if _passes(name) or fits(name, also)}
    return {**SAFE_PATH, **kept, **given}


def remote_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The same on another machine, with no settings of threads but those given: Ray sets OMP_NUM_THREADS to the CPUs of
    a task; a local worker has what the person's own environment says."""
    found = worker_environment(given)
    return {name: value for name, value in found.items() if name in given or name not in THREAD_VARIABLES}


@contextmanager
def also_passing(names: Iterable[str]) -> Iterator[None]:
    """Variables that the command line itself sets (hydra.job.env_set) reach the workers too."""
    before = os.environ.get(ALSO)
    together = ",".join(filter(None, (before, *names)))
    if together:
        os.environ[ALSO] = together
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(ALSO, None)
        else:
            os.environ[ALSO] = before


@lru_cache(maxsize=4096)
def _passes(name: str) -> bool:
    """A secret never, because of a family's name; `NPUCOMPOSE_PASS_ENV` can still name it."""
    read = read_by_ascend(name) or any(fits(name, patterns) for patterns in PASSED.values())
    return read and not SECRET.search(name)


def default_store() -> Store:
    """`$NPUCOMPOSE_STORE`, or `.npucompose` in the working folder."""
    return store_at(os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)


def store_at(root: Path | str) -> Store:
    return Store(Path(root), advice=f"Name another one with {STORE_VARIABLE}=folder.")


@contextmanager
def translate_errors() -> Iterator[None]:
    """What the orchestrator raises becomes an error of npucompose."""
    try:
        yield
    except InvalidRequest as error:
        raise ConfigError(*error.problems) from error
    except OrchestratorError as error:
        raise NpuComposeError(str(error)) from error
