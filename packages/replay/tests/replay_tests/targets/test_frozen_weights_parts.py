"""A weight knows by what it has changed and what the model calls it."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._guards import TracingContext

from npucompose_replay.inductor import frozen_weights
from npucompose_replay.inductor.frozen_weights import (
    SAMPLE,
    FrozenWeights,
    Watch,
    Weight,
    is_watchable,
    modules_at_hand,
    weights_of,
)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 4).requires_grad_(False)


def frozen(tensor: torch.Tensor, name: str = "w", root: nn.Module | None = None) -> Weight:
    made = Weight(tensor, name, None if root is None else weakref.ref(root))
    made.frozen = True
    return made


def test_each_way_to_change_a_weight_has_its_words() -> None:
    def other_memory(model: nn.Linear) -> None:
        model.weight.data = model.weight.data.clone()

    def another_layout(model: nn.Linear) -> None:
        model.weight.data = model.weight.data.t()

    def through_data(model: nn.Linear) -> None:
        model.weight.data.add_(1)

    ways: dict[str, Any] = {
        "weight was written to": lambda model: model.weight.add_(1),
        "weight was written to through .data": through_data,
        "weight was given other memory": other_memory,
        "weight has another dtype, device, shape or stride": another_layout,
        "weight was replaced or deleted": lambda model: setattr(model, "weight", nn.Parameter(torch.ones(4, 4))),
    }
    for words, way in ways.items():
        model = linear()
        read, constant = Weight(model.weight, "weight", weakref.ref(model)), frozen(model.weight, "weight", model)
        assert (read.change(), constant.change()) == (None, None)
        way(model)
        assert constant.change() == words
        is_layout = "replaced" in words or "another" in words
        assert read.change() == (words if is_layout else None), "what only is read may change its values"


def test_a_weight_without_a_model_is_in_its_place() -> None:
    model = linear()
    weight = frozen(model.weight, "weight", model)
    tensor = model.weight
    model.weight = nn.Parameter(torch.ones(4, 4))
    assert weight.change() == "weight was replaced or deleted"
    del model
    gc.collect()
    assert weight.change() is None
    assert frozen(tensor, "anything").change() is None


def test_a_deleted_weight_and_a_part_that_is_gone_are_no_more_in_place() -> None:
    model = nn.Sequential(linear())
    weight = frozen(model.get_parameter("0.weight"), "0.weight", model)
    assert weight.change() is None
    del model[0]
    assert weight.change() == "0.weight was replaced or deleted"


def test_what_nobody_could_see_change_is_not_watchable() -> None:
    with torch.inference_mode():
        inference = torch.ones(2)
    tensors = {
        "plain": torch.ones(2), "meta": torch.ones(2, device="meta"), "sparse": torch.ones(2).to_sparse(),
        "inference": inference,
    }  # fmt: skip
    assert [name for name, tensor in tensors.items() if is_watchable(tensor)] == ["plain"]
    for name in ("sparse", "inference"):
        weight = frozen(tensors[name])
        assert (weight.version, weight.address, weight.sample, weight.sampled) == (0, 0, None, b"")
        assert not weight.watchable
    tensor = torch.ones(2).add_(1)
    weight = frozen(tensor)
    assert (weight.version, weight.address) == (tensor._version, tensor.data_ptr()) != (0, 0)
    assert weight.sampled == b"".join(torch.tensor([v]).numpy().tobytes() for v in tensor.tolist())


@pytest.mark.parametrize(
    ("tensor", "middle"),
    [
        (torch.arange(4, dtype=torch.uint8), range(4)),
        (torch.arange(200, dtype=torch.uint8), range(68, 132)),
        (torch.arange(200, dtype=torch.uint8)[100:], range(118, 182)),
        (torch.arange(200, dtype=torch.uint8)[::2], range(67, 131)),
        (torch.arange(7, dtype=torch.uint8).expand(30, 7), range(7)),
    ],
)
def test_the_sample_is_the_middle_of_the_memory(tensor: torch.Tensor, middle: range) -> None:
    sample = frozen_weights._sample(tensor)
    assert sample is not None
    assert bytes(sample) == bytes(middle)
    assert len(bytes(sample)) <= SAMPLE == 64
    torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).fill_(255)
    assert set(bytes(sample)) == {255}, "live"


def test_of_empty_weights_and_those_elsewhere_there_is_no_sample() -> None:
    assert frozen_weights._sample(torch.empty(0, 3)) is None
    assert frozen_weights._sample(torch.ones(2, device="meta")) is None


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        ("._modules['fc']._parameters['weight']", "fc.weight"),
        (".fc.weight", "fc.weight"),
        ("._modules['a.b']._buffers['n']", "a.b.n"),
        ("['weights'][0]", ""),
        ("._modules['fc'][0]", ""),
        ("", ""),
    ],
)
def test_torchs_steps_become_a_dotted_name(steps: str, name: str) -> None:
    assert frozen_weights._name(steps) == name


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = linear()
        self.list = [torch.ones(2)]


def tracing(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    context: Any = SimpleNamespace(module_context=SimpleNamespace(nn_modules=modules))
    monkeypatch.setattr(TracingContext, "try_get", staticmethod(lambda: context))


def dynamos(sources: dict[str, Any], *gets: str, **tensors: Any) -> fx.GraphModule:
    graph = fx.Graph()
    module = nn.Module()
    for name, value in tensors.items():
        setattr(module, name, value)
    graph.output(tuple(graph.get_attr(name) for name in gets))
    made = fx.GraphModule(module, graph)
    made._param_name_to_source = sources  # type: ignore[assignment]
    return made


def test_the_weights_of_a_graph_have_the_models_names_and_each_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = Placed(), Placed()
    sources = {
        "w": SimpleNamespace(name="L['self']._modules['fc']._parameters['weight']"),
        "again": SimpleNamespace(name=lambda: "L['self'].fc.weight"),
        "b": SimpleNamespace(name=lambda: "L['self'].fc.bias"),
        "l": SimpleNamespace(name="L['self'].list[0]"),
        "elsewhere": SimpleNamespace(name="L['self'].fc.bias"),
    }
    graph = dynamos(
        sources, "w", "again", "b", "l", "w", "elsewhere", "free",
        w=model.fc.weight, again=model.fc.weight, b=model.fc.bias, l=model.list[0], elsewhere=other.fc.bias,
        free=nn.Parameter(torch.ones(1)),
    )  # fmt: skip
    tracing(monkeypatch, **{"L['self']": model, "L['x']": 3})
    found = weights_of(graph)
    assert [weight.name for weight in found] == [
        "fc.weight",
        "fc.bias",
        "L['self'].list[0]",
        "L['self'].fc.bias",
        "free",
    ]
    roots = [None if weight.root is None else weight.root() for weight in found]
    assert roots == [model, model, None, None, None]
    assert not any(weight.frozen for weight in found)
    assert list(modules_at_hand().values()) == [model]


def test_outside_of_a_trace_there_are_no_modules_and_names_are_the_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert modules_at_hand() == {}
    model = Placed()
    graph = dynamos({}, "w", w=model.fc.weight)
    del graph._param_name_to_source
    assert [(weight.name, weight.root) for weight in weights_of(graph)] == [("w", None)]
    graph = dynamos({}, "gone", gone=model.fc.weight)
    del graph.gone
    assert weights_of(graph) == []


# Watches.


def watch_of(*parts: tuple[nn.Module, str]) -> Watch:
    """A watch over these, all of them constants of its graph."""
    made = Watch([Weight(getattr(model, name), name, weakref.ref(model)) for model, name in parts])
    made.froze(set())
    return made


def test_a_watch_holds_until_a_constant_changes_and_what_is_read_may() -> None:
    model = linear()
    watch = Watch([Weight(model.weight, "weight", weakref.ref(model)), Weight(model.bias, "bias", weakref.ref(model))])
    assert not watch.frozen, "until it is told what was frozen"
    watch.froze(set())
    assert watch.frozen
    assert watch.holds()
    watch.froze({id(model.bias)})
    assert [weight.frozen for weight in watch.weights] == [True, False]
    model.bias.add_(1)
    assert watch.holds()
    model.requires_grad_(True)
    assert watch.holds(), "it is no change"
    with torch.inference_mode():
        assert watch.holds()
    with torch.no_grad():
        model.weight.add_(1)
    assert not watch.holds()
    assert watch.change() == "weight was written to"
    watch.froze({id(model.weight), id(model.bias)})
    assert not watch.frozen
    assert watch.holds()


@pytest.mark.parametrize("change", ["version", "address", "layout", "sample"])
def test_each_of_the_quick_looks_of_a_watch_sees_its_change(change: str) -> None:
    model = linear()
    watch = watch_of((model, "weight"))
    if change == "version":
        model.weight.add_(0)
    elif change == "address":
        model.weight.data = model.weight.data.clone()
    elif change == "layout":
        model.weight.data = model.weight.data.t()
    else:
        model.weight.data.add_(1)
    assert not watch.holds()


def test_a_watch_concerns_its_models_and_its_weights() -> None:
    model, other = linear(), linear()
    watch = Watch([Weight(model.weight, "weight", weakref.ref(model)), Weight(other.bias, "bias", None)])
    assert watch.concerns([model], [])
    assert watch.concerns([other, model], [])
    assert not watch.concerns([other], [])
    assert watch.concerns([], [Weight(other.bias, "any", None)])
    assert not watch.concerns([], [Weight(other.weight, "any", None)])


def test_what_a_watch_has_to_let_go_goes_once_last_first_also_when_its_model_is_gone() -> None:
    for gone in (False, True):
        model = linear()
        watch = watch_of((model, "weight"))
        let_go: list[str] = []
        watch.let_go = [lambda to=let_go: to.append("first"), lambda to=let_go: to.append("last")]
        if gone:
            del model
            gc.collect()
        else:
            watch.release()
            watch.release()
        assert let_go == ["last", "first"]
        assert watch._token is None
        assert watch.let_go == []


@pytest.mark.parametrize("with_stack", [True, False])
def test_a_guard_hangs_on_the_watch_without_holding_it(with_stack: bool) -> None:
    """torch up to 2.10 takes no stack of who asks for it."""
    model = linear()
    watch = watch_of((model, "weight"))
    told: list[Any] = []

    def last(holds: Any, words: list[str], *stack: Any) -> None:
        if len(stack) != with_stack:
            raise TypeError("incompatible function arguments")
        told.append((holds, words))

    root = SimpleNamespace(add_epilogue_lambda_guard=last)
    code = (lambda: None).__code__
    builder = SimpleNamespace(
        f_code=code, guard_manager=SimpleNamespace(root=root), id_ref=lambda *given: told.append(given)
    )
    watch._guard(builder, None)
    assert watch.code is code
    (token, _), (holds, words) = list(told)
    assert token is watch._token
    assert words == ["no frozen weight has changed"]
    assert holds(None) is True
    model.weight.add_(1)
    assert holds(None) is False
    token = None
    told.clear()
    del watch
    gc.collect()
    assert holds(None) is False, "who is gone holds nothing"


def test_a_watch_hangs_its_guard_on_the_version_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, guards = watch_of((linear(), "weight")), list[Any]()
    held = SimpleNamespace(dynamo_guards=SimpleNamespace(add=guards.append))
    monkeypatch.setattr(TracingContext, "try_get", staticmethod(lambda: SimpleNamespace(guards_context=held)))
    watch.install()
    (guard,) = guards
    assert guard.create_fn == watch._guard
    monkeypatch.setattr(TracingContext, "try_get", staticmethod(lambda: None))
    watch.install()
    assert len(guards) == 1


# All watches of a model.


def watched(policy: str = "refreeze", **more: Any) -> tuple[FrozenWeights, nn.Linear, Watch]:
    model, weights_ = linear(), FrozenWeights(policy, **more)
    watch = watch_of((model, "weight"))
    weights_.watches[0] = watch
    return weights_, model, watch


def full(monkeypatch: pytest.MonkeyPatch, *codes: Any) -> list[Any]:
    """Dynamo's lists of versions of these are full; what is cleared is noted."""
    cleared: list[Any] = []
    monkeypatch.setattr(frozen_weights, "_is_full", lambda code: code in codes)
    monkeypatch.setattr(frozen_weights, "remove_from_cache", cleared.append)
    return cleared


CODES: list[Any] = [compile(f"x{k}", "", "eval") for k in range(3)]


def test_nothing_is_dropped_where_nothing_has_changed() -> None:
    known, _, watch = watched()
    assert watch.holds()
    known._settle([])
    known.make_room_for_changes()
    assert watch._token is not None
    assert (known.uncounted, known.full, known.worn) == (False, False, set())


def test_a_change_lets_the_watch_go_with_one_warning() -> None:
    known, model, watch = watched()
    watch.code = CODES[0]
    model.weight.add_(1)
    with pytest.warns(RuntimeWarning, match=r"frozen weights have changed \(weight was written to\).*freezing=false"):
        known._settle([])
    assert watch._token is None
    assert (known.uncounted, known.worn) == (True, {CODES[0]})


def test_a_change_that_is_to_be_an_error_lets_nothing_go() -> None:
    from npucompose.errors import FrozenWeightError

    known, model, watch = watched("error")
    model.weight.add_(1)
    with pytest.raises(FrozenWeightError, match=r"a frozen weight has changed: weight was written to\..*refreeze"):
        known._settle([])
    assert watch._token is not None
    assert not known.uncounted


def test_a_graph_without_constants_is_let_go_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    for policy in ("refreeze", "error"):
        known, model, watch = watched(policy)
        watch.froze({id(model.weight)})
        model.weight = nn.Parameter(torch.ones(4, 4))
        known._settle([])
        assert watch._token is None
        assert known.worn == set(), "it never came to a version"
        assert known.uncounted
    assert not recwarn.list


def test_where_models_share_only_what_concerns_the_one_at_hand_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for shared in (True, False):
        known, model, watch = watched(shared=shared)
        other = linear()
        model.weight.add_(1)
        tracing(monkeypatch, other=other)
        if shared:
            known._settle([])
            assert watch._token is not None
            tracing(monkeypatch, model=model)
        with pytest.warns(RuntimeWarning, match="frozen weights have changed"):
            known._settle([])
        assert watch._token is None


def test_lists_that_are_full_and_have_empty_places_are_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = full(monkeypatch, CODES[0], CODES[2])
    known, model, watch = watched()
    other, _, theirs = watched()
    watch.code, theirs.code = CODES[1], CODES[0]
    known.worn = {CODES[0], CODES[1]}
    known.uncounted = True
    known.count_places()
    assert (known.uncounted, known.full) == (False, True)
    assert known.make_room() is True
    assert cleared == [CODES[0]]
    assert (known.worn, known.full, known.uncounted) == ({CODES[1]}, False, False)
    assert theirs._token is None, "its version was in the list"
    assert watch._token is not None
    assert known.make_room() is False
    assert cleared == [CODES[0]]
    known.count_places()
    assert known.full is False
    assert other.watches
    assert model is not None


def test_room_is_made_before_a_call_that_finds_changed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = full(monkeypatch, CODES[0])
    known, model, watch = watched()
    watch.code, known.full = CODES[0], True
    known.make_room_for_changes()
    assert cleared == []
    model.weight.add_(1)
    with pytest.warns(RuntimeWarning, match="frozen weights have changed"):
        known.make_room_for_changes()
    assert cleared == [CODES[0]]
    assert (known.full, known.worn) == (False, set())


@pytest.mark.parametrize(("versions", "is_full"), [(1, False), (2, True), (3, True)])
def test_a_list_is_full_with_as_many_versions_as_torch_keeps(
    monkeypatch: pytest.MonkeyPatch, versions: int, is_full: bool
) -> None:

    monkeypatch.setattr(frozen_weights, "_debug_get_cache_entry_list", lambda code: [code] * versions)
    with torch._dynamo.config.patch(recompile_limit=2):
        assert frozen_weights._is_full(CODES[0]) is is_full


def test_a_graph_without_weights_has_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    known, model = FrozenWeights("refreeze"), linear()
    assert known.watch(dynamos({})) is None
    graph = dynamos({}, "w", w=model.weight)
    first, second = known.watch(graph), known.watch(graph)
    assert first is not None
    assert dict(known.watches) == {0: first, 1: second}
    assert first.code is None, "nothing is traced: there is no version to guard"
