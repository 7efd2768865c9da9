"""A sweep of the bakery: what another project writes to have one, and nothing of npucompose or torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import attrs
from attrs import field, frozen
from bakery import BAKERY, ingredients

from airflow_free import ledger
from airflow_free.executors import Device, RemoteTask, remote_task
from airflow_free.executors.local import LocalExecutor
from airflow_free.forkserver import WorkerTask
from airflow_free.outcome import Outcome
from airflow_free.store import Store
from airflow_free.sweep import Loop, Point, Source, SweepEvent, membership
from tests.answers import answer

ROOT = Path(__file__).parents[2]


@frozen(kw_only=True)
class Figures:
    weight: float | None = None


@frozen(kw_only=True)
class Entry(ledger.Entry):
    figures: Figures = field(factory=Figures)


class Ledger(ledger.Ledger[Entry]):
    entry: ClassVar[type[Any]] = Entry
    figures: ClassVar[type[Any]] = Figures
    statuses: ClassVar[tuple[str, ...]] = ("ok", "crashed", "failed")
    sortable: ClassVar[tuple[str, ...]] = ("weight", "ended")

    @staticmethod
    def structure(kind: type[Any], tree: Mapping[str, object]) -> Any:
        values: dict[str, Any] = {**tree, "overrides": tuple(tree["overrides"])}  # type: ignore[arg-type]
        return Entry(**{**values, "figures": Figures(**values["figures"])})


@frozen(kw_only=True)
class Order:
    """A job of the bakery."""

    fault: str = ""
    device: Device = field(factory=Device)
    measures: bool = False

    @property
    def keys(self) -> dict[str, str]:
        return ingredients({"flour": "rye", "oven": {"heat": 200, "fault": self.fault}}).keys(BAKERY.order(["taste"]))


@frozen(kw_only=True)
class Baking:
    """An order that was begun: the run, and what it leaves behind."""

    job: Order
    key: str
    folder: Path
    store: Store
    loaded: tuple[str, ...] = ()

    @property
    def files(self) -> Path:
        return self.folder

    @property
    def task(self) -> WorkerTask:
        payload = {"wanted": ["taste"], "store": str(self.store.root), "fault": self.job.fault}
        return WorkerTask(
            entry="bakery:bake", payload=payload, time_limit_s=60, log_path=self.folder / "log", program="bakery"
        )

    @property
    def remote_task(self) -> RemoteTask:
        return remote_task(self.task, self.store, [])

    @property
    def run(self) -> Baking:
        return self

    @property
    def needs_worker(self) -> bool:
        return self.store.read("taste", self.job.keys["taste"]) is None

    def finish(self, outcome: Outcome | None) -> Entry:
        status = "ok" if outcome is None or outcome.status == "done" else outcome.status
        if outcome is not None and outcome.error and "salt" in outcome.error:
            raise ValueError("spoilt")
        return Entry(key=self.key, status=status, overrides=(), figures=Figures(weight=2.5))

    def broken(self, problem: str) -> Entry:
        return Entry(key=self.key, status="crashed", overrides=(), error=problem)


def sweep(folder: Path, *faults: str) -> tuple[dict[str, Entry], list[SweepEvent]]:
    points = [Point(number=n, overrides=(), job=Order(fault=f), key=f or "well") for n, f in enumerate(faults)]
    events: list[SweepEvent] = []

    def begin(point: Point[Any]) -> Baking | Entry:
        if point.key == "closed":
            return Entry(key="closed", status="failed", overrides=(), error="the oven is closed")
        return Baking(job=point.job, key=point.key, folder=folder / point.key, store=Store(folder / point.key))

    with Ledger.open(folder) as there, LocalExecutor(folder, jobs=2) as executor:
        loop: Loop[Entry] = Loop(executor, there, begin, events.append)
        ends = loop.run(Source(points))
        assert there.ends(list(ends)) == ends
        assert {one.key for one in there.entries()} == set(ends)
        for _, overrides, values in there.rows((), ("weight",), ["ok"]):
            assert (overrides, values) == ([], (2.5,))
    return ends, events


def test_every_point_has_an_end_of_its_own(tmp_path: Path) -> None:
    ends, events = sweep(tmp_path, "", "kill", "raise", "closed")
    assert {key: end.status for key, end in ends.items()} == {
        "well": "ok", "kill": "crashed", "raise": "crashed", "closed": "failed",
    }  # fmt: skip
    assert ends["raise"].error == "ValueError: spoilt"
    assert [one.kind for one in events if one.point.key == "closed"] == ["started", "ended"]
    assert {one.event.stage for one in events if one.event is not None} == {"knead", "bake", "taste"}


def test_what_the_store_has_needs_no_worker(tmp_path: Path) -> None:
    sweep(tmp_path, "")
    _, events = sweep(tmp_path, "")
    assert [one.kind for one in events] == ["started", "ended"]


def test_the_orchestrator_loads_neither_torch_nor_npucompose() -> None:
    check = (
        "import pkgutil, sys, importlib, airflow_free\n"
        "for found in pkgutil.walk_packages(airflow_free.__path__, 'airflow_free.'):\n"
        "    importlib.import_module(found.name)\n"
        "assert not {'torch', 'npucompose', 'hydra', 'ray', 'submitit'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT)


def test_an_entry_is_a_row_of_its_own_and_its_figures_columns() -> None:
    assert Ledger.columns() == (*(f.name for f in attrs.fields(ledger.Entry) if f.name != "figures"), "weight")


def test_which_points_belong_to_a_sweep_is_a_file_that_people_can_read() -> None:
    points: list[Any] = [SimpleNamespace(number=at, key=f"k{at}", overrides=("a=1", f"b={at}")) for at in range(2)]
    assert answer(membership(points), indent=1) == {
        "schema": 1,
        "points": [
            {"number": 0, "key": "k0", "overrides": ["a=1", "b=0"]},
            {"number": 1, "key": "k1", "overrides": ["a=1", "b=1"]},
        ],
    }
