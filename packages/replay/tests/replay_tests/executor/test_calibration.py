"""The times of kernels on this machine: what is measured, and what is kept of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch

from npucompose import machine
from npucompose.cli import main
from npucompose.errors import CaptureError
from npucompose.graphs import Dependence
from npucompose.machine import CACHE_VARIABLE
from npucompose.schema.capabilities import Clocked
from npucompose.schema.cost_table import CostTable, Sample
from npucompose_replay.executor import calibration, tables
from npucompose_replay.executor.clock import ClockedTwice

ROW = Sample(size=8.0, one_us=2.0, all_us=1.0, one_middle_us=2.5, all_middle_us=1.5)
TABLE = CostTable(
    threads=2,
    created="2026-11-23T00:00:00+00:00",
    stream_us=0.5,
    event_us=0.25,
    families={"pointwise": {"add": (ROW,)}},
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "_known", {})
    return tmp_path / "cache"


def small(size: int) -> Iterator[calibration.Call]:
    x = torch.rand(size, size)
    yield calibration.aten.mm.default, (x, x)
    yield calibration.aten.add.Tensor, (x, x)


def clock(module: Any, inputs: Any) -> ClockedTwice:
    """The n-th kernel takes n µs on one thread and half of that on all; the middle ones take a tenth longer."""
    names = [kernel.name for kernel in Dependence.from_graph(module.graph).kernels]

    def times(share: float) -> Clocked:
        us = {name: share * (number + 1) for number, name in enumerate(names)}
        half = {name: took / 2 for name, took in us.items()}
        return Clocked(kernel_us=us, together_us=half, stream_us=3.0, event_us=4.0)

    return ClockedTwice(low=times(1.0), middle=times(1.1))


def test_small_kernels_come_three_times_on_the_same_inputs_and_the_shortest_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration, "SAMPLES", ((small, (16, 32)),))
    monkeypatch.setattr(calibration, "clocked_twice", clock)
    module, inputs = calibration.sample_graph(calibration.SAMPLES)
    assert [value.shape[0] for value in inputs] == [16, 32]
    assert len(Dependence.from_graph(module.graph).kernels) == 3 + 3 + 1 + 1
    found = calibration.measure()
    assert found is not None
    assert (found.threads, found.stream_us, found.event_us) == (torch.get_num_threads(), 3.0, 4.0)
    first, second = found.families["pointwise"]["add"]
    assert (first.size, first.one_us, first.all_us, first.one_middle_us) == pytest.approx((2048, 4.0, 2.0, 4.4))
    assert (second.size, second.one_us) == pytest.approx((8192, 8.0))
    assert [row.one_us for row in found.families["product"]["mm"]] == [1.0, 7.0]


def test_every_family_has_samples_of_about_four_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "clocked_twice", clock)
    found = calibration.measure()
    assert found is not None
    assert set(found.families) == {
        "attention", "convolution", "copy", "gather", "normalisation", "pointwise", "product", "product of few rows",
        "reduction", "selection", "transcendental", "update",
    }  # fmt: skip
    for operators in found.families.values():
        for rows in operators.values():
            assert 4 <= len(rows) <= 5
            assert [row.size for row in rows] == sorted({row.size for row in rows})


def test_measuring_leaves_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SAMPLES", ((small, (4,)),))
    monkeypatch.setattr(calibration, "clocked_twice", clock)
    state = torch.get_rng_state()
    calibration.measure()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[CostTable]:
    made: list[CostTable] = []

    def measure() -> CostTable:
        made.append(TABLE)
        return TABLE

    monkeypatch.setattr(calibration, "measure", measure)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return made


def test_a_machine_is_measured_once_and_the_next_process_reads_it(
    measured: list[CostTable], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert calibration.cost_table() is calibration.cost_table() is TABLE
    assert capfd.readouterr().err == "npucompose: measuring kernels on 2 threads, once …\n"
    monkeypatch.setattr(calibration, "_known", {})  # as in another process
    assert calibration.cost_table() == TABLE
    assert len(measured) == 1
    assert capfd.readouterr().err == ""
    assert tables.kept() == [TABLE]


def test_threads_that_ask_at_once_measure_once(measured: list[CostTable], monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def measure() -> CostTable:
        measured.append(TABLE)
        begun.set()
        assert go.wait(20)
        return TABLE

    monkeypatch.setattr(calibration, "measure", measure)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(calibration.cost_table)
        assert begun.wait(20)
        second = pool.submit(calibration.cost_table)
        wait([second], timeout=0.2)
        go.set()
        assert first.result() is second.result() is TABLE
    assert len(measured) == 1


def test_each_number_of_threads_has_a_table_of_its_own(
    measured: list[CostTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration.cost_table()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    calibration.cost_table()
    assert len(measured) == 2
    assert tables.read(3) is None


def test_a_table_of_a_busy_machine_is_measured_again_and_one_of_an_idle_one_stays(
    measured: list[CostTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.keep(TABLE)  # its spread is a half at most
    calibration.cost_table()
    assert measured == []
    monkeypatch.setattr("npucompose.schema.cost_table.BUSY", 0.1)
    monkeypatch.setattr(calibration, "_known", {})
    calibration.cost_table()
    assert measured == [TABLE]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", json.dumps({**TABLE.as_dict(), "families": {"x": {"y": []}}})]
)
def test_a_file_that_is_no_table_is_none(content: str) -> None:
    tables.keep(TABLE)
    (tables.folder() / "2.json").write_text(content)
    assert tables.read(2) is None
    assert tables.kept() == []


def test_a_table_that_others_could_have_written_is_not_believed() -> None:
    tables.keep(TABLE)
    assert tables.read(2) == TABLE
    (tables.folder() / "2.json").chmod(0o666)
    assert tables.read(2) is None


def test_another_processor_has_other_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    tables.keep(TABLE)
    monkeypatch.setattr(machine, "cpu_model", lambda: "another one")
    assert tables.read(2) is None


def test_where_nothing_can_be_kept_or_measured_planning_goes_on(
    measured: list[CostTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(tables.private, "make", full)
    assert calibration.cost_table() is TABLE
    monkeypatch.setattr(calibration, "_known", {})
    monkeypatch.setattr(calibration, "measure", lambda: None)
    assert calibration.cost_table() is None


def test_what_the_native_replayer_cannot_time_gives_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise CaptureError("no compiler")

    monkeypatch.setattr(calibration, "SAMPLES", ((small, (4,)),))
    monkeypatch.setattr(calibration, "clocked_twice", refused)
    assert calibration.measure() is None


def test_calibrating_again_measures_each_number_of_threads_that_is_known_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_num_threads()
    asked: list[int] = []

    def calibrate() -> CostTable | None:
        asked.append(torch.get_num_threads())
        return None if asked[-1] == 3 else attrs.evolve(TABLE, threads=asked[-1])

    kept = [attrs.evolve(TABLE, threads=threads) for threads in (3, 2, before)]
    monkeypatch.setattr(tables, "kept", lambda: kept)
    monkeypatch.setattr(calibration, "calibrate", calibrate)
    assert [table.threads for table in calibration.calibrate_again()] == sorted({2, before})
    assert asked == sorted({2, 3, before})
    assert torch.get_num_threads() == before

    def fails() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration, "calibrate", fails)
    with pytest.raises(KeyboardInterrupt):
        calibration.calibrate_again()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("threads", "words"), [(1, "1 thread, once"), (2, "2 threads, once")])
def test_what_is_measured_is_said_and_kept_where_there_is_something(
    threads: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    kept: list[CostTable] = []
    monkeypatch.setattr(tables, "keep", kept.append)
    for made in (TABLE, None):
        monkeypatch.setattr(calibration, "measure", lambda made=made: made)
        assert calibration.calibrate() is made
    assert kept == [TABLE]
    assert f"npucompose: measuring kernels on {words} …" in capsys.readouterr().err


def test_the_doctor_measures_kernels_only_where_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from npucompose.report import doctor

    measured: list[str] = []
    monkeypatch.setattr(doctor, "diagnose", lambda store: SimpleNamespace(exit_status=0))
    monkeypatch.setattr(doctor, "show", lambda found, as_json: None)
    monkeypatch.setattr(calibration, "calibrate_again", lambda: measured.append("again") or measured)
    assert main(["doctor"]) == 0
    assert measured == []
    assert main(["doctor", "--calibrate"]) == 0
    assert measured == ["again"]
    monkeypatch.setattr(calibration, "calibrate_again", list)
    assert main(["doctor", "--calibrate"]) == 2
    assert "native replayer" in capsys.readouterr().err
