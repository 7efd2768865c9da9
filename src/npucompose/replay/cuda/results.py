"""The results of a CUDA graph: how each goes out, the memory that they lie in, and whether anybody still holds it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch import fx

from npucompose.errors import CaptureError
from npucompose.graphs import Aliases
from npucompose.replay.capture.recorder import attribute
from npucompose.replay.memory.results import is_lazy_copy, use_count
from npucompose.replay.operands import Layout, laid_over, relative, span_of
from npucompose.replay.plan import Literally, SameAsInput, SameAsOutput, ViewOfInput

ALIGNED = 64
"""A result lies as far from a multiple of it as the value did that it is a copy of: kernels choose by alignment."""


@frozen(kw_only=True)
class Piece:
    """Memory of results that share theirs: in eager a write to one is seen in the other, and so it is here."""

    nbytes: int
    device: torch.device


@frozen(kw_only=True)
class InPiece:
    """An output that the graph makes: a tensor over piece `piece`."""

    piece: int
    layout: Layout


Output = SameAsInput | ViewOfInput | SameAsOutput | Literally | InPiece


@frozen(kw_only=True, eq=False)
class Results:
    """How each output of a graph goes out, found on a run of it on real values."""

    outputs: tuple[Output, ...]
    pieces: tuple[Piece, ...]

    @classmethod
    def of(
        cls, graph_module: fx.GraphModule, aliases: Aliases, inputs: Sequence[Any], values: Sequence[Any]
    ) -> Results:
        """`values` is what the graph made of `inputs`."""
        finder = _Finder(graph_module=graph_module, aliases=aliases, inputs=inputs)
        for k in range(len(values)):
            finder.found.append(finder.output(k, values))
        pieces = finder.pieces()
        return cls(outputs=tuple(finder.found), pieces=tuple(pieces))

    def handed_out(self, inputs: Sequence[Any], made: Sequence[torch.Tensor]) -> list[Any]:
        """All outputs of a call, `made` for those that are InPiece, in order."""
        rest = iter(made)
        handed: list[Any] = []
        for output in self.outputs:
            if isinstance(output, InPiece):
                handed.append(next(rest))
            elif isinstance(output, SameAsInput):
                handed.append(inputs[output.index])
            elif isinstance(output, ViewOfInput):
                handed.append(laid_over(inputs[output.index], output.layout))
            elif isinstance(output, SameAsOutput):
                handed.append(handed[output.index])
            else:
                handed.append(output.value)
        return handed


@define(kw_only=True, eq=False)
class _Finder:
    graph_module: fx.GraphModule
    aliases: Aliases
    inputs: Sequence[Any]
    _groups: dict[int, list[tuple[int, torch.Tensor]]] = field(factory=dict)
    """{address of a storage: the (output, value) that lie in it}"""
    found: list[Output] = field(factory=list)

    def output(self, k: int, values: Sequence[Any]) -> Output:
        value = values[k]
        if not isinstance(value, torch.Tensor):
            return Literally(value=value)
        earlier = next((n for n in range(k) if values[n] is value), None)
        if earlier is not None:
            return SameAsOutput(index=earlier)
        given = self._inputs_behind(k, value)
        same = next((i for i in given if value is self.inputs[i]), None)
        if same is not None:
            return SameAsInput(index=same)
        if given:
            return ViewOfInput(index=given[0], layout=relative(value, self.inputs[given[0]]))
        if any(_address(value) == _address(held) for held in self._attributes()):
            return Literally(value=value)
        self._groups.setdefault(_address(value) or -1 - k, []).append((k, value))
        return InPiece(piece=-1, layout=Layout.of(value))

    def _inputs_behind(self, k: int, value: torch.Tensor) -> list[int]:
        """Inputs whose memory the value has, first those that the graph says: inputs may share memory themselves."""
        placeholders = self.graph_module.graph.find_nodes(op="placeholder")
        returned: Any = self.graph_module.graph.output_node().args[0]
        node = returned[k] if isinstance(returned, (list, tuple)) else returned
        if node in placeholders:
            return [placeholders.index(node)]
        tensors = [i for i, given in enumerate(self.inputs) if isinstance(given, torch.Tensor)]
        sharing = [i for i in tensors if value.numel() and _address(self.inputs[i]) == _address(value)]
        return sorted(sharing, key=lambda i: not self.aliases.shares(node, placeholders[i]))

    def _attributes(self) -> list[torch.Tensor]:
        values = [attribute(self.graph_module, node) for node in self.graph_module.graph.find_nodes(op="get_attr")]
        return [value for value in values if isinstance(value, torch.Tensor) and value.numel()]

    def pieces(self) -> list[Piece]:
        """One for each storage that results lie in; `found` then says where in it."""
        made: list[Piece] = []
        for group in self._groups.values():
            spans = [Layout.of(value).span() for _, value in group]
            begin = min(low for low, _ in spans) // ALIGNED * ALIGNED
            for k, value in group:
                layout = Layout.of(value)
                self.found[k] = InPiece(piece=len(made), layout=layout.moved(-begin // layout.dtype.itemsize))
            made.append(Piece(nbytes=max(high for _, high in spans) - begin, device=group[0][1].device))
        return made


@define(eq=False)
class _Block:
    """Memory of a piece, and who holds it."""

    storage: torch.UntypedStorage
    address: int
    nbytes: int
    tensors: list[torch.Tensor] = field(factory=list)
    ours: tuple[int, int] = (0, 0)

    def holders(self) -> tuple[int, int]:
        """References to the memory, and to the one storage object that Python has for it: `y.untyped_storage()`."""
        return use_count(self.storage._cdata), sys.getrefcount(self.storage)

    def is_held(self) -> bool:
        """Memory that its holder resized, moved or copied lazily is not ours any more."""
        if not self.nbytes:
            return False
        if any(map(is_lazy_copy, self.tensors)):
            return True
        if (self.storage.data_ptr(), self.storage.nbytes()) != (self.address, self.nbytes):
            return True
        (memory, name), (own_memory, own_name) = self.holders(), self.ours
        return memory > own_memory or name > own_name

    def is_read(self, spans: Sequence[tuple[int, int]]) -> bool:
        return any(low < self.address + self.nbytes and self.address < high for low, high in spans)


class ResultMemory:
    """Where one capture writes its results. `fill(values)` within the capture, then `count()`, then hand out."""

    def __init__(self, results: Results) -> None:
        self._outputs = [output for output in results.outputs if isinstance(output, InPiece)]
        self._at = [k for k, output in enumerate(results.outputs) if isinstance(output, InPiece)]
        with torch.inference_mode(False):
            self._bytes = [torch.empty(p.nbytes, dtype=torch.uint8, device=p.device) for p in results.pieces]
            self._blocks = [_Block(b.untyped_storage(), b.data_ptr(), b.numel()) for b in self._bytes]
            self._plain = [o.layout.over(self._blocks[o.piece].storage) for o in self._outputs]
        with torch.inference_mode():
            self._inference = [o.layout.over(self._blocks[o.piece].storage) for o in self._outputs]
        for output, tensor in zip(self._outputs, self._plain, strict=True):
            self._blocks[output.piece].tensors.append(tensor)
        alone = [sum(o.piece == output.piece for o in self._outputs) == 1 for output in self._outputs]
        self._whole = [one and _is_dense(o.layout) for one, o in zip(alone, self._outputs, strict=True)]
        """Results that `clone` copies as they lie."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All memory."""
        return self._bytes

    def fill(self, values: Sequence[Any]) -> None:
        """Put what a run returned where it belongs."""
        for k, output, mine in zip(self._at, self._outputs, self._plain, strict=True):
            value, wanted = values[k], output.layout
            got = Layout.of(value)
            if (got.dtype, got.shape, got.stride) != (wanted.dtype, wanted.shape, wanted.stride):
                raise CaptureError(
                    f"cannot capture output {k}: it was {wanted} in the first call of this signature and is {got} now, "
                    "so its form depends on data."
                )
            _flat(mine, wanted).copy_(_flat(value, wanted))

    def count(self) -> None:
        """Take the references that there are now for our own."""
        for block in self._blocks:
            block.ours = block.holders()

    def is_held(self) -> bool:
        """Whether a result of an earlier call, or a view of one, lives on."""
        return any(block.is_held() for block in self._blocks)

    def is_read(self, inputs: Sequence[Any]) -> bool:
        spans = [span_of(value) for value in inputs if isinstance(value, torch.Tensor) and value.numel()]
        return any(block.is_read(spans) for block in self._blocks)

    def themselves(self) -> list[torch.Tensor]:
        """The results where they lie, each in a tensor object of the caller's own."""
        tensors = self._inference if torch.is_inference_mode_enabled() else self._plain
        return [tensor.detach() for tensor in tensors]

    def copies(self) -> list[torch.Tensor]:
        """The results in new memory, which shares as theirs does."""
        copied: dict[int, torch.UntypedStorage] = {}
        made: list[torch.Tensor] = []
        for output, tensor, whole in zip(self._outputs, self._plain, self._whole, strict=True):
            if whole:
                made.append(tensor.clone())
                continue
            if output.piece not in copied:
                copied[output.piece] = self._bytes[output.piece].clone().untyped_storage()
            made.append(output.layout.over(copied[output.piece]))
        return made


def _flat(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """What of a tensor is copied: each element once, or its whole span where it overlaps itself."""
    once = layout.collapsed()
    if once.overlaps_itself():
        low, high = layout.span()
        return tensor.as_strided(((high - low) // layout.dtype.itemsize,), (1,))
    return tensor if once == layout else tensor.as_strided(once.shape, once.stride)


def _is_dense(layout: Layout) -> bool:
    """Its elements fill its span, each place once."""
    low, high = layout.span()
    elements = 1
    for size in layout.shape:
        elements *= size
    filled = high - low == elements * layout.dtype.itemsize
    return filled and not (layout.overlaps_itself() or layout.conj or layout.neg)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
