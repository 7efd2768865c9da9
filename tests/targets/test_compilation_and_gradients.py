"""The backend object by itself: its record of each graph, what it hands on and what it counts. Compiles no model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from attrs import frozen
from torch import fx
from torch.utils._pytree import tree_leaves

from npucompose import ops
from npucompose.errors import CaptureError, CompileError
from npucompose.graphs import Snapshot, describe
from npucompose.replay.interface import LowerRequest
from npucompose.results.graphs import Partition
from npucompose.results.measured import CallStatistics
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Streams
from npucompose.streams import apply
from npucompose.targets import aot, compilation
from npucompose.targets.aot import refuse_training, run_as_it_is
from npucompose.targets.base import ModeSupport, Target
from npucompose.targets.compilation import Backend, Compilation, Notices, kind_of_source
from npucompose.targets.compiled_calls import Versions
from npucompose.targets.frozen_weights import FrozenWeights
from npucompose.vendor.compiler import CompilerOptions
from npucompose.vendor.inductor import InductorOptions
from tests.replay.capturing import traced
from tests.sample_graphs import mm_abs_sub

MODE = "reduce-overhead"
CUT = Partition(segments=2)


class Lowered(SimpleNamespace):
    """What the target below makes of a graph: it adds up what it is given."""

    _boxed_call = True
    statistics = CallStatistics(hits=2, eager=1)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return list(self.request.graph_module(*inputs))

    def recordings(self) -> list[Any]:
        return []

    def partition(self) -> Partition:
        return CUT


@frozen(kw_only=True)
class Noting(Target):
    """Hands the request back, lowered."""

    name: ClassVar[str] = "noting"
    modes: ClassVar[Mapping[str, ModeSupport]] = {MODE: ModeSupport(), "eager": ModeSupport()}
    fusing: bool = False

    def capabilities(self, mode: str) -> Capabilities:
        return Capabilities(target=self.name, mode=mode)

    def identity(self) -> Mapping[str, str]:
        return {"device": "none"}

    def support(self, mode: str) -> ModeSupport:
        return ModeSupport(fuses=self.fusing and mode == MODE, compiles=mode != "eager")

    def common_memory(self) -> Any:
        return ["memory"]

    def partition(self, mode: str, graph_module: fx.GraphModule) -> Partition | None:
        return CUT if mode == MODE else None

    def lower(self, request: LowerRequest) -> Any:
        return Lowered(request=request, captured=[])


class Passes:
    """A pipeline that notes what it is given and has one record for each name."""

    def __init__(self, *names: str) -> None:
        self.names, self.given = names, list[Any]()

    def __call__(self, graph_module: fx.GraphModule, inputs: Any, constants: Any = None) -> Any:
        self.given.append((graph_module, inputs, constants))
        return self.names


def backend(target: Target | None = None, *, mode: str = MODE, **more: Any) -> Backend:
    named: dict[str, Any] = {"pre": Passes(), "post": Passes(), "options": CompilerOptions(), **more}
    return Backend(target=target or Noting(), mode=mode, **named)


def dynamos(*sources: Any) -> fx.GraphModule:
    """A graph as Dynamo makes it: a placeholder for each source, and their sum."""
    graph = fx.Graph()
    given = [graph.placeholder(f"l_{k}_") for k in range(len(sources))]
    for node, source in zip(given, sources, strict=True):
        if source is not None:
            node.meta["grapharg"] = SimpleNamespace(source=source)
    total = given[0]
    for node in given[1:]:
        total = graph.call_function(torch.add, (total, node))
    graph.output((graph.call_function(torch.neg, (total,)),))
    return fx.GraphModule({}, graph)


def named(name: str) -> Any:
    return SimpleNamespace(name=name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that says 1, 2, 4, 8, … seconds: each span between two looks is told by its length."""
    looks = iter(2.0**k for k in range(40))
    for module in (compilation, aot):
        monkeypatch.setattr(module, "perf_counter", lambda: next(looks))


def begun(made: Backend, at: float = 0.0) -> Backend:
    made.entered_at.append(at)
    return made


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
    assert list(compilation._sources(graph)) == ["L['x']", "L['y']", None, None]


# Calls.


def test_a_graph_of_dynamos_is_compiled_by_the_target_and_the_time_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    made, graph = backend(), dynamos(named("L['x']"))
    monkeypatch.setattr(Noting, "compile", lambda self, *given: ("compiled", *given))
    monkeypatch.setattr(aot, "only_read", lambda *given: ("read", *given))
    x = [torch.ones(1)]
    called: Any = made(graph, x, options={"any": 1})
    assert called == ("compiled", made, graph, x)
    assert (len(made.entered_at), made._sources, made._given) == (1, ("L['x']",), x)
    made.reads_only = True
    called = made(graph, x)
    assert called == ("read", made, graph, x)
    eager = backend(mode="eager")
    assert eager(graph, x) == graph.forward
    assert (len(eager.entered_at), eager.compilations) == (1, [])


def test_graphs_are_watched_where_their_runs_are_counted() -> None:
    graph = dynamos(named("L['x']"))
    for watching in (False, True):
        made = backend()
        seen: list[Any] = []
        if watching:
            made.repeated = SimpleNamespace(watched=lambda called, name, to=seen: to.append(name) or called)  # type: ignore[assignment]
        with torch.no_grad():
            assert made(graph, [torch.ones(2)])(torch.ones(2))[0].tolist() == [-1.0, -1.0]
        assert seen == (["graph_0"] if watching else [])


def test_a_graph_is_lowered_with_what_the_backend_was_asked() -> None:
    graph = dynamos(named("L['x']"), named("L['y']"))
    asked = CompilerOptions(values={"debug.aclgraph.static_capture_size_limit": 3})
    for partial, at_once in (("cut", False), ("refuse", True)):
        made = backend(options=asked, partial=partial)
        made.records_at_once = at_once
        x, y = torch.ones(2), torch.full((2,), 2.0)
        with torch.no_grad():
            assert made(graph, [x, y])(x, y)[0].tolist() == [-3.0, -3.0]
        (found,) = made.compilations
        lowered: Any = found.lowered
        request: LowerRequest = lowered.request
        assert (request.mode, request.options, request.partial, request.at_once) == (MODE, asked, partial, at_once)
        assert request.graph_module is found.graph_module
        assert len(request.example_inputs) == 2
        assert request.static_inputs == frozenset()
        assert request.memory is made.common_memory
        assert found.sources == ("L['x']", "L['y']")
        assert found.backend_s > 0
        assert found.partition == CUT


def test_lowering_has_its_time(clock: None) -> None:
    made = backend()
    with torch.no_grad():
        made(dynamos(named("L['x']")), [torch.ones(2)])(torch.ones(2))
    # looks: the call 1, begin 2 and 4, passes 8 to 16, finish 32 to 64, lowering 128 to 256
    (found,) = made.compilations
    assert (found.aot_s, found.passes_s, found.backend_s) == (2.0 - 1.0, 16.0 - 8.0, 256.0 - 128.0)


@pytest.mark.parametrize("reads_only", [False, True])
def test_what_the_graph_writes_into_its_inputs_stays_in_the_graph(reads_only: bool) -> None:
    made = backend()
    made.reads_only = reads_only
    x = torch.ones(2)
    with torch.no_grad():
        graph = fx.symbolic_trace(lambda x: (x.add_(1) * 2,))
        assert made(graph, [x])(x)[0].tolist() == [4.0, 4.0]
    assert x.tolist() == [2.0, 2.0]
    (found,) = made.compilations
    assert "aten.copy_" in found.text_after


@pytest.mark.parametrize(("symbols", "settled"), [((), []), (("s0",), ["graph_0"])])
def test_a_graph_with_symbols_is_read_before_they_are_bound_to_sizes(
    monkeypatch: pytest.MonkeyPatch, symbols: tuple[str, ...], settled: list[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Compilation, "settle", lambda self: seen.append(self.id))
    monkeypatch.setattr(describe, "symbols", lambda graph: symbols)
    begun(backend()).rewrite(traced(lambda x: (x + 1,), torch.ones(2)), [])
    assert seen == settled


def test_a_call_that_wants_gradients_is_refused_or_runs_unrecorded() -> None:
    graph = dynamos(named("L['x']"))
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(CaptureError, match="records kernels for inference"):
        backend(partial="refuse")(graph, [x])(x)
    made = backend()
    with pytest.warns(RuntimeWarning, match="requires grad"):
        (result,) = made(graph, [x])(x)
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-1.0, -1.0]
    assert [c.lowered for c in made.compilations] == [None, None], "forward and backward"


def test_a_graph_that_is_only_read_goes_through_the_passes_and_runs_without_its_plan() -> None:
    ops.define()

    def planning(graph_module: fx.GraphModule, inputs: Any, constants: Any = None) -> Any:
        apply(graph_module.graph, Streams(min_gain=0), Capabilities(target="noting", mode=MODE))
        graph_module.recompile()
        return ("planned",)

    graph, x = fx.symbolic_trace(lambda x: (mm_abs_sub(x),)), torch.randn(4, 4)
    expected: Any = tree_leaves(mm_abs_sub(x))
    made = backend(pre=planning)
    made.reads_only = True
    with torch.no_grad():
        got = tree_leaves(made(graph, [x])(x))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    (found,) = made.compilations
    assert found.lowered is None
    assert found.partition == CUT
    assert len(set(found.plan.nodes.values())) == 2
    assert "scope_enter" in found.text_after
    assert not any("scope_enter" in str(node.target) for node in found.graph_module.graph.nodes)
    assert "scope_enter" not in found.graph_module.code


# torch.compile around it.


def test_torch_compile_is_asked_for_this_backend_and_again_with_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def compiles(model: Any, **keywords: Any) -> Callable[..., Any]:
        asked.append((model, keywords))
        return lambda *args: ("compiled", len(asked), *args)

    monkeypatch.setattr(torch, "compile", compiles)
    made = backend()
    model = lambda x: ("eager", x)  # noqa: E731
    called: Any = made.torch_compile(model, fullgraph=True, dynamic=False)
    assert isinstance(called, Versions)
    assert asked == [(model, {"backend": made, "fullgraph": True, "dynamic": False})]
    assert called(3) == ("compiled", 1, 3)
    assert called._with_symbols is not None
    called._with_symbols()
    assert asked[1:] == [(model, {"backend": made, "fullgraph": True, "dynamic": None})]
    assert called._eager(4) == ("eager", 4)
    assert called._eager(5) == ("eager", 5)
    assert made.calls_beyond == 2
    assert made.statistics == CallStatistics(eager=2)
    made.genuine = object()  # type: ignore[assignment]
    theirs: Any = made.torch_compile(model)
    assert not isinstance(theirs, Versions)
    assert theirs(3) == ("compiled", 3, 3)


def test_calls_of_all_recorded_graphs_are_counted_together() -> None:
    made = backend()
    for lowered in (Lowered(), None, SimpleNamespace()):
        made.compilations.append(SimpleNamespace(lowered=lowered))  # type: ignore[arg-type]
    made.compilations.append(SimpleNamespace(lowered=Lowered()))  # type: ignore[arg-type]
    made.calls_beyond = 5
    assert made.statistics == CallStatistics(hits=4, eager=2 + 5)


@pytest.mark.parametrize(
    ("fusing", "freezing", "wrapped"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_calls_are_made_so_that_dynamo_freezes_where_inductor_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, fusing: bool, freezing: bool, wrapped: bool
) -> None:
    from npucompose.targets import inductor

    monkeypatch.setattr(inductor, "freezing_while_tracing", lambda *given: given)
    options = InductorOptions(values={"freezing": freezing, "frozen_weights": "error"})
    made = backend(Noting(fusing=fusing), inductor=options)
    compiled = print
    found: Any = made._while_tracing(compiled)
    if not wrapped:
        assert found is compiled
        return
    called, weights = found
    assert called is compiled
    assert weights is made.frozen
    assert isinstance(weights, FrozenWeights)
    assert (weights.policy, weights.shared) == ("error", False)


# Notices and gradients.


def test_a_notice_is_given_once_until_it_is_reset() -> None:
    made = backend()
    assert isinstance(made.notices, Notices)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for words in ("a", "b", "a", "a"):
                made.notices.warn(words)
        assert [str(w.message) for w in caught] == ["a", "b"]
        assert caught[0].filename == __file__
        made.reset()


def test_a_gradient_graph_is_refused_with_the_modes_that_train() -> None:
    with pytest.raises(CaptureError, match=r"requires grad.*torch\.no_grad\(\).*mode=max-autotune, which trains"):
        refuse_training("graph", ["inputs"])


def test_a_gradient_graph_runs_as_the_passes_left_it_and_out_of_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    ops.define()
    x = torch.randn(4, 4)
    for planned in (False, True):
        graph = traced(mm_abs_sub, x)
        if planned:
            apply(graph.graph, Streams(min_gain=0), Capabilities(target="noting", mode=MODE))
            graph.recompile()
        made = begun(backend())
        with pytest.warns(RuntimeWarning, match="without a recording"):
            call = run_as_it_is(made)(graph, [x])
        got = tree_leaves(call([x]))
        expected: Any = tree_leaves(mm_abs_sub(x))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        (found,) = made.compilations
        assert len(set(found.plan.nodes.values())) == (2 if planned else 0)
        assert "scope_enter" not in graph.code
    assert aot.NOT_RECORDED.startswith("an input or a parameter requires grad")
