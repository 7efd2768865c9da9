"""Sweeps through the command line in a folder of their own: models with faults, and what the ledger says."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path

from nursery import command

from npucompose.experiment.sweep.run import PointEntry, PointLedger

ROOT = Path(__file__).resolve().parents[2]

FACTORIES = """
import os
import signal
import time
from pathlib import Path

import torch
from npucompose.models.base import Built


class Small(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x @ x.T) + 1


def fine():
    return Small(), {"x": torch.ones(4, 4)}


class NoProduct(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x + 1) + 1


def no_product():
    return NoProduct(), {"x": torch.ones(4, 4)}


def fault(act):
    # acts in the first process that asks for inputs; the points after it go well
    def make():
        def inputs(step):
            try:
                os.close(os.open(HERE + act.__name__, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                act()
            return {"x": torch.ones(4, 4)}
        return Built(module=Small(), inputs=inputs, steps=1)
    return make


@fault
def kills():
    os.kill(os.getpid(), signal.SIGKILL)


@fault
def kills_too():
    os.abort()


@fault
def hangs():
    time.sleep(3600)


@fault
def raises():
    raise RuntimeError("out of tea")


@fault
def loses_its_place():
    # on a Ray node the process that Ray gave this point is killed under it, elsewhere the point itself
    process = os.getppid()
    while process > 1 and not Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::"):
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(process if process > 1 else os.getpid(), signal.SIGKILL)
    time.sleep(60)


def __getattr__(name):
    if name.startswith("fine"):
        return fine
    raise AttributeError(name)
"""


def sweep(folder: Path, *overrides: str, write: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """`write=False` where the folder has factories of its own."""
    if write:
        write_factories(folder)
    return subprocess.run(
        command("run.py", "-m", *overrides),
        cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def write_factories(folder: Path) -> None:
    """`points.py`; what has happened is noted in the same folder, wherever a point runs."""
    (folder / "points.py").write_text(f"HERE = {f'{folder}/'!r}\n{FACTORIES}")


def entries(folder: Path) -> list[PointEntry]:
    with PointLedger.open(folder / ".npucompose") as ledger:
        return ledger.entries(by="ended")


def by_factory(folder: Path) -> dict[str, PointEntry]:
    """{name of the model's factory: end}."""
    return {text.partition(":")[2]: e for e in entries(folder) for text in e.overrides if "model.factory=" in text}


def statuses(folder: Path) -> dict[str, int]:
    return dict(Counter(entry.status for entry in entries(folder)))


def check_folders(folder: Path) -> None:
    """Every end that has a folder has a whole report of the same point there."""
    for entry in entries(folder):
        if entry.run_dir is not None:
            report = json.loads((folder / ".npucompose" / entry.run_dir / "report.json").read_text())
            assert (report["key"], report["status"]) == (entry.key, entry.status)


def in_folder(folder: Path) -> list[int]:
    """Processes that work in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(process / "cwd")) == folder.resolve():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def none_left(folder: Path) -> bool:
    for _ in range(200):
        if not in_folder(folder):
            return True
        time.sleep(0.1)
    return False
