from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from bakery import BAKERY, EXPERIMENT, Kitchen, ingredients

from airflow_free.errors import InvalidRequest, OrchestratorError
from airflow_free.stage import Event, Runner, Stage, StageFailed
from airflow_free.store import Record, Store

ORDER = BAKERY.order(["taste"])
KEYS = ingredients().keys(ORDER)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def runner(tmp_path: Path, events: list[Event]) -> Runner:
    return Runner(store=Store(tmp_path), notify=events.append, environment={"cpu": "a"}, provenance={"run": "x"})


def written(runner: Runner) -> dict[str, int]:
    """{stage: inode of its record}: a record that is written again gets another one."""
    store = runner.store
    return {record.stage: store.path(record.stage, record.key).stat().st_ino for record in store.records()}


def test_a_first_run_runs_everything(runner: Runner, events: list[Event]) -> None:
    kitchen = Kitchen()
    done = runner.run(ORDER, KEYS, kitchen)
    assert [(one.stage, one.reused) for one in done] == [("knead", False), ("bake", False), ("taste", False)]
    assert kitchen.made == ["dough"]
    told = [(event.kind, event.stage) for event in events]
    assert told[:2] == [("started", "knead"), ("finished", "knead")]
    assert ("progress", "bake") in told
    assert all(0 <= one.seconds < 60 for one in done)
    assert [event.seconds for event in events if event.kind == "finished"] == [one.seconds for one in done]


def test_a_finished_run_does_nothing(runner: Runner, events: list[Event]) -> None:
    first = runner.run(ORDER, KEYS, Kitchen())
    before = written(runner)
    events.clear()
    kitchen = Kitchen()
    second = runner.run(ORDER, KEYS, kitchen)
    assert kitchen.made == []
    assert all(one.reused for one in second)
    assert [one.facts for one in second] == [one.facts for one in first]
    assert [one.seconds for one in second] == [one.seconds for one in first]
    assert {event.kind for event in events} == {"reused"}
    assert written(runner) == before


@pytest.mark.parametrize("stage", ["knead", "bake", "taste"])
def test_only_a_deleted_record_is_written_again(runner: Runner, stage: str) -> None:
    runner.run(ORDER, KEYS, Kitchen())
    before = written(runner)
    keep = runner.store.path(stage, KEYS[stage]).with_suffix(".kept")
    runner.store.path(stage, KEYS[stage]).rename(keep)
    kitchen = Kitchen()
    done = runner.run(ORDER, KEYS, kitchen)
    assert [one.stage for one in done if not one.reused] == [stage]
    assert kitchen.made == ["dough"]
    after = written(runner)
    assert {name for name in after if after[name] != before[name]} == {stage}


def test_a_change_reruns_what_reads_it_and_what_needs_that(runner: Runner) -> None:
    runner.run(ORDER, KEYS, Kitchen())
    hotter = ingredients({**EXPERIMENT, "oven": {"heat": 250, "light": True}})
    done = runner.run(ORDER, hotter.keys(ORDER), Kitchen())
    assert [one.stage for one in done if not one.reused] == ["bake", "taste"]


def test_facts_of_a_run_look_as_they_will_when_they_are_read(runner: Runner) -> None:
    done = {one.stage: one for one in runner.run(ORDER, KEYS, Kitchen())}
    assert done["taste"].facts == {"tasted": "dough", "samples": [1.5, 2.5]}


def test_a_failing_stage_is_named_and_earlier_records_stay(runner: Runner, events: list[Event]) -> None:
    with pytest.raises(StageFailed, match="stage 'taste' failed: ValueError: too much") as caught:
        runner.run(ORDER, KEYS, Kitchen("raise"))
    assert (caught.value.stage, caught.value.exit_status) == ("taste", 3)
    assert isinstance(caught.value.__cause__, ValueError)
    assert set(written(runner)) == {"knead", "bake"}
    assert [event.stage for event in events if event.kind == "finished"] == ["knead", "bake"]
    assert events[-1].kind == "failed"
    done = runner.run(ORDER, KEYS, Kitchen())
    assert [one.stage for one in done if not one.reused] == ["taste"]


def test_a_wrong_configuration_found_in_a_stage_keeps_its_exit_status(runner: Runner) -> None:
    with pytest.raises(StageFailed) as caught:
        runner.run(ORDER, KEYS, Kitchen("config"))
    assert caught.value.exit_status == InvalidRequest.exit_status
    assert caught.value.problems == ("no such oven", "no such flour")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert OrchestratorError.exit_status == StageFailed.exit_status == 3


@pytest.mark.parametrize("facts", [{"x": object()}, {"x": float("nan")}])
def test_facts_that_are_no_json_fail_the_stage(runner: Runner, facts: dict[str, Any]) -> None:
    class Odd(Stage[Kitchen]):
        name = "odd"

        def run(self, live: Kitchen, progress: object) -> dict[str, Any]:
            return facts

    with pytest.raises(StageFailed, match="stage 'odd' failed: its facts are not plain JSON"):
        runner.run([Odd()], {"odd": "0" * 64}, Kitchen())
    assert written(runner) == {}


def test_a_record_says_where_it_came_from(runner: Runner) -> None:
    runner.run(ORDER, KEYS, Kitchen())
    record = runner.store.read("bake", KEYS["bake"])
    assert isinstance(record, Record)
    assert (record.environment, record.provenance) == ({"cpu": "a"}, {"run": "x"})
