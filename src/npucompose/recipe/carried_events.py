"""What a script for npugraph_ex carries beside the edits when they order streams. Pasted as `carried` is."""

from __future__ import annotations

import torch
from torch.fx.node import has_side_effect

AIR = torch.library.Library("air", "FRAGMENT")


def define_events() -> None:
    """Define air.record and air.wait where nobody has. npugraph_ex has a record and a wait of its own, but its code
    generator knows events by torchair's names (torch_npu 2.13.0, npugraph_ex/_acl_concrete_graph/fx2acl_converter.py).
    """
    kernels = {
        "record(*, Device? device=None) -> Tensor": lambda *, device=None: torch.empty(0, device=device),
        "wait(Tensor[] x) -> ()": lambda x: None,
    }
    for schema, kernel in kernels.items():
        name = schema.partition("(")[0]
        if not hasattr(torch.ops.air, name):
            AIR.define(schema)
            AIR.impl(name, kernel, "CompositeExplicitAutograd")
        has_side_effect(getattr(torch.ops.air, name).default)
