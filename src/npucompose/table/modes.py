"""The modes, each as a value: code asks what a mode does, and never what it is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

GE, ACLGRAPH, NPUGRAPH_EX = "max-autotune", "reduce-overhead", "npugraph_ex"
"""The modes that compile, named as in conf/mode: GE graphs, torchair's captured graphs, npugraph_ex's own."""


@frozen(kw_only=True)
class ModeSpec:
    """What a mode means wherever it runs."""

    name: str
    compiles: bool = True
    """Graphs are made and rewritten; what does not compile is the baseline, and options are idle in it."""
    captures: bool = False
    """Kernels are recorded once and replayed."""
    fuses: bool = False
    """A compiler makes kernels of its own: GE on an NPU, else Inductor. What does not fuse keeps every bit."""
    ge: bool = False
    """On an NPU the graph is handed to GE."""
    trains: bool = False
    """Gradients can flow, where the target trains."""
    package: Literal["torchair", "npugraph_ex"] | None = None
    """Of torch_npu, which compiles it on an NPU."""


MODES: Mapping[str, ModeSpec] = {
    one.name: one
    for one in (
        ModeSpec(name=GE, fuses=True, ge=True, trains=True, package="torchair"),
        ModeSpec(name=ACLGRAPH, captures=True, package="torchair"),
        ModeSpec(name=NPUGRAPH_EX, captures=True, package="npugraph_ex"),
        ModeSpec(name="eager", compiles=False, trains=True),
    )
}


def modes_that(trait: str) -> tuple[str, ...]:
    """Names of the modes that compile and have a trait: `modes_that("captures")`."""
    return tuple(one.name for one in MODES.values() if one.compiles and getattr(one, trait))
