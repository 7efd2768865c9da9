"""Configurations that vllm-ascend's own documents and tests have, by its version, each beside what it means by hand.

What is meant was read in the code of that version, whose file stands in `vllm_ascend.yaml`; the settings are rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.recipe.production import FROZEN, TILING, Production

VIEW = "experimental_config.enable_view_optimize"
EAGERLY, IN_PLACE = "debug.run_eagerly", "debug.aclgraph.disable_reinplace_inplaceable_ops_pass"
STATIC = "experimental_config.aclgraph._aclnn_static_shape_kernel"
RANGE = f"{STATIC}_sym_value_range"
WHOLE_MODEL = {FROZEN: True, TILING: True, VIEW: True}
COMPILED = {"shapes.dynamic": True, "target.patch_for_hcom": True}
CAPTURED = "reduce-overhead"
TORCHAIR, ASKED = "torchair_graph_config", "ascend_compilation_config"
SCHEDULER = "ascend_scheduler_config"
FULL = {"cudagraph_mode": "FULL_DECODE_ONLY"}


def case(name: str, version: str, file: str, settings: Mapping[str, Any], **meant: Any) -> Production:
    meant = {"tree": {"shapes.dynamic": True}, **meant}
    text, like = json.dumps(settings), f"vllm-ascend v{version}, {file}"
    return Production(name=f"{name}, {version}", like=like, text=text, suffix=".json", version=version, **meant)


def serve(name: str, version: str, file: str, options: str, **meant: Any) -> Production:
    meant = {"tree": {"shapes.dynamic": True}, **meant}
    like = f"vllm-ascend v{version}, {file}"
    text = f"export HCCL_BUFFSIZE=1024\nvllm serve org/model \\\n  --max-model-len 8192 \\\n  {options} &\n"
    return Production(name=f"{name}, {version}", like=like, text=text, suffix=".sh", version=version, **meant)


def additional(compilation: Mapping[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    return {"additional_config": config, **({"compilation_config": compilation} if compilation else {})}


VLLM_ASCEND: tuple[Production, ...] = (
    case(
        "graph mode of an engine of the first generation", "0.8.5rc1", "tests/singlecard/spec_decode/e2e",
        additional(enable_graph_mode=True, use_cached_npu_graph=True),
        hand={FROZEN: True, TILING: True}, tree={**COMPILED, "compile.cache": True},
    ),
    case(
        "the scheduler off and TorchAir on", "0.9.1", "docs/source/tutorials/large_scale_ep.md:265",
        additional(ascend_scheduler_config={"enabled": False}, torchair_graph_config={
            "enabled": True, "enable_multistream_mla": True, "enable_multistream_moe": True, "graph_batch_sizes": [28],
            "enable_super_kernel": True, "use_cached_graph": True}, enable_weight_nz_layout=True),
        hand=WHOLE_MODEL, tree={**COMPILED, "compile.cache": True},
        printed=(f"{SCHEDULER}.enabled=false", "enable_super_kernel=true", "passes=super_kernel", "[28]"),
    ),
    case(
        "the scheduler and TorchAir off", "0.9.1", "docs/source/tutorials/large_scale_ep.md:197",
        additional(ascend_scheduler_config={"enabled": False}, torchair_graph_config={"enabled": False},
                   enable_weight_nz_layout=True, enable_prefill_optimizations=True),
        mode=CAPTURED, printed=(f"{TORCHAIR}.enabled=false: TorchAir compiles nothing", "cuts the model at attention"),
    ),
    case(
        "the scheduler on and TorchAir off", "0.9.1", "examples/run_dp_server.sh:33",
        additional(ascend_scheduler_config={"enabled": True}, torchair_graph_config={
            "enabled": False, "enable_multistream_moe": False, "use_cached_graph": False}),
        mode=CAPTURED, printed=(f"{TORCHAIR}.enabled=false", f"{SCHEDULER}.enabled=true"),
    ),
    serve(
        "a command line in one line", "0.9.1", "docs/source/tutorials/multi_node.md:138",
        "--additional-config "
        """'{"ascend_scheduler_config":{"enabled":true},"torchair_graph_config":{"enabled":true}}'""",
        hand=WHOLE_MODEL, tree=COMPILED, printed=("max_model_len=8192", "VLLM_TEST_DYNAMO_FULLGRAPH_CAPTURE"),
    ),
    case(
        "a size that is misspelt", "0.9.1", "examples/external_online_dp/run_dp_template.sh:51",
        additional(torchair_graph_config={"enabled": True, "enable_kv_nz": False, "graph_batch_size": [28]}),
        hand=WHOLE_MODEL, tree=COMPILED, printed=("graph_batch_size=[28]", "enable_kv_nz=false"),
    ),
    case(
        "a view that stays, and a key of a later version", "0.9.1", "tests/singlecard/test_ascend_config.py:55",
        additional(torchair_graph_config={
            "enabled": True, "enable_view_optimize": False, "enable_frozen_parameter": False}),
        hand={**WHOLE_MODEL, VIEW: False}, tree=COMPILED,
        printed=(f"{TORCHAIR}.enable_frozen_parameter=false: vllm-ascend 0.9.1 has no such key; 0.11.0rc0 to",),
    ),
    case(
        "TorchAir that captures", "0.10.2rc1", "docs/source/user_guide/release_notes.md:86",
        additional(torchair_graph_config={"enabled": True, "mode": "reduce-overhead"}),
        mode=CAPTURED, hand={"mode": "reduce-overhead", **WHOLE_MODEL}, tree={"shapes.dynamic": True, "strict": "off"},
        printed=(f"patch_for_hcom ({TORCHAIR}.enabled=true): it has no effect in mode=reduce-overhead",),
    ),
    case(
        "sizes", "0.11.0", "docs/source/tutorials/multi-node_dsv3.2.md:225",
        additional(ascend_scheduler_config={"enabled": True}, torchair_graph_config={
            "enabled": True, "graph_batch_sizes": [16]}),
        hand=WHOLE_MODEL, tree=COMPILED, printed=("graph_batch_sizes=[16]", "sparse attention"),
    ),
    case(
        "the example of the document", "0.11.0", "docs/source/user_guide/configuration/additional_config.md:88",
        additional(torchair_graph_config={
            "enabled": True, "use_cached_graph": True, "graph_batch_sizes": [1, 2, 4, 8],
            "graph_batch_sizes_init": False, "enable_kv_nz": False}, weight_prefetch_config={"enabled": True}),
        hand=WHOLE_MODEL, tree={**COMPILED, "compile.cache": True},
        printed=("weight_prefetch_config.enabled=true", "enable_kv_nz=false"),
    ),
    case(
        "parameters that are not frozen", "0.11.0", "vllm_ascend/ascend_config.py:154",
        additional(torchair_graph_config={"enabled": True, "enable_frozen_parameter": False, "mode": "max-autotune"}),
        hand={TILING: True, VIEW: True}, tree=COMPILED,
    ),
    case(
        "npugraph_ex of its first version", "0.13.0", "tests/ut/test_ascend_config.py:83",
        additional(FULL, enable_npugraph_ex=True, refresh=True),
        mode=CAPTURED, hand={EAGERLY: True, STATIC: True}, printed=("refresh=true", "debug.run_eagerly=true: the FX"),
    ),
    case(
        "npugraph_ex without a mode of graphs", "0.13.0", "docs/source/user_guide/configuration/additional_config.md",
        additional(enable_npugraph_ex=True),
        mode=CAPTURED, hand={EAGERLY: True, STATIC: True}, printed=("without one vLLM takes FULL_AND_PIECEWISE",),
    ),
    case(
        "xlite for decoding", "0.13.0", "tests/e2e/singlecard/test_xlite.py:80",
        additional(xlite_graph_config={"enabled": True}),
        mode=CAPTURED, printed=("xlite, a runtime of openEuler, runs decoding there",),
    ),
    case(
        "a key of the next generation", "0.13.0", "docs/source/user_guide/feature_guide/graph_mode.md",
        additional(FULL, ascend_compilation_config={"enable_npugraph_ex": True}),
        mode=CAPTURED, printed=(f"{ASKED}.enable_npugraph_ex=true: vllm-ascend 0.13.0 has no such key; 0.16.0rc1 to",),
    ),
    case(
        "npugraph_ex_config", "0.15.0rc1", "tests/e2e/singlecard/test_aclgraph_accuracy.py:174",
        additional({**FULL, "cudagraph_capture_sizes": [4, 8, 32, 64]}, npugraph_ex_config={"enable": True}),
        mode=CAPTURED, hand={EAGERLY: True},
    ),
    case(
        "npugraph_ex_config off", "0.15.0rc1", "tests/e2e/singlecard/test_aclgraph_accuracy.py:156",
        additional({**FULL, "cudagraph_capture_sizes": [4, 8, 32, 64]}, npugraph_ex_config={"enable": False}),
        mode=CAPTURED, printed=("prompts run eagerly there",),
    ),
    case(
        "static kernels", "0.15.0rc1", "tests/e2e/singlecard/test_aclgraph_accuracy.py:196",
        additional({**FULL, "cudagraph_capture_sizes": [4, 8]},
                   npugraph_ex_config={"enable": True, "enable_static_kernel": True}),
        mode=CAPTURED, hand={EAGERLY: True, STATIC: True, RANGE: [4, 8]},
    ),
    case(
        "npugraph_ex on", "0.18.0", "tests/e2e/singlecard/test_aclgraph_accuracy.py:126",
        additional({**FULL, "cudagraph_capture_sizes": [4, 8, 32, 64]},
                   ascend_compilation_config={"enable_npugraph_ex": True}),
        mode=CAPTURED, hand={EAGERLY: True, IN_PLACE: True},
    ),
    case(
        "static kernels", "0.18.0", "tests/e2e/singlecard/test_aclgraph_accuracy.py:144",
        additional({**FULL, "cudagraph_capture_sizes": [4, 8]},
                   ascend_compilation_config={"enable_npugraph_ex": True, "enable_static_kernel": True}),
        mode=CAPTURED, hand={EAGERLY: True, IN_PLACE: True, STATIC: True, RANGE: [4, 8]},
    ),
    serve(
        "a command line with a fusion", "0.18.0", "docs/source/tutorials/models/GLM5.md:170",
        "--compilation-config '{\"cudagraph_mode\": \"FULL_DECODE_ONLY\"}' "
        "--additional-config '{\"fuse_muls_add\": true, \"multistream_overlap_shared_expert\": true, "
        "\"ascend_compilation_config\": {\"enable_npugraph_ex\": true}}'",
        mode=CAPTURED, hand={EAGERLY: True, IN_PLACE: True},
        printed=("fuse_muls_add=true: a fusion pass", "multistream_overlap_shared_expert=true"),
    ),
    case(
        "npugraph_ex off", "0.18.0", "tests/e2e/singlecard/test_aclgraph_accuracy.py:112",
        additional({**FULL, "cudagraph_capture_sizes": [4, 8, 32, 64]},
                   ascend_compilation_config={"enable_npugraph_ex": False}),
        mode=CAPTURED,
    ),
    case(
        "xlite for all", "0.18.0", "docs/source/user_guide/feature_guide/graph_mode.md",
        additional(xlite_graph_config={"enabled": True, "full_mode": False}),
        mode=CAPTURED, hand={EAGERLY: True, IN_PLACE: True}, printed=("xlite, a runtime of openEuler, runs decoding",),
    ),
    case(
        "the package npugraph_ex", "0.21.0rc1", "vllm_ascend/compilation/compiler_interface.py:95",
        additional(FULL, ascend_compilation_config={"enable_npugraph_ex": True}),
        mode="npugraph_ex", hand={"force_eager": True, "inplace_pass": False},
    ),
    case(
        "static kernels for speculation", "0.23.0", "tests/e2e/nightly/single_node/models/configs",
        {**additional({**FULL, "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 400]}, ascend_compilation_config={
            "enable_static_kernel": True, "fuse_norm_quant": False}, enable_cpu_binding=True),
         "max_num_seqs": 64, "speculative_config": {"method": "mtp", "num_speculative_tokens": 3}},
        mode="npugraph_ex", printed=("fuse_norm_quant=false", "enable_cpu_binding=true"),
        hand={"force_eager": True, "inplace_pass": False, "clone_input": False, "static_kernel_compile": True,
              "_vllm_aclnn_static_kernel_sym_range": [4, 8, 16]},
    ),
    case(
        "a switch that is misspelt", "0.23.0", "docs/source/tutorials/models/Qwen3-30B-A3B.md:281",
        additional(FULL, ascend_compilation_config={"fuse_norm_quant": False, "enable_npu_graph_ex": False}),
        mode="npugraph_ex", hand={"force_eager": True, "inplace_pass": False, "clone_input": False},
        printed=("vllm-ascend 0.23.0 has no such key. Did you mean 'enable_npugraph_ex'",),
    ),
)  # fmt: skip
"""26 of nine versions."""
