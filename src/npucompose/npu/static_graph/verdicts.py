"""The three verdicts on one graph: FX, GE as handed over, GE as built; the path that a run took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from npucompose.npu.static_graph.conversions import RULE as CONVERTED
from npucompose.npu.static_graph.conversions import Judgement, doubts, unconverted
from npucompose.npu.static_graph.facts import FxFacts, GeFacts, Op, SinkingQuestion
from npucompose.npu.static_graph.operators import OperatorTable, Use, dynamic_ops, geared, uses
from npucompose.npu.static_graph.records import (
    KINDS,
    STEP_IDS,
    Blame,
    Certainty,
    Failure,
    GraphKind,
    SinkingFacts,
    SinkingVerdict,
    VerdictName,
)
from npucompose.table.modes import modes_that

BY_PATH: Mapping[int, tuple[GraphKind, GraphKind, GraphKind]] = {
    1: ("static", "static", "static"),
    2: ("dynamic", "dynamic", "dynamic"),
    3: ("dynamic", "static", "dynamic"),
    4: ("dynamic", "static", "static"),
    5: ("dynamic", "static", "dynamic"),
    6: ("dynamic", "dynamic", "dynamic"),
}
"""{path: (FX graph, GE graph, GE build)}; the document's table, and the two paths that it lacks."""
STATIC_PART_LIMIT = 4
"""GE's default of ge.exec.static_model_ops_lower_limit: a static part with fewer operators is scheduled dynamically."""
HOST_SCHEDULING = "ge.exec.hostSchedulingMaxThreshold"
LEAST_STATIC: tuple[GraphKind, ...] = ("failed", "dynamic", "mixed", "unknown", "static")
assert set(LEAST_STATIC) == set(KINDS)
UNKNOWN_SIZES = (-1, -2)
SHOWN = 6
"""Sentences of one verdict; a graph may have hundreds of symbols."""


@frozen(kw_only=True)
class JudgedGraph:
    """One graph with its verdicts; `blame` says why GE's build is not static."""

    graph: FxFacts
    ge: GeFacts | None
    fx_graph: SinkingVerdict
    ge_graph: SinkingVerdict
    ge_build: SinkingVerdict
    blame: tuple[Blame, ...]
    uses: tuple[Use, ...]


def judge(graph: FxFacts, ge: GeFacts | None, question: SinkingQuestion, table: OperatorTable) -> JudgedGraph:
    """The verdicts on a graph; `ge` is what was handed to GE for it, where somebody saw that."""
    if graph.failure is not None:
        return _failed(graph, graph.failure, question)
    build, blame = _ge_build(graph, ge, question, table)
    unsure = () if ge is not None or converted(graph, question) else doubts(graph, question, table)
    return JudgedGraph(
        graph=graph,
        ge=ge,
        fx_graph=fx_graph(graph, question),
        ge_graph=_doubted(_ge_graph(graph, ge), unsure),
        ge_build=_doubted(build, unsure),
        blame=(*blame, *(_doubt_blame(one, graph) for one in unsure)),
        uses=uses(graph, question, table),
    )


def foreseen(graph: FxFacts, question: SinkingQuestion, table: OperatorTable) -> FxFacts:
    """The graph with the failure that TorchAir would end in, where nobody has asked it and the tables know."""
    if graph.failure is not None or converted(graph, question):
        return graph
    return evolve(graph, failure=unconverted(graph, question, table))


def converted(graph: FxFacts, question: SinkingQuestion) -> bool:
    """Whether TorchAir itself converted the graph, where it came through."""
    return question.through_torchair and question.mode in modes_that("ge") and graph.undecided is None


def _doubted(verdict: SinkingVerdict, doubts: Sequence[Judgement]) -> SinkingVerdict:
    """The verdict, or unknown where it rests on a conversion that no table knows of; a worse one stays."""
    if not doubts or LEAST_STATIC.index(verdict.value) < LEAST_STATIC.index("unknown"):
        return verdict
    said = [f"{one.op.overload}{one.op.at_source}: {one.why}" for one in doubts]
    kept = [
        line if verdict.value == "unknown" else f"if it is converted {verdict.value}: {line}"
        for line in verdict.evidence
    ]
    return SinkingVerdict(value="unknown", certainty="unknown", evidence=(*short(said), *kept[:1]))


def _doubt_blame(doubt: Judgement, graph: FxFacts) -> Blame:
    op = doubt.op
    return Blame(node=op.name, operator=op.overload, reason=doubt.why, source=op.source, graph=graph.id, rule=CONVERTED)


def _failed(graph: FxFacts, failure: Failure, question: SinkingQuestion) -> JudgedGraph:
    """There is no graph after this one, whatever the rules would have said of it."""
    where = f" at {failure.source}" if failure.source else ""
    certainty: Certainty = "derived" if failure.foreseen else "unknown"
    none = SinkingVerdict(value="failed", certainty=certainty, evidence=(f"{failure.what}{where}",))
    blame = Blame(
        node=failure.node or graph.id,
        operator=failure.operator or "TorchAir",
        reason=f"{failure.what}. {failure.reason}".strip(),
        source=failure.source,
        graph=graph.id,
        rule=CONVERTED if failure.foreseen else None,
    )
    fx = fx_graph(graph, question)
    return JudgedGraph(graph=graph, ge=None, fx_graph=fx, ge_graph=none, ge_build=none, blame=(blame,), uses=())


def fx_graph(graph: FxFacts, question: SinkingQuestion) -> SinkingVerdict:
    """Static when no shape and no number of it is a symbol."""
    certainty: Certainty = "proven" if question.through_torchair else "derived"
    if not graph.symbols:
        sentence = f"no symbol in {graph.id} (inputs: {len(graph.inputs)}, operators: {len(graph.ops)})"
        return SinkingVerdict(value="static", certainty=certainty, evidence=(sentence,))
    sentences = [*unknown_sizes(graph), *numbers(graph)]
    sentences += [f"{s} is known only when the graph runs" for s, origin in graph.symbols.items() if origin is None]
    return SinkingVerdict(value="dynamic", certainty=certainty, evidence=short(sentences))


def unknown_sizes(graph: FxFacts) -> list[str]:
    """`key: dimension 2 is s0 (placeholder arg4_1)` for each unknown size of an input."""
    return [
        f"{one.argument or one.name}: dimension {dimension} is {symbol} (placeholder {one.name})"
        for one in graph.inputs
        for dimension, symbol in one.sizes.items()
    ]


def numbers(graph: FxFacts) -> list[str]:
    """`lens[0] is the number s97 (placeholder arg3_1)` for each number of the model's caller that is a symbol."""
    return [
        f"{one.argument} is the number {one.symbol} (placeholder {one.name})"
        for one in graph.inputs
        if one.symbol is not None and one.argument is not None and ".size()[" not in one.argument
    ]


def _ge_graph(graph: FxFacts, ge: GeFacts | None) -> SinkingVerdict:
    """Dynamic exactly when a Data node has an unknown size: TorchAir's own test (GeConcreteGraph.is_dynamic)."""
    if ge is not None:
        unknown = {name: shape for name, shape in ge.data.items() if any(size in UNKNOWN_SIZES for size in shape)}
        shown = [f"Data {name} {list(shape)}" for name, shape in (unknown or ge.data).items()]
        return SinkingVerdict(value="dynamic" if unknown else "static", certainty="proven", evidence=short(shown))
    unknown_here = unknown_sizes(graph)
    if unknown_here:
        return SinkingVerdict(value="dynamic", certainty="derived", evidence=short(unknown_here))
    sentence = "every size of every tensor input is a constant; a number becomes a Data node of fixed shape"
    return SinkingVerdict(value="static", certainty="derived", evidence=(sentence,))


def _ge_build(
    graph: FxFacts, ge: GeFacts | None, question: SinkingQuestion, table: OperatorTable
) -> tuple[SinkingVerdict, tuple[Blame, ...]]:
    host = _host_scheduled(graph, ge)
    if host is not None:
        return host, ()
    dynamic, unsure = dynamic_ops(graph, question, table)
    forced = _forced(graph, ge, question)
    if forced and not any(one.rule == "rule 1" for one in dynamic.values()):
        return forced, ()
    blame = (*_inputs_to_blame(graph, question), *_roots(graph, dynamic, unsure))
    if not dynamic and unsure:
        reasons = tuple(f"{b.node}: {b.reason}" for b in unsure.values())
        return SinkingVerdict(value="unknown", certainty="unknown", evidence=short(reasons)), blame
    if not dynamic:
        said = "rule 7: no operator of the graph is dynamic"
        if geared(graph, question):
            gears = ", ".join(f"{key}={list(sizes)}" for key, sizes in question.gears.items())
            said = f"rule 10: each gear is a static graph: {gears}"
        sunk = [
            f"rule 5: {use.op.name}: its tiling is computed on the device"
            for use in uses(graph, question, table)
            if use.sink == "sinks"
        ]
        return SinkingVerdict(value="static", certainty="derived", evidence=(said, *short(sunk))), ()
    parts = static_parts(graph.ops, {*dynamic, *unsure})
    limit = STATIC_PART_LIMIT if question.ops_lower_limit is None else question.ops_lower_limit
    static = [size for size in parts if 0 <= limit <= size]
    first = next(iter(dynamic.values()))
    evidence = [f"{first.rule}: {first.node}: {first.reason}", _parts(parts, static, limit)]
    return SinkingVerdict(value="mixed" if static else "dynamic", certainty="derived", evidence=tuple(evidence)), blame


def _host_scheduled(graph: FxFacts, ge: GeFacts | None) -> SinkingVerdict | None:
    """Rule 8, where the option was handed over: GE's default is 0, which no graph is below."""
    threshold = int((ge.options.get(HOST_SCHEDULING) if ge is not None else None) or 0)
    if ge is None or len(ge.inputs) >= threshold:
        return None
    sentence = f"rule 8: the graph has {len(ge.inputs)} nodes and {HOST_SCHEDULING} is {threshold}"
    return SinkingVerdict(value="dynamic", certainty="derived", evidence=(sentence,))


def _forced(graph: FxFacts, ge: GeFacts | None, question: SinkingQuestion) -> SinkingVerdict | None:
    """Rule 1, where the graph that was handed over shows it. With gears GE knows the sizes before it looks."""
    if ge is None or not ge.forced or geared(graph, question):
        return None
    evidence = tuple(f"rule 1: {name}: TorchAir has forced its shape to be unknown" for name in ge.forced)
    return SinkingVerdict(value="dynamic", certainty="derived", evidence=short(evidence))


def _inputs_to_blame(graph: FxFacts, question: SinkingQuestion) -> tuple[Blame, ...]:
    """A tensor with an unknown size is the first node of the graph that has one."""
    known = geared(graph, question)
    return tuple(
        Blame(
            node=one.name,
            operator="placeholder",
            reason=f"dimension {dimension} of the input is the symbol {symbol}, not a constant",
            graph=graph.id,
            argument=one.argument,
            dimension=dimension,
            symbol=symbol,
            rule="rule 3",
        )
        for one in graph.inputs
        for dimension, symbol in one.sizes.items()
        if symbol not in known
    )


def _roots(graph: FxFacts, dynamic: Mapping[str, Blame], unsure: Mapping[str, Blame]) -> list[Blame]:
    """Operators that bring something unknown in; one that only reads it is not to blame."""
    sizes = {symbol for one in graph.inputs for symbol in one.sizes.values()}
    blames = {op.name: blame for op in graph.ops if (blame := dynamic.get(op.name) or unsure.get(op.name))}
    brings = {op.name for op in graph.ops if not {*op.unknown_in, *sizes}.issuperset(op.unknown_out)}
    return [blame for name, blame in blames.items() if blame.rule != "rule 3" or name in brings]


def static_parts(ops: Sequence[Op], dynamic: set[str]) -> list[int]:
    """How many operators each static part has, in order, when the `dynamic` ones are cut out.

    Two static operators share a part when an edge joins them and no dynamic operator lies between: both have the same
    number of dynamic ones before them on the longest way. Views are not counted, GE folds them.
    """
    depth: dict[str, int] = {}
    part: dict[str, str] = {}
    sizes: dict[str, int] = {}

    def root(name: str) -> str:
        while part[name] != name:
            name = part[name]
        return name

    for op in ops:
        before = [name for name in op.reads if name in depth]
        depth[op.name] = max((depth[n] + (n in dynamic) for n in before), default=0)
        if op.name in dynamic:
            continue
        part[op.name] = op.name
        sizes[op.name] = 0 if op.view else 1
        for name in before:
            if name in part and depth[name] == depth[op.name] and root(name) != root(op.name):
                theirs, ours = root(name), root(op.name)
                part[ours] = theirs
                sizes[theirs] += sizes.pop(ours)
    return [size for size in sizes.values() if size]


def _parts(parts: Sequence[int], static: Sequence[int], limit: int) -> str:
    if not parts:
        return "rule 9: no static part is left"
    sizes = f"rule 9: operators in each static part, views not counted: {', '.join(map(str, parts))}"
    if limit < 0:
        return f"{sizes}; static_model_ops_lower_limit={limit} makes all of them dynamic"
    return f"{sizes}; {len(static) or 'none'} of them reach static_model_ops_lower_limit={limit}"


def least_static(graphs: Sequence[JudgedGraph], which: VerdictName) -> SinkingVerdict:
    """That of the least static graph counts, and says which graph it is of where there are several."""
    verdicts: list[tuple[str, SinkingVerdict]] = [(one.graph.id, getattr(one, which)) for one in graphs]
    graph_id, worst = min(verdicts, key=lambda named: LEAST_STATIC.index(named[1].value))
    if len(verdicts) == 1:
        return worst
    return SinkingVerdict(
        value=worst.value, certainty=worst.certainty, evidence=tuple(f"{graph_id}: {line}" for line in worst.evidence)
    )


def path(graphs: Sequence[JudgedGraph], question: SinkingQuestion) -> int | None:
    """Which compile path a run took, by its graphs in the order of their compilation; None where what its lengths alone
    would make is not what is built."""
    found = by_lengths(graphs, question)
    return None if found in BUILT_STATIC and _not_static(graphs) else found


def almost(graphs: Sequence[JudgedGraph], question: SinkingQuestion) -> str | None:
    """`path 4, but dynamic by slice_1 (rule 3: …)` where another operator than the attention decides; else None."""
    found, others = by_lengths(graphs, question), _not_static(graphs)
    if found not in BUILT_STATIC or not others:
        return None
    one = others[0]
    what = f"{one.blame[0].node} ({one.blame[0].rule}: {one.blame[0].reason})" if one.blame else one.graph.id
    return f"path {found}, but {one.ge_build.value} by {what}"


BUILT_STATIC = tuple(path for path, (_, _, build) in BY_PATH.items() if build == "static")


def _not_static(graphs: Sequence[JudgedGraph]) -> list[JudgedGraph]:
    """The least static first."""
    found = [one for one in graphs if one.ge_build.value != "static"]
    return sorted(found, key=lambda one: LEAST_STATIC.index(one.ge_build.value))


def by_lengths(graphs: Sequence[JudgedGraph], question: SinkingQuestion) -> int | None:
    """The path by the sizes, and by what becomes of the lengths of the attention.

    None where one was not taken, and where the document does not speak of it: with gears the graph that is handed over
    is dynamic and GE's are not; with lengths as a tensor the FX graph is static.
    """
    if any(one.graph.failure is not None for one in graphs):
        return None
    reading = [one for one in graphs if one.uses]
    if not reading or any(geared(one.graph, question) for one in reading):
        return None
    dynamic = [one for one in reading if one.ge_graph.value == "dynamic"]
    if dynamic:
        return 2 if reading[0] in dynamic else 6
    changing = [use for one in reading for use in one.uses if use.sink != "constant"]
    if not changing:
        return 1
    if not any(use.symbols for use in changing):
        return None
    if not question.sink:
        return 3
    if any(use.static is None for use in changing):
        return None
    return 4 if all(use.static for use in changing) else 5


def short(sentences: Sequence[str]) -> tuple[str, ...]:
    """The first sentences, and how many more there are."""
    if len(sentences) <= SHOWN:
        return tuple(sentences)
    return (*sentences[:SHOWN], f"and {len(sentences) - SHOWN} more")


# What logs and dumps prove that something else wrote about a graph. Knows none of their forms.


def with_artefacts(facts: SinkingFacts | None, read: Sequence[SinkingFacts]) -> SinkingFacts:
    """What logs and dumps prove takes the place of what was derived; None: there is nothing but them.

    Of two files that prove different things the less static one counts.
    """
    known = facts or evolve(read[0], path=None, product=None, blame=(), steps=(), failure=None)
    verdicts = dict(known.verdicts())
    for name in verdicts:
        proven = [one.verdicts()[name] for one in read if one.certainty[name] == "proven"]
        if proven:
            verdicts[name] = min(proven, key=lambda verdict: LEAST_STATIC.index(verdict.value))
    found = {step.id: step for step in known.steps}
    for step in (step for one in read for step in one.steps):
        if step.status != "skipped" or step.id not in found:
            found[step.id] = step
    return SinkingFacts.from_verdicts(
        path=_path_proven(known.path, verdicts),
        almost=known.almost,
        fx_graph=verdicts["fx_graph"],
        ge_graph=verdicts["ge_graph"],
        ge_build=verdicts["ge_build"],
        product=known.product,
        blame=(*(blame for one in read for blame in one.blame), *known.blame),
        steps=tuple(found[step_id] for step_id in STEP_IDS if step_id in found),
        failure=known.failure,
    )


def _path_proven(derived: int | None, verdicts: Mapping[VerdictName, SinkingVerdict]) -> int | None:
    """A file may prove that it went another way than the rules say. To the document a mixed graph is dynamic."""
    values = (verdicts[name].value for name in ("fx_graph", "ge_graph", "ge_build"))
    kinds = tuple("dynamic" if value == "mixed" else value for value in values)
    return derived if derived is not None and kinds == BY_PATH[derived] else None
