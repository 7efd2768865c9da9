"""Verdicts and steps of a run become its SinkingFacts; so does a model that could not be made one graph.

The numbered steps S0 to S8 each look at one thing and say status, evidence and the line that mends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from attrs import evolve, frozen

from npucompose.npu.static_graph.facts import FxFacts, GeFacts, Op, SinkingQuestion, UnknownForm
from npucompose.npu.static_graph.operators import OperatorTable, Use, fed_slots, geared, sentence, shapes_made_of_values
from npucompose.npu.static_graph.recompiles import foreseen_recompile, mark_again
from npucompose.npu.static_graph.records import (
    UNKNOWN,
    VERDICTS,
    Blame,
    DiagnosisStep,
    Failure,
    SinkingFacts,
    SinkingVerdict,
    StepId,
    StepStatus,
    VerdictName,
)
from npucompose.npu.static_graph.verdicts import (
    LEAST_STATIC,
    JudgedGraph,
    almost,
    foreseen,
    judge,
    least_static,
    numbers,
    path,
    short,
    unknown_sizes,
)
from npucompose.table.modes import modes_that

TITLES: dict[StepId, str] = {
    "S0": "what TorchAir would log",
    "S1": "configuration",
    "S2": "sizes of the tensor inputs",
    "S3": "numbers that change, and results whose size depends on data",
    "S4": "operators whose tiling reads values",
    "S5": "the graph as GE builds it",
    "S6": "the graph as it was handed to GE",
    "S7": "calls that compile again",
    "S8": "what to send us if this does not explain it",
}
LOG = "{fx} FX graph compiled to {ge} Ascend GE graph"
"""TorchAir's sentence (concrete_graph.cpp). Its `FX` looks at tensor sizes only, so that path 4 is logged as Static."""


@frozen(kw_only=True)
class Case:
    """All that the steps look at."""

    question: SinkingQuestion
    table: OperatorTable
    graphs: tuple[JudgedGraph, ...]
    path: int | None
    almost: str | None

    @property
    def failures(self) -> list[Failure]:
        """Of the graphs that the vendor's compiler did not take."""
        return [one.graph.failure for one in self.graphs if one.graph.failure is not None]


@frozen(kw_only=True)
class _Finding:
    status: StepStatus
    evidence: Sequence[str] = ()
    fix: str | None = None


def steps(case: Case) -> tuple[DiagnosisStep, ...]:
    """S0 to S8, in order."""
    found = [_step(step_id, act(case)) for step_id, act in _STEPS.items()]
    return (*found, _step("S8", _bundle(found)))


def _step(step_id: StepId, found: _Finding) -> DiagnosisStep:
    return DiagnosisStep(
        id=step_id, title=TITLES[step_id], status=found.status, evidence=short(found.evidence), fix=found.fix
    )


def _outcome(case: Case, evidence: Sequence[str], *, bad: bool, unsure: bool = False) -> _Finding:
    """Of a step that sees only the outcome and has no line of its own: what mends it is the line of another."""
    fix = _remedy(case) if bad else None
    return _Finding(status="problem" if bad else "unknown" if unsure else "ok", evidence=evidence, fix=fix)


def _remedy(case: Case) -> str | None:
    """What the compiler would take in place of what it refused; else the line of the first of S2 to S4."""
    if case.failures:
        return case.failures[0].fix
    found = (act(case) for act in (_sizes, _numbers, _operators))
    return next((one.fix for one in found if one.status == "problem"), None)


def _log(case: Case) -> _Finding:
    """S0: derived from the verdicts; a log given as a file takes its place."""
    failed = [one.graph.id for one in case.graphs if one.graph.failure is not None]
    lines = [f"{graph_id}: none: TorchAir raises before it has a GE graph" for graph_id in failed]
    builds = [(one, one.ge_build.value) for one in case.graphs if one.graph.failure is None]
    for one, build in builds:
        if build != "unknown":
            fx = "Dynamic" if one.ge_graph.value == "dynamic" else "Static"
            lines.append(f"{one.graph.id}: {LOG.format(fx=fx, ge='static' if build == 'static' else 'dynamic')}")
    unsure = any(build == "unknown" for _, build in builds)
    bad = bool(failed) or any(build not in ("static", "unknown") for _, build in builds)
    return _outcome(case, lines or ["unknown: it depends on the verdicts above"], bad=bad, unsure=unsure)


def _configuration(case: Case) -> _Finding:
    question = case.question
    dynamic = {True: "true", False: "false", None: "null"}[question.dynamic]
    evidence = [
        f"mode={question.mode}, shapes.dynamic={dynamic}, compile.fullgraph={str(question.fullgraph).lower()}, "
        f"tiling sink {'on' if question.sink else 'off'}, product {question.product or 'not named'}"
    ]
    if question.mode not in modes_that("ge"):
        evidence.append(f"mode={question.mode} builds no GE graph: the verdicts say what mode=max-autotune would give")
    product = case.table.products[question.product] if question.product is not None else None
    if question.sink and product is not None and product.sinks is False:
        evidence.append(f"{question.product} ({product.title}) cannot compute tiling on the device: {product.source}")
    evidence.append(_path_words(case))
    if question.breaks:
        broken = [f"graph break, each part is a graph of its own: {reason}" for reason in question.breaks]
        fix = "compile.fullgraph=true  # the error, or S3, then names the line"
        return _Finding(status="problem", evidence=[*evidence, *broken], fix=fix)
    return _Finding(status="ok", evidence=evidence)


def _path_words(case: Case) -> str:
    if case.path is not None:
        return f"path {case.path}"
    if case.almost is not None:
        return case.almost
    if any(geared(one.graph, case.question) for one in case.graphs):
        return "none of the six paths: with gears GE builds a graph for each of them"
    return f"none of the six paths: see {'S6' if case.failures else 'S4'}"


def _sizes(case: Case) -> _Finding:
    found = [(one, size) for one in case.graphs for size in one.graph.inputs if size.sizes]
    bad = [(one, size) for one, size in found if not set(size.sizes.values()) <= geared(one.graph, case.question)]
    if not found:
        return _Finding(status="ok", evidence=["every size of every tensor input is a constant"])
    if not bad:
        gears = ", ".join(f"{key} has the gears {list(sizes)}" for key, sizes in case.question.gears.items())
        return _Finding(status="ok", evidence=[gears])
    evidence = [line for one in case.graphs for line in unknown_sizes(one.graph)]
    arguments = tuple(dict.fromkeys(size.argument for _, size in bad if size.argument is not None))
    return _Finding(status="problem", evidence=evidence, fix=_mark(arguments, case.question))


def _mark(arguments: Sequence[str], question: SinkingQuestion) -> str:
    names = [argument.partition("[")[0].partition(".")[0] for argument in arguments]
    if names and set(names) <= set(question.marked):
        return mark_again(names)
    marks = list(dict.fromkeys([*question.mark_static, *names]))
    calls = "; ".join(f"torch._dynamo.mark_static({argument})" for argument in arguments)
    return f"shapes.mark_static=[{','.join(marks)}]  # in Python: {calls}"


def _numbers(case: Case) -> _Finding:
    evidence: list[str] = []
    fixes: list[str] = []
    for one in case.graphs:
        for op, symbols in shapes_made_of_values(one.graph, case.question):
            origins = [one.graph.symbols.get(s) or s for s in symbols]
            evidence.append(f"{op.name} ({op.overload}): {', '.join(origins)} sets a size of its result{op.at_source}")
            fixes.append(_fixed_size(op, origins))
    if evidence:
        return _Finding(status="problem", evidence=evidence, fix="; ".join(dict.fromkeys(fixes)))
    symbolic = [line for one in case.graphs for line in numbers(one.graph)]
    if not symbolic:
        return _Finding(status="ok", evidence=["no number that the caller passes is a symbol"])
    return _Finding(status="ok", evidence=[*symbolic, "none of them reaches a shape"])


def _fixed_size(op: Op, origins: Sequence[str]) -> str:
    if op.schema == "aten::nonzero":
        return "torch.where(condition, a, b)  # the size of its result is that of its inputs"
    if op.unbacked:
        return f"replace {op.overload} by an operator whose result has a fixed size (torch.where, a mask, a top-k)"
    return f"give {op.overload} a size that is not an argument: a constant of the module instead of {origins[0]}"


def _operators(case: Case) -> _Finding:
    found = [use for one in case.graphs for use in one.uses]
    if not found and case.failures:
        return _Finding(status="skipped", evidence=["there is no GE graph: see S6"])
    if not found:
        return _Finding(
            status="ok", evidence=["no operator of the table, and no other one that is given changing numbers"]
        )
    evidence = [f"{use.op.name} ({use.op.overload}): {sentence(use, case.question)}{use.op.at_source}" for use in found]
    bad = [use for use in found if use.static is not True]
    if not bad:
        return _Finding(status="ok", evidence=evidence)
    status: StepStatus = "problem" if any(use.static is False for use in bad) else "unknown"
    first = next((use for use in bad if use.static is False), bad[0])
    evidence.insert(0, evidence.pop(found.index(first)))
    return _Finding(status=status, evidence=evidence, fix=_sink_fix(first, case))


def _sink_fix(use: Use, case: Case) -> str:
    products = [name for name, product in case.table.products.items() if product.sinks]
    if use.sink == "switched_off":
        python = "config.experimental_config.tiling_schedule_optimize = True"
        mode = "" if case.question.mode in modes_that("ge") else "mode=max-autotune "
        return f"{mode}tiling=sink  # in Python: {python}"
    if use.sink == "packed":
        slots = " and ".join(use.changing)
        return f"give {slots} as the caller's own numbers, each an int of the argument: TorchAir makes one Data of them"
    if use.sink == "operator_cannot":
        sinking = " or ".join(name.partition("::")[2] for name, row in case.table.operators.items() if row.sinks)
        return (
            f"use {sinking} where the model allows it; or shapes=static if {' and '.join(use.changing)} do not change"
        )
    if use.sink == "product_cannot":
        return f"target.soc={products[0]}  # products with tiling sink: {', '.join(products)}"
    if use.sink == "product_unknown":
        return f"target.soc={products[0]}  # name the product; those with tiling sink: {', '.join(products)}"
    name = use.op.schema.replace("::", ".")
    row = f"{{ge: TYPE, slots: [{','.join(use.changing)}], sinks: true, source: WHERE}}"
    return f"+sinking.operators={{{name}: {row}}}  # sinks: what its tiling registration says"


def _build(case: Case) -> _Finding:
    evidence = [
        f"{one.graph.id}: {one.ge_build.value}: {line}" for one in case.graphs for line in one.ge_build.evidence
    ]
    values = {one.ge_build.value for one in case.graphs}
    return _outcome(case, evidence, bad=not values <= {"static", "unknown"}, unsure="unknown" in values)


def _handed_over(case: Case) -> _Finding:
    """S6: what TorchAir itself handed over, where that was seen, or why there is nothing."""
    if case.failures:
        return _outcome(case, [f"{one.graph}: there is none: {one.without_fix}" for one in case.failures], bad=True)
    seen = [(one, one.ge) for one in case.graphs if one.ge is not None]
    undecided = [one.graph.undecided for one in case.graphs if one.graph.undecided is not None]
    if undecided:
        told = [f"{one.graph}: there is none here: {one.without_fix}" for one in undecided]
        return _Finding(status="skipped", evidence=told, fix=undecided[0].fix)
    if not seen:
        nothing = "no GE graph was seen: target=npu_offline mode=max-autotune shows it, or --dump FILE"
        return _Finding(status="skipped", evidence=[nothing])
    evidence: list[str] = []
    for one, ge in seen:
        lines = [
            f"option ge.tiling_schedule_optimize = {ge.options.get('ge.tiling_schedule_optimize')}",
            *fed_slots(ge, case.table),
            ", ".join(one.ge_graph.evidence),
        ]
        evidence += [f"{one.graph.id}: {line}" for line in lines]
    bad = any(one.ge_graph.value == "dynamic" and not geared(one.graph, case.question) for one, _ in seen)
    return _outcome(case, evidence, bad=bad)


def _again(case: Case) -> _Finding:
    changes = case.question.changes
    if not changes:
        return _Finding(status="ok", evidence=["the calls do not differ in anything that a compilation depends on"])
    found = [(change, *foreseen_recompile(change, case.question)) for change in changes]
    evidence = [
        f"{one.argument} changes its {one.what} from {one.before} to {one.after} in call {one.call}: {words}"
        for one, words, _ in found
    ]
    fixes = [fix for _, _, fix in found if fix is not None]
    return _Finding(status="problem" if fixes else "ok", evidence=evidence, fix=fixes[0] if fixes else None)


def _bundle(found: Sequence[DiagnosisStep]) -> _Finding:
    unsure = [step.id for step in found if step.status == "unknown"]
    if not unsure:
        return _Finding(status="skipped", evidence=["the steps above explain it"])
    return _Finding(
        status="unknown",
        evidence=[f"{', '.join(unsure)} could not decide; send report.json, graphs/, the GE dump and the log"],
        fix="compiler.debug.graph_dump.type=pbtxt  # on the device; then npucompose explain --dump FILE",
    )


_STEPS: dict[StepId, Callable[[Case], _Finding]] = {
    "S0": _log,
    "S1": _configuration,
    "S2": _sizes,
    "S3": _numbers,
    "S4": _operators,
    "S5": _build,
    "S6": _handed_over,
    "S7": _again,
}


_DATA_DECIDE = re.compile(r"data-dependent", re.I)
"""How torch calls a branch, a size or a guard that only the values of a tensor decide."""


def diagnose(
    question: SinkingQuestion, graphs: Sequence[FxFacts], ge_graphs: Sequence[GeFacts], table: OperatorTable
) -> SinkingFacts:
    """The report's `sinking`: FX graphs in the order of their compilation, beside each the GE graph it became.

    A graph that was not taken became none, and beside it nothing is proven. Where the numbers differ nobody knows which
    belongs to which, and no GE graph counts.
    """
    graphs = [foreseen(graph, question, table) for graph in graphs]
    taken = [graph for graph in graphs if graph.failure is None and graph.undecided is None]
    paired = dict(zip([graph.id for graph in taken], ge_graphs, strict=True)) if len(ge_graphs) == len(taken) else {}
    found = tuple(judge(graph, paired.get(graph.id), question, table) for graph in graphs)
    case = Case(
        question=question, table=table, graphs=found, path=path(found, question), almost=almost(found, question)
    )
    failure = case.failures[0] if case.failures else None
    fx = least_static(found, "fx_graph")
    return SinkingFacts.from_verdicts(
        path=case.path,
        almost=case.almost,
        fx_graph=fx if len(taken) == len(graphs) else evolve(fx, certainty="derived"),
        ge_graph=least_static(found, "ge_graph"),
        ge_build=least_static(found, "ge_build"),
        product=question.product,
        blame=tuple(blame for one in found for blame in one.blame),
        steps=steps(case),
        failure=failure,
    )


def not_compiled(question: SinkingQuestion, error: str) -> SinkingFacts:
    """What can be said of a model that torch.compile could not make one graph of; `error` is its paragraph."""
    found = dict.fromkeys(TITLES, _Finding(status="skipped", evidence=("there is no graph to look at",)))
    step: StepId = "S1"
    fix = "move what breaks the graph out of forward(); with compile.fullgraph=false each part is a graph of its own"
    if _DATA_DECIDE.search(error):
        step = "S3"
        fix = "torch.where(condition, a, b) or torch.cond: values of tensors must not decide which code runs"
    found[step] = _Finding(status="problem", evidence=(error,), fix=fix)
    unknown = SinkingVerdict(value="unknown", certainty="unknown", evidence=("torch.compile made no graph",))
    return SinkingFacts.from_verdicts(
        fx_graph=unknown,
        ge_graph=unknown,
        ge_build=unknown,
        product=question.product,
        blame=(Blame(node="forward", operator="torch.compile", reason=error),),
        steps=tuple(_step(step_id, one) for step_id, one in found.items()),
        failure=Failure(graph="", what=error.rstrip("."), fix=fix),
    )


def not_known(question: SinkingQuestion, known: SinkingFacts | None, unknown: UnknownForm) -> SinkingFacts:
    """What can be said of a model in which the form of an operator's results is not known: nothing of what comes behind
    it. `known` is of the graphs before it, or of all of them where it is only not to be believed.
    """
    evidence = f"what comes of {unknown.operator} is not known{f', at {unknown.source}' if unknown.source else ''}"
    given = {} if known is None else known.verdicts()
    verdicts: dict[VerdictName, SinkingVerdict] = {}
    for name in VERDICTS:
        found = given.get(name, UNKNOWN)
        if LEAST_STATIC.index(found.value) < LEAST_STATIC.index("unknown"):
            verdicts[name] = evolve(found, evidence=(*found.evidence, evidence))
        else:
            kept = (f"without it {found.value}: {line}" for line in found.evidence[:1])
            verdicts[name] = evolve(UNKNOWN, evidence=(evidence, *kept))
    blame = Blame(
        node=unknown.operator.rpartition(".")[2], operator=unknown.operator, reason=unknown.why, source=unknown.source
    )
    nothing = _Finding(status="skipped", evidence=("there is no graph to look at",))
    found_steps = {step: _step(step, nothing) for step in TITLES} | {
        one.id: one for one in (known.steps if known else ())
    }
    found_steps["S3"] = _step("S3", _Finding(status="unknown", evidence=(evidence, unknown.why), fix=unknown.fix))
    return SinkingFacts.from_verdicts(
        **verdicts,
        product=question.product,
        blame=(*(known.blame if known is not None else ()), blame),
        steps=tuple(found_steps[step] for step in TITLES),
        failure=known.failure if known is not None else None,
    )
