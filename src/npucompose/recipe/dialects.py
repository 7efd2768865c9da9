"""YAML and JSON of public Ascend inference repositories, as the facts that a script of theirs would give.

Facts only, each with the file that says it; what their code does around a key (which options one switch sets) is part
of what the key means. Keys that are not about compiling are named in one line, keys that a model's own code acts on in
one note, and nothing is passed over.

- cann-recipes-infer: `model_config.exe_mode` (gitcode/github hicann/cann-recipes-infer fbc225d of 2026-08-21,
  executor/utils/graph_utils.py, executor/core/config/inference_config.py; top-level `exe_mode` of older models).
- vllm-ascend: `additional_config` with `torchair_graph_config` (v0.11, torchair/torchair_model_runner.py) or
  `ascend_compilation_config` (182b75ea84ff, compilation/compiler_interface.py), and `compilation_config`.
- omni-infer: `additional_config.graph_model_compile_config` (2c482c2acbc0,
  adaptors/vllm/compilation/compile_config.py).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, cast

from attrs import define, field

from npucompose.errors import ConfigError
from npucompose.recipe.genuine import Package, Unread, set_option
from npucompose.recipe.reader import Facts
from npucompose.recipe.values import Compile, Config
from npucompose.recipe.vllm_ascend import FIXED
from npucompose.schema.leaf import ACLGRAPH, shown

STABLE = "StableRDFS"
SOURCES = "cann-recipes-infer (exe_mode), vllm-ascend and omni-infer (additional_config)"
NO_CALL = ast.Call(func=ast.Name("compile", ast.Load()), args=[], keywords=[], lineno=0, col_offset=0)


@define(kw_only=True)
class Dialect:
    """A file while it is read: every key is used by somebody, or named at the end."""

    flat: dict[str, Any]
    facts: Facts = field(factory=Facts)
    notes: list[str] = field(factory=list)
    eager: bool = False

    def take(self, *names: str, default: Any = None) -> Any:
        """The value of the first of these keys that is there, by its last part."""
        for path in list(self.flat):
            if path.rpartition(".")[2] in names:
                return self.flat.pop(path)
        return default

    def line(self, code: str, why: str) -> None:
        self.facts.unread.append(Unread(line=0, code=code, why=why))

    def compiles(
        self, package: Package, options: Mapping[str, Any], *, mode: str = "", dynamic: Any, cached: Any, at: str
    ) -> None:
        config = Config(package=package)
        for path, value in {**({"mode": mode} if mode else {}), **options}.items():
            if why := set_option(package, config.values, path, value):
                self.line(f"{at}: {path} = {shown(value)}", why)
        self.facts.configs.append(config)
        whole = Compile(config=config, dynamic=bool(dynamic), fullgraph=True, node=NO_CALL, cached=bool(cached))
        self.facts.compiles.append(whole)

    def model_keys(self, kinds: Mapping[str, str]) -> None:
        """Switches of a model's own code: a note for those that are on."""
        for name, kind in kinds.items():
            for path in [path for path in self.flat if path.rpartition(".")[2] == name]:
                value = self.flat.pop(path)
                if value:
                    self.facts.in_models.setdefault(kind, {})[f"{path}={shown(value)}"] = []
                else:
                    self.notes.append(f"{path}={shown(value)}: off, and nothing to say")

    def end(self) -> None:
        rest = [f"{path}={shown(value)}" for path, value in self.flat.items()]
        if rest:
            self.notes.append(f"not about compiling, and left out: {', '.join(rest)}")


def read(data: Any, name: str) -> Dialect:
    """The facts of a file's data; ConfigError where it is none of the known dialects."""
    flat = _flat(data) if isinstance(data, Mapping) else {}
    for path, act in DIALECTS.items():
        if any(path in f".{key}." for key in flat):
            dialect = Dialect(flat=flat)
            act(dialect)
            dialect.end()
            return dialect
    raise ConfigError(f"{name}: nothing found. Known are the files of {SOURCES}; a script ends in .py.")


def _flat(data: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{at}.{key}" if at else str(key).replace("additional-config", "additional_config")
        inner = isinstance(value, Mapping) and value
        found |= _flat(cast("Mapping[str, Any]", value), path) if inner else {path: value}
    return found


CANN_IN_MODELS: Mapping[str, str] = {
    "enable_multi_streams": "streams",
    "enable_moe_stream_overlap": "streams",
    "micro_batch_mode": "streams",
    "enable_limit_core": "cores",
    "enable_limit_core_num": "cores",
}


def cann_recipes(d: Dialect) -> None:
    mode, cached = str(d.take("exe_mode")), d.take("enable_cache_compile", default=False)
    static, dynamic = d.take("enable_static_kernel"), d.take("enable_dynamic_graph")
    fused = d.take("enable_superkernel")
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
        d.compiles("npugraph_ex", options, dynamic=True if dynamic is None else dynamic, cached=cached, at="exe_mode")
    elif mode == "ge_graph":
        d.compiles("torchair", ge, dynamic=False, cached=cached, at="exe_mode")
        d.facts.hcom.append((0, "exe_mode=ge_graph", ""))
        if dynamic:
            d.line("enable_dynamic_graph=true", "with exe_mode=ge_graph it is passed over: the graph is static")
        if fused:
            d.facts.in_models.setdefault("super kernels", {})["enable_superkernel=true"] = []
    elif mode == "acl_graph":  # models/pangu_7b/runner_openpangu_dense.py is the one that still has it
        old = {**ge, "experimental_config.remove_noop_ops": False}
        d.compiles("torchair", old, mode=ACLGRAPH, dynamic=True, cached=cached, at="exe_mode")
    elif mode == "eager":
        d.eager = True
        for name, value in {"enable_cache_compile": cached, "enable_superkernel": fused}.items():
            if value:
                d.line(f"{name}=true", "exe_mode=eager compiles nothing")
    else:
        raise ConfigError(f"exe_mode={mode}: none of eager, ge_graph, npugraph_ex, acl_graph.")
    if static and mode != "npugraph_ex":
        d.line("enable_static_kernel=true", "it acts only with exe_mode=npugraph_ex")
    if platform := d.take("platform_version"):
        d.line(f"platform_version={platform}", "a family of products: say which one with target.soc")
    d.model_keys(CANN_IN_MODELS)


VLLM_IN_MODELS: Mapping[str, str] = {
    "enable_multistream_mla": "streams",
    "enable_multistream_moe": "streams",
    "enable_multistream_shared_expert": "streams",
    "multistream_overlap_shared_expert": "streams",
    "multistream_overlap_gate": "streams",
    "enable_super_kernel": "super kernels",
}


def torchair_of_vllm(d: Dialect) -> None:
    sizes = {name: d.take(name) for name in ("graph_batch_sizes", "graph_batch_sizes_init")}
    frozen, view = d.take("enable_frozen_parameter", default=True), d.take("enable_view_optimize", default=True)
    mode, cached = d.take("mode", default=""), d.take("use_cached_graph", default=False)
    if not d.take("enabled", default=False):
        d.eager = True
        d.line("torchair_graph_config.enabled=false", "TorchAir compiles nothing then")
    else:
        options = {
            "experimental_config.frozen_parameter": frozen,
            "experimental_config.tiling_schedule_optimize": True,
            "experimental_config.enable_view_optimize": view,
        }
        d.compiles("torchair", options, mode=mode, dynamic=True, cached=cached, at="torchair_graph_config")
        d.facts.hcom.append((0, "torchair_graph_config.enabled=true", ""))
    for name, value in sizes.items():
        if value:
            d.line(f"{name}={shown(value)}", "vLLM pads batches to these sizes: here the model's inputs say the size")
    d.model_keys(VLLM_IN_MODELS)


def npugraph_ex_of_vllm(d: Dialect) -> None:
    sizes, mode = d.take("cudagraph_capture_sizes"), str(d.take("cudagraph_mode", default="FULL_DECODE_ONLY"))
    asked = d.take("enable_npugraph_ex", default=True) and mode in ("FULL", "FULL_DECODE_ONLY")
    static = d.take("enable_static_kernel", default=False)
    if mode == "NONE":
        d.eager = True
    elif asked:
        options: dict[str, Any] = {path.removeprefix("npugraph_ex."): value for path, value in FIXED.items()}
        if static:
            options["static_kernel_compile"] = True
            options |= {"_vllm_aclnn_static_kernel_sym_range": sizes} if sizes else {}
        d.compiles("npugraph_ex", options, dynamic=True, cached=False, at="ascend_compilation_config")
        d.line("force_eager", "npugraph_ex only rewrites the FX graph there; vLLM-Ascend's own wrapper captures it")
    else:
        d.compiles("torchair", {}, mode=ACLGRAPH, dynamic=True, cached=False, at="cudagraph_mode")
        if mode != "FULL":
            d.line(f"cudagraph_mode={mode}", "vLLM cuts the model at attention; here it is one graph")
    if static and not asked:
        d.line("enable_static_kernel=true", f"it acts only with npugraph_ex, which cudagraph_mode={mode} turns off")
    if sizes and not (asked and static):
        d.line(f"cudagraph_capture_sizes={shown(sizes)}", "vLLM captures each size: here the model's inputs say it")
    for name in [path for path in d.flat if path.rpartition(".")[2].startswith("fuse_")]:
        d.line(f"{name}={shown(d.flat.pop(name))}", "a fusion pass of vLLM-Ascend's own; passes=replace has ours")
    d.model_keys(VLLM_IN_MODELS)


def omni_infer(d: Dialect) -> None:
    level, graphs = d.take("level", default=0), d.take("use_aclgraph", default=False)
    cached, gears = d.take("use_ge_graph_cached", default=False), d.take("decode_gear_list")
    if not level:
        d.eager = True
    elif graphs or level == 3:
        d.compiles("torchair", {}, mode=ACLGRAPH, dynamic=False, cached=False, at="use_aclgraph")
        d.line(f"level={level}, use_aclgraph={shown(graphs)}", "its own wrapper captures, piece by piece at level 3")
    else:
        options = {
            "experimental_config.frozen_parameter": True,
            "experimental_config.tiling_schedule_optimize": True,
        }
        d.compiles("torchair", options, dynamic=False, cached=cached, at="graph_model_compile_config")
        d.facts.hcom.append((0, "graph_model_compile_config.level", ""))
        d.line("FROZEN_PARAMETER_DISABLED", "not constant: that environment variable turns frozen_parameter off")
    if gears:
        d.line(f"decode_gear_list={shown(gears)}", "one graph for each padded size: here the model's inputs say it")
    for name in ("block_num_floating_range", "aclgraph_capture_sizes", "aclgraph_num_of_warmups", "backend"):
        if (value := d.take(name)) is not None:
            d.line(f"{name}={shown(value)}", "no YAML is known for it")


DIALECTS: Mapping[str, Callable[[Dialect], None]] = {
    ".exe_mode.": cann_recipes,
    ".torchair_graph_config.": torchair_of_vllm,
    ".graph_model_compile_config.": omni_infer,
    ".ascend_compilation_config.": npugraph_ex_of_vllm,
    ".cudagraph_mode.": npugraph_ex_of_vllm,
}
