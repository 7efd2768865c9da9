"""Configurations as public Ascend repositories write them, rewritten from facts, each beside what it means by hand.

`hand` is the same configuration as assignments to a fresh CompilerConfig (npugraph_ex: as its flat options); `printed`
are words of the lines that tell what has no place in YAML. Who writes so is said in `like`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

POOL = (0, 1)
"""What torch.npu.graph_pool_handle gives in tests/recipe/genuine_configs.py."""
TORCHAIR = """
import os
import torch, torch_npu
import torchair as tng
from torchair.configs.compiler_config import CompilerConfig
"""
FROZEN = "experimental_config.frozen_parameter"
TILING = "experimental_config.tiling_schedule_optimize"
SORTING = "experimental_config.topology_sorting_strategy"
KERNEL = {"dcci_disable_on_kernel": [".*"]}


@frozen(kw_only=True, eq=False)
class Production:
    name: str
    like: str
    text: str
    mode: str = "max-autotune"
    hand: Mapping[str, Any] = field(factory=dict[str, Any])
    tree: Mapping[str, Any] = field(factory=dict[str, Any])
    """What else the YAML says: {section.key: value}."""
    printed: tuple[str, ...] = ()
    suffix: str = ".py"
    assume: tuple[str, ...] = ()
    """What its conditions are taken for; without it the mode is not certain."""
    version: str | None = None
    """Of vllm-ascend, where the file has its keys."""


GE_COMMON = {FROZEN: True, TILING: True, SORTING: "StableRDFS"}
PRODUCTION: tuple[Production, ...] = (
    Production(
        name="a helper, GE, cached",
        like="cann-recipes-infer, executor/utils/graph_utils.py",
        text=TORCHAIR
        + """
def compile_forward(forward, cache_dir, frozen=True, sorting="StableRDFS"):
    import torchair.ge_concrete_graph.ge_converter.experimental.patch_for_hcom_allreduce
    tng.patch_for_hcom()
    torch._dynamo.config.inline_inbuilt_nn_modules = False
    config = CompilerConfig()
    config.experimental_config.frozen_parameter = frozen
    config.experimental_config.tiling_schedule_optimize = True
    config.experimental_config.topology_sorting_strategy = sorting
    return tng.inference.cache_compile(
        forward, cache_dir=cache_dir, config=config, dynamic=False, fullgraph=True, ge_cache=True
    )

decode = compile_forward(model.decode, os.path.join(root, "compile_cache"))
""",
        hand=GE_COMMON,
        tree={"shapes.dynamic": False, "compile.cache": True, "target.patch_for_hcom": True},
        printed=("inline_inbuilt_nn_modules = False: no YAML", "its own store", "no YAML is known for ge_cache"),
    ),
    Production(
        name="a helper, npugraph_ex",
        like="cann-recipes-infer, executor/utils/graph_utils.py",
        text=TORCHAIR
        + """
def options_of(static, superkernel=False):
    return {
        "frozen_parameter": True,
        "static_kernel_compile": static,
        "super_kernel_optimize": superkernel,
        "super_kernel_optimize_options": {"dcci_disable_on_kernel": [".*"]},
    }

torch.npu.set_compile_mode(jit_compile=False)
decode = torch.compile(model.forward, dynamic=True, fullgraph=True, backend="npugraph_ex", options=options_of(True))
""",
        mode="npugraph_ex",
        hand={"frozen_parameter": True, "static_kernel_compile": True, "super_kernel_optimize_options": KERNEL},
        tree={"shapes.dynamic": True, "compile.fullgraph": True},
        printed=("operators outside of a graph", "super_kernel_optimize, which is off"),
    ),
    Production(
        name="a runner that asks its settings",
        like="cann-recipes-infer, models/kimi_k3/runner_kimi_k3.py",
        text=TORCHAIR
        + """
class Runner:
    def __init__(self, settings):
        self.execute_mode = settings.get("exe_mode", "eager")
        self.static = settings.get("model_config").get("enable_static_kernel", False)

    def graph_compile(self):
        if self.execute_mode == "npugraph_ex":
            options = {"frozen_parameter": True, "static_kernel_compile": self.static}
            self.model.decode = torch.compile(
                self.model.decode, dynamic=True, fullgraph=True, backend="npugraph_ex", options=options
            )
            return
        config = CompilerConfig()
        config.experimental_config.frozen_parameter = True
        config.experimental_config.topology_sorting_strategy = "StableRDFS"
        backend = tng.get_npu_backend(compiler_config=config)
        self.model.decode = torch.compile(self.model.decode, dynamic=False, fullgraph=True, backend=backend)
""",
        mode="npugraph_ex",
        hand={"frozen_parameter": True},
        tree={"shapes.dynamic": True},
        printed=(
            "read as if it were run",
            "static_kernel_compile",
            "only one of several compilations",
            "another configuration",
        ),
    ),
    Production(
        name="one configuration for two modes",
        like="cann-recipes-infer, models/pangu_7b/runner_openpangu_dense.py",
        text=TORCHAIR
        + """
class Runner:
    def graph_compile(self):
        config = CompilerConfig()
        config.experimental_config.frozen_parameter = True
        config.experimental_config.tiling_schedule_optimize = True
        config.experimental_config.remove_noop_ops = False
        use_aclgraph = self.execute_mode == "acl_graph"
        if use_aclgraph:
            config.mode = "reduce-overhead"
            if torch.__version__ < "2.5.0":
                config.debug.aclgraph.disable_reinplace_inplaceable_ops_pass = True
        case = "compile_cache/" + os.getenv("CASE_NAME")
        self.model.decode = tng.inference.cache_compile(
            self.model.decode, cache_dir=os.path.join(here, case), config=config, dynamic=True, fullgraph=True,
            ge_cache=not use_aclgraph,
        )
""",
        hand={FROZEN: True, TILING: True, "experimental_config.remove_noop_ops": False},
        tree={"shapes.dynamic": True, "compile.cache": True},
        assume=("use_aclgraph=False",),
        printed=(
            "config.mode = 'reduce-overhead': it depends on a condition",
            "disable_reinplace_inplaceable_ops_pass = True: it depends on a condition",
            "ge_cache",
        ),
    ),
    Production(
        name="options that a condition adds to, cached",
        like="cann-recipes-infer, models/glm_5_2/models/modeling_glm.py",
        text="""
import torch, torch_npu

class Model(torch.nn.Module):
    def cached(self, forward, cache_dir):
        options = {"frozen_parameter": True, "static_kernel_compile": True}
        if self.offload and not self.is_mtp:
            options["clone_input"] = False
        return torch.npu.npugraph_ex.inference.cache_compile(
            forward, cache_dir=cache_dir, dynamic=False, options=options
        )
""",
        mode="npugraph_ex",
        hand={"frozen_parameter": True, "static_kernel_compile": True},
        tree={"shapes.dynamic": False, "compile.cache": True},
        printed=("options['clone_input']: it depends on a condition", "cache_dir"),
    ),
    Production(
        name="a model runner of an engine",
        like="vllm-ascend v0.11, vllm_ascend/torchair/torchair_model_runner.py",
        text="""
import torch, types
def lazy(self):
    import torchair
    from torchair import patch_for_hcom
    patch_for_hcom()
    config = torchair.CompilerConfig()
    if self.ascend_config.graph.mode:
        config.mode = self.ascend_config.graph.mode
    config.experimental_config.frozen_parameter = self.ascend_config.graph.enable_frozen_parameter
    config.experimental_config.tiling_schedule_optimize = get_device_type() != DeviceType._310P
    config.experimental_config.enable_view_optimize = True
    torch.npu.set_compile_mode(jit_compile=False)
    self.compiled[8] = torchair.inference.cache_compile(
        self.model.__dict__[name], dynamic=True, fullgraph=True, cache_dir=CACHE, config=config, ge_cache=False)
""",
        tree={"shapes.dynamic": True, "compile.cache": True, "target.patch_for_hcom": True},
        assume=("self.ascend_config.graph.mode=None",),
        printed=("config.mode = ", "frozen_parameter", "tiling_schedule_optimize", "jit_compile=False", "ge_cache"),
    ),
    Production(
        name="a helper that asks the environment",
        like="omni-infer, adaptors/vllm/compilation/compile_config.py",
        text="""
import os, torch, torch_npu, torchair
from torchair import patch_for_hcom

def get_torchair_config(extra):
    patch_for_hcom()
    config = torchair.CompilerConfig()
    if os.environ.get("FROZEN_PARAMETER_DISABLED", "0") == "0":
        config.experimental_config.frozen_parameter = True
    config.experimental_config.tiling_schedule_optimize = True
    config.ge_config.optimization_switch = extra.fusion_pass_set
    config.ge_config.oo_level = os.getenv("GE_LEVEL", "O1")
    torch.npu.set_compile_mode(jit_compile=False)
    return config

def init_backend(extra):
    return torchair.get_npu_backend(compiler_config=get_torchair_config(extra))

compiled = torch.compile(model.forward, dynamic=False, fullgraph=envs.FULLGRAPH, backend=init_backend(extra))
""",
        hand={TILING: True},
        tree={"shapes.dynamic": False, "target.patch_for_hcom": True},
        printed=(
            "frozen_parameter = True: it depends on a condition",
            "comes from the environment variable GE_LEVEL (where it is unset: 'O1')",
            "optimization_switch",
            "fullgraph is not a constant",
        ),
    ),
    Production(
        name="two methods of a model, each cached",
        like="TorchAir's own document and tests of cache_compile",
        text="""
import torch, torchair
from torchair import CompilerConfig

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = CompilerConfig()
        config.experimental_config.frozen_parameter = True
        self.cached_prompt = torchair.inference.cache_compile(self.prompt, config=config)
        self.cached_decode = torchair.inference.cache_compile(self.decode, config=config)
""",
        hand={FROZEN: True},
        tree={"shapes.dynamic": True, "compile.cache": True, "compile.fullgraph": True},
    ),
    Production(
        name="npugraph_ex's own cache without options",
        like="torch_npu's tests of npugraph_ex",
        text="""
import torch
from torch_npu.npu.npugraph_ex.inference import cache_compile, readable_cache

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cached_prompt = cache_compile(self.prompt, global_rank=0, tp_rank=0, pp_rank=0)
readable_cache("compiled_module", file="shown.py")
""",
        mode="npugraph_ex",
        tree={"shapes.dynamic": True, "compile.cache": True},
        printed=("global_rank of cache_compile", "tp_rank", "pp_rank", "npugraph_ex.inference.readable_cache"),
    ),
    Production(
        name="patterns of one's own",
        like="torch_npu's tests of npugraph_ex, sglang's pass manager",
        text="""
import functools, torch, torch_npu

def search_fn(x1, x2, gamma):
    y, _, x = torch.ops.npu.npu_add_rms_norm.default(x1, x2, gamma)
    return y, x

def replace_fn(x1, x2, gamma):
    return torch.ops.npu.npu_add_rms_norm_cast.default(x1, x2, gamma)

torch.npu.npugraph_ex.register_replacement(
    search_fn=search_fn, replace_fn=replace_fn, example_inputs=inputs(), extra_check=check, skip_duplicates=True
)
compiled = torch.compile(model, backend="npugraph_ex", options={"pattern_fusion_pass": False}, dynamic=True)
""",
        mode="npugraph_ex",
        hand={"pattern_fusion_pass": False},
        tree={"shapes.dynamic": True},
        printed=("a replacement is Python", "search_fn, replace_fn, example_inputs", "extra_check", "skip_dup"),
    ),
    Production(
        name="settings in a dataclass",
        like="dlinfer, MindIE-SD and xllm style of settings",
        text="""
from dataclasses import dataclass, field
import torch, torch_npu, torchair

@dataclass
class GraphSettings:
    mode: str = "max-autotune"
    frozen: bool = False
    tiling: bool = True
    dynamic: bool = True
    options: dict = field(default_factory=dict)

def build(settings):
    config = torchair.CompilerConfig()
    config.mode = settings.mode
    config.experimental_config.frozen_parameter = settings.frozen
    config.experimental_config.tiling_schedule_optimize = settings.tiling
    config.experimental_config.jit_compile = settings.options
    return config

settings = GraphSettings(frozen=True)
model = torch.compile(
    model, backend=torchair.get_npu_backend(compiler_config=build(settings)), dynamic=settings.dynamic
)
""",
        hand={FROZEN: True, TILING: True},
        tree={"shapes.dynamic": True, "compile.fullgraph": False},
        printed=("jit_compile",),
    ),
    Production(
        name="options in a dict, set in a loop",
        like="benchmark drivers of ModelZoo",
        text="""
import torch, torch_npu, torchair
OPTIONS = {
    "experimental_config": {"frozen_parameter": True, "topology_sorting_strategy": "RDFS"},
    "ge_config": {"oo_level": "O1", "aicore_num": "20|40"},
    "debug": {"run_eagerly": True},
}
config = torchair.CompilerConfig()
for group, options in OPTIONS.items():
    for name, value in options.items():
        setattr(getattr(config, group), name, value)
for name in ("remove_noop_ops", "pattern_fusion_pass"):
    setattr(config.experimental_config, name, False)
backend = torchair.get_npu_backend(compiler_config=config)
model = torch.compile(model, backend=backend, dynamic=True, fullgraph=True, disable=False)
""",
        hand={
            FROZEN: True,
            "debug.run_eagerly": True,
            SORTING: "RDFS",
            "ge_config.oo_level": "O1",
            "ge_config.aicore_num": "20|40",
            "experimental_config.remove_noop_ops": False,
            "experimental_config.pattern_fusion_pass": False,
        },
        tree={"shapes.dynamic": True},
        printed=("no YAML is known for disable",),
    ),
    Production(
        name="captured graphs that share a pool",
        like="sglang and ModelZoo scripts for aclgraph",
        text="""
import os, torch, torch_npu, torchair
os.environ["TASK_QUEUE_ENABLE"] = "1"
torch.npu.config.allow_internal_format = False
LIMIT = int("64") // 2
config = torchair.CompilerConfig()
config.mode = "reduce-overhead"
config.debug.aclgraph.clone_input = not True
config.debug.aclgraph.enable_output_clone = True
config.debug.aclgraph.static_capture_size_limit = 4 * 8
config.aclgraph_config.use_custom_pool = torch.npu.graph_pool_handle()
compiled = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
""",
        mode="reduce-overhead",
        hand={
            "debug.aclgraph.clone_input": False,
            "debug.aclgraph.enable_output_clone": True,
            "debug.aclgraph.static_capture_size_limit": 32,
            "aclgraph_config.use_custom_pool": POOL,
        },
        tree={"shapes.dynamic": False},
        printed=("os.environ['TASK_QUEUE_ENABLE'] = '1'", "allow_internal_format = False: no YAML is known"),
    ),
    Production(
        name="a class with properties",
        like="LMDeploy's graph runner",
        text="""
import torch, torch_npu, torchair

class GraphRunner:
    backend_mode = "reduce-overhead"

    @staticmethod
    def common(config):
        config.experimental_config.frozen_parameter = True
        return config

    @property
    def config(self):
        config = torchair.CompilerConfig()
        config.mode = self.backend_mode
        return self.common(config)

    def start(self, model, x):
        torch._dynamo.mark_static(x)
        return torch.compile(model, fullgraph=True, dynamic=True, backend=torchair.get_npu_backend(
            compiler_config=self.config))
""",
        mode="reduce-overhead",
        hand={FROZEN: True},
        tree={"shapes.dynamic": True, "shapes.mark_static": ["x"]},
    ),
    Production(
        name="a partial and a decorator",
        like="examples in Ascend/pytorch",
        text="""
import functools
import torch, torch_npu
from torch_npu.dynamo import torchair
config = torchair.CompilerConfig()
config.ge_config.enable_single_stream = True
backend = torchair.get_npu_backend(compiler_config=config, custom_decompositions={})
graph = functools.partial(torch.compile, backend=backend, dynamic=False, fullgraph=True)

@torch.compile(backend=backend, dynamic=False, fullgraph=True)
def block(x):
    with torchair.scope.npu_stream_switch("1"):
        y = torch.relu(x)
    with torchair.scope.limit_core_num(8, 16):
        return y + x
""",
        hand={"ge_config.enable_single_stream": True},
        tree={"shapes.dynamic": False},
        printed=(
            "custom_decompositions of get_npu_backend",
            "npu_stream_switch (line 12)",
            "passes=stream_plan",
            "limit_core_num (line 14)",
            "passes=core_limit",
        ),
    ),
    Production(
        name="a compiler interface of an engine",
        like="vllm-ascend, vllm_ascend/compilation/compiler_interface.py",
        text="""
import torch, torch_npu
def npugraph_ex_compile(graph, example_inputs, config):
    options = dict(force_eager=True, inplace_pass=False, clone_input=False, clone_output=False)
    options.update(static_kernel_compile=True)
    options["_vllm_aclnn_static_kernel_sym_range"] = [1, 8, 16]
    return torch.npu.npugraph_ex.compile_fx(graph, example_inputs, options)
""",
        mode="npugraph_ex",
        hand={
            "force_eager": True,
            "inplace_pass": False,
            "clone_input": False,
            "static_kernel_compile": True,
            "_vllm_aclnn_static_kernel_sym_range": [1, 8, 16],
        },
        printed=("the graph is traced elsewhere",),
    ),
    Production(
        name="options that have no effect, and one that is none",
        like="threads of users that ask why nothing changed",
        text="""
import torch, torch_npu, torchair
config = torchair.CompilerConfig()
config.mode = "reduce-overhead"
config.ge_config.oo_level = "O1"
config.experimental_config.tiling_schedule_optimize = True
config.experimental_config.no_such = True
config.experimental_config.topology_sorting_strategy = "Fastest"
config.debug.aclgraph.disable_mempool_reuse_in_same_fx = True
model = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=True)
""",
        mode="reduce-overhead",
        hand={
            "ge_config.oo_level": "O1",
            TILING: True,
            "debug.aclgraph.disable_mempool_reuse_in_same_fx": True,
        },
        tree={"strict": "off"},
        printed=(
            "ge_config.oo_level=O1 has no effect in mode=reduce-overhead",
            "tiling_schedule_optimize=true has no effect",
            "no such option",
            "topology_sorting_strategy = 'Fastest': takes",
        ),
    ),
    Production(
        name="a module that compiles itself, with gears",
        like="ModelZoo's LLM inference scripts",
        text="""
import torch, torch_npu, torchair

def prepare(model, ids, cache):
    torchair.inference.set_dim_gears(ids, {0: [1, 8, 16]})
    torch._dynamo.mark_static(cache)
    config = torchair.CompilerConfig()
    config.inference_config.dynamic_gears_merge_policy = "product"
    model.compile(backend=torchair.get_npu_backend(compiler_config=config), dynamic=True, fullgraph=True)
    return model
""",
        hand={"inference_config.dynamic_gears_merge_policy": "product"},
        tree={"shapes.dynamic": True, "shapes.gears": {"ids.0": [8, 16]}, "shapes.mark_static": ["cache"]},
        printed=("torch makes a size of 1 a constant",),
    ),
    Production(
        name="exe_mode: npugraph_ex",
        like="cann-recipes-infer, models/longcat_flash/config",
        suffix=".yaml",
        text="""
model_config:
  model_name: some_model
  exe_mode: "npugraph_ex"
  enable_static_kernel: True
  enable_cache_compile: True
  enable_dynamic_graph: False
  custom_params:
    enable_multi_streams: 1
    enable_superkernel: True
    enable_limit_core: True
parallel_config:
  world_size: 16
""",
        mode="npugraph_ex",
        hand={
            "frozen_parameter": True,
            "static_kernel_compile": True,
            "super_kernel_optimize": True,
            "super_kernel_optimize_options": KERNEL,
        },
        tree={"shapes.dynamic": False, "compile.cache": True},
        printed=("enable_multi_streams=1", "enable_limit_core=true", "world_size=16", "model_name=some_model"),
    ),
    Production(
        name="exe_mode: ge_graph",
        like="cann-recipes-infer, models/longcat_flash_lite/config",
        suffix=".yaml",
        text="""
model_config:
  exe_mode: "ge_graph"
  platform_version: "A3"
  enable_cache_compile: False
  enable_static_kernel: True
  custom_params:
    enable_moe_stream_overlap: True
    enable_limit_core_num: True
    enable_superkernel: True
    enable_multi_streams: False
scheduler_config:
  batch_size: 16
""",
        hand=GE_COMMON,
        tree={"shapes.dynamic": False, "target.patch_for_hcom": True},
        printed=(
            "enable_static_kernel=true: it takes effect only with exe_mode=npugraph_ex",
            "enable_moe_stream_overlap=true",
            "enable_limit_core_num=true",
            "passes=super_kernel",
            "enable_multi_streams=false: off",
            "platform_version=A3",
            "batch_size=16",
        ),
    ),
    Production(
        name="torchair_graph_config",
        like="vllm-ascend v0.11, --additional-config",
        suffix=".json",
        text="""
{"additional_config": {"torchair_graph_config": {"enabled": true, "use_cached_graph": true,
 "graph_batch_sizes": [8, 16], "enable_multistream_mla": true, "enable_kv_nz": false},
 "ascend_scheduler_config": {"enabled": true}}}
""",
        hand={FROZEN: True, TILING: True, "experimental_config.enable_view_optimize": True},
        tree={"shapes.dynamic": True, "compile.cache": True, "target.patch_for_hcom": True},
        printed=("graph_batch_sizes=[8, 16]", "enable_multistream_mla=true", "enable_kv_nz=false", "scheduler_config"),
    ),
    Production(
        name="ascend_compilation_config",
        like="vllm-ascend 182b75ea84ff, --additional-config and --compilation-config",
        suffix=".yaml",
        text="""
additional-config:
  ascend_compilation_config:
    enable_npugraph_ex: true
    enable_static_kernel: true
    fuse_norm_quant: false
  multistream_overlap_shared_expert: true
compilation_config:
  cudagraph_mode: FULL_DECODE_ONLY
  cudagraph_capture_sizes: [1, 8]
""",
        mode="npugraph_ex",
        hand={
            "force_eager": True,
            "inplace_pass": False,
            "clone_input": False,
            "static_kernel_compile": True,
            "_vllm_aclnn_static_kernel_sym_range": [1, 8],
        },
        tree={"shapes.dynamic": True},
        printed=("fuse_norm_quant=false", "multistream_overlap_shared_expert=true", "own wrapper captures"),
    ),
    Production(
        name="graph_model_compile_config",
        like="omni-infer, --additional-config",
        suffix=".yaml",
        text="""
additional_config:
  graph_model_compile_config:
    {level: 1, use_ge_graph_cached: true, decode_gear_list: [16], block_num_floating_range: 50}
  enable_hybrid_graph_mode: false
""",
        hand={FROZEN: True, TILING: True},
        tree={"shapes.dynamic": False, "compile.cache": True, "target.patch_for_hcom": True},
        printed=("decode_gear_list=[16]", "block_num_floating_range=50", "enable_hybrid_graph_mode=false", "FROZEN_"),
    ),
)
