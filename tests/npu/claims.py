"""Everything that the README says of TorchAir on an NPU, as functions that prove it on either target.

A claim asserts; what it found is evidence whether it holds or not. Counts that only the simulator can give are asserted
where they are given, and the calls of torch.npu (watched.py) are counted on both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attrs import frozen

from npucompose import api
from npucompose.recipe import eject
from npucompose.table.modes import GE, NPUGRAPH_EX
from npucompose.targets.npu_offline import wheel
from npucompose.targets.npu_offline.option_trees import read_tree
from npucompose.vendor.versions import assumed, genuine_tree
from tests.npu.features import FEATURES
from tests.npu.place import Place
from tests.recipe.experiments import EXPERIMENTS

HERE = Path(__file__).parent
TESTS = HERE.parent
MODES = (GE, "reduce-overhead", NPUGRAPH_EX)
CAPTURING = MODES[1:]
MODELS = ("add", "mm_abs_sub", "linear_scalar", "attention_decode", "gpt_decode", "moe_shared_expert")
PLANS = {"plain": "passes=[]", "planned": "passes=[stream_plan]"}
NO_CONVERTER = """
import torch


class Indexed(torch.nn.Module):
    def forward(self, x, index, source):
        y = x + 1
        return torch.index_copy(y, 0, index, source)


def make():
    return Indexed(), {"x": torch.zeros(4, 4), "index": torch.tensor([1]), "source": torch.ones(1, 4)}
"""
REPEATED = """
import torch


class Rows(torch.nn.Module):
    def block(self, x):
        y = x * 2
        if y.sum().item() > 1e9:  # a graph break: one graph serves all three places
            raise ValueError
        return y

    def forward(self, x):
        return torch.stack([self.block(x), self.block(x + 1), self.block(x + 2)])


def make():
    return Rows(), {"x": torch.arange(8.0).reshape(2, 4)}
"""
REPEATED_CHOICES = ("model=python", "model.factory=rows:make", "trust=true", "compile.fullgraph=false")
CLONE = {"reduce-overhead": "debug.aclgraph.enable_output_clone", NPUGRAPH_EX: "npugraph_ex.clone_output"}


@frozen(kw_only=True)
class Claim:
    name: str
    says: str
    prove: Callable[[Place], None]


def option_tree(place: Place) -> None:
    tree = wheel.locate()
    version = wheel.version(tree)
    version = assumed(version) or version
    found, known = {leaf.path: leaf for leaf in read_tree(tree)}, genuine_tree(version)
    unlike = sorted(path for path in {*found, *known} if found.get(path) != known.get(path))
    place.note(torch_npu=wheel.version(tree), compared_with=version, leaves=len(found), unlike=unlike)
    assert unlike == []


def configuration(mode: str, place: Place) -> None:
    found = place.printed(TESTS / "npu" / "genuine_config.py", mode, place.target)
    place.note(**found)
    assert found["differs"] == found["asked"]
    assert found["hooks"] == ["PassHooks", "PassHooks"]
    assert found["signals_kept"]
    assert found["level"] == 10


def every_model(mode: str, model: str, plan: str, place: Place) -> None:
    ran = place.run(f"mode={mode}", f"model={model}", PLANS[plan], "streams.min_gain=0")
    assert ran.status == 0
    assert ran.error.count("deprecated") == (mode == "reduce-overhead")
    assert ran.npu["platform"] == place.platform
    assert ran.npu["fx_graphs"] == 1
    assert ran.npu["unordered"] == []
    assert ran.report["numerics"]["passed"]
    if mode == GE:
        assert len(ran.npu["ge_graphs"]) == 1
    else:
        assert ran.npu["captures"] == 1
        assert ran.report["numerics"]["bitwise"]


def ge_streams(place: Place) -> None:
    ran = place.run(f"mode={GE}", "model=mm_abs_sub", "passes=stream_plan", "streams=mm_abs_sub")
    assert ran.status == 0
    (graph,) = ran.npu["ge_graphs"]
    assert graph["shapes"] == "static"
    assert graph["types"]["MatMul"] == graph["types"]["Abs"] == graph["types"]["Sub"] == 1
    assert set(graph["streams"].values()) == {"stream1"}
    assert len(graph["streams"]) == 2
    assert len(graph["control_edges"]) == 1
    assert all("NPU" in data for data in graph["data"].values())
    assert graph["options"]["ge.tiling_schedule_optimize"] == "0"
    assert ran.npu["global_options"]["ge.oo.level"] == "O3"
    listing = (ran.folder / "graphs" / "graph_0.ge.txt").read_text()
    assert "_user_stream_label=stream1" in listing
    assert ":-1" in listing


def ge_frozen_inputs(place: Place) -> None:
    ran = place.run(f"mode={GE}", "model=mlp", "compiler.experimental_config.frozen_parameter=true")
    assert ran.status == 0
    assert "1" in ran.npu["ge_graphs"][0]["options"]["frozenInput"]


def ge_gears(place: Place) -> None:
    chosen = ("model=add", "shapes=dynamic", "+shapes.gears={x.0:[32,64],y.0:[32,64]}")
    ran = place.run(f"mode={GE}", *chosen)
    assert ran.status == 0
    assert set(ran.npu["ge_graphs"][0]["options"]["ge.dynamicDims"].split(";")) == {"32,32", "64,64"}
    ran = place.run(f"mode={NPUGRAPH_EX}", *chosen)
    assert ran.status == 2
    assert "gears have no effect in mode=npugraph_ex" in ran.error


def ge_sink(place: Place) -> None:
    ran = place.run(f"mode={GE}", "model=linear_scalar", "tiling=sink")
    assert ran.status == 0
    assert ran.npu["ge_graphs"][0]["options"]["ge.tiling_schedule_optimize"] == "1"
    assert ran.npu["ge_graphs"][0]["shapes"] == "static"


def ge_decomposition(place: Place) -> None:
    ran = place.run(f"mode={GE}", "model=mlp", "target.decompose=[aten.addmm]")
    assert ran.status == 0
    assert "addmm" not in (ran.folder / "graphs" / "graph_0.before.txt").read_text()
    assert ran.npu["ge_graphs"][0]["types"]["MatMul"] >= 1


def no_converter(place: Place) -> None:
    (place.folder / "indexed.py").write_text(NO_CONVERTER)
    ran = place.run(f"mode={GE}", "model=python", "model.factory=indexed:make", "trust=true")
    assert ran.status == 3
    assert "no GE converter for torch.ops.aten.index_copy.default" in ran.error
    assert "at indexed.py:8 in forward: return torch.index_copy(y, 0, index, source)" in ran.error


def task_updates(mode: str, place: Place) -> None:
    found = place.printed(HERE / "watched.py", place.target, "updates", mode)
    calls = found["calls"]
    replays = [call for call in calls if call.startswith("replay")]
    captures = [call for call in calls if call.startswith("capture") and call.replace("capture", "replay") in replays]
    counts = {"captures": len(captures), "replays": len(replays), "task_updates": calls.count("update task")}
    place.note(**found, counts=counts)
    assert found["wrong"] == []
    assert counts == {"captures": 1, "replays": 3, "task_updates": 3}


def task_updates_in_a_run(mode: str, place: Place) -> None:
    ran = place.run(
        f"mode={mode}", "model=attention_decode", "model.grow=3", "shapes=dynamic",
        "shapes.mark_static=[query,key,value]", "expect.recompiles=0",
    )  # fmt: skip
    assert ran.status == 0
    assert ran.npu["captures"] == 1
    assert ran.npu["task_updates"] == ran.npu["replays"]
    assert ran.npu["replays"] is None or ran.npu["replays"] >= 3


def one_graph_three_times(mode: str, place: Place) -> None:
    """TorchAir returns the results of each run in the same memory; the report says so and names what copies them."""
    (place.folder / "rows.py").write_text(REPEATED)
    option = f"compiler.{CLONE[mode]}"
    ran = place.run(f"mode={mode}", *REPEATED_CHOICES)
    overwrites = ran.report["graphs"][0]["overwrites"]
    copied = place.run(f"mode={mode}", *REPEATED_CHOICES, f"{option}=true")
    place.note(overwrites=overwrites, wrong=not ran.report["numerics"]["passed"])
    assert overwrites == {"runs": 3, "option": option}
    assert ran.status == 1
    assert copied.status == 0
    assert copied.report["numerics"]["bitwise"]
    assert copied.report["graphs"][0]["overwrites"] is None


def stream_order(mode: str, place: Place) -> None:
    found = place.printed(HERE / "watched.py", place.target, "order", mode)
    place.note(**found)
    assert found["equal"]
    ordered = _ordered(found["calls"])
    assert len(ordered) >= found["events"] >= 1
    assert all(recorded_on != waited_on for recorded_on, waited_on in ordered)


def _ordered(calls: list[str]) -> list[tuple[str, str]]:
    """(stream of the record, stream of the wait) of every event that another stream waits for after its record."""
    replay = next(n for n, call in enumerate(calls) if call.startswith("replay"))
    capture = calls.index(calls[replay].replace("replay", "capture"))
    recorded: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    for call in calls[capture:replay]:
        told = re.fullmatch(r"(record|wait) event (\d+) on stream (-?\d+)", call)
        if told is None:
            continue
        what, event, stream = told.groups()
        if what == "record":
            recorded[event] = stream
        elif event in recorded and recorded[event] != stream:
            found.append((recorded[event], stream))
    return found


def ejected(name: str, place: Place) -> None:
    """The script of an experiment and the experiment itself: the same objects, graphs, captures and values."""
    overrides = [*EXPERIMENTS[name], f"target={place.target}"]
    checked = api.checked(overrides)
    mine, its = (
        place.printed(TESTS / "recipe" / "on_torchair.py", told=json.dumps({"overrides": overrides, "script": script}))
        for script in (None, eject(*EXPERIMENTS[name]))
    )
    place.note(experiment=mine, script=its)
    assert its["as_dict"] == mine["as_dict"]
    assert its["leaves"] == mine["leaves"]
    assert its["ge"] == mine["ge"]
    assert its["counts"]["captures"] == mine["counts"]["captures"]
    assert its["close"]
    assert its["equal"] or checked.experiment.mode.name == GE
    if checked.passes:
        assert its["graphs"] == mine["graphs"]


def _claims_of_captures(mode: str) -> list[Claim]:
    return [
        Claim(
            name=f"task updates[{mode}]",
            says="three lengths are one capture, three replays and three task updates, with the values of eager",
            prove=partial(task_updates, mode),
        ),
        Claim(
            name=f"task updates in a run[{mode}]",
            says="growing lengths update tasks, capture once and do not recompile",
            prove=partial(task_updates_in_a_run, mode),
        ),
        Claim(
            name=f"stream order[{mode}]",
            says="each event of a plan is recorded on one stream before another waits for it",
            prove=partial(stream_order, mode),
        ),
        Claim(
            name=f"repeated[{mode}]",
            says="a graph that runs three times in one call returns the same memory; the report names what copies it",
            prove=partial(one_graph_three_times, mode),
        ),
    ]


def _claims() -> list[Claim]:
    claims = [
        Claim(
            name="option_tree",
            says="the option classes of the installed torch_npu are those of the committed table",
            prove=option_tree,
        )
    ]
    claims += [
        Claim(
            name=f"configuration[{mode}]",
            says="the genuine configuration holds what was asked and nothing else, our pipelines are its two hooks",
            prove=partial(configuration, mode),
        )
        for mode in (GE, NPUGRAPH_EX)
    ]
    claims += [
        Claim(
            name=f"run[{mode}, {model}, {plan}]",
            says="one graph, one capture, and the values of eager",
            prove=partial(every_model, mode, model, plan),
        )
        for model in MODELS
        for mode in MODES
        for plan in PLANS
    ]
    facts: dict[str, tuple[str, Callable[[Place], None]]] = {
        "ge[streams]": ("a plan becomes stream labels and a control edge of the GE graph", ge_streams),
        "ge[frozen inputs]": ("parameters on the device are frozen inputs", ge_frozen_inputs),
        "ge[gears]": ("gears reach GE as options, and only GE takes them", ge_gears),
        "ge[sink]": ("tiling=sink reaches GE with a static graph", ge_sink),
        "ge[decomposition]": ("operators are taken apart where that is asked for", ge_decomposition),
        "ge[no converter]": ("an operator without a GE converter is named with its line", no_converter),
        **FEATURES,
    }
    claims += [Claim(name=name, says=says, prove=prove) for name, (says, prove) in facts.items()]
    claims += [claim for mode in CAPTURING for claim in _claims_of_captures(mode)]
    claims += [
        Claim(
            name=f"ejected[{name}]",
            says="the ejected script gives the configuration, the graph and the values of its experiment",
            prove=partial(ejected, name),
        )
        for name in EXPERIMENTS
    ]
    return claims


CLAIMS: tuple[Claim, ...] = tuple(_claims())
