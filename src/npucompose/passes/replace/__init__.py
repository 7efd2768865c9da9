"""Replaces named patterns of operators by fused ones: the pass, and the patterns by name.

How one is found in a graph is graphs/matching.py; patterns of a framework of their own are installed packages'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from attrs import frozen

from npucompose.passes.base import Outcome, Pass, Pattern, Request
from npucompose.registry import Registry
from npucompose.schema.capabilities import Capabilities
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import fx


PATTERNS: Registry[type[Pattern]] = Registry(
    kind="pattern",
    base=Pattern,
    group="npucompose.patterns",
    built_in=(
        ("add_rms_norm", "npucompose.passes.replace.rewrite:AddRmsNormPattern"),
        ("rms_norm", "npucompose.passes.replace.rewrite:RmsNormPattern"),
        ("swiglu", "npucompose.passes.replace.rewrite:SwiGluPattern"),
        ("rotary_mul", "npucompose.passes.replace.rewrite:RotaryMulPattern"),
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
    skips_planned: ClassVar[bool] = True
    before: ClassVar[tuple[str, ...]] = ("stream_plan",)

    patterns: tuple[str, ...] = option(BUILT_IN, "names of patterns, tried in this order")
    via: Literal["auto", "own"] = option(
        "auto", "auto: TorchAir's register_replacement, where it does the same; own: this pass"
    )

    def check(self) -> None:
        for name in self.patterns:
            PATTERNS.get(name, "passes.replace.patterns")

    def run(self, request: Request) -> Outcome:
        return self.rewrite(request.graph_module.graph, request.can, check=request.check)

    def rewrite(self, graph: fx.Graph, can: Capabilities, *, check: bool = False) -> Outcome:
        from npucompose.passes.replace.rewrite import replace_all

        return replace_all(graph, [PATTERNS.get(name)() for name in self.patterns], check=check)


__all__ = ["BUILT_IN", "PATTERNS", "Pattern", "Replace"]
