"""Which requests do not take effect and who refuses them: each rule alone, on devices made here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from npucompose.compose.legality import COMPILE_RULES, GEAR_RULES, INDUCTOR_RULES, PASS_RULES
from npucompose.compose.legality_case import LegalityCase, judged
from npucompose.errors import ConfigError
from npucompose.passes.scopes import StreamPlan
from npucompose.passes.simplify import Cse
from npucompose.results.effective import Effective
from npucompose.schema.experiment import Choice, Experiment
from npucompose.table.structure import structure
from npucompose.targets import TARGETS
from npucompose.targets.base import ModeSupport
from npucompose.vendor.compiler import CompilerOptions
from npucompose.vendor.inductor import InductorOptions

GE, ACL, EX = "max-autotune", "reduce-overhead", "npugraph_ex"


def experiment(mode: str = GE, target: str = "cpu", compiler: Any = None, **sections: Any) -> Experiment:
    tree = {"mode": {"name": mode}, "target": Choice(name=target), **sections}
    return structure(Experiment, {**tree, "compiler": CompilerOptions(values=compiler or {})})


def problems(find: Any, *given: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        find(*given)
    return refused.value.problems


# Gears.

GEARS = {"dynamic": True, "gears": {"x.0": [2, 4]}}


def gears(sizes: Any = None, mode: str = GE, target: str = "npu", dynamic: Any = True, **more: Any) -> Experiment:
    given = {"x.0": [2, 4]} if sizes is None else sizes
    return experiment(mode, target, shapes={"dynamic": dynamic, "gears": given}, **more)


def found_by(rules: Any, given: Experiment, target: Any, passes: Any = ()) -> list[Effective]:
    rules = rules if isinstance(rules, tuple) else (rules,)
    return list(judged(rules, LegalityCase(experiment=given, target=target, passes=passes)))


def act(given: Experiment) -> list[Effective]:
    return found_by(GEAR_RULES, given, TARGETS.get(given.target.name)())


@pytest.mark.parametrize("sizes", [[2, 3], list(range(2, 102)), [7, 2]])
def test_two_to_a_hundred_gears_of_at_least_two_are_taken(sizes: list[int]) -> None:
    for target in ("npu", "npu_offline"):
        assert act(gears({"x.0": sizes}, target=target)) == []


@pytest.mark.parametrize(
    ("sizes", "end"),
    [
        ([2], "."),
        ([], "."),
        (list(range(2, 103)), "."),
        ([1, 2], "."),
        ([0, 2, 3], ": write [2, 3]."),
        ([1, 2, 3], ": write [2, 3]."),
    ],
)
def test_other_gears_are_refused_with_those_that_are_left(sizes: list[int], end: str) -> None:
    (problem,) = problems(act, gears({"x.0": sizes}))
    assert problem == (
        f"shapes.gears 'x.0' takes 2 to 100 sizes of at least 2 (torch makes 0 and 1 constants); given {sizes}{end}"
    )


def test_gears_need_dynamic_shapes_and_one_graph() -> None:
    for dynamic in (False, None):
        assert problems(act, gears(dynamic=dynamic)) == ("shapes.gears needs dynamic shapes: write shapes=dynamic.",)
    assert problems(act, gears(compile={"fullgraph": False})) == (
        "shapes.gears needs one whole graph: write compile.fullgraph=true.",
    )
    assert act(experiment(ACL)) == []


@pytest.mark.parametrize(
    ("mode", "target", "strict", "refused"),
    [
        (GE, "cpu", "mode", False), (GE, "cpu", "off", False), (GE, "cpu", "all", True),
        ("eager", "npu", "mode", False), ("eager", "npu", "all", True),
        (ACL, "npu", "off", False), (ACL, "npu", "mode", True), (EX, "npu", "all", True),
    ],
)  # fmt: skip
def test_gears_that_do_not_act_are_listed_or_refused(mode: str, target: str, strict: str, refused: bool) -> None:
    given = gears(mode=mode, target=target, strict=strict)
    why = "gears have no meaning on target=cpu"
    if mode != GE:
        why = f"gears have no effect in mode={mode}; they take effect in: max-autotune"
    if refused:
        assert problems(act, given) == (f"shapes.gears: {why}.",)
    else:
        assert act(given) == [Effective(option="shapes.gears", requested={"x.0": (2, 4)}, effective=None, why=why)]


def test_gears_of_several_dimensions_are_paired_or_crossed_up_to_a_hundred() -> None:
    two = {"x.0": list(range(2, 12)), "x.1": list(range(2, 12))}
    assert act(gears(two)) == []
    assert "gives [10, 2] sizes" in problems(act, gears({**two, "x.1": [2, 3]}))[0]
    product = {"inference_config.dynamic_gears_merge_policy": "product"}
    assert act(gears(two, compiler=product)) == []
    more = {**two, "x.1": list(range(2, 13))}
    assert "makes 110 combinations with" in problems(act, gears(more, compiler=product))[0]
    assert act(gears({**two, "x.1": [2, 3]}, compiler=product)) == []


# Passes.


def a_pass(name: str = "p", acts_in: Any = None, elsewhere: str = "", uses: str | None = None) -> Any:
    return SimpleNamespace(name=name, acts_in=acts_in, elsewhere=elsewhere, uses=uses)


def device(name: str = "cpu", fuses: bool = False, **can: Any) -> Any:
    held = SimpleNamespace(**{"core_limits": False, "super_kernels": False, **can})
    more: Any = {"why_idle": lambda option, mode: None}
    support = ModeSupport(fuses=fuses)
    return SimpleNamespace(name=name, capabilities=lambda mode: held, support=lambda mode: support, **more)


def test_eager_compiles_no_pass_and_only_eager_says_so() -> None:
    passes = [("a", a_pass("cse")), ("b", a_pass("dead_code"))]
    assert found_by(PASS_RULES, experiment("eager"), device(), passes) == [
        Effective(option="passes.a", requested="cse", effective=None, why="mode=eager compiles nothing"),
        Effective(option="passes.b", requested="dead_code", effective=None, why="mode=eager compiles nothing"),
    ]
    assert found_by(PASS_RULES, experiment(ACL), device(), passes) == []


def test_inductor_schedules_by_itself_and_a_plan_is_only_validated() -> None:
    passes = [("a", a_pass("cse")), ("mine", a_pass("stream_plan"))]
    (found,) = found_by(PASS_RULES, experiment(), device(fuses=True), passes)
    assert (found.option, found.requested, found.effective) == ("passes.mine", "streams=auto", "one stream")
    assert found_by(PASS_RULES, experiment(), device(), passes) == []


def test_a_pass_acts_where_its_mode_and_its_device_are() -> None:
    everywhere, in_ge = a_pass(), a_pass("g", (GE,), "use h")
    needs = a_pass("n", uses="super_kernels")
    passes = [("everywhere", everywhere), ("ge", in_ge), ("needs", needs)]
    able = device(super_kernels=True)
    assert found_by(PASS_RULES, experiment(GE), able, passes) == []
    idle = found_by(PASS_RULES, experiment("eager", strict="all"), device(), passes)
    assert [one.why for one in idle] == ["mode=eager compiles nothing"] * 3
    assert found_by(PASS_RULES, experiment(GE), device(), passes) == [
        Effective(option="passes.needs", requested="n", effective=None,
                  why="it has no meaning on target=cpu in mode=max-autotune"),
    ]  # fmt: skip
    assert problems(found_by, PASS_RULES, experiment(GE, strict="all"), device(), passes) == (
        "passes.needs: it has no meaning on target=cpu in mode=max-autotune.",
    )
    illegal = "it has no effect in mode=reduce-overhead; it takes effect in: max-autotune; use h"
    for strict in ("mode", "all"):
        assert problems(found_by, PASS_RULES, experiment(ACL, strict=strict), able, passes) == (
            f"passes.ge: {illegal}.",
        )
    (found,) = found_by(PASS_RULES, experiment(ACL, strict="off"), able, passes)
    assert (found.why, found.effective) == (illegal, None)
    without = [("ge", a_pass("g", (GE, ACL)))]
    (listed,) = found_by(PASS_RULES, experiment(EX, strict="off"), able, without)
    assert listed.why.endswith("it takes effect in: max-autotune, reduce-overhead")


def test_limits_of_cores_need_a_device_that_has_them() -> None:
    cores = {"aicore": 3, "vectorcore": 4}
    plan = [{"stream": "a", "match": {"name": "x"}}, {"stream": "b", "match": {"name": "y"}, "cores": cores}]
    given = {"kind": "explicit", "plan": plan}
    passes = [("stream_plan", StreamPlan())]
    why = "limits of cores have no meaning on target=cpu in mode=max-autotune"
    assert found_by(PASS_RULES, experiment(streams=given), device(), passes) == [
        Effective(option="streams.plan[1].cores", requested=cores, effective=None, why=why)
    ]
    assert found_by(PASS_RULES, experiment(streams=given), device(core_limits=True), passes) == []
    (eager,) = found_by(PASS_RULES, experiment("eager", streams=given), device(), passes)
    assert eager.option == "passes.stream_plan", "of the limits nothing is said where nothing is compiled"
    assert problems(found_by, PASS_RULES, experiment(streams=given, strict="all"), device(), passes) == (
        f"streams.plan[1].cores: {why}.",
    )
    assert found_by(PASS_RULES, experiment(strict="all"), device(), passes) == []


# compile.*.

JOINT = "experimental_config.aot_config_enable_joint_graph"


def compiler(name: str = "cpu", trains: bool = False, caches: bool = False, exports: bool = False, **more: Any) -> Any:
    held = ModeSupport(trains=trains, caches=caches, exports=exports)
    return SimpleNamespace(name=name, support=lambda mode: held, why_idle=lambda option, mode: None, **more)


CHECK = {"stages": ["compile", "numerics"]}


def keys(
    target: Any, mode: str = GE, strict: str = "mode", stages: Any = (), options: Any = None, **compile: Any
) -> Any:
    given = experiment(mode, strict=strict, compile=compile, compiler=options, pipeline={"stages": list(stages)})
    return tuple(found_by(COMPILE_RULES, given, target))


def listed(found: Any) -> dict[str, str]:
    assert all((one.requested, one.effective) == (True, False) for one in found)
    return {one.option: one.why for one in found}


@pytest.mark.parametrize("stage", ["benchmark", "ablation", "modes"])
def test_training_is_not_measured(stage: str) -> None:
    (problem,) = problems(lambda: keys(compiler(trains=True), stages=["compile", stage], training=True))
    assert "compared with eager and not measured" in problem
    assert keys(compiler(trains=True), stages=["compile", "replay"], training=True) == ()
    assert keys(compiler(), stages=["compile", stage]) == ()


@pytest.mark.parametrize(
    ("mode", "refused_by"), [(ACL, ("mode", "all")), (EX, ("mode", "all")), (GE, ("all",)), ("eager", ())]
)
def test_training_acts_where_the_device_trains(mode: str, refused_by: tuple[str, ...]) -> None:
    assert keys(compiler(trains=True), mode, "all", training=True) == ()
    for strict in ("off", "mode", "all"):
        if strict in refused_by:
            (problem,) = problems(lambda: keys(compiler(), mode, strict, training=True))  # noqa: B023
            assert problem.startswith("compile.training ")
            assert problem.endswith(".")
        else:
            found = listed(keys(compiler(), mode, strict, training=True))
            assert list(found) == ([] if mode == "eager" else ["compile.training"])


def test_a_joint_graph_is_for_training() -> None:
    for mode in (GE, ACL):
        (problem,) = problems(lambda: keys(compiler(), mode, options={JOINT: True}))  # noqa: B023
        assert problem.endswith("write compile.training=true.")
    assert keys(compiler(), EX, options={JOINT: True}) == ()
    assert keys(compiler(trains=True), GE, options={JOINT: True}, training=True) == ()


def test_a_cache_is_torchairs_and_of_one_graph_for_inference() -> None:
    assert keys(compiler(caches=True), cache=True) == ()
    assert keys(compiler(caches=True)) == ()
    assert listed(keys(compiler(), cache=True)) == {
        "compile.cache": "compile.cache has no meaning on target=cpu in mode=max-autotune"
    }
    assert listed(keys(TARGETS.get("npu_offline")(), cache=True)) == {}
    assert listed(keys(compiler(), "eager", "all", cache=True)) == {"compile.cache": "mode=eager compiles nothing"}
    assert len(problems(lambda: keys(compiler(), strict="all", cache=True))) == 1
    wrong: list[tuple[Any, str]] = [
        ({"training": True}, "has no backward"), ({"fullgraph": False}, "write compile.fullgraph=true"),
        ({"options": {"export.export_mode": True}}, "a graph is run or exported"),
    ]  # fmt: skip
    for more, words in wrong:
        (problem,) = problems(lambda: keys(compiler(trains=True, caches=True), cache=True, **more))  # noqa: B023
        assert words in problem


def test_an_export_runs_nothing_and_has_no_addresses() -> None:
    export = {"export.export_mode": True}
    able = compiler(exports=True, trains=True)
    assert keys(able, stages=["compile"], options=export) == ()
    wrong: list[tuple[Any, Any, str]] = [
        (able, {"stages": ["compile", "capture", "replay"], "options": export}, "capture, replay cannot follow"),
        (able, {"options": export, "training": True}, "remove compile.training=true"),
        (able, {"options": {**export, "experimental_config.frozen_parameter": True}}, "has no addresses"),
        (compiler(exports=True, decompose=("a",)), {"options": export}, "dynamo_export takes no decompositions"),
    ]
    for target, more, words in wrong:
        (problem,) = problems(lambda: keys(target, **more))  # noqa: B023
        assert words in problem
        assert keys(compiler(trains=True), **more) == (), "where nothing is exported the option is illegal or listed"


# Inductor.


def inductor(
    values: Any,
    target: str = "cpu",
    fuses: bool = True,
    mode: str = GE,
    strict: str = "mode",
    replays_fused: bool = False,
    **more: Any,
) -> Any:
    given = experiment(mode, inductor=InductorOptions(values=values), strict=strict, **more)
    support = ModeSupport(fuses=fuses, replays_fused=replays_fused)
    can = SimpleNamespace(target=target, device=f"{target}:1" if target == "cuda" else target)
    made = SimpleNamespace(name=target, support=lambda mode: support, capabilities=lambda mode: can)
    return found_by(INDUCTOR_RULES, given, made)


@pytest.mark.parametrize(
    ("given", "why", "refused_by"),
    [
        ({"values": {"cpp.simdlen": 256}}, "", ()),
        ({"values": {"triton.cudagraphs": True}, "target": "cuda"}, "", ()),
        ({"values": {"triton.cudagraphs": True}}, "has no meaning on target=cpu; it takes effect on cuda", ("all",)),
        ({"values": {"cpp.simdlen": 256}, "fuses": False}, "has no meaning on target=cpu, whose compiler", ("all",)),
        ({"values": {"cpp.simdlen": 256}, "mode": ACL}, "has no effect in mode=reduce-overhead", ("mode", "all")),
        ({"values": {"cpp.simdlen": 256}, "mode": "eager"}, "has no effect: eager compiles nothing", ()),
        ({"values": {"freezing": False}, "compile": {"training": True}}, "weights that are trained", ("all",)),
        ({"values": {"cpp.weight_prepack": False}, "compile": {"training": True}}, "weights that are", ("all",)),
        ({"values": {"frozen_weights": "error"}}, "", ()),
        ({"values": {"cpp.simdlen": 256}, "compile": {"training": True}}, "", ()),
    ],
)
def test_an_option_of_inductors_is_judged_by_where_it_acts(given: Any, why: str, refused_by: tuple[str, ...]) -> None:
    for strict in ("off", "mode", "all"):
        if strict in refused_by:
            (problem,) = problems(lambda: inductor(strict=strict, **given))  # noqa: B023
            assert problem.startswith(f"inductor.{next(iter(given['values']))}=")
            assert why in problem
            assert problem.endswith(".")
            continue
        found = inductor(strict=strict, **given)
        assert len(found) == bool(why)
        for one in found:
            assert one.option == f"inductor.{next(iter(given['values']))}"
            assert (one.requested, one.effective) == (next(iter(given["values"].values())), None)
            assert why in one.why


def test_who_calls_inductors_kernels_is_no_question_where_none_is_recorded() -> None:
    replay = {"replay": "wrapper"}
    assert inductor(replay, strict="all", replays_fused=True) == []
    assert "does not record what Inductor makes" in problems(lambda: inductor(replay, strict="all"))[0]
    assert [one.option for one in inductor(replay)] == ["inductor.replay"]


def test_frozen_weights_need_freezing_and_every_mistake_is_told() -> None:
    off = {"frozen_weights": "error", "freezing": False}
    assert "inductor.freezing is off" in problems(lambda: inductor(off))[0]
    assert [one.option for one in inductor(off, strict="off")] == ["inductor.frozen_weights"]
    assert len(problems(lambda: inductor({"freezing": False, "cpp.simdlen": 256}, mode=EX))) == 2


# Streams that no pass follows.


@pytest.mark.parametrize(
    ("streams", "passes", "told"),
    [
        ({"max_streams": 3}, [], True),
        ({"name": "mine", "kind": "explicit", "plan": [{"stream": "s1", "match": {"target": "mm"}}]}, [], True),
        ({"max_streams": 3}, [("stream_plan", StreamPlan())], False),
        ({"max_streams": 3}, [("cse", Cse())], True),
        ({"name": "none", "kind": "none", "max_streams": 1}, [], False),
        ({}, [], False),
    ],
)
def test_a_stream_plan_that_no_pass_follows_is_listed(streams: Any, passes: Any, told: bool) -> None:
    made = experiment(ACL, streams=streams)
    asked = LegalityCase(experiment=made, target=TARGETS.get("cpu")(), passes=passes)
    found = judged(PASS_RULES, asked)
    assert [one.option for one in found] == (["streams"] if told else [])
    assert all("passes=stream_plan" in one.why for one in found)
