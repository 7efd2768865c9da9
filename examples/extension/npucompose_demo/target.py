"""A target: graphs are walked node by node in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from attrs import frozen

from npucompose.recorder import Captured, Lowered, LowerRequest
from npucompose.schema.capabilities import Capabilities
from npucompose.table.options import option
from npucompose.targets.base import ModeSupport, Target


class Walk:
    """One graph that can be called: nothing of it is recorded."""

    _boxed_call = True

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run
        self.captured: list[Captured] = []

    def __call__(self, inputs: list[Any]) -> Any:
        given = list(inputs)
        inputs.clear()
        return self.run(*given)


@frozen(kw_only=True)
class FxWalker(Target):
    """Calls torch's kernels one after another, and says which."""

    name: ClassVar[str] = "fx_walker"
    modes: ClassVar[Mapping[str, ModeSupport]] = {
        "reduce-overhead": ModeSupport(),
        "plain_graph": ModeSupport(),
        "eager": ModeSupport(compiles=False),
    }

    verbose: bool = option(False, "print each kernel that is called into run.log")

    def capabilities(self, mode: str) -> Capabilities:
        return Capabilities(target=self.name, mode=mode)

    def identity(self) -> Mapping[str, str]:
        return {"walker": "torch.fx.Interpreter"}

    def lower(self, request: LowerRequest) -> Lowered:
        from torch import fx

        verbose = self.verbose

        class Walker(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                if verbose and n.op == "call_function":
                    print(f"fx_walker: {n.target}")
                return super().run_node(n)

        return Walk(Walker(request.graph_module).run)
