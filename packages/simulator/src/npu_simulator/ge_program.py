"""What runs in the place of a GE graph: the FX graph that TorchAir converted, and how GE's inputs become its arguments.

# Note [Cached GE graphs]
cache_compile saves a GE graph as text that TorchAir runs again in a later process; the FX graph is not in it. It is
kept in a file of its own beside that text, so that the text is what a device writes. The file is Python too, so it is
read under TorchAir's own condition for its neighbour: it belongs to the user, and no other may write or read it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from attrs import asdict, frozen
from torch.fx.graph_module import _format_import_block
from torch.package.importer import ObjMismatchError, ObjNotFoundError, sys_importer
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.ops import attention, npu

SUFFIX = ".fx"
"""`compiled_module.fx` lies beside `compiled_module`."""
WAIT = "air::wait_tensor"
SAME = {f"air::{name}": name for name in (attention.FIA, attention.FIA_V2)}
"""{TorchAir's operator: torch_npu's}: TorchAir's takes lengths as tensors, which only GE computes."""


class GraphOnly(TorchDispatchMode):
    """Values of the operators that TorchAir has for GE's graph alone, whose own kernels raise."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        name = func._schema.name if isinstance(func, torch._ops.OpOverload) else ""
        if name == WAIT:
            return args[0].clone()  # GE's Identity
        if name not in SAME:
            return func(*args, **given)
        numbers = {
            slot: value.tolist() for slot, value in given.items() if "seq" in slot and isinstance(value, torch.Tensor)
        }
        return npu.value(SAME[name])(*args, **{**given, **numbers})


@frozen(kw_only=True)
class GeProgram:
    """`run` takes GE's inputs and gives GE's outputs."""

    graph: Callable[..., Sequence[Any]]
    """The FX graph."""
    arity: int
    tensors: Mapping[int, int]
    """{argument of the FX graph: GE's input}; an input that the program does not need is in none of these."""
    numbers: Mapping[int, tuple[int, int | None]]
    """{argument: (GE's input, its place in it)}; without a place the input is the number."""
    sizes: Mapping[int, tuple[tuple[int, int], ...]]
    """{argument: (argument, dimension) of tensors that have this size}, of symbols that GE does not take."""
    empty: Mapping[int, tuple[str, tuple[int, ...]]]
    """{argument: (dtype, shape)} of tensors without elements that GE does not take: what they become is a constant."""
    outputs: Mapping[int, int]
    """{result of the FX graph: GE's output}."""
    results: int

    @classmethod
    def from_concrete(cls, concrete: Any) -> GeProgram:
        """Of TorchAir's GeConcreteGraph."""
        symbols = concrete._all_sym_input_idx
        tensors: dict[int, int] = {}
        numbers: dict[int, tuple[int, int | None]] = {}
        for number, info in enumerate(concrete._input_info_list):
            for place, index in enumerate(getattr(info.func, "fx_input_idx_list", ())):
                numbers[index] = (number, place)
            index = getattr(info.func, "fx_input_idx", None)
            if index is None:
                continue  # packed numbers, or the state of random numbers
            if index in symbols.values():
                numbers[index] = (number, None)
            else:
                tensors[index] = number
        metas = concrete._all_meta_tensor_input
        sizes = {i: _dimensions(expr, metas) for expr, i in symbols.items() if i not in numbers}
        return cls(
            graph=concrete._fx_graph,
            arity=len(concrete._fx_input_names),
            tensors=tensors,
            numbers=numbers,
            sizes=sizes,
            empty={i: _shape(meta) for i, meta in metas.items() if i not in tensors and 0 in meta.shape},
            outputs=dict(concrete._fx_outputs_mapping),
            results=len(concrete.graph.attr["_output_dtypes"].list.i),
        )

    def run(self, inputs: Sequence[Any], assigned: Sequence[Any] | None) -> list[Any]:
        with torch.no_grad(), GraphOnly():
            found = self.graph(*self.arguments(inputs))
        outputs = list(assigned) if assigned else [None] * self.results
        for mine, ge in self.outputs.items():
            outputs[ge] = found[mine]
        return outputs

    def arguments(self, inputs: Sequence[Any]) -> list[Any]:
        arguments: list[Any] = [None] * self.arity
        for index, number in self.tensors.items():
            arguments[index] = inputs[number]
        for index, (dtype, shape) in self.empty.items():
            arguments[index] = torch.empty(shape, dtype=getattr(torch, dtype))
        for index, (number, place) in self.numbers.items():
            arguments[index] = int(inputs[number] if place is None else inputs[number][place])
        for index, where in self.sizes.items():
            given = (arguments[t].shape[dimension] for t, dimension in where if arguments[t] is not None)
            arguments[index] = next(given, None)
        return arguments

    def save(self, file: Path, code: str) -> None:
        """`code` is the text that the program belongs to. TypeError where the graph holds what no file can."""
        graph: Any = self.graph
        text = graph.graph.python_code("self")
        held = (node.target for node in graph.graph.nodes if node.op in ("get_attr", "call_module"))
        kept = {name: _constant(graph, name) for name in held}
        values = {**asdict(self, recurse=False), "graph": None, "digest": digest(code), "constants": kept}
        try:
            values["source"] = _format_import_block(text.globals, sys_importer) + "\n" + text.src
        except (ObjNotFoundError, ObjMismatchError) as error:
            raise TypeError(f"the FX graph calls what cannot be imported: {error}") from error
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
            torch.save(values, opened)

    @classmethod
    def load(cls, file: Path, code: str) -> GeProgram | None:
        """None where the file is another text's."""
        status = file.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(f"{file} must belong to the user, and to no other (mode 600)")
        values = torch.load(file, weights_only=True)
        if values.pop("digest") != digest(code):
            return None
        names: dict[str, Any] = {}
        exec(compile(values.pop("source"), str(file), "exec"), names)
        graph = partial(names["forward"], SimpleNamespace(**values.pop("constants")))
        return cls(**{**values, "graph": graph})


def digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _dimensions(expression: Any, metas: Mapping[int, Any]) -> tuple[tuple[int, int], ...]:
    """(argument, dimension) wherever a tensor's size is the symbol."""
    return tuple(
        (index, dimension)
        for index, meta in metas.items()
        for dimension, size in enumerate(meta.shape)
        if not isinstance(size, int) and size.node.expr == expression
    )


def _shape(meta: Any) -> tuple[str, tuple[int, ...]]:
    """A size that is a symbol is that of the call which compiled: of no element there is nothing to lay out."""
    return str(meta.dtype).removeprefix("torch."), tuple(map(int, meta.shape))


def _constant(graph: Any, name: str) -> torch.Tensor:
    value = getattr(graph, name, None)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"the FX graph holds {name}, which is no tensor")
    return value
