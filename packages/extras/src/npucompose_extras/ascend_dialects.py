"""Dialects of two public Ascend inference projects.

- cann-recipes-infer: `model_config.exe_mode` (gitcode/github hicann/cann-recipes-infer fbc225d of 2026-08-21,
  executor/utils/graph_utils.py, executor/core/config/inference_config.py; top-level `exe_mode` of older models).
- omni-infer: `additional_config.graph_model_compile_config` (2c482c2acbc0,
  adaptors/vllm/compilation/compile_config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from npucompose.errors import ConfigError
from npucompose.recipe.dialects import Dialect, Settings
from npucompose.table.modes import ACLGRAPH
from npucompose.vendor.option_specs import shown
from npucompose_extras.engine_dialects.command_line import ASCEND

STABLE = "StableRDFS"
CANN_IN_MODELS: Mapping[str, str] = {
    "enable_multi_streams": "streams",
    "enable_moe_stream_overlap": "streams",
    "micro_batch_mode": "streams",
    "enable_limit_core": "cores",
    "enable_limit_core_num": "cores",
}


class CannRecipes(Dialect):
    """Runners of cann-recipes-infer: `exe_mode` and the switches beside it."""

    name: ClassVar[str] = "cann-recipes-infer"
    files: ClassVar[str] = "cann-recipes-infer (exe_mode)"
    keys: ClassVar[tuple[str, ...]] = ("exe_mode",)
    priority: ClassVar[int] = 3

    def read(self, settings: Settings) -> None:
        mode, cached = str(settings.take("exe_mode")), _switch(settings, "enable_cache_compile") or False
        static, dynamic = _switch(settings, "enable_static_kernel"), _switch(settings, "enable_dynamic_graph")
        fused = _switch(settings, "enable_superkernel")
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
            settings.facts.hcom.append((0, "patch_for_hcom (exe_mode=ge_graph)", ""))
            if dynamic:
                settings.line(
                    "enable_dynamic_graph=true", "with exe_mode=ge_graph it is passed over: the graph is static"
                )
            if fused:
                settings.facts.in_models.append(("super kernels", "enable_superkernel=true", 0))
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
        if platform := _switch(settings, "platform_version"):
            settings.line(f"platform_version={platform}", "a family of products: say which one with target.soc")
        settings.model_keys(CANN_IN_MODELS)


def _switch(settings: Settings, name: str) -> Any:
    """Beside `exe_mode`, in its `custom_params`, or in the `model_config` of models that have `exe_mode` at the top."""
    return settings.take(
        *(f"{at}{name}" for at in ("", "custom_params.", "model_config.", "model_config.custom_params."))
    )


class OmniInfer(Dialect):
    """`graph_model_compile_config`."""

    name: ClassVar[str] = "omni-infer"
    files: ClassVar[str] = ""
    keys: ClassVar[tuple[str, ...]] = ("graph_model_compile_config",)
    priority: ClassVar[int] = 1

    def read(self, settings: Settings) -> None:
        settings.take(ASCEND)  # it is about Ascend by itself
        level, graphs = _of(settings, "level") or 0, _of(settings, "use_aclgraph") or False
        cached, gears = _of(settings, "use_ge_graph_cached") or False, _of(settings, "decode_gear_list")
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
            settings.facts.hcom.append((0, "patch_for_hcom (graph_model_compile_config.level)", ""))
            settings.line(
                "FROZEN_PARAMETER_DISABLED", "not constant: that environment variable turns frozen_parameter off"
            )
        if gears:
            settings.line(
                f"decode_gear_list={shown(gears)}", "one graph for each padded size: here the model's inputs say it"
            )
        for name in ("block_num_floating_range", "aclgraph_capture_sizes", "aclgraph_num_of_warmups", "backend"):
            if (value := _of(settings, name)) is not None:
                settings.line(f"{name}={shown(value)}", "no YAML is known for it")


def _of(settings: Settings, name: str) -> Any:
    return settings.take(f"graph_model_compile_config.{name}")
