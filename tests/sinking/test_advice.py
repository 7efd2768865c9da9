"""Which option or change avoids a recompilation: a sentence for each guard that torch names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch._dynamo.convert_frame

from npucompose.npu.static_graph.recompiles import (
    AdviceContext,
    Recompilation,
    explain_recompilation,
    recorded_recompilations,
)
from npucompose.schema.experiment import Call, Shapes

TELLER: Any = torch._dynamo.convert_frame
DYNAMIC, STATIC = Shapes(dynamic=True), Shapes(dynamic=False)
SIZE = "0/0: tensor '{}' size mismatch at index {}. expected {}, actual {}"
SYMBOL = "shapes=dynamic, or shapes.mark_dynamic: {x: [1]}: a symbol from the first call on"
GEAR = ", or pad it to a gear (shapes.gears: {x.1: […]}, with shapes=dynamic, on an NPU)"
CONSTANT = ": torch keeps the sizes 0 and 1 as constants"
NOTHING = "nothing in the shape policy: "
NEEDED = f"{NOTHING}the model itself needs these sizes to be equal"
DUCK = "  # duck sizing added this equality"


def asked(shapes: Shapes = STATIC, mode: Any = "reduce-overhead", **more: Any) -> AdviceContext:
    return AdviceContext(shapes=shapes, mode=mode, arguments=("x", "y", "lens", "times"), **more)


@pytest.mark.parametrize(
    ("reason", "asked", "advice"),
    [
        (SIZE.format("x", 1, 4, 6), asked(), SYMBOL),
        (SIZE.format("x", 1, 4, 6), asked(mode="max-autotune"), SYMBOL + GEAR),
        (SIZE.format("x", 1, 4, 1), asked(mode="max-autotune"),
         "pad dimension 1 of 'x' to at least 2: torch keeps the sizes 0 and 1 as constants under every policy"),
        (SIZE.format("x", 0, 0, 6), asked(static=frozenset({"x"})),
         "pad dimension 0 of 'x' to at least 2: torch keeps the sizes 0 and 1 as constants under every policy"),
        (SIZE.format("w", 0, 4, 6), asked(),
         f"{NOTHING}it is the size of no argument, but of a parameter, a buffer or a global"),
        (SIZE.format("x", 1, 4, 6), asked(static=frozenset({"x"})),
         "leave 'x' out of shapes.mark_static, which makes each of its shapes a constant, and write shapes=dynamic; "
         "or pad its dimension 1 to one size"),
        (SIZE.format("x", 1, 4, 6), asked(DYNAMIC, "max-autotune", static=frozenset({"x"})),
         "leave 'x' out of shapes.mark_static, which makes each of its shapes a constant; "
         f"or pad its dimension 1 to one size{GEAR}"),
        (SIZE.format("x", 1, 4, 6), asked(static=frozenset({"y"})), SYMBOL),
        ("0/0: 2 <= x.size()[0]", asked(), f"pad dimension 0 of 'x' to at least 2{CONSTANT}"),
        ("0/0: 2 <= self.w.size()[1]", asked(), f"pad dimension 1 of 'the tensor' to at least 2{CONSTANT}"),
        (f"0/0: y.size()[0] == x.size()[1]{DUCK}", asked(),
         "shapes.mark_dynamic: {y: [0], x: [0]}, or a first call whose sizes differ: torch gave one symbol to sizes "
         "that were equal in the first call"),
        ("0/0: y.size()[0] == x.size()[1]  # x + y", asked(), NEEDED),
        (f"0/0: x.size()[0] == x.size()[1]{DUCK}", asked(), NEEDED),
        (f"0/0: x.size()[0] == w.size()[1]{DUCK}", asked(), NEEDED),
        ("0/0: x.size()[1] == 4  # x.reshape(4, -1)  # m.py:3", asked(),
         f"{NOTHING}the size is a symbol and the model's code turned it into a constant (x.reshape(4, -1) # m.py:3); "
         "change the code, or pad the dimension to one size"),
        ("0/0: x.size()[1] == 4", asked(),
         f"{NOTHING}the size is a symbol and the model's code turned it into a constant; change the code, or pad the "
         "dimension to one size"),
        ("0/0: times == 4", asked(numbers=frozenset({"times"})),
         "shapes=dynamic: 'times' is a symbol from the first call on"),
        ("0/0: times == 4  # x * times", asked(DYNAMIC, numbers=frozenset({"times"})),
         f"{NOTHING}the value of 'times' is part of the program (x * times)"),
        ("0/0: times == True", asked(), f"{NOTHING}the value of 'times' is part of the program"),
        ("0/0: other == 4", asked(numbers=frozenset({"other"})), f"{NOTHING}it is the value of no argument"),
        ("0/0: len(lens) == 2", asked(), "pad 'lens' to one length (2): no policy makes the length of a list a symbol"),
        ("0/0: tensor 'y' stride mismatch at index 0. expected 3, actual 1", asked(),
         "pass tensors of one stride order: y.contiguous() before the call"),
        ("0/0: tensor 'w' stride mismatch at index 0. expected 3, actual 1", asked(),
         "pass tensors of one stride order: it.contiguous() before the call"),
        ("0/0: tensor 'y' dtype mismatch. expected Float, actual Double", asked(), "give 'y' one dtype in every call"),
        ("0/0: tensor 'y' rank mismatch. expected 2, actual 3", asked(), "give 'y' one rank in every call"),
        ("0/0: tensor 'w' rank mismatch. expected 2, actual 3", asked(), "give 'the tensor' one rank in every call"),
        ("0/0: ___check_type_id(L['times'], 94)", asked(),
         "nothing that is known here: the guard's text says what must stay as it was"),
    ],
)  # fmt: skip
def test_the_advice_is_about_the_guard_and_what_was_asked_for(reason: str, asked: AdviceContext, advice: str) -> None:
    found = explain_recompilation(Recompilation(compile_id="0/1", reasons=(reason,)), asked, call={}, name="call 1")
    assert found.avoid == advice
    assert (found.compile_id, found.call) == ("0/1", "call 1")


def test_the_reason_keeps_the_line_of_the_model() -> None:
    def told(reason: str) -> tuple[str, str | None]:
        found = explain_recompilation(Recompilation(compile_id="0/1", reasons=(reason,)), asked(), call={}, name="c")
        return found.reason, found.argument

    assert told("0/0: times == 4      # x * times") == ("times == 4  # x * times", "times")
    assert told("0/0: other == 4") == ("other == 4", None)


GUARDS = {
    "value": "0/4: times == 4",
    "size 0": SIZE.format("x", 0, 4, 6),
    "size 1": SIZE.format("x", 1, 4, 6),
    "least": "0/3: 2 <= y.size()[1]",
    "equal": "0/3: y.size()[0] == lens.size()[1]",
    "stride": "0/2: tensor 'x' stride mismatch at index 0. expected 3, actual 1",
    "length": "0/1: len(lens) == 2",
    "rank": "0/1: tensor 'times' rank mismatch. expected 2, actual 3",
}


@pytest.mark.parametrize(
    ("call", "order", "decides"),
    [
        ({}, ("size 0", "value"), "size 0"),
        ({"times": 5}, ("size 0", "rank", "value"), "value"),
        ({"lens": (1, 2)}, ("size 0", "length"), "length"),
        ({"x.1": 7}, ("size 0", "stride", "size 1"), "size 1"),
        ({"x.0": 7}, ("stride", "size 1", "size 0"), "size 0"),
        ({"y.1": 7}, ("size 0", "size 1", "equal", "least"), "least"),
        ({"lens.0": 7}, ("size 0", "equal"), "equal"),
        ({"lens.1": 7}, ("size 0", "equal"), "size 0"),
        ({"x": "transposed"}, ("size 0", "value", "stride"), "stride"),
        ({"x": "unmarked"}, ("size 0", "stride"), "size 0"),
        ({"times": "transposed"}, ("stride", "value"), "stride"),
        ({"x.0": 7, "times": 5}, ("stride", "value", "size 0"), "value"),
        ({"times.0": 5}, ("stride", "value"), "stride"),
    ],
)  # fmt: skip
def test_the_guard_that_the_call_failed_decides(call: Call, order: tuple[str, ...], decides: str) -> None:
    again = Recompilation(compile_id="0/5", reasons=tuple(GUARDS[name] for name in order))
    reason = explain_recompilation(again, asked(), call=call, name="c").reason
    assert GUARDS[decides].endswith(reason)


class Dynamo:
    """Dynamo's record and the function that all reasons pass through, told what to say."""

    def __init__(self) -> None:
        self.metrics: list[SimpleNamespace] = [SimpleNamespace(compile_id="old", recompile_reason="before")]

    def clear(self) -> None:
        self.metrics.clear()

    def compiles(self, compile_id: str, *reasons: str) -> None:
        told = TELLER.get_and_maybe_log_recompilation_reasons(list(reasons), keyword=1) if reasons else []
        reason = told[0] if told else None
        self.metrics.append(SimpleNamespace(compile_id=compile_id, recompile_reason=reason))


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> Dynamo:
    made = Dynamo()
    monkeypatch.setattr("torch._dynamo.utils.clear_compilation_metrics", made.clear)
    monkeypatch.setattr("torch._dynamo.utils.get_compilation_metrics", lambda: made.metrics)
    monkeypatch.setattr(TELLER, "get_and_maybe_log_recompilation_reasons", lambda reasons, keyword: reasons)
    return made


def test_what_was_compiled_again_is_listed_with_all_its_reasons(dynamo: Dynamo) -> None:
    genuine = TELLER.get_and_maybe_log_recompilation_reasons
    with recorded_recompilations() as again:
        assert again() == []
        dynamo.compiles("0/0")
        dynamo.compiles("0/1", "newest", "older")
        dynamo.compiles("1/1", "older", "oldest")
        dynamo.metrics.append(SimpleNamespace(compile_id="2/1", recompile_reason="never heard"))
        assert again() == [
            Recompilation(compile_id="0/1", reasons=("newest", "older")),
            Recompilation(compile_id="1/1", reasons=("older", "oldest")),
            Recompilation(compile_id="2/1", reasons=("never heard",)),
        ]
        assert TELLER.get_and_maybe_log_recompilation_reasons is not genuine
    assert TELLER.get_and_maybe_log_recompilation_reasons is genuine
    with pytest.raises(ValueError, match="the model's own"), recorded_recompilations():
        raise ValueError("the model's own")
    assert TELLER.get_and_maybe_log_recompilation_reasons is genuine
