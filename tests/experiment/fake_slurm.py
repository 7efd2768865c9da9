"""sbatch, sacct, scancel and srun for a machine without Slurm: each job a process of this machine, in a queue folder.

`python fake_slurm.py sbatch FILE` and so on; FAKE_SLURM names the folder. Knows as much of Slurm as submitit asks.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(os.environ.get("FAKE_SLURM", "."))


def install(folder: Path) -> None:
    """Programs of these names in `folder`, to be put on the path."""
    for name in ("sbatch", "sacct", "scancel", "srun"):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        program.chmod(0o755)


def sbatch(script: str) -> None:
    number = len(list(HERE.glob("*.pid"))) + 1
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", Path(script).read_text(), re.MULTILINE))
    log = asked["output"].strip("'").replace("%j", str(number))
    variables = {"JOB_ID": number, "JOB_NODELIST": "node", "JOB_NUM_NODES": 1, "NTASKS": 1, "NODEID": 0, "PROCID": 0,
                 "LOCALID": 0}  # fmt: skip
    environment = {**os.environ, **{f"SLURM_{name}": str(value) for name, value in variables.items()}}
    with open(log, "wb") as output:
        job = subprocess.Popen(
            ["bash", script], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env=environment,
        )  # fmt: skip
    (HERE / f"{number}.script").write_text(Path(script).read_text())
    (HERE / f"{number}.pid").write_text(str(job.pid))
    print(f"Submitted batch job {number}")


def sacct(*_: str) -> None:
    print("JobID|State|NodeList|")
    for file in sorted(HERE.glob("*.pid")):
        print(f"{file.stem}|{_state(int(file.read_text()))}|node|")


def _state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return "FAILED"
    return "FAILED" if stat.rpartition(")")[2].split()[0] == "Z" else "RUNNING"


def scancel(*numbers: str) -> None:
    for number in numbers:
        os.killpg(int((HERE / f"{number}.pid").read_text()), signal.SIGKILL)


def srun(*command: str) -> None:
    words = list(command)
    while words[0].startswith("-"):
        words = words[2 if words[0] in ("--output", "--error") else 1 :]
    os.execvp(words[0], words)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as programs in C: nobody reads on after Ctrl-C
    {"sbatch": sbatch, "sacct": sacct, "scancel": scancel, "srun": srun}[sys.argv[1]](*sys.argv[2:])
