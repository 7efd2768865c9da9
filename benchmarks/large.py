"""What large inputs take: `python -m benchmarks.large [row …]`, into benchmarks/results/large.json and docs/large.md.

Each row states its rule first: how the time of the processor may grow from a tenth of the size to the whole (LINEAR:
not faster than the size), and what one unit may take of memory beyond what the process has after a tenth. Each of the
two is a process of its own, on one thread. Exit status 1 where a rule is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from tools.result_file import write

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results") / "large.json"
PAGE = ROOT / "docs" / "large.md"
HEAD = """# Large inputs

Written by `python -m benchmarks.large` (`make bench-large`) from `benchmarks/results/large.json`; no cell is by hand.
Each row is one act at a tenth of the size and at the whole, in a process of its own with one thread: seconds of the
processor, and memory beyond what the process held before.

| what | rule | time | memory | holds |
|---|---|---|---|---|"""
LINEAR = 13.0
"""Times the processor's time, for ten times the size: linear, and a third for what a busy machine adds."""


@frozen(kw_only=True)
class Row:
    """One thing that is made large."""

    name: str
    size: int
    unit: str
    most_bytes: int
    """Of memory for each unit."""
    rule: str
    act: Callable[[int, Path], object]


def runs(count: int, folder: Path) -> object:
    """Copies of one run, listed by `report`."""
    from npucompose.cli import main

    one = folder / "one"
    _quietly(main, ["run", "--quiet", "model=add", "mode=eager", "pipeline=compile_only", f"hydra.run.dir={one}"])
    text = (one / "report.json").read_text()
    for number in range(count):
        place = folder / "runs" / f"{number:05}"
        place.mkdir(parents=True)
        (place / "report.json").write_text(text)
    return lambda: _quietly(main, ["report", str(folder / "runs")])


def ledger(megabytes: int, folder: Path) -> object:
    """A ledger of so many MB, of which `report --limit 20` shows the first."""
    from npucompose.cli import main
    from npucompose.experiment.sweep.run import PointEntry, PointLedger

    more = "x" * 900
    with PointLedger.open(folder) as made:
        for begin in range(0, megabytes * 1000, 1000):
            made.write(
                PointEntry(key=f"{number:064x}", status="ok", overrides=(f"seed={number}", f"tracker.place={more}"))
                for number in range(begin, begin + 1000)
            )
    return lambda: _quietly(main, ["report", str(folder), "--limit", "20"])


def recordings(count: int, folder: Path) -> object:
    """Recordings of one small graph, all of which live."""
    import torch

    from npucompose_replay.captured_graph import CapturedGraph
    from tests.graph_helpers import traced

    inputs = [torch.randn(4, 4)]
    graph = traced(lambda x: (x * 2).relu() + 1, *inputs)
    kept: list[Any] = []

    def act() -> None:
        with torch.no_grad():
            for _ in range(count):
                kept.append(CapturedGraph.capture(graph, inputs))

    return act


def nodes(count: int, folder: Path) -> object:
    """A chain of so many nodes, recorded and replayed."""
    import torch
    from torch import fx

    from npucompose_replay.captured_graph import CapturedGraph

    graph = fx.Graph()
    node = graph.placeholder("x")
    for number in range(count):
        node = graph.call_function((torch.ops.aten.add.Scalar, torch.ops.aten.mul.Scalar)[number % 2], (node, 1))
    graph.output((node,))
    made, inputs = fx.GraphModule(torch.nn.Module(), graph), [torch.randn(4, 4)]
    made(*inputs)

    def act() -> object:
        with torch.no_grad():
            return CapturedGraph.capture(made, inputs).replay(*inputs)

    return act


def shapes(calls: int, folder: Path) -> object:
    """Calls of one function, each with another shape than the one before: 97 shapes in turns."""
    import torch

    import npucompose

    function = npucompose.compile(lambda x: (x * 2).relu() + 1, "mode=reduce-overhead")
    inputs = [torch.randn(size, 4) for size in range(2, 99)]

    def act() -> None:
        with torch.no_grad():
            for number in range(calls):
                function(inputs[number % len(inputs)])

    return act


ROWS = {
    row.name: row
    for row in (
        Row(name="runs", size=10_000, unit="run", most_bytes=96 << 10, act=runs,
            rule="report reads each report once and keeps what its line shows: linear, 96 KiB a run"),
        Row(name="ledger", size=200, unit="MB", most_bytes=1 << 20, act=ledger,
            rule="report --limit reads what it shows, of a copy of the file: linear in the file, 1 MiB a MB"),
        Row(name="recordings", size=10_000, unit="recording", most_bytes=64 << 10, act=recordings,
            rule="a recording holds its own plan and results: linear, 64 KiB for three operators"),
        Row(name="nodes", size=20_000, unit="node", most_bytes=4 << 10, act=nodes,
            rule="a graph is recorded in one pass over its nodes: linear, 4 KiB a node"),
        Row(name="shapes", size=50_000, unit="call", most_bytes=1 << 10, act=shapes,
            rule="a call with a shape that was seen looks it up, and recordings are bounded: linear, 1 KiB a call"),
    )
}  # fmt: skip


def _quietly(main: Callable[[list[str]], int], words: list[str]) -> None:
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        status = main(words)
    if status:
        raise SystemExit(f"{words} ended with {status}")


def measured(row: Row, size: int) -> dict[str, float]:
    """In this process: the seconds of its processor and the memory that the act itself took."""
    folder = Path(tempfile.mkdtemp(prefix="npucompose-large-"))
    try:
        os.chdir(folder)
        act: Any = row.act(size, folder)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here (proc(5))
        before, began = _peak(), time.process_time()
        act()
        return {"seconds": round(time.process_time() - began, 3), "bytes": _peak() - before}
    finally:
        os.chdir("/")
        shutil.rmtree(folder)


def _peak() -> int:
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def judged(row: Row, tenth: Mapping[str, float], whole: Mapping[str, float]) -> dict[str, Any]:
    """The line of the table: what was measured, and whether the rule holds."""
    growth = whole["seconds"] / max(tenth["seconds"], 0.05)
    each = max(0.0, whole["bytes"] - tenth["bytes"]) / (row.size - row.size // 10)
    return {
        "name": row.name, "size": row.size, "unit": row.unit, "rule": row.rule,
        "seconds": [tenth["seconds"], whole["seconds"]],
        "mib": [round(tenth["bytes"] / 2**20, 1), round(whole["bytes"] / 2**20, 1)], "times": round(growth, 1),
        "bytes_each": round(each), "most_bytes_each": row.most_bytes,
        "holds": growth <= LINEAR and each <= row.most_bytes,
    }  # fmt: skip


def apart(row: Row, size: int) -> dict[str, float]:
    words = [sys.executable, "-m", "benchmarks.large", "--inside", row.name, str(size)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{row.name} {size}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """docs/large.md."""
    lines = [HEAD]
    for row in rows:
        (short, long), (less, more) = row["seconds"], row["mib"]
        many, rule = f"{row['size']:,} {row['unit']}s".replace("MBs", "MB"), row["rule"]
        times = f"{short:g} → {long:g} s ({row['times']:g} times)"
        lines.append(f"| {many} | {rule} | {times} | {less:g} → {more:g} MiB | {'yes' if row['holds'] else 'no'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="row", help=", ".join(ROWS))
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        name, size = given.inside
        print(json.dumps(measured(ROWS[name], int(size))))
        return 0
    before = {one["name"]: one for one in json.loads(RESULTS.read_text())["rows"]} if RESULTS.exists() else {}
    for name in given.rows or ROWS:
        row = ROWS[name]
        before[name] = judged(row, apart(row, row.size // 10), apart(row, row.size))
        print(json.dumps(before[name]), flush=True)
        lines = [before[one] for one in ROWS if one in before]
        write(RESULTS, {"linear": LINEAR}, rows=lines)
        PAGE.write_text(page(lines), encoding="utf-8")
    return int(not all(one["holds"] for one in before.values()))


if __name__ == "__main__":
    sys.exit(main())
