"""The sources of the native replayer, and the commands that make the extension of them."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from npucompose_replay.executor import onednn_functions
from npucompose_replay.executor.held_kernels import header

NAME = "npucompose_native"
SOURCES = Path(__file__).with_name("src")
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-w", "-fvisibility=hidden", f"-DTORCH_EXTENSION_NAME={NAME}")
UNITS = {
    "python": ("front.cpp", "module.cpp"),
    "kernels": (
        "generated.cpp",
        "kernels.cpp",
        "packed.cpp",
        "pointwise.cpp",
        "recording.cpp",
        "streams.cpp",
        "workers.cpp",
    ),
}
"""What is compiled together: sources that read the same headers of torch, which takes most of the time."""
TIME_LIMIT_S = 600.0
LINES_KEPT = 12
"""Of a compiler's complaint."""


class CompilerFailed(Exception):
    """The text is what it complained of."""


def compile_in(work: Path, found: str, library: Path) -> Path:
    """Each source with the compiler `found`, as many at a time as there are cores, then the linker."""
    import torch

    torch_folder = library.parent.parent
    include = torch_folder / "include"
    (work / "held_kernels.inc").write_text(header(include))
    (work / "onednn_functions.inc").write_text(onednn_functions.header(library))
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    folders = [include, include / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_paths()["include"])]
    flags = [*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{work}", f"-I{SOURCES}"]
    flags += [f"-isystem{path}" for path in folders]
    flags += _without_paths({torch_folder: "torch", folders[-1]: "python", SOURCES: NAME, work: NAME})
    commands, objects = [], []
    for name, sources in UNITS.items():
        unit, made = work / f"unit_{name}.cpp", work / f"unit_{name}.o"
        unit.write_text("".join(f'#include "{source}"\n' for source in sources))
        commands.append([found, *flags, "-c", str(unit), "-o", str(made)])
        objects.append(made)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    with ThreadPoolExecutor(max_workers=cores) as pool:
        list(pool.map(_run, commands))
    made = work / f"{NAME}.so"
    # By name, not by path: torch is loaded first, and what it has loaded is found.
    libraries = [f"-L{library.parent}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    _run([found, "-shared", *map(str, objects), *libraries, "-o", str(made)])
    return made


def _without_paths(folders: Mapping[Path, str]) -> list[str]:
    """Flags that write a folder's name in place of its path: torch's assertions say which file they are in, and a wheel
    shows nobody the machine that built it. Compilers also write what a link leads to."""
    places = {place: name for folder, name in folders.items() for place in (folder, folder.resolve())}
    return [f"-ffile-prefix-map={place}={name}" for place, name in places.items()]


def _run(command: list[str]) -> None:
    shown = f"`{command[0]} … -o {Path(command[-1]).name}`"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CompilerFailed(f"{shown} took longer than {TIME_LIMIT_S:g} s.") from None
    except OSError as error:
        raise CompilerFailed(f"{shown} cannot be run: {error}") from None
    if done.returncode:
        complaints = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        said = "\n".join(complaints[:LINES_KEPT]) or "nothing"
        raise CompilerFailed(f"{shown} ended with status {done.returncode} and said:\n{said}")
