"""Toy stages and worker entries; imported by tests and by the workers that they start."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_free.errors import InvalidRequest
from airflow_free.keys import Ingredients
from airflow_free.stage import Event, Facts, Notify, Runner, Stage, StageGraph
from airflow_free.store import Store


class PlanError(InvalidRequest):
    """An exception of a project's own."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(f"{problem} [{code}]")


class Kitchen:
    """Live values: made on demand, remembered, and each making is written down."""

    def __init__(self, fault: str = "") -> None:
        self.made: list[str] = []
        self.fault = fault
        self._dough: str | None = None

    def dough(self) -> str:
        if self._dough is None:
            self.made.append("dough")
            self._dough = "dough"
        return self._dough


class Knead(Stage[Kitchen]):
    name = "knead"
    reads = ("flour",)

    def run(self, live: Kitchen, progress: Callable[[float], None]) -> Facts:
        return {"kneaded": live.dough()}


class Bake(Stage[Kitchen]):
    name = "bake"
    needs = ("knead",)
    reads = ("oven.heat",)

    def run(self, live: Kitchen, progress: Callable[[float], None]) -> Facts:
        progress(0.5)
        return {"baked": live.dough()}


class Taste(Stage[Kitchen]):
    name = "taste"
    needs = ("bake",)
    measures = True

    def run(self, live: Kitchen, progress: Callable[[float], None]) -> Facts:
        if live.fault:
            trip(live.fault)
        return {"tasted": live.dough(), "samples": (1.5, 2.5)}


BAKERY = StageGraph.from_stages([Knead(), Bake(), Taste()])
EXPERIMENT: dict[str, Any] = {"flour": "rye", "oven": {"heat": 200, "light": True}}


def ingredients(experiment: dict[str, Any] = EXPERIMENT, **changes: Any) -> Ingredients:
    parts: dict[str, Any] = {"versions": {"python": "3"}, "device": {"cpu": "a"}, "code": {"passes": "0"}}
    return Ingredients(values=experiment, **{**parts, **changes})


def trip(fault: str) -> None:
    match fault:
        case "kill":
            print("about to die", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "abort":
            os.abort()
        case "hang":
            print("about to hang", flush=True)
            time.sleep(3600)
        case "exit":
            os._exit(7)
        case "raise":
            raise ValueError("too much\n  salt")
        case "config":
            raise InvalidRequest("no such oven", "no such flour")
        case "plan":
            raise PlanError("E101", "the plan matches nothing")
        case _:
            raise AssertionError(fault)


def bake(payload: dict[str, Any], notify: Notify) -> dict[str, Any]:
    """The entry of a whole run, as an experiment's is."""
    order = BAKERY.order(payload["wanted"])
    live = Kitchen(payload.get("fault", ""))
    done = Runner(store=Store(Path(payload["store"])), notify=notify).run(order, ingredients().keys(order), live)
    return {"reused": {one.stage: one.reused for one in done}, "made": live.made}


def echo(payload: dict[str, Any], notify: Notify) -> dict[str, Any]:
    print("printed")
    print("warned", file=sys.stderr)
    notify(Event(kind="note", text="told"))
    variables = {name: os.environ.get(name) for name in payload.get("variables", ())}
    return {"payload": payload, "path": sys.path, "folder": os.getcwd(), "pid": os.getpid(), "env": variables}


def misbehave(payload: dict[str, Any], notify: Notify) -> dict[str, Any]:
    trip(payload["fault"])
    return {}


def return_no_json(payload: dict[str, Any], notify: Notify) -> dict[str, Any]:
    return {"value": object()}


def answer_and_stay(payload: dict[str, Any], notify: Notify) -> dict[str, Any]:
    """A thread that never ends keeps the interpreter from ending."""
    import threading

    threading.Thread(target=time.sleep, args=(3600,)).start()
    return {"answer": 42}


def leave_a_child(payload: dict[str, Any], notify: Notify) -> dict[str, Any]:
    """A child that would live on, and that holds the worker's pipe open because it was forked, not executed."""
    child = os.fork()
    if child == 0:
        time.sleep(3600)
        os._exit(0)
    if payload.get("fault"):
        notify(Event(kind="note", text=str(child)))
        trip(payload["fault"])
    return {"child": child}


def clean_up_slowly(payload: dict[str, Any], notify: Notify) -> dict[str, Any]:
    """Shows whether it was asked to end (the file appears) or just killed."""
    try:
        notify(Event(kind="note", text="ready"))
        time.sleep(3600)
    finally:
        Path(payload["file"]).write_text("cleaned")
    return {}


def be_a_parent(argv: list[str]) -> None:
    """A process that runs a worker and can be killed itself: prints the worker's pid."""
    from airflow_free.forkserver import WorkerTask
    from airflow_free.pool import run_in_worker

    (log,) = argv
    task = WorkerTask(entry="bakery:tell_pid_and_hang", payload={}, time_limit_s=600, log_path=Path(log))
    run_in_worker(task, lambda event: print(event.text, flush=True))


def be_a_pool(folder: Path) -> None:
    """A process with a pool of two jobs: prints the pids of the fork server and of both."""
    from airflow_free.forkserver import WorkerTask
    from airflow_free.pool import Pool

    with Pool(folder / "forkserver.log") as pool:
        for number in range(2):
            entry, log = "bakery:tell_pid_and_hang", folder / f"{number}.log"
            pool.start(WorkerTask(number=number, entry=entry, payload={}, time_limit_s=600, log_path=log))
        for server in pool.servers.values():
            print(server.process.pid, flush=True)
        while True:
            for _, event in pool.events():
                print(getattr(event, "text", event), flush=True)


def look_at_the_fork(payload: dict[str, Any], notify: Notify) -> dict[str, Any]:
    """What the fork server, the parent of this worker's supervisor, had loaded when this was forked."""
    torch: Any = sys.modules.get("torch")
    server = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
    return {
        "torch": torch is not None,
        "dynamo": "torch._dynamo" in sys.modules,
        "cuda": torch is not None and torch.cuda.is_initialized(),
        "threads": len(os.listdir(f"/proc/{server}/task")),
    }


def wait_for_a_file(payload: dict[str, Any], notify: Notify) -> dict[str, Any]:
    notify(Event(kind="note", text="waiting"))
    while not Path(payload["file"]).exists():
        time.sleep(0.02)
    return {}


def tell_pid_and_hang(payload: dict[str, Any], notify: Notify) -> dict[str, Any]:
    notify(Event(kind="note", text=str(os.getpid())))
    time.sleep(3600)
    return {}


if __name__ == "__main__":
    if sys.argv[1] == "pool":
        be_a_pool(Path(sys.argv[2]))
    else:
        be_a_parent(sys.argv[1:])
