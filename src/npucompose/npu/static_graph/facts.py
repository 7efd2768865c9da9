"""What is known before anything is judged: the graph as it was read, the question, what a target saw. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from npucompose.npu.static_graph.records import Failure, Undecided
from npucompose.vendor.versions import REFERENCE

ArgumentKind = Literal["constant", "symbols", "tensor", "nothing"]


@frozen(kw_only=True)
class Input:
    """A placeholder: `Input(name="arg3_1", sizes={0: "s31"}, argument="key", …)`."""

    name: str
    argument: str | None = None
    """What the model calls it: `key`, `caches[1]`; None for what it does not name, a parameter or a buffer included."""
    shape: tuple[str, ...] | None = None
    """None for a number."""
    sizes: Mapping[int, str] = field(factory=dict[int, str])
    """{dimension: the symbol or expression there}."""
    symbol: str | None = None
    """Of a number that is a symbol."""


@frozen(kw_only=True)
class OpArgument:
    """What an operator was given for one argument of its schema."""

    kind: ArgumentKind
    symbols: tuple[str, ...] = ()
    """Free symbols of the numbers in it."""
    packed: bool = False
    """A list in which something other than an input of the graph stands: a constant, or a number that is computed."""


@frozen(kw_only=True)
class Op:
    """A call in the FX graph that becomes an operator of GE."""

    name: str
    overload: str
    """`aten.view.default`; the bare name of a higher-order operator (`cond`)."""
    schema: str
    """`aten::view`."""
    source: str | None = None
    arguments: Mapping[str, OpArgument] = field(factory=dict[str, OpArgument])
    constants: Mapping[str, str] = field(factory=dict[str, str])
    """{argument: what a converter is given, as vendor/converter_conditions.py has it}, those left out too."""
    parameters: tuple[str, ...] = ()
    """Names of the operator's arguments that a call gives by their places."""
    reads: tuple[str, ...] = ()
    """Names of the operators whose results it reads."""
    unknown_in: tuple[str, ...] = ()
    """Symbols in the shapes of its tensor inputs."""
    unknown_out: tuple[str, ...] = ()
    """Symbols in the shapes of its results."""
    unbacked: tuple[str, ...] = ()
    """Those of them that only the data decide."""
    view: bool = False
    """It moves no data: GE computes nothing for it."""
    subgraphs: tuple[FxFacts, ...] = ()
    scalar: str | None = None
    """The first argument that is a Scalar: TorchAir makes no converter for such an operator (fx2ge_converter.py,
    _validate_support, torch_npu 2.13.0)."""
    unwritable: str = ""
    """Why TorchAir cannot give back what the call writes: for each argument that is written it gives one result, where
    torch has one for each tensor (conveter_auto_functionalize_v2 of auto_functionalized_v2.py, torch_npu 2.6.0 to
    2.14.0)."""
    higher_order: bool = False
    empty: bool = False
    """No result has an element, whatever the sizes: TorchAir makes constants of them and converts nothing."""
    at: int = 0
    """Its place among the nodes of the graph."""

    @property
    def at_source(self) -> str:
        """` (model.py:12 in forward: …)`, to stand behind its name; empty where nobody recorded it."""
        return f" ({self.source})" if self.source else ""


@frozen(kw_only=True)
class FxFacts:
    """One FX graph, read."""

    id: str
    inputs: tuple[Input, ...] = ()
    ops: tuple[Op, ...] = ()
    symbols: Mapping[str, str | None] = field(factory=dict[str, "str | None"])
    """{symbol: where it comes from}: `key.size()[2]`, `lens[0]`; None where only data decide."""
    without_tensors: tuple[Op, ...] = ()
    """Calls of operators that give no tensor: numbers of data (`x.item()`), assertions, sizes."""
    failure: Failure | None = None
    """Why the vendor's compiler did not take the graph."""
    undecided: Undecided | None = None
    """Where the vendor's compiler came to what only CANN decides, which was not there: no failure, and no GE graph."""


@frozen(kw_only=True)
class GeFacts:
    """One graph as it was handed to GE."""

    name: str
    data: Mapping[str, tuple[int, ...]] = field(factory=dict[str, "tuple[int, ...]"])
    """{Data node: shape}; -1 is an unknown size, -2 an unknown number of dimensions."""
    inputs: Mapping[str, tuple[str, Mapping[str, str]]] = field(factory=dict[str, "tuple[str, Mapping[str, str]]"])
    """{node: (operator type, {input name: type of the node that feeds it})}."""
    options: Mapping[str, str] = field(factory=dict[str, str])
    forced: tuple[str, ...] = ()
    """Nodes that carry `_force_unknown_shape` or `_is_unknown_shape`."""


@frozen(kw_only=True)
class Change:
    """An argument that is not the same in every call of the model: `Change(argument="lens", what="value", …)`."""

    argument: str
    what: Literal["shape", "value", "length"]
    before: str
    after: str
    call: int
    """The first call that differs."""
    marked: bool
    """mark_static had been said of the tensor in that call."""


@frozen(kw_only=True)
class SinkingQuestion:
    """What was asked: the part of an experiment that decides whether a graph can sink."""

    mode: str
    target: str
    dynamic: bool | None
    fullgraph: bool = True
    mark_static: tuple[str, ...] = ()
    """As written: names and patterns."""
    marked: tuple[str, ...] = ()
    """The arguments that they name."""
    gears: Mapping[str, tuple[int, ...]] = field(factory=dict[str, "tuple[int, ...]"])
    sink: bool = False
    ops_lower_limit: int | None = None
    product: str | None = None
    """Family of the product, as in the operator table."""
    arguments: tuple[str, ...] = ()
    """Names of the model's arguments that hold tensors."""
    changes: tuple[Change, ...] = ()
    breaks: tuple[str, ...] = ()
    """Why Dynamo broke the model into several graphs, in torch's words."""
    torch_npu: str = REFERENCE
    """The version whose tables say what is converted."""
    through_torchair: bool = False
    """The FX graphs went through TorchAir itself."""


@frozen(kw_only=True)
class UnknownForm:
    """An operator whose results have a form that is not known, or not to be believed."""

    operator: str
    """`npu.npu_mish`."""
    source: str | None
    why: str
    """One sentence, without the full stop."""
    fix: str | None = None
