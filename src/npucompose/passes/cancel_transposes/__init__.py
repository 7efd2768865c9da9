"""Takes out permutes, copies and casts that undo each other.

Only what moves data without computing it is looked at here; equal calls and calls without effect are simplify.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from attrs import frozen

from npucompose.passes.base import Outcome, Pass
from npucompose.schema.capabilities import Capabilities
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import fx


@frozen(kw_only=True)
class CancelTransposes(Pass):
    """Compose permutes, move them to where they cancel, drop casts that lose nothing, share equal ones; to a fixpoint.

    before:  t = permute(x, [0, 3, 1, 2]);  r = relu(t);  return permute(r, [0, 2, 3, 1])
    after:   return relu(x)

    A permute moves through operators that work element by element, `cat` and exact reductions (max, min, integers)
    where fewer bytes are moved in the end; a group of such operators is turned as a whole or not at all. Casts that
    widen and narrow again are dropped; what narrows stays, because it rounds. Every value keeps shape, strides and
    bits (a NaN stays a NaN, its payload may change where a cast is dropped).

    `contract: relaxed` lets permutes through floating sums, means, softmax and every element-wise function, whose
    results then differ in the last bits, and drops casts that narrow and widen again. A graph with stream scopes, and
    whatever touches memory that is written, stays as it is.
    """

    name: ClassVar[str] = "cancel_moves"
    skips_planned: ClassVar[bool] = True
    before: ClassVar[tuple[str, ...]] = ("stream_plan",)

    contract: Literal["exact", "relaxed"] = option("exact", "exact: bit-identical; relaxed: equal up to rounding")

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> Outcome:
        from npucompose.passes.cancel_transposes.cleanups import cancel

        return cancel(graph, relaxed=self.contract == "relaxed")
