"""`explain` without a compilation: what it takes, refuses, prints and ends with."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from airflow_free.forkserver import WorkerTask
from airflow_free.outcome import Limits, Outcome
from npucompose import private
from npucompose.cli.arguments import command_line
from npucompose.compose.check import check
from npucompose.compose.tree import compose
from npucompose.errors import CompileError, ConfigError
from npucompose.experiment import explain
from npucompose.experiment.job import CACHES
from npucompose.npu.static_graph import session
from npucompose.npu.static_graph.explanation import Explanation
from npucompose.npu.static_graph.records import SinkingFacts
from npucompose.registry import Registry
from npucompose.results.artefacts import FileFacts, FxListing, KernelTimes
from npucompose.results.graphs import DryRun


def explaining(*words: str) -> argparse.Namespace:
    return command_line("explain").parse_args(["explain", *words])


def test_explain_takes_an_experiment_or_files(capsys: pytest.CaptureFixture[str]) -> None:
    given = vars(explaining())
    assert callable(given.pop("act"))
    assert given == {
        "overrides": [], "config_dir": [], "config_name": "config", "env": {}, "log": [], "dump": [],
        "options": False, "under": "", "adapt": False, "capture": False, "json": False,
        "vllm": None, "compilation_config": None, "max_num_batched_tokens": None,
    }  # fmt: skip
    assert vars(explaining("a=1", "--log", "x", "--log", "y", "--dump", "z", "-cd", "d"))["log"] == ["x", "y"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--adapt", "--options"], "one of --options, --adapt and --capture"),
        (["--under", "mode"], "--under is for --options"),
        (["--options", "--log", "x"], "--options is about an experiment"),
        (["--options", "--dump", "x"], "--options is about an experiment"),
        (["--adapt", "--log", "x"], "--log and --dump have no meaning there"),
        (["--adapt", "--dump", "x"], "--log and --dump have no meaning there"),
    ],
)
def test_what_explain_cannot_do_together_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        explain.act(explaining(*words))


FACTS = SinkingFacts(fx_graph="static")


def explanation(arguments: argparse.Namespace) -> Explanation:
    return explain._explanation(arguments, [*arguments.log, *arguments.dump])


@pytest.fixture
def artefacts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    asked: list[Any] = []
    monkeypatch.setattr(
        explain,
        "read_artefact",
        lambda path: asked.append(path) or FileFacts(sinking=f"of {path}"),  # type: ignore[arg-type]
    )
    monkeypatch.setattr(
        "npucompose.npu.static_graph.verdicts.with_artefacts",
        lambda facts, told: asked.append((facts, told)) or attrs.evolve(FACTS, product="with"),
    )
    monkeypatch.setattr(explain, "explain", lambda composed: Explanation(asked={"m": "a"}, sinking=FACTS,
                                                                         compile_s=1.0, diagnosis_s=2.0))  # fmt: skip
    return asked


def test_files_alone_compile_nothing_and_beside_an_experiment_they_are_added(artefacts: list[Any]) -> None:
    alone = explanation(explaining("--log", "a/l.log", "--dump", "b/d.txt"))
    assert alone.asked == {"file": "l.log, d.txt"}
    assert (alone.compile_s, alone.diagnosis_s, alone.sinking.product) == (0.0, 0.0, "with")
    assert artefacts == ["a/l.log", "b/d.txt", (None, ["of a/l.log", "of b/d.txt"])]
    artefacts.clear()
    both = explanation(explaining("model=add", "--log", "a/l.log"))
    assert (both.asked, both.compile_s, both.sinking.product) == ({"m": "a"}, 1.0, "with")
    assert artefacts[1:] == [(FACTS, ["of a/l.log"])]
    artefacts.clear()
    assert explanation(explaining("model=add")).sinking == FACTS
    assert artefacts == []


def test_an_explanation_is_printed_for_a_person_or_as_json(
    artefacts: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain.act(explaining("model=add", "--json")) == 0
    answer = capsys.readouterr().out
    assert json.loads(answer)["sinking"]["fx_graph"] == "static"
    assert answer == f"{json.dumps(json.loads(answer), indent=2, ensure_ascii=False)}\n"
    assert explain.act(explaining("model=add")) == 0
    assert "static" in capsys.readouterr().out
    assert explain.act(explaining("model=add", "--options", "--under", "mode", "--json")) == 0
    options = capsys.readouterr().out
    assert options == f"{json.dumps(json.loads(options), indent=2, ensure_ascii=False)}\n"
    assert "mode.name" in options
    assert "model.name" not in options
    assert explain.act(explaining("model=add", "--options", "--under", "mode")) == 0
    table = capsys.readouterr().out
    assert "mode" in table
    assert "seed" not in table


@pytest.mark.parametrize("rejects", [False, True])
def test_a_dry_run_that_rejects_ends_with_three(
    rejects: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = SimpleNamespace(rejected="r")
    found = DryRun(asked={}, graphs=1, adaptations=(one,) if rejects else (), untouched=())  # type: ignore[arg-type]
    printed: list[str] = []
    monkeypatch.setattr(explain, "dry_run", lambda composed: found)
    monkeypatch.setattr("npucompose.report.explain.as_json", lambda found: printed.append("json") or "{}")
    monkeypatch.setattr("npucompose.report.explain.render_dry_run", lambda found, console: printed.append("words"))
    assert explain.act(explaining("model=add", "--adapt")) == (3 if rejects else 0)
    assert explain.act(explaining("model=add", "--adapt", "--json")) == (3 if rejects else 0)
    assert printed == ["words", "json"]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(asked=[], outcome=Outcome(status="done", result={"a": 1}))

    def run(task: WorkerTask) -> Outcome:
        assert task.log_path.parent.is_dir()
        found.asked.append(task)
        return found.outcome

    monkeypatch.setattr(explain, "run_in_worker", run)
    return found


def test_an_explanation_is_made_in_a_worker_with_the_experiment_s_limits(worker: Any) -> None:
    composed = compose(
        ["model=add", "pipeline.time_limit_s=7", "pipeline.log_limit_mb=2", "pipeline.memory_limit_mb=3000"]
    )
    assert explain._in_worker(composed, "m:f") == {"a": 1}
    (task,) = worker.asked
    files = str(task.log_path.parent / "files")
    assert (task.entry, task.payload) == (
        "m:f",
        {
            "tree": composed.tree,
            "provenance": composed.provenance,
            "files": files,
            CACHES: private.make_private(),
        },
    )
    assert (task.time_limit_s, task.limits) == (7, Limits.from_mib(2, 3000, "pipeline.memory_limit_mb"))
    assert task.log_path.name == "run.log"
    assert not task.log_path.parent.exists()


@pytest.mark.parametrize(
    ("outcome", "error", "told"),
    [
        (Outcome(status="config_error", problems=("a", "b")), ConfigError, "a\nb"),
        (Outcome(status="config_error", error="e"), ConfigError, "e"),
        (Outcome(status="crashed", error="it died"), CompileError, "it died"),
        (Outcome(status="crashed"), CompileError, "the worker sent no result."),
    ],
)
def test_a_worker_that_ends_badly_is_no_explanation(
    outcome: Outcome, error: type[Exception], told: str, worker: Any
) -> None:
    worker.outcome = outcome
    with pytest.raises(error) as caught:
        explain._in_worker(compose(["model=add"]), "m:f")
    assert str(caught.value) == told


def test_what_compiles_nothing_or_has_no_rules_is_refused_before_a_worker(worker: Any) -> None:
    with pytest.raises(ConfigError, match="mode=eager compiles nothing"):
        explain._in_worker(compose(["model=add", "mode=eager"]), "m:f")
    with pytest.raises(ConfigError, match="adapt=none has no rules"):
        explain.dry_run(compose(["model=add"]))
    assert worker.asked == []


def recorded(**parts: Any) -> Any:
    backend = SimpleNamespace(
        **{"partial": "cut", "compilations": [], "effective": lambda: [SimpleNamespace(why="why")], **parts}
    )
    return SimpleNamespace(materialised=SimpleNamespace(backend=backend))


def test_how_graphs_would_be_cut_is_told_where_something_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "named", lambda outside: f"named {outside}")

    def graph(name: str, outside: Any) -> Any:
        planned = None if outside is None else SimpleNamespace(outside=outside, words="in two")
        return SimpleNamespace(id=name, planned=planned)

    graphs = [graph("a", None), graph("b", ()), graph("c", "x")]
    assert list(session._recording(recorded(compilations=graphs))) == ["c: in two", "why"]
    assert list(session._recording(recorded(compilations=graphs, partial="refuse"))) == [
        "c: compile.partial=refuse refuses this graph: named x", "why",
    ]  # fmt: skip


def test_every_part_that_another_package_brings_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = check(
        compose(["model=add", "passes=clean", "pipeline=check", "+extensions={vllm: {sizes: [1]}}", "tracker=none"])
    )
    assert list(explain.installed_parts(checked)) == []
    monkeypatch.setattr(Registry, "package", lambda registry, name: f"{registry.kind.replace(' ', '-')}-{name}")
    assert list(explain.installed_parts(checked)) == [
        "mode: reduce-overhead comes from mode-reduce-overhead.",
        "target: cpu comes from target-cpu.",
        "model: add comes from model-add.",
        *(
            f"passes.{label}: {one.name} comes from pass-{one.name}."
            for label, one in checked.experiment.passes.items()
        ),
        *(f"pipeline.stages: {stage} comes from stage-{stage}." for stage in checked.experiment.pipeline.stages),
        "extensions.vllm: vllm comes from section-vllm.",
        "tracker: none comes from tracker-none.",
    ]
    assert len(checked.experiment.passes) > 2
    assert len(checked.experiment.pipeline.stages) > 1


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (FileFacts(times=KernelTimes(name="k", rows=())), "a is a profile of kernels: `npucompose profile import a`"),
        (FileFacts(tensors=object()), "a is a dump of tensors: `npucompose compare-dumps EAGER GRAPH`"),  # type: ignore
        (FileFacts(listings=(FxListing(name="l", nodes=()),)), "a lists nodes of an FX graph: give the captured graph"),
    ],
)
def test_a_file_about_something_else_than_a_graph_is_refused(
    facts: FileFacts, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "read_artefact", lambda path: facts if path == "a" else FileFacts())
    with pytest.raises(ConfigError) as refused:
        explain._read(["b", "a"])
    assert told in str(refused.value)


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_question_of_capture_ends_with_zero_whatever_the_answer_is(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(explain, "capture", lambda composed: "found")
    monkeypatch.setattr("npucompose.report.explain.as_json", lambda found: printed.append(("json", found)) or "{}")
    monkeypatch.setattr(
        "npucompose.npu.capture.explanation.render", lambda found, console: printed.append(("page", found))
    )
    assert explain.act(explaining("model=add", "--capture", *words)) == 0
    assert printed == [("json" if words else "page", "found")]


@pytest.mark.parametrize(("entry", "does"), [("work", "explained"), ("capture_work", "captured")])
def test_the_worker_s_side_is_that_of_a_session_made_of_what_was_sent(
    entry: str, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "_session", lambda payload: ("session", payload))
    monkeypatch.setattr(explain, does, lambda session: (does, session))
    monkeypatch.setattr(explain, "facts_of", lambda found: {"facts": found})
    found = getattr(explain, entry)({"tree": {}}, lambda event: None)
    assert found == {"facts": (does, ("session", {"tree": {}}))}


class Compiling:
    """A session whose compilation, or a later call, ends so."""

    def __init__(self, error: Exception | None = None, later: Exception | None = None, refused: bool = False) -> None:
        self.error, self.later, self.asked = error, later, list[Any]()
        failure = SimpleNamespace(failure="why" if refused else None)
        self.materialised = SimpleNamespace(backend=SimpleNamespace(compilations=[failure], reads_only=None), genuine=1)
        self.calls = ({}, {"x.0": 2}, {"x.1": 3})
        self.compiled, self.built = "compiled", "built"

    @property
    def compilations(self) -> Any:
        if self.error is not None:
            raise self.error
        return ()

    def inputs(self, at: int, call: Any) -> Any:
        return (at, call)

    def call(self, function: Any, inputs: Any) -> None:
        self.asked.append((function, inputs))
        if self.later is not None:
            raise self.later


def caused(by: Exception) -> CompileError:
    error = CompileError("no")
    error.__cause__ = by
    return error


def test_what_the_backend_refused_is_an_answer_and_what_failed_elsewhere_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._dynamo.exc import BackendCompilerFailed

    def failed() -> CompileError:
        return caused(BackendCompilerFailed(len, ValueError("x"), None))

    monkeypatch.setattr("npucompose.npu.static_graph.session.unmarked", lambda call: "x.1" in call)
    well: Any = Compiling()
    assert session._compiled(well) is None
    assert well.asked == [("compiled", (2, {"x.1": 3}))]
    for error in (CompileError("no"), caused(ValueError("x"))):
        assert session._compiled(Compiling(error)) is error  # type: ignore[arg-type]
        assert session._compiled(Compiling(later=error)) is error  # type: ignore[arg-type]
    own = failed()
    assert session._compiled(Compiling(own, refused=True)) is own  # type: ignore[arg-type]
    for raising in (Compiling(failed()), Compiling(ConfigError("wrong"))):
        with pytest.raises(type(raising.error)):  # type: ignore[arg-type]
            session._compiled(raising)  # type: ignore[arg-type]


def test_a_model_of_which_no_graph_is_made_cannot_be_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npucompose.npu.static_graph.session.sinking_of", lambda session: None)
    with pytest.raises(CompileError, match=r"torch\.compile made no graph"):
        session.explained(Compiling(), {})  # type: ignore[arg-type]


class Stand:
    """A session for a dry run: which passes it was made with, and what its compilation does."""

    fails: Exception | None = None

    def __init__(self, checked: Any) -> None:
        self.checked = checked
        self.experiment = SimpleNamespace(
            adapt=SimpleNamespace(name="mine", rules=()), model=SimpleNamespace(name="m"),
            mode=SimpleNamespace(name="mode"), shapes=SimpleNamespace(name="s"),
        )  # fmt: skip
        self.materialised = SimpleNamespace(backend=SimpleNamespace(reads_only=None), genuine=None)

    @property
    def compilations(self) -> Any:
        if self.fails:
            raise self.fails
        return ()


@attrs.frozen
class Passes:
    passes: Any


def test_a_dry_run_runs_the_passes_before_the_rules_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(name: str, stage: str) -> Any:
        return SimpleNamespace(name=name, stage=stage)

    passes = (
        ("z", one("zero", "pre")),
        ("a", one("cse", "post")),
        ("r", one("adapt", "post")),
        ("b", one("cse", "post")),
    )
    made: list[Any] = []
    monkeypatch.setattr(explain, "_session", lambda payload: Stand(Passes(passes)))
    monkeypatch.setattr(explain, "facts_of", lambda found: found)
    monkeypatch.setattr(explain, "_dry_run", lambda session, written: made.append((session, written)) or "seen")
    monkeypatch.setattr("npucompose.passes.adapt.DryAdapt", lambda **parts: SimpleNamespace(name="dry", **parts))
    assert explain.dry_run_work({}, lambda event: None) == "seen"
    ((session, written),) = made
    assert [(label, found.name) for label, found in session.checked.passes] == [("a", "cse"), ("r", "dry")]
    dry = session.checked.passes[1][1]
    assert (dry.stage, dry.written is written) == ("post", True)


@pytest.mark.parametrize(("genuine", "reads_only"), [(None, True), (object(), False)])
def test_what_a_compiler_refuses_after_the_rules_is_told_and_before_them_raised(
    genuine: Any, reads_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "_asked", lambda checked: {"model": "m"})
    session: Any = Stand(None)
    session.materialised.genuine = genuine
    written: Any = SimpleNamespace(graphs=[1, 2], adaptations=[], untouched=[])
    found = explain._dry_run(session, written)
    assert session.materialised.backend.reads_only is reads_only
    assert (found.asked, found.graphs, found.compiler) == ({"model": "m", "adapt": "mine"}, 2, None)
    session.fails = CompileError("no")
    assert explain._dry_run(session, written).compiler == "no"
    written.graphs = []
    with pytest.raises(CompileError):
        explain._dry_run(session, written)
    written.graphs, session.fails = [1], ConfigError("wrong")
    with pytest.raises(ConfigError):
        explain._dry_run(session, written)
