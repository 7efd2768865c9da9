"""A torchair that records: it takes the options of our table and nothing else, and runs both hooks on AOT graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from npucompose import recipe
from npucompose.graphs import printed
from npucompose.recipe.vendor_options import Package, attributes
from npucompose.vendor.option_specs import OptionSpec

HOOKS = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass")


class FakeConfig:
    """A CompilerConfig made of the option table: unknown names and values are refused, as the genuine one does."""

    def __init__(self, package: Package = "torchair", at: str = "", values: dict[str, Any] | None = None) -> None:
        self.__dict__.update(_package=package, _at=at, _set={} if values is None else values)

    def __getattr__(self, name: str) -> Any:
        path = f"{self._at}{name}"
        leaves = genuine(self._package)
        if path in leaves:
            return self._set.get(path, leaves[path].default)
        if not any(known.startswith(f"{path}.") for known in leaves):
            raise AttributeError(path)
        return FakeConfig(self._package, f"{path}.", self._set)

    def __setattr__(self, name: str, value: Any) -> None:
        path = f"{self._at}{name}"
        if path not in genuine(self._package):
            raise ValueError(f"no option {path}")
        leaf = genuine(self._package)[path]
        if leaf.kind in ("code", "names"):
            assert callable(value)
            self._set[path] = value
        else:
            self._set[path] = value if leaf.kind == "pool" else leaf.checked(value)


def genuine(package: Package) -> dict[str, OptionSpec]:
    return {leaf.genuine_path: leaf for leaf in attributes(package).values()}


class FakeTorchair:
    """What a script's calls came to: the configuration, the keywords of torch.compile, the graphs after the hooks."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.graphs: list[str] = []
        self.gears: list[dict[int, list[int]]] = []
        self.between: Callable[[fx.Graph], None] = views_to_reshapes

    def backend(self, options: Mapping[str, Any]) -> Callable[..., Any]:
        self.config = dict(options)

        def inference(module: fx.GraphModule, inputs: Any) -> Any:
            hooks = [options.get(hook) for hook in HOOKS]
            if hooks[0]:
                hooks[0](module, inputs, None)
            self.between(module.graph)
            if hooks[1]:
                hooks[1](module, inputs, None)
            self.graphs.append(printed(module.graph).replace("aten.reshape.default", "aten.view.default"))
            return lambda *args: module(*args)

        return aot_autograd(fw_compiler=inference, inference_compiler=inference, keep_inference_input_mutations=True)

    def set_dim_gears(self, tensor: torch.Tensor, gears: dict[int, list[int]]) -> None:
        self.gears.append(gears)

    def get_npu_backend(self, *, compiler_config: FakeConfig) -> Callable[..., Any]:
        return self.backend(compiler_config._set)


def views_to_reshapes(graph: fx.Graph) -> None:
    """What TorchAir always does between the two hooks (torch_npu 2.13.0, npu_fx_compiler.py, _view_to_reshape)."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default


@contextmanager
def installed() -> Iterator[FakeTorchair]:
    """`import torchair`, `import torch_npu`, torch.npu and the backend npugraph_ex, for the length of a test."""
    fake = FakeTorchair()
    torchair, torch_npu, npu = ModuleType("torchair"), ModuleType("torch_npu"), ModuleType("torch.npu")
    inference = SimpleNamespace(set_dim_gears=fake.set_dim_gears)
    torchair.__dict__.update(CompilerConfig=FakeConfig, get_npu_backend=fake.get_npu_backend, inference=inference)
    npu.__dict__.update(graph_pool_handle=lambda: "a handle")
    before = {name: sys.modules.get(name) for name in ("torchair", "torch_npu")}
    sys.modules.update(torchair=torchair, torch_npu=torch_npu)
    torch.npu = npu  # type: ignore[attr-defined]
    try:
        yield fake
    finally:
        del torch.npu  # type: ignore[attr-defined]
        for name, module in before.items():
            sys.modules.pop(name) if module is None else sys.modules.update({name: module})


def npugraph_ex_operators() -> None:
    """torch.ops.npugraph_ex.scope_enter and scope_exit: those of air under that package's name."""
    if hasattr(torch.ops.npugraph_ex, "scope_enter"):
        return
    from npucompose.ops import air

    library = torch.library.Library("npugraph_ex", "FRAGMENT")
    KEPT.append(library)
    for name in ("scope_enter", "scope_exit"):
        library.define(air.SCHEMAS[name])
        library.impl(name, air._KERNELS[name], "CompositeExplicitAutograd")


KEPT: list[torch.library.Library] = []


def executed(script: str, fake: FakeTorchair, model: Any, inputs: dict[str, Any], mode: str) -> Any:
    """Run a script's `compiled(model, inputs)` and the first call; what torch.compile was told."""
    told: dict[str, Any] = {}
    names: dict[str, Any] = {"__name__": "ejected"}
    exec(compile(script, "ejected.py", "exec"), names)
    genuine_compile = torch.compile

    def spy(given: Any, *, backend: Any, options: Any = None, **keywords: Any) -> Any:
        told.update(keywords)
        if backend == "npugraph_ex":
            npugraph_ex_operators()
            config = FakeConfig("npugraph_ex")
            for name, value in (options or {}).items():
                setattr(config, name, value)
            backend = fake.backend(config._set)
        return genuine_compile(given, backend=backend, **keywords)

    torch.compile = spy  # type: ignore[assignment]
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            names["compiled"](model, inputs)(**inputs)
    finally:
        torch.compile = genuine_compile
    return told


def events_source() -> str:
    """What a script for npugraph_ex carries to have events, with the imports that stand above it there."""
    text = (Path(recipe.__file__).parent / "templates" / "events.py.jinja").read_text(encoding="utf-8")
    return "import torch\nfrom torch.fx.node import has_side_effect\n" + text[text.index("AIR = ") :]
