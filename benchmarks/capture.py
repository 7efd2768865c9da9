"""What a capture costs beyond AOTAutograd: `python benchmarks/capture.py [--runs 5] [--passes stream_plan]`.

Beyond AOTAutograd is everything from the moment in which AOTAutograd hands us its graph to the moment in which the
first replay can begin: the record of the graph, the passes, lowering, the run on real values that finds each kernel,
tries it on poisoned buffers and notes it, the memory plan, the executor with its set-up kernels, the front's checks.
The run on real values is counted, although eager would take most of that time too. Each run is a process of its own
with one thread, so that nothing is warm; the replayer's extension is built. Medians; the goal is for graphs of about
2,500 nodes without passes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from statistics import median

from rich.console import Console
from rich.table import Table

GOAL_S = 0.1
MODELS = (("gpt_decode", "model.layers=29"), ("tiny_ops", "model.count=2400"))
PARTS = ("record of the graph", "passes", "lowering", "run and plan", "memory, executor, front")


def parts_of(model: str, size: str, passes: str) -> tuple[int, dict[str, float]]:
    """(nodes, seconds of each part); one compilation and one capture in this process."""
    import torch

    from npucompose.api import checked
    from npucompose.compose.session import Session
    from npucompose_replay.captured_graph import CapturedGraph

    torch.set_num_threads(1)
    live = Session(checked([f"model={model}", size, "mode=reduce-overhead", f"passes={passes}"]))
    (compilation,) = live.compilations
    assert compilation.lowered is not None
    (captured,) = compilation.lowered.captured
    assert isinstance(captured, CapturedGraph)
    prepared = captured.seconds - captured.record_seconds
    seconds = (
        compilation.account_s,
        compilation.passes_s,
        compilation.backend_s,
        captured.record_seconds,
        prepared,
    )
    return len(compilation.before.lines), dict(zip(PARTS, seconds, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="processes for each model")
    parser.add_argument("--passes", default="[]", help="the pass list, as on the command line")
    given = parser.parse_args()
    table = Table(title=f"milliseconds beyond AOTAutograd, passes={given.passes}, medians of {given.runs} processes")
    for column in ("model", "nodes", *PARTS, "together", "least … most", "goal"):
        table.add_column(column, justify="left" if column == "model" else "right")
    met = True
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for model, size in MODELS:
            runs = [pool.apply(parts_of, (model, size, given.passes)) for _ in range(given.runs)]
            totals = [sum(parts.values()) for _, parts in runs]
            met &= median(totals) <= GOAL_S or given.passes != "[]"
            verdict = "" if given.passes != "[]" else "met" if median(totals) <= GOAL_S else "MISSED"
            table.add_row(
                f"{model} {size}",
                str(runs[0][0]),
                *(f"{median(parts[name] for _, parts in runs) * 1e3:.1f}" for name in PARTS),
                f"{median(totals) * 1e3:.1f}",
                f"{min(totals) * 1e3:.1f} … {max(totals) * 1e3:.1f}",
                f"{verdict} {GOAL_S * 1e3:g}".strip(),
            )
    Console(width=140).print(table)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
