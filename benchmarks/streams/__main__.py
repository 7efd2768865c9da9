"""What plans of streams are worth and what planning costs: `python -m benchmarks.streams`, `make bench-streams`.

comparison: on graphs with names and 2, 4 and 8 streams the simulated time of our plan, of the plan as it was before
plans knew of cores, and of those that Nimble, Opara, TensorRT-LLM, Apex and GE would make, over a bound that no plan
can beat; the two published cases of kernels that want the same cores. The same figures in every process.

planning: the fewest events and streams of published graphs; planning, proving and simulating 10,000 kernels; the whole
pass on FX graphs of 10,000 and 50,000 kernels and on model graphs of about 2,500 nodes; simulated time of three
objectives on two costed random families. In processor time, so that other work on the machine counts little.

exact: plans for time of 500 small random graphs beside the best of all plans, with cores and bandwidth shared.

strategies: what the plans of 66 families of graphs lose without each of the strategies that planning tries.

memory: 200 random graphs under `streams.max_memory`: pools, and the time that bounds cost. The same in every process.

collectives: three plans on two ranks under gloo, a thousand executions each held to the bits of one stream; ranks that
disagree, refused.

execution, for a machine with two cores and nothing else to do: `parallel_branches` on one stream and on two, predicted
against measured time.

predictions, for such a machine, too: predicted against measured gain of forced plans on fifteen models, with one and
with two intra-op threads; `python -m benchmarks.streams.predictions --models gpt_decode` takes some of them.

halves, for such a machine: a chain of layers whole and in two halves of its batch; two ranks with their sums in halves.

busy, for such a machine: forced plans while a second process takes one core, one and two intra-op threads.

headline: the command that README shows, five times, each in a process and a store of its own.

Each part ends with its goals, met or MISSED; where one is missed the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attrs import asdict
from rich.console import Console

from benchmarks.streams.busy import busy
from benchmarks.streams.collectives import collectives
from benchmarks.streams.comparison import comparison
from benchmarks.streams.cores import cores
from benchmarks.streams.execution import executed, one_thread, predictions
from benchmarks.streams.goals import Part, say, shown
from benchmarks.streams.halves import halves
from benchmarks.streams.headline import headline
from benchmarks.streams.memory import memory
from benchmarks.streams.optimal import optimal
from benchmarks.streams.planning import families, large, large_graph, published, sizes, whole_pass
from benchmarks.streams.predictions import predicted_gains
from benchmarks.streams.strategies import strategies

WIDTH = 160
"""Letters of a line, in a terminal or a file."""
PARTS: Mapping[str, Sequence[Callable[[int], Part]]] = {
    "comparison": (lambda _: comparison(), lambda _: cores()),
    "exact": (lambda _: optimal(),),
    "strategies": (lambda _: strategies(),),
    "planning": (lambda _: published(), large, sizes, large_graph, whole_pass, lambda _: families()),
    "memory": (lambda _: one_thread(memory),),
    "collectives": (lambda _: collectives(),),
    "execution": (lambda _: one_thread(executed), lambda _: one_thread(predictions)),
    "predictions": (lambda _: predicted_gains(),),
    "headline": (headline,),
    "halves": (lambda _: halves(),),
    "busy": (lambda _: busy(),),
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="the shortest of so many counts")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="one part of the tables, or several")
    parser.add_argument("--json", type=Path, help="goals and figures into this file as well")
    given = parser.parse_args(words)
    console = Console(width=WIDTH)
    met, result = True, {}
    for name in given.only or PARTS:
        parts = []
        say(f"{name} …")
        for make in PARTS[name]:
            parts.append(make(given.rounds))
            met &= shown(parts[-1], console)
        goals = [asdict(goal) for part in parts for goal in part.goals]
        result[name] = {"goals": goals, "figures": [part.figures for part in parts if part.figures]}
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
