"""sglang's server arguments on an NPU, written from a recipe.

Read for sgl-project/sglang 041ddabdee31 (2026): docs/platforms/ascend/ascend_npu_support_features.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from npucompose.recipe.dialects import Exported, ExportingDialect, Settings
from npucompose.schema.experiment import Experiment
from npucompose.serving.vllm.options import VllmOptions
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose_extensions.engine_dialects.missing import without_option

READ_AT = "sgl-project/sglang 041ddabdee31"
SOURCE = "docs/platforms/ascend/ascend_npu_support_features.md"
ON_AN_NPU = ("--device", "npu", "--attention-backend", "ascend")
WHY_NOT: Mapping[str, str] = {
    "passes": "its pass manager on an NPU has passes of its own and takes no other by an argument",
    "compiler": "no argument sets an option of its compiler",
    "fullgraph": "it compiles a model's forward as one graph by itself",
    "logs": "logs are set by environment variables there",
}


class Sglang(ExportingDialect):
    """Written, not read: its arguments are found in no file."""

    name: ClassVar[str] = "sglang"
    files: ClassVar[str] = ""
    keys: ClassVar[tuple[str, ...]] = ()
    priority: ClassVar[int] = -2

    def read(self, settings: Settings) -> None:
        """No key is its own, so that no file is asked of it."""

    def export(self, experiment: Experiment) -> Exported:
        mode, named = experiment.mode.name, "vllm" in experiment.extensions.named
        options = experiment.extensions.section(VllmOptions)
        sizes = tuple(map(str, sorted(set(options.sizes)))) if named else ()
        missing = [*without_option(experiment, WHY_NOT)]
        said: list[tuple[str, ...]] = []
        if mode == "eager":
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
