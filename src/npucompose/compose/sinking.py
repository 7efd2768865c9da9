"""The question of sinking, asked of a session: what of the experiment and of its calls decides the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from attrs import evolve

from npucompose.compose.calls import is_static, unmarked, varied
from npucompose.compose.check import TILING_SINK, Checked
from npucompose.compose.session import Session
from npucompose.errors import NpuComposeError, users_line
from npucompose.models.inputs import tensors_of
from npucompose.npu.static_graph import Change, FxFacts, SinkingQuestion, UnknownForm, diagnose, not_compiled, not_known
from npucompose.ops.forms import FormCheck
from npucompose.ops.npu import NoShape, breaking_where_unknown
from npucompose.results.sinking import Failure, SinkingFacts, Undecided
from npucompose.schema.experiment import Call
from npucompose.targets.vendor_compiled import ge_facts

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
