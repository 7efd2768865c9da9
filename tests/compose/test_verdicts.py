"""The verdict on a call from its comparisons, and what is said of a model that is no reference: the values alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch import nn

from npucompose.compose import comparison, state
from npucompose.compose.comparison import Steps, _account_kept, _apart, _asked, _is_numbers, judged, left, named
from npucompose.compose.session import _times
from npucompose.compose.state import Spot, Steadiness, steadiness_of, unsteady_result
from npucompose.errors import PassError
from npucompose.measure.numerics import compare
from npucompose.npu.static_graph.session import _calls, _changes, _difference
from npucompose.results.measured import EXACT, Numerics
from npucompose.results.record import CompileTimes
from npucompose.schema.experiment import Mode, Shapes

ONE = torch.tensor([1.0, 2.0])
NEAR, FAR = ONE * (1 + 1e-6), ONE * 2


def session(traced: Any = None, passed_on: Any = None, **more: Any) -> Any:
    """A session whose traced graph, and the graph after its passes, give these results; an exception is raised."""
    given: dict[str, Any] = {
        "promises_bits": True, "declared": EXACT, "records": True, "mode": "reduce-overhead", "passes": ((("p", 0)),),
        "genuine": None, "words": None, "repeats": True,
    } | more  # fmt: skip
    return SimpleNamespace(
        promises_bits=given["promises_bits"], declared=given["declared"], records=given["records"],
        experiment=SimpleNamespace(mode=Mode(name=given["mode"])),
        checked=SimpleNamespace(passes=given["passes"]), materialised=SimpleNamespace(genuine=given["genuine"]),
        steadiness=Steadiness(words=given["words"], repeats=given["repeats"]), results={False: traced, True: passed_on},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which graphs were asked for: with passes or without."""
    asked: list[bool] = []

    def as_traced(of: Any, *, passes: bool) -> Any:
        asked.append(passes)
        if isinstance(of.results[passes], Exception):
            raise of.results[passes]
        return [of.results[passes]]

    monkeypatch.setattr(comparison, "_as_traced", as_traced)
    return asked


def shares(found: Numerics) -> tuple[Any, ...]:
    return tuple(None if share is None else share.passed for share in (found.tracing, found.passes, found.replay))


def test_results_that_are_eagers_are_compared_with_nothing_else(graphs: list[bool]) -> None:
    found = judged(session(words="beware"), [ONE], [ONE.clone()])
    assert (found.passed, found.bitwise, found.cause, found.model, shares(found)) == (
        True,
        True,
        None,
        "beware",
        (None,) * 3,
    )
    eager = judged(session(mode="eager"), [ONE], [FAR])
    assert (eager.passed, eager.cause) == (False, None), "eager has no parts"
    kernels = judged(session(records=False, promises_bits=False, mode="max-autotune"), [ONE], [NEAR])
    assert (kernels.passed, kernels.bitwise, kernels.cause) == (True, False, None)
    assert graphs == []


@pytest.mark.parametrize(
    ("traced", "passed_on", "got", "passed", "cause", "parts"),
    [
        (NEAR, None, NEAR, True, None, (True, None, True)),
        (FAR, None, FAR, False, "tracing", (False, None, True)),
        (ONE, NEAR, NEAR, False, "passes", (True, False, True)),
        (ONE, ONE, NEAR, False, "replay", (True, True, False)),
        (ONE, NEAR, FAR, False, "replay", (True, False, False)),
        (FAR, FAR, ONE, False, "replay", (False, True, False)),
    ],
)
def test_the_last_part_of_the_way_that_fails_is_the_cause(
    traced: Any, passed_on: Any, got: Any, passed: bool, cause: Any, parts: Any, graphs: list[bool]
) -> None:
    found = judged(session(traced, passed_on), [ONE], [got])
    if torch.equal(got, ONE):
        assert found.passed
        return
    assert (found.passed, found.cause, shares(found)) == (passed, cause, parts)
    assert all(problem.startswith(("tracing: ", "passes: ", "replay: ")) for problem in found.problems)
    assert bool(found.problems) is not passed
    assert graphs == ([False] if passed_on is None else [False, True])


def test_passes_are_asked_only_where_there_are_some_of_ours(graphs: list[bool]) -> None:
    for more in ({"passes": ()}, {"genuine": object()}):
        found = judged(session(ONE, PassError("not asked"), **more), [ONE], [NEAR])
        assert (found.cause, shares(found)) == ("replay", (True, None, False))
    assert graphs == [False, False]


def test_what_a_mode_makes_of_its_own_is_told_from_tracing() -> None:
    kernels = judged(session(ONE, records=False), [ONE], [FAR])
    assert (kernels.passed, kernels.cause, shares(kernels)) == (False, "replay", (True, None, False))
    tracing = judged(session(FAR, records=False), [ONE], [FAR])
    assert (tracing.passed, tracing.cause, shares(tracing)) == (False, "tracing", (False, None, True))
    both = judged(session(ONE * 3, records=False), [ONE], [FAR])
    assert (both.cause, shares(both)) == ("replay", (False, None, False))


def test_a_graph_that_cannot_be_run_as_it_was_traced_is_told_and_leaves_the_verdict() -> None:
    wrong = judged(session(PassError("oops")), [ONE], [FAR])
    assert (wrong.passed, wrong.cause) == (False, "replay")
    assert wrong.problems[-1] == "the graph could not be run as it was traced: oops"
    assert len(wrong.problems) > 1
    right = judged(session(PassError("oops"), promises_bits=False), [ONE], [NEAR])
    assert (right.passed, right.cause) == (True, None)


def test_a_call_leaves_its_result_its_inputs_its_buffers_and_what_is_outside() -> None:
    module = nn.BatchNorm1d(2)
    outside = SimpleNamespace(state=SimpleNamespace(outside_of=lambda m: {"m": m is module}))
    found = left(outside, module, ONE, {"x": NEAR})
    assert found[0] is ONE
    assert found[1] == {"x": NEAR}
    assert len(found[2]) == 3
    assert found[3] == {"m": True}


# A reference that differs from itself.


def test_what_is_said_of_a_model_that_is_no_reference() -> None:
    assert unsteady_result(Steadiness()) is None
    assert unsteady_result(Steadiness(repeats=False, words="w")) is None
    found = unsteady_result(Steadiness(within=False, words="differs"))
    assert found is not None
    assert (found.passed, found.bitwise, found.cause, found.model, found.problems, found.max_abs_err) == (
        False, False, "model", "differs", ("differs",), None,
    )  # fmt: skip


def spot(path: str, known: bool = True, in_place: bool = False) -> Spot:
    now, start = (torch.ones(1), torch.zeros(1)) if in_place else (1, 2)
    return Spot(path, now, start, lambda _: None, known)


def test_three_places_are_named_and_those_that_can_be_told_apart_before_others() -> None:
    assert state._shown([spot("a"), spot("b", known=False), spot("_modules.c")]) == "'a', 'c'"
    assert state._shown([spot("b", known=False)]) == "'b'"
    assert state._listed(["a", "b", "c"]) == "'a', 'b', 'c'"
    assert state._listed(["a", "b", "c", "d", "e"]) == "'a', 'b', 'c' and 2 more"
    assert Steadiness(in_python=("a", "b")).why_attached.startswith("a call changes 'a', 'b' in Python")


def test_how_far_two_calls_are_apart() -> None:
    assert state._off(compare([ONE], [ONE + 0.5])) == "differs by up to 0.5"
    assert state._off(compare([ONE], [ONE[:1]])).startswith("gives something else (")


class Opaque:
    """Nobody can tell whether it has changed."""

    __slots__ = ()


class Unsteady(nn.Module):
    """Does what `kind` says with each call."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2), requires_grad=False)
        self.kind, self.count, self.kept = kind, 0, torch.zeros(2)
        if kind == "python":
            self.opaque = Opaque()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(1)
        if self.kind == "python":
            self.count += 1
        elif self.kind == "tensor":
            self.kept.add_(1)
        elif self.kind == "parameter":
            self.weight.add_(1)
        elif self.kind in ("elsewhere", "both"):
            self.count += self.kind == "both"
            CALLS[0] += 1
            return x + CALLS[0]
        return x * self.weight + self.total + self.count + self.kept


CALLS = [0]


def steady(kind: str, inputs: Any = None) -> tuple[Steadiness, Any]:
    from npucompose.compose.state import ModelState

    module = Unsteady(kind)
    state = ModelState(module)
    example = inputs or (lambda step: {"x": ONE.clone()})

    def step() -> Any:
        torch.manual_seed(0)
        given = {"x": ONE.clone()}
        return module(**given), given

    return steadiness_of(state, module, (example(0), example(0)), step), state


def test_a_model_whose_state_is_in_buffers_is_steady() -> None:
    found, state = steady("buffers")
    assert found == Steadiness()
    assert state.outside == ()


@pytest.mark.parametrize(
    ("kind", "path", "in_python"), [("python", "count", ("count", "opaque")), ("tensor", "kept", ())]
)
def test_state_that_decides_is_rewound_from_then_on(kind: str, path: str, in_python: Any) -> None:
    found, state = steady(kind)
    assert (found.repeats, found.within, found.in_python) == (True, True, in_python)
    assert str(found.words).startswith(
        f"the model keeps state outside its buffers, in '{path}': a second eager call diff"
    )
    assert state.outside == (path,)


def test_a_model_that_writes_its_parameters_or_counts_elsewhere_is_no_reference() -> None:
    written, _ = steady("parameter")
    assert (written.repeats, written.within) == (False, False)
    assert "it writes to its parameters ('weight'), which all sides share" in str(written.words)
    elsewhere, state = steady("elsewhere")
    assert (elsewhere.repeats, elsewhere.within, state.outside) == (False, False, ())
    assert "none of its attributes changed" in str(elsewhere.words)


def test_a_model_that_counts_here_and_elsewhere_is_not_helped_by_rewinding() -> None:
    both, state = steady("both")
    assert (both.repeats, both.within, state.outside) == (False, False, ("count",))
    assert str(both.words).endswith("; 'count' changed, and rewinding that does not help")


def test_inputs_that_are_others_each_time_are_told_before_any_call() -> None:
    found, _ = steady("buffers", lambda step: {"x": torch.rand(2)})
    assert (found.repeats, found.within) == (False, False)
    assert str(found.words).startswith("the example inputs are others each time they are asked for: ")


def test_every_source_of_random_numbers_is_seeded() -> None:
    import random

    import numpy as np

    def drawn(seed: int) -> tuple[float, ...]:
        state.seed_all(seed)
        return torch.rand(1).item(), random.random(), float(np.random.rand())

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        assert drawn(2**32 + 1) == drawn(2**32 + 1)
        assert drawn(2**32 + 1)[2] == drawn(1)[2]
        assert all(a != b for a, b in zip(drawn(1), drawn(2), strict=True))
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


# Calls, and what changes between them.


def test_numbers_can_become_symbols_and_truth_cannot() -> None:
    assert [_is_numbers(v) for v in (1, 2.5, [1, 2], (1.0,))] == [True] * 4
    assert [_is_numbers(v) for v in (True, [1, True], [], "a", None, ONE, [1, "a"])] == [False] * 7
    assert named(2, {"x.0": 6}) == "call 2 of model.sequence (x.0: 6)"


def test_what_was_asked_of_a_call() -> None:
    policy = Shapes(mark_static=("c*",))
    experiment = SimpleNamespace(shapes=policy, mode=Mode(name="eager"))
    asked = _asked(SimpleNamespace(experiment=experiment), {"x": ONE, "cache": ONE, "n": 3})
    assert attrs.asdict(asked, recurse=False) == {
        "shapes": policy, "mode": "eager", "static": frozenset({"cache"}), "numbers": frozenset({"n"}),
        "arguments": ("x", "cache", "n"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (ONE, FAR, None),
        (ONE, torch.ones(3), ("shape", "[2]", "[3]")),
        (3, 3, None),
        (3, 4, ("value", "3", "4")),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], ("value", "[1, 2]", "[1, 3]")),
        ([1, 2], [1], ("length", "2 values", "1 values")),
        ({"a": ONE}, {"a": ONE[:1]}, ("shape", "[2]", "[1]")),
    ],
)
def test_a_difference_that_torch_would_compile_anew_for(before: Any, after: Any, told: Any) -> None:
    assert _difference(before, after) == told


def of_calls(calls: Any, steps: int = 3, static: tuple[str, ...] = ()) -> Any:
    built = SimpleNamespace(steps=steps, inputs=lambda at: {"x": torch.ones(2), "n": 5 + at})
    checked = SimpleNamespace(experiment=SimpleNamespace(shapes=Shapes(mark_static=static)))
    return SimpleNamespace(calls=calls, built=built, checked=checked)


def test_the_first_difference_of_each_argument_is_told_over_the_declared_calls_or_else_the_steps() -> None:
    declared = of_calls(({}, {"x.0": 2}, {"x.0": 3}, {"x.0": 4}), static=("x",))
    assert [at for at, _ in _calls(declared)] == [1, 2, 3]
    assert list(_calls(of_calls(({},)))) == [(1, {}), (2, {})]
    changes = list(_changes(declared, declared.checked, declared.built.inputs(0)))
    assert [(c.argument, c.what, c.before, c.after, c.call, c.marked) for c in changes] == [
        ("n", "value", "5", "6", 1, False), ("x", "shape", "[2]", "[3]", 2, True),
    ]  # fmt: skip


def test_a_call_may_leave_an_input_unmarked() -> None:
    unmarked = of_calls(({}, {"x.0": 3, "x": "unmarked"}), static=("x",))
    changes = {c.argument: c.marked for c in _changes(unmarked, unmarked.checked, unmarked.built.inputs(0))}
    assert changes["x"] is False


def test_the_parts_of_a_first_call_are_added() -> None:
    graphs = [
        SimpleNamespace(aot_s=1.0, passes_s=2.0, backend_s=4.0),
        SimpleNamespace(aot_s=8.0, passes_s=0.5, backend_s=0.25),
    ]
    backend: Any = SimpleNamespace(made=graphs, entered_at=[105.0, 107.0])
    assert _times(backend, 100.0, 120.0) == CompileTimes(
        dynamo_s=5.0, aot_s=9.0, passes_s=2.5, backend_s=4.25, total_s=20.75
    )
    never: Any = SimpleNamespace(made=[], entered_at=[])
    assert _times(never, 100.0, 120.0).dynamo_s == 20.0


def test_all_steps_together_have_one_verdict() -> None:
    numerics = [compare([ONE], [one]) for one in (ONE, FAR)]
    results: Any = {f"step {n}": SimpleNamespace(numerics=one) for n, one in enumerate(numerics)}
    assert not Steps(results=results, first_us=1.0, ended=None).numerics.passed
    assert Steps(results={"a": results["step 0"]}, first_us=1.0, ended=None).numerics.passed


# A frame of its own.


class Adding(nn.Module):
    def forward(self, x: int, *, more: int = 2) -> int:
        return x + more


def test_a_module_gets_a_forward_of_its_own_with_the_same_text() -> None:
    module = Adding()
    made = _apart(module)
    assert made is module
    assert (type(made).__name__, type(made).__module__, isinstance(made, Adding)) == ("Adding", __name__, True)
    assert type(made).forward.__code__ is not Adding.forward.__code__
    assert (made(1), made(1, more=5)) == (3, 6)
    torchscript = torch.jit.script(nn.Linear(2, 2))
    assert _apart(torchscript) is torchscript


def test_graph_breaks_of_the_traced_model_are_not_counted() -> None:
    from torch._dynamo.utils import counters

    before = counters["graph_break"].copy()
    try:
        counters["graph_break"].clear()
        counters["graph_break"]["ours"] += 2
        with pytest.raises(KeyError), _account_kept():  # noqa: PT012
            counters["graph_break"]["ours"] += 1
            counters["graph_break"]["theirs"] += 1
            raise KeyError
        assert dict(counters["graph_break"]) == {"ours": 2}
    finally:
        counters["graph_break"].clear()
        counters["graph_break"].update(before)


def test_the_reasons_of_graph_breaks_are_told_with_their_explanation() -> None:
    from torch._dynamo.utils import counters

    from npucompose.npu.static_graph.session import _breaks

    before = counters["graph_break"].copy()
    try:
        counters["graph_break"].clear()
        counters["graph_break"]["No way\n  Explanation: it prints. \n  Hint: do not."] += 1
        counters["graph_break"]["Plain"] += 2
        assert list(_breaks()) == ["No way. it prints.", "Plain."]
    finally:
        counters["graph_break"].clear()
        counters["graph_break"].update(before)


def test_the_question_of_sinking_is_what_the_experiment_and_its_inputs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    from npucompose.npu.static_graph import session as sinking
    from npucompose.vendor.compiler import CompilerOptions

    monkeypatch.setattr(sinking, "_breaks", lambda: ["broke"])
    options = CompilerOptions(values={sinking.TILING_SINK: True, sinking.LOWER_LIMIT: 5})
    policy = Shapes(dynamic=None, mark_static=("c*",), gears={"x.0": (2, 4)})
    held = of_calls(({}, {"n": 9}))
    held.built.inputs = lambda at: {"x": torch.ones(2), "cache": [torch.ones(1)], "n": 5}
    held.experiment = SimpleNamespace(
        mode=Mode(name="max-autotune"),
        shapes=policy,
        compile=SimpleNamespace(fullgraph=False),
        compiler=options,
    )
    held.checked.experiment = held.experiment
    held.checked.target = SimpleNamespace(name="npu", soc="a soc")
    held.checked.torch_npu = SimpleNamespace(version="2.13.0")
    held.checked.operators = SimpleNamespace(product=lambda soc: f"product of {soc}")
    held.materialised = SimpleNamespace(genuine=None)
    found = sinking.question_of(held)
    assert (found.mode, found.target, found.dynamic, found.fullgraph) == ("max-autotune", "npu", None, False)
    assert (found.mark_static, found.marked, found.gears) == (("c*",), ("cache",), {"x.0": (2, 4)})
    assert (found.sink, found.ops_lower_limit, found.product) == (True, 5, "product of a soc")
    assert (found.arguments, found.breaks, found.through_torchair) == (("x", "cache"), ("broke",), False)
    assert [(change.argument, change.after) for change in found.changes] == [("n", "9")]
    held.materialised.genuine = object()
    held.experiment.compiler = CompilerOptions()
    assert (sinking.question_of(held).through_torchair, sinking.question_of(held).sink) == (True, False)
