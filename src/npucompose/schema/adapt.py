"""Adaptation rules: what the pass `adapt` is asked to do with operators that a device does not take as they stand.

One class for each kind of rule; YAML says which by `kind`. Operators are named as they print (`aten.relu.default`),
arguments by their name in the operator's schema. Knows no graph and loads no torch.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

from attrs import asdict, evolve, frozen

from npucompose.errors import ConfigError, unknown
from npucompose.table.options import operator_problem, option
from npucompose.table.structure import shown, structure

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128",
)  # fmt: skip

DTYPE_CLASSES = ("floating", "integer", "complex")

Dtype = Literal[
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128",
]  # fmt: skip

LAYOUTS = ("contiguous", "channels_last")

REFERENCE = re.compile(
    r"\$(?P<name>\w+(?:\[\d+\])?)"
    r"(?:\.(?:(?P<fact>dtype|device|numel|rank)|(?P<sizes>shape|ones)(?:\[(?P<first>\d+):\])?|size\((?P<dim>-?\d+)\)))?"
)
"""`$x`, `$x[0]` of a list, `$x.size(1)`, `$x.dtype`, `$x.device`, `$x.numel`, `$x.rank`, `$x.shape`, `$x.ones` (a one
for each dimension); `$x.shape[1:]` leaves out the first, and `[2, "*$x.shape"]` puts the sizes into a list."""


@frozen(kw_only=True)
class Tolerance:
    """How far results may be from those of the operator as it stood: |new - old| <= atol + rtol · |old|.

    Nothing given is `bitwise`: every bit is kept. `range_check` puts a check into the graph that ends the run when a
    value does not fit the narrower type, instead of giving inf (floats) or another number (integers).
    """

    rtol: float = option(0.0, "relative", ge=0)
    atol: float = option(0.0, "absolute", ge=0)
    range_check: bool = option(False, "check at run time that every value fits the narrower type")

    @property
    def bitwise(self) -> bool:
        return self.rtol == 0 and self.atol == 0


@frozen(kw_only=True)
class Contract(Tolerance):
    """A tolerance as YAML says it: `bitwise`, or `{rtol: 1e-5, atol: 0.0, range_check: true}`."""

    @classmethod
    def of_tree(cls, tree: Any, path: str) -> Contract:
        if tree == "bitwise":
            return cls()
        if not isinstance(tree, Mapping):
            raise ConfigError(
                f"a contract is 'bitwise' or a mapping of rtol, atol, range_check: {shown(tree)} @ {path}"
            )
        found = structure(Tolerance, cast("Mapping[str, Any]", tree), path)
        return cls(rtol=found.rtol, atol=found.atol, range_check=found.range_check)


@frozen(kw_only=True)
class When:
    """What must hold beside the operator's name; every entry that is given must hold.

    Arguments go by name, and parts of a list by `indices[0]`.

    A size that is a symbol equals a number only where that is certain.
    """

    dtype: Mapping[str, tuple[str, ...]] = option(factory=dict, doc="{argument: dtypes, or floating, integer, complex}")
    rank: Mapping[str, tuple[int, ...]] = option(factory=dict, doc="{argument: numbers of dimensions}")
    shape: Mapping[str, tuple[int | None, ...]] = option(factory=dict, doc="{argument: sizes; null is any}")
    args: Mapping[str, Any] = option(factory=dict, doc="{argument: value}, the operator's default where none is given")
    length: Mapping[str, tuple[int, ...]] = option(factory=dict, doc="{argument: lengths of a list}")
    layout: Mapping[str, Literal["contiguous", "channels_last"]] = option(
        factory=dict, doc="{argument: contiguous or channels_last, the order of its elements in memory}"
    )
    device: tuple[str, ...] = option(factory=tuple, doc="kinds of device the graph is for: cpu, cuda, npu")
    mode: tuple[str, ...] = option(factory=tuple, doc="modes the graph is for: max-autotune, reduce-overhead, …")

    def __attrs_post_init__(self) -> None:
        known = (*DTYPES, *DTYPE_CLASSES)
        for argument, names in self.dtype.items():
            for name in names:
                if name not in known:
                    raise ValueError(unknown("dtype", name, known, f"dtype.{argument}").removesuffix("."))


@frozen(kw_only=True)
class OperatorCall:
    """An operator with arguments: numbers, text, lists of them, and references `$x`, `$x.size(1)`, `$x.dtype`."""

    op: str = option(doc="aten.mul.Tensor")
    args: tuple[Any, ...] = option(factory=tuple, doc="positional arguments")
    kwargs: Mapping[str, Any] = option(factory=dict, doc="keyword arguments")
    let: str = option("", "the name by which later steps refer to the result: `let: a`, then `$a`")
    result: int | None = option(None, "which of several results is meant", ge=0, optional=True)

    def __attrs_post_init__(self) -> None:
        _check_operator(self.op)
        for reference in references((self.args, self.kwargs)):
            found = REFERENCE.fullmatch(reference.removeprefix("*"))
            if found is None or (reference.startswith("*") and not found["sizes"]):
                raise ValueError(
                    f"'{reference}' is no reference: write $x, $x.size(0), $x.dtype, $x.device, $x.shape, $x.ones, "
                    f"$x.numel or $x.rank, x being an argument's name, and a star only before $x.shape or $x.ones"
                )


@frozen(kw_only=True)
class Rule:
    """What all kinds of rules have; a rule never matches what it made itself."""

    kind: ClassVar[str]
    op: str = option(doc="the operator that is adapted: aten.nll_loss_forward.default")
    name: str = option("", "for the report; the place in the list where nothing is said")
    when: When = option(factory=When)
    priority: int = option(0, "the highest is asked first; equal ones in the order written")
    source: str = option("", "where it is written that this is needed")

    def __attrs_post_init__(self) -> None:
        _check_operator(self.op)

    @classmethod
    def of_tree(cls, tree: Any, path: str) -> Rule:
        """The rule of the kind that the tree names."""
        if not isinstance(tree, Mapping):
            raise ConfigError(f"a rule must be a mapping: {shown(tree)} @ {path}")
        rest = dict(cast("Mapping[str, Any]", tree))
        kind = rest.pop("kind", None)
        if kind is None:
            raise ConfigError(f"'kind' is missing @ {path}. Choices: {', '.join(KINDS)}.")
        if kind not in KINDS:
            raise ConfigError(unknown("kind", str(kind), tuple(KINDS), path))
        return structure(KINDS[kind], rest, path)

    @property
    def calls(self) -> tuple[OperatorCall, ...]:
        """What may be called instead."""
        return ()

    @property
    def named_arguments(self) -> tuple[str, ...]:
        """Arguments of the operator that are named beside `when` and the calls."""
        return ()


@frozen(kw_only=True)
class Rewriting(Rule):
    """A rule that puts something else in the operator's place, and what it promises of the numbers."""

    contract: Contract = option(factory=Contract, doc="bitwise, or {rtol, atol, range_check}")


@frozen(kw_only=True)
class FillArgs(Rewriting):
    """Another operator with the arguments named here: one that the framework lacks gets a value, or is computed.

    `{op: paddle.relu_grad.default, kind: fill_args, to: aten.threshold_backward.default, args: [$dout, $out, 0.0]}`
    """

    kind: ClassVar[str] = "fill_args"
    to: str = option(doc="the operator that is called instead")
    args: tuple[Any, ...] = option(factory=tuple, doc="its positional arguments")
    kwargs: Mapping[str, Any] = option(factory=dict, doc="its keyword arguments")
    result: int | None = option(None, "which of its results is meant, where only it has several", ge=0, optional=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.calls  # noqa: B018  raises for a reference that is none

    @property
    def calls(self) -> tuple[OperatorCall, ...]:
        return (OperatorCall(op=self.to, args=self.args, kwargs=self.kwargs, result=self.result),)


@frozen(kw_only=True)
class CastAround(Rewriting):
    """A dtype that the operator does not take: cast the inputs, run, cast every result back to what it was."""

    kind: ClassVar[str] = "cast_around"
    compute: Dtype = option(doc="the dtype it computes in")
    inputs: tuple[str, ...] = option(doc="arguments that are cast")

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.inputs:
            raise ValueError("'inputs' must name at least one argument")

    @property
    def named_arguments(self) -> tuple[str, ...]:
        return self.inputs


@frozen(kw_only=True)
class LayoutAround(Rewriting):
    """A layout that the operator does not take: permute the inputs, run, permute every result of that rank back."""

    kind: ClassVar[str] = "layout_around"
    perm: tuple[int, ...] = option(doc="dimensions in the operator's order: [0, 3, 1, 2] makes NCHW of NHWC")
    inputs: tuple[str, ...] = option(doc="arguments that are permuted")
    set: Mapping[str, Any] = option(factory=dict, doc="arguments that change with the layout")

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if sorted(self.perm) != list(range(len(self.perm))) or not self.perm:
            raise ValueError(f"'perm' must hold each of 0 to n-1 once: {list(self.perm)}")
        if not self.inputs:
            raise ValueError("'inputs' must name at least one argument")

    @property
    def named_arguments(self) -> tuple[str, ...]:
        return (*self.inputs, *self.set)


@frozen(kw_only=True)
class Compose(Rewriting):
    """One operator out of several: `steps` are called in order, `$name` is an argument or what a step let be."""

    kind: ClassVar[str] = "compose"
    steps: tuple[OperatorCall, ...] = option(doc="calls, each may read the results of those before it")
    results: tuple[str, ...] = option(factory=tuple, doc="what the results are; the last step's where nothing is said")

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.steps:
            raise ValueError("'steps' must hold at least one call")

    @property
    def calls(self) -> tuple[OperatorCall, ...]:
        return self.steps


@frozen(kw_only=True)
class Dispatch(Rewriting):
    """The operator is chosen by the value of an argument; a value that no case names is left alone."""

    kind: ClassVar[str] = "dispatch"
    by: str = option(doc="the argument that decides")
    cases: Mapping[str, OperatorCall] = option(doc="{value, as text: call}")

    @property
    def calls(self) -> tuple[OperatorCall, ...]:
        return tuple(self.cases.values())

    @property
    def named_arguments(self) -> tuple[str, ...]:
        return (self.by,)


@frozen(kw_only=True)
class Reject(Rule):
    """A mode that the device does not have: an error when the graph is compiled.

    The message may hold {op}, {node}, {source} (the line of the model) and the operator's arguments by name.
    """

    kind: ClassVar[str] = "reject"
    message: str = option(doc="what is not possible, and what is")

    @property
    def named_arguments(self) -> tuple[str, ...]:
        fields = [name for _, name, _, _ in string.Formatter().parse(self.message) if name]
        return tuple(name for name in fields if name not in ("op", "node", "source"))


KINDS: Mapping[str, type[Rule]] = {
    kind.kind: kind for kind in (FillArgs, CastAround, LayoutAround, Compose, Dispatch, Reject)
}


@frozen(kw_only=True)
class RuleSet:
    """A rule set, in the order written."""

    name: str = "none"
    rules: tuple[Rule, ...] = ()

    def __attrs_post_init__(self) -> None:
        """A rule without a name is named after its place."""
        named = (rule if rule.name else evolve(rule, name=f"{self.name}.{at}") for at, rule in enumerate(self.rules))
        object.__setattr__(self, "rules", tuple(named))
        if twice := [name for name, times in Counter(rule.name for rule in self.rules).items() if times > 1]:
            raise ValueError("; ".join(f"two rules are called '{name}'" for name in twice))

    def as_tree(self) -> dict[str, Any]:
        """A JSON-able mapping that `structure` reads back."""
        rules = [{"kind": rule.kind, **asdict(rule)} for rule in self.rules]
        return {"name": self.name, "rules": rules}


def _check_operator(name: str) -> None:
    if problem := operator_problem(name):
        raise ValueError(problem)


def references(value: Any) -> list[str]:
    """Every text in nested arguments that begins with a dollar, or with a star before it."""
    if isinstance(value, str):
        return [value] if value.startswith(("$", "*$")) else []
    if isinstance(value, Mapping):
        return [found for item in cast("Mapping[str, Any]", value).values() for found in references(item)]
    if isinstance(value, (list, tuple)):
        return [found for item in cast("Sequence[Any]", value) for found in references(item)]
    return []
