"""The pass `replace` in TorchAir's hands: when it is handed over, what is registered, what is taken and counted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve

from npucompose.npu.torchair import config, facts, hooks
from npucompose.npu.torchair.target import TorchairTarget
from npucompose.passes.pipeline import PassPipeline
from npucompose.passes.replace import Pattern, Replace
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from tests.sample_graphs import CAN
from tests.targets.torchair_fakes import Asked, Backend

aten = torch.ops.aten


class Scaled(Pattern):
    """x * number -> x + number, which has the same form."""

    name = "scaled"
    scalars = {"number": 0.5}  # noqa: RUF012

    def inputs(self) -> Sequence[torch.Tensor]:
        return (torch.ones(2),)

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return ((lambda x, number: x * number, torch.float32), (lambda x, number: number * x, torch.float16))

    def replace(self, *arguments: Any) -> Any:
        return arguments[0] + arguments[1]

    def fits(self, values: Sequence[torch.Tensor], numbers: Any) -> bool:
        return numbers["number"] < 1 and values[0].dim() == 1


class Plain(Pattern):
    """x.abs() -> x.relu()[:1], which has another form but for one element."""

    name = "plain"

    def inputs(self) -> Sequence[torch.Tensor]:
        return (torch.ones(2),)

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return ((torch.abs, torch.float32),)

    def replace(self, *arguments: Any) -> Any:
        return arguments[0].relu()[:1]


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"scaled": Scaled, "plain": Plain}
    monkeypatch.setattr(hooks, "_REGISTERED", set())  # private: as in another process
    monkeypatch.setattr(hooks, "_open", None)  # private: as in another process
    monkeypatch.setattr(hooks, "PATTERNS", SimpleNamespace(get=known.__getitem__))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What is registered with each package."""
    told: list[tuple[str, dict[str, Any]]] = []

    def package(name: str) -> Any:
        return SimpleNamespace(register_replacement=lambda **named: told.append((name, named)))

    monkeypatch.setattr(hooks, "package", package)
    return told


OTHER = SimpleNamespace(stage="pre", name="other", before=(), after=())
"""A pass of ours."""


def replacing(*names: str, **more: Any) -> Any:
    return Replace(patterns=names, **more)


def handed(*passes: tuple[str, Any], mode: str = GE, check: Any = None, fusion: bool = True) -> tuple[Any, Any]:
    pre = evolve(PassPipeline(passes=(), can=CAN), passes=passes)
    pre = evolve(pre, check=check) if check is not None else pre
    backend: Any = Backend(mode=mode, pre=pre, options=Asked({config.MODES[mode].fusion_option: fusion}))
    return hooks.hand_over(backend), backend


def test_the_last_pass_is_handed_over_where_torchair_does_the_same(registered: list[Any]) -> None:
    other = ("other", replacing("plain"))
    found, backend = handed(other, ("replace", replacing("plain")))
    assert (found.label, found.replace.patterns) == ("replace", ("plain",))
    assert backend.pre.passes == (other,)
    assert [name for name, _ in registered] == ["torchair"]
    handed(("replace", replacing("plain")), mode=NPUGRAPH_EX)
    assert [name for name, _ in registered] == ["torchair", "npugraph_ex"]
    handed(("replace", replacing("plain")), mode=NPUGRAPH_EX)
    assert len(registered) == 2


def test_it_stays_ours_where_torchair_would_do_something_else(
    registered: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ("replace", replacing("plain"))
    for passes, more in (
        ((), {}), ((mine, ("other", OTHER)), {}), ((("replace", replacing("plain", via="own")),), {}),
        ((mine,), {"fusion": False}), ((mine,), {"check": "per_pass"}), ((mine,), {"mode": ACLGRAPH, "fusion": False}),
    ):  # fmt: skip
        found, backend = handed(*passes, **more)  # type: ignore[arg-type]
        assert found is None
        assert backend.pre.passes == passes
    monkeypatch.setattr(hooks, "numbers_arrive", lambda: False)
    assert handed(("replace", replacing("scaled")))[0] is None
    assert handed(("replace", replacing("plain", "scaled")))[0] is None
    assert registered == []
    assert handed(mine)[0] is not None
    monkeypatch.setattr(hooks, "package", lambda name: SimpleNamespace())
    assert handed(mine)[0] is None


def test_torch_tells_whether_numbers_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "pattern_matcher", SimpleNamespace())
    assert hooks.numbers_arrive() is False
    monkeypatch.setattr(hooks, "pattern_matcher", SimpleNamespace(_unflatten_match_kwargs=None))
    assert hooks.numbers_arrive() is True


def test_each_way_of_a_pattern_is_registered_with_its_names_and_numbers(registered: list[Any]) -> None:
    handed(("replace", replacing("scaled")))
    assert len(registered) == 2
    for (_, named), dtype in zip(registered, (torch.float32, torch.float16), strict=True):
        assert list(inspect.signature(named["search_fn"]).parameters) == ["tensor_0", "number"]
        assert list(inspect.signature(named["replace_fn"]).parameters) == ["tensor_0", "number"]
        assert (
            named["search_fn"](3, 4)
            == named["search_fn"](3, number=4)
            == named["search_fn"](number=4, tensor_0=3)
            == 12
        )
        assert named["replace_fn"](3, 4) == 7
        assert [one.dtype for one in named["example_inputs"]] == [dtype]
        assert named["scalar_workaround"] == {"number": 0.5}
        assert named["scalar_workaround"] is not Scaled.scalars
        assert named["extra_check"](None) is False
    traced = registered[0][1]["trace_fn"](registered[0][1]["search_fn"], [torch.ones(2, requires_grad=True), 0.5])
    assert [str(node.target) for node in traced.graph.nodes if node.op == "call_function"] == ["aten.mul.Tensor"]


def test_a_pattern_is_traced_without_gradients() -> None:
    enabled: list[bool] = []
    hooks._traced(lambda x: enabled.append(torch.is_grad_enabled()) or x + 1, [torch.ones(2)])
    assert set(enabled) == {False}


def found_in_a_graph(value: Any, number: float = 0.5, result: torch.Tensor | None = None) -> Any:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.meta["val"] = value
    y.meta["val"] = value if result is None else result
    return SimpleNamespace(kwargs={"tensor_0": x, "number": number}, output_nodes=lambda: [y])


def test_what_a_graph_wants_and_fits_is_taken_and_counted(registered: list[Any]) -> None:
    open_one, _ = handed(("first", replacing("scaled", "plain")))
    check = registered[0][1]["extra_check"]
    match = found_in_a_graph(torch.ones(3))
    assert check(match) is False
    hooks.begin_patterns(open_one, 9)
    assert check(match) is check(match) is True
    assert check(found_in_a_graph(torch.ones(3), number=2)) is False
    assert check(found_in_a_graph(torch.ones(3, 3))) is False
    assert check(found_in_a_graph(torch.ones(3), result=torch.ones(4))) is False
    assert check(found_in_a_graph(7)) is False
    assert open_one.takes(Plain(), ["tensor_0"], found_in_a_graph(torch.ones(1))) is True
    assert open_one.takes(Plain(), ["tensor_0"], found_in_a_graph(torch.ones(3))) is False
    record = open_one.end(5)
    assert (record.name, record.stage, record.matches, record.nodes_before, record.nodes_after) == (
        "first",
        "pre",
        3,
        9,
        5,
    )
    assert 0 < record.seconds < 60
    assert [(rule.rule, rule.matches, rule.way) for rule in record.rules] == [
        ("scaled", 2, "register_replacement"), ("plain", 1, "register_replacement"),
    ]  # fmt: skip
    assert (record.exact, record.rtol, record.atol) == (False, 1e-5, 1e-5)
    assert check(match) is False
    hooks.begin_patterns(open_one, 4)
    again = open_one.end(4)
    assert (again.matches, again.exact, again.rules, again.rtol) == (0, True, (), 0.0)
    another, _ = handed(("second", replacing("plain")))
    hooks.begin_patterns(another, 1)
    assert check(match) is False
    hooks.begin_patterns(None, 1)
    assert check(match) is False


def test_the_hooks_open_what_was_handed_over_and_record_it_between_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    given = SimpleNamespace(end=lambda nodes: told.append(("end", nodes)) or "record of torchair")
    monkeypatch.setattr(hooks, "hand_over", lambda backend: given)
    monkeypatch.setattr(hooks, "begin_patterns", lambda *what: told.append(what))
    compilation = SimpleNamespace(passes=("an earlier one",), passes_s=0.0, settle=lambda: told.append("settle"))

    def as_hook(name: str) -> Any:
        def made(tell: Any, constants: Any) -> Any:
            return lambda graph, inputs, config: tell((name,))

        return SimpleNamespace(as_torchair_hook=made)

    backend: Any = Backend(
        pre=as_hook("pre"), post=as_hook("post"), constants=None, begin=lambda graph: compilation,
        finish=lambda *what: told.append(what),
    )  # fmt: skip
    made = hooks.PassHooks(backend)
    graph = SimpleNamespace(graph=SimpleNamespace(nodes=[1, 2, 3]))
    made.before(graph, (), None)
    graph.graph.nodes.pop()
    made.after(graph, (), None)
    assert told == [(given, 3), ("end", 2), (compilation, graph), "settle"]
    assert compilation.passes == ("an earlier one", "pre", "record of torchair", "post")
    assert 0 < compilation.passes_s < 60


@pytest.mark.parametrize("mode", [GE, ACLGRAPH, NPUGRAPH_EX])
@pytest.mark.parametrize("patched", [False, True])
def test_the_report_says_what_came_out(
    mode: str, patched: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "written.txt").touch()
    monkeypatch.setattr(facts, "LOADED", ["one"])
    monkeypatch.setattr(facts, "global_options", lambda: {"g": "1"})
    monkeypatch.setattr(facts, "graph_facts", lambda loaded: f"facts of {loaded}")
    monkeypatch.setattr(facts, "patched", lambda: ("all_reduce",))
    target: Any = SimpleNamespace(
        package_version=lambda: "2.13.0", platform=lambda: "simulated", patch_for_hcom=patched,
        support=config.MODES.__getitem__,
        counts=lambda asked: {"captures": 1, "unordered": (asked,)},
    )  # fmt: skip
    genuine = SimpleNamespace(config=SimpleNamespace(as_dict=lambda: {"a": 1}))
    backend: Any = Backend(
        mode=mode, genuine=genuine, compilations=["x", "y"], cache="saved",
        folders=SimpleNamespace(files=tmp_path, cache=None),
    )  # fmt: skip
    told = TorchairTarget.device_facts(target, backend)
    assert told is not None
    assert told.package == ("npugraph_ex" if mode == NPUGRAPH_EX else "torchair")
    assert (told.version, told.platform, told.config, told.fx_graphs) == ("2.13.0", "simulated", {"a": 1}, 2)
    assert (told.ge_graphs, told.global_options) == ((("facts of one",), {"g": "1"}) if mode == GE else ((), {}))
    assert (told.cache, told.files, told.captures, told.unordered) == ("saved", ("written.txt",), 1, (mode,))
    assert told.patched == (("all_reduce",) if patched else ())


def test_a_package_is_imported_by_its_name() -> None:
    assert config.package("inspect") is inspect
