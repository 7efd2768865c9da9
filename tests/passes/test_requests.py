"""What a pass is given, and what is written down of what it did."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from attrs import frozen
from torch import fx

from npucompose.errors import ConfigError, shown_path
from npucompose.passes.base import Constant, Outcome, Pass, PythonPass, Request
from npucompose.passes.fold_parameters import FoldParameters
from npucompose.passes.pipeline import PassPipeline, build
from npucompose.registry import UserFunction
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.experiment import Choice
from tests.sample_graphs import CAN, aten, node, traced

X = torch.ones(3, 4)


@frozen(kw_only=True)
class Asked(Pass):
    """Keeps what it is given and says what it is told to say."""

    name: ClassVar[str] = "asked"
    exact: ClassVar[bool] = False
    seen: list[Request]
    says: Any = 3

    def run(self, request: Request) -> Any:
        self.seen.append(request)
        return self.says

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        raise AssertionError


def test_a_hook_hands_on_all_that_it_is_given() -> None:
    module, config, told = traced(torch.relu, X), object(), list[Any]()
    known = {"x": Constant(value=X, kind="parameter")}
    asked = Asked(seen=[])
    hook = PassPipeline(passes=(("mine", asked),), can=CAN).as_torchair_hook(told.append, lambda given: {**known})
    hook(module, ["example"], config)
    (request,) = asked.seen
    assert (request.graph_module, request.can, request.example_inputs) == (module, CAN, ["example"])
    assert (request.config, request.constants, request.check) == (config, known, False)
    ((record,),) = told
    assert (record.name, record.stage, record.matches, record.exact, record.rtol, record.max_abs_err) == (
        "mine", "pre", 3, False, 0.0, None
    )  # fmt: skip
    PassPipeline(passes=(("mine", asked),), can=CAN).as_torchair_hook()(module, [], None)
    assert asked.seen[1].constants == {}


def test_an_outcome_counts_before_what_a_class_says() -> None:
    outcome = Outcome(matches=5, exact=True, rtol=0.5, atol=0.25)
    asked = Asked(seen=[], says=outcome)
    (record,) = PassPipeline(passes=(("mine", asked),), can=CAN, check=True)(traced(torch.relu, X))
    assert (record.matches, record.exact, record.rtol, record.atol, record.max_abs_err) == (5, True, 0.5, 0.25, 0.0)
    assert asked.seen[0].check is True
    assert (asked.seen[0].example_inputs, asked.seen[0].config, asked.seen[0].constants) == ((), None, {})
    assert (record.nodes_before, record.nodes_after) == (3, 3)


def test_a_label_is_a_plain_name() -> None:
    for label in ("no good", "x" * 1000):
        with pytest.raises(ConfigError, match="a pass's label must be a plain name") as caught:
            build({label: Choice(name="cse"), "b": Choice(name="nobody")}, {})
        assert len(caught.value.problems) == 2
        assert len(str(caught.value)) < 800


def test_a_function_of_ones_own_is_counted_by_new_gone_and_changed_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(module: fx.GraphModule, inputs: Any, config: Any) -> None:
        given.append((inputs, config))
        graph = module.graph
        relu, neg, add = (node(graph, name) for name in ("relu", "neg", "add"))
        add.args = (add.args[0], 2)  # changed
        neg.replace_all_uses_with(relu)  # its reader is changed
        graph.erase_node(neg)  # gone
        with graph.inserting_after(relu):
            graph.call_function(aten.abs.default, (relu,))  # new

    given: list[Any] = []
    monkeypatch.setattr(UserFunction, "load", lambda self: mine)
    module = traced(lambda x: x.relu().neg().exp() + 1, X)
    (record,) = PassPipeline(passes=(("mine", PythonPass(function="m:f")),), can=CAN)(module, ("a",), 7)
    assert record.matches == 4
    assert given == [(["a"], 7)]
    with pytest.raises(TypeError, match="use run"):
        PythonPass(function="m:f").rewrite(module.graph, CAN)


def test_a_function_of_ones_own_that_takes_something_else_is_refused_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(module: Any, inputs: Any) -> None:
        raise AssertionError("it is not called")

    monkeypatch.setattr(UserFunction, "load", lambda self: short)
    own = PythonPass(function="m:f")
    line = short.__code__.co_firstlineno
    assert own.written_at() == f"{shown_path(__file__)}:{line}"
    with pytest.raises(ConfigError) as refused:
        PassPipeline(passes=(("mine", own),), can=CAN)(traced(lambda x: x.relu(), X), ("a",), None)
    assert str(refused.value).endswith(
        "passes.python.function 'm:f' is called as function(graph_module, example_inputs, config), and takes "
        f"(module: 'Any', inputs: 'Any') -> 'None': too many positional arguments @ {shown_path(__file__)}:{line}."
    )
    monkeypatch.setattr(UserFunction, "load", lambda self: len)
    assert own.written_at() is None


def folding(function: Any, *inputs: torch.Tensor, can: Capabilities = CAN, **options: Any) -> tuple[Any, Outcome]:
    """The first input is the parameter."""
    module = traced(function, *inputs)
    first = next(iter(module.graph.nodes)).name
    known = {first: Constant(value=inputs[0], kind=options.pop("kind", "parameter"))}
    outcome = FoldParameters(**options).run(Request(graph_module=module, can=can, constants=known))
    module.graph.lint()
    module.recompile()
    return module, outcome


def turned(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x @ w.t().contiguous()


def test_only_the_last_of_a_chain_becomes_a_constant_of_its_own_memory() -> None:
    w, x = torch.randn(5, 4), torch.randn(3, 4)
    module, outcome = folding(lambda w, x: x.double() @ w.t().contiguous().double(), w, x)
    assert outcome.matches == 1
    assert outcome.folds is not None
    assert (outcome.folds.parameters, outcome.folds.bytes) == (("w_1",), 5 * 4 * 8)
    assert dict(module.named_buffers()).keys() == {"folded_0"}
    assert module.state_dict() == {}
    held = module.graph.find_nodes(op="get_attr")[0]
    assert held.meta["val"].dtype == torch.float64
    assert torch.equal(module(w * 0, x), x.double() @ w.t().contiguous().double()), "what is written later is not seen"


def test_names_of_constants_do_not_meet() -> None:
    w, x = torch.randn(4, 4), torch.randn(3, 4)
    module, _ = folding(lambda w, x: (x @ w.t().contiguous(), x @ w.double().float().neg()), w, x)
    assert {name for name, _ in module.named_buffers()} == {"folded_0", "folded_1"}


@pytest.mark.parametrize(
    ("function", "options", "folds"),
    [
        (turned, {}, 1),
        (turned, {"kind": "buffer"}, 0),
        (turned, {"kind": "buffer", "buffers": True}, 1),
        (turned, {"can": Capabilities(target="npu", mode="max-autotune", constants=False)}, 0),
        (lambda w, x: x @ w.t(), {}, 0),
        (lambda w, x: (x, w.t().contiguous()), {}, 0),
        (lambda w, x: x @ w.t().contiguous().add_(1), {}, 0),
        (lambda w, x: x @ x.t().contiguous(), {}, 0),
        (lambda w, x: (y := w.t().contiguous()).double().sum() + (x @ y).sum(), {}, 2),
    ],
)
def test_a_constant_is_made_where_it_is_read_and_never_seen(function: Any, options: Any, folds: int) -> None:
    w, x = torch.randn(4, 4), torch.randn(3, 4)
    module, outcome = folding(function, w, x, **options)
    assert outcome.matches == folds
    assert len(module.graph.find_nodes(op="get_attr")) == folds
    with pytest.raises(TypeError, match="use run"):
        FoldParameters().rewrite(module.graph, CAN)
