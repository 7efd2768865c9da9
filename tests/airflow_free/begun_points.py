"""A point of a sweep as executors are given it: its job, its task and its store."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_free.executors import Device, remote_task
from airflow_free.forkserver import WorkerTask
from airflow_free.outcome import Limits
from airflow_free.store import Record, Store

KEY = "a" * 64


def job(*, measures: bool = False, variable: str | None = None) -> Any:
    return SimpleNamespace(measures=measures, keys={"knead": KEY}, device=Device(kind="npu", variable=variable))


def task(folder: Path, **about: Any) -> WorkerTask:
    parts: dict[str, Any] = {
        "entry": "bakery:bake", "payload": {"tree": {"a": 1}}, "time_limit_s": 90.0,
        "limits": Limits(log_bytes=7, memory_bytes=8), "log_path": folder / "run.log", "program": "bakery",
    }  # fmt: skip
    return WorkerTask(**{**parts, **about})


def begun(folder: Path, *records: Record, **about: Any) -> Any:
    store = Store(folder / "store")
    for record in records:
        store.write(record)
    (folder / "run").mkdir(exist_ok=True)
    place = folder / "run"
    finished = [(r.stage, r.key) for r in records]
    return SimpleNamespace(
        job=job(**about), store=store, task=task(place), files=place / "beside", loaded=("mine",),
        remote_task=remote_task(task(place), store, finished, env={"T": "1"}),
    )  # fmt: skip
