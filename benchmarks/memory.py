"""What each way to run a model holds in memory: `python benchmarks/memory.py [model …]`.

A process for each model and candidate of `performance.py`, with one thread: the model is made, called once by eager,
and then the candidate is made and called on eight steps. *Held* is what the process has in memory then beyond what it
had before (the code of compilers and libraries is in it), *peak* the most that it had in between beyond the same. It is
the second of two such processes, which finds what compilers and npucompose have kept, as every later one does.
Results go to benchmarks/results/memory.json, model by model, from which docs/performance.md shows them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from compact import compact

HERE = Path(__file__).resolve().parent
STATUS = Path("/proc/self/status")


def measured(model: str, name: str) -> dict[str, Any]:
    """One candidate of one model, in this process."""
    import torch
    from candidates import CANDIDATES
    from performance import MODELS, reason_of, subject_of
    from subject import Unavailable

    make = CANDIDATES[name]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subject, inputs = subject_of(MODELS[model], threads=1)
        subject.own()(*inputs[0])
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here (proc(5))
        before = _bytes("VmRSS")
        try:
            made = make(subject)
            for given in inputs:
                made.call(*given)
        except Unavailable as why:
            return {"why_not": str(why)}
        except Exception as error:  # noqa: BLE001  whatever a library raises is why it has no figure
            return {"why_not": reason_of(error)}
        gc.collect()
        return {
            "held_bytes": _bytes("VmRSS") - before,
            "peak_bytes": _bytes("VmHWM") - before,
            "pool_bytes": made.pool_bytes,
            "packed_bytes": made.packed_bytes,
        }


def _bytes(what: str) -> int:
    """Of this process: VmRSS what is in memory, VmHWM the most that was."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) * 1024


def apart(model: str, name: str) -> dict[str, Any]:
    """The same in a process of its own; one that dies is a reason too."""
    command = [sys.executable, __file__, model, "--here", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    return {"why_not": f"it ends the process: exit status {done.returncode}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="model")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from candidates import CANDIDATES
    from performance import MEMORY, MODELS, refuse_unknown, surroundings, written

    refuse_unknown(parser, arguments.models)
    if not STATUS.exists():
        parser.error("only Linux tells what a process has in memory")
    if arguments.here:
        print(json.dumps(measured(arguments.models[0], arguments.here)))
        return 0
    for model in arguments.models or MODELS:
        rows = {}
        for name in CANDIDATES:
            print(f"{model}: {name}", file=sys.stderr, flush=True)
            first = apart(model, name)
            rows[name] = first if "why_not" in first else apart(model, name)
        known = json.loads(MEMORY.read_text()) if MEMORY.exists() else {}
        known[model] = {"candidates": rows, **surroundings(threads=1)}
        MEMORY.write_text(compact(known) + "\n")
    written()
    return 0


if __name__ == "__main__":
    sys.exit(main())
