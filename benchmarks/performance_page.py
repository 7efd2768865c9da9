"""docs/performance.md and the goals, from the results that `performance.py` left. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from candidates import AOT_INDUCTOR, CANDIDATES, CPP_WRAPPER, DETACHED, INDUCTOR, MAX_AUTOTUNE, ONNX_RUNTIME

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
Result = dict[str, Any]

HEAD = """# Performance

Written by `python benchmarks/performance.py` (`make bench-table`) from `benchmarks/results/performance/`; no figure is
by hand. One process for each model and number of threads; in it all candidates are called in turns on the same inputs,
so that whatever disturbs the machine disturbs all of them, and none finds the caches as it left them. *Time* is the
median of a call, then the quartiles; *speed-up* the median ratio to eager of each round; *results* the comparison with
eager on three steps before anything is timed; *made* the seconds of compiling, capturing, loading and the first call
(compilers' caches may be warm); *memory* what the process holds more than before, and the replayer's planned pool where
there is one. The *kernel floor* is what ATen's own kernels take, by themselves and hot, without fusion
(`benchmarks/floor.py`).

- **npucompose** rows: `torch.compile` is a recording behind guards, `detached` the handle that skips them, both native
  (C++); `portable` is the detached handle without a compiler; `max-autotune` is our passes, then Inductor with
  autotuned kernels, frozen weights and the faster of MKL and oneDNN for each product, called by Inductor's wrapper
  (`inductor.replay=wrapper`); `max-autotune, detached` is the handle of a recording of the same kernels.
- *transformers* is one token through a four-layer `LlamaForCausalLM` of random weights, without a cache.
- AOTInductor and the rows without npucompose have torch's defaults. ONNX Runtime and OpenVINO take and give arrays over
  torch's memory; their threads do not spin or are counted as asked.
"""


@frozen(kw_only=True)
class Goal:
    words: str
    figure: str
    met: bool | None
    """None where one of the two has no figure."""


def goals(results: Sequence[Result]) -> list[Goal]:
    """What issue and README promise, at one thread."""
    by_model = {r["model"]: r["candidates"] for r in results if r["threads"] == 1}
    wanted: list[tuple[str, str, str, float]] = [
        *(("tiny_ops", DETACHED, other, 1.0) for other in (INDUCTOR, CPP_WRAPPER, AOT_INDUCTOR, ONNX_RUNTIME)),
        ("gpt_decode", DETACHED, AOT_INDUCTOR, 1.05),
        ("gpt_prefill", MAX_AUTOTUNE, DETACHED, 1.0),
    ]
    return [_goal(by_model.get(model, {}), model, one, other, limit) for model, one, other, limit in wanted]


def _goal(rows: dict[str, Any], model: str, one: str, other: str, limit: float) -> Goal:
    words = f"{model}: {one} at most {limit:g} of the time of {other}"
    fast, slow = (rows.get(name, {}).get("as_fast_as_eager") for name in (one, other))
    if not fast or not slow:
        return Goal(words=words, figure="-", met=None)
    return Goal(words=words, figure=f"{slow / fast:.2f}", met=slow / fast <= limit)


def write(results: Sequence[Result], models: Sequence[str]) -> None:
    PAGE.write_text("\n".join([HEAD, *_goal_lines(results), *_summary(results, models), *_details(results, models)]))


def _goal_lines(results: Sequence[Result]) -> Iterator[str]:
    yield "## Goals\n\n| one thread | got | |\n|---|---:|---|"
    for goal in goals(results):
        yield f"| {goal.words} | {goal.figure} | {'' if goal.met is None else 'met' if goal.met else '**missed**'} |"


def _summary(results: Sequence[Result], models: Sequence[str]) -> Iterator[str]:
    for threads in sorted({r["threads"] for r in results}):
        found = {r["model"]: r for r in results if r["threads"] == threads}
        shown = [model for model in models if model in found]
        yield f"\n## Speed-up over eager, {threads} thread{'s' if threads > 1 else ''}\n"
        yield "| | " + " | ".join(shown) + " |"
        yield "|---|" + "---:|" * len(shown)
        for name in CANDIDATES:
            if not any(name in found[model]["candidates"] for model in shown):
                continue  # it takes part since later than these results
            cells = (found[model]["candidates"].get(name, {}) for model in shown)
            yield f"| {name} | " + " | ".join(_share(cell) for cell in cells) + " |"


def _share(row: dict[str, Any]) -> str:
    share = row.get("as_fast_as_eager")
    return f"{share:.2f}" if share else "[none](#reasons)" if row.get("why_not") else ""


def _details(results: Sequence[Result], models: Sequence[str]) -> Iterator[str]:
    order = {model: at for at, model in enumerate(models)}
    ordered = sorted(results, key=lambda r: (order[r["model"]], r["threads"]))
    for result in ordered:
        environment = result["environment"]
        versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
        facts = [result["date"], f"{environment['cpu']}, {environment['cores']} cores", versions]
        if result.get("load") is not None:
            facts.append(f"load average {result['load']:.1f} (1.0 is this process alone)")
        if result.get("floor_us"):
            facts.append(f"kernel floor {_time(result['floor_us'])}")
        yield f"\n## {result['model']}, {result['threads']} thread{'s' if result['threads'] > 1 else ''}\n"
        yield " · ".join(facts) + "\n"
        yield "| | time | quartiles | speed-up | results | made | memory |\n|---|---:|---:|---:|---|---:|---:|"
        yield from (_row(name, row) for name, row in result["candidates"].items())
    yield "\n## Reasons\n"
    reasons = {
        (r["model"], n): row["why_not"] for r in ordered for n, row in r["candidates"].items() if "why_not" in row
    }
    yield from (f"- {model}, {name}: {reason.replace('|', '/')}" for (model, name), reason in reasons.items())
    yield ""


def _row(name: str, row: dict[str, Any]) -> str:
    if "p50_us" not in row:
        return f"| {name} | {row['why_not'].replace('|', '/')} | | | | | |"
    results = "bit for bit" if row["bitwise"] else f"off by {row['max_abs_err']:.1e}"
    pool = f", pool {row['pool_bytes'] / 1024:.0f} KiB" if row["pool_bytes"] else ""
    return (
        f"| {name} | {_time(row['p50_us'])} | {_time(row['p25_us'])} – {_time(row['p75_us'])} "
        f"| {row['as_fast_as_eager']:.2f} | {results} | {row['made_s']:.1f} s "
        f"| {row['held_bytes'] / 2**20:.0f} MiB{pool} |"
    )


def _time(us: float) -> str:
    return f"{us:.1f} µs" if us < 1000 else f"{us / 1000:.2f} ms"
