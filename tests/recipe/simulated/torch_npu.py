"""On the path of a kit's processes in place of the genuine package: the simulated runtime, and its backend by name."""

from __future__ import annotations

import sys
from typing import Any

from npucompose.targets.npu_offline import wheel
from npucompose.targets.npu_offline.simulator import install

sys.modules.pop(__name__)  # the simulated runtime takes the name, and the import statement gives what has it
install(wheel.locate())


def _npugraph_ex(graph_module: Any, example_inputs: Any, **keywords: Any) -> Any:
    """What `import torch_npu` registers on a device (torch_npu 2.13.0, dynamo/__init__.py, _exec)."""
    import npugraph_ex  # type: ignore[import-not-found]

    return npugraph_ex.get_npu_backend(compiler_config=npugraph_ex.CompilerConfig())(
        graph_module, example_inputs, **keywords
    )


def _register() -> None:
    from torch._dynamo import register_backend

    register_backend(_npugraph_ex, "npugraph_ex")


_register()
