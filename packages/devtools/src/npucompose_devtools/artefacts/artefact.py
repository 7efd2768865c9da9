"""What an artefact says, and what that means for the verdicts and for the steps S0, S6 and S7 of the diagnosis.

Every verdict here is `proven` or `unknown`: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from npucompose.npu.static_graph.records import (
    UNKNOWN,
    Blame,
    DiagnosisStep,
    GraphKind,
    SinkingFacts,
    SinkingVerdict,
    StepStatus,
)
from npucompose.results.record import Recompile

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
SINK = "tiling=sink (compiler.experimental_config.tiling_schedule_optimize: true)"
ROW_FIX = {
    1: "find who sets the attribute: a pass of yours, or an operator that GE always schedules from the host",
    3: "shapes.mark_static for the inputs whose dimensions are -1, or shapes.gears",
    5: f"{SINK} where the operator and the product can sink its tiling, or constant lengths (shapes=static)",
    6: "nothing in YAML: the operator's kernel does not take refreshed addresses",
}
EVIDENCE_KEPT = 8


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
    def steps(self) -> tuple[DiagnosisStep, ...]:
        """S0 (what TorchAir says), S6 (what GE says) and S7 (what torch says); `skipped` where it says nothing."""
        return _s0(self), _s6(self), _s7(self)

    @property
    def blame(self) -> tuple[Blame, ...]:
        """Who is to blame that it is not static, in the order of the artefact."""
        inputs = [
            Blame(
                node=data.name,
                operator="Data",
                reason=f"GE does not know every dimension of the input: {list(data.shape or ())}",
                graph=graph.name,
                dimension=data.unknown[0],
                rule="rule 3",
            )
            for graph in self.graphs
            for data in graph.data
            if data.unknown
        ]
        marked = [
            Blame(node=m.node, operator=m.operator or "unknown", reason=m.words, rule=f"rule {m.row}")
            for m in self.marks
            if m.dynamic
        ]
        return (*inputs, *marked)

    @property
    def sinking(self) -> SinkingFacts:
        """The verdicts that this artefact alone proves; `unknown` for the rest."""
        return SinkingFacts.from_verdicts(
            fx_graph=_fx_graph(self),
            ge_graph=_ge_graph(self),
            ge_build=_ge_build(self),
            blame=self.blame,
            steps=self.steps,
        )


# Verdicts.


def _verdict(kinds: list[tuple[GraphKind, str]]) -> SinkingVerdict:
    """The least static of what was proven of several graphs, with the evidence for that kind."""
    for kind in ("dynamic", "mixed", "static"):
        evidence = [words for found, words in kinds if found == kind]
        if evidence:
            return SinkingVerdict(value=kind, certainty="proven", evidence=tuple(evidence[:EVIDENCE_KEPT]))
    return UNKNOWN


def _fx_graph(artefact: Artefact) -> SinkingVerdict:
    kinds: list[tuple[GraphKind, str]] = []
    for at, inputs in enumerate(artefact.fx_inputs):
        symbolic = [i for i in inputs if i.symbols]
        told = ", ".join(f"input {i.index}: {_size(i.size) or i.symbols[0]}" for i in symbolic)
        kinds.append(("dynamic", f"FX graph {at}: {told}") if symbolic else ("static", f"FX graph {at}: no symbol"))
    return _verdict(kinds)


def _size(size: tuple[str, ...] | None) -> str:
    return f"({', '.join(size)})" if size is not None else ""


def _ge_graph(artefact: Artefact) -> SinkingVerdict:
    kinds: list[tuple[GraphKind, str]] = []
    kinds.extend((c.inputs, _sentence(c)) for c in artefact.compiled)
    for graph in artefact.graphs:
        unknown = [data for data in graph.data if data.unknown]
        if unknown:
            told = ", ".join(f"Data {d.name} {list(d.shape or ())}" for d in unknown[:EVIDENCE_KEPT])
            kinds.append(("dynamic", f"{graph.name}: {told}"))
        elif graph.stage == "original" and graph.data and all(d.shape is not None for d in graph.data):
            kinds.append(("static", f"{graph.name}: no Data node has an unknown dimension"))
    return _verdict(kinds)


def _ge_build(artefact: Artefact) -> SinkingVerdict:
    kinds: list[tuple[GraphKind, str]] = []
    kinds.extend((c.build, _sentence(c)) for c in artefact.compiled)
    kinds.extend(("static", _skipped(name)) for name in artefact.skipped)
    kinds += [kind for graph in artefact.graphs if (kind := _build_of(graph))]
    marked = [m for m in artefact.marks if m.dynamic]
    if not kinds and marked:
        return SinkingVerdict(
            value="unknown",
            certainty="unknown",
            evidence=("GE marked nodes as dynamic, so it is not static; only a build dump tells mixed from dynamic",),
        )
    return _verdict(kinds)


def _build_of(graph: GraphRead) -> tuple[GraphKind, str] | None:
    if graph.static_parts and graph.dynamic_parts:
        parts = f"{len(graph.static_parts)} static and {len(graph.dynamic_parts)} dynamic parts"
        return "mixed", f"{graph.name}: GE cut it into {parts}"
    if graph.unknown_flag or graph.dynamic_parts:
        return "dynamic", f"{graph.name}: _graph_unknown_flag is true" if graph.unknown_flag else (
            f"{graph.name}: all parts are dynamic"
        )
    if graph.stage == "build" and graph.flag_shown:
        return "static", f"{graph.name}: no _graph_unknown_flag that is true in the build graph"
    return None


def _skipped(graph: str) -> str:
    return f"GE skipped the partition of {graph}: all nodes are known shape"


def _sentence(compiled: Compiled) -> str:
    return f"graph {compiled.graph}: {compiled.inputs} input shapes, compiled to a {compiled.build} GE graph"


# Steps.


def _step(id: str, title: str, status: StepStatus, evidence: list[str], fixes: list[str]) -> DiagnosisStep:
    more = len(evidence) - EVIDENCE_KEPT
    shown = evidence[:EVIDENCE_KEPT] + ([f"and {more} more"] if more > 0 else [])
    fix = "; ".join(dict.fromkeys(fixes)) or None
    return DiagnosisStep(id=id, title=title, status=status, evidence=tuple(shown), fix=fix)  # type: ignore[arg-type]


def _s0(artefact: Artefact) -> DiagnosisStep:
    title = "TorchAir's own word"
    if not artefact.compiled:
        return DiagnosisStep(id="S0", title=title, status="skipped", fix="TNG_LOG_LEVEL=1 makes TorchAir log it")
    fixes = []
    for c in artefact.compiled:
        if c.build == "dynamic" and c.inputs == "static":
            fixes.append(f"a node made it dynamic though every input shape is fixed: {SINK}, and S6 with GE's plog")
        elif c.build == "dynamic":
            fixes.append(ROW_FIX[3])
    return _step("S0", title, "problem" if fixes else "ok", [_sentence(c) for c in artefact.compiled], fixes)


def _s6(artefact: Artefact) -> DiagnosisStep:
    title = "GE's own account"
    if not (artefact.graphs or artefact.marks or artefact.skipped):
        return DiagnosisStep(
            id="S6", title=title, status="skipped", fix="DUMP_GE_GRAPH=2, or debug.graph_dump.type=pbtxt"
        )
    marks = [m for m in artefact.marks if m.dynamic]
    inputs = [f"{b.node}: {b.reason}" for b in artefact.blame if b.operator == "Data"]
    built = [kind for graph in artefact.graphs if (kind := _build_of(graph))]
    evidence = inputs + [_of_mark(m) for m in artefact.marks] + [words for _, words in built]
    evidence += [f"{g.name}: {g.unknown_nodes} nodes of unknown size" for g in artefact.graphs if g.unknown_nodes]
    evidence += [_skipped(name) for name in artefact.skipped]
    fixes = ([ROW_FIX[3]] if inputs else []) + [ROW_FIX[m.row] for m in marks]
    bad = bool(inputs or marks or any(kind != "static" for kind, _ in built))
    if not evidence:
        evidence = [f"{graph.name}: {graph.nodes} nodes" for graph in artefact.graphs]
    return _step("S6", title, "problem" if bad else "ok", evidence, fixes)


def _of_mark(mark: Mark) -> str:
    operator = f" ({mark.operator})" if mark.operator else ""
    return f"{mark.node}{operator}: {mark.words} [rule {mark.row}]"


def _s7(artefact: Artefact) -> DiagnosisStep:
    title = "recompilations"
    if not artefact.recompiles:
        return DiagnosisStep(id="S7", title=title, status="skipped", fix="TORCH_LOGS=recompiles logs them")
    evidence = [f"{r.compile_id}: {r.reason}" for r in artefact.recompiles]
    return _step("S7", title, "problem", evidence, [r.avoid for r in artefact.recompiles if r.avoid])
