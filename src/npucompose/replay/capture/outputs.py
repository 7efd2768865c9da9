"""How a recording hands its results out: static buffers, the caller's own tensors, constants made anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field
from torch import fx

from npucompose.errors import CaptureError
from npucompose.replay import refusals
from npucompose.replay.capture.ledger import Held, Ledger, bytes_of, flat
from npucompose.replay.memory.buffers import relative
from npucompose.replay.memory.pool import ALIGNMENT
from npucompose.replay.plan import (
    Buffer,
    Layout,
    Literally,
    Output,
    Register,
    Root,
    SameAsInput,
    SameAsOutput,
    Step,
    ViewOfInput,
)

aten = torch.ops.aten


@define(eq=False, kw_only=True)
class Outputs:
    """`of(node, values)` describes the outputs; steps that fill buffers from registers are added to `steps`."""

    ledger: Ledger
    steps: list[Step]
    pristine: dict[int, torch.Tensor]
    """Constants that a step writes or the graph returns: id(root) -> their bytes before."""
    births: list[tuple[int, Root]] = field(factory=list)
    """(step before which it is made, constant root)."""

    _copied: dict[int, tuple[Root, int]] = field(factory=dict)
    """By id(root of registers): the buffer for its values, and the byte of them that it begins at."""

    def of(self, node: fx.Node, values: Sequence[Any]) -> list[Output]:
        self._make_buffers(values)
        outputs: list[Output] = []
        for index, value in enumerate(values):
            earlier = [i for i in range(index) if isinstance(value, Held) and values[i] is value]
            outputs.append(SameAsOutput(index=earlier[0]) if earlier else self._output(node, value))
        return outputs

    def _output(self, node: fx.Node, value: Any) -> Output:
        if not isinstance(value, Held):
            if any(isinstance(leaf, Held) for leaf in flat(value)):
                raise refusals.refused(node, "an output that is a list; AOTAutograd returns a flat tuple.")
            return Literally(value=value)
        root, layout = value.root, Layout.of(value.tensor)
        if value.register is not None:
            if root.kind not in ("fresh", "pool"):
                raise refusals.refused(
                    node, "an output that shares memory with an input in a way only its kernel knows."
                )
            return self._copied_out(value.register, root, layout)
        if value.whole_input is not None:
            return SameAsInput(index=value.whole_input)
        if root.kind == "input":
            assert root.tensor is not None
            return ViewOfInput(index=root.index, layout=relative(value.tensor, root.tensor))
        if root.kind == "attribute":
            assert root.tensor is not None
            return Literally(value=root.tensor if Layout.of(root.tensor) == layout else value.tensor)
        if root.kind == "constant":
            # A caller may write into what it was given: made anew on every replay, like a constant that a step writes.
            self.pristine.setdefault(id(root), bytes_of(value.tensor.untyped_storage()).clone())
            root.written = True
        else:
            root.kind = "output"
        return Buffer(slot=self.ledger.slot(root, layout))

    def _make_buffers(self, values: Sequence[Any]) -> None:
        """Results that share memory go on sharing it: one buffer for all that lie in the same fresh memory."""
        spans: dict[int, list[tuple[int, int]]] = {}
        for value in values:
            if isinstance(value, Held) and value.register is not None:
                spans.setdefault(id(value.root), []).append(Layout.of(value.tensor).span())
        for key, found in spans.items():
            low, high = min(low for low, _ in found), max(high for _, high in found)
            # Where one begins within another of wider elements, an offset must be a number of either.
            begin = low if len(found) == 1 else low - low % ALIGNMENT
            self._copied[key] = Root(kind="output", nbytes=max(high - begin, 0)), begin

    def _copied_out(self, register: Register, fresh: Root, layout: Layout) -> Output:
        root, begin = self._copied[id(fresh)]
        low, high = layout.span()
        layout = Layout(
            dtype=layout.dtype,
            shape=layout.shape,
            stride=layout.stride,
            offset=(low - begin) // layout.dtype.itemsize if high > low else 0,
        )
        slot = self.ledger.slot(root, layout)
        flat = layout.collapsed()
        if flat.overlaps_itself():
            raise CaptureError(f"cannot capture an output of layout {layout}: its elements overlap one another.")
        # Note [Shape check of fresh outputs]: copy_ broadcasts silently; `view` refuses another number of elements, so
        # a kernel whose result changes its size with the data ends in an error, not in a wrong buffer.
        checked = self.ledger.register(self.ledger.register_roots[register.number])
        if flat.shape == layout.shape:
            self.steps.append(Step(op=aten.view.default, args=(register, list(layout.shape)), results=(checked,)))
        else:
            self.steps.append(
                Step(
                    op=aten.as_strided.default,
                    args=(register, list(flat.shape), list(flat.stride), None),
                    results=(checked,),
                )
            )
        self.steps.append(Step(op=aten.copy_.default, args=(self.ledger.slot(root, flat), checked, False)))
        return Buffer(slot=slot)

    def written_constants(self) -> dict[int, list[Step]]:
        """Copies, by position, that give written and returned constants their value anew on every replay."""
        outputs: dict[int, list[Step]] = {}
        for position, root in self.births:
            bytes_before = self.pristine.get(id(root))
            if bytes_before is None:
                continue
            source = Root(kind="constant", nbytes=root.nbytes, tensor=bytes_before)
            root.kind, root.tensor = "output", None
            whole = Layout.of(bytes_before)
            step = Step(
                op=aten.copy_.default,
                args=(self.ledger.slot(root, whole), self.ledger.slot(source, whole), False),
            )
            outputs.setdefault(position, []).append(step)
        return outputs
