"""executor=ray on a real cluster of two nodes on this machine: the same ledger as the local executor's."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeping import ROOT, by_factory, check_folders, none_left, statuses, sweep

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'npucompose[ray]'"),
]
POINTS = ["model=python", "trust=true", "pipeline=check"]
FACTORIES = [*(f"points:fine{n}" for n in range(9)), "points:kills", "points:loses_its_place", "points:raises"]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the nodes find points.py, as they would on machines of their own."""
    return tmp_path_factory.mktemp("code")


@pytest.fixture(scope="module")
def cluster(code: Path) -> Iterator[Any]:
    """Two nodes of one CPU each; nothing is sent anywhere, no dashboard."""
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("PYTHONPATH", os.pathsep.join([str(code), str(ROOT / "src"), str(ROOT)]))
    memory = 100 * 2**20
    nodes = {"num_cpus": 1, "object_store_memory": memory, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=nodes)
    cluster.add_node(**{**nodes, "resources": {"second": 1}})
    yield cluster
    cluster.shutdown()
    patch.undo()


def test_twelve_points_two_of_which_lose_their_process_leave_the_ledger_that_local_leaves(
    cluster: Any, code: Path, tmp_path: Path
) -> None:
    swept = [*POINTS, f"model.factory={','.join(FACTORIES)}"]
    found = {}
    for name, executor in (("local", ["executor=local"]), ("ray", _ray(cluster))):
        folder = tmp_path / name
        folder.mkdir()
        done = sweep(code, *swept, *executor, NPUCOMPOSE_STORE=str(folder / ".npucompose"))
        assert done.returncode == 3, done.stdout + done.stderr
        assert statuses(folder) == {"ok": 9, "crashed": 2, "failed": 1}, done.stdout + done.stderr
        found[name] = {name: (entry.key, entry.status) for name, entry in by_factory(folder).items()}
        check_folders(folder)
        for fault in ("kills", "loses_its_place", "raises"):
            (code / fault).unlink()
    assert found["local"] == found["ray"]
    told = by_factory(tmp_path / "ray")
    assert told["kills"].exit_signal == "SIGKILL"
    assert "Ray lost the process of this job" in str(told["loses_its_place"].error)
    assert "RuntimeError: out of tea" in str(told["raises"].error)
    again = sweep(code, *swept, *_ray(cluster), NPUCOMPOSE_STORE=str(tmp_path / "ray" / ".npucompose"))
    assert "12 were done before" in again.stdout
    assert none_left(code)


def test_a_point_that_no_node_can_take_is_told_and_the_others_run(cluster: Any, code: Path) -> None:
    asked = [*_ray(cluster), "+executor.resources.a3=1", "model=add", "pipeline=compile_only", "seed=1,2"]
    done = sweep(code, *asked)
    assert done.returncode == 3
    assert "no node of the Ray cluster has CPU 1, a3 1" in done.stdout
    there = [*_ray(cluster), "+executor.resources.second=1", "model=add", "pipeline=compile_only", "seed=1,2"]
    healed = sweep(code, *there, "retry=failed")
    assert healed.returncode == 0, healed.stdout + healed.stderr


def test_a_cluster_that_does_not_answer_is_a_paragraph(tmp_path: Path) -> None:
    done = sweep(tmp_path, "executor=ray", "executor.address=127.0.0.1:1", "model=add", "seed=1,2")
    assert done.returncode == 3
    assert "no Ray cluster answers" in done.stderr
    assert "Traceback" not in done.stderr


def _ray(cluster: Any) -> list[str]:
    return ["executor=ray", f"executor.address={cluster.address}"]
