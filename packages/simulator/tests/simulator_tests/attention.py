"""Run in a process of its own: what scaled_dot_product_attention becomes on a device, and whether it is right."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING"] = "0"

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.nn.functional import scaled_dot_product_attention

from npucompose.targets.npu_offline import NpuOfflineTarget

BOOL = torch.rand(2, 1, 6, 6).tril() > 0
CASES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "causal": ((4, 4, 16), {"is_causal": True}),
    "a mask": ((4, 4, 16), {"attn_mask": BOOL}),
    "a mask for each key": ((4, 4, 16), {"attn_mask": BOOL[:, :, -1:]}),
    "grouped heads": ((4, 2, 16), {"enable_gqa": True, "scale": 0.5}),
    "numbers that are added": ((4, 4, 16), {"attn_mask": torch.randn(6, 6)}),
    "a depth that is no multiple of four": ((4, 4, 6), {}),
}


def graph_of(function: Any, *inputs: torch.Tensor) -> tuple[list[str], Any]:
    """The operators of the traced graph, and its result."""
    torch._dynamo.reset()
    seen: list[str] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module

    return seen, torch.compile(function, backend=aot_autograd(fw_compiler=keep), fullgraph=True)(*inputs)


def main(mode: str) -> None:
    drawn = {name: [torch.randn(2, n, 6, depth) for n in (heads, kv, kv)]
             for name, ((heads, kv, depth), _) in CASES.items()}  # fmt: skip
    right = {name: scaled_dot_product_attention(*drawn[name], **options) for name, (_, options) in CASES.items()}
    leaves = [t.clone().requires_grad_() for t in drawn["causal"]]
    wanted = torch.autograd.grad(scaled_dot_product_attention(*leaves, is_causal=True).sum(), leaves)
    NpuOfflineTarget().prepare(mode)
    found: dict[str, Any] = {}
    for name, (_, options) in CASES.items():
        with torch.no_grad():
            seen, result = graph_of(lambda *t, o=options: scaled_dot_product_attention(*t, **o), *drawn[name])
        fused = [op for op in seen if op.startswith("npu.")]
        found[name] = fused, any("for_cpu" in op for op in seen), torch.allclose(result, right[name], atol=1e-6)
    given = torch.autograd.grad(scaled_dot_product_attention(*leaves, is_causal=True).sum(), leaves)
    found["gradients"] = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(given, wanted, strict=True))
    with torch.no_grad():
        found["weight norm"] = graph_of(torch._weight_norm, torch.randn(3, 4), torch.randn(3, 1))[0]
    with torch.inference_mode():
        direct = scaled_dot_product_attention(*drawn["causal"], is_causal=True)
    found["inference mode"] = torch.allclose(direct, right["causal"], atol=1e-6)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
