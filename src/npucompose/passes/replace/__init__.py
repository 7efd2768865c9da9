"""Replaces named patterns of operators by fused ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attrs import frozen

from npucompose.passes.base import Outcome, Pass, Request
from npucompose.registry import Registry
from npucompose.schema.capabilities import Capabilities
from npucompose.table.options import option

if TYPE_CHECKING:
    import torch
    from torch import fx


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


PATTERNS: Registry[type[Pattern]] = Registry(
    kind="pattern",
    base=Pattern,
    group="npucompose.patterns",
    built_in=(
        ("add_rms_norm", "npucompose.passes.replace.patterns:AddRmsNorm"),
        ("rms_norm", "npucompose.passes.replace.patterns:RmsNorm"),
        ("swiglu", "npucompose.passes.replace.patterns:SwiGlu"),
        ("rotary_mul", "npucompose.passes.replace.patterns:RotaryMul"),
    ),
)
BUILT_IN = ("add_rms_norm", "rms_norm", "swiglu", "rotary_mul")


@frozen(kw_only=True)
class Replace(Pass):
    """Put one operator in the place of several, pattern by pattern.

    before:  s = x + y;  r = rsqrt(mean(s ** 2) + eps);  return s * r * weight, s
    after:   n = npu_add_rms_norm(x, y, weight, eps);  return n[0], n[2]

    A pattern is a pair of Python functions of the same arguments, `find` and `replace`, registered by name: built in,
    or by an installed package under the entry point `npucompose.patterns`. What is found is replaced where nobody
    else reads its intermediate values and nobody writes its memory. The fused operators round elsewhere than the
    separate ones: results keep the pattern's tolerance and not their bits.

    Where TorchAir compiles and no pass of ours follows in stage pre, TorchAir's own `register_replacement` does it
    (`via: auto`); the report says which way was taken.
    """

    name: ClassVar[str] = "replace"
    exact: ClassVar[bool] = False
    before: ClassVar[tuple[str, ...]] = ("stream_plan",)

    patterns: tuple[str, ...] = option(BUILT_IN, "names of patterns, tried in this order")
    via: Literal["auto", "own"] = option(
        "auto", "auto: TorchAir's register_replacement, where it does the same; own: this pass"
    )

    def check(self) -> None:
        for name in self.patterns:
            PATTERNS.get(name, "passes.replace.patterns")

    def run(self, request: Request) -> Outcome:
        return self._replaced(request.graph_module.graph, check=request.check)

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> Outcome:
        return self._replaced(graph, check=False)

    def _replaced(self, graph: fx.Graph, *, check: bool) -> Outcome:
        from npucompose.graphs import is_planned
        from npucompose.passes.replace.rewrite import replace_all

        if is_planned(graph):
            return Outcome(matches=0)
        return replace_all(graph, [PATTERNS.get(name)() for name in self.patterns], check=check)
