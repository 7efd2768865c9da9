"""Write docs/semantics.md, what is compared with eager theme by theme: `python -m tools.semantics_page`."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import npucompose_replay.state
from npucompose.graphs.inherited import inherited_errors
from replay_tests.semantics.harness import CALLS
from replay_tests.semantics.refused import REFUSED, SENTENCES
from replay_tests.semantics.rows import __name__ as ROWS_PACKAGE
from replay_tests.semantics.rows import all_rows
from replay_tests.semantics.ways import WAYS
from tools.fuzz_programs import RESULTS, totals

PAGE = Path(__file__).resolve().parents[1] / "docs" / "semantics.md"

HEAD = """# What is compared with eager

Written by `python -m tools.semantics_page` from the tests themselves.

A program that is compiled does what it does in eager, or is refused with a sentence. The tests of
[replay](../packages/replay/README.md), in their folder `semantics`, hold
{rows} small programs to that, written as users write them: {calls} calls each on fresh inputs, whose results,
inputs afterwards, state (modules, buffers, lists, attributes), printed text and random numbers are compared.
Results of some calls are held and looked at once more when all calls are over. Each program runs in {ways} ways:

{way_lines}

`reduce-overhead` is compared bit for bit; where torch's tracing alone (`aot_eager`) differs from eager in the last
bits, the replay has to equal the traced graph. `max-autotune` makes kernels of its own and is compared with a
tolerance for each dtype. `make test` runs {fast} of the programs, `make test-full` all of them in all ways.

| theme | programs | in `make test` | |
|---|---|---|---|
{theme_lines}

## What is refused

{refused}

## What torch itself gets wrong in silence

These programs do bit for bit what torch makes of them without npucompose (torch {torch}), and that is not what eager
does. `make test-full` runs each with torch alone and fails where a release has mended it, and
`python -m tools.inherited_errors` prints what the installed torch does.

| program | what differs | others (`aot_eager`) | max-autotune (`inductor`) | `explain` names it | PyTorch's issue |
|---|---|---|---|---|---|
{torchs_own}

The table is `src/npucompose/graphs/inherited.yaml`. `npucompose explain` names a row, with the line of the model, where
a graph shows it by its operators, dtypes and shapes; rows without "yes" depend on values, on gradients, or on what no
graph holds.

Where a call shows the error itself it runs as eager runs it, in every mode and without cost to other calls: inputs
that overlap, one of them written, and did not when the graph was made (PyTorch's
[139789](https://github.com/pytorch/pytorch/issues/139789)), and tangents of forward-mode AD
([187284](https://github.com/pytorch/pytorch/issues/187284)). Graphs with lazy negative or conjugate bits, which
Inductor does not read, and graphs that it cannot compile
([196570](https://github.com/pytorch/pytorch/issues/196570)) are recorded unfused; one that torch's freezing cannot take
(a convolution with a symbolic padding) is fused with its weights as inputs. With deterministic algorithms on, eager
fills the memory of `torch.empty`, which Inductor's kernels do not: such graphs are recorded unfused too. An
operator that frees what the graph has computed ends the process in Inductor's code, which goes on to use that memory.

## What belongs to a call beside its inputs

{state}

## Random programs

`semantics/programs.py` writes programs at random: helpers that are reached several times, graph breaks,
results that are kept, fed back, written or returned as views, custom operators with state, weights and shapes that
change, two threads. `make test` runs a few, `make test-full` a thousand, and `python -m tools.fuzz_programs` as
many as are asked for, from a stored seed; stopped, it goes on where it was. {fuzzed} With `--mode max-autotune` they go
through Inductor, whose kernels are recorded and replayed, and must be as near to eager as their dtypes let expect.

With the look at who holds results taken out, the same programs find overwritten results within a few tries; a test
of `make test-full` holds them to that.

## Many threads

Eight threads call one module, {fronts}; each result is compared at once and again after more calls.
`make test-sanitized` does the same, and tests of replays and streams, with our native library built for the thread
sanitizer and for those of addresses and undefined behaviour, and prints every report with a frame of ours.
`tools/thread_sanitizer.supp` suppresses nothing of ours.
"""


def page() -> str:
    rows = all_rows()
    counts, fast = Counter(row.theme for row in rows.values()), Counter(row.theme for row in rows.values() if row.fast)
    named = [(name, name.replace("_", " ")) for name in sorted(counts)]
    themes = (f"| {shown} | {counts[name]} | {fast[name]} | {about(name)} |" for name, shown in named)
    return HEAD.format(
        torch=version("torch"),
        rows=len(rows),
        calls=CALLS,
        ways=len(WAYS),
        way_lines="\n".join(f"- {line}" for line in ways()),
        fast=fast.total(),
        theme_lines="\n".join(themes),
        refused=refused(),
        torchs_own=torchs_own(),
        state=state(),
        fuzzed=fuzzed(),
        fronts='through `torch.compile`, through `npucompose.compile` and detached with `outputs="keep"`',
    )


def about(theme: str) -> str:
    """The first sentence of the theme's file."""
    return (importlib.import_module(f"{ROWS_PACKAGE}.{theme}").__doc__ or "").splitlines()[0].rstrip(".")


def ways() -> list[str]:
    fronts = {"backend": 'torch.compile(f, backend="npucompose")', "compile": "npucompose.compile(f)"}
    return [
        f"`{fronts[way.front]}`, `mode={way.mode}`" + (f", `target.executor={way.executor}`" if way.executor else "")
        for way in WAYS
    ]


def refused() -> str:
    if not REFUSED:
        return "Nothing."
    lines = [f"- `{name}`: {SENTENCES[name]}" for name in REFUSED]
    return "\n".join(["aot_eager runs none of these either.", "", *lines])


def torchs_own() -> str:
    rows = (
        (f"`{name}`", error.differs, _said(error.traced), _said(error.fused), "yes" if error.pattern else "",
         _linked(error.issue))
        for name, error in sorted(inherited_errors().rows.items())
    )  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _said(wrong: bool) -> str:
    return "wrong" if wrong else "right"


def _linked(issue: int | None) -> str:
    return f"[{issue}](https://github.com/pytorch/pytorch/issues/{issue})" if issue else ""


def state() -> str:
    """The table in the module that has the rules."""
    lines = (npucompose_replay.state.__doc__ or "").splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


def fuzzed() -> str:
    if not RESULTS["reduce-overhead"].is_file():
        return ""
    found = json.loads(RESULTS["reduce-overhead"].read_text())
    sums = totals(found["chunks"])
    return (
        f"Seed {found['seed']}, torch {found['torch']}: {sums['programs']} programs, {sums['different']} different; "
        f"{sums['wrong']} wrong. {sums['as traced']} did bit for bit what torch's tracing alone makes of them, and "
        "that is not what eager does."
    )


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
