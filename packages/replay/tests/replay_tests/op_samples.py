"""One operator of torch's own samples, captured once and replayed on other values: the same bytes, or the reason.

Used by test_op_db.py; `python -m replay_tests.op_samples NAME…` prints the verdicts of some operators, and without
names it prints what tests/golden/op_db.txt holds.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from npucompose.bits import same_bytes
from npucompose.errors import NpuComposeError

if TYPE_CHECKING:  # tests of the core take the samples, and may run without this package
    from npucompose_replay.captured_graph import CapturedGraph
    from npucompose_replay.executor.trial import ExecutorName

if importlib.util.find_spec("expecttest") is None:
    # The samples sit beside torch's test base class, which inherits from this package; nothing else of it is used.
    stand_in: Any = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
    sys.modules["expecttest"] = stand_in
from torch.testing._internal import common_methods_invocations, common_utils
from torch.testing._internal.opinfo import core

# It looks through the whole stack for a TestCase, which is nobody here: most of the time of a test.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

OK = "ok"
BY_NAME = {op.formatted_name: op for op in common_methods_invocations.op_db}

Call = tuple[list[torch.Tensor], Callable[..., Any]]
"""The tensors of one sample, and the operator as a function of them."""


def verdict(name: str, executor: ExecutorName = "native") -> str:
    """`ok`, `refused: …` (CaptureError), `no sample: …`, `not traceable: …`, `eager differs: …` or `WRONG: …`."""
    op = BY_NAME[name]
    if name in ("empty_like", "new_empty", "new_empty_strided"):
        return "eager differs: uninitialised memory has no value to compare"
    if torch.float32 not in op.supported_dtypes("cpu"):
        return "no sample: float32 is not supported on the CPU"
    from npucompose_replay.captured_graph import CapturedGraph

    try:
        calls = _calls(op)
    except Exception as error:  # noqa: BLE001 - a sample that torch itself cannot make is a reason to write down
        return f"no sample: {line_of(error)}"
    if calls is None:
        return "no sample: none has a tensor input and the same signature under three seeds"
    try:
        graph = _traced(*calls[0])
    except Exception as error:  # noqa: BLE001 - see above
        return f"not traceable: {line_of(error)}"
    try:
        captured = CapturedGraph.capture(graph, calls[0][0], executor=executor)
    except NpuComposeError as error:
        return f"refused: {line_of(error)}"
    for seed, (tensors, function) in ((42, call) for call in calls[1:]):
        problem = _compare(captured, graph, tensors, function, seed)
        if problem:
            return problem
    return OK


def _compare(
    captured: CapturedGraph, graph: Any, tensors: list[torch.Tensor], function: Callable[..., Any], seed: int
) -> str:
    mine, theirs, traced = ([t.clone(memory_format=torch.preserve_format) for t in tensors] for _ in range(3))
    try:
        torch.default_generator.manual_seed(seed)
        expected = [*tree_flatten(function(*theirs))[0], *theirs]
    except Exception as error:  # noqa: BLE001 - see above
        return f"no sample: eager fails on other values: {line_of(error)}"
    torch.default_generator.manual_seed(seed)
    try:
        got = [*captured.replay(*mine), *mine]
    except NpuComposeError as error:
        return f"refused: {line_of(error)}"
    if equal(got, expected):
        return ""
    torch.default_generator.manual_seed(seed)
    as_traced = [*graph(*traced), *traced]
    if equal(got, as_traced):
        return "eager differs: the traced graph, run without capture, gives other bits than the operator too"
    if not equal(as_traced, expected) or not _repeatable(function, tensors, seed):
        return "eager differs: the operator gives other bits each time"
    return "WRONG: replay differs from eager"


def _repeatable(function: Callable[..., Any], tensors: list[torch.Tensor], seed: int) -> bool:
    runs = []
    for _ in range(2):
        torch.default_generator.manual_seed(seed)
        runs.append(tree_flatten(function(*(t.clone() for t in tensors)))[0])
    return equal(*runs)


def equal(got: Sequence[Any], expected: Sequence[Any]) -> bool:
    if len(got) != len(expected):
        return False
    for a, b in zip(got, expected, strict=True):
        if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
            return False
        if isinstance(a, torch.Tensor):
            if not same_bytes(a, b):
                return False
        elif a != b and not (a != a and b != b):
            return False
    return True


def _calls(op: Any) -> list[Call] | None:
    """The first sample in float32 that has numbers in it."""
    found = families(op, torch.float32, 8)
    return next((calls for calls in found if any(tensor.numel() for tensor in calls[0][0])), None)


def families(op: Any, dtype: torch.dtype, most: int, seeds: int = 3) -> Iterator[list[Call]]:
    """Of the first samples of an operator those that have one form under all seeds, each under these seeds: tensors of
    the same forms with other values, and everything else is equal."""
    generators = []
    for seed in range(seeds):
        torch.default_generator.manual_seed(seed)
        generators.append(list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), most)))
    for samples in zip(*generators, strict=False):
        leaves = [tree_flatten((s.input, s.args, s.kwargs)) for s in samples]
        forms = {(str(spec), tuple(_form(leaf) for leaf in flat)) for flat, spec in leaves}
        if len(forms) == 1:
            yield [call_of(op, flat, spec) for flat, spec in leaves]


def _form(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return (leaf.dtype, tuple(leaf.shape), tuple(leaf.stride()), leaf.layout)
    return repr(leaf)


def call_of(op: Any, flat: list[Any], spec: Any) -> Call:
    places = [i for i, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        leaves = list(flat)
        for i, tensor in zip(places, tensors, strict=True):
            leaves[i] = tensor
        head, args, kwargs = tree_unflatten(leaves, spec)
        return op(head, *args, **kwargs)

    return [flat[i] for i in places], function


def _traced(tensors: list[torch.Tensor], function: Callable[..., Any]) -> torch.fx.GraphModule:
    """An aten graph with a flat tuple of outputs; in-place only copy_ to inputs, as AOTAutograd gives it."""

    def flat(*given: torch.Tensor) -> tuple[Any, ...]:
        return tuple(tree_flatten(function(*given))[0])

    copies = [t.clone(memory_format=torch.preserve_format) for t in tensors]
    torch.default_generator.manual_seed(0)
    with torch.no_grad():
        return make_fx(torch.func.functionalize(flat, remove="mutations"))(*copies)


def line_of(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return re.sub(r"0x[0-9a-f]+", "…", text)[:110].rstrip()


def main(names: Sequence[str]) -> None:
    """Verdicts of `names`; without any, those that tests/golden/op_db.txt holds: of every operator that is not `ok`."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in names or sorted(BY_NAME):
        text = verdict(name)
        if names or text != OK:
            print(f"{name}: {text}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
