"""The native replayer's extension: compiled once for each torch of a machine, then loaded from the user's cache.

Where it lies follows from its sources, from torch and from Python, so what was built for others is never loaded; nor is
what others could have written there (`npucompose.private`). Asking for its state loads no torch.

`HELD` names operators whose structured kernel is kept set up from capture on, so that a replay calls only its `impl()`.
One line each: the overload that a plan calls, and ATen's class in `ATen/ops/<operator>_native.h`. A class that the
installed torch does not have is left out when the extension is built; its operator is then called like any other.
`python benchmarks/replay.py MODEL --steps` shows what each line brings.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Literal

from attrs import frozen

from npucompose import private
from npucompose.activity import doing
from npucompose.machine import CACHE_VARIABLE, cache_dir, compiler

HELD: dict[str, str] = {
    "aten::add.out": "structured_ufunc_add_CPU",
    "aten::sub.out": "structured_sub_out",
    "aten::mul.out": "structured_mul_out",
    "aten::div.out": "structured_div_out",
    "aten::neg.out": "structured_neg_out",
    "aten::exp.out": "structured_exp_out",
    "aten::sin.out": "structured_sin_out",
    "aten::cos.out": "structured_cos_out",
    "aten::sqrt.out": "structured_sqrt_out",
    "aten::rsqrt.out": "structured_rsqrt_out",
    "aten::reciprocal.out": "structured_reciprocal_out",
    "aten::sigmoid.out": "structured_sigmoid_out",
    "aten::tanh.out": "structured_tanh_out",
    "aten::silu.out": "structured_silu_out",
    "aten::gelu.out": "structured_gelu_out_cpu",
    "aten::clamp_min.out": "structured_clamp_min_out",
    "aten::maximum.out": "structured_maximum_out",
    "aten::minimum.out": "structured_minimum_out",
    "aten::pow.Tensor_Scalar_out": "structured_pow_Tensor_Scalar_out",
    "aten::mean.out": "structured_mean_out",
    "aten::sum.IntList_out": "structured_sum_out",
    "aten::_softmax.out": "structured_softmax_cpu_out",
    "aten::mm.out": "structured_mm_out_cpu",
    "aten::bmm.out": "structured_bmm_out_cpu",
    "aten::addmm.out": "structured_addmm_out_cpu",
    "aten::scatter_.src": "structured_scatter_src_out",
}


def header(include: Path) -> str:
    """`held_kernels.inc` for the torch whose headers lie in `include`: includes, the table, the names it lacks."""
    # scatter_ stands beside scatter
    names = {operator: operator.removeprefix("aten::").split(".")[0].rstrip("_") for operator in HELD}
    paths = {operator: f"ATen/ops/{name}_native.h" for operator, name in names.items()}
    found = {operator: path for operator, path in paths.items() if _declares(include / path, HELD[operator])}
    lacking = [operator for operator in HELD if operator not in found]
    includes = "\n".join(f"#include <{path}>" for path in dict.fromkeys(found.values()))
    table = " \\\n".join(f'  X("{operator}", {HELD[operator]})' for operator in found)
    return "\n".join(
        (
            "#pragma once",
            includes,
            "#define NPUCOMPOSE_HELD(X) \\",
            table,
            f'#define NPUCOMPOSE_LACKING "{" ".join(lacking)}"',
            "",
        )
    )


def _declares(file: Path, kernel: str) -> bool:
    return file.is_file() and re.search(rf"struct TORCH_API {kernel}\b", file.read_text()) is not None


NAME = "npucompose_replay"
SOURCES = Path(__file__).with_name("src")
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-w", "-fvisibility=hidden", f"-DTORCH_EXTENSION_NAME={NAME}")
UNITS = {
    "python": ("front.cpp", "module.cpp"),
    "kernels": ("kernels.cpp", "recording.cpp", "streams.cpp", "workers.cpp"),
}
"""What is compiled together: sources that read the same headers of torch, which takes most of the time."""
BUILT_WITH = "built with the headers of torch "
"""What the extension says in its bytes, before a version."""
TIME_LIMIT_S = 600.0
LINES_KEPT = 12
"""Of a compiler's complaint."""


class Unavailable(Exception):
    """There is no native replayer here; the text says why and what is possible, in one paragraph."""

    @property
    def line(self) -> str:
        return in_one_line(str(self))


@frozen(kw_only=True)
class BuildState:
    """What is in the cache for the torch that is installed."""

    kind: Literal["built", "not built", "failed", "impossible"]
    words: str


def in_one_line(words: str) -> str:
    """The reason and the first thing that a compiler complains about."""
    first, *said = words.splitlines()
    return f"{first} {said[0]} (`npucompose doctor` shows all)" if said else first


def state() -> BuildState:
    """Look, do not build. `failed` carries the compiler's own words. What is loaded is not looked at again."""
    if load.cache_info().currsize:
        return BuildState(kind="built", words=str(load().__file__))
    try:
        place = folder()
    except Unavailable as error:
        return BuildState(kind="impossible", words=str(error))
    if (doubt := _doubt(place)) and not doubt.mine:
        return BuildState(kind="impossible", words=_not_believed(doubt))
    if _is_whole(place):
        return BuildState(kind="built", words=str(_extension(place)))
    found = compiler()
    if found is None:
        return BuildState(kind="impossible", words=_no_compiler())
    complaint = _remembered_failure(place, found)
    if complaint is not None:
        return BuildState(kind="failed", words=complaint)
    again = f"{doubt.words}, so what is there is not believed: " if doubt else ""
    return BuildState(kind="not built", words=f"{again}it is built at its first use, once, in about half a minute")


@functools.cache
def load() -> ModuleType:
    """The extension's module, built first where it has to be. Raises Unavailable; asked again, it answers at once."""
    place = folder()
    try:
        return _loaded(_built(place))
    except ImportError:
        # Of another torch, whatever its name says: once more, from the sources.
        _digest(place).unlink(missing_ok=True)
    try:
        return _loaded(_built(place))
    except ImportError as error:
        raise Unavailable(f"the native replayer was built and cannot be loaded: {error}") from error


def file() -> Path:
    """The extension's file, built first where it has to be, and not loaded. Raises Unavailable."""
    return _built(folder())


def folder() -> Path:
    """Where the extension for this torch, Python and source belongs: `…/native/torch-2.13.0+cpu-cp311-x86_64-0a1b…`."""
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"the native replayer is built on Linux only; this is {sys.platform}.")
    library = _torch() / "lib" / "libtorch_cpu.so"
    if not library.is_file():
        raise Unavailable(f"the native replayer links to {library}, which is not there.")
    version = metadata.version("torch")
    stat = library.stat()
    abi = sysconfig.get_config_var("SOABI")
    identity = [
        version,
        str(abi),
        platform.machine(),
        str(stat.st_size),
        str(stat.st_mtime_ns),
        *FLAGS,
        repr(HELD),
        repr(UNITS),
    ]
    digest = hashlib.sha256("\0".join(identity).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return cache_dir() / "native" / f"torch-{version}-{python}-{platform.machine()}-{digest.hexdigest()[:12]}"


def _torch() -> Path:
    """Where torch is installed, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise Unavailable("torch is not installed.")
    return Path(spec.origin).parent


def _extension(place: Path) -> Path:
    return place / f"{NAME}.so"


def _digest(place: Path) -> Path:
    return place / f"{NAME}.sha256"


def _doubt(place: Path) -> private.AccessDoubt | None:
    """Whether somebody else could have written what lies there."""
    found = (private.doubt(file, cache_dir()) for file in (_extension(place), _digest(place), _failure(place)))
    return next((doubt for doubt in found if doubt), None)


def _not_believed(doubt: private.AccessDoubt) -> str:
    return (
        f"the native replayer is not taken from a cache that others can write: {doubt.words}. "
        f"Set {CACHE_VARIABLE} to a folder of your own."
    )


def _is_whole(place: Path) -> bool:
    """Whether the extension is there, every byte of it, and ours: loading half a file kills the process."""
    file, digest = _extension(place), _digest(place)
    if not (file.is_file() and digest.is_file()) or _doubt(place):
        return False
    content = file.read_bytes()
    mine = f"{BUILT_WITH}{_release(metadata.version('torch'))}\0".encode()
    return hashlib.sha256(content).hexdigest().encode() == digest.read_bytes() and mine in content


def _loaded(file: Path) -> ModuleType:
    """ImportError where the file is no extension for the torch of this process."""
    import torch

    spec = importlib.util.spec_from_file_location(
        NAME, file, loader=importlib.machinery.ExtensionFileLoader(NAME, str(file))
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    mine, theirs = _release(torch.__version__), module.torch_version
    if mine != theirs:
        raise ImportError(f"{file} was {BUILT_WITH}{theirs}, and this is torch {mine}")
    return module


def _release(version: str) -> str:
    """`2.13.0` of `2.13.0+cpu` and of `2.13.0.dev20260101`: what torch's headers know of it."""
    found = re.match(r"\d+(\.\d+)*", version)
    return found[0] if found else version


def _built(place: Path) -> Path:
    if _is_whole(place):
        return _extension(place)
    doubt = _doubt(place)
    if doubt and not doubt.mine:
        raise Unavailable(_not_believed(doubt))
    try:
        if doubt:
            _forget(place)  # before it is closed: from then on it would be believed
        private.make(place, cache_dir())
        if doubt:
            _forget(place)
        with _alone(place / "lock"):
            return _extension(place) if _is_whole(place) else _build(place)
    except OSError as error:
        raise Unavailable(f"the native replayer cannot be kept in {place}: {error}") from error


def _forget(place: Path) -> None:
    for file in (_digest(place), _extension(place), _failure(place), place / "lock"):
        file.unlink(missing_ok=True)


def _build(place: Path) -> Path:
    found = compiler()
    if found is None:
        raise Unavailable(_no_compiler())
    complaint = _remembered_failure(place, found)
    if complaint is not None:
        raise Unavailable(complaint)
    torch = metadata.version("torch")
    print(f"npucompose: building the native replayer for torch {torch} with {found}, once …", file=sys.stderr)
    doing("building the native replayer, once for this torch")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=place) as work:
        try:
            made = _compile(found, Path(work))
        except _CompilerFailed as error:
            _put(f"{found}\n{error}", _failure(place), Path(work))
            raise Unavailable(str(error)) from None
        digest = hashlib.sha256(made.read_bytes()).hexdigest()
        made.chmod(0o700)
        os.replace(made, _extension(place))
        _put(digest, _digest(place), Path(work))
    print(f"npucompose: built in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return _extension(place)


def _put(text: str, file: Path, work: Path) -> None:
    """Written beside it and moved there: it is there whole or not at all, and its owner's alone."""
    made = work / file.name
    made.write_text(text, encoding="utf-8")
    made.chmod(0o600)
    os.replace(made, file)


class _CompilerFailed(Exception):
    pass


def _compile(found: str, work: Path) -> Path:
    """Each source with a compiler of its own, as many at a time as there are cores, then the linker."""
    import torch

    torch_folder = _torch()
    include = torch_folder / "include"
    (work / "held_kernels.inc").write_text(header(include))
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    folders = [include, include / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_paths()["include"])]
    flags = [*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{work}", f"-I{SOURCES}"]
    flags += [f"-isystem{path}" for path in folders]
    commands, objects = [], []
    for name, sources in UNITS.items():
        unit, made = work / f"unit_{name}.cpp", work / f"unit_{name}.o"
        unit.write_text("".join(f'#include "{source}"\n' for source in sources))
        commands.append([found, *flags, "-c", str(unit), "-o", str(made)])
        objects.append(made)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    with ThreadPoolExecutor(max_workers=cores) as pool:
        list(pool.map(_run, commands))
    library, made = torch_folder / "lib", work / f"{NAME}.so"
    libraries = [f"-L{library}", "-ltorch_python", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{library}"]
    _run([found, "-shared", *map(str, objects), *libraries, "-o", str(made)])
    return made


def _run(command: list[str]) -> None:
    shown = f"`{command[0]} … -o {Path(command[-1]).name}`"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise _CompilerFailed(f"{shown} took longer than {TIME_LIMIT_S:g} s.") from None
    except OSError as error:
        raise _CompilerFailed(f"{shown} cannot be run: {error}") from None
    if done.returncode:
        complaints = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        said = "\n".join(complaints[:LINES_KEPT]) or "nothing"
        raise _CompilerFailed(f"{shown} ended with status {done.returncode} and said:\n{said}")


def _failure(place: Path) -> Path:
    return place / "failure.txt"


def _remembered_failure(place: Path, found: str) -> str | None:
    """What the same compiler said last time: building fails once, not at every start."""
    file = _failure(place)
    if not file.is_file() or _doubt(place):
        return None
    try:
        tried, _, complaint = file.read_text(encoding="utf-8").partition("\n")
    except UnicodeDecodeError:  # not as it was written: try again
        return None
    return f"{complaint}\nRemove {file} to try again." if tried == found else None


def _no_compiler() -> str:
    return "no C++ compiler is installed (g++, c++, clang++, or what CXX names): the native replayer needs one, once."


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process builds, the others wait for it."""
    import fcntl

    with open(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
