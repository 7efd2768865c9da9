"""The numbered steps S0 to S8: each looks at one thing and says status, evidence and the line that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attrs import frozen

from npucompose.results.sinking import Step, StepId, StepStatus
from npucompose.sinking.facts import Change, Op, Question
from npucompose.sinking.table import OperatorTable
from npucompose.sinking.values import Use, geared, sentence, shapes_made_of_values
from npucompose.sinking.verdicts import Judged, numbers, short, unknown_sizes

TITLES: dict[StepId, str] = {
    "S0": "what TorchAir would log",
    "S1": "configuration",
    "S2": "sizes of the tensor inputs",
    "S3": "numbers that change, and results whose size the data decide",
    "S4": "operators whose tiling reads values",
    "S5": "the graph as GE builds it",
    "S6": "the graph as it was handed to GE",
    "S7": "calls that compile again",
    "S8": "what to send along when this does not explain it",
}
LOG = "{fx} FX graph compiled to {ge} Ascend GE graph"
"""TorchAir's sentence (concrete_graph.cpp). Its `FX` looks at tensor sizes only, so that path 4 is logged as Static."""


@frozen(kw_only=True)
class Case:
    """All that the steps look at."""

    question: Question
    table: OperatorTable
    graphs: tuple[Judged, ...]
    path: int | None

    @property
    def taken(self) -> tuple[Judged, ...]:
        """The graphs that the vendor's compiler took."""
        return tuple(one for one in self.graphs if one.graph.failure is None)

    @property
    def failed(self) -> tuple[Judged, ...]:
        return tuple(one for one in self.graphs if one.graph.failure is not None)

    @property
    def failure_fix(self) -> str | None:
        """What the compiler would take in place of what it refused."""
        return next((one.graph.failure.fix for one in self.failed if one.graph.failure is not None), None)


def steps(case: Case) -> tuple[Step, ...]:
    """S0 to S8, in order."""
    told = [_step(step_id, act(case)) for step_id, act in _STEPS.items()]
    return (*told, _step("S8", _bundle(told)))


@frozen(kw_only=True)
class _Told:
    status: StepStatus
    evidence: Sequence[str] = ()
    fix: str | None = None


def _step(step_id: StepId, told: _Told) -> Step:
    return Step(id=step_id, title=TITLES[step_id], status=told.status, evidence=short(told.evidence), fix=told.fix)


def _log(case: Case) -> _Told:
    """S0: derived from the verdicts; a log given as a file takes its place."""
    lines = [f"{one.graph.id}: none: TorchAir raises before it has a GE graph" for one in case.failed]
    status: StepStatus = "problem" if case.failed else "ok"
    for one in case.taken:
        build = one.ge_build.value
        if build == "unknown":
            status = "unknown" if status == "ok" else status
            continue
        fx = "Dynamic" if one.ge_graph.value == "dynamic" else "Static"
        lines.append(f"{one.graph.id}: {LOG.format(fx=fx, ge='static' if build == 'static' else 'dynamic')}")
        status = status if build == "static" else "problem"
    fix = _remedy(case) if status == "problem" else None
    return _Told(status=status, evidence=lines or ["nobody can tell which sentence it would be"], fix=fix)


def _remedy(case: Case) -> str | None:
    """What mends the first of S2 to S4 that has a problem: a step that sees only the outcome has no line of its own."""
    if case.failed:
        return case.failure_fix
    told = (act(case) for act in (_sizes, _numbers, _operators))
    return next((one.fix for one in told if one.status == "problem"), None)


def _configuration(case: Case) -> _Told:
    question = case.question
    dynamic = {True: "true", False: "false", None: "null"}[question.dynamic]
    evidence = [
        f"mode={question.mode}, shapes.dynamic={dynamic}, compile.fullgraph={str(question.fullgraph).lower()}, "
        f"tiling sink {'on' if question.sink else 'off'}, product {question.product or 'not named'}"
    ]
    if question.mode != "max-autotune":
        evidence.append(f"mode={question.mode} builds no GE graph: the verdicts say what mode=max-autotune would give")
    product = case.table.products[question.product] if question.product is not None else None
    if question.sink and product is not None and product.sinks is False:
        evidence.append(f"{question.product} ({product.title}) computes no tiling on the device: {product.source}")
    evidence.append(_path_words(case))
    if question.breaks:
        broken = [f"the graph breaks, so that each part is a graph of its own: {reason}" for reason in question.breaks]
        fix = "compile.fullgraph=true  # the error, or S3, then names the line"
        return _Told(status="problem", evidence=[*evidence, *broken], fix=fix)
    return _Told(status="ok", evidence=evidence)


def _path_words(case: Case) -> str:
    if case.path is not None:
        return f"path {case.path}"
    if any(geared(one.graph, case.question) for one in case.graphs):
        return "no path of the document: with gears GE builds a graph for each of them"
    return f"no path of the document: see {'S6' if case.failed else 'S4'}"


def _sizes(case: Case) -> _Told:
    found = [(one, size) for one in case.graphs for size in one.graph.inputs if size.sizes]
    bad = [(one, size) for one, size in found if not set(size.sizes.values()) <= geared(one.graph, case.question)]
    if not found:
        return _Told(status="ok", evidence=["every size of every tensor input is a constant"])
    if not bad:
        gears = ", ".join(f"{key} has the gears {list(sizes)}" for key, sizes in case.question.gears.items())
        return _Told(status="ok", evidence=[gears])
    evidence = [line for one in case.graphs for line in unknown_sizes(one.graph)]
    arguments = tuple(dict.fromkeys(size.argument for _, size in bad if size.argument is not None))
    return _Told(status="problem", evidence=evidence, fix=_mark(arguments, case.question))


def _mark(arguments: Sequence[str], question: Question) -> str:
    names = [argument.partition("[")[0].partition(".")[0] for argument in arguments]
    if names and set(names) <= set(question.marked):
        return _mark_again(names)
    marks = list(dict.fromkeys([*question.mark_static, *names]))
    calls = "; ".join(f"torch._dynamo.mark_static({argument})" for argument in arguments)
    return f"shapes.mark_static=[{','.join(marks)}]  # in Python: {calls}"


def _mark_again(names: Sequence[str]) -> str:
    calls = "; ".join(f"torch._dynamo.mark_static({name})" for name in dict.fromkeys(names))
    return f"{calls}  # in Python, before every call and not before the first only"


def _numbers(case: Case) -> _Told:
    evidence: list[str] = []
    fixes: list[str] = []
    for one in case.graphs:
        for op, symbols in shapes_made_of_values(one.graph, case.question):
            origins = [one.graph.symbols.get(s) or s for s in symbols]
            evidence.append(f"{op.name} ({op.overload}): {', '.join(origins)} makes a size of its result{_at(op)}")
            fixes.append(_fixed_size(op, origins))
    if evidence:
        return _Told(status="problem", evidence=evidence, fix="; ".join(dict.fromkeys(fixes)))
    told = [line for one in case.graphs for line in numbers(one.graph)]
    if not told:
        return _Told(status="ok", evidence=["no number of the caller is a symbol"])
    return _Told(status="ok", evidence=[*told, "none of them reaches a shape"])


def _fixed_size(op: Op, origins: Sequence[str]) -> str:
    if op.schema == "aten::nonzero":
        return "torch.nonzero_static(x, size=N)  # or torch.where(condition, a, b), whose size is that of its inputs"
    if op.unbacked:
        return f"replace {op.overload} by an operator whose result has a fixed size (torch.where, a mask, a top-k)"
    return (
        f"give {op.overload} a size that is no argument of the call: a constant of the module instead of {origins[0]}"
    )


def _operators(case: Case) -> _Told:
    found = [use for one in case.graphs for use in one.uses]
    if not found and case.failed:
        return _Told(status="skipped", evidence=["there is no GE graph, and nothing in it to tile: see S6"])
    if not found:
        return _Told(status="ok", evidence=["no operator of the table, and none that is given numbers which change"])
    evidence = [f"{use.op.name} ({use.op.overload}): {sentence(use, case.question)}{_at(use.op)}" for use in found]
    bad = [use for use in found if use.static is not True]
    if not bad:
        return _Told(status="ok", evidence=evidence)
    status: StepStatus = "problem" if any(use.static is False for use in bad) else "unknown"
    first = next((use for use in bad if use.static is False), bad[0])
    ordered = [evidence[found.index(use)] for use in (first, *(u for u in found if u is not first))]
    return _Told(status=status, evidence=ordered, fix=_sink_fix(first, case))


def _sink_fix(use: Use, case: Case) -> str:
    products = [name for name, product in case.table.products.items() if product.sinks]
    if use.sink == "switched_off":
        python = "config.experimental_config.tiling_schedule_optimize = True"
        mode = "" if case.question.mode == "max-autotune" else "mode=max-autotune "
        return f"{mode}tiling=sink  # in Python: {python}"
    if use.sink == "packed":
        slots = " and ".join(use.changing)
        return f"give {slots} as the caller's own numbers, each an int of the argument: TorchAir makes one Data of them"
    if use.sink == "operator_cannot":
        sinking = " or ".join(name.partition("::")[2] for name, row in case.table.operators.items() if row.sinks)
        return f"use {sinking} where the model allows; or shapes=static when {' and '.join(use.changing)} do not change"
    if use.sink == "product_cannot":
        return f"target.soc={products[0]}  # products that sink tiling: {', '.join(products)}"
    if use.sink == "product_unknown":
        return f"target.soc={products[0]}  # name the product; those that sink tiling: {', '.join(products)}"
    name = use.op.schema.replace("::", ".")
    row = f"{{ge: TYPE, slots: [{','.join(use.changing)}], sinks: true, source: WHERE}}"
    return f"+sinking.operators={{{name}: {row}}}  # sinks: what its tiling registration says"


def _build(case: Case) -> _Told:
    evidence = [
        f"{one.graph.id}: {one.ge_build.value}: {line}" for one in case.graphs for line in one.ge_build.evidence
    ]
    values = {one.ge_build.value for one in case.graphs}
    bad = values & {"dynamic", "mixed", "failed"}
    status: StepStatus = "problem" if bad else "unknown" if "unknown" in values else "ok"
    return _Told(status=status, evidence=evidence, fix=_remedy(case) if status == "problem" else None)


def _handed_over(case: Case) -> _Told:
    """S6: what the genuine package handed over, where that was seen, or why there is nothing."""
    if case.failed:
        refused = [one.graph.failure for one in case.failed if one.graph.failure is not None]
        evidence = [f"{one.graph}: there is none: {one.without_fix}" for one in refused]
        return _Told(status="problem", evidence=evidence, fix=case.failure_fix)
    seen = [one for one in case.graphs if one.ge is not None]
    if not seen:
        return _Told(
            status="skipped",
            evidence=["no GE graph was seen: target=npu_offline mode=max-autotune shows it, or --dump FILE"],
        )
    evidence: list[str] = []
    for one in seen:
        assert one.ge is not None
        sink = one.ge.options.get("ge.tiling_schedule_optimize")
        evidence.append(f"{one.graph.id}: option ge.tiling_schedule_optimize = {sink}")
        evidence += [f"{one.graph.id}: {line}" for line in slots(one, case.table)]
        evidence.append(f"{one.graph.id}: {', '.join(one.ge_graph.evidence)}")
    bad = [one for one in seen if one.ge_graph.value == "dynamic" and not geared(one.graph, case.question)]
    return _Told(status="problem" if bad else "ok", evidence=evidence, fix=_remedy(case) if bad else None)


def slots(one: Judged, table: OperatorTable) -> Iterator[str]:
    """`FusedInferAttentionScore: actual_seq_lengths_kv is fed by Data`, for every operator of the table."""
    for ge_type, fed in one.ge.inputs.values() if one.ge is not None else ():
        row = table.of_ge(ge_type)
        for slot in row.ge_slots().values() if row is not None else ():
            if slot in fed:
                yield f"{ge_type}: {slot} is fed by {fed[slot]}"


def _again(case: Case) -> _Told:
    changes = case.question.changes
    if not changes:
        return _Told(status="ok", evidence=["the calls differ in nothing that a compilation depends on"])
    told = [(change, *_recompiles(change, case.question)) for change in changes]
    evidence = [f"{_changed(change)}: {words}" for change, words, _ in told]
    fixes = [fix for _, _, fix in told if fix is not None]
    return _Told(status="problem" if fixes else "ok", evidence=evidence, fix=fixes[0] if fixes else None)


def _changed(change: Change) -> str:
    return f"{change.argument} changes its {change.what} from {change.before} to {change.after} in call {change.call}"


def _recompiles(change: Change, question: Question) -> tuple[str, str | None]:
    """(the words, the line that mends it: None where nothing is compiled again)."""
    if change.what == "length":
        return "a list of another length is another compilation, whatever `dynamic` says", "pad it to one length"
    if change.what == "shape" and change.marked:
        fix = f"leave it unmarked and give it gears: shapes.gears={{{change.argument}.DIMENSION: [sizes]}}"
        return "it is marked static, so that each shape is a compilation", fix
    if question.dynamic is False:
        words = f"shapes.dynamic=false makes it a constant: one compilation for each {change.what}"
        return words, _general(question)
    if question.dynamic is None:
        words = f"shapes.dynamic=null finds out: one more compilation, then the {change.what} is a symbol"
        return words, _general(question)
    if change.what == "shape" and change.argument in question.marked:
        words = "the first call's tensor was marked and this one is not: the next graph has symbols (path 6)"
        return words, _mark_again([change.argument])
    return f"the {change.what} is a symbol: nothing is compiled again", None


def _general(question: Question) -> str:
    marks = ",".join(question.arguments)
    return f"shapes=dynamic shapes.mark_static=[{marks}]  # tensors stay constants, numbers become symbols"


def _bundle(told: Sequence[Step]) -> _Told:
    unsure = [step.id for step in told if step.status == "unknown"]
    if not unsure:
        return _Told(status="skipped", evidence=["the steps above explain it"])
    return _Told(
        status="unknown",
        evidence=[f"{', '.join(unsure)} could not tell; send report.json, graphs/, the GE dump and the log"],
        fix="compiler.debug.graph_dump.type=pbtxt  # on the device; then npucompose explain --dump FILE",
    )


def _at(op: Op) -> str:
    return f" ({op.source})" if op.source else ""


_STEPS: dict[StepId, Callable[[Case], _Told]] = {
    "S0": _log,
    "S1": _configuration,
    "S2": _sizes,
    "S3": _numbers,
    "S4": _operators,
    "S5": _build,
    "S6": _handed_over,
    "S7": _again,
}
