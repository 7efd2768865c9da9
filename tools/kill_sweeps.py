"""Sweeps killed at random moments: `python -m tools.kill_sweeps [--kills 200] [--seed 15]`.

A sweep is begun, SIGKILL goes to one of its processes (the parent, the fork server, a supervisor, a worker) at a random
moment, and the same sweep goes on where it stopped, until it is done; then the next is begun in a new folder. After
each kill nothing may run any more, and every end in the ledger needs its report; each done sweep has to have the ledger
of one that nobody disturbed. The result file belongs to one seed; started again, the script goes on where it stopped.
Exit status 1 where anything was lost.

The parent of each sweep, and its fork server, are forked from this process, which has planned the sweep and loaded
torch: what costs seconds is not what is tested here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from airflow_free import forkserver, processes
from airflow_free.store import Store
from npucompose.experiment.sweep.plan import SweepPlan
from npucompose.experiment.sweep.run import PointLedger, run_sweep
from tools import result_file

os.environ["OMP_NUM_THREADS"] = "1"  # a process of several threads is not forked
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "kill_sweeps.json"
OVERRIDES = ("model=add", "mode=eager", "pipeline=compile_only", "retry=failed", "seed=range(0,{points})")
VICTIMS = ("parent", "parent", "parent", "fork server", "supervisor", "worker")


class Forked:
    """A child of this process, in the words of subprocess.Popen."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_forked(act)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (600 if timeout is None else timeout)
        while (found := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a fork", timeout or 600)
            time.sleep(0.002)
        return found

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _be_forked(act: Callable[[], Any]) -> NoReturn:
    status = 1
    try:
        act()
        status = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(status)


def warm_server(env: Any, loaded: Any, log_path: Path) -> Any:
    """A fork server that has everything loaded already; in the place of `airflow_free.forkserver.ForkServer.start`."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        ours.close()
        os.setsid()
        with log_path.open("ab") as log:
            for number in (1, 2):
                os.dup2(log.fileno(), number)
        forkserver.leave_a_trace()
        forkserver._Server(theirs).serve()

    with theirs:
        return forkserver.ForkServer(Forked(serve), ours)  # type: ignore[arg-type]


def begin(folder: Path, plan: SweepPlan) -> Forked:
    """Begin or resume the sweep in a folder."""

    def sweep() -> None:
        os.chdir(folder)
        store = Store(folder / ".npucompose")
        swept = folder / "multirun"
        swept.mkdir(exist_ok=True)
        forkserver.ForkServer.start = staticmethod(warm_server)  # type: ignore[method-assign]
        with PointLedger.open(store.root) as ledger:
            run_sweep(plan, swept, lambda p: str(p.number), store=store, ledger=ledger, listen=lambda news: None)

    return Forked(sweep)


def ledger(folder: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """{key: (status, overrides)}; AssertionError where an end has no report that says the same."""
    with PointLedger.open(folder / ".npucompose") as found:
        entries = found.entries()
    for entry in entries:
        if entry.run_dir is not None:
            report = json.loads((folder / ".npucompose" / entry.run_dir / "report.json").read_text())
            assert (report["key"], report["status"]) == (entry.key, entry.status), entry
    return {entry.key: (entry.status, entry.overrides) for entry in entries}


def below(parent: int) -> dict[str, list[int]]:
    """{kind: numbers} of the processes of a sweep."""
    children = {"fork server": [one for one in processes.everybody() if one.parent == parent]}
    for kind, over in (("supervisor", "fork server"), ("worker", "supervisor")):
        above = {one.pid for one in children[over]}
        children[kind] = [one for one in processes.everybody() if one.parent in above]
    return {kind: [one.pid for one in found] for kind, found in children.items()}


def left(folder: Path) -> list[int]:
    """Processes that work in the folder, a while after the end of the one that began them."""
    deadline = time.monotonic() + 30
    while True:
        found = [int(one.name) for one in Path("/proc").glob("[0-9]*") if _works_in(one, folder)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _works_in(process: Path, folder: Path) -> bool:
    try:
        return Path(os.readlink(process / "cwd")) == folder.resolve()
    except OSError:
        return False


def killed(process: Forked, moment_s: float, wanted: str, chance: random.Random) -> str | None:
    """Who was killed; None where the sweep was done before."""
    try:
        process.wait(moment_s)
        return None
    except subprocess.TimeoutExpired:
        victims = below(process.pid).get(wanted) or [process.pid]
    victim = chance.choice(victims)
    os.kill(victim, signal.SIGKILL)
    return wanted if victim != process.pid else "parent"


def planned(points: int) -> SweepPlan:
    """The sweep, with everything loaded that its points need."""
    import importlib

    from npucompose.compose.tree import Composer
    from npucompose.experiment.run import LOADED

    plan = SweepPlan.from_overrides([one.format(points=points) for one in OVERRIDES], Composer())
    for name in {*LOADED, *(n for p in plan.points if p.job for n in p.job.checked.target.loaded)}:
        module, _, _ = name.partition(":")
        importlib.import_module(module)
    threads = [Path(f"/proc/self/task/{one}/comm").read_text().strip() for one in os.listdir("/proc/self/task")]
    assert len(threads) == 1, threads
    return plan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--points", type=int, default=40)
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--afresh", action="store_true", help="forget what the file holds")
    given = parser.parse_args()
    head: dict[str, Any] = {"seed": given.seed, "points": given.points}
    result = {**head, "kills": 0, "victims": {}, "sweeps": 0, "same_ledger": 0, "left_running": 0, "lost": []}
    if given.out.is_file() and not given.afresh:
        result = json.loads(given.out.read_text())
        if {key: result[key] for key in head} != head:
            raise SystemExit(f"{given.out} was made with another seed or number of points: --afresh begins it anew.")
    plan = planned(given.points)
    with tempfile.TemporaryDirectory(prefix="npucompose-undisturbed-") as folder:
        began = time.monotonic()
        begin(Path(folder), plan).wait()
        whole_s, wanted = time.monotonic() - began, ledger(Path(folder))
    assert {status for status, _ in wanted.values()} == {"ok"}
    assert len(wanted) == given.points
    while result["kills"] < given.kills:
        with tempfile.TemporaryDirectory(prefix="npucompose-killed-") as folder:
            one_sweep(Path(folder), given, plan, result, whole_s, wanted)
    return int(bool(result["lost"]) or result["left_running"] > 0 or result["same_ledger"] < result["sweeps"])


def one_sweep(
    folder: Path, given: argparse.Namespace, plan: SweepPlan, result: Any, whole_s: float, wanted: Any
) -> None:
    victims = Counter(result["victims"])
    chance = random.Random(f"{given.seed} {result['kills']}")
    while result["kills"] < given.kills:
        process = begin(folder, plan)
        victim = killed(process, chance.uniform(0.0, whole_s), chance.choice(VICTIMS), chance)
        process.wait()
        if victim is None:
            break
        result["kills"] += 1
        victims[victim] += 1
        result["victims"] = dict(sorted(victims.items()))
        result["left_running"] += bool(left(folder))
        try:
            ledger(folder)
        except (AssertionError, OSError, ValueError) as error:
            result["lost"].append(f"after kill {result['kills']} ({victim}): {error}")
        result_file.write(given.out, result)
    begin(folder, plan).wait()
    found = ledger(folder)
    result["sweeps"] += 1
    result["same_ledger"] += found == wanted
    if found != wanted:
        result["lost"].append(f"sweep {result['sweeps']}: {dict(Counter(status for status, _ in found.values()))}")
    result_file.write(given.out, result)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.exit(main())
