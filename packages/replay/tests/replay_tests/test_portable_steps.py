"""How portable executors write a step down, and which steps have no words in TorchScript."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from npucompose.bits import same_bytes
from npucompose_replay.executor.portable import StraightLine, TorchScript
from npucompose_replay.operands import layout_of
from npucompose_replay.plan import PlanSlot, Register, Root, Step, UnsupportedStep, dying_registers

aten = torch.ops.aten
LIBRARY = torch.library.Library("npucompose_portable", "FRAGMENT")
LIBRARY.define("mine(Tensor x) -> Tensor")
LIBRARY.impl("mine", lambda x: x + 1, "CPU")
mine = torch.ops.npucompose_portable.mine.default
PORTABLE = pytest.mark.parametrize("executor", [TorchScript, StraightLine])


def slot_of(tensor: torch.Tensor, kind: Any = "pool") -> PlanSlot:
    return PlanSlot(Root(kind=kind, nbytes=tensor.untyped_storage().nbytes()), layout_of(tensor))


X, Y = torch.randn(2, 3), torch.randn(2, 3)
TURNED = torch.tensor([2, 1, 0])
SX, SY, OUT, SI = slot_of(X), slot_of(Y), slot_of(X), slot_of(TURNED)
R, S, T = Register(0), Register(1), Register(2)


def ran(executor: Any, *steps: Step) -> torch.Tensor:
    """What `steps` leave in OUT."""
    out = torch.zeros(2, 3)
    made = executor(steps, [SX, SY, OUT, SI], [X, Y, out, TURNED])
    made.run()
    first, other = out.clone(), torch.ones(2, 3)
    made.lay(0, other)
    made.lay(2, again := torch.zeros(2, 3))
    made.run()
    made.lay(0, X)
    made.run()
    assert same_bytes(again, first)
    return first


def copied(register: Register) -> Step:
    return Step(op=aten.copy_.default, args=(OUT, register, False))


CALLS: dict[str, tuple[OpOverload, tuple[Any, ...], Any]] = {
    "a list of ints": (aten.repeat.default, (SX, [1, 1]), lambda: X),
    "one int for a list": (aten.sum.dim_IntList, (SX, 1, True, None), lambda: X.sum(1, True).expand(2, 3)),
    "a list of tensors": (aten.cat.default, ([SX], 0), lambda: X),
    "tensors of which some are None": (aten.index.Tensor, (SX, [None, SI]), lambda: X.flip(1)),
    "a memory format": (aten.clone.default, (SX,), lambda: X),
    "a number by name": (aten.add.Tensor, (SX, SY, 2), lambda: torch.add(X, Y, alpha=2)),
    "a dtype": (aten._to_copy.default, (SX, torch.float64, None, None, None, False, None), lambda: X),
    "text": (aten.div.Tensor_mode, (SX, SY, "floor"), lambda: torch.div(X, Y, rounding_mode="floor")),
    "none": (aten.layer_norm.default, (SX, [3], None, None, 1e-5, True), lambda: torch.layer_norm(X, [3])),
}


@PORTABLE
@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_every_kind_reach_the_kernel(executor: Any, name: str) -> None:
    op, args, expected = CALLS[name]
    args = (*args, *(a.default_value for a in op._schema.arguments[len(args) :]))
    assert torch.equal(ran(executor, Step(op=op, args=args, results=(R,)), copied(R)), expected())


@PORTABLE
def test_an_int_for_a_float_and_a_flag_for_an_int_are_what_the_schema_wants(executor: Any) -> None:
    step = Step(op=aten.layer_norm.default, args=(SX, [3], None, None, 1, True), results=(R,))
    assert torch.equal(ran(executor, step, copied(R)), torch.layer_norm(X, [3], eps=1))
    step = Step(op=aten.narrow_copy.default, args=(SX, False, False, 2), results=(R,))
    assert torch.equal(ran(executor, step, copied(R)), X)


@PORTABLE
def test_a_list_that_is_made_and_several_results_come_through(executor: Any) -> None:
    split = Step(op=aten.split.Tensor, args=(SX, 1, 0), results=((R, S),))
    joined = Step(op=aten.cat.default, args=([S, R], 0), results=(T,))
    assert torch.equal(ran(executor, split, joined, copied(T)), X.flip(0))
    extremes = Step(op=aten.aminmax.default, args=(SX, 1, True), results=(R, S))
    less = Step(op=aten.sub.Tensor, args=(S, R, 1), results=(T,))
    expected = (X.amax(1, True) - X.amin(1, True)).expand(2, 3)
    assert torch.equal(ran(executor, extremes, less, copied(T)), expected)
    only = Step(op=aten.aminmax.default, args=(SX, 1, True), results=(None, S))
    assert torch.equal(ran(executor, only, copied(S)), X.amax(1, True).expand(2, 3))


@PORTABLE
def test_a_plan_without_steps_or_slots_runs(executor: Any) -> None:
    executor([], [], []).run()


@pytest.mark.parametrize(
    ("op", "args", "words"),
    [
        (mine, (SX,), "npucompose_portable.mine.default: an operator that is not torch's may keep what it is given"),
        (aten.add.Tensor, (SX, 2, 1), "aten.add.Tensor: the number 2 in place of a tensor"),
        (aten.add.Scalar, (SX, True, 1), "aten.add.Scalar: a bool as a number"),
        (aten.index.Tensor, (SX, [SY, 3]), "aten.index.Tensor: a list of mixed values"),
        (
            aten.rand.generator,
            ([2], torch.Generator(), None, None, None, None),
            "aten.rand.generator: a generator",
        ),
        (aten.add.Tensor, (SX, SY, "x"), "aten.add.Tensor: TorchScript knows no such call"),
        (aten.add.Tensor, (SX, SY, object()), "no constant for <object"),
    ],
)
def test_a_step_without_words_in_torchscript_is_refused_with_them(
    op: OpOverload, args: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(UnsupportedStep) as error:
        TorchScript([Step(op=op, args=args, results=(R,))], [SX, SY], [X, Y])
    assert str(error.value).startswith(words)


def test_another_overload_than_the_recorded_one_is_refused() -> None:
    with pytest.raises(UnsupportedStep, match=r"aten\.mul\.Scalar: TorchScript would call aten::mul\.Tensor"):
        TorchScript([Step(op=aten.mul.Scalar, args=(SX, SY), results=(R,))], [SX, SY], [X, Y])


def test_torchs_own_setting_is_as_it_was_after_a_run() -> None:
    made = TorchScript([Step(op=aten.add.out, args=(SX, SY, 1, OUT))], [SX, SY, OUT], [X, Y, torch.zeros(2, 3)])
    was = torch._C._get_graph_executor_optimize()
    try:
        for setting in (True, False):
            torch._C._set_graph_executor_optimize(setting)
            made.run()
            assert torch._C._get_graph_executor_optimize() is setting
    finally:
        torch._C._set_graph_executor_optimize(was)


def test_a_straight_line_says_what_it_calls_and_lets_registers_go() -> None:
    steps = [
        Step(op=aten.split.Tensor, args=(SX, 1, 0), results=((R, S),)),
        Step(op=aten.cat.default, args=([S, R, SY], 0), results=(T,)),
        Step(op=aten.aminmax.default, args=(T, 1, True), results=(None, None)),
        Step(op=aten.add.out, args=(SX, SY, 1, OUT)),
        Step(op=aten.sort.default, args=(SX, -1, False), results=(Register(3), None)),
    ]
    made = StraightLine(steps, [SX, SY, OUT], [X, Y, torch.zeros(2, 3)])
    assert made.source.splitlines() == [
        "def run():",
        "    [r0, r1] = f0(s0, c0_1, c0_2)",
        "    r2 = f1([r1, r0, s1], c1_1)",
        "    r0 = None",
        "    r1 = None",
        "    f2(r2, dim=c2_1, keepdim=c2_2)",
        "    r2 = None",
        "    f3(s0, s1, alpha=c3_2, out=s2)",
        "    r3, _ = f4(s0, c4_1, c4_2)",
        "    r3 = None",
    ]
    assert not made.lends
    assert dying_registers(steps) == ([[], [0, 1], [2], [], [3]], [])


def test_an_operator_that_may_keep_what_it_is_given_is_lent_it() -> None:
    step = Step(op=mine, args=(SX,), results=(R,))
    made = StraightLine([step, copied(R)], [SX, SY, OUT], [X, Y, out := torch.zeros(2, 3)])
    assert made.lends
    made.run()
    assert torch.equal(out, X + 1)
