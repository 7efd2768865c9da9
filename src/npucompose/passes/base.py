"""What a pass is, and a pattern of the pass `replace`; the pass that is a user's own function.

Knows no device and no configuration file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attrs import field, frozen

from npucompose.errors import ConfigError
from npucompose.registry import UserFunction, defined_at
from npucompose.results.graphs import FoldFacts, MoveFacts, RuleFacts
from npucompose.schema.capabilities import Capabilities
from npucompose.table.options import option

if TYPE_CHECKING:
    import torch
    from torch import fx

Stage = Literal["pre", "post"]
STAGES: tuple[Stage, ...] = ("pre", "post")


@frozen(kw_only=True)
class Promise:
    """What a rewrite may change: nothing where `exact`, else what the tolerances allow."""

    exact: bool = True
    """This graph's results keep their bits."""
    rtol: float = 0.0
    atol: float = 0.0
    """Where they do not: how far off they may be; both 0 where nothing is declared."""
    checks_ranges: bool = False
    """The graph now ends the run where a value does not fit a narrower type."""


@frozen(kw_only=True)
class Outcome(Promise):
    """What a rewrite did, where there is more to say than how many places it changed."""

    matches: int
    rules: tuple[RuleFacts, ...] = ()
    """Of the passes `adapt` and `replace`: each rule or pattern that was applied."""
    folds: FoldFacts | None = None
    """Of the pass `fold_parameters`."""
    moves: MoveFacts | None = None
    """Of the pass `cancel_moves`: what was taken out."""
    why: str = ""
    """Of the pass `dual_batch_overlap`: what was split, or why nothing was."""

    @classmethod
    def from_rules(cls, rules: Sequence[RuleFacts], *, exact: bool, checks_ranges: bool = False) -> Outcome:
        """What several rules or patterns did together."""
        return cls(
            matches=sum(rule.matches for rule in rules),
            exact=exact,
            rtol=max((rule.rtol for rule in rules), default=0.0),
            atol=max((rule.atol for rule in rules), default=0.0),
            checks_ranges=checks_ranges,
            rules=tuple(rules),
        )


@frozen(kw_only=True, eq=False)
class Constant:
    """A parameter or buffer of the model, which comes into the graph as an input."""

    value: torch.Tensor
    kind: Literal["parameter", "buffer"]


Constants = Mapping[str, Constant]
"""{placeholder: what it is}."""


@frozen(kw_only=True, eq=False)
class Request:
    """A graph on its way through the passes."""

    graph_module: fx.GraphModule
    can: Capabilities
    example_inputs: Sequence[Any] = ()
    config: Any = None
    """TorchAir's own CompilerConfig where it compiles."""
    constants: Constants = field(factory=dict)
    """Parameters and buffers, where somebody knows them."""
    check: bool = False
    """`check=per_pass`: a pass of several rules holds each of them to its own promise."""


@frozen(kw_only=True)
class Pass(ABC):
    """A rewrite of an FX graph; its fields are its options.

    The pipeline controls (order, lint, timing, counts, names the guilty pass); `rewrite` only rewrites.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = True
    """The results keep their bits; False for a pass that may change numerics."""
    after: ClassVar[tuple[str, ...]] = ()
    before: ClassVar[tuple[str, ...]] = ()
    """Names of passes of the same stage that must stand earlier / later in the list, when they are there."""

    acts_in: ClassVar[tuple[str, ...] | None] = None
    """Modes in which it does something, where that is not every mode that compiles; elsewhere it is refused."""
    uses: ClassVar[str | None] = None
    """The field of Capabilities without which it leaves a graph alone; such a request is listed as having no effect."""
    elsewhere: ClassVar[str] = ""
    """What to write instead in the modes that `acts_in` leaves out."""
    needs_trust: ClassVar[bool] = False
    """It imports code that a configuration names."""
    freezes: ClassVar[bool] = False
    """What is written into parameters after the compilation is not seen: so no training, and no cache for others."""

    skips_planned: ClassVar[bool] = False
    """A graph with stream scopes stays as it is: a record may stand behind what would change."""

    stage: Stage = option("pre", "before or after the backend's own passes")

    def check(self) -> None:
        """Raise ConfigError when this machine cannot run it. Loads no torch."""

    def source_files(self) -> tuple[str, ...]:
        """Files outside the package whose content the result depends on: part of the key."""
        return ()

    def written_at(self) -> str | None:
        """`rewrites.py:6` where a person's own function does the work, for errors that go through no line of it."""
        return None

    def run(self, request: Request) -> int | Outcome:
        """What the pipeline calls; a pass that needs no more than the graph leaves it at `rewrite`."""
        return self.rewrite(request.graph_module.graph, request.can)

    @abstractmethod
    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int | Outcome:
        """Change `graph` in place and say how many places changed; 0 means the graph is as it was.

        A Outcome says more: what this graph's results may be off by, which then counts instead of `exact`.

        The graph must be valid afterwards (`graph.lint()`); code generation and meta data of untouched nodes are
        the pipeline's business. Raise to refuse: the pipeline adds the pass's name.
        """


class Pattern(ABC):
    """Two functions of the same arguments: `find` as a model writes it, `replace` with the operator that does it all.

    Both are traced on `inputs()`; tensors come first, then `scalars` by name, whose example values must be found
    nowhere else in the pattern: they stand for any number. Several results come back in the same order from both.
    """

    name: ClassVar[str]
    rtol: ClassVar[float] = 1e-5
    atol: ClassVar[float] = 1e-5
    """How far the replaced results may be off; for half types the table of tolerances counts where it allows more."""
    scalars: ClassVar[Mapping[str, float]] = {}

    @abstractmethod
    def inputs(self) -> Sequence[torch.Tensor]:
        """Example tensors; only their ranks matter."""

    @abstractmethod
    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        """The ways in which models write it: functions, each with the dtype of the tensors it is traced on.

        A dtype is only seen where a function casts: it then finds that dtype and no other.
        """

    @abstractmethod
    def replace(self, *arguments: Any) -> Any:
        """The same with fused operators."""

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        """Whether what was found for the tensors (fake values) and the scalars may be replaced: shapes, dtypes."""
        return True


@frozen(kw_only=True)
class PythonPass(Pass):
    """Call `function(graph_module, example_inputs, config)`, which changes the graph module in place.

    before:  y = relu(x)                      def f(gm, example_inputs, config):
    after:   y = gelu(x)                          …

    The signature is that of TorchAir's hooks (`post_grad_custom_pre_pass`), so that a function written for them is a
    pass unchanged. `example_inputs` are the fake values of the inputs, `config` is TorchAir's own CompilerConfig
    where it compiles and None elsewhere. What it keeps of the numbers is not known: results are compared within
    tolerance. It needs trust=true on the command line.
    """

    name: ClassVar[str] = "python"
    exact: ClassVar[bool] = False
    needs_trust: ClassVar[bool] = True

    function: str = option(doc="module:function, from the working directory or sys.path")

    @property
    def _function(self) -> UserFunction:
        return UserFunction("passes.python.function", self.function)

    def check(self) -> None:
        self._function.check()

    def source_files(self) -> tuple[str, ...]:
        return self._function.source_files()

    def written_at(self) -> str | None:
        return defined_at(self._function.load())

    def run(self, request: Request) -> int:
        """How many nodes are new, gone or changed."""
        before = _snapshot(request.graph_module.graph)
        function = self._function.load()
        if problem := self._function.refuses(function, "graph_module", "example_inputs", "config"):
            raise ConfigError(problem)
        function(request.graph_module, list(request.example_inputs), request.config)
        after = _snapshot(request.graph_module.graph)
        return sum(before.get(node) != after.get(node) for node in {**before, **after})

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        raise TypeError("a user's function works on a graph module: use run")


def _snapshot(graph: fx.Graph) -> dict[fx.Node, Any]:
    return {node: (node.target, node.args, dict(node.kwargs)) for node in graph.nodes}
