"""The trials of a search: which are run, kept, shared or illegal, and what the study is told."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from npucompose.compose.tree import Composer
from npucompose.experiment.sweep.plan import SweepPlan
from npucompose.experiment.sweep.run import (
    PointEntry,
    PointLedger,
)
from npucompose.results.record import Figures
from npucompose_extras.search.command import _Trials


class Study:
    def __init__(self, *asked: tuple[str, ...]) -> None:
        self.asked = iter(enumerate(asked))
        self.told: list[Any] = []
        self.lacking: Counter[str] = Counter()

    def ask(self) -> Any:
        found = next(self.asked, None)
        return found and SimpleNamespace(number=found[0], overrides=("model=add", *found[1]))

    def tell(self, trial: Any, key: str, values: Any, *, illegal: bool) -> None:
        self.told.append((trial.number, values, illegal))


def trials(
    ledger: PointLedger, folder: Path, study: Study, *objectives: str, heard: list[Any], retry: bool = False
) -> Any:
    composer = Composer()
    question = SimpleNamespace(
        composer=composer, base=composer.compose(["model=add"]), retry_failed=retry,
        options=SimpleNamespace(space={}, objectives=dict.fromkeys(objectives, "minimize")),
    )  # fmt: skip
    return _Trials(question, study, ledger, heard.append, folder)  # type: ignore[arg-type]


def test_a_trial_is_run_kept_shared_or_illegal(tmp_path: Path) -> None:
    heard: list[Any] = []
    study = Study(("seed=1",), ("seed=1",), ("seed=-1",), ("seed=2",), ("seed=1",))
    with PointLedger.open(tmp_path) as ledger:
        source = trials(ledger, tmp_path, study, "p50_us", heard=heard)
        one, two = source.ask(), source.ask()
        assert (one.number, two.number) == (0, 3)
        assert study.told == [(2, None, True)]
        (news,) = heard
        assert (news.kind, news.entry.status, news.point.number) == ("ended", "illegal", 2)
        assert ledger.ends([news.point.key])[news.point.key].status == "illegal"
        end = PointEntry(key=one.key, status="ok", overrides=(), figures=Figures(p50_us=3))
        source.ended(one, end)
        assert study.told[1:] == [(0, (3.0,), False), (1, (3.0,), False)]
        assert source.ask() is None
        assert study.told[3:] == [(4, (3.0,), False)]
        assert heard[-1].kind == "kept"
        source.ended(two, PointEntry(key=two.key, status="illegal", overrides=()))
        assert study.told[4:] == [(3, None, True)]
        assert set(source.ends) == {one.key, two.key, news.point.key}
    listed = json.loads((tmp_path / "points.json").read_text())["points"]
    assert [point["number"] for point in listed] == [0, 1, 2, 3, 4]


def test_an_earlier_end_of_the_same_point_is_an_answer(tmp_path: Path) -> None:
    heard: list[Any] = []
    key = SweepPlan.from_overrides(["model=add", "seed=1"], Composer()).points[0].key
    with PointLedger.open(tmp_path) as ledger:
        ledger.write([PointEntry(key=key, status="crashed", overrides=())])
        study = Study(("seed=1",))
        assert trials(ledger, tmp_path, study, "p50_us", heard=heard).ask() is None
        assert study.told == [(0, None, False)]
        again = trials(ledger, tmp_path, Study(("seed=1",), ("seed=1",)), "p50_us", heard=heard, retry=True)
        point = again.ask()
        assert point is not None
        again.ended(point, PointEntry(key=key, status="crashed", overrides=()))


def test_only_a_point_that_held_has_values_and_all_of_them(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        source = trials(ledger, tmp_path, Study(), "p50_us", "pool_bytes", heard=[])

        def values(status: Any, **figures: Any) -> Any:
            return source._values(PointEntry(key="k", status=status, overrides=(), figures=Figures(**figures)))

        assert values("ok", p50_us=1.5, pool_bytes=2) == (1.5, 2.0)
        assert values("ok", p50_us=1.5) is None
        assert values("expect_failed", p50_us=1.5, pool_bytes=2) is None


def test_what_no_stage_measures_and_what_only_a_person_says_is_illegal(tmp_path: Path) -> None:
    with PointLedger.open(tmp_path) as ledger:
        study = Study(("pipeline=compile_only",), ("pipeline=compile_only", "executor.jobs=3"))
        source = trials(ledger, tmp_path, study, "p50_us", "compile_s", "pool_bytes", heard=[])
        assert source.ask() is None
        first, second = (point.problems for point in source.points)
    assert first == (
        "search.objectives.p50_us comes from the stage benchmark, and pipeline.stages has none.",
        "search.objectives.pool_bytes comes from the stage capture, and pipeline.stages has none.",
    )
    assert second[0].startswith("'executor' cannot be searched over")
