"""A recipe as the options of vllm-ascend, read at its commit 182b75ea84ff of 2026-08-22; each row names its file.

Most of TorchAir's options have no key there, and four of npugraph_ex's are fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from npucompose.recipe.dialects import Exported
from npucompose.schema.experiment import Experiment
from npucompose.table.modes import ACLGRAPH, NPUGRAPH_EX
from npucompose.vendor.option_specs import shown
from npucompose_extras.engine_dialects.vllm_ascend_versions import rows
from npucompose_extras.engine_dialects.vllm_keys import json_arguments

_CAPTURING = (ACLGRAPH, NPUGRAPH_EX)
_SIZES = "compilation_config.cudagraph_capture_sizes"
READ_AT = "vllm-project/vllm-ascend 182b75ea84ff (2026-08-22)"
_COMPILER = "vllm_ascend/compilation/compiler_interface.py"
_CONFIG = "vllm_ascend/ascend_config.py"
_PLATFORM = "vllm_ascend/platform.py"
_GRAPH_MODE = "docs/source/user_guide/feature_guide/graph_mode.md"
_OPTIONS = "docs/source/user_guide/configuration/additional_config.md"
_NOTES = "docs/source/user_guide/release_notes.md"
_NPUGRAPH_EX = "additional_config.ascend_compilation_config.enable_npugraph_ex"


@frozen(kw_only=True)
class KeyRow:
    """One option (or a mode) and the keys that say the same there."""

    option: str
    keys: Mapping[str, Any]
    """{dotted key of the two JSONs: value}; `...` stands for the option's own value."""
    source: str


MODES: tuple[KeyRow, ...] = (
    KeyRow(
        option="npugraph_ex",
        keys={"compilation_config.cudagraph_mode": "FULL", _NPUGRAPH_EX: True},
        source=f"{_GRAPH_MODE}; {_PLATFORM} turns npugraph_ex off in every mode that is not FULL or FULL_DECODE_ONLY",
    ),
    KeyRow(
        option="reduce-overhead",
        keys={"compilation_config.cudagraph_mode": "FULL", _NPUGRAPH_EX: False},
        source=f"{_GRAPH_MODE}; vllm_ascend/compilation/acl_graph.py captures",
    ),
    KeyRow(option="eager", keys={"compilation_config.cudagraph_mode": "NONE"}, source=_GRAPH_MODE),
)
OPTIONS: tuple[KeyRow, ...] = (
    KeyRow(
        option="npugraph_ex.static_kernel_compile",
        keys={"additional_config.ascend_compilation_config.enable_static_kernel": ...},
        source=_CONFIG,
    ),
    KeyRow(
        option="npugraph_ex._vllm_aclnn_static_kernel_sym_range",
        keys={"compilation_config.cudagraph_capture_sizes": ...},
        source=f"{_COMPILER}, which makes the range of the capture sizes",
    ),
)
FIXED: Mapping[str, Any] = {f"npugraph_ex.{path}": value for path, value in rows()[-1].options.items()}
"""What vllm-ascend always sets, whatever a configuration says."""

WHY_NOT: Mapping[str, str] = {
    "max-autotune": f"GE graphs of TorchAir were removed: use mode=npugraph_ex or reduce-overhead ({_NOTES})",
    "passes": f"its own fusion passes are switched by name and take no other (ascend_compilation_config, {_OPTIONS})",
    "stream_plan": "it takes no plan; multistream_overlap_shared_expert puts the shared expert of a mixture of experts "
    f"on a stream of its own ({_OPTIONS})",
    "shapes": "vLLM itself decides which sizes are symbolic, and captures the batch sizes of cudagraph_capture_sizes",
    "compile.fullgraph": "vLLM compiles each model as one graph by itself",
    "logs": "logs are set by environment variables there",
    "fixed": f"vLLM-Ascend always sets {{value}} ({_COMPILER})",
    "compiler": f"no key is known for it ({_CONFIG}, {_OPTIONS})",
}


def exported(experiment: Experiment) -> Exported:
    trees: dict[str, Any] = {"additional_config": {}, "compilation_config": {}}
    sources: dict[str, str] = {}
    missing: list[dict[str, str]] = []
    mode = experiment.mode.name

    def put(row: KeyRow, value: Any) -> None:
        for key, said in row.keys.items():
            _set(trees, key, value if said is ... else said)
            sources[key] = row.source

    def lacks(option: str, why: str) -> None:
        missing.append({"option": option, "why": why})

    row = next((row for row in MODES if row.option == mode), None)
    put(row, None) if row is not None else lacks(f"mode={mode}", WHY_NOT[mode])
    rows = {row.option: row for row in OPTIONS}
    for path, value in experiment.compiler.changed().items():
        if path in rows and mode == "npugraph_ex":
            put(rows[path], list(value) if isinstance(value, tuple) else value)
        elif path not in FIXED or mode != "npugraph_ex":
            lacks(f"compiler.{path}={shown(value)}", WHY_NOT["compiler"])
    if mode == "npugraph_ex":
        for path, fixed in FIXED.items():
            if experiment.compiler[path] != fixed:
                why = WHY_NOT["fixed"].format(value=shown(fixed))
                lacks(f"compiler.{path}={shown(experiment.compiler[path])}", why)
    for option, why in _rest(experiment):
        lacks(option, WHY_NOT[why])
    if "vllm" in experiment.extensions.named and mode in _CAPTURING:
        _set(trees, _SIZES, sorted(set(experiment.extensions.named["vllm"].capture_sizes)))
        sources[_SIZES] = _GRAPH_MODE
    return Exported(
        arguments=json_arguments(**trees),
        **trees,
        without_equivalent=tuple(missing),
        sources=sources,
        read_at=READ_AT,
    )


def _rest(experiment: Experiment) -> list[tuple[str, str]]:
    """(option, key of WHY_NOT) of everything beside mode and compiler options that was asked for."""
    shapes, logs = experiment.shapes, experiment.logs
    found: list[tuple[str, str]] = [
        (f"passes.{label}", "stream_plan" if choice.name == "stream_plan" else "passes")
        for label, choice in experiment.passes.items()
    ]
    if shapes.dynamic is not None or shapes.mark_static or shapes.mark_dynamic:
        found.append((f"shapes={shapes.name}", "shapes"))
    if not experiment.compile.fullgraph:
        found.append(("compile.fullgraph=false", "compile.fullgraph"))
    if logs.artifacts or logs.levels:
        found.append(("logs", "logs"))
    return found


def _set(trees: dict[str, Any], key: str, value: Any) -> None:
    *groups, name = key.split(".")
    at = trees
    for group in groups:
        at = at.setdefault(group, {})
    at[name] = value
