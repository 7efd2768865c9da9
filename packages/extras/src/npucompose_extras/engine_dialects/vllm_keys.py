"""Keys of vLLM's compilation configuration, as vLLM 0.32 reads them (vllm/config/compilation.py and vllm.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

READ_AT = "vllm-project/vllm 0.32.0"
MODES = ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE")
"""By their numbers; `mode` was `level` up to 0.11."""
NONE, FULL, PIECEWISE, BOTH, DECODE = "NONE", "FULL", "PIECEWISE", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"
GRAPHS = (NONE, PIECEWISE, FULL, DECODE, BOTH)
OF_LEVEL: Mapping[int, tuple[int, str]] = {0: (0, NONE), 1: (3, PIECEWISE), 2: (3, BOTH), 3: (3, BOTH)}
"""{-O: (mode, cudagraph_mode)}."""
DEFAULT_LEVEL = 2
OF_VLLM = "vLLM decides it by itself"
OWN_PASS = "a pass of vLLM's own, over kernels that it brings; passes=replace fuses what a pattern of yours says"
WITHOUT_MEANING: Mapping[str, str] = {
    "custom_ops": "it chooses among vLLM's own operators; adapt=… chooses kernels here",
    "splitting_ops": "where pieces end is vLLM's business; extensions.vllm.graphs says whether there are pieces",
    "use_inductor_graph_partition": "where pieces end is vLLM's business; extensions.vllm.graphs says whether any do",
    "compile_ranges_endpoints": "here a graph is compiled for one size, or once for all of them (shapes)",
    "inductor_passes": "it names Python code; make it a pass (docs/adding_a_pass.md) and name it in passes",
    "cudagraph_num_of_warmups": "a recording is made by the call that it records, and needs none before it",
    "cudagraph_copy_inputs": "a recording finds its inputs where they lie",
    "cudagraph_specialize_lora": "with LoRA vLLM does not compile with a recipe",
    "max_cudagraph_capture_size": "vLLM makes a list of sizes up to it; extensions.vllm.sizes names each, and "
    "`npucompose sizes plan` finds them",
    "dynamic_shapes_config": "shapes says what becomes a symbol",
    "fast_moe_cold_start": "it is about vLLM's own mixture of experts",
    "ir_enable_torch_wrap": "it is about vLLM's own operators",
    "compile_mm_encoder": "the encoder is compiled by vLLM and not by a recipe",
    "cudagraph_mm_encoder": "the encoder is compiled by vLLM and not by a recipe",
    "encoder_cudagraph_token_budgets": "the encoder is compiled by vLLM and not by a recipe",
    "encoder_cudagraph_max_vision_items_per_batch": "the encoder is compiled by vLLM and not by a recipe",
    "encoder_cudagraph_max_frames_per_batch": "the encoder is compiled by vLLM and not by a recipe",
    "cudagraph_decoder_replay": "the decoder of a replay is vLLM's own",
    "decoder_replay_cudagraph_capture_sizes": "the decoder of a replay is vLLM's own",
    "decoder_replay_trim_threshold": "the decoder of a replay is vLLM's own",
    "cache_dir": "a place on one machine; vLLM's cache folder holds what is compiled",
    "compile_cache_save_format": "how vLLM's own cache is written",
    "debug_dump_path": "a place on one machine; logs.artifacts says what is printed here",
    "use_inductor": "of vLLM up to 0.11: backend says it since",
    "full_cuda_graph": "of vLLM up to 0.10: cudagraph_mode says it since",
    "use_cudagraph": "of vLLM up to 0.11: cudagraph_mode says it since",
}
"""Keys that say nothing about a recipe, and why; a longer path belongs to its first part."""
TAKEN = (
    "mode",
    "level",
    "backend",
    "cudagraph_mode",
    "cudagraph_capture_sizes",
    "compile_sizes",
    "inductor_compile_config",
    "pass_config",
)
KEYS = (*TAKEN, *WITHOUT_MEANING)


def json_arguments(**options: Mapping[str, Any]) -> tuple[str, ...]:
    """`json_arguments(additional_config={"a": 1})` is ("--additional-config", '{"a": 1}'); what is empty has none."""
    named = ((f"--{name.replace('_', '-')}", json.dumps(value)) for name, value in options.items() if value)
    return tuple(word for option in named for word in option)
