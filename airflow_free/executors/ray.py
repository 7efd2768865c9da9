"""Each job a task of a Ray cluster that is there already. A task that ends badly is not run again.

In the task runs what a single run is, a worker of its own in folders of its own, so that time limits, signals and one
process for each job are as everywhere. What it finished comes back and goes into the one store and the one ledger.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from airflow_free.errors import OrchestratorError, first_line, paragraph
from airflow_free.executors import ActiveRun, Delivery, Executor, Job, fulfil
from airflow_free.outcome import Outcome
from airflow_free.stage import Event

DEVICE_RESOURCES = {"CUDA_VISIBLE_DEVICES": "GPU", "ASCEND_RT_VISIBLE_DEVICES": "NPU"}
"""Ray counts these, and shows a task its own by the variable."""
KNOCK_S = 10.0


@frozen(kw_only=True)
class RayOptions:
    address: str = "auto"
    """Of the head, host:port; auto: the cluster that this machine belongs to."""
    jobs: int | None = None
    """At once; None: as many as the cluster has room for."""
    cpus: float | None = None
    """Of each job; None: 1, and all that a node has for a job that measures on the CPU."""
    devices: float | None = None
    """Of each job that runs on one; None: 1."""
    resources: Mapping[str, float] = field(factory=dict[str, float])
    """Of the cluster's own that each job asks for."""


class RayExecutor(Executor):
    def __init__(self, options: RayOptions) -> None:
        self.options = options
        self.ray = _connected(options.address)
        self.task = self.ray.remote(max_retries=0, retry_exceptions=False)(fulfil)
        self.running: dict[Any, tuple[int, ActiveRun]] = {}
        self.refused: list[tuple[int, Outcome]] = []

    def __exit__(self, *error: object) -> None:
        """Tasks are killed, and their workers with them; the cluster stays."""
        for task in self.running:
            self.ray.cancel(task, force=True)
        self.ray.shutdown()

    def has_room(self, job: Job) -> bool:
        limit = self.options.jobs or max(1, _room(self._nodes(), self._needs(job)))
        return len(self.running) < limit

    def start(self, number: int, run: ActiveRun) -> None:
        needs, nodes = self._needs(run.job), self._nodes()
        if not _room(nodes, needs):
            self.refused.append((number, _nowhere(needs, nodes)))
            return
        cpus, gpus = needs.pop("CPU"), needs.pop("GPU", 0)
        task = self.task.options(num_cpus=cpus, num_gpus=gpus, resources=needs)
        self.running[task.remote(run.remote_task)] = (number, run)

    def events(self) -> Sequence[tuple[int, Event | Outcome]]:
        if self.refused:
            refused, self.refused = self.refused, []
            return refused
        ended, _ = self.ray.wait(list(self.running), num_returns=1)
        return [self._ended(task) for task in ended]

    def _ended(self, task: Any) -> tuple[int, Outcome]:
        number, run = self.running.pop(task)
        try:
            delivery: Delivery = self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:
            return number, Outcome(status="failed", error=paragraph(error), exit_status=3)
        except self.ray.exceptions.RayError as error:
            words = f"Ray lost the process of this job: {first_line(error)}"
            return number, Outcome(status="crashed", error=words, exit_status=3)
        return number, delivery.unpack(run)

    def _nodes(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def _needs(self, job: Job) -> dict[str, float]:
        """A job that measures on the CPU takes all CPUs of a node, and so has it for itself."""
        variable = job.device.variable
        alone = job.measures and variable is None
        largest = max((node.get("CPU", 0) for node in self._nodes()), default=0) or 1
        needs = {**self.options.resources, "CPU": self.options.cpus or (largest if alone else 1)}
        devices = 1 if self.options.devices is None else self.options.devices
        if variable is not None and devices:
            needs[DEVICE_RESOURCES[variable]] = devices
        return needs


def _connected(address: str) -> Any:
    """The module, connected; OrchestratorError where there is no cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = importlib.import_module("ray")
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise OrchestratorError(
            f"executor.address={address}: no Ray cluster answers ({paragraph(error)}). Start one with `ray start "
            "--head`, and name its address."
        ) from error
    return ray


def _knock(address: str) -> None:
    """Ray itself would wait for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), KNOCK_S).close()


def _room(nodes: Sequence[Mapping[str, float]], needs: Mapping[str, float]) -> int:
    """How many such jobs the nodes have room for at once, were they idle."""
    return sum(min(int(node.get(name, 0) // amount) for name, amount in needs.items() if amount) for node in nodes)


def _nowhere(needs: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> Outcome:
    """Ray would wait forever."""
    have = "; ".join(_amounts(node) for node in nodes) or "none is alive"
    words = f"no node of the Ray cluster has {_amounts(needs)}. Its nodes: {have}."
    return Outcome(status="failed", error=words, exit_status=3)


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items()) if ":" not in name)
