"""Run as a process of its own, on target=npu or npu_offline: the experiment itself, or its script.

stdin: {"overrides": […], "script": text or null}; a line of stdout: {"graphs": [text after the hooks, …], "equal" and
"close": whether the result has the bits of eager, or its values, "counts": captures, replays, events, "as_dict": what
the genuine configuration object says of itself, "leaves": what each of its leaves holds, "ge": the GE graphs with their
options}.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from typing import Any


def main() -> None:
    order = json.load(sys.stdin)
    from npucompose import api

    checked = api.checked(order["overrides"])
    target: Any = checked.target
    mode = checked.experiment.mode.name
    os.environ.update(target.environment())
    target.load_platform(mode)
    target.prepare(mode)
    from npucompose.compose.session import Session

    session = Session(checked)
    result = _script(order["script"], session, mode) if order["script"] else _experiment(session)
    print("\n" + json.dumps({**result, "counts": target.counts(mode), "ge": _facts(mode)}))


def _experiment(session: Any) -> dict[str, Any]:
    said = _said_by(session.materialised.genuine.config)  # before TorchAir compiles, which may change it
    # Printed when TorchAir has turned each view into a reshape; a script's are printed in its last hook.
    texts = [c.text_after.replace("aten.reshape.default", "aten.view.default") for c in session.compilations]
    return {"graphs": texts, "equal": True, "close": True, **said}


def _said_by(config: Any) -> dict[str, Any]:
    """The object's own as_dict(), whole, and every leaf: as_dict() leaves most of them out."""
    from npucompose.npu.torchair.config import read
    from npucompose.recipe.vendor_options import attributes, patterns_of

    leaves = attributes("torchair" if hasattr(config, "ge_config") else "npugraph_ex").values()
    held = {leaf.path: read(config, leaf) for leaf in leaves if leaf.kind != "pool" and leaf.set_by != "passes"}
    named = {path: patterns_of(value) if callable(value) else value for path, value in held.items()}
    return {"as_dict": [{str(key): str(value) for key, value in part.items()} for part in config.as_dict()],
            "leaves": json.loads(json.dumps(named))}  # fmt: skip


def _facts(mode: str) -> list[dict[str, Any]]:
    if mode != "max-autotune":
        return []

    from npucompose.npu.torchair import facts
    from npucompose.table.structure import facts_of

    return [facts_of(facts.graph_facts(loaded)) for loaded in facts.LOADED]


def _script(script: str, session: Any, mode: str) -> dict[str, Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    from npucompose.graphs import printed

    names: dict[str, Any] = {"__name__": "ejected"}
    exec(compile(script, "ejected.py", "exec"), names)
    graphs: list[str] = []
    last = next((table for table in ("POST", "PRE") if table in names), None)
    for found, edits in list(names[last].items()) if last else ():
        names[last][found] = lambda edit, edits=edits: (
            edits(edit),
            graphs.append(printed(edit.graph).replace("aten.reshape.default", "aten.view.default")),
        )
    if mode == "npugraph_ex":
        import npugraph_ex  # type: ignore[import-not-found]

        config = npugraph_ex.CompilerConfig()
        for name, value in names["options"]().items() if "options" in names else ():
            setattr(config, name, value)
    else:
        config = names["compiler_config"]()
    module, inputs = session.built.module, dict(session.built.inputs(0))
    reference = copy.deepcopy(module)
    with torch.no_grad():
        wanted = reference(**copy.deepcopy(inputs))
        got = names["compiled"](module, inputs)(**inputs)
    pairs = list(zip(tree_leaves(got), tree_leaves(wanted), strict=True))
    same = {"equal": all(torch.equal(a, b) for a, b in pairs), "close": all(_close(a, b) for a, b in pairs)}
    return {"graphs": graphs, **same, **_said_by(config)}


def _close(got: Any, wanted: Any) -> bool:
    """Within torch's own tolerance for the dtype."""
    import torch

    try:
        torch.testing.assert_close(got, wanted)
    except AssertionError:
        return False
    return True


if __name__ == "__main__":
    main()
