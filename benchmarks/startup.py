"""What a fresh process costs: `python benchmarks/startup.py [--processes 7] [--mode max-autotune] [--own-cache]`.

Kinds of process, in turns, each timed from outside (start to its last word) and from inside: one that imports torch and
loads the built extension, one for each mode that goes from nothing to the first replay of gpt_decode, and one that only
imports torch, as the part that nobody can save. A first process of each kind is not counted: it fills the system's
file cache, builds the extension where it is not built yet, and compiles what the others find kept. With `--own-cache`
the caches of graphs and of Inductor are empty before it, and it is shown as the cold one.

Seconds are what a person waits. Seconds of the processor (of the process and of all that it waited for) are the figure
to compare where others work on the machine; the goals are for the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.table import Table

CLOCKS = """
import json, os, time
def clocks():
    return time.perf_counter(), sum(os.times()[:4])
begun, parts = clocks(), {}
def add(name, since):
    now, before = clocks(), parts.get(name, (0.0, 0.0))
    parts[name] = [before[i] + now[i] - since[i] for i in (0, 1)]
def done(name):
    global begun
    add(name, begun)
    begun = clocks()
def last_word():
    print(json.dumps({"parts": parts, "processor": sum(os.times()[:4])}), flush=True)
"""
"""What each process begins with; the times of a part are (the clock's, the processor's)."""
TORCH = """
import torch
done("import torch")
last_word()
"""
EXTENSION = """
import torch
from npucompose_replay.executor import build
begun = clocks()
build.load()
done("extension load")
last_word()
"""
FIRST_REPLAY = """
import torch
done("import torch")
import npucompose
npucompose.compile  # is loaded by its first use
from npucompose.api import checked
from npucompose.machine import full_collections_put_off
import sys
made = checked(["model=gpt_decode", *sys.argv[1:]])
done("compose and check")
with full_collections_put_off():  # in which the session would import it
    import torch._dynamo
done("import Dynamo")
from npucompose.compose.session import Session
from npucompose.targets.backend import Backend
live = Session(made)
live.built
done("build the model")
asked = Backend.__call__
def timed(*given, **keywords):
    since = clocks()
    try:
        return asked(*given, **keywords)
    finally:
        add("of it, from Dynamo's graph to what is called", since)
Backend.__call__ = timed
handle = live.detached
done("compile and capture")
live.call(handle, live.inputs(0))
done("first replay")
last_word()
"""
MODES = ("reduce-overhead", "max-autotune")
GOALS: Mapping[str, float] = {"extension load": 0.2, **{f"{mode} to the first replay": 3.0 for mode in MODES}}
Kind = tuple[str, ...]
"""(code, its arguments …)."""


def kinds(modes: Sequence[str], overrides: Sequence[str]) -> dict[str, Kind]:
    first = {f"{mode} to the first replay": (FIRST_REPLAY, f"mode={mode}", *overrides) for mode in modes}
    return {"torch alone": (TORCH,), "extension": (EXTENSION,), **first}


def run(code: str, *arguments: str, environment: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """{part: (seconds, seconds of the processor)} of a fresh process; the whole, to its last word, under ""."""
    begun = perf_counter()
    command = [sys.executable, "-c", CLOCKS + code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(environment)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                whole, said = perf_counter() - begun, json.loads(line)
                return {"": (whole, said["processor"]), **{name: (w, p) for name, (w, p) in said["parts"].items()}}
    raise RuntimeError(f"the process ended with {process.returncode} and said nothing")


def measured(
    asked: Mapping[str, Kind], processes: int, environment: Mapping[str, str]
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, list[tuple[float, float]]]]:
    """(of the first process of each kind, of those that are counted)."""
    cold: dict[str, list[tuple[float, float]]] = {}
    warm: dict[str, list[tuple[float, float]]] = {}
    for number in range(processes + 1):
        for kind, code in asked.items():
            for part, seconds in run(*code, environment=environment).items():
                name = kind if not part else f"{kind}: {part}"
                (warm if number else cold).setdefault(name, []).append(seconds)
    return cold, warm


def environment_of(folder: Path | None) -> dict[str, str]:
    """With `folder` graphs are kept there; the extension stays where it is built."""
    if folder is None:
        return dict(os.environ)
    from npucompose.machine import CACHE_VARIABLE, cache_dir
    from npucompose_replay.executor import build

    build.load()  # and so it need not be built for this
    own = folder / "npucompose"
    own.mkdir(mode=0o700)
    subprocess.run(["cp", "-a", str(cache_dir() / "native"), str(own / "native")], check=True)
    return {**os.environ, CACHE_VARIABLE: str(own), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}


def shown(title: str, found: Mapping[str, list[tuple[float, float]]], *, goals: bool) -> bool:
    """Print one table; whether a goal was missed."""
    table, missed = Table(title=title), False
    for column in ("what", "median", "least", "most", "processor", "goal", ""):
        table.add_column(column, justify="left" if column in ("what", "") else "right")
    for name, seconds in found.items():
        waited, worked = ([pair[i] for pair in seconds] for i in (0, 1))
        goal = GOALS.get(name.rpartition(": ")[2]) if goals else None
        verdict = "" if goal is None else "met" if median(waited) <= goal else "MISSED"
        missed = missed or verdict == "MISSED"
        times = (f"{s:.3f}" for s in (median(waited), min(waited), max(waited), median(worked)))
        table.add_row(name, *times, "" if goal is None else f"{goal:g}", verdict)
    Console(width=130).print(table)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=7, help="counted ones of each kind")
    parser.add_argument("--mode", choices=MODES, action="append", help="only these; once for each")
    parser.add_argument("--own-cache", action="store_true", help="begin with empty caches of graphs and of Inductor")
    parser.add_argument("override", nargs="*", help="further choices, as inductor.max_autotune=false")
    given = parser.parse_args()
    asked = kinds(given.mode or MODES, given.override)
    with tempfile.TemporaryDirectory() as folder:
        environment = environment_of(Path(folder) if given.own_cache else None)
        cold, warm = measured(asked, given.processes, environment)
    if given.own_cache:
        shown("seconds in the first process", cold, goals=False)
    return int(shown("seconds in later processes", warm, goals=True))


if __name__ == "__main__":
    sys.exit(main())
