from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

import pytest
import torch
from attrs import frozen
from torch import fx

from npucompose.errors import ConfigError, PassError, PlanError
from npucompose.passes import PASSES
from npucompose.passes.base import Pass
from npucompose.passes.pipeline import PassPipeline, build, order_problems
from npucompose.passes.scopes import StreamPlan
from npucompose.passes.simplify import Cse, DeadCode
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.experiment import Choice
from npucompose.schema.streams import Streams
from npucompose.table.structure import facts_of, structure
from tests.sample_graphs import CAN, mm_abs_sub, traced

X = torch.randn(4, 4)
NAMES = ", ".join(PASSES.names())


def choices(**options: Any) -> dict[str, Choice]:
    return {name: Choice(name=name, options=given) for name, given in options.items()}


@frozen(kw_only=True)
class Faulty(Pass):
    name: ClassVar[str] = "faulty"
    how: str = "raise"

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        if self.how == "raise":
            raise IndexError("out of range")
        last = next(n for n in reversed(graph.nodes) if n.op == "call_function")
        next(n for n in graph.nodes if n.op == "call_function").prepend(last)
        return 1


def test_every_pass_leaves_a_record_and_the_code_is_made_once() -> None:
    module = traced(lambda x: x.abs() + x.abs() + x.relu().neg() * 0 + x, X)
    pipeline = PassPipeline(passes=(("dead", DeadCode()), ("cse", Cse()), ("again", DeadCode())), can=CAN)
    records = pipeline(module)
    assert [(r.name, r.stage, r.matches, r.exact) for r in records] == [
        ("dead", "pre", 0, True),
        ("cse", "pre", 1, True),
        ("again", "pre", 0, True),
    ]
    assert records[1].nodes_before - records[1].nodes_after == 1
    assert records[0].nodes_after == records[1].nodes_before
    assert all(r.seconds >= 0 for r in records)
    told = {
        "name",
        "stage",
        "matches",
        "nodes_before",
        "nodes_after",
        "seconds",
        "exact",
        "rtol",
        "atol",
        "rules",
        "why",
        "moves",
        "folds",
        "max_abs_err",
        "graph",
    }
    assert set(facts_of(records[0])) == told
    assert module.code.count("aten.abs") == 1


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", 'in rewrite, `raise IndexError("out of range")`: IndexError: out of range'),
        ("swap", "left an invalid graph"),
    ],
)
def test_the_guilty_pass_is_named(how: str, words: str) -> None:
    pipeline = PassPipeline(passes=(("cse", Cse()), ("mine", Faulty(how=how))), can=CAN)
    with pytest.raises(PassError) as caught:
        pipeline(traced(mm_abs_sub, X))
    assert "Pass 'faulty' @ passes.mine (stage pre)" in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_plan_that_cannot_be_followed_stays_the_person_s_mistake() -> None:
    wanted = structure(Streams, {"kind": "explicit", "plan": [{"stream": "s", "match": {"name": "nope"}}]}, "streams")
    with pytest.raises(PlanError):
        PassPipeline(passes=(("stream_plan", StreamPlan(streams=wanted)),), can=CAN)(traced(mm_abs_sub, X))


def test_torchair_s_hook_rewrites_in_place_and_tells() -> None:
    told: list[Any] = []
    module = traced(mm_abs_sub, X)
    hook = PassPipeline(passes=(("stream_plan", StreamPlan(streams=Streams(min_gain=0))),), can=CAN).as_torchair_hook(
        told.append
    )
    assert hook(module, [X], None) is None
    assert told[0][0].matches == 1
    assert torch.equal(module(X), mm_abs_sub(X))


def test_the_passes_of_a_configuration_are_built_in_the_order_written() -> None:
    streams = Streams(max_streams=3)
    tree = choices(dead_code={}, cse={"stage": "pre"}, stream_plan={})
    built = build(tree, {"streams": streams})
    assert [label for label, _ in built] == ["dead_code", "cse", "stream_plan"]
    assert built[2][1] == StreamPlan(streams=streams)


def test_one_pass_may_come_twice_under_two_labels() -> None:
    tree = {"first": Choice(name="dead_code"), "last": Choice(name="dead_code", options={"stage": "post"})}
    assert [(label, p.name, p.stage) for label, p in build(tree, {})] == [
        ("first", "dead_code", "pre"),
        ("last", "dead_code", "post"),
    ]


def test_every_mistake_of_every_pass_is_told_at_once() -> None:
    tree = choices(ces={}, cse={"stage": "per"}, dead_code={"stagee": "pre"}, stream_plan={"streams": {}})
    with pytest.raises(ConfigError) as caught:
        build(tree, {"streams": Streams()})
    assert caught.value.problems == (
        f"unknown pass 'ces' @ passes.ces. Did you mean 'cse'? Choices: {NAMES}.",
        "'stage' must be one of pre, post: 'per' @ passes.cse. Did you mean 'pre'?",
        "unknown key 'stagee' @ passes.dead_code. Did you mean 'stage'? Choices: stage.",
        "'streams' @ passes.stream_plan comes from the experiment's 'streams': set that, not this",
    )


@pytest.mark.parametrize(
    "tree",
    [
        choices(stream_plan={}, cse={}),
        choices(cse={"stage": "post"}, stream_plan={}),
        choices(dead_code={}, stream_plan={}, remove_noop={}),
    ],
)
def test_an_order_that_contradicts_is_refused_with_both_names(tree: dict[str, Choice]) -> None:
    with pytest.raises(ConfigError) as caught:
        build(tree, {})
    assert "pass 'stream_plan'" in str(caught.value)
    assert "it must stand after it @ passes" in str(caught.value)
    assert len(caught.value.problems) == 1


@frozen(kw_only=True)
class Early(Pass):
    """Says itself where it stands."""

    name: ClassVar[str] = "early"
    before: ClassVar[tuple[str, ...]] = ("cse",)

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        return 0


def test_a_pass_may_say_what_it_stands_before() -> None:
    assert order_problems([("a", Early()), ("b", Cse())]) == []
    assert order_problems([("b", Cse()), ("a", Early())]) == [
        "pass 'b' (stage pre) runs before 'a' (stage pre), but it must stand after it @ passes"
    ]
    with pytest.raises(ConfigError, match=r"pass 'b' .* must stand after it"):
        PassPipeline(passes=(("b", Cse()), ("a", Early())), can=CAN)


def test_a_pipeline_takes_its_stage_s_passes_and_no_other() -> None:
    built = (("a", DeadCode()), ("b", DeadCode(stage="post")))
    assert [label for label, _ in PassPipeline.for_stage(built, "post", CAN).passes] == ["b"]
    with pytest.raises(ConfigError, match="of one stage"):
        PassPipeline(passes=built, can=CAN)


def test_naming_and_building_passes_loads_no_torch() -> None:
    code = (
        "import sys\n"
        "from npucompose.passes import PASSES\n"
        "from npucompose.passes.pipeline import build\n"
        "from npucompose.schema.experiment import Choice\n"
        "given = {'python': {'function': 'm:f'}}\n"
        "for n in PASSES.names(): build({n: Choice(name=n, options=given.get(n, {}))}, {})\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
