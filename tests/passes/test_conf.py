"""conf/passes and conf/streams as Hydra composes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from npucompose.api import checked
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.passes import PASSES
from npucompose.passes.pipeline import build
from npucompose.results.streams import StreamEvent
from npucompose.schema.experiment import Choice
from npucompose.schema.streams import Streams
from npucompose.streams import plan
from npucompose.table.options import set_by_engine
from npucompose.table.structure import structure
from tests.sample_graphs import CAN, mm_abs_sub, traced
from tools.layout import choices

CONF = Path(__file__).parents[2] / "conf"
PASS_FILES = list(choices("passes").values())
STREAM_FILES = sorted((CONF / "streams").glob("*.yaml"))


def composed(*overrides: str) -> Any:
    return compose(["model=add", *overrides]).tree


@pytest.mark.parametrize(
    ("overrides", "labels"),
    [
        (["passes=stream_plan"], ["stream_plan"]),
        (["passes=[cse,dead_code]"], ["cse", "dead_code"]),
        (["passes=[dead_code,cse]"], ["dead_code", "cse"]),
        (["passes=[]"], []),
        (["passes=clean"], ["dead_code", "cse", "remove_noop"]),
        (["passes=[clean,stream_plan]"], ["dead_code", "cse", "remove_noop", "stream_plan"]),
        (["passes=clean", "~passes.cse"], ["dead_code", "remove_noop"]),
    ],
)
def test_passes_stand_in_the_order_written(overrides: list[str], labels: list[str]) -> None:
    tree = composed(*overrides).get("passes", {})
    assert list(tree) == labels
    assert [label for label, _ in build({n: Choice(name=n, options=o) for n, o in tree.items()}, {})] == labels


def test_an_option_of_a_pass_is_set_by_its_path() -> None:
    tree = composed("passes=[dead_code,cse]", "passes.cse.stage=post")
    assert tree["passes"] == {"dead_code": {"stage": "pre"}, "cse": {"stage": "post"}}


@pytest.mark.parametrize("path", PASS_FILES + STREAM_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_file_says_in_its_first_line_what_it_is(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert len(first) <= 120


def test_a_pass_of_ones_own_code_needs_trust_and_is_not_looked_for_without() -> None:
    mine = ["model=add", "passes=python", "passes.python.function=nobody_wrote_this:f"]
    with pytest.raises(ConfigError) as caught:
        checked(mine)
    assert caught.value.problems == (
        "passes.python imports code that the configuration names, and trust is false. If you trust that code, add "
        "trust=true to the command line (no file can set it).",
    )
    with pytest.raises(ConfigError, match="nobody_wrote_this"):
        checked([*mine, "trust=true"])


def test_every_pass_has_a_file_with_all_its_options_at_their_defaults() -> None:
    for name in PASSES.names():
        cls = PASSES.get(name)
        options = [f for f in attrs.fields(cls) if f.name not in set_by_engine(cls)]
        assert composed(f"passes={name}")["passes"] == {name: {f.name: _plain(f.default) for f in options}}


def _plain(default: Any) -> Any:
    if default is attrs.NOTHING:
        return "???"  # Hydra's word for what a person must say
    return list(default) if isinstance(default, tuple) else default


@pytest.mark.parametrize("path", STREAM_FILES, ids=lambda path: path.stem)
def test_every_streams_choice_has_every_option_and_is_valid(path: Path) -> None:
    tree = composed(f"streams={path.stem}")["streams"]
    assert set(tree) == {f.name for f in attrs.fields(Streams)}
    assert structure(Streams, tree, "streams").name == path.stem


def test_the_defaults_of_streams_are_those_of_its_file() -> None:
    assert structure(Streams, composed("streams=auto")["streams"], "streams") == Streams()


def test_the_plans_for_mm_abs_sub_agree() -> None:
    for choice in (["streams=auto", "streams.objective=events", "streams.cost=none"], ["streams=mm_abs_sub"]):
        wanted = structure(Streams, composed(*choice)["streams"], "streams")
        found = plan(traced(mm_abs_sub, torch.randn(4, 4)).graph, wanted, CAN)
        assert found.nodes == {"mm": "default", "abs_1": "stream1", "sub": "stream1", "add": "default"}
        assert found.events == (StreamEvent(recorder="sub", waiter="add"),)


def test_the_plan_for_parallel_branches_parts_the_two_chains() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        left = right = x
        for _ in range(4):
            left = torch.mm(left, x)
        for _ in range(4):
            right = torch.mm(right, x)
        return left + right

    wanted = structure(Streams, composed("streams=parallel_branches")["streams"], "streams")
    found = plan(traced(branches, torch.randn(4, 4)).graph, wanted, CAN)
    assert [name for name, stream in found.nodes.items() if stream == "stream1"] == ["mm_4", "mm_5", "mm_6", "mm_7"]
    assert found.priorities == {"stream1": 1}
    assert len(found.events) == 1
