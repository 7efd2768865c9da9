"""vllm-ascend's `additional_config` and `compilation_config` as a recipe, by the rules of its version.

vLLM compiles and captures by itself: vllm-ascend asks TorchAir or npugraph_ex for FX passes only (`force_eager`) and
captures the result with its own graphs; up to 0.11 it also compiled whole models with TorchAir. What is written is for
its commit 182b75ea84ff of 2026-08-22; each row names its file. Most of TorchAir's options have no key there, and four
of npugraph_ex's are fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from attrs import frozen

from npucompose.errors import did_you_mean
from npucompose.recipe.dialects import Exported, ExportingDialect, Settings
from npucompose.schema.experiment import Experiment
from npucompose.table.modes import ACLGRAPH, NPUGRAPH_EX
from npucompose.vendor.option_specs import shown
from npucompose_extras.engine_dialects import vllm_keys, whole_sizes
from npucompose_extras.engine_dialects.command_line import ASCEND
from npucompose_extras.engine_dialects.vllm_ascend_versions import PROJECT, Row, foreign, row_of, rows
from npucompose_extras.engine_dialects.vllm_keys import json_arguments

IN_MODELS: Mapping[str, str] = {
    "enable_multistream_mla": "streams",
    "enable_multistream_moe": "streams",
    "enable_multistream_shared_expert": "streams",
    "multistream_overlap_shared_expert": "streams",
    "multistream_overlap_gate": "streams",
    "multistream_dsa_preprocess": "streams",
    "multistream_dsv4_dsa_overlap": "streams",
    "enable_super_kernel": "super kernels",
}
FULL = (vllm_keys.FULL, vllm_keys.DECODE)
"""Modes of graphs in which the model stays whole, so that it is compiled as one graph."""
XLITE = "xlite_graph_config"
SIZES = "cudagraph_capture_sizes"
OF_CONFIG = "compilation_config"


class VllmAscend(ExportingDialect):
    """`additional_config` of each version that compiles; the newest can be written, too."""

    name: ClassVar[str] = PROJECT
    files: ClassVar[str] = "vllm-ascend and omni-infer (additional_config)"
    package: ClassVar[str] = PROJECT
    keys: ClassVar[tuple[str, ...]] = (
        *dict.fromkeys(row.section for row in rows()),
        XLITE,
        "ascend_scheduler_config",
        "multistream_overlap_shared_expert",
        "multistream_overlap_gate",
        "weight_prefetch_config",
        "weight_nz_mode",
        "enable_flashcomm1",
        "enable_shared_expert_dp",
        "enable_cpu_binding",
        ASCEND,
    )
    """Of its additional_config; what is vLLM's alone is read as vLLM's, unless the script sets Ascend's variables."""

    def read(self, settings: Settings) -> None:
        if variables := settings.take(ASCEND):
            settings.notes.append(f"{PROJECT} runs it: the script sets {', '.join(variables)}")
        row = row_of(settings)
        on = settings.take(row.switch)
        foreign(row, settings)
        sizes = settings.take(f"{OF_CONFIG}.{SIZES}", SIZES)
        if row.hcom:
            _whole(settings, row, on, sizes)
        else:
            _rewritten(settings, row, on, sizes)
        _fusions(settings)
        _misspelt(settings, row)
        _rest_of_vllms(settings)
        settings.model_keys(IN_MODELS)

    def export(self, experiment: Experiment) -> Exported:
        return exported(experiment)


def _graphs(settings: Settings, row: Row, asked: bool) -> str:
    """The mode of graphs that the platform ends with; `asked`: the file asks for what only whole graphs get."""
    level = settings.take("optimization_level", default=vllm_keys.DEFAULT_LEVEL)
    said = settings.take(f"{OF_CONFIG}.cudagraph_mode", "cudagraph_mode")
    default = vllm_keys.OF_LEVEL.get(level, vllm_keys.OF_LEVEL[vllm_keys.DEFAULT_LEVEL])[1]
    mode = str(said or default).upper().rpartition(".")[2]
    if said is None and asked and mode != vllm_keys.NONE:
        settings.line(
            f"cudagraph_mode={vllm_keys.DECODE}",
            f"no mode is said: without one vLLM takes {mode}, for which {row.switch} has no effect there",
        )
        mode = vllm_keys.DECODE
    mode = _of_xlite(settings, row) or mode
    if settings.take("enforce_eager", default=False) not in (False, "false"):
        mode = vllm_keys.NONE
    if said is not None and mode in row.graphs:
        settings.line(f"cudagraph_mode={mode}", f"{PROJECT} {settings.version} takes {row.graphs[mode]} instead")
    return row.graphs.get(mode, mode)


def _of_xlite(settings: Settings, row: Row) -> str | None:
    """The mode of graphs that xlite leaves to vllm-ascend."""
    on, full = settings.take(f"{XLITE}.enabled"), settings.take(f"{XLITE}.full_mode", default=False)
    if not on:
        return None
    runs = "prefill and decoding" if full else "decoding"
    settings.line(
        f"{XLITE}.enabled=true, full_mode={shown(full)}",
        f"xlite, a runtime of openEuler, runs {runs} there with graphs of its own, and npucompose has no xlite: the "
        f"recipe says what {PROJECT} compiles beside it",
    )
    return row.xlite.get("full" if full else "decode")


def _captured(settings: Settings, graphs: str, sizes: Any) -> None:
    """vllm-ascend's own graphs, of what nothing compiled."""
    if graphs == vllm_keys.NONE:
        settings.eager = True
        if sizes:
            settings.line(f"{SIZES}={shown(sizes)}", f"nothing is captured with cudagraph_mode={graphs}")
        return
    settings.compiles("torchair", {}, mode=ACLGRAPH, dynamic=True, cached=False, at="cudagraph_mode")
    if graphs not in FULL:
        settings.line(f"cudagraph_mode={graphs}", "vLLM cuts the model at attention; here it is one graph")
    elif graphs != vllm_keys.FULL:
        settings.line(f"cudagraph_mode={graphs}", "prompts run eagerly there; here every call is a graph's")
    _recorded(settings, sizes)


def _recorded(settings: Settings, sizes: Any) -> None:
    if sizes:
        settings.tree = {"extensions": {"vllm": {"sizes": whole_sizes(SIZES, sizes)}}}


def _whole(settings: Settings, row: Row, on: Any, sizes: Any) -> None:
    """The model compiled by TorchAir, as up to 0.11."""
    mode = settings.take(row.mode_key, default="") if row.mode_key else ""
    cached = settings.take(row.cached_key, default=False)
    options = {option: _option(settings, row, option) for option in row.options}
    eager = settings.flat.get("enforce_eager", False) not in (False, "false")
    if on and eager:
        settings.line("enforce_eager=true", f"{PROJECT} {settings.version} refuses it together with {row.switch}")
    if on and not eager:
        settings.take("enforce_eager")
        settings.compiles("torchair", options, mode=mode, dynamic=True, cached=cached, at=row.section)
        settings.facts.hcom.append((0, f"patch_for_hcom ({row.switch}=true)", ""))
        for code, why in row.lines.items():
            settings.line(code, why)
    elif row.off == "eager":
        settings.take("enforce_eager")
        settings.eager = True
        settings.line(f"{row.switch}=false", f"{PROJECT} {settings.version} compiles and captures nothing then")
    else:
        if not on:
            settings.line(f"{row.switch}=false", f"TorchAir compiles nothing then; {PROJECT} captures graphs by itself")
        _captured(settings, _graphs(settings, row, False), sizes)
    for name in ("graph_batch_sizes", "graph_batch_sizes_init"):
        if value := settings.take(f"{row.section}.{name}"):
            settings.line(
                f"{name}={shown(value)}", "vLLM pads batches to these sizes: here the model's inputs say the size"
            )


def _option(settings: Settings, row: Row, option: str) -> Any:
    default = row.options[option]
    return settings.take(row.keys[option], default=default) if option in row.keys else default


def _rewritten(settings: Settings, row: Row, on: Any, sizes: Any) -> None:
    """The FX graph rewritten by TorchAir or npugraph_ex, and captured by vllm-ascend."""
    static = bool(row.static_key and settings.take(row.static_key, default=False))
    wanted = row.on if on is None else bool(on)
    graphs = _graphs(settings, row, wanted and (bool(on) or static))
    if not (wanted and graphs in FULL):
        _captured(settings, graphs, sizes)
        turned_off = f"{row.switch}=false" if not wanted else f"cudagraph_mode={graphs}"
        if static:
            settings.line(
                f"{row.static_key}=true", f"it takes effect only with {row.switch}, and {turned_off} forbids it"
            )
        if on and wanted:
            settings.line(f"{row.switch}=true", f"{PROJECT} turns it off with cudagraph_mode={graphs}")
        return
    options: dict[str, Any] = dict(row.options)
    if static:
        options |= row.static
        options |= {row.sizes: _decoded(settings, sizes)} if sizes else {}
    settings.compiles(row.package, options, mode=row.mode, dynamic=True, cached=False, at=row.section)
    eagerly = next(iter(row.options))
    settings.line(f"{eagerly}=true", f"the FX graph is only rewritten there; {PROJECT}'s own wrapper captures it")
    for code, why in row.lines.items():
        settings.line(code, why)
    if not (static and row.sizes):  # which has them as its range
        _recorded(settings, sizes)


def _decoded(settings: Settings, sizes: Any) -> list[int]:
    """The sizes that a batch of decoding has: from a query's tokens to those of as many queries as run at once."""
    query = 1 + int(settings.flat.get("speculative_config.num_speculative_tokens", 0))
    most = settings.flat.get("max_num_seqs")
    given = cast("list[int]", sizes if isinstance(sizes, list) else [sizes])
    return [size for size in given if query <= size <= (most * query if isinstance(most, int) else size)]


def _fusions(settings: Settings) -> None:
    within = {settings.section, *(row.section for row in rows())}
    for path in list(settings.flat):
        section, _, name = path.rpartition(".")
        if name.startswith("fuse_") and (section in within or section.rpartition(".")[2] in within):
            settings.line(
                f"{path}={shown(settings.flat.pop(path))}",
                f"a fusion pass of {PROJECT}'s own; passes=replace has ours",
            )


def _misspelt(settings: Settings, row: Row) -> None:
    """A line for each key that nearly is one of the row's."""
    names = [key.rpartition(".")[2] for key in row.asks if key.startswith(f"{row.section}.")]
    for path in [path for path in settings.flat if f".{row.section}." in f".{path}"]:
        if hint := did_you_mean(path.rpartition(".")[2], names, 0.9).strip():
            value = shown(settings.flat.pop(path))
            settings.line(f"{path}={value}", f"{PROJECT} {settings.version} has no such key. {hint}")


def _rest_of_vllms(settings: Settings) -> None:
    """A line for each key of vLLM's own configuration that is left."""
    for path in [path for path in settings.flat if path.startswith(f"{OF_CONFIG}.")]:
        key, value = path.partition(".")[2], settings.flat.pop(path)
        own = f"{PROJECT}'s platform sets it by itself, or passes it over"
        settings.line(f"{key}={shown(value)}", vllm_keys.WITHOUT_MEANING.get(key.partition(".")[0], own))


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
