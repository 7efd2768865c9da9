"""Run in a process of its own: what `explain` says of serving models, as JSON.

`python serving_verdicts.py TARGET NAME …`; a name is one of `serving_models`, or a built-in model with its shapes and
options, `paged_decode:dynamic:layout=TND`. `capture:` before it asks `explain --capture`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
os.environ["TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING"] = "0"

from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.experiment.explain import captured, explained
from npucompose.models.base import Built
from simulator_tests.serving_models import CASES


def session_of(target: str, name: str, mode: str) -> Session:
    chosen = [f"target={target}", "target.soc=ascend910b", f"mode={mode}"] + (
        ["tiling=sink"] if mode == "max-autotune" else []
    )
    if name not in CASES:
        model, shapes, *options = name.split(":")
        asked = [f"model={model}", f"shapes={shapes}", *(f"model.{option}" for option in options)]
        return Session(check(compose([*asked, *chosen])))
    case = CASES[name]
    marked = [f"shapes.mark_static=[{','.join(case.static)}]"] if case.static else []
    session = Session(check(compose(["model=add", f"shapes={case.shapes}", *marked, *chosen])))
    session.materialised  # noqa: B018  which defines the operators
    session.built = Built(module=case.module(), inputs=lambda step: dict(case.inputs), steps=1)
    return session


def told(target: str, name: str) -> dict[str, Any]:
    try:
        if name.startswith("capture:"):
            found = captured(session_of(target, name.removeprefix("capture:"), "npugraph_ex")).capture
            return {"captures": found.verdict, "certainty": found.certainty}
        sinking = explained(session_of(target, name, "max-autotune")).sinking
    except Exception as error:  # noqa: BLE001  the test says that there is none
        return {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
    return {
        "path": sinking.path,
        "verdicts": [sinking.fx_graph, sinking.ge_graph, sinking.ge_build],
        "certainty": list(sinking.certainty.values()),
        "blame": [[one.operator, one.source, one.reason.partition("\n")[0]] for one in sinking.blame],
    }


def main(target: str, *names: str) -> None:
    print(json.dumps({name: told(target, name) for name in names or CASES}))


if __name__ == "__main__":
    main(*sys.argv[1:])
