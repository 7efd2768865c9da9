"""One experiment's live values: what is said to torch first, which numbers each step draws, what each step compares."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from attrs import evolve
from torch import nn

from npucompose.api import checked
from npucompose.compose import comparison
from npucompose.compose.comparison import compared, every_step
from npucompose.compose.session import Session
from npucompose.compose.state import Steadiness
from npucompose.errors import CompileError, ConfigError, SignatureError
from npucompose.models.inputs import Bound, bind
from npucompose.results.measured import EXACT
from npucompose.schema.experiment import Mode
from npucompose.targets.backend import Backend
from npucompose.targets.base import ModeSupport
from npucompose.targets.cpu import CpuTarget


def session(*overrides: str) -> Session:
    return Session(checked(["model=add", "model.size=2", "mode=eager", *overrides]))


def test_threads_and_logs_are_said_first() -> None:
    before = torch.get_num_threads()
    level = logging.getLogger("of_a_test").level
    try:
        torch.set_num_threads(2)
        session().set_up()
        assert torch.get_num_threads() == 2, "null leaves torch's choice"
        session("benchmark.threads=1", "logs.artifacts=[graph_code]", "+logs.levels={of_a_test: ERROR}").set_up()
        assert torch.get_num_threads() == 1
        assert logging.getLogger("of_a_test").level == logging.ERROR
        from torch._logging._internal import log_state

        assert log_state.is_artifact_enabled("graph_code")
        assert not log_state.is_artifact_enabled("guards")
    finally:
        torch.set_num_threads(before)
        logging.getLogger("of_a_test").setLevel(level)


def test_every_log_that_torch_does_not_have_is_told() -> None:
    with pytest.raises(ConfigError) as refused:
        session("logs.artifacts=[graph_cods,graph_code,nothing]").set_up()
    first, second = refused.value.problems
    assert first.startswith("unknown log artifact 'graph_cods' @ logs.artifacts. Did you mean 'graph_code'?")
    assert second.startswith("unknown log artifact 'nothing' @ logs.artifacts.")


def test_each_step_draws_its_own_numbers_on_every_side() -> None:
    made = session("seed=5")
    made.seed(2)
    assert torch.initial_seed() == 7
    made.seed(0)
    assert torch.initial_seed() == 5
    made.rewind()
    assert torch.initial_seed() == 5


def test_a_session_of_another_experiment_shares_the_model_and_what_is_known_of_it() -> None:
    one = session()
    other = one.with_experiment(one.checked)
    assert (other.built, other.state, other.reference) == (one.built, one.state, one.reference)
    assert other.traced is one.traced
    assert other.made is not one.made
    assert "steadiness" not in other.__dict__
    known = one.steadiness
    assert one.with_experiment(one.checked).__dict__["steadiness"] is known
    assert one.modules == [one.built.module, one.reference]


def test_a_session_keeps_the_passes_that_are_named() -> None:
    made = Session(checked(["model=add", "passes=[cse,dead_code]", "mode=reduce-overhead"]))
    assert [label for label, _ in made.with_passes(["dead_code"]).checked.passes] == ["dead_code"]
    assert made.with_passes([]).checked.passes == ()


def test_eager_compiles_nothing_and_records_nothing() -> None:
    made = session()
    assert made.compiled is made.built.module
    assert made.first_call.times.total_s == 0
    assert made.detached is None
    assert made.why_attached == "mode=eager records nothing"
    assert made.compilations == ()
    assert made.compiled_once
    assert (made.records, made.promises_bits, made.declared, made.trains) == (True, True, EXACT, False)
    assert not Session(checked(["model=add", "mode=max-autotune"])).records
    trained = checked(["model=mlp", "mode=eager", "compile.training=true", "pipeline=check"])
    assert Session(trained).trains
    assert made.calls == ({},)


class Kept(CpuTarget):
    """A target that loads graphs from a folder, or writes them for offline use; it says what it was asked."""

    can: ClassVar[ModeSupport] = ModeSupport()

    def support(self, mode: str) -> ModeSupport:
        return self.can

    def cached(self, *asked: Any) -> Any:
        return ("cached", *asked)

    def export(self, *asked: Any) -> Any:
        return ("exported", *asked)


@pytest.mark.parametrize(
    ("options", "can", "made"),
    [
        ((), ModeSupport(exports=True, caches=True), "compiled"),
        (("compiler.export.export_mode=true",), ModeSupport(exports=True), "exported"),
        (("compiler.export.export_mode=true",), ModeSupport(), "compiled"),
        (("compile.cache=true",), ModeSupport(caches=True), "cached"),
        (("compile.cache=true",), ModeSupport(), "compiled"),
    ],
)
def test_a_model_is_compiled_loaded_or_written_as_the_target_can(
    options: tuple[str, ...], can: ModeSupport, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kept, "can", can)
    asked = checked(["model=add", "mode=max-autotune", "strict=off", *options])
    there = Session(evolve(asked, target=Kept()))
    backend = SimpleNamespace(torch_compile=lambda module, **keywords: ("compiled", module, keywords))
    there.__dict__["materialised"] = SimpleNamespace(backend=backend, compile_keywords={"dynamic": None})
    module: Any = "module"
    found: Any = there._compiling(module)
    if made == "exported":
        assert found(1, 2, y=3) == ("exported", backend, module, Bound((1, 2), {"y": 3}), None)
    else:
        assert found == {
            "compiled": ("compiled", module, {"dynamic": None}), "cached": ("cached", backend, module, None)
        }[made]  # fmt: skip


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (None, None),
        (ConfigError("in our words"), None),
        (NotImplementedError("npu_x only support in max-autotune now"), None),
        (ValueError("wrong\n  size"), r"^the model itself fails, compiled or not, at .*test_session\.py:\d+ in fails.*"
                                      r": ValueError: wrong size$"),
    ],
)  # fmt: skip
def test_a_compilation_that_fails_where_eager_fails_too_is_the_models_own_failure(
    raised: Exception | None, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session()
    rewound: list[bool] = []
    error = CompileError("no")

    def fails(function: Any, inputs: Any) -> None:
        assert function is made.reference
        if raised is not None:
            raise raised

    monkeypatch.setattr(made, "rewind", lambda: rewound.append(True))
    monkeypatch.setattr(made, "call", fails)
    if told is None:
        assert made._try_in_eager(error) is None
    else:
        with pytest.raises(CompileError, match=told) as caught:
            made._try_in_eager(error)
        assert caught.value.__cause__ is error
    assert rewound == [True]


def test_without_a_model_a_session_has_none() -> None:
    made = Session(evolve(session().checked, model=None))
    assert made.calls == ({},)
    with pytest.raises(ConfigError, match="names no model of its own"):
        made.built  # noqa: B018


def test_a_call_that_eager_cannot_make_is_told_with_its_number() -> None:
    made = session("model.sequence=[{x.0: 2},{x.0: 3}]")
    assert [len(call) for call in made.calls] == [0, 1, 1]
    with pytest.raises(
        ConfigError, match=r"model\.sequence\[1\] \(x\.0: 3\): the model cannot take these inputs, even in"
    ):
        made.compiled  # noqa: B018


# One call in both worlds.


class Compared:
    """A session that keeps what it is asked, with a reference that adds one."""

    def __init__(self, **more: Any) -> None:
        self.said: list[Any] = []
        self.made: list[Any] = [(9, {})]
        self.steadiness = Steadiness()
        self.promises_bits, self.records, self.declared = True, True, EXACT
        self.experiment = SimpleNamespace(shapes=SimpleNamespace(mark_static=()), mode=Mode(name="eager"))
        self.reference = torch.nn.Identity()
        self.built = SimpleNamespace(module=torch.nn.Identity())
        self.state = SimpleNamespace(outside_of=lambda module: {})
        vars(self).update(more)

    def rewind(self) -> None:
        self.said.append("rewind")

    def seed(self, step: int) -> None:
        self.said.append(("seed", step))

    def inputs(self, step: int, call: Any) -> Any:
        return {"x": torch.full((2,), float(step))}

    def call(self, function: Any, inputs: Any) -> Any:
        self.said.append("eager" if function is self.reference else "ours")
        return inputs["x"] + 1 if function is self.reference else function(inputs)


def test_both_sides_of_a_call_start_from_one_seed_and_from_inputs_of_their_own() -> None:
    made: Any = Compared()
    found = compared(made, lambda inputs: inputs["x"] + 1, 0, {}, name="n")
    assert found.numerics.bitwise
    assert found.recompiles == ()
    assert found.took_us > 0
    assert made.said == ["rewind", ("seed", 0), "eager", ("seed", 0), "ours"]
    assert made.made == [(0, {})]
    compared(made, lambda inputs: inputs["x"] + 1, 2, {"x.0": 2}, name="n")
    assert made.made == [(0, {}), (2, {"x.0": 2})]
    assert made.said[5:] == [("seed", 2), "eager", ("seed", 2), "ours"]


def test_what_a_call_writes_into_its_inputs_is_compared_too() -> None:
    def writing(inputs: Any) -> Any:
        found = inputs["x"] + 1
        inputs["x"].add_(1)
        return found

    made: Any = Compared()
    assert not compared(made, writing, 1, {}, name="n").numerics.passed
    unsteady: Any = Compared(steadiness=Steadiness(within=False, words="odd"))
    assert compared(unsteady, writing, 1, {}, name="n").numerics.problems == ("odd",)


def test_the_time_of_a_call_is_told_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5])
    monkeypatch.setattr(comparison, "perf_counter", lambda: next(clock))
    made: Any = Compared()
    assert compared(made, lambda inputs: inputs["x"] + 1, 1, {}, name="n").took_us == 500_000.0


def steps(monkeypatch: pytest.MonkeyPatch, ends: dict[str, int], detached: bool = True, count: int = 3) -> Any:
    """Every step of a session whose ways end at a step with a SignatureError; and what was said on the way."""
    told: list[Any] = []

    def one(session: Any, function: str, step: int, call: Any, *, name: str) -> Any:
        if ends.get(function) == step:
            raise SignatureError("another shape")
        told.append((function, step, call, name))
        return SimpleNamespace(took_us=float(len(told)), numerics=None)

    monkeypatch.setattr(comparison, "compared", one)
    held: Any = SimpleNamespace(
        compiled="compiled", detached="detached" if detached else None, built=SimpleNamespace(steps=count)
    )
    shares: list[float] = []
    return every_step(held, shares.append), told, shares


def test_every_step_is_compared_compiled_then_detached(monkeypatch: pytest.MonkeyPatch) -> None:
    found, told, shares = steps(monkeypatch, {})
    assert list(found.results) == [f"{way} step {n}" for way in ("compiled", "detached") for n in range(3)]
    assert told[4] == ("detached", 1, {}, "step 1 of the comparison")
    assert shares == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert (found.first_us, found.ended) == (6.0, None)
    alone, _, parts = steps(monkeypatch, {}, detached=False)
    assert (alone.first_us, parts[-1]) == (1.0, 1.0)


def test_a_recording_is_good_for_one_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    found, told, _ = steps(monkeypatch, {"detached": 2})
    assert found.ended == "at step 2 of 3: another shape"
    assert len(told) == 5
    for ends in ({"detached": 0}, {"compiled": 0}, {"compiled": 1}):
        with pytest.raises(SignatureError):
            steps(monkeypatch, ends)


# Training.


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> Any:
        self.seen = self.seen + x * self.weight
        return {"a": x * self.weight, "n": torch.tensor([1, 2]), "b": [self.weight * 2, 5]}


def test_the_loss_is_the_mean_square_of_every_floating_point_output() -> None:
    from npucompose.compose.calls import WithLoss, step

    net, x = WithLoss(Two()), torch.tensor([1.0, 2.0])
    (loss,) = net(x)
    assert loss.item() == pytest.approx((4 + 36) / 2 + (16 + 36) / 2)
    assert list(net.__signature__.parameters) == ["x"]
    net.model.weight.grad = torch.ones(2)
    found = step(net, [net], bind(net, {"x": x}), 0)
    assert found["outputs"][0].item() == pytest.approx(46.0)
    assert not found["outputs"][0].requires_grad
    # d/dw of (x w)² / 2 + (2 w)² / 2 for each element
    assert found["gradients"]["model.weight"].tolist() == pytest.approx([2 * 1 + 4 * 2, 3 * 4 + 4 * 3])
    assert net.model.weight.grad is None
    assert not net.model.seen.requires_grad
    assert step(lambda x: None, [net], bind(net, {"x": x}), 0) == {}


class Lost(torch.nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(x * self.weight)


@pytest.mark.parametrize(
    ("make", "index", "own"),
    [
        (lambda x: (x.sum(), x), 0, True), (lambda x: [x, x.sum()], 1, True), (lambda x: (x,), 0, False),
        (lambda x: x.sum(), 0, False), (lambda x: (x.sum().long(), x), 0, False), (lambda x: (3.0, x), 0, False),
    ],
)  # fmt: skip
def test_a_loss_of_the_models_own_is_a_single_floating_point_number(make: Any, index: int, own: bool) -> None:
    from npucompose.compose.calls import WithLoss, with_loss
    from npucompose.models.base import Built

    built = Built(module=Lost(make).requires_grad_(False), inputs=lambda step: {"x": torch.ones(2)})
    found = with_loss(built, index)
    assert (found is built) is own
    assert isinstance(found.module, WithLoss) is not own
    assert built.module.weight.requires_grad


@pytest.mark.parametrize("index", [1, 2])
def test_an_output_that_is_no_loss_is_refused_by_its_number(index: int) -> None:
    from npucompose.compose.calls import with_loss
    from npucompose.models.base import Built

    built = Built(module=Lost(lambda x: (x.sum(), x)), inputs=lambda step: {"x": torch.ones(2)})
    with pytest.raises(ConfigError, match=f"aot_config_output_loss_index={index}: output {index} of Lost is no single"):
        with_loss(built, index)


class Keeping(CpuTarget):
    """A device of somebody's that keeps compiled graphs for later processes."""

    def support(self, mode: str) -> ModeSupport:
        return evolve(super().support(mode), caches=True)

    def cached(self, backend: Backend, module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
        return lambda *args, **kwargs: (module(*args, **kwargs), dynamic)


@pytest.mark.parametrize("asked", [True, False])
def test_a_target_that_keeps_graphs_compiles_where_that_is_asked_for(asked: bool) -> None:
    made = checked(["model=add", "model.size=2", "mode=reduce-overhead", "shapes=dynamic"])
    compile_ = evolve(made.experiment.compile, cache=asked)
    made = evolve(made, target=Keeping(), experiment=evolve(made.experiment, compile=compile_))
    live = Session(made)
    given = live.inputs(0)
    result = live.call(live.compiled, given)
    expected = live.call(live.reference, given)
    torch.testing.assert_close(result, (expected, True) if asked else expected)
