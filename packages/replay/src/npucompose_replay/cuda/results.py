"""Where the results of a CUDA graph lie, and who holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch import fx

from npucompose.errors import CaptureError
from npucompose.graphs import Aliases
from npucompose_replay.capture.recorder import attribute
from npucompose_replay.memory.results import ResultBytes, Static, handed_out
from npucompose_replay.operands import StorageLayout, layout_of, relative
from npucompose_replay.plan import Elsewhere, Literally, SameAsInput, SameAsOutput, ViewOfInput


@frozen(kw_only=True)
class Piece:
    """Memory of results that share theirs: in eager a write to one is seen in the other, and so it is here."""

    nbytes: int
    device: torch.device


@frozen(kw_only=True)
class InPiece:
    """An output that the graph makes: a tensor over piece `piece`."""

    piece: int
    layout: StorageLayout


CudaOutput = Elsewhere | InPiece


@frozen(kw_only=True, eq=False)
class Results:
    """How each output of a graph goes out, found on a run of it on real values."""

    outputs: tuple[CudaOutput, ...]
    pieces: tuple[Piece, ...]

    @classmethod
    def from_run(
        cls, graph_module: fx.GraphModule, aliases: Aliases, inputs: Sequence[Any], values: Sequence[Any]
    ) -> Results:
        """`values` is what the graph made of `inputs`."""
        finder = _Finder(graph_module=graph_module, aliases=aliases, inputs=inputs)
        finder.found = [finder.output(k, values) for k in range(len(values))]
        pieces = finder.pieces()
        return cls(outputs=tuple(finder.found), pieces=tuple(pieces))

    def handed_out(self, inputs: Sequence[Any], made: Sequence[torch.Tensor]) -> list[Any]:
        """All outputs of a call, `made` for those that are InPiece, in order."""
        rest = iter(made)
        handed: list[Any] = []
        for output in self.outputs:
            handed.append(next(rest) if isinstance(output, InPiece) else handed_out(output, inputs, handed))
        return handed


@define(kw_only=True, eq=False)
class _Finder:
    graph_module: fx.GraphModule
    aliases: Aliases
    inputs: Sequence[Any]
    _groups: dict[int, list[tuple[int, torch.Tensor]]] = field(factory=dict)
    """{address of a storage: the (output, value) that lie in it}"""
    found: list[CudaOutput] = field(init=False)

    def output(self, k: int, values: Sequence[Any]) -> CudaOutput:
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
        return InPiece(piece=-1, layout=layout_of(value))

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
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        return [value for value in tensors if value.layout is torch.strided and value.numel()]

    def pieces(self) -> list[Piece]:
        """One for each storage that results lie in; `found` then says where in it, which is where they lay: AOTAutograd
        makes views of other tensors by the offset of a result."""
        made: list[Piece] = []
        for group in self._groups.values():
            layouts = [layout_of(value) for _, value in group]
            for (k, _), layout in zip(group, layouts, strict=True):
                self.found[k] = InPiece(piece=len(made), layout=layout)
            made.append(Piece(nbytes=max(one.span()[1] for one in layouts), device=group[0][1].device))
        return made


class ResultMemory:
    """Where one capture writes its results. `fill(values)` within the capture, then `count()`, then hand out."""

    def __init__(self, results: Results) -> None:
        self._outputs = [output for output in results.outputs if isinstance(output, InPiece)]
        self._at = [k for k, output in enumerate(results.outputs) if isinstance(output, InPiece)]
        with torch.inference_mode(False):
            self.tensors = [torch.empty(p.nbytes, dtype=torch.uint8, device=p.device) for p in results.pieces]
        """All memory."""
        self._memory = list(map(ResultBytes, self.tensors))
        self._statics = [Static(o.piece, o.layout).lay(self._memory[o.piece].storage) for o in self._outputs]
        self._laid = [[s.tensor for s in self._statics if s.buffer == piece] for piece in range(len(self._memory))]
        """In each piece."""

    def fill(self, values: Sequence[Any]) -> None:
        """Put what a run returned where it belongs."""
        for k, output, mine in zip(self._at, self._outputs, self._statics, strict=True):
            value, wanted = values[k], output.layout
            got = layout_of(value)
            if (got.dtype, got.shape, got.stride) != (wanted.dtype, wanted.shape, wanted.stride):
                raise CaptureError(
                    f"cannot capture output {k}: it was {wanted} in the first call of this signature and is {got} now, "
                    "so its form depends on data."
                )
            _flat(mine.tensor, wanted).copy_(_flat(value, wanted))

    def count(self) -> None:
        """Take the references that there are now for our own."""
        for memory in self._memory:
            memory.count()

    def is_held(self) -> bool:
        """Whether a result of an earlier call, or a view of one, lives on."""
        return any(memory.is_held(laid) for memory, laid in zip(self._memory, self._laid, strict=True))

    def is_read(self, inputs: Sequence[Any]) -> bool:
        return any(memory.is_read(inputs) for memory in self._memory)

    def themselves(self) -> list[torch.Tensor]:
        """The results where they lie, each in a tensor object of the caller's own."""
        return [static.given_out() for static in self._statics]

    def copies(self) -> list[torch.Tensor]:
        """The results in new memory, which shares as theirs does."""
        copied: dict[int, torch.UntypedStorage] = {}
        made: list[torch.Tensor] = []
        for static in self._statics:
            if static.buffer not in copied:
                copied[static.buffer] = self.tensors[static.buffer].clone().untyped_storage()
            made.append(static.layout.over(copied[static.buffer]))
        return made


def _flat(tensor: torch.Tensor, layout: StorageLayout) -> torch.Tensor:
    """What of a tensor is copied: each element once, or its whole span where it overlaps itself."""
    once = layout.collapsed()
    if once.overlaps_itself():
        low, high = layout.span()
        return tensor.as_strided(((high - low) // layout.dtype.itemsize,), (1,))
    return tensor if once == layout else tensor.as_strided(once.shape, once.stride)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
