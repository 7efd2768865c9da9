"""The question of sinking, asked of a session: it compiles as far as the verdicts need, and what of the experiment and
of its calls decides the answer is put beside the graphs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any

from attrs import evolve

from npucompose.compose.calls import is_static, unmarked, varied
from npucompose.compose.check import TILING_SINK, Checked
from npucompose.compose.session import Session
from npucompose.console import prints_apart
from npucompose.errors import CompileError, ConfigError, NpuComposeError, listed, users_line
from npucompose.graphs.inherited import inherited_errors
from npucompose.models.inputs import tensors_of
from npucompose.npu.static_graph.diagnosis import diagnose, not_compiled, not_known
from npucompose.npu.static_graph.explanation import Explanation
from npucompose.npu.static_graph.facts import Change, FxFacts, SinkingQuestion, UnknownForm
from npucompose.npu.static_graph.records import Failure, SinkingFacts, Undecided
from npucompose.ops.forms import FormCheck
from npucompose.ops.npu import NoShape, breaking_where_unknown, forms_for_values
from npucompose.results.graphs import named
from npucompose.schema.experiment import Call
from npucompose.targets.vendor_compiled import ge_facts
from npucompose.vendor.compiler import implied_by


def explained(session: Session, asked: Mapping[str, str], also: Iterable[str] = ()) -> Explanation:
    """The explanation of a session that has compiled nothing yet, made in this process.

    `asked` is the head of the answer, `also` what else is to be noted.
    """
    session.materialised.backend.reads_only = session.materialised.genuine is None
    session.materialised.backend.forms = forms = FormCheck()
    with forms_for_values() as formed, prints_apart() as printed:
        session.built  # noqa: B018  the model is no part of the compilation
        begun = perf_counter()
        try:
            error = _compiled(session)
        except Exception:
            if not forms.contradictions:
                raise
            error = None  # the next operator has come upon what the kernel gave
        compiled = perf_counter()
        if isinstance(error, NoShape):
            facts = sinking_without_shape(session, error)
        else:
            facts = sinking_of(session) if error is None else sinking_after(session, error)
        if facts is not None and forms.contradictions:
            facts = sinking_contradicted(session, facts, forms)
    if facts is None:
        raise CompileError("torch.compile made no graph: the model computes nothing that torch could compile.")
    return Explanation(
        asked=asked,
        sinking=facts,
        compile_s=compiled - begun,
        diagnosis_s=perf_counter() - compiled,
        implied=implied_by(session.experiment.compiler, session.experiment.mode.name),
        recording=tuple(_recording(session)),
        printed=tuple(printed),
        notes=(
            *(found.words(graph) for graph, found in session.overwrites.items()),
            *_inherited(session),
            *_without_values(formed),
            *also,
        ),
    )


def _inherited(session: Session) -> Iterator[str]:
    """What torch itself computes otherwise than eager in this mode, as far as the graphs show it."""
    mode = session.experiment.mode.name
    fuses, rows = session.checked.target.support(mode).fuses, inherited_errors().rows
    for one in session.materialised.backend.compilations:
        here = (found for found in one.inherited if rows[found.row].holds(fuses=fuses))
        yield from (found.words(one.id, mode, fuses=fuses) for found in here)


def _without_values(formed: Collection[str]) -> Iterator[str]:
    """What the verdicts rest on where operators had no kernel here."""
    if formed:
        names = listed(f"npu.{name}" for name in sorted(formed))
        yield f"no kernel here computes {names}: results had their form, by meta functions, and zeros for values."


def _compiled(session: Session) -> NpuComposeError | None:
    """Compile the first call, and declared calls that leave an input unmarked: whether their graph is symbolic, only
    its compilation shows. What the backend refused is an answer; other errors are raised.
    """
    from torch._dynamo.exc import BackendCompilerFailed

    try:
        session.compilations  # noqa: B018  the first call compiles
        for at, call in enumerate(session.calls):
            if unmarked(call):
                session.call(session.compiled, session.inputs(at, call))
    except ConfigError:
        raise
    except NpuComposeError as error:
        refused = any(one.failure is not None for one in session.materialised.backend.compilations)
        if isinstance(error.__cause__, BackendCompilerFailed) and not refused:
            raise
        return error
    return None


def _recording(session: Session) -> Iterator[str]:
    """How each graph would be cut, and what would be refused."""
    backend = session.materialised.backend
    for one in backend.compilations:
        if one.planned is None or not one.planned.outside:
            continue
        if backend.partial == "refuse":
            yield f"{one.id}: compile.partial=refuse refuses this graph: {named(one.planned.outside)}"
        else:
            yield f"{one.id}: {one.planned.words}"
    yield from (found.why for found in backend.effective())


# The question of sinking, asked of a session: what of the experiment and of its calls decides the answer.

LOWER_LIMIT = "experimental_config.static_model_ops_lower_limit"


def sinking_of(session: Session, question: SinkingQuestion | None = None) -> SinkingFacts | None:
    """Verdicts and steps on every graph that the session has compiled so far; None when there is none.

    A graph that the vendor's compiler did not take is among them, with the failure. `question`: another one than the
    session's own.
    """
    backend = session.materialised.backend
    graphs = [_with_failure(one.facts, one.failure) for one in backend.compilations]
    if not graphs:
        return None
    return diagnose(
        question or question_of(session),
        graphs,
        ge_facts(backend),
        session.checked.operators,
    )


def _with_failure(facts: FxFacts, failure: Failure | None) -> FxFacts:
    return evolve(facts, **{"undecided" if isinstance(failure, Undecided) else "failure": failure})


def sinking_after(session: Session, error: NpuComposeError) -> SinkingFacts:
    """The answer where the compilation ended in `error`: the graphs so far, or that torch made none."""
    facts = sinking_of(session)
    if facts is None:
        return not_compiled(question_of(session), str(error))
    undecided = any(isinstance(one.failure, Undecided) for one in session.materialised.backend.compilations)
    if undecided or facts.failure is not None:
        return facts
    return evolve(facts, failure=Failure(graph="", what=str(error).rstrip(".")))


def sinking_without_shape(session: Session, error: NoShape) -> SinkingFacts:
    """The answer where nothing knows the form of an operator's results: what is known of the graphs before it.

    Where there are none yet the model is traced once more, with graph breaks allowed.
    """
    question, traced = question_of(session), session
    if not session.materialised.backend.compilations:
        question = evolve(question, breaks=())
        allowed = evolve(session.experiment, compile=evolve(session.experiment.compile, fullgraph=False))
        traced = session.with_experiment(evolve(session.checked, experiment=allowed))
        traced.materialised.backend.reads_only = traced.materialised.genuine is None
        with suppress(NpuComposeError), breaking_where_unknown():
            traced.compilations  # noqa: B018  the first call compiles what it comes to
    unknown = UnknownForm(
        operator=f"npu.{error.operator}",
        source=error.source or users_line(error),
        why=error.why,
        fix=f'torch.library.register_fake("npu::{error.operator}", …)  # a function that gives its results their form',
    )
    return not_known(question, sinking_of(traced, question), unknown)


def sinking_contradicted(session: Session, facts: SinkingFacts, forms: FormCheck) -> SinkingFacts:
    """The answer where a kernel gave another form than the meta function that torch.compile went by."""
    graphs = [one.facts for one in session.materialised.backend.compilations]
    for overload, words in forms.contradictions.items():
        source = next((op.source for graph in graphs for op in graph.ops if op.overload == overload), None)
        fix = f"a meta function of {overload} that says what its kernel gives"
        unknown = UnknownForm(operator=overload.removesuffix(".default"), source=source, why=words, fix=fix)
        facts = not_known(question_of(session), facts, unknown)
    return facts


def question_of(session: Session) -> SinkingQuestion:
    """What was asked, with what changes between the calls of the model."""
    checked, experiment = session.checked, session.experiment
    inputs = session.built.inputs(0)
    return SinkingQuestion(
        mode=experiment.mode.name,
        target=checked.target.name,
        dynamic=experiment.shapes.dynamic,
        fullgraph=experiment.compile.fullgraph,
        mark_static=experiment.shapes.mark_static,
        marked=tuple(name for name in inputs if is_static(experiment.shapes, name)),
        gears=experiment.shapes.gears,
        sink=bool(experiment.compiler[TILING_SINK]),
        ops_lower_limit=experiment.compiler[LOWER_LIMIT],
        product=checked.operators.product(checked.target.soc),
        arguments=tuple(name for name, value in inputs.items() if any(True for _ in tensors_of(value))),
        changes=tuple(_changes(session, checked, inputs)),
        breaks=tuple(_breaks()),
        torch_npu=checked.torch_npu.version,
        through_torchair=session.materialised.genuine is not None,
    )


def _breaks() -> Iterator[str]:
    """Dynamo's reasons since the session compiled first: what it is, and its explanation."""
    from torch._dynamo.utils import counters

    for reason in counters["graph_break"]:
        lines = [line.strip() for line in str(reason).splitlines()]
        explained = next((line for line in lines if line.startswith("Explanation:")), "")
        yield f"{lines[0]}. {explained.removeprefix('Explanation:').strip()}".strip()


def _changes(session: Session, checked: Checked, first: Mapping[str, Any]) -> Iterator[Change]:
    """The first difference of each argument, over the model's own steps and then the calls of `model.sequence`."""
    told: set[str] = set()
    for at, call in _calls(session):
        for name, value in varied(call, session.built.inputs(at)).items():
            differs = None if name in told else _difference(first.get(name), value)
            if differs is None:
                continue
            told.add(name)
            what, before, after = differs
            marked = is_static(checked.experiment.shapes, name) and name not in unmarked(call)
            yield Change(argument=name, what=what, before=before, after=after, call=at, marked=marked)


def _calls(session: Session) -> Iterator[tuple[int, Call]]:
    """Every call after the first, with its number: the declared ones, or else those of the comparison."""
    declared = session.calls
    if len(declared) > 1:
        yield from list(enumerate(declared))[1:]
    else:
        yield from ((step, {}) for step in range(1, session.built.steps))


def _difference(before: Any, after: Any) -> tuple[Any, str, str] | None:
    """What of two values of an argument torch would compile anew for, and both in words."""
    import torch
    from torch.utils._pytree import tree_flatten

    leaves, tree = tree_flatten(before)
    others, other_tree = tree_flatten(after)
    if tree != other_tree:
        return "length", f"{len(leaves)} values", f"{len(others)} values"
    for one, other in zip(leaves, others, strict=True):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            if one.shape != other.shape:
                return "shape", str(list(one.shape)), str(list(other.shape))
        elif one != other:
            return "value", str(before), str(after)
    return None
