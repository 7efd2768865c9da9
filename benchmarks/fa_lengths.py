"""Every way to give lengths, on every path, through the genuine conversion: `python benchmarks/fa_lengths.py`.

Each row is one process: a model of `fa_models.py` with the settings of a path of docs/sinking.md goes through
TorchAir's own Python (target=npu_offline mode=max-autotune). What was handed to GE, or why nothing was, is written
beside what npucompose says of it: the verdicts of `npucompose explain`, and those that it derives from the FX graph
alone. Writes
benchmarks/results/fa_lengths.json and docs/fa_lengths.md; ends with 1 where a row disagrees.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from compact import compact
from fa_lengths_page import PAGE, page
from fa_lengths_rules import SOC, WAYS, disagreements

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "fa_lengths.json"
OPS = ("fia", "ifa")
PATHS = (1, 2, 3, 4, 5, 6)
GEARS = "{key.2: [128, 160], value.2: [128, 160]}"
LENGTHS = re.compile("actual_seq")
LOADED_FIRST = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "npucompose.experiment.explain",
    "npucompose.compose.session",
)


def overrides(op: str, way: str, path: int) -> list[str]:
    """The experiment of a row, on the command line."""
    tensors = ["query"] if way == "gears" else ["query", "key", "value"]
    tensors += ["lens"] if way in ("tensor", "tolist") else []
    words = ["model=python", f"model.factory=fa_models:{op}_{way}", "trust=true"]
    words += ["target=npu_offline", f"target.soc={SOC.get(path, 'ascend910b')}", "mode=max-autotune"]
    words += ["shapes=static" if path == 1 else "shapes=dynamic"]
    words += [f"+shapes.gears={GEARS}"] if way == "gears" else []
    words += [f"shapes.mark_static=[{','.join(tensors)}]"] if path >= 3 else []
    words += ["tiling=sink"] if path >= 4 else []
    later = "{key.2: 160, value.2: 160" + ("}" if way == "gears" else ", key: unmarked, value: unmarked}")
    return [*words, f"model.sequence=[{later}]"] if path == 6 else words


def row(op: str, way: str, path: int) -> dict[str, Any]:
    """One row, from a process that becomes a device without CANN."""
    from attrs import evolve

    from npucompose.compose.check import check
    from npucompose.compose.session import Session
    from npucompose.compose.tree import compose
    from npucompose.errors import ConfigError
    from npucompose.experiment.explain import explained
    from npucompose.npu.static_graph.diagnosis import diagnose
    from npucompose.npu.static_graph.session import question_of

    head = {"op": op, "lengths": way, "path": path}
    try:
        session = Session(check(compose(overrides(op, way, path))))
    except ConfigError as error:
        return {**head, "refused": str(error)}
    session.set_up()
    said = explained(session).sinking
    graphs = [one.facts for one in session.materialised.backend.compilations]
    asked = evolve(question_of(session), through_torchair=False)
    derived = diagnose(asked, graphs, (), session.checked.operators) if graphs else said
    return {
        **head,
        "converted": [_handed_over(loaded) for loaded in _loaded()],
        "failure": None if said.failure is None else _failed(said.failure),
        "explain": _verdict(said),
        "derived": _verdict(derived),
    }


def _loaded() -> Sequence[Any]:
    from npucompose.npu.torchair.facts import LOADED

    return LOADED


def _handed_over(loaded: Any) -> dict[str, Any]:
    """What TorchAir gave to GE, read from its GraphDef and nothing else."""
    operators = {op.name: op for op in loaded.graph.op}
    feeders = [
        operators[source.rpartition(":")[0]]
        for op in operators.values()
        if "Attention" in op.type
        for slot, source in zip(op.input_desc, op.input, strict=False)
        if source and LENGTHS.search(slot.name)
    ]
    data = [list(op.output_desc[0].shape.dim) for op in operators.values() if op.type in ("Data", "RefData")]
    return {
        "unknown_sizes": any(size < 0 for shape in data for size in shape),
        "lengths": sorted({op.type for op in feeders}),
        "forced": any(op.attr["_force_unknown_shape"].b for op in feeders),
        "sink": loaded.options.get("ge.tiling_schedule_optimize"),
        "gears": "ge.dynamicDims" in loaded.options,
    }


def _failed(failure: Any) -> dict[str, Any]:
    return {"operator": failure.operator, "source": failure.source, "words": failure.reason or failure.what}


def _verdict(facts: Any) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in ("path", "fx_graph", "ge_graph", "ge_build")}


def results() -> list[dict[str, Any]]:
    """What is stored."""
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else []


def measured() -> list[dict[str, Any]]:
    """All rows, each in a process of its own that is forked from one with torch loaded."""
    os.environ.update(NPUCOMPOSE_SIMULATED_NPU="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    os.chdir(HERE)  # the factories of fa_models.py are found in the working directory
    for module in LOADED_FIRST:
        importlib.import_module(module)
    wanted = [(op, way, path) for op in OPS for way in WAYS for path in PATHS]
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        return pool.starmap(row, wanted, chunksize=1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="run nothing, write the page from what is stored")
    arguments = parser.parse_args(argv)
    if not arguments.page:
        RESULTS.write_text(compact(measured()) + "\n")
    stored = results()
    PAGE.write_text(page(stored))
    wrong = [f"{one['op']} {one['lengths']} path {one['path']}: {w}" for one in stored for w in disagreements(one)]
    print("\n".join(wrong) or f"{len(stored)} rows, none disagrees")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
