"""core_limit and super_kernel: scopes around what a match finds, and nothing else."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from npucompose import ops
from npucompose.compose.check import Checked, check
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError
from npucompose.graphs.effects import Scope, control
from npucompose.passes.base import Pass
from npucompose.passes.scopes import CoreLimit, SuperKernel
from npucompose.schema.streams import CoreRegion, Match, PlanEntry, Streams, SuperKernelRegion
from npucompose.streams import apply
from tests.passes.test_rewrites import before_and_after
from tests.sample_graphs import CAN, mm_abs_sub, names, traced

NPU = attrs.evolve(CAN, core_limits=True, super_kernels=True)
X = torch.randn(4, 4)


def cores(aicore: int = 8, vectorcore: int = 16, **match: Any) -> CoreRegion:
    return CoreRegion(aicore=aicore, vectorcore=vectorcore, match=Match(**match))


def kernel(scope: str, **match: Any) -> SuperKernelRegion:
    return SuperKernelRegion(scope=scope, match=Match(**match))


def inside(graph: fx.Graph) -> dict[str, dict[str, str]]:
    """{node: what the scopes around it say}."""
    stack: list[dict[str, str]] = []
    found: dict[str, dict[str, str]] = {}
    for node in graph.nodes:
        kind = control(node)
        if kind == "scope_enter":
            scope = Scope.from_node(node)
            stack.append(dict(zip(scope.keys, scope.values, strict=True)))
        elif kind == "scope_exit":
            stack.pop()
        elif stack:
            found[node.name] = {key: value for scope in stack for key, value in scope.items()}
    assert not stack
    return found


def rewritten(a_pass: Pass, graph: fx.Graph) -> int:
    changed = a_pass.rewrite(graph, NPU)
    graph.lint()
    return changed


def test_core_limit_before_and_after(golden: Any) -> None:
    module = traced(mm_abs_sub, X)
    golden("passes/core_limit.txt", before_and_after(CoreLimit(regions=(cores(target="aten.mm"),)), module, NPU))


def test_super_kernel_before_and_after(golden: Any) -> None:
    module = traced(mm_abs_sub, X)
    regions = (kernel("sk", target="re:aten.(abs|sub).*"),)
    golden("passes/super_kernel.txt", before_and_after(SuperKernel(regions=regions), module, NPU))


def test_the_first_region_that_matches_a_kernel_has_it() -> None:
    graph = traced(mm_abs_sub, X).graph
    assert rewritten(CoreLimit(regions=(cores(1, 2, name="abs*"), cores(3, 4, target="aten.*"))), graph) == 4
    told = {name: found["_op_aicore_num"] for name, found in inside(graph).items()}
    assert told == {"mm": "3", "abs_1": "1", "sub": "3", "add": "3"}


def test_the_edge_of_a_stream_scope_ends_a_region_so_that_scopes_nest() -> None:
    graph = traced(mm_abs_sub, X).graph
    plan = Streams(kind="explicit", plan=(PlanEntry(stream="side", match=Match(target="re:aten.(abs|sub).*")),))
    apply(graph, plan, NPU)
    assert rewritten(CoreLimit(regions=(cores(target="aten.*"),)), graph) == 4
    found = inside(graph)
    assert {name: scopes.get("_user_stream_label") for name, scopes in found.items() if "record" not in name} == {
        "mm": None,
        "abs_1": "side",
        "sub": "side",
        "add": None,
    }
    assert all("_op_aicore_num" in scopes for name, scopes in found.items() if "record" not in name)


def test_operators_that_stand_apart_make_super_kernels_of_their_own() -> None:
    graph = traced(lambda x: torch.mm(torch.mm(x, x).abs(), x).relu().abs(), X).graph
    rewritten(SuperKernel(regions=(kernel("sk", target="re:aten.(abs|relu).*"),)), graph)
    told = {name: scopes["_super_kernel_scope"] for name, scopes in inside(graph).items()}
    assert told == {"abs_1": "sk", "relu": "sk_1", "abs_2": "sk_1"}


def test_a_region_that_finds_no_kernel_is_told_what_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        rewritten(
            CoreLimit(regions=(cores(target="aten.mm"), cores(target="aten.ab.default"))), traced(mm_abs_sub, X).graph
        )
    assert "passes.core_limit.regions[1].match (target: aten.ab.default) finds no kernel" in str(caught.value)
    assert "Near: aten.abs.default" in str(caught.value)
    graph = traced(mm_abs_sub, X).graph
    with pytest.warns(UserWarning, match="finds no kernel"):
        assert rewritten(CoreLimit(regions=(cores(name="nothing"),), on_no_match="warn"), graph) == 0
    with pytest.raises(ConfigError, match=r"passes\.super_kernel\.regions needs an entry"):
        rewritten(SuperKernel(), graph)


def test_a_device_without_cores_to_limit_leaves_the_graph_alone() -> None:
    graph = traced(mm_abs_sub, X).graph
    before = names(graph)
    assert CoreLimit(regions=(cores(target="aten.mm"),)).rewrite(graph, CAN) == 0
    assert SuperKernel(regions=(kernel("sk", target="aten.mm"),)).rewrite(graph, CAN) == 0
    assert names(graph) == before


@pytest.mark.filterwarnings("ignore:passes.core_limit.regions:UserWarning")
@given(st.lists(st.sampled_from(["abs", "relu", "mm", "t", "view"]), min_size=1, max_size=12), st.integers(0, 31))
def test_scopes_hold_just_the_matching_kernels_and_change_no_value(program: list[str], wanted: int) -> None:
    """Any chain of operators, any choice of them: paired scopes, exactly the chosen kernels inside, the same bits."""
    ops.define()
    chosen = {name for bit, name in enumerate(("abs", "relu", "mm")) if wanted >> bit & 1}

    def chain(x: torch.Tensor) -> torch.Tensor:
        for name in program:
            x = {"mm": lambda x: torch.mm(x, x), "view": lambda x: x.reshape(16).reshape(4, 4), "t": torch.t}.get(
                name, getattr(torch, name, None)
            )(x)
        return x

    module = traced(chain, X)
    pattern = f"re:aten.({'|'.join(sorted(chosen)) or 'none'}).*"
    rewritten(CoreLimit(regions=(cores(target=pattern),), on_no_match="warn"), module.graph)
    kernels = {n.name for n in module.graph.nodes if str(n.target).removeprefix("aten.").partition(".")[0] in chosen}
    views = {n.name for n in module.graph.nodes if str(n.target) in ("aten.view.default", "aten.t.default")}
    assert kernels <= set(inside(module.graph)) <= kernels | views
    module.recompile()
    torch.testing.assert_close(module(X), chain(X), rtol=0, atol=0, equal_nan=True)


def checked(*overrides: str) -> Checked:
    return check(compose(["model=mm_abs_sub", *overrides]))


LIMIT = ("passes=core_limit", "passes.core_limit.regions=[{aicore:8,vectorcore:16,match:{target:aten.mm}}]")
FUSE = ("passes=super_kernel", "passes.super_kernel.regions=[{scope:sk,match:{target:aten.mm}}]")


def test_on_a_laptop_both_are_listed_and_strict_all_refuses_them() -> None:
    (entry,) = checked("mode=npugraph_ex", *LIMIT).effective
    assert (entry.option, entry.effective) == ("passes.core_limit", None)
    assert "no meaning on target=cpu" in entry.why
    with pytest.raises(ConfigError, match=r"passes\.core_limit: it has no meaning on target=cpu"):
        checked("mode=npugraph_ex", "strict=all", *LIMIT)
    assert [e.why for e in checked("mode=eager", *LIMIT).effective] == ["mode=eager compiles nothing"]


@pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
def test_captured_graphs_have_no_super_kernel_scopes(mode: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(f"mode={mode}", *FUSE)
    assert f"has no effect in mode={mode}; it takes effect in: max-autotune" in str(caught.value)
    assert "super_kernel_optimize=true" in str(caught.value)
    (entry,) = checked(f"mode={mode}", "strict=off", *FUSE).effective
    assert entry.option == "passes.super_kernel"


@pytest.mark.parametrize(
    "wrong", ["{aicore:0,vectorcore:1,match:{target:aten.mm}}", "{aicore:1,vectorcore:1,match:{}}"]
)
def test_a_region_is_checked_before_anything_runs(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"passes\.core_limit\.regions\[0\]"):
        checked("passes=core_limit", f"passes.core_limit.regions=[{wrong}]")
