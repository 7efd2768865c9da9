"""The modes, each as a value: code asks what a mode does, and never what it is called."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from npucompose.registry import Registry

GE, ACLGRAPH, NPUGRAPH_EX = "max-autotune", "reduce-overhead", "npugraph_ex"
"""The modes that compile, named as in conf/mode: GE graphs, torchair's captured graphs, npugraph_ex's own."""
EAGER = "eager"
"""The mode that does not."""


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
    closed_by: Literal["scope", "stream"] = "scope"
    """What gets an event of its own where that package closes a graph with side streams."""
    capture_limit: str | None = None
    """The option with the most captures of one graph, beyond which that package runs it eagerly (`AclGraph.compile` in
    `_acl_concrete_graph/acl_graph.py` of both)."""
    keeps_copies: tuple[str, bool] | None = None
    """The option, and its value, with which the package leaves copies to inputs in a captured graph."""

    @property
    def is_plain(self) -> bool:
        """The graph is called as the passes left it: nothing is recorded and nothing fused."""
        return self.compiles and not (self.captures or self.fuses or self.ge)


MODES: Registry[ModeSpec] = Registry(
    kind="mode",
    base=ModeSpec,
    group="npucompose.modes",
    values=True,
    built_in=(
        (GE, ModeSpec(name=GE, fuses=True, ge=True, trains=True, package="torchair")),
        (
            ACLGRAPH,
            ModeSpec(
                name=ACLGRAPH,
                captures=True,
                package="torchair",
                capture_limit="debug.aclgraph.static_capture_size_limit",
                keeps_copies=("debug.aclgraph.disable_reinplace_input_mutated_ops_pass", True),
            ),
        ),
        (
            NPUGRAPH_EX,
            ModeSpec(
                name=NPUGRAPH_EX,
                captures=True,
                package="npugraph_ex",
                closed_by="stream",
                capture_limit="npugraph_ex.capture_limit",
                keeps_copies=("npugraph_ex.input_inplace_pass", False),
            ),
        ),
        (EAGER, ModeSpec(name=EAGER, compiles=False, trains=True)),
    ),
)


def modes_that(trait: str) -> tuple[str, ...]:
    """Names of the modes that compile and have a trait: `modes_that("captures")`."""
    return tuple(one.name for one in MODES.every().values() if one.compiles and getattr(one, trait))
