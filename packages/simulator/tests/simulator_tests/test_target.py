"""target=npu_offline itself: which wheel it takes, and what it counts on a fake of the simulator."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npu_simulator import ge_session
from npu_simulator.device import CallLedger
from npucompose.errors import ConfigError
from npucompose.npu.torchair.target import TorchairTarget
from npucompose.races import RaceFinder
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.targets import npu_offline
from npucompose.targets.npu_offline import NpuOfflineTarget, wheel

TARGET = NpuOfflineTarget()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(wheel, "locate", lambda: tmp_path)
    monkeypatch.setattr(wheel, "version", lambda tree: "2.13.0.post1")
    monkeypatch.setattr(npu_offline.metadata, "version", lambda name: "2.13.4+cpu")
    monkeypatch.setattr(npu_offline, "_installed", lambda module: True)
    return tmp_path


@pytest.mark.usefixtures("tree")
def test_the_wheel_has_to_be_for_this_torch_and_its_imports_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    TARGET.check(GE)
    monkeypatch.setattr(npu_offline.metadata, "version", lambda name: "2.14.0")
    with pytest.raises(ConfigError, match=r"2\.13\.0\.post1 wheel is for torch 2\.13, and torch 2\.14\.0 is installed"):
        TARGET.check(GE)
    monkeypatch.setattr(npu_offline, "_installed", lambda module: module != "google.protobuf")
    with pytest.raises(ConfigError, match="needs protobuf, which TorchAir imports"):
        TARGET.check(GE)
    monkeypatch.setattr(npu_offline, "_installed", lambda module: False)
    with pytest.raises(ConfigError, match="needs protobuf and packaging"):
        TARGET.check(GE)


@pytest.mark.usefixtures("tree")
def test_a_torch_without_devices_in_python_is_refused_before_a_wheel_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(npu_offline.metadata, "version", lambda name: "2.10.0+cpu")
    with pytest.raises(ConfigError, match="wheel is for torch"):
        TARGET.check(GE)
    monkeypatch.setattr(npu_offline.metadata, "version", lambda name: "2.9.1")
    monkeypatch.setattr(wheel, "locate", lambda: pytest.fail("it would be fetched"))
    with pytest.raises(ConfigError, match=r"needs torch 2\.10 or later, .* and torch 2\.9\.1 is installed"):
        TARGET.check(GE)


def test_a_module_is_looked_for_without_being_imported() -> None:
    assert npu_offline._installed("pytest") is True
    assert npu_offline._installed("no_such_package") is False
    assert npu_offline._installed("no_such_package.inner") is False


@pytest.mark.usefixtures("tree")
def test_results_name_their_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TARGET.identity() == {"npu": "simulated", "torch_npu": "2.13.0.post1"}
    assert (TARGET.platform(), TARGET.package_version()) == ("simulated", "2.13.0.post1")
    assert TARGET.environment()["NPUCOMPOSE_SIMULATED_NPU"] == "1"
    assert len(TARGET.environment()) > 1

    def nowhere() -> Path:
        raise ConfigError("no torch_npu here")

    monkeypatch.setattr(wheel, "locate", nowhere)
    assert TARGET.identity() == {"npu": "simulated"}


def test_whatever_is_compiled_can_be_cached_and_only_ges_values_need_a_note() -> None:
    modes = (GE, ACLGRAPH, NPUGRAPH_EX, "eager")
    assert [TARGET.support(mode).caches for mode in modes] == [True, True, True, False]
    assert [TARGET.support(mode).numerics_note is None for mode in modes] == [False, True, True, True]


def test_only_ges_graphs_are_placed_on_the_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(TorchairTarget, "prepare", lambda self, mode: told.append(mode))
    monkeypatch.setattr(ge_session, "place_ge_graphs", lambda: told.append("placed"))
    TARGET.prepare(GE)
    TARGET.prepare(ACLGRAPH)
    assert told == [GE, "placed", ACLGRAPH]


def test_what_the_device_was_told_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, order = CallLedger(), RaceFinder()
    for what, times in {"ge_run": 5, "capture": 2, "replay": 3, "task_update": 4}.items():
        for _ in range(times):
            ledger.note(what)
    order.call(1, "mm")
    order.call(2, "relu")
    told = ["record event 1", "wait event 1", "wait event 2", "wait external event 3", "limit stream", "mm", "record"]
    graphs = [
        SimpleNamespace(seconds=0.5, kernels=2, notes=told, order=order, outside=["mm ran"]),
        SimpleNamespace(seconds=0.25, kernels=1, notes=["mm"], order=RaceFinder(clocks={1: {}}), outside=[]),
    ]
    monkeypatch.setattr(
        npu_offline, "_device", lambda: SimpleNamespace(ledger=ledger, graphs=graphs, not_written=["net.air"])
    )
    assert TARGET.counts(GE) == {"captures": 0, "replays": 5, "not_written": ("net.air",)}
    assert TARGET.counts(ACLGRAPH) == {
        "captures": 2, "replays": 3, "task_updates": 4, "event_records": 2, "event_waits": 2, "core_limits": 1,
        "streams": 2, "unordered": ("mm ran",),
    }  # fmt: skip
    backend: Any = SimpleNamespace(mode=ACLGRAPH)
    assert TARGET.recordings(ACLGRAPH, []) == [{"seconds": 0.5, "kernels": 2}, {"seconds": 0.25, "kernels": 1}]
    assert TARGET.device_texts(backend) == {"capture_0.txt": "\n".join(told) + "\n", "capture_1.txt": "mm\n"}
    eager: Any = SimpleNamespace(mode="eager")
    assert (TARGET.recordings("eager", []), TARGET.device_texts(eager)) == ([], {})
