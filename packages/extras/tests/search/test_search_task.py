"""A search as Hydra's task: what names its study, what its loop is given, what is printed, and how it ends."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from airflow_free.ledger import Trial
from airflow_free.sweep import SweepEvent
from npucompose.compose.tree import Composer
from npucompose.experiment.sweep.run import PointEntry, PointLedger
from npucompose.results.record import Figures
from npucompose.schema.sweep import Dimension, Local, Optuna
from npucompose_extras.search import command
from npucompose_extras.search.command import OptunaTask, Question, best_lines
from npucompose_extras.search.study import Space, written

SPACE = {"seed": Dimension(low=1, high=9)}
COMPOSER = Composer()


def question(*overrides: str, retry_failed: bool = False, **options: Any) -> Question:
    base = ("model=add", *overrides)
    asked = Optuna(**{"space": SPACE, "objectives": {"p50_us": "minimize"}, "trials": 3, "seed": 7, **options})
    return Question(
        options=asked, space=Space(dimensions=asked.space, base=base), base=COMPOSER.compose(base), composer=COMPOSER,
        executor=Local(jobs=2), retry_failed=retry_failed,
    )  # fmt: skip


def test_how_long_a_search_goes_on_and_where_is_no_part_of_its_name() -> None:
    one = question()
    assert one.name == question(trials=9).name == question("executor.jobs=5").name == question("retry=failed").name
    others = (question("model.size=3"), question(seed=8), question(objectives={"p50_us": "maximize"}),
              question(sampler="random"), question(space={"seed": Dimension(low=1, high=8)}))  # fmt: skip
    assert len({one.name, *(other.name for other in others)}) == 6
    assert (one.forget, question(retry_failed=True).forget) == ((), ("failed",))


def test_a_point_is_told_from_the_others_by_what_the_base_does_not_say() -> None:
    def point(*overrides: str) -> Any:
        return SimpleNamespace(overrides=overrides, number=4)

    asked = question("mode=eager")
    assert asked.varying(point("model=add", "mode=eager", "seed=3", "tiling=host")) == "seed=3 tiling=host"
    assert asked.varying(point("model=add", "mode=eager")) == "trial 4"


class Study:
    """Asks for some seeds; two trials were told by an earlier process."""

    made: Any = None
    seeds: tuple[int, ...] = (1, -1, 2)

    def __init__(self, name: str, options: Optuna, space: Space, ledger: PointLedger, *, forget: Any) -> None:
        type(self).made = (name, options, space, forget)
        self.told = [trial for trial in ledger.trials(name) if trial.state not in forget]
        self.asked = iter(enumerate(self.seeds))
        self.values: list[Any] = []
        self.lacking: Counter[str] = Counter()
        self.options = options

    def ask(self) -> Any:
        number, seed = next(self.asked, (0, None))
        return seed and SimpleNamespace(number=number, overrides=("model=add", f"seed={seed}"))

    def tell(self, trial: Any, key: str, values: Any, *, illegal: bool) -> None:
        self.values.append((trial.number, values, illegal))

    def best(self) -> Iterator[Any]:
        yield {"seed": 1}, (2.0,)


class Loop:
    """Runs no point: each holds, or fails."""

    status: Any = "ok"
    given: Any = None

    def __init__(self, executor: Any, ledger: PointLedger, begin: Any, listen: Any) -> None:
        type(self).given = (executor, ledger, begin.keywords)
        self.listen = listen

    def run(self, source: Any) -> None:
        while (point := source.ask()) is not None:
            entry = PointEntry(key=point.key, status=self.status, overrides=(), figures=Figures(p50_us=2))
            self.listen(SweepEvent(kind="ended", point=point, entry=entry))
            source.ended(point, entry)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    used: list[Any] = []

    @contextlib.contextmanager
    def executor_of(executor: Any, folder: Path) -> Iterator[str]:
        used.append((executor, folder))
        yield "executor"
        used.append("left")

    for name, stand_in in {"Study": Study, "Loop": Loop, "executor_of": executor_of}.items():
        monkeypatch.setattr(command, name, stand_in)
    monkeypatch.setattr(command, "default_store", lambda: SimpleNamespace(root=tmp_path / "store"))
    (tmp_path / "m").mkdir()
    monkeypatch.setattr(Loop, "status", "ok")
    monkeypatch.setattr(Study, "seeds", (1, -1, 2))
    return used


def before(store: Path, study: str, *states: Any) -> list[str]:
    """Trials of an earlier process, each with a point that ended well."""
    with PointLedger.open(store) as ledger:
        for number, state in enumerate(states):
            ledger.write_trial(Trial(study=study, number=number, key=f"old{number}", state=state, params={},
                                     values=(1.0,) if state == "complete" else None))  # fmt: skip
            ledger.write([PointEntry(key=f"old{number}", status="ok", overrides=())])
    return [f"old{number}" for number in range(len(states))]


def test_a_search_ends_with_every_point_of_its_trials_and_those_told_before(scene: Any, tmp_path: Path) -> None:
    asked = question()
    store: Any = SimpleNamespace(root=tmp_path)
    old = before(tmp_path, asked.name, "complete")
    with PointLedger.open(tmp_path) as ledger:
        ends, study = command.run_search(
            asked, tmp_path / "m", lambda point: f"p{point.number}", store=store, ledger=ledger, listen=lambda _: None
        )
        executor, its_ledger, begin = Loop.given
        assert (executor, its_ledger) == ("executor", ledger)
    assert Study.made == (asked.name, asked.options, asked.space, ())
    assert scene == [(asked.executor, tmp_path / "m"), "left"]
    assert (begin["store"], begin["ledger"]) == (store, ledger)
    point: Any = SimpleNamespace(number=5, key="k")
    assert begin["path_of"](point) == tmp_path / "m" / "p5"
    assert study.values == [(0, (2.0,), False), (1, None, True), (2, (2.0,), False)]  # type: ignore[attr-defined]
    assert [entry.status for entry in ends.values()] == ["ok", "ok", "illegal", "ok"]
    assert next(iter(ends)) == old[0]


@pytest.mark.parametrize(
    ("status", "seeds", "ends_with"),
    [("ok", (1, -1), 0), ("failed", (1, -1), 3), ("numerics_failed", (1,), 1), ("ok", (-1, -2), 2)],
)
def test_a_search_ends_as_its_points_did_and_illegal_ones_only_where_there_is_nothing_else(
    status: Any, seeds: Any, ends_with: int, scene: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loop, "status", status)
    monkeypatch.setattr(Study, "seeds", seeds)
    assert OptunaTask(question())._run(tmp_path / "m", lambda point: str(point.number)) == ends_with


@pytest.mark.parametrize(
    ("retry_failed", "trials", "total"), [(False, 5, 2), (True, 5, 3), (False, 3, 0), (False, 2, 0)]
)
def test_a_search_counts_what_is_left_and_prints_its_folder_and_the_best(
    retry_failed: bool, trials: int, total: int, scene: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    asked = question(retry_failed=retry_failed, trials=trials)
    before(tmp_path / "store", asked.name, "complete", "failed", "pruned")
    heard: list[Any] = []

    class View:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            heard.append("closed")

        def listen(self, event: Any) -> None:
            heard.append(event.kind)

        def summary(self) -> str:
            return "2 jobs: [all] done"

    def view(task: Any, found: int, name: Any) -> Any:
        heard.append((found, name))
        return View()

    sent: list[Any] = []
    monkeypatch.setattr(OptunaTask, "view", view)
    monkeypatch.setattr(command.TrackerQueue, "send", lambda queue, root: sent.append(root))
    OptunaTask(asked)._run(tmp_path / "m", lambda point: str(point.number))
    assert heard == [(total, asked.varying), *["ended"] * 3, "closed"]
    assert sent == [tmp_path / "store"]
    assert capsys.readouterr().out == f"2 jobs: [all] done\n  {tmp_path / 'm'}\nbest:\n  p50_us 2  seed=1\n"


def test_the_best_are_told_up_to_ten_and_what_could_not_compete() -> None:
    def lines(found: list[Any], lacking: dict[str, int], *objectives: str) -> list[str]:
        options = SimpleNamespace(objectives=dict.fromkeys(objectives, "minimize"))
        study: Any = SimpleNamespace(best=lambda: iter(found), lacking=lacking, options=options)
        return list(best_lines(study))

    assert lines([], {}, "p50_us") == ["no trial has all objectives."]
    assert lines([({"a": 1, "b": "x"}, (1.5,))], {"p50_us": 2}, "p50_us") == [
        "best:", "  p50_us 1.5  a=1 b=x",
        "2 trials ran and cannot compete: without p50_us, an objective of the search.",
    ]  # fmt: skip
    front = [({"a": n}, (n + 0.123456789, 2.0)) for n in range(11)]
    told = lines(front, {"speedup": 1}, "p50_us", "speedup")
    assert told[0] == "Pareto front, 11 trials:"
    assert told[1] == "  p50_us 0.123457, speedup 2  a=0"
    assert len(told) == 12
    assert told[-1] == "1 trial ran and cannot compete: without speedup, an objective of the search."


def test_mappings_and_lists_inside_each_other_are_written_as_overrides() -> None:
    assert written({"a": [1, None], "b": {"c": True, "d": "x y"}}) == "{a:[1,null],b:{c:true,d:'x y'}}"


def test_a_search_of_other_options_is_another_question() -> None:
    assert attrs.evolve(question(), retry_failed=True).name == question().name
