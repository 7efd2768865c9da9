"""Run as a process of its own: exec scripts against the genuine configuration classes and print what became of them.

Bare packages with only `__path__` stand before the classes, so that no `__init__` runs and CANN is not asked for.
Reads `{"tree": folder of torch_npu/, "scripts": [[package, script], …]}` from stdin, writes one entry for each script:
{leaves: {attribute path: value}, tree: what `of_config` makes of the object}.
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any


def main() -> None:
    order = json.load(sys.stdin)
    for name in ("torchair", "npugraph_ex"):
        module = ModuleType(name)
        module.__path__ = [f"{order['tree']}/torch_npu/dynamo/{name}"]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
    sys.modules["torch_npu"] = ModuleType("torch_npu")
    import torch

    torch.npu = SimpleNamespace(graph_pool_handle=lambda: (0, 1))  # type: ignore[attr-defined]
    from torchair.configs.compiler_config import CompilerConfig  # type: ignore[import-not-found]

    sys.modules["torchair"].CompilerConfig = CompilerConfig  # type: ignore[attr-defined]
    print(json.dumps([one(package, script) for package, script in order["scripts"]]))


def one(package: str, script: str) -> dict[str, Any]:
    from npucompose.recipe import of_config
    from npucompose.recipe.genuine import attributes

    names: dict[str, Any] = {"__name__": "ejected"}
    exec(compile(script, "ejected.py", "exec"), names)
    if package == "torchair":
        config = names["compiler_config"]()
    else:
        from npugraph_ex.configs import compiler_config as ex  # type: ignore[import-not-found]

        config = ex.CompilerConfig()
        ex._process_kwargs_options(config, {"options": names["options"]() if "options" in names else {}})
    paths = {leaf.genuine_path for leaf in attributes(package).values()}  # type: ignore[arg-type]
    return {"leaves": {path: value(config, path) for path in sorted(paths)}, "tree": of_config(config)}


def value(config: Any, path: str) -> Any:
    from npucompose.recipe.node_filters import patterns_of

    for part in path.split("."):
        config = getattr(config, part)
    held = getattr(config, "_value", config)
    return patterns_of(held) if callable(held) else held


if __name__ == "__main__":
    main()
