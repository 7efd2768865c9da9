"""Dynamo's words for a failed guard, as torch 2.6 to 2.13 write them."""

from __future__ import annotations

import pytest

from npucompose.npu.static_graph.recompiles import Guard, guard_of

ARGUMENTS = ("x", "y", "lens", "times")
DUCK = "duck sizing added this equality because these variables had the same size 4"


@pytest.mark.parametrize(
    ("reason", "kind", "argument", "more"),
    [
        ("0/0: tensor 'x' size mismatch at index 1. expected 4, actual 6", "size", "x", (1, "4", "6")),
        ("tensor 'L['x']' size mismatch at index 0. expected 4, actual 6", "size", "x", (0, "4", "6")),
        ("0/2: tensor 'x' stride mismatch at index 0. expected 3, actual 1", "stride", "x", (0, "3", "1")),
        ("0/0: tensor 'x' dtype mismatch. expected Float, actual Double", "dtype", "x", (None, "Float", "Double")),
        ("0/0: tensor 'x' rank mismatch. expected 2, actual 3", "rank", "x", (None, "2", "3")),
        (
            "0/0: tensor 'self._buffers['k']' size mismatch at index 0. expected 4, actual 6",
            "size",
            None,
            (0, "4", "6"),
        ),
        ("0/0: lens[0] == 512      # return x * lens[0]  # m.py:3 in forward", "value", "lens", (None, "512", None)),
        ("L['lens'][0] == 512", "value", "lens", (None, "512", None)),
        ('0/0: L["times"] == 3', "value", "times", (None, "3", None)),
        ("0/0: len(lens) == 2", "length", "lens", (None, "2", None)),
        ("0/0: len(L['lens']) == 2", "length", "lens", (None, "2", None)),
        ("0/0: 2 <= x.size()[0]  # return x  # m.py:3 in forward", "least", "x", (0, "2", None)),
        ("0/0: x.size()[1] == 4  # x.reshape(4, -1)", "size_value", "x", (1, "4", None)),
        (f"0/0: y.size()[0] == x.size()[1]  # {DUCK}", "equal_sizes", "y", (0, None, None)),
        ("0/0: ___check_type_id(L['times'], 94)", "other", "times", (None, None, None)),
        ("0/0: G['flag'] == 1", "value", None, (None, "1", None)),
        ("0/0: ((x.size()[0] % 4) == 0)", "other", "x", (None, None, None)),
        ("", "other", None, (None, None, None)),
        (" \n 0/0: len(lens) == 2\n", "length", "lens", (None, "2", None)),
        ("- 0/0: x == y", "value", "x", (None, "y", None)),
        ("0/0: tensor 'x.y' dtype mismatch. expected Float, actual Double", "dtype", "x", (None, "Float", "Double")),
        ("0/0: lens[times] == 3", "value", "lens", (None, "3", None)),
        ("0/0: 0[lens] == 3", "value", "lens", (None, "3", None)),
        ("0/0: self.lens == 3", "value", None, (None, "3", None)),
        ("0/0: tensor '0' rank mismatch. expected 2, actual 3", "rank", None, (None, "2", "3")),
        ("0/0: check(model, times, lens)", "other", "times", (None, None, None)),
    ],
)
def test_a_reason_is_read(reason: str, kind: str, argument: str | None, more: tuple[object, ...]) -> None:
    guard = guard_of(reason, ARGUMENTS)
    assert (guard.kind, guard.argument) == (kind, argument)
    assert (guard.dimension, guard.expected, guard.actual) == more


def test_the_line_of_the_model_stays_and_the_tutorial_and_stack_go() -> None:
    guard = guard_of(
        "0/0: 2 <= x.size()[0]          # return x  # m.py:3 in forward (user code shown is first use)\n"
        'User stack trace:\n  File "/home/a/m.py", line 3, in forward\n    return x',
        ARGUMENTS,
    )
    assert guard == Guard(
        kind="least",
        text="2 <= x.size()[0]",
        source="return x # m.py:3 in forward",
        argument="x",
        dimension=0,
        expected="2",
    )


def test_without_the_names_of_the_arguments_the_first_name_of_an_expression_is_taken() -> None:
    assert guard_of("0/0: L['lens'][0] == 512").argument == "lens"
    assert guard_of("0/0: tensor 'self._buffers['k']' size mismatch at index 0. expected 4, actual 6").argument is None
    assert guard_of("0/0: y.size()[0] == x.size()[0]").other == "x"
    assert guard_of("0/0: not ___dict_contains('a', G)").argument is None
    assert guard_of("0/0: lens[times] == 512").argument == "lens"
    assert guard_of("0/0: G['flag'] == 512").argument is None
    assert guard_of("0/0: tensor '0' rank mismatch. expected 2, actual 3").argument is None
    assert guard_of("0/0: x.size()[0] == 4").other is None


def test_a_guard_without_a_source_names_none() -> None:
    for reason in (
        "0/0: lens[0] == 512",
        "0/0: lens[0] == 512  #  ",
        "0/0: lens[0] == 512  # (user code shown is first use)",
    ):
        guard = guard_of(reason, ARGUMENTS)
        assert (guard.text, guard.source) == ("lens[0] == 512", None), reason
