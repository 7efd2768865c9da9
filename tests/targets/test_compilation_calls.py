"""The calls of a backend: what is lowered and how, what is counted, and graphs that want gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from npucompose import ops
from npucompose.errors import CaptureError
from npucompose.graphs import describe
from npucompose.recorder import LowerRequest
from npucompose.results.measured import CallStatistics
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Streams
from npucompose.streams import apply
from npucompose.targets import compilers
from npucompose.targets import compilers as aot
from npucompose.targets.backend import Notices
from npucompose.targets.base import VendorCompiler
from npucompose.targets.compilation import Compilation
from npucompose.targets.compiled_calls import Versions
from npucompose.targets.compilers import refuse_training, run_as_it_is
from npucompose.vendor.compiler import CompilerOptions
from tests.graph_helpers import traced
from tests.sample_graphs import mm_abs_sub
from tests.targets.noting import CUT, MODE, Lowered, Noting, backend, begun, dynamos, named


def test_a_graph_of_dynamos_is_compiled_by_the_target_and_the_time_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiling(Noting):  # of its own: that a class has a method is asked once
        def compile(self, *given: Any) -> Any:
            return "compiled", *given

    made, graph = backend(Compiling()), dynamos(named("L['x']"))
    monkeypatch.setattr(compilers, "only_read", lambda *given: ("read", *given))
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
    made.genuine = VendorCompiler(config=None, backend=lambda *_: print)
    theirs: Any = made.torch_compile(model)
    assert not isinstance(theirs, Versions)
    assert theirs(3) == ("compiled", 3, 3)


def test_a_call_in_which_no_graph_of_the_vendor_s_ran_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    made = backend()
    made.genuine = VendorCompiler(config=None, backend=lambda *_: print, runs=lambda: len(ran))
    called = made.torch_compile(lambda x: ran.append(x) if x > 2 else None)
    for x in (1, 3, 2, 4):
        called(x)
    assert (made.calls_beyond, ran) == (2, [3, 4])


def test_calls_of_all_recorded_graphs_are_counted_together() -> None:
    made = backend()
    for lowered in (Lowered(), None, SimpleNamespace()):
        made.compilations.append(SimpleNamespace(lowered=lowered))  # type: ignore[arg-type]
    made.compilations.append(SimpleNamespace(lowered=Lowered()))  # type: ignore[arg-type]
    made.calls_beyond = 5
    assert made.statistics == CallStatistics(hits=4, eager=2 + 5)


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
