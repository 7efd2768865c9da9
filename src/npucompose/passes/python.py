"""A function of a user's own, with TorchAir's signature, as a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.passes.base import Pass, Request
from npucompose.schema.capabilities import Capabilities
from npucompose.table.options import option
from npucompose.user_code import UserFunction

if TYPE_CHECKING:
    from torch import fx


@frozen(kw_only=True)
class Python(Pass):
    """Call `function(graph_module, example_inputs, config)`, which changes the graph module in place.

    before:  y = relu(x)                      def f(gm, example_inputs, config):
    after:   y = gelu(x)                          …

    The signature is that of TorchAir's hooks (`post_grad_custom_pre_pass`), so that a function written for them is a
    pass unchanged. `example_inputs` are the fake values of the inputs, `config` is the genuine CompilerConfig where
    TorchAir compiles and None elsewhere. What it keeps of the numbers is not known: results are compared within
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

    def run(self, request: Request) -> int:
        """How many nodes are new, gone or changed."""
        before = _snapshot(request.graph_module.graph)
        self._function.load()(request.graph_module, list(request.example_inputs), request.config)
        after = _snapshot(request.graph_module.graph)
        return sum(before.get(node) != after.get(node) for node in {**before, **after})

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        raise TypeError("a user's function works on a graph module: use run")


def _snapshot(graph: fx.Graph) -> dict[fx.Node, Any]:
    return {node: (node.target, node.args, dict(node.kwargs)) for node in graph.nodes}
