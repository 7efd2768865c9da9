"""trace.json is what the Trace Event Format asks for: slices, paired flows, counters, time that only goes forward."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from npucompose.report.json import trace_text
from npucompose.results.streams import Timeline
from npucompose.table.structure import facts_of, of_facts

LINE = Timeline(
    source="predicted",
    nodes=("mm", "abs_1", "sub", "add"),
    streams=("default", "stream1", "stream1", "default"),
    start_us=(0.0, 2.0, 4.0, 8.0),
    end_us=(5.0, 4.0, 6.0, 9.0),
    events=(("sub", "add"),),
    counters={"bytes alive": ((0.0, 64.0), (2.0, 128.0), (9.0, 0.0))},
)


def entries(lines: dict[str, Timeline]) -> list[dict[str, Any]]:
    return json.loads(trace_text(list(lines.items())))["traceEvents"]


def test_every_kernel_is_a_slice_on_its_stream_s_track() -> None:
    found = entries({"graph_0": LINE})
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    slices = {e["name"]: (names[e["tid"]], e["ts"], e["dur"]) for e in found if e["ph"] == "X"}
    assert slices == {
        "mm": ("default", 0.0, 5.0),
        "abs_1": ("stream1", 2.0, 2.0),
        "sub": ("stream1", 4.0, 2.0),
        "add": ("default", 8.0, 1.0),
    }


def test_an_event_is_an_arrow_from_inside_its_recorder_to_its_waiter() -> None:
    (begin,) = [e for e in entries({"g": LINE}) if e["ph"] == "s"]
    (end,) = [e for e in entries({"g": LINE}) if e["ph"] == "f"]
    assert (begin["id"], begin["cat"], begin["name"]) == (end["id"], end["cat"], end["name"])
    assert 4.0 <= begin["ts"] <= 6.0
    assert (end["ts"], end["bp"]) == (8.0, "e")


def test_time_goes_forward_on_every_track_and_flows_are_paired() -> None:
    found = entries({"graph_0": LINE, "graph_1": LINE})
    tracks: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    flows: dict[int, list[str]] = defaultdict(list)
    for entry in found:
        assert isinstance(entry["pid"], int)
        assert entry["ph"] in ("M", "X", "s", "f", "C")
        if entry["ph"] == "M":
            continue
        tracks[entry["pid"], entry.get("tid"), entry["ph"] == "C"].append(entry["ts"])
        assert entry.get("dur", 0.0) >= 0.0
        if entry["ph"] in "sf":
            flows[entry["id"]].append(entry["ph"])
    assert all(times == sorted(times) for times in tracks.values())
    assert sorted(flows.values()) == [["s", "f"], ["s", "f"]]
    assert {e["args"]["name"] for e in found if e["name"] == "process_name"} == {
        "graph_0 (predicted)",
        "graph_1 (predicted)",
    }


def test_counters_carry_their_values() -> None:
    values = [(e["ts"], e["args"]["bytes alive"]) for e in entries({"g": LINE}) if e["ph"] == "C"]
    assert values == [(0.0, 64.0), (2.0, 128.0), (9.0, 0.0)]


def test_a_timeline_survives_the_store() -> None:
    assert of_facts(Timeline, json.loads(json.dumps(facts_of(LINE))), where="timeline") == LINE
