"""Scripts and parts of them, each with what it is about: what a reader makes of them is kept as a golden text."""

from __future__ import annotations

CONFIG = "config = torchair.CompilerConfig()"
"""Stands before a script that begins with `…`, below the imports."""

SCRIPTS: dict[str, str] = {
    "values": """
        …
        a = b = True
        config.debug.run_eagerly = b
        config.ge_config.oo_level, config.ge_config.aicore_num = "O1", "24|48"
        first, [second, third] = ("py", ["x", "y"])
        config.debug.graph_dump.type = first
        config.debug.graph_dump.path = second
        c: bool = False
        d: bool
        config.experimental_config.remove_noop_ops = c
        config.experimental_config.frozen_parameter = d
    """,
    "fewer values than names": """
        …
        x, y = [True]
        config.debug.run_eagerly = x
        config.experimental_config.frozen_parameter = y
        p, q = pair
        config.experimental_config.remove_noop_ops = p
    """,
    "what is computed from what it was": """
        …
        config.debug.run_eagerly |= True
        n = 1
        n += 1
        config.debug.aclgraph.static_capture_size_limit = n
        m = [2]
        config.debug.aclgraph.static_capture_size_limit = m[0]
    """,
    "an object that is found by many names": """
        import torchair.configs as tc
        import torchair.core.utils
        from torchair import CompilerConfig as CC, logger as log
        from torch_npu.dynamo.torchair.configs.compiler_config import CompilerConfig
        from . import CompilerConfig as strange
        import logging
        one = CC()
        two = CompilerConfig()
        three = tc.compiler_config.CompilerConfig()
        four = strange()
        one.mode = "reduce-overhead"
        two.debug.run_eagerly = True
        three.ge_config.oo_level = "O1"
        log.setLevel(logging.INFO)
        torchair.core.utils.logger.setLevel(logging.ERROR)
        log.info("text")
    """,
    "loggers": """
        …
        import logging, npugraph_ex
        from npugraph_ex.core.utils import logger as other
        other.setLevel("WARNING")
        logging.getLogger("a").setLevel("DEBUG")
        logging.getLogger().setLevel("INFO")
        logging.getLogger(name).setLevel("INFO")
        logging.getLogger("b").setLevel(10)
        logging.getLogger("c").setLevel()
        logging.getLogger("d").setLevel(logging.CRITICAL)
        if unknown:
            logging.getLogger("e").setLevel("DEBUG")
        torchair.logger.setLevel(logging.DEBUG)
        torchair.others.logger.setLevel(logging.DEBUG)
    """,
    "artifacts": """
        …
        torch._logging.set_logs(graph_code=True, aot_graphs=False, dynamo=level)
        if unknown:
            torch._logging.set_logs(guards=True)
    """,
    "conditions": """
        …
        if 0:
            config.debug.run_eagerly = True
        elif "text":
            config.ge_config.oo_level = "O1"
        if args.fast:
            config.mode = "reduce-overhead"
            held = config
            held.ge_config.aicore_num = "24|48"
        else:
            config.experimental_config.remove_noop_ops = False
        config.experimental_config.frozen_parameter = True
        if __name__ == "__main__":
            config.debug.graph_dump.type = "py"
        else:
            config.debug.graph_dump.type = "txt"
    """,
    "a condition in a condition": """
        …
        if one:
            if two:
                pass
            config.debug.run_eagerly = True
        while one:
            if two:
                config.ge_config.oo_level = "O1"
            config.ge_config.oo_level = "O1"
        else:
            config.experimental_config.frozen_parameter = True
        config.experimental_config.remove_noop_ops = False
    """,
    "loops": """
        …
        for mode in ("reduce-overhead", "max-autotune"):
            config.mode = mode
        else:
            config.debug.run_eagerly = True
        for a, b in pairs:
            config.ge_config.oo_level = "O1"
        async def later():
            async for x in stream:
                config.experimental_config.frozen_parameter = True
            async with lock:
                config.experimental_config.remove_noop_ops = False
    """,
    "errors, contexts and cases": """
        …
        try:
            config.debug.run_eagerly = True
        except ValueError:
            config.ge_config.oo_level = "O1"
        except TypeError:
            config.ge_config.oo_level = "O3"
        else:
            config.experimental_config.frozen_parameter = True
        finally:
            config.experimental_config.remove_noop_ops = False
        with made(config) as x, torchair.logger as y:
            config.ge_config.enable_single_stream = True
        match args.kind:
            case "a":
                config.debug.graph_dump.type = "py"
            case _:
                config.debug.graph_dump.type = "txt"
        del x
        assert config
    """,
    "a value of one branch": """
        …
        flag = False
        kept = config.experimental_config
        if unknown:
            flag = True
            kept = config.debug
        config.experimental_config.frozen_parameter = flag
        kept.run_eagerly = True
    """,
    "functions and what they are given": """
        …
        def first(c, /, level="O1", *rest, eager=True, other, **more):
            c.ge_config.oo_level = level
            c.debug.run_eagerly = eager
            c.experimental_config.frozen_parameter = other
        first(config, other=True)
        def second(c, kind="py", path="dumps"):
            c.debug.graph_dump.type = kind
            c.debug.graph_dump.path = path
        second(config, path="there", unheard="x")
        def third(c, limit):
            c.debug.aclgraph.static_capture_size_limit = limit
        third(config, args.limit)
    """,
    "what functions return": """
        …
        def made():
            inner = torchair.CompilerConfig()
            def nothing():
                return
            nothing()
            return inner
        def none():
            pass
        c = made()
        c.debug.run_eagerly = True
        config.mode = none()
        def level():
            return "O1"
            return "O3"
        c.ge_config.oo_level = level()
        def perhaps():
            if unknown:
                return "24|48"
            return "12|24"
        c.ge_config.aicore_num = perhaps()
        def made_perhaps(path):
            if not path:
                return None
            last = torchair.CompilerConfig()
            return last
        made_perhaps("x").experimental_config.frozen_parameter = True
        def either():
            if unknown:
                return f()
        c.debug.graph_dump.type = either()
    """,
    "functions that call one another": """
        …
        def one(c):
            two(c)
            c.debug.run_eagerly = True
        def two(c):
            one(c)
            c.mode = one(c)
        one(config)
    """,
    "a function that is called twice says a thing once": """
        …
        def tune(c):
            c.no_such_option = 1
        tune(config)
        tune(config)
    """,
    "functions that nobody calls": """
        import torchair
        def tune(c):
            c.experimental_config.frozen_parameter = True
            c.mode = "reduce-overhead"
        def main():
            c = torchair.CompilerConfig()
            tune(c)
        def alone(c, dynamic=True):
            c.debug.run_eagerly = dynamic
            c.name = "x"
    """,
    "classes": """
        …
        class Runner:
            level = other = "O1"
            a, b = 1, 2
            text: str = "x"
            def __init__(self, c, quick=True):
                self.c = c
                self.quick = quick
                self.tune()
            def tune(self):
                self.c.ge_config.oo_level = self.level
                self.c.debug.run_eagerly = self.quick
                self.c.debug.graph_dump.type = self.kind
            @property
            def late(self):
                return "py"
        runner = Runner(config)
        runner.c.experimental_config.frozen_parameter = True
        class Empty:
            pass
        Empty().x = config
        Empty.x.experimental_config.remove_noop_ops = False
    """,
    "decorators": """
        …
        @torch.compile
        def step(x):
            return x
        @torch.compile(backend="npu", dynamic=True)
        def other(x):
            return x
        class Model:
            @torch.compile
            def forward(self, x):
                return x
            @staticmethod
            def plain(x):
                return x
    """,
    "options that are none": """
        …
        config.no_such = 1
        config.debug = other
        config.debug.no_such = 1
        config.ge_config.oo_level = "O9"
        config.ge_config.oo_level = [1]
        config.ge_config.oo_level = {"a": n}
        config.ge_config.oo_level = f(config.ge_config.oo_level)
        config.post_grad_custom_pre_pass = lambda g: g
        config.post_grad_custom_post_pass = fused
    """,
    "long lines are cut": """
        …
        config.debug.graph_dump.path = unknown_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        config.debug.graph_dump.path = unknown_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        config.ge_config.oo_level = (
            unknown
        )
    """,
    "configurations of others": """
        …
        torchair.some.flag = True
        torch_npu.dynamo.flag = True
        torch._dynamo.config.cache_size_limit = 3
        torch.backends.cudnn.benchmark = True
        cfg.experimental_config.frozen_parameter = True
        args.mode = "fast"
        getattr(args, "cfg").debug.run_eagerly = True
        cfg.debug_level = 1
        cfg.export.model = 1
    """,
    "dicts": """
        …
        options = {"a": 1, **more, key: 2, 3: True}
        options["b"] = 2
        options[name] = 3
        config.experimental_config.aclgraph._super_kernel_optimize_options = options
        if unknown:
            options["a"] = 5
        config.experimental_config.aclgraph._super_kernel_optimize_options = options
        known = {"a": 1, 3: True}
        known["b"] = 2
        whole = {**known, "c": 3}
        other = torchair.CompilerConfig()
        other.experimental_config.aclgraph._super_kernel_optimize_options = whole
        if unknown:
            whole["a"] = 5
        other.experimental_config.aclgraph._super_kernel_optimize_options = whole
        known[name] = 3
        other.experimental_config.aclgraph._super_kernel_optimize_options = known
        config.ge_config.oo_level = {"x": "O1"}["x"]
        config.ge_config.aicore_num = {"x": "24|48"}["y"]
    """,
    "dicts that are filled": """
        import torch
        options = dict({"clone_output": True}, capture_limit=3, **more)
        options.update({"inplace_pass": False}, frozen_parameter=True)
        options.update(unknown)
        options.pop("capture_limit")
        torch.compile(m, backend="npugraph_ex", options=options)
        torch.compile(m, backend="npugraph_ex", options=dict())
        torch.compile(m, backend="npugraph_ex", options=dict(known, **{"clone_output": True}))
        torch.compile(m, backend="npugraph_ex", options={"clone_output": True, **more}, **kept)
        sure = dict({"clone_output": True})
        sure.update(clone_input=False, **{"capture_limit": 2})
        torch.compile(m, backend="npugraph_ex", options=sure)
        if unknown:
            sure.update(clone_input=True)
        torch.compile(m, backend="npugraph_ex", options=sure)
    """,
    "pools": """
        …
        import torch_npu
        shared = torch.npu.graph_pool_handle()
        again = shared
        config.aclgraph_config.use_custom_pool = again
        other = torchair.CompilerConfig()
        other.aclgraph_config.use_custom_pool = torch.npu.graph_pool_handle()
        third = torchair.CompilerConfig()
        held = {"mine": torch_npu.npu.graph_pool_handle()}
        third.aclgraph_config.use_custom_pool = held["mine"]
    """,
    "attributes by name": """
        …
        setattr(config.debug, "run_eagerly", True)
        setattr(config, name, True)
        setattr(other, "run_eagerly", True)
        setattr(config, "mode")
        getattr(config.debug, "graph_dump").type = "py"
        getattr(config, "ge_config", None).oo_level = "O1"
        getattr(other, "debug").x = 1
        getattr(config)
        config.debug.graph_dump.path = getattr(args, "path")
        config.experimental_config.frozen_parameter = getattr(config, name)
    """,
    "backends": """
        import torch, torchair, torch_npu, npugraph_ex
        one = torchair.get_npu_backend()
        two = torchair.get_npu_backend(torchair.CompilerConfig())
        three = torch_npu.dynamo.torchair.get_npu_backend(compiler_config=None, custom_decompositions={})
        four = npugraph_ex.get_npu_backend(compiler_config=npugraph_ex.CompilerConfig())
        five = torchair.get_npu_backend(compiler_config=unknown)
        torch.compile(model, backend=two, dynamic=True, fullgraph=True)
        torch.compile(model, backend=five)
        torch.compile(model, backend=four, dynamic=None, fullgraph=False)
    """,
    "compilations": """
        import torch
        torch.compile(m, backend="npu")
        torch.compile(m, backend="npugraph_ex", options={"clone_output": True, "no_such": 1}, dynamic=False)
        torch.compile(m, backend="npugraph_ex", options=None)
        torch.compile(m, backend="npugraph_ex", options=unknown)
        torch.compile(m, backend="npu", fullgraph=2, dynamic="x", mode="default", disable=True)
        torch.compile(m, backend="inductor")
        torch.compile(m)
        torch.compile(m, backend=chosen)
        torch.compile(m, backend=3)
        import torchair
        torchair.CompilerConfig().debug.run_eagerly = torch.compile(m, backend="npu")
    """,
    "marks": """
        …
        def step(x, cache, inputs):
            torch._dynamo.mark_static(x)
            torch._dynamo.mark_static(x, 0)
            torch._dynamo.mark_static(t=x, index=0)
            torch._dynamo.mark_static()
            torch._dynamo.mark_dynamic(x, 1)
            torch._dynamo.mark_dynamic(x, [0, 1])
            torch._dynamo.mark_dynamic(inputs["ids"], index=(2,))
            torch._dynamo.mark_dynamic(x, ["a"])
            torch._dynamo.mark_dynamic(x, n)
            torch._dynamo.mark_dynamic(x)
            torch._dynamo.mark_dynamic(x, 0, 4)
            torch._dynamo.mark_dynamic(x, 0, min=4)
            torch._dynamo.mark_dynamic(f(), 0)
            torch._dynamo.mark_unbacked(x, 0)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            for layer in cache:
                torch._dynamo.mark_static(layer)
            for tensor in torch.utils._pytree.tree_leaves(inputs["state"]):
                if isinstance(tensor, torch.Tensor):
                    torch._dynamo.mark_dynamic(tensor, 0)
            for tensor in torch.utils._pytree.tree_leaves():
                torch._dynamo.mark_static(tensor)
            if isinstance(x, torch.Tensor):
                torch._dynamo.mark_static(inputs["sure"])
            if unknown:
                torch._dynamo.mark_static(inputs["perhaps"])
            while unknown:
                torch._dynamo.mark_static(y)
    """,
    "gears": """
        …
        def step(x, y):
            torchair.inference.set_dim_gears(x, {0: [32, 64], 1: (1, 2)})
            torchair.inference.set_dim_gears(t=y, dim_gears={2: [2, 4]})
            torchair.inference.set_dim_gears(z, {0: [3, 4]})
            torchair.inference.set_dim_gears(x)
            torchair.inference.set_dim_gears(x, {})
            torchair.inference.set_dim_gears()
            torchair.inference.set_dim_gears(x, {0: [0, 1]})
            torchair.inference.set_dim_gears(x, {0: [2]})
            torchair.inference.set_dim_gears(x, {0: [True, 2]})
            torchair.inference.set_dim_gears(x, {0: [2, 4], "a": [2, 4]})
            torchair.inference.set_dim_gears(x, {0: [2, 4], 1: [1]})
            for n in range(2):
                torchair.inference.set_dim_gears(x, {0: [2, 4]})
    """,
    "calls of TorchAir and of others": """
        …
        torchair.scope.npu_stream_switch("1")
        torchair.ops.npu_record("x")
        torchair.ge.Cast(x)
        torchair.core.anything()
        torchair._private.thing()
        torchair.dynamo_export(model)
        torch_npu.dynamo.npugraph_ex.inference.cache_compile(model)
        npugraph_ex.scope.super_kernel()
        torchair.other.scope()
        scope.ops()
        setup(config)
        setup(1, c=config.debug)
        setup(1)
        obj.method(config)
        torchair.dynamo_export(config)
        print(made()(config))
    """,
    "filters": """
        …
        FILTER
        config.debug.data_dump.filter = node_filter(("mm", "aten.add*"))
        other = torchair.CompilerConfig()
        other.debug.data_dump.filter = node_filter(["mm", 1])
        other.debug.data_dump.filter = node_filter()
        other.debug.data_dump.filter = node_filter("mm")
        other.debug.data_dump.filter = ["mm"]
        other.debug.data_dump.filter = None
        other.debug.run_eagerly = node_filter(["mm"])
    """,
    "values of either side": """
        …
        fast = True
        config.debug.run_eagerly = True if fast else False
        config.experimental_config.remove_noop_ops = True if not fast else False
        config.experimental_config.frozen_parameter = True if unknown else False
        config.ge_config.oo_level = "O1" if os.environ["LEVEL"] else "O3"
        config.ge_config.aicore_num = fast and "24|48"
        config.debug.graph_dump.type = "" or "py"
        config.debug.graph_dump.path = fast or unknown
        config.debug.data_dump.path = unknown or fast
        config.debug.data_dump.type = 0 and unknown
    """,
    "what is compared": """
        …
        import sys
        config.debug.run_eagerly = 1 < 2 <= 2
        config.experimental_config.remove_noop_ops = 2 < 2
        config.experimental_config.frozen_parameter = 3 >= 2 > 2
        config.experimental_config.tiling_schedule_optimize = "O1" == "O1" != "O2"
        config.experimental_config.enable_view_optimize = "a" in ["a", "b"]
        config.experimental_config.enable_single_stream = "a" not in ["a", "b"]
        config.ge_config.enable_single_stream = None is not None
        config.experimental_config.keep_inference_input_mutations = 1 < "a"
        config.debug.aclgraph.disable_reinplace_inplaceable_ops_pass = 1 < unknown
        config.debug.aclgraph.static_capture_size_limit = (2 > 1) + (1 is 1)
    """,
    "texts with values in them": """
        …
        level = 1
        config.ge_config.oo_level = f"O{level}"
        config.ge_config.aicore_num = f"{24}|{2 * 24}"
        config.debug.graph_dump.type = f"{level!s}"
        config.debug.graph_dump.path = f"{level:02d}"
        config.debug.data_dump.path = f"{unknown}/dumps"
        config.debug.data_dump.type = f"{[level, None]}"
    """,
    "variables of the environment": """
        …
        import os
        config.ge_config.oo_level = os.environ["LEVEL"]
        config.ge_config.aicore_num = os.environ.get("CORES", "24|48")
        config.debug.graph_dump.type = os.getenv("TYPE", default="py")
        config.debug.graph_dump.path = os.environ[unknown]
        config.debug.run_eagerly = bool(os.environ.get("EAGER"))
    """,
    "numbers that are computed": """
        …
        limit = config.debug.aclgraph
        limit.static_capture_size_limit = -(-2)
        limit.static_capture_size_limit = +3 + 2 * 2
        limit.static_capture_size_limit = 1 << 3
        limit.static_capture_size_limit = 2 ** 64
        limit.static_capture_size_limit = 2 ** 65
        limit.static_capture_size_limit = 10 - 4
        limit.static_capture_size_limit = 10 // 4
        limit.static_capture_size_limit = [1] + [2]
        config.debug.run_eagerly = not 0
        config.ge_config.oo_level = "O" + "1"
        config.ge_config.aicore_num = "ab" * 64
        config.debug.graph_dump.type = "ab" * 65
        config.debug.graph_dump.path = int("x"), int("3", 2), float("1.5"), str(3), bool("")
    """,
    "dicts that are asked": """
        …
        given = {"oo_level": "O1", "dump": {"type": "py"}, 3: "three"}
        config.ge_config.oo_level = given.get("oo_level")
        config.ge_config.aicore_num = given.get("cores", "24|48")
        config.debug.graph_dump.type = given["dump"]["type"]
        config.debug.graph_dump.path = given.get("none")
        config.debug.data_dump.path = given.get(default="d")
        config.debug.data_dump.type = given[3]
        config.debug.run_eagerly = given["nothing"]
        config.experimental_config.frozen_parameter = given.setdefault("frozen", True)
        config.experimental_config.remove_noop_ops = given.setdefault("frozen", False)
        config.experimental_config.topology_sorting_strategy = given.setdefault("none")
        given[unknown] = 1
        config.experimental_config.enable_view_optimize = given.get("view", True)
        config.debug.fx_summary.type = given["view"]
        for key in {"a": 1, "b": 2}:
            config.debug.aclgraph.static_capture_size_limit = key
        for key in given:
            config.debug.aclgraph.static_capture_size_limit = key
    """,
    "dicts from which something is taken": """
        …
        given = {"oo_level": "O1", "type": "py", "path": "d"}
        config.ge_config.oo_level = given.pop("oo_level")
        config.ge_config.aicore_num = given.get("oo_level", "24|48")
        config.debug.graph_dump.path = given.pop("cores", "c")
        config.debug.data_dump.path = given.pop("cores")
        if unknown:
            given.pop("type")
            given.pop("nothing", None)
        config.debug.graph_dump.type = given["type"]
        config.debug.data_dump.type = given.get("nothing", "npy")
    """,
    "fields of a namespace": """
        …
        from types import SimpleNamespace
        args = SimpleNamespace(level="O1", **{"cores": "24|48"})
        config.ge_config.oo_level = args.level
        config.ge_config.aicore_num = args.cores
        config.debug.graph_dump.type = args.type
        other = SimpleNamespace(**unknown)
        config.debug.graph_dump.path = other.path
    """,
    "calls that are made later": """
        …
        import functools, torch
        backend = torchair.get_npu_backend(compiler_config=config)
        compiled = functools.partial(torch.compile, dynamic=True, backend=backend)
        config.debug.run_eagerly = functools.partial()
        config.ge_config.oo_level = functools.partial(3, "O1")
        config.ge_config.aicore_num = (lambda: "24|48")
        config.debug.graph_dump.type = [one for one in ["py"]][0]
        config.debug.graph_dump.path = (path := "d")
    """,
    "keys that are no constants": """
        …
        given = {unknown: 1, **more}
        for key, value in given.items():
            config.debug.run_eagerly = value
        for key, value in {"a": True}.items():
            config.debug.run_eagerly = value
    """,
}
