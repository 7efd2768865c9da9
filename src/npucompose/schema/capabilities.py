"""What a device can do, as a value: a pass learns it from here and never imports a device."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Capabilities:
    target: str
    mode: str
    device: str = "cpu"
    scope_namespace: str = "air"
    """Namespace of scope_enter and scope_exit: `air`, or `npugraph_ex` for that package."""
    event_namespace: str = "air"
    """Namespace of record and wait. `air` for both packages: npugraph_ex of torch_npu 2.13.0 defines its own two, but
    its code generator (`_acl_concrete_graph/fx2acl_converter.py`, `_codegen_fx_forward_record_wait`) looks for
    `air.record` and `air.wait`, so that its own come out as nothing and two streams run unordered."""
    explicit_events: bool = True
    """The mode syncs streams only where the graph says record/wait (aclgraph); GE syncs data edges by itself."""
    max_streams: int = 64
    asserts: bool = True
    """The mode can check values at run time (`_assert_async`); TorchAir has no GE converter for it (2.13.0)."""
    captures: bool = False
    """The mode records kernels and replays them (so control that depends on data is impossible)."""
