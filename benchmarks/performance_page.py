"""docs/performance.md and a page for each machine in docs/performance/, from the results that `performance.py` left.
Measures nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from candidates import CANDIDATES
from performance_goals import Goal

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
DETAILS = PAGE.with_suffix("")
Result = dict[str, Any]
Row = dict[str, Any]

HEAD = """# Performance

Written by `python benchmarks/performance.py` (`make bench-table`) from `benchmarks/results/performance/`; no figure is
by hand. One process for each model and number of threads; in it all candidates are called in turns, on the same inputs
and with weights of their own, so that whatever disturbs the machine disturbs all of them. In its turn a candidate is
called three times and the last is counted: it finds the caches as a loop of a program does. *After others* are the
figures of a second pass of one call in a turn: all others have used the caches since. *Time* is the median of a call,
then the quartiles; *speed-up* the median ratio to eager of each round; *results* the comparison with eager on eight
steps before anything is timed; *fp64 error* how far these steps together are from the same model in double precision,
‖got - wanted‖ / ‖wanted‖; *made* the seconds of compiling, capturing, loading and the first call (compilers' caches may
be warm). The *kernel floor* of a recording is what its kernels take by themselves (`benchmarks/floor.py`: what reads
64 KiB and more outside of the pool finds it as cold as in a replay).

All figures are of sources in which products and attention were tried by oneDNN and ATen as well, and a graph unfused
([a percent](tunings.md)). Intel Xeon's are older: there a part of a sum has 192 terms and few rows one register, a
weight that a model has once is hot when libraries are tried, a template computes a GELU with a tanh, and a batch norm
is folded in float32. AMD EPYC's figures of gpt_prefill are of sources in which 64 to 127 terms are one part, as well.

Each machine has a page of its own with times, quartiles, errors, versions and the reasons where there is no
figure: {links}.
MKL, which multiplies for eager, leaves half of the vector unit of an AMD EPYC idle and all of an Intel Xeon's busy, so
that speed-ups over eager are smaller there.

- **npucompose** rows: `torch.compile` is a recording behind guards, `detached` the handle that skips them, both native
  (C++); `portable` is the detached handle without a compiler; `max-autotune` is our passes, then Inductor with
  autotuned kernels, whose products keep their sums in registers, add up in parts and fetch weights ahead, frozen
  weights and the faster of a library and Inductor's template for each product, called by Inductor's wrapper
  (`inductor.replay=wrapper`); `max-autotune, detached` is the handle of a recording of the same kernels. On Linux 6.1
  and later a recording has its weights on huge pages; packed convolutions go to oneDNN without torch in between.
- *transformers* is one token through a four-layer `LlamaForCausalLM` of random weights, without a cache; *gpt2* 64
  tokens through six layers of width 384; *whisper_encoder* four seconds of speech through an encoder of the size of
  whisper-tiny; *t5_step* a token of T5's decoder with its cache, four layers of width 256. All weights are random.
- *resnet18* and *unet* are given images with channels first, as torch has them by itself.
- *Inductor max-autotune, frozen* is `torch.compile` with `max_autotune` and `freezing`, from which our `max-autotune`
  starts. Folded and packed weights are summed in another order: errors differ from those of Inductor's defaults.
- AOTInductor and the other rows without npucompose have torch's defaults. ONNX Runtime and OpenVINO take and give
  arrays over torch's memory; their threads do not spin or are counted as asked.
- ExecuTorch, IREE and TVM take part where they are installed (`make rivals`). *ExecuTorch* gives XNNPACK what it takes
  and computes the rest with its portable kernels; *IREE* generates code for this processor (`llvm-cpu`), which one
  thread runs inline; *TVM* has its default pipeline, because tuning takes hours for each model. *nativert* is torch's
  own interpreter of exported programs, where torch's build lets Python make one.
"""
MEMORY_HEAD = """
## Memory

Written by `python benchmarks/memory.py`, a process for each cell, one thread, with everything that an earlier one has
left in caches. What the process holds after eight calls beyond what it held when eager had been called once (code of
compilers and libraries is in it), then the most that it held in between; of it the weights that are kept beside the
model's own, folded or packed for a library, and the replayer's planned pool. The weights of a model themselves are in
none of it. {where}
"""
DETAILS_HEAD = """# Performance on {machine}

Written with [docs/performance.md](../performance.md), which says what everything here means and has the speed-ups.
"""


def write(
    machines: Mapping[str, Sequence[Result]],
    models: Sequence[str],
    goals: Mapping[str, Sequence[Goal]],
    memory: Mapping[str, Result],
) -> None:
    """`machines` are {machine: its results}, `goals` {machine: its goals}, `memory` {model: what is held}."""
    links = ", ".join(f"[{machine}]({_file(machine)})" for machine in machines)
    lines = [HEAD.replace("{links}", links), *_goal_lines(goals)]
    for machine, its in machines.items():
        lines += _summaries(its, models, (("Speed-up over eager", _share),), f", {machine}", _file(machine))
    PAGE.write_text("\n".join([*lines, *_memory_lines(memory, models), ""]))
    DETAILS.mkdir(exist_ok=True)
    for machine, its in machines.items():
        head = DETAILS_HEAD.replace("{machine}", machine)
        (PAGE.parent / _file(machine)).write_text(
            "\n".join([head, *_summaries(its, models, MORE), *_details(its, models)])
        )


def by_machine(results: Sequence[Result]) -> Mapping[str, Sequence[Result]]:
    """{a processor's name as its maker writes it, without marks: the results measured on it}."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(machine_of(result), []).append(result)
    return dict(sorted(found.items()))


def machine_of(result: Result) -> str:
    """`Intel Xeon` of a result on an `Intel(R) Xeon(R) Processor`."""
    return " ".join(re.sub(r"\((R|TM)\)|\bProcessor\b", " ", result["environment"]["cpu"]).split())


def slug_of(machine: str) -> str:
    """For the names of files: `intel_xeon`."""
    return re.sub(r"\W+", "_", machine.lower()).strip("_")


def _file(machine: str) -> str:
    return f"{DETAILS.name}/{slug_of(machine)}.md"


def _goal_lines(goals: Mapping[str, Sequence[Goal]]) -> Iterator[str]:
    yield "## Goals\n\nOne thread, where nothing else is said.\n"
    yield "| | " + " | | ".join(goals) + " | |"
    yield "|---|" + "---:|---|" * len(goals)
    for several in zip(*goals.values(), strict=True):
        cells = (f"{goal.figure} | {_met(goal)}" for goal in several)
        yield f"| {several[0].words} | " + " | ".join(cells) + " |"


def _met(goal: Goal) -> str:
    return "" if goal.met is None else "met" if goal.met else "**missed**"


Summary = tuple[str, Callable[[Row], str]]


def _summaries(
    results: Sequence[Result], models: Sequence[str], which: Sequence[Summary], where: str = "", page: str = ""
) -> Iterator[str]:
    """`page` has the reasons, where it is not this one."""
    for words, cell in which:
        for threads in sorted({r["threads"] for r in results}):
            title = f"{words}, {_threads(threads)}{where}"
            yield from _summary(title, results, models, threads, cell, f"[none]({page}#reasons)")


def _summary(
    title: str, results: Sequence[Result], models: Sequence[str], threads: int, cell: Callable[[Row], str], none: str
) -> Iterator[str]:
    found = {r["model"]: r for r in results if r["threads"] == threads}
    shown = [model for model in models if model in found]
    yield f"\n## {title}\n"
    yield "| | " + " | ".join(shown) + " |"
    yield "|---|" + "---:|" * len(shown)
    for name in CANDIDATES:
        if not any(name in found[model]["candidates"] for model in shown):
            continue  # it takes part since later than these results
        cells = (found[model]["candidates"].get(name, {}) for model in shown)
        yield f"| {name} | " + " | ".join(none if row.get("why_not") else cell(row) for row in cells) + " |"


def _threads(number: int) -> str:
    return f"{number} thread{'s' if number > 1 else ''}"


def _share(row: Row) -> str:
    share = row.get("as_fast_as_eager")
    return f"{share:.2f}" if share else ""


def _share_after_others(row: Row) -> str:
    return _share(row.get("after_others", {}))


def _error(row: Row) -> str:
    error = row.get("fp64_error")
    return "" if error is None else f"{error:.1e}"


def _details(results: Sequence[Result], models: Sequence[str]) -> Iterator[str]:
    order = {model: at for at, model in enumerate(models)}
    ordered = sorted(results, key=lambda r: (order[r["model"]], r["threads"]))
    for result in ordered:
        environment = result["environment"]
        versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
        vectors = f", {environment['capability']}" if "capability" in environment else ""
        facts = [result["date"], f"{environment['cpu']}{vectors}, {environment['cores']} cores", versions]
        if result.get("load") is not None:
            facts.append(f"load average {result['load']:.1f} (1.0 is this process alone)")
        yield f"\n## {result['model']}, {_threads(result['threads'])}\n"
        yield " · ".join(facts) + "\n"
        yield "| | time | quartiles | speed-up | results | fp64 error | made | kernel floor |"
        yield "|---|---:|---:|---:|---|---:|---:|---:|"
        yield from (_row(name, row) for name, row in result["candidates"].items())
    yield "\n## Reasons\n"
    reasons = {
        (r["model"], n): row["why_not"] for r in ordered for n, row in r["candidates"].items() if "why_not" in row
    }
    yield from (f"- {model}, {name}: {reason.replace('|', '/')}" for (model, name), reason in reasons.items())
    yield ""


def _row(name: str, row: Row) -> str:
    if "p50_us" not in row:
        return f"| {name} | {row['why_not'].replace('|', '/')} | | | | | | |"
    results = "bit for bit" if row["bitwise"] else f"off by {row['max_abs_err']:.1e}"
    floor = row.get("floor_us")
    return (
        f"| {name} | {_time(row['p50_us'])} | {_time(row['p25_us'])} – {_time(row['p75_us'])} "
        f"| {row['as_fast_as_eager']:.2f} | {results} | {_error(row)} | {row['made_s']:.1f} s "
        f"| {_time(floor) if floor else ''} |"
    )


def _memory_lines(memory: Mapping[str, Result], models: Sequence[str]) -> Iterator[str]:
    shown = [model for model in models if model in memory]
    if not shown:
        return
    where = {f"{machine_of(memory[model])}, {memory[model]['date']}": None for model in shown}
    yield MEMORY_HEAD.replace("{where}", f"Measured on {' and '.join(where)}.")
    yield "| | " + " | ".join(shown) + " |"
    yield "|---|" + "---:|" * len(shown)
    for name in CANDIDATES:
        cells = (_memory(memory[model]["candidates"].get(name, {})) for model in shown)
        yield f"| {name} | " + " | ".join(cells) + " |"


def _memory(row: Row) -> str:
    """What the process holds, the most that it held, and what of it is known."""
    if "held_bytes" not in row:
        return ""
    held, peak = (round(row[which] / 2**20) for which in ("held_bytes", "peak_bytes"))
    parts = [f"{held} ({peak}) MiB"]
    if row["packed_bytes"]:
        parts.append(f"packed {row['packed_bytes'] / 2**20:.1f} MiB")
    if row["pool_bytes"]:
        parts.append(f"pool {row['pool_bytes'] / 1024:.0f} KiB")
    return ", ".join(parts)


MORE: Sequence[Summary] = (
    ("Speed-up over eager after others", _share_after_others),
    ("Error against the model in double precision", _error),
)
"""What the page of a machine has beside its times."""


def _time(us: float) -> str:
    return f"{us:.1f} µs" if us < 1000 else f"{us / 1000:.2f} ms"
