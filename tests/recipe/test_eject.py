"""A script says what the experiment says: the same options, the same graph, or it is refused by name."""

from __future__ import annotations

import copy
import inspect
import os
import re
import subprocess
import sys
from typing import Any, ClassVar

import attrs
import pytest
import torch
from attrs import frozen
from torch import fx

from npucompose import api
from npucompose.compose.session import Session
from npucompose.errors import ConfigError
from npucompose.graphs import printed
from npucompose.npu.torchair.config import node_filter
from npucompose.passes.base import Pass
from npucompose.passes.simplify import Cse
from npucompose.recipe import carried, eject
from npucompose.recipe.carried import GraphEdit, apply_frozen, graph_fingerprint
from npucompose.recipe.ejected import CARRIED
from npucompose.recipe.freeze import freeze, freezing_session
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.experiment import CompileKeywords, Experiment, Shapes
from npucompose.targets.null_device import NullDevice
from npucompose.vendor.compiler import EVERY_LEAF
from npucompose.vendor.versions import genuine_tree
from npucompose.version import __version__
from tests.npu.needs import offline
from tests.recipe.experiments import EXPERIMENTS, OTHER_VERSIONS, ejected
from tests.recipe.fakes import events_source, executed, installed
from tests.sample_graphs import CAN, mm_abs_sub, traced

CARRIED_TEXT = inspect.getsource(carried).partition("def graph_fingerprint")[2].rstrip()
EVENTS = """
import sys, torch
exec(sys.argv[1])
assert not hasattr(torch.ops.air, "record")
define_events(), define_events()
graph = torch.fx.Graph()
graph.call_function(torch.ops.air.wait.default, ([graph.call_function(torch.ops.air.record.default)],))
graph.output(())
assert not graph.eliminate_dead_code()
torch.fx.Interpreter(torch.fx.GraphModule(torch.nn.Module(), graph)).run()
"""


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    return {name: ejected(name) for name in (*EXPERIMENTS, *OTHER_VERSIONS)}


@pytest.mark.parametrize("name", [*EXPERIMENTS, *OTHER_VERSIONS])
def test_a_script_reads_like_this(name: str, scripts: dict[str, str], golden: Any) -> None:
    text = scripts[name].replace(CARRIED_TEXT, "…").replace(f"npucompose {__version__}", "npucompose VERSION")
    if name in EXPERIMENTS:  # named by the torch that is installed here
        text = re.sub(r"The options are named as in torch_npu \S+, on which this was not run\.\n\n", "", text)
    golden(f"recipe/{name}.py.txt", text)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("decode", "dynamic") else name
        for name in EXPERIMENTS
        if "gears" not in name
    ],
)
def test_a_script_run_gives_the_options_and_the_graph_of_the_experiment(name: str, scripts: dict[str, str]) -> None:
    checked = api.checked(EXPERIMENTS[name])
    session, _ = freezing_session(checked)
    wanted = [c.text_after for c in session.compilations]
    with installed() as fake:
        told = executed(
            scripts[name], fake, session.built.module, dict(session.built.inputs(0)), checked.experiment.mode.name
        )
    assert [text.replace("npugraph_ex.", "air.") for text in fake.graphs] == wanted
    shapes = checked.experiment.shapes
    assert told == {"dynamic": shapes.dynamic, "fullgraph": checked.experiment.compile.fullgraph}
    options = options_of(checked.experiment)
    mode = {"mode": "reduce-overhead"} if checked.experiment.mode.name == "reduce-overhead" else {}
    recorded = {path: value for path, value in fake.config.items() if not path.startswith("post_grad")}
    assert recorded == mode | {path: "a handle" if value == "shared" else value for path, value in options.items()}


def options_of(experiment: Experiment) -> dict[str, Any]:
    """{the vendor's dotted path: value} of what differs from the defaults."""
    return {EVERY_LEAF[path].genuine_path: value for path, value in experiment.compiler.changed().items()}


def test_with_gears_the_frozen_graph_has_numbers_where_torchair_will_make_numbers(scripts: dict[str, str]) -> None:
    """TorchAir's own guards are asked in test_on_torchair.py; a graph without them is noticed by the hook."""
    session = Session(attrs.evolve(api.checked(EXPERIMENTS["gears"]), target=NullDevice()))
    with installed() as fake, pytest.raises(Exception, match="cse were frozen for the graph"):
        executed(scripts["gears"], fake, session.built.module, dict(session.built.inputs(0)), "max-autotune")
    assert fake.gears == [{0: [32, 64]}, {0: [32, 64]}]


@pytest.mark.parametrize("name", OTHER_VERSIONS)
def test_a_script_for_another_version_sets_only_options_of_that_version(name: str, scripts: dict[str, str]) -> None:
    """Read from the text, and compared with the tree of that version's own classes."""
    checked = api.checked(OTHER_VERSIONS[name])
    version = checked.torch_npu.version
    assert f"named as in torch_npu {version}, on which this was not run" in scripts[name]
    prefix = "npugraph_ex." if checked.experiment.mode.name == "npugraph_ex" else ""
    nested = re.findall(r"^    config\.(\S+) = ", scripts[name], re.MULTILINE)
    flat = re.findall(r'^        "(\w+)": ', scripts[name], re.MULTILINE)
    said = {prefix + path for path in (*nested, *flat)}
    assert bool(nested) != bool(flat)
    assert said <= set(genuine_tree(version))
    assert {prefix + path for path in options_of(checked.experiment)} <= said


def test_the_written_filter_is_the_one_that_the_genuine_object_is_given(scripts: dict[str, str]) -> None:
    with installed():
        names: dict[str, Any] = {"__name__": "ejected"}
        exec(compile(scripts["gears"], "ejected.py", "exec"), names)
        chosen = names["compiler_config"]().debug.data_dump.filter
    graph = traced(mm_abs_sub, torch.randn(2, 2)).graph
    by_script, by_engine = ([f(n) for n in graph.nodes] for f in (chosen, node_filter(("mm", "aten.add*"))))
    assert [n.name for n in by_script if n is not None] == ["mm", "add"]
    assert by_script == by_engine


def test_a_script_has_no_syntax_that_only_the_python_here_knows(scripts: dict[str, str]) -> None:
    """Carried functions say `f"{getattr(x, '__module__', '')}"`; Python 3.12 alone would take double quotes inside."""
    for script in scripts.values():
        assert CARRIED_TEXT in script or "graph_fingerprint" not in script


def test_a_script_imports_torch_and_torchair_only(scripts: dict[str, str]) -> None:
    for script in scripts.values():
        imports = {line.split()[1].split(".")[0] for line in script.splitlines() if line.startswith(("import", "from"))}
        assert imports <= {
            *["__future__", "collections", "contextlib", "fnmatch", "hashlib", "logging", "operator", "re", "typing"],
            "npugraph_ex",
            "torch",
            "torch_npu",
            "torchair",
        }


@pytest.mark.slow
def test_a_script_for_npugraph_ex_defines_the_events_that_its_code_generator_looks_for(
    scripts: dict[str, str],
) -> None:
    source = events_source()
    assert source.partition("AIR = ")[2].rstrip() in scripts["branches"]
    subprocess.run([sys.executable, "-c", EVENTS, source], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_another_graph_is_refused_by_the_script(scripts: dict[str, str]) -> None:
    class Other(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, x) + (torch.abs(x) + x)

    with (
        installed() as fake,
        pytest.raises(Exception, match=r"were frozen for the graph [0-9a-f]{12}, and this graph is"),
    ):
        executed(scripts["mm_abs_sub"], fake, Other(), {"x": torch.randn(256, 256)}, "reduce-overhead")


def test_a_pass_of_torchair_in_between_is_noticed_by_the_second_hook(scripts: dict[str, str]) -> None:
    session = Session(attrs.evolve(api.checked(EXPERIMENTS["dynamic"]), target=NullDevice()))

    def doubled(graph: fx.Graph) -> None:
        node = next(n for n in graph.nodes if n.op == "call_function")
        with graph.inserting_after(node):
            graph.call_function(torch.ops.aten.clone.default, (node,))

    with installed() as fake:
        fake.between = doubled
        with pytest.raises(Exception, match="stream_plan were frozen for the graph"):
            executed(scripts["dynamic"], fake, session.built.module, dict(session.built.inputs(0)), "max-autotune")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(node_of(m, "mm"), "args", (node_of(m, "abs_1"), node_of(m, "x_1"))),
        lambda m: setattr(node_of(m, "abs_1"), "target", torch.ops.aten.relu.default),
        lambda m: node_of(m, "x_1").meta.update(val=torch.empty(3, 3)),
        lambda m: node_of(m, "x_1").meta.update(val=torch.empty(2, 2, dtype=torch.float16)),
        lambda m: node_of(m, "mm").append(node_of(m, "sub")),
    ],
    ids=["argument", "operator", "shape", "dtype", "order"],
)
def test_the_fingerprint_notices(change: Any) -> None:
    module = traced(mm_abs_sub, torch.randn(2, 2))
    before = graph_fingerprint(module.graph)
    change(module)
    assert graph_fingerprint(module.graph) != before


def test_the_fingerprint_does_not_ask_for_the_device() -> None:
    on = [traced(lambda x: x + torch.ones(2, device=x.device), torch.randn(2, device=d)) for d in ("cpu", "meta")]
    assert graph_fingerprint(on[0].graph) == graph_fingerprint(on[1].graph)


def node_of(module: fx.GraphModule, name: str) -> fx.Node:
    return next(n for n in module.graph.nodes if n.name == name)


@frozen(kw_only=True)
class Strange(Pass):
    """Changes an operator in place, which edits of nodes do not say."""

    name: ClassVar[str] = "strange"

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        next(n for n in graph.nodes if n.name == "abs_1").target = torch.ops.aten.relu.default
        return 1


@frozen(kw_only=True)
class Retyped(Pass):
    """Changes only what a node is said to be."""

    name: ClassVar[str] = "retyped"

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        next(n for n in graph.nodes if n.name == "abs_1").meta["val"] = torch.empty(7)
        return 1


@frozen(kw_only=True)
class Restrided(Pass):
    """Changes only how a node is said to lie in memory."""

    name: ClassVar[str] = "restrided"

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        node = next(n for n in graph.nodes if n.name == "abs_1")
        node.meta["val"] = node.meta["val"].t()
        return 1


@frozen(kw_only=True)
class Bounded(Pass):
    """Inserts an operator with numbers that Python has no literals for."""

    name: ClassVar[str] = "bounded"
    numbers: tuple[float, ...] = ()

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        node = next(n for n in graph.nodes if n.name == "abs_1")
        with graph.inserting_after(node):
            made = graph.call_function(torch.ops.aten.clamp.default, (node, *self.numbers))
        made.meta["val"] = node.meta["val"].clone()
        next(n for n in graph.nodes if n.name == "sub").replace_input_with(node, made)
        return 1


@frozen(kw_only=True)
class Rewired(Pass):
    """Inserts an operator, gives arguments of its own, moves and removes: all that edits can say."""

    name: ClassVar[str] = "rewired"

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        nodes = {n.name: n for n in graph.nodes}
        with graph.inserting_after(nodes["abs_1"]):
            half = graph.call_function(
                torch.ops.aten._to_copy.default, (nodes["abs_1"],), {"dtype": torch.float16, "non_blocking": False}
            )
        half.meta["val"] = nodes["abs_1"].meta["val"].to(torch.float16)
        nodes["sub"].args = (half, half)
        nodes["sub"].append(nodes["mm"])
        nodes["add"].replace_input_with(nodes["sub"], nodes["abs_1"])
        return 1


@pytest.mark.parametrize(
    ("a_pass", "why"),
    [
        (Strange(), "the operator of 'abs_1'"),
        (Retyped(), "no edit of nodes says"),
        (Restrided(), "no edit of nodes says"),
    ],
)
def test_a_pass_that_edits_cannot_say_is_refused_by_name(a_pass: Pass, why: str) -> None:
    with pytest.raises(ConfigError, match=f"pass '{a_pass.name}' @ passes.mine cannot be frozen.*{why}"):
        freeze(traced(mm_abs_sub, torch.randn(2, 2)), (("cse", Cse()), ("mine", a_pass)), CAN)


def test_every_kind_of_edit_is_repeated() -> None:
    module = traced(mm_abs_sub, torch.randn(2, 2))
    fresh = copy.deepcopy(module)
    frozen_graph = freeze(module, (("rewired", Rewired()),), CAN)
    lines = frozen_graph.edits["rewired"]
    assert [line.partition("(")[0] for line in lines] == [
        "edit.insert",
        "edit.move",
        "edit.arguments",
        "edit.arguments",
    ]

    def edits(edit: GraphEdit) -> None:
        for line in lines:
            eval(line, {"edit": edit, "torch": torch})

    apply_frozen(fresh, {frozen_graph.fingerprint: edits}, "rewired")
    assert printed(fresh.graph) == printed(module.graph)


def test_numbers_without_a_literal_are_written_as_python_reads_them() -> None:
    for numbers in ((float("-inf"), float("inf")), (float("nan"), 0.5)):
        frozen_graph = freeze(traced(mm_abs_sub, torch.randn(2, 2)), (("bounded", Bounded(numbers=numbers)),), CAN)
        written = " ".join(frozen_graph.edits["bounded"])
        assert all(f'float("{number}")' in written for number in numbers if number != 0.5)


def test_a_dimension_counted_from_the_end_is_written_counted_from_the_front() -> None:
    script = eject("model=add", "+shapes.mark_dynamic.x=[-1]")
    assert 'torch._dynamo.mark_dynamic(inputs["x"], 1)' in script


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["mode=eager"], "mode=eager compiles nothing: there is nothing to eject"),
        (
            ["compiler.npugraph_ex.clone_output=true", "strict=off"],
            "compiler.npugraph_ex.clone_output cannot be ejected",
        ),
        (
            ["mode=reduce-overhead", "shapes=dynamic", "+shapes.gears={x.0:[32,64]}", "strict=off"],
            "shapes.gears cannot be ejected for mode=reduce-overhead: only GE takes gears",
        ),
        (["mode=max-autotune", "compile.training=true", "pipeline=check"], "compile.training cannot be ejected"),
        (["mode=max-autotune", "shapes=dynamic", "+shapes.gears={x.7:[32,64]}"], "'x.7' @ shapes.gears is no input"),
        (
            ["compiler.torch_npu_version=2.6.0", "compiler.ge_config.multistream_parallel_mode=cv"],
            r"torch_npu 2\.6\.0\.post5 .*has no such option; versions that have it",
        ),
        (["compiler.torch_npu_version=2.6.0", "mode=npugraph_ex"], r"2\.6\.0\.post5 .*has no such package"),
        (["scenario.batch=2", "strict=off"], "scenario cannot be ejected: no line of a script is known for it"),
        (["shapes.mark_static=[nobody]"], "'nobody' @ shapes.mark_static names no input"),
    ],
)
def test_what_a_script_cannot_say_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        eject("model=add", *overrides)


@offline
def test_decompositions_have_no_line_in_a_script() -> None:
    with pytest.raises(ConfigError, match=r"target\.decompose cannot be ejected"):
        eject("model=add", "target=npu_offline", "mode=max-autotune", "target.decompose=[aten.addmm]")


REFUSED: dict[type[Any], set[str]] = {CompileKeywords: {"training"}, Experiment: {"extensions", "scenario"}}
"""Fields that no script says; `test_what_a_script_cannot_say_is_refused` has them."""


@pytest.mark.parametrize("cls", [Experiment, Shapes, CompileKeywords])
def test_every_field_has_its_line_or_is_named_as_none(cls: type[Any]) -> None:
    """A new field: write it into the script and name it in CARRIED, or it is refused wherever it is set."""
    assert {field.name for field in attrs.fields(cls)} == CARRIED[cls] | REFUSED.get(cls, set())


def test_dimensions_are_counted_from_the_beginning_where_all_tensors_have_as_many() -> None:
    from npucompose.recipe.ejected import _dims

    two, three = torch.ones(2, 3), torch.ones(2, 3, 4)
    assert _dims("x", two, (0, -1, 1)) == (0, 1, 1)
    assert _dims("x", [three, three], (-1, -3)) == (2, 0)
    assert _dims("x", [two, three], (0, 1)) == (0, 1)
    with pytest.raises(ConfigError) as refused:
        _dims("cache", {"k": three, "v": [two]}, (0, -1))
    assert str(refused.value) == (
        "shapes.mark_dynamic.cache cannot be ejected: its tensors have 2, 3 dimensions, and a dimension counted from "
        "the end is another one in each. Count from 0."
    )
