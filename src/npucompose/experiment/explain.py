"""`npucompose explain`: compile one experiment in a worker, as far as the verdicts need it, and say why it sinks; with
--adapt, what adaptation rules would do to its graphs, as a diff; with --options, who set what.

No stage, no record, no folder: what is asked for is an answer. On targets whose compiler is ours a graph is read and
not lowered; TorchAir's is asked for its GE graph.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from airflow_free.keys import plain
from airflow_free.pool import run_in_worker
from airflow_free.stage import Notify
from npucompose.compose.check import Checked, check
from npucompose.compose.tree import Composed, compose
from npucompose.console import console, prints_apart
from npucompose.errors import CompileError, ConfigError, NpuComposeError, RejectedError, listed
from npucompose.experiment.job import LOG, set_up_worker, settings_of, worker_task
from npucompose.experiment.stages import STAGES
from npucompose.experiment.tracking import TRACKERS
from npucompose.models import MODELS
from npucompose.npu.capture import explanation as capture_page
from npucompose.npu.capture.explanation import CaptureExplanation
from npucompose.npu.static_graph import explanation as verdicts_page
from npucompose.npu.static_graph.explanation import Explanation
from npucompose.passes import PASSES
from npucompose.registry import OURS, Registry
from npucompose.report import explain as printing
from npucompose.results.artefacts import CapturedGraph, FileFacts, read_artefact
from npucompose.results.graphs import DryRun
from npucompose.schema.sections import SECTIONS
from npucompose.table.modes import MODES, modes_that
from npucompose.table.structure import facts_of, of_facts
from npucompose.targets import TARGETS

if TYPE_CHECKING:
    from npucompose.compose.session import Session
    from npucompose.passes.adapt import AdaptationLog


ENTRY, DRY_RUN_ENTRY = "npucompose.experiment.explain:work", "npucompose.experiment.explain:dry_run_work"
CAPTURE_ENTRY = "npucompose.experiment.explain:capture_work"


def act(arguments: argparse.Namespace) -> int:
    """0 when there is a graph to explain, whatever is said of it: `expect:` is for what must come out.

    A model of which no graph was made ends as the run itself would, and so does a dry run of rules that reject a node:
    3.
    """
    files = [*arguments.log, *arguments.dump]
    _check_together(arguments, files)
    if arguments.options:
        settings = settings_of(check(_composed(arguments)))
        if arguments.json:
            print(printing.settings_json(settings, under=arguments.under))
        else:
            printing.render_settings(settings, console(), under=arguments.under)
        return 0
    if arguments.capture:
        return _act_capture(arguments)
    found = dry_run(_composed(arguments)) if arguments.adapt else _explanation(arguments, files)
    if arguments.json:
        print(printing.as_json(found))
    elif isinstance(found, DryRun):
        printing.render_dry_run(found, console())
    else:
        verdicts_page.render(found, console())
    if isinstance(found, DryRun):
        return RejectedError.exit_status if found.rejections else 0
    failure = found.sinking.failure
    return CompileError.exit_status if failure is not None and not failure.foreseen else 0


def _act_capture(arguments: argparse.Namespace) -> int:
    """0 whatever the verdict is."""
    found = capture(_composed(arguments))
    if arguments.json:
        print(printing.as_json(found))
    else:
        capture_page.render(found, console())
    return 0


def _check_together(arguments: argparse.Namespace, files: Sequence[str]) -> None:
    problems = {
        "explain takes one of --options, --adapt and --capture.": sum(_chosen(arguments)) > 1,
        "--options is about an experiment; --log and --dump are about graphs.": arguments.options and files,
        "--under is for --options.": arguments.under and not arguments.options,
        "explain --adapt reads the model's graphs: --log and --dump have no meaning there.": arguments.adapt and files,
        "explain --capture runs the model: --log and --dump have no meaning there.": arguments.capture and files,
        "--compilation-config is for explain --vllm.": arguments.compilation_config is not None,
        "--max-num-batched-tokens is for explain --vllm.": arguments.max_num_batched_tokens is not None,
    }
    for problem, found in problems.items():
        if found:
            raise ConfigError(problem)


def _chosen(arguments: argparse.Namespace) -> tuple[bool, ...]:
    """Which answer is wanted in place of the verdicts on sinking."""
    return arguments.options, arguments.adapt, arguments.capture


def _composed(arguments: argparse.Namespace) -> Composed:
    return compose(
        arguments.overrides,
        config_dirs=arguments.config_dir,
        config_name=arguments.config_name,
        environment=arguments.env,
    )


def _explanation(arguments: argparse.Namespace, files: Sequence[str]) -> Explanation:
    from npucompose.npu.static_graph.verdicts import with_artefacts

    read = _read(files)
    captured = tuple(_tied(read))
    errors = tuple(error for one in read for error in one.errors)
    told = [one.sinking for one in read]
    if files and not arguments.overrides:
        names = {"file": ", ".join(Path(path).name for path in files)}
        sinking = with_artefacts(None, told)
        return Explanation(
            asked=names, sinking=sinking, compile_s=0.0, diagnosis_s=0.0, errors=errors, captured=captured
        )
    asked = explain(_composed(arguments))
    if not told:
        return asked
    return evolve(asked, sinking=with_artefacts(asked.sinking, told), errors=errors, captured=captured)


def _read(files: Sequence[str]) -> list[FileFacts]:
    """What the files say; ConfigError for one that is about something else than a graph."""
    read = [read_artefact(path) for path in files]
    for path, one in zip(files, read, strict=True):
        if one.times is not None:
            raise ConfigError(
                f"{path} is a profile of kernels: `npucompose profile import {path}` makes a table of it."
            )
        if one.tensors is not None:
            raise ConfigError(f"{path} is a dump of tensors: `npucompose compare-dumps EAGER GRAPH` compares two.")
    if any(one.listings for one in read) and not any(one.captured for one in read):
        path = next(path for path, one in zip(files, read, strict=True) if one.listings)
        raise ConfigError(f"{path} lists nodes of an FX graph: give the captured graph (debug_dump's JSON) beside it.")
    return read


def _tied(read: Sequence[FileFacts]) -> Iterator[CapturedGraph]:
    """The captured graphs, their kernels with nodes and lines where listings allow that."""
    from npucompose.npu.capture.tied import tied

    listings = tuple(listing for one in read for listing in one.listings)
    for one in read:
        yield from (tied(graph, listings) if listings else graph for graph in one.captured)


def explain(composed: Composed) -> Explanation:
    """The explanation of a composed experiment; ConfigError when it is not legal, CompileError when a worker dies."""
    return of_facts(Explanation, _in_worker(composed, ENTRY), where="explanation")


def dry_run(composed: Composed) -> DryRun:
    """What the rules of a composed experiment would do; ConfigError where it is not legal or has no rules."""
    return of_facts(DryRun, _in_worker(composed, DRY_RUN_ENTRY), where="dry run")


def capture(composed: Composed) -> CaptureExplanation:
    """Whether the model of a composed experiment would be captured; ConfigError where its mode captures nothing."""
    return of_facts(CaptureExplanation, _in_worker(composed, CAPTURE_ENTRY), where="explanation")


def _in_worker(composed: Composed, entry: str) -> Mapping[str, Any]:
    """What `entry` answers about an experiment that is legal and compiles something."""
    checked = check(composed)
    mode = checked.experiment.mode.name
    if not MODES.get(mode).compiles:
        raise ConfigError(f"mode={mode} compiles nothing: there is no graph to explain. Choose mode=max-autotune.")
    if entry == CAPTURE_ENTRY and not MODES.get(mode).captures:
        raise ConfigError(f"mode={mode} captures nothing. Modes that capture: {listed(modes_that('captures'))}.")
    if entry == DRY_RUN_ENTRY and not checked.experiment.adapt.rules:
        raise ConfigError("explain --adapt: adapt=none has no rules; choose a rule set: adapt=ascend.")
    with tempfile.TemporaryDirectory(prefix="npucompose-explain-") as folder:
        payload = {
            "tree": dict(composed.tree), "provenance": dict(composed.provenance), "files": str(Path(folder) / "files"),
        }  # fmt: skip
        outcome = run_in_worker(worker_task(checked, entry, payload, Path(folder) / LOG))
    if outcome.status == "config_error":
        raise ConfigError(*(outcome.problems or (outcome.error or "",)))
    if outcome.result is None:
        raise CompileError(outcome.error or "the worker sent no result.")
    return outcome.result


def work(payload: Mapping[str, Any], notify: Notify) -> dict[str, Any]:
    """The worker's side."""
    return facts_of(explained(_session(payload)))


def capture_work(payload: Mapping[str, Any], notify: Notify) -> dict[str, Any]:
    """The worker's side of --capture."""
    return facts_of(captured(_session(payload)))


def captured(session: Session) -> CaptureExplanation:
    """The same of a session that has built and compiled nothing yet, made in this process."""
    from npucompose.npu.capture.session import capture_of

    with prints_apart() as printed:
        facts, trace_s, judge_s = capture_of(session)
    asked = {name: choice for name, choice in _asked(session.checked).items() if name != "tiling"}
    return CaptureExplanation(asked=asked, capture=facts, printed=tuple(printed), trace_s=trace_s, judge_s=judge_s)


def _session(payload: Mapping[str, Any]) -> Session:
    """The experiment that was sent, set up in a process of its own."""
    from npucompose.compose.session import Session
    from npucompose.targets.base import Folders

    set_up_worker(payload)
    composed = Composed(tree=payload["tree"], provenance=payload["provenance"])
    # What the vendor's compiler writes where it is asked to is no answer, and goes with the folder.
    session = Session(check(composed), Folders(files=Path(payload["files"])))
    session.set_up()
    return session


def explained(session: Session) -> Explanation:
    """The explanation of a session that has compiled nothing yet, made in this process."""
    from npucompose.npu.static_graph import session as static_graph

    return static_graph.explained(session, _asked(session.checked), installed_parts(session.checked))


def _asked(checked: Checked) -> dict[str, str]:
    """{group: choice} for the head of an answer."""
    experiment = checked.experiment
    model = checked.model.title if checked.model is not None else experiment.model.name
    chosen = {"model": model, "target": checked.target.name, "mode": experiment.mode.name}
    return {**chosen, "shapes": experiment.shapes.name, "tiling": str(plain(experiment.tiling)["schedule"])}


def installed_parts(checked: Checked) -> Iterator[str]:
    """A sentence for each part of an experiment that a package other than npucompose brings."""
    experiment = checked.experiment
    named: list[tuple[str, Registry[Any], str]] = [
        ("mode", MODES, experiment.mode.name),
        ("target", TARGETS, experiment.target.name),
        ("model", MODELS, experiment.model.name),
        *((f"passes.{label}", PASSES, one.name) for label, one in experiment.passes.items()),
        *(("pipeline.stages", STAGES, stage) for stage in experiment.pipeline.stages),
        *((f"extensions.{name}", SECTIONS, name) for name in experiment.extensions.named),
        ("tracker", TRACKERS, experiment.tracker.name),
    ]
    for option, registry, name in named:
        if (package := registry.package(name)) != OURS:
            yield f"{option}: {name} comes from {package}."


def dry_run_work(payload: Mapping[str, Any], notify: Notify) -> dict[str, Any]:
    """The worker's side of a dry run: the passes before the rules in their stage, and the rules, which change
    nothing.
    """
    from npucompose.passes.adapt import AdaptationLog, DryAdapt

    session = _session(payload)
    written = AdaptationLog()
    stage = next(one.stage for _, one in session.checked.passes if one.name == "adapt")
    passes: list[Any] = []
    for label, one in session.checked.passes:
        if one.stage != stage:
            continue
        if one.name == "adapt":
            passes.append((label, DryAdapt(rules=session.experiment.adapt, stage=one.stage, written=written)))
            break
        passes.append((label, one))
    return facts_of(_dry_run(type(session)(evolve(session.checked, passes=tuple(passes))), written))


def _dry_run(session: Any, written: AdaptationLog) -> DryRun:
    """Compile with the dry run in the pass's place. A compiler that is not ours may refuse what comes after it."""
    session.materialised.backend.reads_only = session.materialised.genuine is None
    refused: str | None = None
    try:
        session.compilations  # noqa: B018  the first call compiles
    except NpuComposeError as error:
        if isinstance(error, ConfigError) or not written.graphs:
            raise
        refused = str(error)
    return DryRun(
        asked={**_asked(session.checked), "adapt": session.experiment.adapt.name},
        graphs=len(written.graphs),
        adaptations=tuple(written.adaptations),
        untouched=tuple(written.untouched),
        compiler=refused,
    )
