"""What an artefact says, and what that means for the verdicts and for the steps S0, S6 and S7 of the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from npucompose.schema.record import Recompile
from npucompose.schema.sinking import Blame, SinkingFacts, Step
from npucompose.sinking.artefacts import judgement

Form = Literal[
    "torchair_verdict", "torchair_options", "torchair_inputs", "ge_plog", "torch_recompiles",
    "torchair_py", "torchair_txt", "torchair_pbtxt", "ge_proto", "ge_onnx", "ge_readable",
]  # fmt: skip
FORMS: Mapping[Form, str] = {
    "torchair_verdict": "TorchAir's C++ log of a compiled graph (TNG_LOG_LEVEL=1)",
    "torchair_options": "the options of a graph in TorchAir's C++ log",
    "torchair_inputs": "the compiler inputs in TorchAir's Python log (logger.setLevel(logging.INFO))",
    "ge_plog": "GE's plog about its shape partition (ASCEND_GLOBAL_LOG_LEVEL=1)",
    "torch_recompiles": "torch's log of recompilations (TORCH_LOGS=recompiles)",
    "torchair_py": "TorchAir's graph dump of type py",
    "torchair_txt": "TorchAir's graph dump of type txt",
    "torchair_pbtxt": "TorchAir's graph dump of type pbtxt",
    "ge_proto": "GE's dump ge_proto_*.txt",
    "ge_onnx": "GE's dump ge_onnx_*.pbtxt",
    "ge_readable": "GE's dump ge_readable_*.txt",
}
Stage = Literal["original", "build", "between"]
"""`original`: as TorchAir hands it over; `build`: after GE cut it into static and dynamic parts; else between."""


@frozen(kw_only=True)
class Compiled:
    """TorchAir's line about one graph: what its inputs' shapes were, and what GE made of it."""

    graph: int
    inputs: Literal["static", "dynamic"]
    build: Literal["static", "dynamic"]


@frozen(kw_only=True)
class FxInput:
    """One input of the FX graph: `size` of a tensor, as written; a symbol alone is a number (SymInt)."""

    index: int
    size: tuple[str, ...] | None
    symbols: tuple[str, ...] = ()


@frozen(kw_only=True)
class Mark:
    """A node about which GE decided something, and the row of the decision table it decided by."""

    node: str
    operator: str | None
    row: int
    dynamic: bool
    """False: the row was passed, the node stays static."""
    words: str
    """What the artefact says of it."""


@frozen(kw_only=True)
class Data:
    """One Data node; -1 is a dimension and -2 a rank that GE does not know, None a shape that is not told."""

    name: str
    shape: tuple[int, ...] | None

    @property
    def unknown(self) -> tuple[int, ...]:
        return tuple(at for at, size in enumerate(self.shape or ()) if size < 0)


@frozen(kw_only=True)
class GraphRead:
    """One graph of a dump."""

    name: str
    stage: Stage
    nodes: int
    types: Mapping[str, int] = field(factory=dict[str, int])
    data: tuple[Data, ...] = ()
    unknown_flag: bool | None = None
    """`_graph_unknown_flag`; None where the dump does not hold it, which in a build dump in txt means false."""
    flag_shown: bool = False
    """The form would show the flag if it were set."""
    unknown_nodes: int = 0
    """Nodes other than Data with an unknown dimension."""
    static_parts: tuple[str, ...] = ()
    """Subgraphs `…_know` that GE's shape partition made."""
    dynamic_parts: tuple[str, ...] = ()
    """Subgraphs `…_unknow`."""


@frozen(kw_only=True)
class Artefact:
    """A file as facts; a log may hold several forms."""

    name: str
    forms: tuple[Form, ...]
    compiled: tuple[Compiled, ...] = ()
    options: Mapping[int, Mapping[str, str]] = field(factory=dict[int, Mapping[str, str]])
    """{graph id: its GE options}."""
    fx_inputs: tuple[tuple[FxInput, ...], ...] = ()
    """The inputs of each FX graph, in the order of the log."""
    marks: tuple[Mark, ...] = ()
    skipped: tuple[str, ...] = ()
    """Graphs that GE did not partition, because all their nodes have known shapes."""
    recompiles: tuple[Recompile, ...] = ()
    graphs: tuple[GraphRead, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """S0 (what TorchAir says), S6 (what GE says) and S7 (what torch says); `skipped` where it says nothing."""
        return judgement.steps(self)

    @property
    def blame(self) -> tuple[Blame, ...]:
        """Who is to blame that it is not static, in the order of the artefact."""
        return judgement.blame(self)

    @property
    def sinking(self) -> SinkingFacts:
        """The verdicts that this artefact alone proves; `unknown` for the rest."""
        return judgement.sinking(self)
