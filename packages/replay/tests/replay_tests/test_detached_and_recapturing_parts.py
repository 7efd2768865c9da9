"""Where a detached handle finds each argument and each part of a result, and what it refuses; without torch.compile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from npucompose.errors import SignatureError
from npucompose_replay.front.arguments import DetachError
from npucompose_replay.front.detached import DetachedHandle, Recapturing, call_mode, detach, detach_call, modules_of
from npucompose_replay.interface import SeenCall, note

OpaqueBase: Any = object
with suppress(ImportError):  # before torch 2.11 there is none
    from torch._opaque_base import OpaqueBase


class Replays:
    """A recording that gives what `answer` makes of its inputs, and notes them."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.given, self.reused = answer, list[Any](), list[bool]()

    def replay(self, *inputs: Any, reuse: bool = False) -> list[Any]:
        self.given.append(inputs)
        self.reused.append(reuse)
        return list(self.answer(*inputs))


def handle_of(
    flat_inputs: Sequence[Any], flat_outputs: Sequence[Any], args: Any, result: Any, answer: Any = None, **more: Any
) -> tuple[DetachedHandle, Replays]:
    recording = Replays(answer or (lambda *_: flat_outputs))
    kwargs = more.pop("kwargs", {})
    return detach(recording, list(flat_inputs), flat_outputs, args, kwargs, result, **more), recording


def x(value: float = 1.0, size: int = 4) -> torch.Tensor:
    return torch.full((size,), float(value))


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


# Results.


def test_each_leaf_of_a_result_comes_from_where_it_came_from() -> None:
    given, weight, made = x(), x(2), x(3)
    result = {
        "made": made, "part of it": made[1:3], "given": given, "part of the given": given[2:], "weight": weight,
        "part of the weight": weight[:1], "empty": torch.empty(0, 3), "number": 7, "none": None, "dtype": torch.float16,
    }  # fmt: skip
    handle, recording = handle_of([weight, given], [made], (given,), result)
    other, now = torch.arange(4.0), torch.arange(4.0) + 10
    recording.answer = lambda *_: [now]
    got = handle(other)
    assert list(got) == list(result)
    assert got["made"] is now
    assert got["part of it"].tolist() == [11.0, 12.0]
    assert got["part of it"].data_ptr() == now[1:].data_ptr()
    assert got["given"] is other
    assert got["part of the given"].data_ptr() == other[2:].data_ptr()
    assert got["part of the given"].tolist() == [2.0, 3.0]
    assert got["weight"] is weight
    assert got["part of the weight"].data_ptr() == weight.data_ptr()
    assert got["part of the weight"].tolist() == [2.0]
    assert tuple(got["empty"].shape) == (0, 3)
    assert got["empty"] is not result["empty"]
    assert (got["number"], got["none"], got["dtype"]) == (7, None, torch.float16)
    assert recording.given[-1][0] is weight
    assert recording.given[-1][1] is other


@pytest.mark.parametrize(
    ("shape", "kind"), [(lambda a, b: (a, b), tuple), (lambda a, b: [a, b], list), (lambda a, b: (b, a), tuple)]
)
def test_a_row_of_outputs_stays_the_row_it_was(shape: Any, kind: type) -> None:
    one, two = x(1), x(2)
    handle, recording = handle_of([x()], [one, two], (), shape(one, two))
    recording.answer = lambda *_: [x(3), x(4)]
    got = handle()
    assert type(got) is kind
    assert [v.tolist() for v in got] == [v.tolist() for v in shape(x(3), x(4))]


def test_a_row_within_a_row_and_a_named_row_keep_their_structure() -> None:
    one, two = x(1), x(2)
    handle, recording = handle_of([x()], [one, two], (), (one, (two, 3)))
    recording.answer = lambda *_: [x(5), x(6)]
    first, (second, three) = handle()
    assert (first.tolist(), second.tolist(), three) == ([5.0] * 4, [6.0] * 4, 3)
    named = torch.return_types.topk((one, two))  # pyright: ignore[reportAttributeAccessIssue]
    handle, recording = handle_of([x()], [one, two], (), named)
    recording.answer = lambda *_: [x(5), x(6)]
    assert type(handle()) is type(named)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (x(9), r"leaf 0 of the result \(torch\.float32\[4\]@cpu\) is neither an output of the graph nor a view"),
        ([1, object()], "leaf 1 of the result is a object, which may hold tensors"),
    ],
)
def test_a_result_that_is_nowhere_in_the_graph_cannot_be_built(result: Any, words: str) -> None:
    with pytest.raises(DetachError, match=words):
        handle_of([x()], [], (), result)


@pytest.mark.parametrize(("output", "refused"), [(x(2), True), (torch.empty(0), False), (5, False), (None, False)])
def test_an_output_that_nobody_sees_is_state_outside_the_graph(output: Any, refused: bool) -> None:
    mine = x(1)
    if not refused:
        assert handle_of([], [mine, output], (), mine)[0]() is mine
        return
    with pytest.raises(DetachError, match="output 1 of the graph is not part of what the call returned"):
        handle_of([], [mine, output], (), mine)


def test_an_output_that_is_an_input_is_no_state_outside() -> None:
    given, mine = x(1), x(2)
    handle, _ = handle_of([given], [mine, given], (given,), mine)
    assert handle(x(5)) is mine


# Arguments.


def test_arguments_reach_their_inputs_and_what_is_held_stays() -> None:
    a, b, weight = x(1), x(2), x(3)
    out = x(9)
    handle, recording = handle_of([b, weight, a, 7], [out], (a,), out, kwargs={"b": b})
    c, d = x(5), x(6)
    handle(c, b=d)
    (given,) = recording.given
    assert [given[0] is d, given[1] is weight, given[2] is c, given[3]] == [True, True, True, 7]
    inputs = handle.inputs_of(c, b=d)
    assert [inputs[0] is d, inputs[1] is weight, inputs[2] is c, inputs[3]] == [True, True, True, 7]
    assert handle.inputs_of(a, b=b)[2] is a
    assert inputs[2] is c, "each call has a row of its own"
    assert handle._held == [None, weight, None, 7], "and nothing of it is kept"


@pytest.mark.parametrize(("outputs", "reused"), [("reuse", True), ("keep", False)])
def test_what_becomes_of_held_results_is_as_asked(outputs: Any, reused: bool) -> None:
    out = x(9)
    handle, recording = handle_of([], [out], (), out, outputs=outputs)
    handle()
    assert handle.outputs == outputs
    assert recording.reused == [reused]


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (lambda a: (a, [2, 3]), {}, None),
        (lambda a: (x(5), [2, 3]), {}, None),
        (lambda a: (a, (2, 3)), {}, "captured for a list of 2"),
        (lambda a: (a, [2, 3, 4]), {}, r"captured for a list of 2, got \[2, 3, 4\]"),
        (lambda a: (a, 2), {}, "captured for a list of 2, got 2"),
        (lambda a: (a, [2, 4]), {}, "captured for 3 as argument 2, got 4"),
        (lambda a: (a, [2, 3.0]), {}, "captured for 3 as argument 2, got 3.0"),
        (lambda a: (a,), {}, r"captured for 2 positional arguments and the keywords \(\), got 1 and \(\)"),
        (lambda a: (a, [2, 3]), {"k": 1}, "got 2 and"),
    ],
)
def test_rows_of_numbers_are_looked_at_one_by_one(args: Any, kwargs: Any, words: str | None) -> None:
    a, out = x(1), x(9)
    handle, recording = handle_of([a], [out], (a, [2, 3]), out)
    if words is None:
        assert handle(*args(a), **kwargs) is out
        assert recording.given[-1][0] is args(a)[0] or recording.given[-1][0].tolist() == [5.0] * 4
        return
    with pytest.raises(SignatureError, match=words):
        handle(*args(a), **kwargs)
    assert recording.given == []


def test_keywords_may_come_in_any_order_but_none_may_be_missing_or_another() -> None:
    a, b, out = x(1), x(2), x(9)
    handle, recording = handle_of([a, b], [out], (), out, kwargs={"a": a, "b": b})
    handle(b=x(6), a=x(5))
    assert [v[0].item() for v in recording.given[0]] == [5.0, 6.0]
    for wrong in ({"a": a}, {"a": a, "c": b}, {"a": a, "b": b, "c": b}):
        with pytest.raises(SignatureError, match="captured for 0 positional arguments and the keywords"):
            handle(**wrong)


def test_nested_arguments_keep_their_structure() -> None:
    a, b, out = x(1), x(2), x(9)
    handle, recording = handle_of([a, b], [out], ({"pair": (a, [b])},), out)
    handle({"pair": (x(5), [x(6)])})
    assert [v[0].item() for v in recording.given[0]] == [5.0, 6.0]
    with pytest.raises(SignatureError, match="captured for arguments of structure"):
        handle({"pair": (x(5), (x(6),))})


def test_an_argument_that_is_a_number_text_or_nothing_is_part_of_the_signature() -> None:
    a, out = x(1), x(9)
    for value, others in (
        (2, (2.0, True, 3)),
        ("mean", ("sum", None)),
        (None, (0,)),
        (torch.float16, (torch.float32,)),
    ):
        handle, _ = handle_of([a], [out], (a, value), out)
        assert handle(x(5), value) is out
        for other in others:
            with pytest.raises(SignatureError, match="as argument 1, got"):
                handle(x(5), other)
    mine = object()
    handle, _ = handle_of([a], [out], (a, mine), out)
    assert handle(x(5), mine) is out
    with pytest.raises(SignatureError, match="as argument 1"):
        handle(x(5), object())


def test_one_tensor_under_two_names_is_one_and_of_unused_ones_nobody_asks() -> None:
    a, unused, out = x(1), x(2), x(9)
    handle, _ = handle_of([a], [out], (a, a), out)
    other = x(5)
    assert handle(other, other) is out
    with pytest.raises(SignatureError, match="one tensor as arguments 0 and 1, got two"):
        handle(other, x(5))
    handle, _ = handle_of([a], [out], (a, unused, unused), out)
    assert handle(other, x(3), x(4)) is out
    with pytest.raises(SignatureError, match=r"captured for torch\.float32\[4\]@cpu as argument 1, got 3"):
        handle(other, 3, x(4))
    with pytest.raises(SignatureError, match="as argument 2"):
        handle(other, x(3), x(4, size=5))


def test_arguments_that_hold_tensors_where_nobody_looks_cannot_be_followed() -> None:
    class Cache:
        def __init__(self) -> None:
            self.keys = [x()]

    out = x(9)
    with pytest.raises(DetachError, match="argument 1 is a Cache that holds tensors"):
        handle_of([], [out], (1, Cache()), out)


def test_an_argument_in_the_memory_of_an_input_is_a_common_base() -> None:
    base, out = x(1, size=6), x(9)
    with pytest.raises(DetachError, match="argument 0 is no input of the graph but shares memory with one"):
        handle_of([base], [out], (base[:4],), out)
    assert handle_of([base], [out], (x(1),), out)[0](x(1)) is out
    assert handle_of([base], [out], (base[:0],), out)[0](x(1)[:0]) is out, "nothing shares with nothing"


# Modes, gradients and modules.


def test_a_call_in_another_mode_is_refused_with_what_differs() -> None:
    out = x(9)
    handle, recording = handle_of([], [out], (), out)
    cases = (
        (torch.enable_grad(), r"torch\.is_grad_enabled\(\)=False and is made with torch\.is_grad_enabled\(\)=True"),
        (torch.inference_mode(), r"torch\.is_inference_mode_enabled\(\)=False"),
        (torch.autocast("cpu", torch.bfloat16), r"torch\.autocast\('cpu'\)=None and is made with .*=torch\.bfloat16"),
    )
    for mode, words in cases:
        with mode, pytest.raises(SignatureError, match=words):
            handle()
    assert recording.given == []
    assert handle() is out


OTHER_STATE = {
    "torch.get_default_dtype()": torch.float32, "torch.are_deterministic_algorithms_enabled()": False,
    "torch.overrides modes": 0, "torch.compiler.set_stance": ("default", None),
}  # fmt: skip


def test_the_mode_of_a_call_names_each_dtype_of_autocast() -> None:
    assert call_mode() == {
        "torch.is_grad_enabled()": False, "torch.is_inference_mode_enabled()": False,
        "torch.autocast('cpu')": None, "torch.autocast('cuda')": None, **OTHER_STATE,
    }  # fmt: skip
    with torch.inference_mode(), torch.autocast("cpu", torch.float16):
        assert call_mode() == {
            "torch.is_grad_enabled()": False, "torch.is_inference_mode_enabled()": True,
            "torch.autocast('cpu')": torch.float16, "torch.autocast('cuda')": None, **OTHER_STATE,
        }  # fmt: skip


def test_tensors_that_require_grad_are_refused_where_grad_was_on_at_the_capture() -> None:
    given, out = x(1), x(9)
    with torch.enable_grad():
        handle, recording = handle_of([given], [out], (given,), out)
        assert handle(x(2)) is out
        with pytest.raises(SignatureError, match=r"captured for inference, and its tensors require grad: use torch"):
            handle(x(2).requires_grad_())
        weight = x(3).requires_grad_()
        held, other = handle_of([given, weight], [out], (given,), out)
        with pytest.raises(SignatureError, match="its tensors require grad"):
            held(x(2))
    assert (len(recording.given), other.given) == (1, [])
    for refused in (handle, held):
        with pytest.raises(SignatureError, match="is_grad_enabled"):
            refused(x(2))


def test_an_input_that_the_recording_refuses_is_named_as_the_argument_it_is() -> None:
    given, weight, out = x(1), x(2), x(9)
    handle, recording = handle_of([weight, given], [out], (given,), out)

    def refuses(index: int, why: str) -> Any:
        def answer(*_: Any) -> Any:
            error = SignatureError(f"input {index} {why}")
            error.index, error.why = index, why
            raise error

        return answer

    for index, words in ((1, "^argument 0 is a FakeTensor$"), (0, "^input 0 is a FakeTensor$")):
        recording.answer = refuses(index, "is a FakeTensor")
        with pytest.raises(SignatureError, match=words):
            handle(x(5))


def test_a_parameter_or_buffer_that_was_replaced_is_refused_and_one_that_nobody_reads_is_not() -> None:
    module = nn.BatchNorm1d(4).requires_grad_(False)
    out = x(9)
    assert module.running_mean is not None
    handle, _ = handle_of([module.weight, module.running_mean], [out], (), out, modules=[module])
    assert handle() is out
    module.bias = nn.Parameter(x(3), requires_grad=False)
    assert handle() is out, "the graph does not read it"
    mean = module.running_mean
    module.running_mean = x(5, size=5)
    words = r"'running_mean' \(torch\.float32\[4\]@cpu\) that is another tensor now \(torch\.float32\[5\]@cpu\)"
    with pytest.raises(SignatureError, match=words):
        handle()
    module.running_mean = mean
    assert handle() is out
    del module.weight
    with pytest.raises(SignatureError, match=r"'weight' \(.*\) that is gone: change it in place, or detach again"):
        handle()


def test_the_modules_of_a_callable_are_those_it_is_belongs_to_closes_over_or_names() -> None:
    inner = nn.Linear(2, 2)
    outer = nn.Sequential(inner, nn.ReLU())

    def closing() -> Any:
        return outer(x()), later

    class Holder:
        def call(self) -> Any:
            return GLOBAL(x())

    assert modules_of(outer) == [outer, inner, outer[1]]
    assert modules_of(outer.forward)[:2] == [outer, inner]
    assert modules_of(closing) == [outer, inner, outer[1]], "what was assigned to no cell yet is none"
    assert modules_of(Holder().call) == [GLOBAL]
    assert modules_of(len) == []
    later = 3
    assert closing.__closure__ is not None
    assert later == 3


GLOBAL = nn.ReLU()


# A call.


def seen(recording: Any, out: torch.Tensor, **more: Any) -> SeenCall:
    return SeenCall(recording, [], [out], 8, **more)


def test_a_call_is_detached_where_it_ran_one_recording_and_nothing_else() -> None:
    out, recording = x(9), Replays(lambda: [x(5)])

    def calling(*notes: SeenCall) -> Any:
        def call() -> Any:
            for one in notes:
                note(one)
            return out

        return call

    handle = detach_call(calling(seen(recording, out)), (), {}, outputs="keep")
    assert handle().tolist() == [5.0] * 4
    assert (handle.outputs, recording.reused) == ("keep", [False])
    for notes, words in (
        ((), "this call ran 0 compiled graphs; only a call of exactly one can be detached"),
        ((seen(recording, out),) * 2, "this call ran 2 compiled graphs"),
        ((seen(None, out),), "this call ran without a recording: capture_limit is reached"),
        ((seen(None, out), seen(None, out, cut="2 segments")), "runs a graph that is cut: 2 segments; only"),
    ):
        with pytest.raises(DetachError, match=words):
            detach_call(calling(*notes), (), {})


# As many signatures as come.


class Compiled:
    """A compiled model that makes a recording for each size it is called with."""

    def __init__(self, limit: int = 2, detachable: bool = True) -> None:
        self.limit, self.detachable, self.sizes = limit, detachable, list[int]()

    def __call__(self, given: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(given))
        out, size = given * 2, len(given)

        def answer(now: torch.Tensor) -> Any:
            if len(now) != size:
                raise SignatureError("another size")
            return [now * 2]

        for _ in range(1 if self.detachable else 2):
            note(SeenCall(Replays(answer), [given], [out], self.limit))  # type: ignore[arg-type]
        return out


def test_each_signature_is_compiled_once_and_the_one_used_longest_ago_goes() -> None:
    model = Compiled(limit=2)
    call = Recapturing(model)
    for size in (3, 3, 4, 4, 3):
        assert call(x(1, size)).tolist() == [2.0] * size
    assert model.sizes == [3, 4]
    assert len(call.handles) == 2
    call(x(1, 5))  # 4 was used longest ago
    call(x(1, 3))
    assert model.sizes == [3, 4, 5]
    call(x(1, 4))
    assert model.sizes == [3, 4, 5, 4]
    assert [handle.outputs for handle in call.handles] == ["reuse"] * 2
    assert Recapturing(Compiled(), outputs="keep")._how["outputs"] == "keep"


def test_a_call_that_cannot_be_detached_takes_torch_compiles_way_each_time() -> None:
    model = Compiled(detachable=False)
    call = Recapturing(model)
    for _ in range(3):
        assert call(x()).tolist() == [2.0] * 4
    assert (model.sizes, call.handles) == ([4] * 3, [])


def test_an_error_of_the_call_itself_comes_out() -> None:
    def fails(*_: Any) -> Any:
        raise DetachError("the model's own")

    with pytest.raises(DetachError, match="the model's own"):
        Recapturing(fails)(x())


@pytest.mark.skipif(not hasattr(torch._library, "opaque_object"), reason="opaque values came with torch 2.10")
def test_an_opaque_value_is_the_same_argument_as_an_equal_one() -> None:
    """Torch guards on such a value by ==; who calls may make a new object each time (vLLM's names of layers)."""
    from torch._library.opaque_object import is_opaque_type, register_opaque_type

    if not is_opaque_type(Layer):
        register_opaque_type(Layer, typ="value")
    given, result = x(), x(2)
    handle, recording = handle_of([given], [result], (given, Layer("a")), result, lambda t: [t + 1])
    assert torch.equal(handle(x(5), Layer("a")), x(6))
    with pytest.raises(SignatureError, match="as argument 1"):
        handle(x(5), Layer("b"))
    assert len(recording.given) == 1


class Layer(OpaqueBase):
    """A value that torch does not look into."""

    def __init__(self, value: str) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layer) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        return f"Layer({self.value!r})", {"Layer": Layer}
