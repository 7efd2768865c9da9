"""`recipe`, `bisect` and `run -m` without a run: what they take, refuse, print and end with."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from lock_examples import OVERRIDES, locked_of
from report.report_examples import FULL

from airflow_free.outcome import Limits, Outcome
from airflow_free.stage import Finished, ignore
from airflow_free.store import Record, Store
from npucompose import activity, private
from npucompose.cli.arguments import command_line
from npucompose.compose.tree import Composer, compose
from npucompose.errors import ConfigError, NpuComposeError, RejectedError
from npucompose.experiment import bisect as bisecting
from npucompose.experiment import run as experiment
from npucompose.experiment import verify
from npucompose.experiment.job import Job
from npucompose.experiment.lock import Locked
from npucompose.experiment.orchestrator import default_store, worker_environment
from npucompose.experiment.sweep import command
from npucompose.experiment.sweep.plan import SweepPlan
from npucompose.experiment.verify import compared
from npucompose.targets.cpu import CpuTarget


@pytest.fixture(scope="module")
def job() -> Job:
    return Job.from_composed(compose(OVERRIDES))


@pytest.fixture
def locked(job: Job) -> Locked:
    return locked_of(job)


# recipe


def recipe(*words: str) -> argparse.Namespace:
    return command_line("recipe").parse_args(["recipe", *words])


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["eject"], {"overrides": [], "config_dir": [], "config_name": "config", "env": {}, "out": None}),
        (["eject", "a=1", "-cd", "x", "--config-dir", "y", "-cn", "z", "--out", "o"],
         {"overrides": ["a=1"], "config_dir": ["x", "y"], "config_name": "z", "env": {}, "out": "o"}),
        (["import", "f.py", "--torch-npu", "2.1", "--out", "o"], {
            "file": "f.py", "torch_npu": "2.1", "out": "o", "compilation": None, "vllm_ascend": None, "assume": [],
        }),
        (["export", "--to", "vllm-ascend", "a=1"],
         {"overrides": ["a=1"], "to": "vllm-ascend", "config_dir": [], "config_name": "config", "env": {},
          "out": None}),
        (["lock", "a=1"], {"overrides": ["a=1"], "config_dir": [], "env": {}, "out": "recipe.lock.yaml"}),
        (["show", "l"], {"lock": Path("l")}),
        (["verify", "l"], {"lock": Path("l"), "against": None, "tolerance": 0.2, "kernels": "locked", "trust": False}),
        (["verify", "l", "--trust", "--against", "m", "--tolerance", "0", "--kernels", "measured"],
         {"lock": Path("l"), "against": "m", "tolerance": 0.0, "kernels": "measured", "trust": True}),
    ],
)  # fmt: skip
def test_each_action_of_recipe_takes_its_arguments(words: list[str], given: dict[str, Any]) -> None:
    found = vars(recipe(*words))
    assert callable(found.pop("act"))
    assert found == given


@pytest.mark.parametrize("words", [[], ["export"], ["import"], ["show"], ["verify"], ["nothing"]])
def test_what_is_missing_of_a_recipe_s_arguments_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"shows what is possible|unknown action"):
        recipe(*words)


@pytest.mark.parametrize(("status", "ends"), [("ok", 0), ("expect_failed", 1), ("numerics_failed", 1)])
def test_a_recipe_is_locked_where_it_was_asked_for(
    status: Any, ends: int, locked: Locked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found = attrs.evolve(locked, result=attrs.evolve(locked.result, status=status))
    asked: list[Any] = []
    monkeypatch.setattr(verify, "lock", lambda job, *, store: asked.append((job.key, store)) or found)
    out = tmp_path / "a.yaml"
    arguments = recipe("lock", *OVERRIDES, "--out", str(out))
    assert arguments.act(arguments) == ends
    assert capsys.readouterr().out == f"{status}; written: {out}\n"
    assert out.read_text() == found.text()
    assert asked == [(Job.from_composed(compose(OVERRIDES)).key, default_store())]
    arguments = recipe("lock", *OVERRIDES, "--out", str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        arguments.act(arguments)


def test_a_recipe_holds_here_or_the_exit_status_is_one(
    locked: Locked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    locked.write(tmp_path)
    asked: list[tuple[bool, str]] = []
    here = locked

    def run_again(locked: Locked, *, trust: bool = False, kernels: str) -> Locked:
        asked.append((trust, kernels))
        return here

    monkeypatch.setattr(verify, "run_again", run_again)

    def verified(*words: str) -> int:
        arguments = recipe("verify", str(tmp_path), *words)
        return arguments.act(arguments)

    assert verified() == 0
    assert verified("--trust", "--kernels", "measured") == 0
    assert asked == [(False, "locked"), (True, "measured")]
    assert "the recipe holds here" in capsys.readouterr().out
    benchmark = locked.result.benchmark
    slower = attrs.evolve(benchmark, speedup={"eager": 1.7})
    here = attrs.evolve(locked, result=attrs.evolve(locked.result, benchmark=slower))
    assert (verified(), verified("--tolerance", "0.1")) == (0, 1)
    assert verified("--against", str(tmp_path)) == 0
    for tolerance in ("1", "-0.1"):
        with pytest.raises(ConfigError, match="at least 0 and below 1"):
            verified("--tolerance", tolerance)
    assert verified("--tolerance", "0") == 1
    shown = recipe("show", str(tmp_path))
    capsys.readouterr()
    assert shown.act(shown) == 0
    assert capsys.readouterr().out.startswith("mode=reduce-overhead")


def test_what_is_locked_went_to_its_end(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = attrs.evolve(FULL, status="crashed", error="it died")
    asked: list[Any] = []

    def run(job: Job, folder: Path, *, store: Store) -> Any:
        assert folder.is_dir()
        asked.append((job, store, folder))
        return report

    monkeypatch.setattr(verify, "run_experiment", run)
    store = Store(tmp_path)
    with pytest.raises(NpuComposeError, match="crashed: it died"):
        verify.lock(job, store=store)
    for status in ("ok", "expect_failed", "numerics_failed"):
        report = attrs.evolve(FULL, status=status, error=None)
        assert verify.lock(job, store=store) == Locked.from_report(job.ingredients, report)
    assert asked[0][:2] == (job, store)
    assert not asked[0][2].exists()


def test_the_speed_may_miss_its_tolerance_and_no_more(locked: Locked) -> None:
    def differences(there: Any, here: Any, tolerance: float) -> list[str]:
        sides = [
            attrs.evolve(locked, result=attrs.evolve(locked.result, benchmark=benchmark)) for benchmark in (there, here)
        ]
        return [str(one) for one in compared(*sides, tolerance=tolerance).differences]

    benchmark = locked.result.benchmark
    half, more = (attrs.evolve(benchmark, speedup={"eager": value}) for value in (1.0, 9.0))
    assert differences(benchmark, half, 0.5) == []
    assert differences(benchmark, half, 0.4) == ["speedup.eager: locked 2.0, here 1.0"]
    assert differences(benchmark, more, 0.0) == []
    assert differences(None, benchmark, 0.0) == []
    assert differences(benchmark, None, 0.0) == ["speedup.eager: locked 2.0, here null"]


def test_sixty_letters_are_shown_and_sixty_one_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "shown", str)
    assert verify._short("x" * 60) == "x" * 60
    assert verify._short("x" * 61) == "x" * 12 + "…"


def test_what_only_one_side_s_mapping_says_is_told_once() -> None:
    said = verify._said_by_others
    assert said("a", {"a": {}}, {"a.b": 1})
    assert said("a", {"a.b": 1}, {"a": {}})
    assert said("a.(order)", {"a.(order)": [1]}, {})
    assert not said("a", {"a": {}}, {"b": 1})
    assert not said("a", {"a": 1}, {"a.b": 1})
    assert not said("a.(order)", {"a.(order)": [1]}, {"a.(order)": [2]})
    assert list(verify._leaves({"a": {"b": 1, "c": {}}, "d": {"e": {"f": 2}}})) == [
        ("a.b", 1), ("a.c", {}), ("d.e.f", 2), ("d.(order)", ["e"]), ("(order)", ["a", "d"]),
    ]  # fmt: skip


# run


class Stopped(Exception):
    pass


def test_a_worker_starts_what_has_to_be_built_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def session(*given: Any) -> None:
        raise Stopped

    monkeypatch.setattr(activity, "_listeners", [])  # private: of this test alone
    monkeypatch.setattr(CpuTarget, "start_build", lambda self, mode: asked.append(mode))
    monkeypatch.setattr("npucompose.compose.session.Session", session)
    made = compose(["model=add", "mode=reduce-overhead", "pipeline=check"])
    places = {"store": str(tmp_path), "run_dir": "run", "files": str(tmp_path)}
    with pytest.raises(Stopped):
        experiment.work({"tree": made.tree, "provenance": made.provenance, **places}, ignore)
    assert asked == ["reduce-overhead"]


# bisect


@pytest.mark.parametrize(
    ("guilty", "tried"),
    [
        (1, [4, 0, 2, 1]),
        (2, [4, 0, 2, 1]),
        (3, [4, 0, 2, 3]),
        (4, [4, 0, 2, 3]),
        (None, [4]),
    ],
)
def test_the_first_pass_that_breaks_is_found_by_halving(
    guilty: int | None, tried: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["cse", "dead_code", "fold_parameters", "stream_plan"]
    ran: list[Any] = []

    def run(job: Job, folder: Path, *, store: Store) -> Any:
        assert folder.is_dir()
        assert store.root == tmp_path
        assert [stage.name for stage in job.order][-1] == "replay"
        ran.append([label for label, _ in job.checked.passes])
        broken = guilty is not None and len(ran[-1]) >= guilty
        return attrs.evolve(FULL, status="numerics_failed" if broken else "ok", error=f"with {len(ran[-1])}")

    monkeypatch.setattr(bisecting, "run_experiment", run)
    told: list[str] = []
    found = bisecting.bisect(compose(["model=add", f"passes=[{','.join(labels)}]"]), Store(tmp_path), told.append)
    assert ran == [labels[:count] for count in tried]
    assert found.runs == len(tried)
    assert (found.guilty, found.error) == ((labels[guilty - 1], f"with {guilty}") if guilty else (None, None))
    assert told[0].startswith("cse, dead_code, fold_parameters, stream_plan: ")
    assert len(tried) == 1 or told[1] == "no pass: ok"


@pytest.mark.parametrize("written", [None, {}])
def test_rules_are_a_pass_where_no_other_is_written(
    written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may say `passes:` and no more, and a configuration of one's own may have no pipeline."""
    composed = compose(["model=add", "adapt=ascend"])
    tree = {name: value for name, value in composed.tree.items() if name != "pipeline"}
    composed = attrs.evolve(composed, tree={**tree, "passes": written})
    ran: list[Job] = []

    def run(job: Job, folder: Path, *, store: Store) -> Any:
        ran.append(job)
        broken = bool(job.checked.passes)
        return attrs.evolve(FULL, status="numerics_failed" if broken else "ok", error="it differs" if broken else None)

    monkeypatch.setattr(bisecting, "run_experiment", run)
    found = bisecting.bisect(composed, Store(tmp_path), lambda words: None)
    assert found == bisecting.GuiltyPass(guilty="adapt", error="it differs", runs=2)
    assert [[label for label, _ in job.checked.passes] for job in ran] == [["adapt"], []]
    assert [job.checked.experiment.adapt.name for job in ran] == ["ascend", "none"]
    assert [job.checked.experiment.pipeline.stages for job in ran] == [("replay",)] * 2


def test_what_no_pass_can_break_has_no_guilty_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="the experiment has no passes"):
        bisecting.bisect(compose(["model=add"]), Store(tmp_path), lambda words: None)
    monkeypatch.setattr(
        bisecting, "run_experiment", lambda job, folder, *, store: attrs.evolve(FULL, status="crashed", error="it died")
    )
    with pytest.raises(ConfigError, match=r"without any pass either \(crashed: it died\)"):
        bisecting.bisect(compose(["model=add", "passes=[cse]"]), Store(tmp_path), lambda words: None)


# a sweep's task


def test_illegal_points_are_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    composer = Composer()
    plan = SweepPlan.from_overrides(["model=add", "seed=1,-1,-2"], composer)
    lines = list(command.Sweep(plan).illegal_lines())
    assert lines[0] == "2 of 3 jobs illegal and not run:"
    assert [line.startswith(f"  seed=-{n}: ") for n, line in enumerate(lines[1:], 1)] == [True, True]
    legal = command.planned(["model=add", "seed=1,2"], composer)
    assert isinstance(legal, command.Sweep)
    assert list(legal.illegal_lines()) == []
    with pytest.raises(AssertionError):
        legal(None)


def test_the_folder_of_a_point_is_asked_of_hydra_in_our_words(tmp_path: Path) -> None:
    from omegaconf.errors import InterpolationKeyError

    plan = SweepPlan.from_overrides(["model=add", "seed=1,2"], Composer())
    asked: list[Any] = []

    class Task(command.Sweep):
        def _run(self, folder: Path, name: Callable[[Any], str]) -> int:
            asked.append((folder, name(plan.points[1])))
            return 4

    task = Task(plan)
    ended: list[int] = []
    task.act = lambda act: ended.append(act())  # type: ignore[assignment]
    task.run(tmp_path, lambda number, overrides: f"{number} {overrides}")
    assert (asked, ended) == ([(tmp_path, "1 ('model=add', 'seed=2')")], [4])

    def fails(number: int, overrides: Any) -> str:
        raise InterpolationKeyError("Interpolation key 'x' not found")

    with pytest.raises(ConfigError, match="Interpolation key 'x' not found"):
        task.run(tmp_path, fails)


# an experiment's pieces


def test_a_target_that_runs_and_does_not_measure_refuses_a_benchmark() -> None:
    with pytest.raises(ConfigError, match="target=npu_offline has no speed"):
        Job.from_composed(compose(["model=add", "target=npu_offline", "pipeline=bench", "mode=npugraph_ex"]))
    Job.from_composed(compose(["model=add", "target=npu_offline", "pipeline=check", "mode=npugraph_ex"]))


def finished(stage: str = "replay", *, reused: bool = False, **facts: Any) -> Finished:
    return Finished(stage=stage, key="a" * 64, facts=facts, reused=reused, seconds=1.0)


def test_a_comparison_that_failed_ends_a_run(job: Job, tmp_path: Path) -> None:
    passed, failed = finished(numerics={"passed": True}), finished(numerics={"passed": False})

    def needs(*some: Finished) -> bool:
        return experiment.ActiveRun(
            job=job, run_dir=tmp_path, place=tmp_path, store=Store(tmp_path), finished=some
        ).needs_worker

    assert needs()
    assert needs(passed)
    assert needs(passed, finished())
    assert not needs(failed)
    assert not needs(passed, failed)
    assert not needs(*[passed] * len(job.order))


def test_what_a_worker_is_sent(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begun = experiment.ActiveRun.begin(job, Path("outputs/now"), Store("store"))
    assert begun.place == tmp_path.resolve() / "outputs" / "now"
    assert begun.payload == {
        "tree": dict(job.composed.tree), "provenance": dict(job.composed.provenance),
        "store": str(tmp_path.resolve() / "store"), "run_dir": "now",
        "files": str(tmp_path.resolve() / "outputs" / "now" / "torchair"),
    }  # fmt: skip


def test_a_folder_that_leads_elsewhere_meanwhile_gets_nothing(job: Job, tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    begun = experiment.ActiveRun.begin(job, place, Store(tmp_path / "store"))
    begun._find_the_folder()
    place.rmdir()
    begun._find_the_folder()
    assert place.is_dir()
    place.rmdir()
    (tmp_path / "other").mkdir()
    place.symlink_to(tmp_path / "other")
    with pytest.raises(NpuComposeError, match=r"leads elsewhere now, to .*other: nothing was written"):
        begun._find_the_folder()
    place.unlink()
    place.write_text("")
    with pytest.raises(NpuComposeError, match="cannot be made again"):
        begun._find_the_folder()


def test_an_illegal_configuration_that_only_a_worker_saw_writes_nothing(job: Job, tmp_path: Path) -> None:
    begun = experiment.ActiveRun.begin(job, tmp_path / "run", Store(tmp_path / "store"))
    for outcome, told in (
        (Outcome(status="config_error", problems=("a", "b"), error="e"), "a\nb"),
        (Outcome(status="config_error", error="e"), "e"),
    ):
        with pytest.raises(ConfigError) as caught:
            begun.finish(outcome)
        assert str(caught.value) == told
    assert not (tmp_path / "run").exists()


def test_records_count_only_with_the_files_beside_them(job: Job, tmp_path: Path) -> None:
    store, stage = Store(tmp_path), job.order[0]
    key = job.keys[stage.name]
    store.write(Record(stage=stage.name, key=key, facts={"npu": {"files": ["a.txt"]}}, seconds=2.0))
    assert experiment._from_store(job, store) == ()
    store.put_file(stage.name, key, "torchair/a.txt", b"x")
    (found,) = experiment._from_store(job, store)
    assert (found.stage, found.key, found.reused, found.seconds) == (stage.name, key, True, 2.0)
    assert [one.reused for one in experiment._after_worker(job, store, [])] == [False]
    assert [one.reused for one in experiment._after_worker(job, store, [found])] == [True]
    assert experiment.written_files({}) == experiment.written_files({"npu": None, "benchmark": None}) == ()
    place = tmp_path / "run"
    experiment._bring_files(place, [attrs.evolve(found, reused=False)], store)
    assert not place.exists()
    experiment._bring_files(place, [found], store)
    assert (place / "torchair" / "a.txt").read_bytes() == b"x"


def test_the_texts_of_graphs_are_written_side_by_side(tmp_path: Path) -> None:
    experiment._write_graphs(tmp_path, [finished(), finished(texts={"a.txt": "1", "b.txt": "2"}),
                                        finished(texts={"b.txt": "3"})])  # fmt: skip
    assert {path.name: path.read_text() for path in (tmp_path / "graphs").iterdir()} == {"a.txt": "1", "b.txt": "3"}


@pytest.fixture
def cached(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    asked = job.checked.experiment
    asked = attrs.evolve(asked, compile=attrs.evolve(asked.compile, cache=True))
    return attrs.evolve(job, checked=attrs.evolve(job.checked, experiment=asked))


def test_compiled_graphs_are_thrown_away_where_the_stage_must_see_a_compilation(cached: Job, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    folder = experiment._cache(cached, store)
    assert folder is not None
    folder.mkdir(parents=True)
    assert experiment._cache(cached, store) == folder
    assert not folder.exists()
    folder.mkdir()
    store.write(Record(stage="compile", key=cached.keys["compile"], facts={}, seconds=1.0))
    assert experiment._cache(cached, store) == folder
    assert folder.is_dir()


def test_compiled_graphs_lie_in_a_folder_of_our_own_for_each_store(cached: Job, job: Job, tmp_path: Path) -> None:
    folders = {experiment._cache(cached, Store(tmp_path / name)) for name in ("one", "other")}
    assert len(folders) == 2
    for folder in folders:
        assert folder is not None
        assert folder.is_relative_to(tmp_path / "cache")
        assert private.doubt(folder.parent, tmp_path / "cache") is None
        assert (tmp_path / "cache" / "compiled").stat().st_mode & 0o777 == 0o700
    assert experiment._cache(job, Store(tmp_path)) is None, "nothing is to be kept"


def test_a_run_s_worker_gets_the_limits_of_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    own = Job.from_composed(
        compose(["model=add", "pipeline=check", "pipeline.time_limit_s=7", "pipeline.log_limit_mb=2"])
    )
    monkeypatch.setattr(experiment, "run_in_worker", lambda *what: asked.append(what) or "outcome")
    monkeypatch.setattr(experiment.ActiveRun, "finish", lambda self, outcome: outcome)

    def notify(event: Any) -> None: ...

    assert experiment.run_experiment(own, tmp_path, store=Store(tmp_path / "s"), notify=notify) == "outcome"
    ((task, on_event),) = asked
    assert (task.entry, task.payload["run_dir"], on_event) == (experiment.ENTRY, tmp_path.name, notify)
    assert (task.time_limit_s, task.log_path) == (7, tmp_path / "run.log")
    assert task.limits == Limits.from_mib(2, None, "pipeline.memory_limit_mb")
    assert task.environment == worker_environment(own.checked.target.environment())


def test_what_was_rejected_and_what_a_compilation_that_failed_knows_is_kept() -> None:
    nobody: Any = None
    assert experiment._known_all_the_same(nobody, RejectedError("a", "b")) == {"rejected": ("a", "b")}
    assert experiment._known_all_the_same(nobody, ValueError("x")) == {}


def test_a_single_run_takes_what_the_store_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    own = Job.from_composed(compose(["model=add", "pipeline=check"]))
    monkeypatch.setattr(experiment, "run_in_worker", lambda *what: asked.append(what) or "outcome")
    monkeypatch.setattr(experiment.ActiveRun, "finish", lambda self, outcome: outcome)
    monkeypatch.setattr(experiment.ActiveRun, "needs_worker", property(lambda self: False))
    assert experiment.run_experiment(own, tmp_path, store=Store(tmp_path / "s")) is None
    assert asked == []
    assert (own.measures, Job.from_composed(compose(["model=add", "pipeline=bench"])).measures) == (False, True)
