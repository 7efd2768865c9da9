"""Hugging Face classes on an NPU without one: `python benchmarks/huggingface_npu.py` writes docs/huggingface_npu.md.

Each class of CLASSES with random weights (model=transformers) goes through TorchAir's own Python in each of its modes
(target=npu_offline), a process for each: it is converted (max-autotune) or captured (npugraph_ex, reduce-overhead) and
compared with eager, or it is said which operator was not taken, with its line. Beside it stands what `npucompose
explain` says, in the same process. Ends with 1 where they differ, and where a row is neither. Nothing is timed.

A row that has its result in benchmarks/results/huggingface_npu.json is not run again: `--again` does, `--only
GPT2LMHeadModel` runs one class.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from compact import compact
from huggingface_npu_page import CLASSES, MODES, PAGE, page, problems

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "huggingface_npu.json"
STEPS = 2
LOADED_FIRST = ("torch._dynamo", "torch._inductor.compile_fx", "transformers", "npucompose.compose.session")


def row(name: str, mode: str) -> dict[str, Any]:
    """One class in one mode, in a process that becomes a device without CANN."""
    import torch

    from npucompose.api import checked
    from npucompose.compose.session import Session
    from npucompose.experiment.explain import explained

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    words = ["model=transformers", f"model.architecture={name}", "model.outputs=all", f"mode={mode}"]
    session = Session(checked([*words, "target=npu_offline", "target.soc=ascend910b"]))
    os.environ.update(session.checked.target.environment())
    session.set_up()
    found: dict[str, Any] = {"class": name, "mode": mode}
    try:
        said = explained(session).sinking
        found["explain"] = {"ge_graph": said.ge_graph, "failure": None if said.failure is None else said.failure.words}
        if said.failure is not None:
            at = {"operator": said.failure.operator, "source": said.failure.source, "fix": said.failure.fix}
            return {**found, "outcome": "not taken", **at, "words": said.failure.reason}
        return {**found, **_account(session), "difference": _difference(session)}
    except Exception as error:  # noqa: BLE001  whatever it is, it belongs into the table
        return {**found, "outcome": "error", "words": f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]}


def _account(session: Any) -> dict[str, Any]:
    """What became of the graphs, by the vendor's side alone."""
    from npucompose.targets.vendor_compiled import device_facts

    facts = device_facts(session.materialised.backend)
    assert facts is not None
    graphs = {"graphs": facts.fx_graphs}
    if facts.ge_graphs:
        return {"outcome": "converted", **graphs, "nodes": sum(one.nodes for one in facts.ge_graphs)}
    kernels = sum(one["kernels"] for one in session.materialised.backend.recordings())
    return {"outcome": "captured" if facts.captures else "neither", **graphs, "nodes": kernels}


def _difference(session: Any) -> float:
    """The largest difference from eager, over fresh inputs."""
    session.rewind()
    worst = 0.0
    for step in range(STEPS):
        session.seed(step)
        wanted = session.call(session.reference, session.inputs(step))
        session.seed(step)
        given = session.call(session.compiled, session.inputs(step))
        for one, other in zip(wanted, given, strict=True):
            worst = max(worst, float((one.double() - other.double()).abs().max()))
    return worst


def results() -> list[dict[str, Any]]:
    """What is stored, in the order of CLASSES and MODES."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    by_name = {(one["class"], one["mode"]): one for one in stored}
    return [by_name[key] for key in ((c, m) for c in CLASSES for m in MODES) if key in by_name]


def _write(rows: Sequence[Mapping[str, Any]]) -> None:
    RESULTS.write_text(compact(rows) + "\n")


def _measure(wanted: Sequence[tuple[str, str]]) -> None:
    """Each in a process that is forked from one with torch and the library loaded, and stored when it is done."""
    os.environ.update(NPUCOMPOSE_SIMULATED_NPU="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    for module in LOADED_FIRST:
        importlib.import_module(module)
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for one in pool.imap(_of_pair, wanted):
            kept = [old for old in results() if (old["class"], old["mode"]) != (one["class"], one["mode"])]
            _write([*kept, one])
            print(f"{one['class']} {one['mode']}: {one['outcome']} {one.get('words', '')}", flush=True)
    _write(results())


def _of_pair(pair: tuple[str, str]) -> dict[str, Any]:
    return row(*pair)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CLASSES, default=CLASSES, metavar="CLASS")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=MODES, metavar="MODE")
    parser.add_argument("--again", action="store_true", help="also those that have a result")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page from what is stored")
    arguments = parser.parse_args(argv)
    known = {(one["class"], one["mode"]) for one in results()}
    if not arguments.page:
        pairs = [(name, mode) for mode in arguments.mode for name in arguments.only]
        _measure([pair for pair in pairs if arguments.again or pair not in known])
    stored = results()
    PAGE.write_text(page(stored))
    wrong = [f"{one['class']} {one['mode']}: {problem}" for one in stored for problem in problems(one)]
    print("\n".join(wrong) or f"{len(stored)} rows, all converted, captured or refused by name")
    return 1 if wrong or len(stored) < len(CLASSES) * len(MODES) else 0


if __name__ == "__main__":
    sys.exit(main())
