"""What a fresh process costs: `python benchmarks/startup.py [--processes 7]`.

Kinds of process, in turns, each timed from outside (start to its last word) and from inside: one that imports torch and
loads the built extension, one for each mode that goes from nothing to the first replay of gpt_decode, and one that only
imports torch, as the part that nobody can save. A first process of each kind is not counted: it fills the system's
file cache and builds the extension where it is not built yet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.table import Table

TORCH = """
import time, json; begun = time.perf_counter()
import torch
print(json.dumps({"import torch": time.perf_counter() - begun}), flush=True)
"""
EXTENSION = """
import time, json
import torch
from npucompose.replay.executor import build
begun = time.perf_counter()
build.load()
print(json.dumps({"extension load": time.perf_counter() - begun}), flush=True)
"""
FIRST_REPLAY = """
import time, json; begun = time.perf_counter(); parts = {}
def done(name):
    global begun
    parts[name] = time.perf_counter() - begun
    begun = time.perf_counter()
import torch
done("import torch")
from npucompose.api import checked
import sys
made = checked(["model=gpt_decode", f"mode={sys.argv[1]}"])
done("compose and check")
import torch._dynamo, torch._functorch.aot_autograd
done("import torch's compiler")
from npucompose.compose.session import Session
live = Session(made)
live.built
done("build the model")
handle = live.detached
done("compile and capture")
live.call(handle, live.inputs(0))
done("first replay")
print(json.dumps(parts), flush=True)
"""
MODES = ("reduce-overhead", "max-autotune")
KINDS: Mapping[str, tuple[str, ...]] = {
    "torch alone": (TORCH,),
    "extension": (EXTENSION,),
    **{f"{mode} to the first replay": (FIRST_REPLAY, mode) for mode in MODES},
}
"""{name: (code, its arguments …)}."""
GOALS: Mapping[str, float] = {"extension load": 0.2, **{f"{mode} to the first replay": 3.0 for mode in MODES}}


def run(code: str, *arguments: str) -> tuple[float, dict[str, float]]:
    """(seconds from the start of a fresh process to its last word, what it measured itself)."""
    begun = perf_counter()
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                return perf_counter() - begun, json.loads(line)
    raise RuntimeError(f"the process ended with {process.returncode} and told nothing")


def measured(processes: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for number in range(processes + 1):
        for kind, code in KINDS.items():
            whole, parts = run(*code)
            if number:
                for name, seconds in {kind: whole, **{f"{kind}: {name}": s for name, s in parts.items()}}.items():
                    found.setdefault(name, []).append(seconds)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=7, help="counted ones of each kind")
    found = measured(parser.parse_args().processes)
    table, missed = Table(title="seconds in fresh processes"), False
    for column in ("what", "median", "least", "most", "goal", ""):
        table.add_column(column, justify="left" if column in ("what", "") else "right")
    for name, seconds in found.items():
        goal = GOALS.get(name.rpartition(": ")[2])
        verdict = "" if goal is None else "met" if median(seconds) <= goal else "MISSED"
        missed = missed or verdict == "MISSED"
        shown = (f"{s:.3f}" for s in (median(seconds), min(seconds), max(seconds)))
        table.add_row(name, *shown, "" if goal is None else f"{goal:g}", verdict)
    Console(width=100).print(table)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
