"""The passes of one stage as one callable: it orders, lints, times, counts and names the guilty pass.

TorchAir takes one callable for each of its two hooks (`post_grad_custom_pre_pass`, `post_grad_custom_post_pass`; its
document post_grad_custom_pass.md); `PassPipeline.as_torchair_hook()` is that callable.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from npucompose.activity import doing
from npucompose.errors import ConfigError, PassError, RejectedError, raise_for, users_line
from npucompose.machine import gc_paused
from npucompose.passes import PASSES
from npucompose.passes.base import Constants, Outcome, Pass, Request, Stage
from npucompose.results.graphs import PassRecord
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.experiment import Choice
from npucompose.table.options import LONGEST, is_name
from npucompose.table.structure import structure

if TYPE_CHECKING:
    from torch import fx

Labelled = tuple[str, Pass]
Records = tuple[PassRecord, ...]


def build(passes: Mapping[str, Choice], experiment: Mapping[str, Any]) -> tuple[Labelled, ...]:
    """The passes that a configuration names, in the order written; every mistake in one ConfigError.

    `build({"stream_plan": Choice(name="stream_plan", options={"stage": "pre"})}, {"streams": Streams()})`.
    `experiment` holds the Experiment's fields for options that the engine fills in.
    """
    built: list[Labelled] = []
    problems: list[str] = []
    for label, choice in passes.items():
        path = f"passes.{label}"
        if not is_name(label):
            problems.append(f"a pass's label must be a plain name of at most {LONGEST} letters: {label[:LONGEST]!r}")
            continue
        try:
            built.append((label, structure(PASSES.get(choice.name, path), choice.options, path, experiment)))
        except ConfigError as error:
            problems += error.problems
    problems += order_problems(built)
    raise_for(problems)
    return tuple(built)


def order_problems(passes: Sequence[Labelled]) -> list[str]:
    """What contradicts the passes' own `after` and `before`; all of stage pre run before those of stage post."""
    run = sorted(passes, key=lambda labelled: labelled[1].stage == "post")
    return [
        f"pass '{early_label}' (stage {early.stage}) runs before '{late_label}' (stage {late.stage}), "
        f"but it must stand after it @ passes"
        for (early_label, early), (late_label, late) in itertools.combinations(run, 2)
        if late.name in early.after or early.name in late.before
    ]


@frozen(kw_only=True)
class PassPipeline:
    """`PassPipeline(passes=(("cse", Cse()),), can=…)(graph_module)` rewrites in place and returns one record a pass."""

    passes: tuple[Labelled, ...]
    can: Capabilities
    check: bool = False
    """Run the graph before and after each pass on made-up inputs and hold the pass to its promise."""

    def __attrs_post_init__(self) -> None:
        if len({a_pass.stage for _, a_pass in self.passes}) > 1:
            listing = ", ".join(f"{label} ({a_pass.stage})" for label, a_pass in self.passes)
            raise ConfigError(f"A pipeline holds passes of one stage; these have two: {listing}.")
        problems = order_problems(self.passes)
        raise_for(problems)

    @classmethod
    def for_stage(
        cls, passes: Sequence[Labelled], stage: Stage, can: Capabilities, *, check: bool = False
    ) -> PassPipeline:
        """The pipeline of those passes that belong to `stage`."""
        return cls(passes=tuple(labelled for labelled in passes if labelled[1].stage == stage), can=can, check=check)

    def __call__(
        self,
        graph_module: fx.GraphModule,
        example_inputs: Sequence[Any] = (),
        config: Any = None,
        constants: Constants | None = None,
    ) -> Records:
        """Run every pass in order; code is generated once, at the end.

        Raises PassError naming the pass that raised or left an invalid graph; a ConfigError (a plan that cannot be
        followed, …) is the person's mistake and passes as it is. The graph is not to be used after either.
        """
        request = Request(
            graph_module=graph_module,
            can=self.can,
            example_inputs=example_inputs,
            config=config,
            constants=constants or {},
            check=self.check,
        )
        with gc_paused():
            records = tuple(self._run(label, a_pass, request) for label, a_pass in self.passes)
        graph_module.recompile()
        return records

    def _run(self, label: str, a_pass: Pass, request: Request) -> PassRecord:
        from torch._dynamo.exc import SkipFrame, TensorifyScalarRestartAnalysis

        from npucompose.graphs import is_planned
        from npucompose.passes.proof import copied

        graph = request.graph_module.graph
        nodes_before, before = len(graph.nodes), copied(graph) if self.check else None
        start = time.perf_counter()
        doing(f"pass {label} on {nodes_before} nodes")
        what = "failed"
        try:
            planned = a_pass.skips_planned and is_planned(graph)
            found = Outcome(matches=0) if planned else a_pass.run(request)
            graph = request.graph_module.graph
            seconds = time.perf_counter() - start
            what = "left an invalid graph"
            graph.lint()
        except (ConfigError, RejectedError, SkipFrame, TensorifyScalarRestartAnalysis):  # told to Dynamo
            raise
        except Exception as error:
            where = users_line(error) or a_pass.written_at()
            raise PassError(
                f"Pass '{a_pass.name}' @ passes.{label} (stage {a_pass.stage}) {what}"
                f"{f' at {where}' if where else ''}: {type(error).__name__}: {_first_line(error)}"
            ) from error
        outcome = found if isinstance(found, Outcome) else Outcome(matches=found, exact=a_pass.exact)
        return PassRecord(
            name=label,
            stage=a_pass.stage,
            matches=outcome.matches,
            nodes_before=nodes_before,
            nodes_after=len(graph.nodes),
            seconds=seconds,
            exact=outcome.exact,
            rtol=outcome.rtol,
            atol=outcome.atol,
            rules=outcome.rules,
            moves=outcome.moves,
            folds=outcome.folds,
            why=outcome.why,
            max_abs_err=None if before is None else _proven(label, a_pass, before, graph, outcome, request.constants),
        )

    def as_torchair_hook(
        self,
        report: Callable[[Records], None] | None = None,
        constants: Callable[[fx.GraphModule], Constants] = lambda _: {},
    ) -> Callable[[Any, Any, Any], None]:
        """f(gm, example_inputs, config) -> None, as TorchAir's hooks want it; `report` gets the records of each run.

        `constants` says what of a graph's inputs is a parameter or a buffer.
        """

        def hook(graph_module: fx.GraphModule, example_inputs: Any, config: Any) -> None:
            records = self(graph_module, example_inputs, config, constants(graph_module))
            if report is not None:
                report(records)

        return hook


def _proven(
    label: str, a_pass: Pass, before: fx.GraphModule, graph: fx.Graph, outcome: Outcome, constants: Constants
) -> float:
    """The largest difference that the pass made; PassError where that is more than it promises."""
    from npucompose.passes.proof import copied, prove

    folded = outcome.folds.parameters if outcome.folds is not None else ()
    proof = prove(before, copied(graph), outcome, {name: constants[name].value for name in folded})
    if proof.broken is not None:
        raise PassError(
            f"Pass '{a_pass.name}' @ passes.{label} (stage {a_pass.stage}) does not keep what it promises: "
            f"{proof.broken} (check=per_pass)."
        )
    return proof.max_abs_err


def _first_line(error: Exception) -> str:
    """torch puts the whole graph behind it."""
    return str(error).partition("\n")[0]
