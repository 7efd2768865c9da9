"""What docs/sinking.md says of the rows of `fa_lengths.py`, held against what TorchAir handed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WAYS: dict[str, str] = {
    "numbers": "a list of ints that the caller gives",
    "constants": "a list that the module holds",
    "mixed": "an int of the caller's and a constant",
    "computed": "ints of the caller's plus one",
    "tensor": "a tensor: torchair.ops.npu_fused_infer_attention_score; IFA has no such function",
    "tolist": "`tolist()` of a tensor",
    "symint": "`key.shape[2]`, a SymInt or a constant",
    "gears": "a list of ints that the caller gives, and gears for the cache",
}
SOC = {5: "ascend310p"}
"""The product that is asked about; elsewhere ascend910b, which sinks tiling."""


def disagreements(one: Mapping[str, Any]) -> list[str]:
    """What TorchAir handed over, held against both verdicts by the rules of docs/sinking.md; [] where none differs."""
    if "refused" in one:
        return []
    found: list[str] = []
    for name in ("explain", "derived"):
        verdict = one[name]
        wanted = wanted_of(one, verdict)
        found += [
            f"{name}: {what} is {verdict[what]}, and not {it}" for what, it in wanted.items() if verdict[what] != it
        ]
    return found


def wanted_of(one: Mapping[str, Any], verdict: Mapping[str, Any]) -> dict[str, Any]:
    """What the verdict must be, from the outcome of the conversion."""
    if one["failure"] is not None:
        failed = "failed" if one["failure"]["operator"] is not None else "unknown"
        return {"path": None, "ge_graph": failed, "ge_build": failed}
    graphs = one["converted"]
    ge = "dynamic" if any(graph["unknown_sizes"] for graph in graphs) else "static"
    build = "static" if all(_static(graph, one["path"]) for graph in graphs) else "dynamic"
    wanted: dict[str, Any] = {"ge_graph": ge, "ge_build": build}
    if verdict["path"] is not None:
        wanted["path"] = verdict["path"] if (verdict["fx_graph"], ge, build) == _table()[verdict["path"]] else None
    return wanted


def _table() -> Mapping[int, tuple[str, str, str]]:
    from npucompose.npu.static_graph.verdicts import BY_PATH

    return BY_PATH


def _static(graph: Mapping[str, Any], path: int) -> bool:
    """Rows 1, 3, 5 and 10: whether GE can keep the whole of this graph off the host."""
    if graph["unknown_sizes"] and not graph["gears"]:
        return False
    if graph["lengths"] == ["Const"]:
        return True
    return not graph["forced"] and graph["sink"] == "1" and path not in SOC
