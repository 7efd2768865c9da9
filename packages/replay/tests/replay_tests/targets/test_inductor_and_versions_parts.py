"""The steps around Inductor one by one: memory of weights, the hook of the passes, generated code that goes."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch._guards import TracingContext
from torch._inductor import config as inductor_config
from torch._inductor.codecache import PyCodeCache
from torch.utils._pytree import TreeSpec

from npucompose.targets import compiled_calls
from npucompose.targets.compiled_calls import Versions
from npucompose_replay.front.as_traced import AsTraced
from npucompose_replay.inductor import through as inductor
from npucompose_replay.inductor.freezing import freezing_while_tracing
from npucompose_replay.interface import is_watched


def attributes(**tensors: torch.Tensor) -> fx.GraphModule:
    root = nn.Module()
    for name, tensor in tensors.items():
        setattr(root, name, tensor)
    graph = fx.Graph()
    graph.output(tuple(graph.get_attr(name) for name in tensors))
    return fx.GraphModule(root, graph)


def test_a_frozen_weight_that_is_a_view_gets_memory_of_its_own() -> None:
    flat = torch.arange(12.0)
    second, turned = flat[4:], flat[8:].reshape(2, 2).t()
    module = attributes(
        first=nn.Parameter(flat[:4], requires_grad=False), second=nn.Parameter(second, requires_grad=False),
        turned=turned, sparse=torch.ones(2).to_sparse(),
    )  # fmt: skip
    before = {name: getattr(module, name) for name in ("first", "sparse")}
    inductor._own_memory(module)
    assert all(getattr(module, name) is tensor for name, tensor in before.items()), "these begin at their storage"
    assert isinstance(module.second, nn.Parameter)
    assert not module.second.requires_grad
    assert type(module.turned) is torch.Tensor
    for name, tensor in (("second", second), ("turned", turned)):
        own = getattr(module, name)
        assert own.storage_offset() == 0
        assert torch.equal(own, tensor)
        assert own.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("freezing", [True, False])
def test_a_weight_that_nobody_can_watch_leaves_all_unfrozen(freezing: bool) -> None:
    plain: Any = SimpleNamespace(watchable=True, tensor=torch.ones(1), name="w")
    with torch.inference_mode():
        counted: Any = SimpleNamespace(watchable=False, tensor=torch.ones(1), name="fc.weight")
    mine = type("Mine", (nn.Parameter,), {})(torch.ones(1))
    other: Any = SimpleNamespace(watchable=False, tensor=mine, name="v")
    with inductor_config.patch(freezing=freezing), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watches: list[Any] = [None, *(SimpleNamespace(weights=w) for w in ([plain], [plain, counted], [other, plain]))]
        found = [inductor._unfrozen(watch) for watch in watches]
    unfrozen = {"freezing": False} if freezing else {}
    assert found == [{}, {}, unfrozen, unfrozen]
    said = [str(w.message) for w in caught]
    words = ["fc.weight is an inference tensor", "v is a Mine"] if freezing else []
    assert said == [f"weights are not frozen: {what}, and nobody could see it change." for what in words]


def test_weights_that_inductor_left_as_inputs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = torch.ones(1), torch.ones(2)
    contexts = iter((None, SimpleNamespace(params_flat=None), SimpleNamespace(params_flat=[one, None, two])))
    monkeypatch.setattr(TracingContext, "try_get", staticmethod(lambda: next(contexts)))
    assert [inductor._kept() for _ in range(3)] == [set(), set(), {id(one), id(two)}]


def test_generated_code_is_forgotten_but_for_what_others_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, common, other, renamed = (ModuleType(f"generated_{k}") for k in range(4))
    kept = [mine, common, other, renamed]
    monkeypatch.setattr(PyCodeCache, "modules", kept)
    monkeypatch.setattr(PyCodeCache, "modules_no_attr", {"path": common}, raising=False)
    for module in (mine, common, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    replaced = ModuleType(renamed.__name__)
    monkeypatch.setitem(sys.modules, renamed.__name__, replaced)
    inductor._forget_code([mine, common, renamed])
    assert kept == [common, other], "in place: Inductor has the list"
    assert mine.__name__ not in sys.modules
    assert sys.modules[common.__name__] is common
    assert sys.modules[renamed.__name__] is replaced


def test_where_no_two_graphs_share_generated_code_all_of_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [ModuleType("generated_0"), ModuleType("generated_1")]
    monkeypatch.setattr(PyCodeCache, "modules", kept)
    monkeypatch.delattr(PyCodeCache, "modules_no_attr", raising=False)
    inductor._forget_code(kept[:1])
    assert [module.__name__ for module in kept] == ["generated_1"]


class Backend(SimpleNamespace):
    """Notes which graphs were rewritten and which are forgotten."""

    def __init__(self) -> None:
        super().__init__(rewritten=[], forgotten=[])

    def rewrite(self, aot: fx.GraphModule, inputs: Any) -> Any:
        made = SimpleNamespace(graph_module=aot, backend_s=0.0, settled=0)
        made.settle = lambda: setattr(made, "settled", made.settled + 1)
        self.rewritten.append((made, list(inputs)))
        return made

    def forget(self, compilation: Any) -> None:
        self.forgotten.append(compilation)


def hooked(*names: str) -> tuple[Any, Backend, fx.GraphModule]:
    backend: Any = Backend()
    graph = fx.Graph()
    for name in names:
        graph.placeholder(name).meta["val"] = f"value of {name}"
    graph.output(())
    return inductor._PassesFirst(backend), backend, fx.GraphModule({}, graph)


def test_the_hook_rewrites_a_graph_for_inference_once() -> None:
    first, backend, module = hooked("x", "y")
    first(module.graph)
    first(module.graph)
    ((made, inputs),) = backend.rewritten
    assert (made.graph_module, inputs, made.settled) == (module, ["value of x", "value of y"], 1)
    other = fx.GraphModule({}, fx.Graph())
    other.graph.output(())
    first(other.graph)
    assert [found.graph_module for found, _ in backend.rewritten] == [module, other]


def test_the_hook_leaves_a_joint_graph_alone() -> None:
    first, backend, module = hooked("primals_1", "tangents_1")
    first(module.graph)
    assert backend.rewritten == []


def test_the_last_graph_has_its_time_and_is_forgotten_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter((3.0, 10.0))
    monkeypatch.setattr(inductor, "perf_counter", lambda: next(looks))
    first, backend, module = hooked("x")
    first.lowered()
    first.forget()
    assert backend.forgotten == []
    first.rewrite(module, ["x"])
    first.lowered()
    ((made, _),) = backend.rewritten
    assert made.backend_s == 7.0
    first.forget()
    first.forget()
    assert backend.forgotten == [made]


def test_streams_are_taken_out_of_a_graph_before_inductor_reads_it() -> None:
    from npucompose import ops

    ops.define()
    first, _, module = hooked("x")
    with module.graph.inserting_before(module.graph.output_node()):
        module.graph.call_function(torch.ops.air.scope_enter.default, (["_user_stream_label"], ["s"]))
        module.graph.call_function(torch.ops.air.scope_exit.default, ())
    module.recompile()
    assert "scope_enter" in module.code
    first.rewrite(module, [])
    assert [node.op for node in module.graph.nodes] == ["placeholder", "output"]
    assert "scope_enter" not in module.code


def test_a_compiled_graph_holds_its_watch_and_gives_its_result() -> None:
    watch: Any = object()
    call = inductor._holding(watch, lambda *given: ("compiled", *given))
    assert call(1, 2) == ("compiled", 1, 2)
    assert call.watch is watch  # type: ignore[attr-defined]


# Calls while Dynamo may trace.


class Weights(SimpleNamespace):
    def __init__(self, *, full: bool = False, uncounted: bool = False, room: bool = False) -> None:
        super().__init__(full=full, uncounted=uncounted, room=room, done=[])

    def make_room_for_changes(self) -> None:
        self.done.append("room for changes")

    def make_room(self) -> bool:
        self.done.append("room")
        return self.room

    def count_places(self) -> None:
        self.done.append("counted")


@pytest.mark.parametrize("before", [False, True])
def test_dynamo_sees_freezing_on_during_the_call_alone(before: bool) -> None:
    weights: Any = Weights()
    with inductor_config.patch(freezing=before):
        call = freezing_while_tracing(lambda *a, **k: (inductor_config.freezing, a, k), weights)
        assert call(1, k=2) == (True, (1,), {"k": 2})
        assert inductor_config.freezing is before

        def fails() -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            freezing_while_tracing(fails, weights)()
        assert inductor_config.freezing is before
    assert weights.done == []


def test_places_are_looked_at_before_a_call_and_counted_after_it() -> None:
    weights: Any = Weights(full=True, uncounted=True)
    call = freezing_while_tracing(lambda: weights.done.append("called"), weights)
    call()
    assert weights.done == ["room for changes", "called", "counted"]


@pytest.mark.parametrize("room", [True, False])
def test_a_call_beyond_dynamos_limit_is_made_again_where_there_is_room_now(room: bool) -> None:
    weights: Any = Weights(room=room)
    calls: list[Any] = []

    def compiled(*args: Any, **kwargs: Any) -> str:
        calls.append((args, kwargs, inductor_config.freezing))
        if len(calls) == 1:
            raise FailOnRecompileLimitHit("limit")
        return "result"

    call = freezing_while_tracing(compiled, weights)
    if room:
        assert call(1, k=2) == "result"
        assert calls == [((1,), {"k": 2}, True)] * 2
    else:
        with pytest.raises(FailOnRecompileLimitHit):
            call(1, k=2)
        assert len(calls) == 1
    assert weights.done == ["room"]


# Versions beyond Dynamo's.


class Function:
    """`compiled` raises while torch has no version left; so many more are made with symbols."""

    def __init__(self, more: int = 1 << 30) -> None:
        self.more, self.calls, self.limits = more, list[Any](), list[Any]()

    def compiled(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("compiled")
        raise FailOnRecompileLimitHit("limit")

    def with_symbols(self) -> Any:
        self.calls.append("with symbols")
        return self.anew

    def anew(self, *args: Any, **kwargs: Any) -> Any:
        config = torch._dynamo.config
        self.limits.append((config.recompile_limit, config.accumulated_recompile_limit))
        if config.recompile_limit < compiled_calls._UNLIMITED:
            raise FailOnRecompileLimitHit("limit")
        if not self.more:
            raise TorchDynamoException("\n  too many of them\nmore")
        self.more -= 1
        return ("anew", args, kwargs)

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        return ("eager", args, kwargs)

    def called(self) -> Versions:
        return Versions(self.compiled, with_symbols=self.with_symbols, eager=self.eager)


def test_a_call_that_has_a_version_is_that_version() -> None:
    function = Function()
    made = Versions(lambda *a, **k: ("mine", a, k), with_symbols=function.with_symbols, eager=function.eager)
    assert made(1, k=2) == ("mine", (1,), {"k": 2})
    assert function.calls == []


def test_as_many_versions_again_are_made_with_symbols_and_then_calls_run_eagerly() -> None:
    function = Function()
    called = function.called()
    with torch._dynamo.config.patch(recompile_limit=2, accumulated_recompile_limit=4):
        assert [called(1), called(2, k=3)] == [("anew", (1,), {}), ("anew", (2,), {"k": 3})]
        assert function.calls == ["compiled", "with symbols"]
        with pytest.warns(RuntimeWarning, match=r"\(every call wants a version of its own\).*TORCH_LOGS=recompiles"):
            assert called(3) == ("eager", (3,), {})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert called(4) == ("eager", (4,), {})
            asked = len(function.limits)
            assert called(3) == called(3) == ("eager", (3,), {})
            assert len(function.limits) == asked, "it is known to be beyond"
    unlimited = (compiled_calls._UNLIMITED, compiled_calls._UNLIMITED)
    assert function.limits[:3] == [unlimited, (2, 4), unlimited]


def test_what_torch_says_where_it_makes_none_is_said() -> None:
    function = Function(more=0)
    with (
        torch._dynamo.config.patch(recompile_limit=2),
        pytest.warns(
            RuntimeWarning, match=r"that it keeps \(TorchDynamoException: too many of them\): calls"
        ) as caught,
    ):
        assert function.called()(1) == ("eager", (1,), {})
    assert caught[0].filename == __file__


def test_calls_that_are_remembered_are_forgotten_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_calls, "_MOST_REMEMBERED", 2)
    function = Function(more=0)
    called = function.called()
    with torch._dynamo.config.patch(recompile_limit=0), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes: list[int] = []
        for number in range(5):
            called(number)
            sizes.append(len(called._beyond))
    assert sizes == [1, 2, 1, 2, 1]


def test_the_form_of_a_call_is_hashed_where_a_structure_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.7 has it."""
    monkeypatch.setattr(TreeSpec, "__hash__", None)
    assert len({compiled_calls._form((1,), {}), compiled_calls._form((1,), {}), compiled_calls._form(([1],), {})}) == 2


def test_the_form_of_a_call_is_what_a_version_may_depend_on() -> None:
    x = torch.ones(2, 3)
    same: list[Any] = [((x, 1), {}), ((torch.zeros(2, 3), 1), {})]
    others: list[Any] = [
        ((x, 1.0), {}), ((x, True), {}), ((x, 2), {}), ((x.double(), 1), {}), ((x.to("meta"), 1), {}), ((x, "1"), {}),
        ((x.reshape(3, 2), 1), {}), ((x.t().contiguous().t(), 1), {}), ((x, b"1"), {}), ((x,), {"n": 1}),
        ((x, [1]), {}),
    ]  # fmt: skip
    forms = [compiled_calls._form(*given) for given in (*same, *others)]
    assert forms[0] == forms[1]
    assert all(form != forms[0] for form in forms[2:])
    assert compiled_calls._form((object(),), {}) == compiled_calls._form((object(),), {}), (
        "of others only the kind is known"
    )
    assert compiled_calls._form((object(),), {}) != compiled_calls._form((None,), {})


class Due(SimpleNamespace):
    """A cache whose last call had no recording, and for which one is due, or not."""

    due: bool
    segmented: Any = None
    last: Any = "a recording"
    took: Any = None

    def would_record(self, glance: Any, inputs: Any) -> bool:
        return self.due

    def ran_eagerly(self, glance: Any, seconds: float) -> None:
        self.took = glance


@pytest.mark.parametrize("due", [True, False])
def test_a_recording_that_is_due_is_made_in_a_call_that_is_watched(due: bool) -> None:
    cache: Any = Due(due=due)
    watched: list[bool] = []
    call = AsTraced(lambda x: watched.append(is_watched()), lambda x: "as traced", cache, (0,))
    call(torch.ones(2))
    cache.last = None
    call(torch.ones(2))
    assert watched == [False, False]
    assert call(torch.ones(3)) == (None if due else "as traced")
    assert watched == [False, False, *([True] if due else [])]
    assert cache.took == (None if due else (torch.Size([3]),))
