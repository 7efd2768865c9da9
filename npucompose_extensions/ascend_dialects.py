"""Dialects of three public Ascend inference projects.

- cann-recipes-infer: `model_config.exe_mode` (gitcode/github hicann/cann-recipes-infer fbc225d of 2026-08-21,
  executor/utils/graph_utils.py, executor/core/config/inference_config.py; top-level `exe_mode` of older models).
- vllm-ascend: `additional_config` with `torchair_graph_config` (v0.11, torchair/torchair_model_runner.py) or
  `ascend_compilation_config` (182b75ea84ff, compilation/compiler_interface.py), and `compilation_config`.
- omni-infer: `additional_config.graph_model_compile_config` (2c482c2acbc0,
  adaptors/vllm/compilation/compile_config.py).

Export to vLLM-Ascend is read at its commit 182b75ea84ff of 2026-08-22; each row names its file. vLLM compiles and
captures by itself: it asks npugraph_ex for FX passes only (force_eager) and captures the result with its own graphs, so
most of TorchAir's options have no key, and four of npugraph_ex's are fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.recipe.dialects import Dialect, Exported, ExportingDialect, Settings, json_arguments
from npucompose.schema.experiment import Experiment
from npucompose.serving.vllm.options import VllmOptions
from npucompose.table.modes import ACLGRAPH, NPUGRAPH_EX
from npucompose.vendor.option_specs import shown
from npucompose_extensions.engine_dialects.sizes import whole_sizes
from npucompose_extensions.engine_dialects.vllm_keys import WITHOUT_MEANING

STABLE = "StableRDFS"
CANN_IN_MODELS: Mapping[str, str] = {
    "enable_multi_streams": "streams",
    "enable_moe_stream_overlap": "streams",
    "micro_batch_mode": "streams",
    "enable_limit_core": "cores",
    "enable_limit_core_num": "cores",
}
VLLM_IN_MODELS: Mapping[str, str] = {
    "enable_multistream_mla": "streams",
    "enable_multistream_moe": "streams",
    "enable_multistream_shared_expert": "streams",
    "multistream_overlap_shared_expert": "streams",
    "multistream_overlap_gate": "streams",
    "multistream_dsa_preprocess": "streams",
    "multistream_dsv4_dsa_overlap": "streams",
    "enable_super_kernel": "super kernels",
}
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
FIXED: Mapping[str, Any] = {
    "npugraph_ex.force_eager": True,
    "npugraph_ex.inplace_pass": False,
    "npugraph_ex.clone_input": False,
    "npugraph_ex.clone_output": False,
}
"""What vLLM-Ascend always sets, whatever a configuration says (compiler_interface.py, `_configure_backend`)."""

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


class CannRecipes(Dialect):
    """Runners of cann-recipes-infer: `exe_mode` and the switches beside it."""

    name: ClassVar[str] = "cann-recipes-infer"
    files: ClassVar[str] = "cann-recipes-infer (exe_mode)"
    keys: ClassVar[tuple[str, ...]] = ("exe_mode",)
    priority: ClassVar[int] = 3

    def read(self, settings: Settings) -> None:
        mode, cached = str(settings.take("exe_mode")), settings.take("enable_cache_compile", default=False)
        static, dynamic = settings.take("enable_static_kernel"), settings.take("enable_dynamic_graph")
        fused = settings.take("enable_superkernel")
        ge = {
            "experimental_config.frozen_parameter": True,
            "experimental_config.tiling_schedule_optimize": True,
            "experimental_config.topology_sorting_strategy": STABLE,
        }
        if mode == "npugraph_ex":
            options = {
                "frozen_parameter": True,
                "static_kernel_compile": bool(static),
                "super_kernel_optimize": bool(fused),
                "super_kernel_optimize_options": {"dcci_disable_on_kernel": [".*"]},
            }
            settings.compiles(
                "npugraph_ex", options, dynamic=True if dynamic is None else dynamic, cached=cached, at="exe_mode"
            )
        elif mode == "ge_graph":
            settings.compiles("torchair", ge, dynamic=False, cached=cached, at="exe_mode")
            settings.facts.hcom.append((0, "exe_mode=ge_graph", ""))
            if dynamic:
                settings.line(
                    "enable_dynamic_graph=true", "with exe_mode=ge_graph it is passed over: the graph is static"
                )
            if fused:
                settings.facts.in_models.setdefault("super kernels", {})["enable_superkernel=true"] = []
        elif mode == "acl_graph":  # models/pangu_7b/runner_openpangu_dense.py is the one that still has it
            old = {**ge, "experimental_config.remove_noop_ops": False}
            settings.compiles("torchair", old, mode=ACLGRAPH, dynamic=True, cached=cached, at="exe_mode")
        elif mode == "eager":
            settings.eager = True
            for name, value in {"enable_cache_compile": cached, "enable_superkernel": fused}.items():
                if value:
                    settings.line(f"{name}=true", "exe_mode=eager compiles nothing")
        else:
            raise ConfigError(f"exe_mode={mode}: none of eager, ge_graph, npugraph_ex, acl_graph.")
        if static and mode != "npugraph_ex":
            settings.line("enable_static_kernel=true", "it takes effect only with exe_mode=npugraph_ex")
        if platform := settings.take("platform_version"):
            settings.line(f"platform_version={platform}", "a family of products: say which one with target.soc")
        settings.model_keys(CANN_IN_MODELS)


class VllmAscendWithTorchair(Dialect):
    """Of v0.11, which compiled with TorchAir."""

    name: ClassVar[str] = "vllm-ascend-0.11"
    files: ClassVar[str] = ""
    keys: ClassVar[tuple[str, ...]] = ("torchair_graph_config",)
    priority: ClassVar[int] = 2

    def read(self, settings: Settings) -> None:
        sizes = {name: settings.take(name) for name in ("graph_batch_sizes", "graph_batch_sizes_init")}
        frozen, view = (
            settings.take("enable_frozen_parameter", default=True),
            settings.take("enable_view_optimize", default=True),
        )
        mode, cached = settings.take("mode", default=""), settings.take("use_cached_graph", default=False)
        if not settings.take("enabled", default=False):
            settings.eager = True
            settings.line("torchair_graph_config.enabled=false", "TorchAir compiles nothing then")
        else:
            options = {
                "experimental_config.frozen_parameter": frozen,
                "experimental_config.tiling_schedule_optimize": True,
                "experimental_config.enable_view_optimize": view,
            }
            settings.compiles("torchair", options, mode=mode, dynamic=True, cached=cached, at="torchair_graph_config")
            settings.facts.hcom.append((0, "torchair_graph_config.enabled=true", ""))
        for name, value in sizes.items():
            if value:
                settings.line(
                    f"{name}={shown(value)}", "vLLM pads batches to these sizes: here the model's inputs say the size"
                )
        settings.model_keys(VLLM_IN_MODELS)


class OmniInfer(Dialect):
    """`graph_model_compile_config`."""

    name: ClassVar[str] = "omni-infer"
    files: ClassVar[str] = ""
    keys: ClassVar[tuple[str, ...]] = ("graph_model_compile_config",)
    priority: ClassVar[int] = 1

    def read(self, settings: Settings) -> None:
        level, graphs = settings.take("level", default=0), settings.take("use_aclgraph", default=False)
        cached, gears = settings.take("use_ge_graph_cached", default=False), settings.take("decode_gear_list")
        if not level:
            settings.eager = True
        elif graphs or level == 3:
            settings.compiles("torchair", {}, mode=ACLGRAPH, dynamic=False, cached=False, at="use_aclgraph")
            settings.line(
                f"level={level}, use_aclgraph={shown(graphs)}", "its own wrapper captures, piece by piece at level 3"
            )
        else:
            options = {
                "experimental_config.frozen_parameter": True,
                "experimental_config.tiling_schedule_optimize": True,
            }
            settings.compiles("torchair", options, dynamic=False, cached=cached, at="graph_model_compile_config")
            settings.facts.hcom.append((0, "graph_model_compile_config.level", ""))
            settings.line(
                "FROZEN_PARAMETER_DISABLED", "not constant: that environment variable turns frozen_parameter off"
            )
        if gears:
            settings.line(
                f"decode_gear_list={shown(gears)}", "one graph for each padded size: here the model's inputs say it"
            )
        for name in ("block_num_floating_range", "aclgraph_capture_sizes", "aclgraph_num_of_warmups", "backend"):
            if (value := settings.take(name)) is not None:
                settings.line(f"{name}={shown(value)}", "no YAML is known for it")


class VllmAscend(ExportingDialect):
    """`ascend_compilation_config` and `cudagraph_mode`; it can be written, too."""

    name: ClassVar[str] = "vllm-ascend"
    files: ClassVar[str] = "vllm-ascend and omni-infer (additional_config)"
    keys: ClassVar[tuple[str, ...]] = (
        "ascend_compilation_config",
        "ascend_scheduler_config",
        "multistream_overlap_shared_expert",
        "multistream_overlap_gate",
        "weight_prefetch_config",
        "weight_nz_mode",
        "enable_flashcomm1",
        "enable_shared_expert_dp",
        "enable_cpu_binding",
    )
    """Of its additional_config; what is vLLM's alone is read as vLLM's."""

    def read(self, settings: Settings) -> None:
        sizes, mode = (
            settings.take("cudagraph_capture_sizes"),
            str(settings.take("cudagraph_mode", default="FULL_DECODE_ONLY")),
        )
        if settings.take("enforce_eager", default=False) or settings.take("optimization_level") == 0:
            mode = "NONE"
        asked = settings.take("enable_npugraph_ex", default=True) and mode in ("FULL", "FULL_DECODE_ONLY")
        static = settings.take("enable_static_kernel", default=False)
        if mode == "NONE":
            settings.eager = True
        elif asked:
            options: dict[str, Any] = {path.removeprefix("npugraph_ex."): value for path, value in FIXED.items()}
            if static:
                options["static_kernel_compile"] = True
                options |= {"_vllm_aclnn_static_kernel_sym_range": sizes} if sizes else {}
            settings.compiles("npugraph_ex", options, dynamic=True, cached=False, at="ascend_compilation_config")
            settings.line(
                "force_eager", "npugraph_ex only rewrites the FX graph there; vLLM-Ascend's own wrapper captures it"
            )
        else:
            settings.compiles("torchair", {}, mode=ACLGRAPH, dynamic=True, cached=False, at="cudagraph_mode")
            if mode != "FULL":
                settings.line(f"cudagraph_mode={mode}", "vLLM cuts the model at attention; here it is one graph")
        if static and not asked:
            settings.line(
                "enable_static_kernel=true",
                f"it takes effect only with npugraph_ex, which cudagraph_mode={mode} turns off",
            )
        if sizes and mode == "NONE":
            settings.line(f"cudagraph_capture_sizes={shown(sizes)}", "nothing is captured with cudagraph_mode=NONE")
        elif sizes and not (asked and static):  # which has them as its range
            settings.tree = {"extensions": {"vllm": {"sizes": whole_sizes("cudagraph_capture_sizes", sizes)}}}
        for name in [path for path in settings.flat if path.rpartition(".")[2].startswith("fuse_")]:
            settings.line(
                f"{name}={shown(settings.flat.pop(name))}",
                "a fusion pass of vLLM-Ascend's own; passes=replace has ours",
            )
        for path in [path for path in settings.flat if path.startswith("compilation_config.")]:
            key, value = path.partition(".")[2], settings.flat.pop(path)
            why = WITHOUT_MEANING.get(key.partition(".")[0], f"{_PLATFORM} sets it by itself, or passes it over")
            settings.line(f"{key}={shown(value)}", why)
        settings.model_keys(VLLM_IN_MODELS)

    def export(self, experiment: Experiment) -> Exported:
        return _exported(experiment)


def _exported(experiment: Experiment) -> Exported:
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
        _set(trees, _SIZES, sorted(set(experiment.extensions.section(VllmOptions).sizes)))
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
