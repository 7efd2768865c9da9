"""The backend object's record of each graph: its stages, times, partition, plan and constants. Compiles no model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from attrs import frozen
from torch import fx

from npucompose import ops
from npucompose.errors import CompileError
from npucompose.graphs import Snapshot
from npucompose.results.graphs import Partition
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Streams
from npucompose.streams import apply
from npucompose.targets import backend as backend_module
from npucompose.targets import compilers as aot
from npucompose.targets.compilation import Compilation, kind_of_source, sources_of
from npucompose.vendor.inductor import InductorOptions
from tests.graph_helpers import traced
from tests.sample_graphs import mm_abs_sub
from tests.targets.noting import CUT, MODE, Lowered, Noting, Passes, backend, begun, dynamos, named


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that says 1, 2, 4, 8, … seconds: each span between two looks is told by its length."""
    looks = iter(2.0**k for k in range(40))
    for module in (backend_module, aot):
        monkeypatch.setattr(module, "perf_counter", lambda: next(looks))


def test_what_nobody_asked_for_is_as_it_is() -> None:
    made = backend()
    assert (made.partial, made.strict, made.mode, made.__name__) == ("cut", "mode", MODE, f"npucompose(noting, {MODE})")
    assert (made.genuine, made.refusal, made.cache, made.repeated) == (None,) * 4
    assert (made.reads_only, made.records_at_once) == (False, False)
    assert (made.compilations, made.entered_at, made.decompositions) == ([], [], {})
    assert (made.loaded_before, made.calls_beyond) == (0, 0)
    assert made.inductor == InductorOptions()
    assert made.folders.files is made.folders.cache is None
    assert made.effective() == ()
    assert made.common_memory is made.common_memory
    assert made.common_memory == ["memory"]


# The record of a graph.


def test_a_graph_goes_through_both_stages_with_its_constants_and_is_kept() -> None:
    pre, post = Passes("one"), Passes("two", "three")
    made, graph = begun(backend(pre=pre, post=post)), traced(lambda x: (x + 1,), torch.ones(2))
    found = made.rewrite(graph, ["x"])
    assert pre.given == post.given == [(graph, ["x"], {})]
    assert found.passes == ("one", "two", "three")
    assert made.compilations == [found]
    assert made.rewrite(graph, ["x"]).id == "graph_1"
    assert [c.id for c in made.compilations] == ["graph_0", "graph_1"]
    made.forget(found)
    assert [c.id for c in made.compilations] == ["graph_1"]
    assert made.rewrite(graph, []).id == "graph_2", "numbers are not given twice"


def test_each_part_of_a_record_has_its_time(clock: None) -> None:
    made, graph = begun(backend(), -10.0), traced(lambda x: (x + 1,), torch.ones(2))
    found = made.rewrite(graph, [])
    # looks: begin 1 and 2, passes 4 to 8, finish 16 to 32
    assert found.aot_s == 1.0 + 10.0
    assert found.passes_s == 8.0 - 4.0
    assert found.account_s == (2.0 - 1.0) + (32.0 - 16.0)
    assert found.backend_s == 0.0


def test_a_graph_that_no_pass_has_seen_is_the_same_before_and_after() -> None:
    graph = traced(lambda x: (x + 1,), torch.ones(2))
    for names, same in (((), True), (("one",), False)):
        found = begun(backend(pre=Passes(*names))).rewrite(graph, [])
        assert (found.after is found.before) is same
        assert len(found.before.lines) == found.nodes_after > 0
        assert found.before.text == found.text_after
    assert "aten.add.Tensor" in found.text_after
    assert found.before.symbols == ()
    assert (found.decision, found.lowered, found.planned, found.partition) == (None,) * 4
    assert found.refused_on_npu == ()


def test_a_record_that_is_not_finished_has_nothing_after_the_passes() -> None:
    graph = traced(lambda x: (x + 1,), torch.ones(2))
    found = begun(backend()).begin(graph)
    assert (found.after, found.nodes_after, found.text_after) == (None, 0, "")
    assert found.graph_module is graph
    assert found.before.text == Snapshot.from_graph(graph.graph).text
    assert found.sources == ()


def test_the_partition_is_that_of_what_was_lowered_or_else_the_planned_one() -> None:
    graph = traced(lambda x: (x + 1,), torch.ones(2))
    found = Compilation(id="graph_0", before=Snapshot.from_graph(graph.graph), graph_module=graph)
    assert found.partition is None
    found.planned = Partition(segments=3)
    assert found.partition == Partition(segments=3)
    found.lowered = Lowered()  # type: ignore[assignment]
    assert found.partition == CUT


def test_the_plan_is_read_off_a_graph_that_orders_streams_and_once() -> None:
    ops.define()
    x = torch.randn(4, 4)
    plain, planned = traced(mm_abs_sub, x), traced(mm_abs_sub, x)
    apply(planned.graph, Streams(min_gain=0), Capabilities(target="noting", mode=MODE))
    records = [begun(backend()).rewrite(graph, []) for graph in (plain, planned)]
    assert not records[0].plan.nodes
    records[1].settle()
    assert len(set(records[1].plan.nodes.values())) == 2
    for node in list(planned.graph.nodes)[::-1]:
        if node.op == "output":
            node.args = ((),)
        elif node.op != "placeholder":
            planned.graph.erase_node(node)
    assert records[1].plan.nodes, "settled: somebody else may change the graph"
    assert records[1].facts


def test_a_device_that_previews_an_npu_says_what_an_npu_refuses_and_strict_all_refuses_it_too() -> None:
    @frozen(kw_only=True)
    class Previewing(Noting):
        previews_npu: ClassVar[bool] = True

    graph = traced(lambda x: (x.nonzero(),), torch.ones(2))
    made = begun(backend(Previewing(), strict="mode"))
    assert [one.operator for one in made.rewrite(graph, []).refused_on_npu] == ["aten.nonzero"]
    (told,) = made.effective()
    assert (told.option, told.requested, told.effective) == ("target", "noting", "noting")
    assert "target=npu refuses this graph: nonzero" in told.why.replace("aten.", "")
    strict = begun(backend(Previewing(), strict="all"))
    with pytest.raises(CompileError, match=r"refuses this graph: .*strict=all refuses here what an NPU would"):
        strict.rewrite(graph, [])
    assert strict.compilations == []
    fine = begun(backend(Previewing(), strict="all"))
    assert fine.rewrite(traced(lambda x: (x + 1,), torch.ones(2)), []).refused_on_npu == ()
    plain = begun(backend(strict="all"))
    assert plain.rewrite(graph, []).refused_on_npu == ()


def test_what_is_left_of_a_time_is_the_backends(clock: None) -> None:
    made, graph = backend(), traced(lambda x: (x + 1,), torch.ones(2))
    for aot_s, passes_s in ((1.0, 1.0), (1.0, 2.0), (9.0, 9.0)):
        record = Compilation(id="", before=Snapshot.from_graph(graph.graph), graph_module=graph)
        record.aot_s, record.passes_s = aot_s, passes_s
        made.compilations.append(record)
    made.charge(1, 10.0)
    assert [c.backend_s for c in made.compilations] == [0.0, 7.0, 0.0]


# Constants.


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("L['self']._modules['fc']._parameters['weight']", "parameter"),
        ("L['self']._buffers['count']", "buffer"),
        ("L['x']", None),
        ("L['self']._parameters['w'].size", None),
        ("s0", None),
        (None, None),
    ],
)
def test_torchs_name_of_an_input_says_what_it_is(source: str | None, kind: str | None) -> None:
    assert kind_of_source(source) == kind


def test_parameters_and_buffers_are_constants_where_no_gradient_is_wanted_of_them() -> None:
    weight, count = torch.nn.Parameter(torch.ones(2)), torch.zeros(2)
    fake = torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2))
    sources = ("L['m']._parameters['w']", "L['m']._buffers['c']", "L['x']", "L['m']._buffers['f']", None)
    given = [weight, count, torch.ones(2), fake, torch.ones(2)]
    made = begun(backend())
    made._sources, made._given = sources, given
    graph = fx.Graph()
    names = [graph.placeholder(f"p{k}").name for k in range(len(given))]
    graph.output(())
    module = fx.GraphModule({}, graph)
    with torch.no_grad():
        found = made.constants(module)
    assert {name: (one.value is given[k], one.kind) for k, name in enumerate(names) if (one := found.get(name))} == {
        "p0": (True, "parameter"), "p1": (True, "buffer"),
    }  # fmt: skip
    with torch.enable_grad():
        assert list(made.constants(module)) == ["p1"], "it may be trained"
    weight.requires_grad_(False)
    with torch.enable_grad():
        assert list(made.constants(module)) == ["p0", "p1"]


def test_the_sources_are_what_dynamo_calls_its_inputs() -> None:
    graph = dynamos(named("L['x']"), SimpleNamespace(name=lambda: "L['y']"), None, SimpleNamespace())
    assert list(sources_of(graph)) == ["L['x']", "L['y']", None, None]


def test_lowering_has_its_time(clock: None) -> None:
    made = backend()
    with torch.no_grad():
        made(dynamos(named("L['x']")), [torch.ones(2)])(torch.ones(2))
    # looks: the call 1, begin 2 and 4, passes 8 to 16, finish 32 to 64, lowering 128 to 256
    (found,) = made.compilations
    assert (found.aot_s, found.passes_s, found.backend_s) == (2.0 - 1.0, 16.0 - 8.0, 256.0 - 128.0)
