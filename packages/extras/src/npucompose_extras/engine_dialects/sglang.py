"""sglang's server arguments on an NPU, written from a recipe and read into one.

Read for sgl-project/sglang 041ddabdee31 (2026): docs/platforms/ascend/ascend_npu_support_features.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from npucompose.recipe.dialects import Exported, ExportingDialect, Settings
from npucompose.schema.experiment import Experiment
from npucompose.table.modes import ACLGRAPH, EAGER, GE, NPUGRAPH_EX
from npucompose.vendor.option_specs import shown
from npucompose_extras.engine_dialects import whole_sizes, without_option
from npucompose_extras.engine_dialects.command_line import ASCEND

READ_AT = "sgl-project/sglang 041ddabdee31"
SOURCE = "docs/platforms/ascend/ascend_npu_support_features.md"
ON_AN_NPU = ("--device", "npu", "--attention-backend", "ascend")
WHY_NOT: Mapping[str, str] = {
    "passes": "its pass manager on an NPU has passes of its own and takes no other by an argument",
    "compiler": "no argument sets an option of its compiler",
    "fullgraph": "it compiles a model's forward as one graph by itself",
    "logs": "logs are set by environment variables there",
}
SIZES, OFF, COMPILED = "cuda_graph_bs", "disable_cuda_graph", "enable_torch_compile"
WITHOUT_MEANING: Mapping[str, str] = {
    "cuda_graph_max_bs": "sglang makes a list of sizes up to it; extensions.vllm.sizes names each",
    "torch_compile_max_bs": "here every size of extensions.vllm.sizes is compiled, or none is",
    "disable_cuda_graph_padding": "a number of tokens that is none of the sizes runs as extensions.vllm.general says",
    "enable_profile_cuda_graph": "logs and profiles are no part of a recipe",
    "enable_cudagraph_gc": "how sglang records, of which a recipe says nothing",
    "enable_torch_compile_debug_mode": "logs.artifacts says what is printed here",
    "enable_piecewise_cuda_graph": "it is about prompts; here a step is one graph",
    "piecewise_cuda_graph_tokens": "it is about prompts; here a step is one graph",
    "piecewise_cuda_graph_max_tokens": "it is about prompts; here a step is one graph",
    "piecewise_cuda_graph_compiler": "it is about prompts; here a step is one graph",
}
"""Options about graphs that say nothing about a recipe, and why."""


class Sglang(ExportingDialect):
    """The arguments of its server, and what it records and compiles without any."""

    name: ClassVar[str] = "sglang"
    files: ClassVar[str] = "sglang (the command line of its server)"
    keys: ClassVar[tuple[str, ...]] = (OFF, SIZES, COMPILED, *WITHOUT_MEANING)
    priority: ClassVar[int] = 2

    def read(self, settings: Settings) -> None:
        eager, sizes = settings.take(OFF, default=False), settings.take(SIZES)
        compiled, device = settings.take(COMPILED, default=False), settings.flat.get("device", "npu")
        settings.take(ASCEND)
        mode = EAGER if eager else NPUGRAPH_EX if compiled else ACLGRAPH
        if compiled and device != "npu":
            settings.line(f"{COMPILED}=true", f"what it compiles on {device} was not read: {READ_AT} for an NPU was")
            mode = ACLGRAPH if not eager else EAGER
        settings.tree = {"mode": {"name": mode}, "shapes": {"name": "auto", "dynamic": None}}
        for option, value in {COMPILED: compiled, SIZES: sizes}.items():
            if eager and value:
                settings.line(f"{option}={shown(value)}", f"{OFF} leaves nothing that it could be about")
        if not eager and sizes:
            section: dict[str, Any] = {"graphs": "full", "sizes": whole_sizes(SIZES, sizes)}
            settings.tree["extensions"] = {"vllm": section}
        elif not eager:
            settings.notes.append("sglang makes a list of sizes by itself; here extensions.vllm.sizes has its default")
        for option, why in WITHOUT_MEANING.items():
            if (value := settings.take(option)) is not None:
                settings.line(f"{option}={shown(value)}", why)

    def export(self, experiment: Experiment) -> Exported:
        mode, named = experiment.mode.name, "vllm" in experiment.extensions.named
        options: Any = experiment.extensions.named.get("vllm")
        sizes = tuple(map(str, sorted(set(options.sizes)))) if named else ()
        missing = [*without_option(experiment, WHY_NOT)]
        said: list[tuple[str, ...]] = []
        if mode == EAGER:
            said = [("--disable-cuda-graph",)]
        elif mode in (ACLGRAPH, NPUGRAPH_EX):
            said += [("--cuda-graph-bs", *sizes)] if sizes else []
            if mode == NPUGRAPH_EX:
                said += [("--enable-torch-compile",)]
                said += [("--torch-compile-max-bs", sizes[-1])] if sizes else []
        else:
            assert mode == GE
            missing.insert(0, {"option": f"mode={mode}", "why": f"it has no GE graphs: {NPUGRAPH_EX} or {ACLGRAPH}"})
        if named and sizes and options.graphs == "piecewise":
            why = "a step of decoding is one graph there; --enable-piecewise-cuda-graph is about prompts"
            missing.append({"option": "extensions.vllm.graphs=piecewise", "why": why})
        if experiment.shapes.dynamic is True or experiment.shapes.mark_dynamic or experiment.shapes.mark_static:
            missing.append(
                {"option": f"shapes={experiment.shapes.name}", "why": "each size of --cuda-graph-bs is one graph"}
            )
        return Exported(
            arguments=(*ON_AN_NPU, *(word for option in said for word in option)),
            without_equivalent=missing,
            sources={option[0]: SOURCE for option in said},
            read_at=READ_AT,
        )
