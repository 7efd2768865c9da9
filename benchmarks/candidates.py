"""Every way to run a model that the table of docs/performance.md compares: how each is made, ready to be called.

A candidate is a function of a Subject that returns something to call with the model's inputs. What it cannot do it
says with `Unavailable`, in words for a cell of the table; whatever else a library raises is told in its first line.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from floor import Floor
from rivals import RIVALS
from subject import Ready, Subject
from torch._inductor import config as inductor_config

import npucompose
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor.native import Native
from npucompose_replay.operands import storage_of
from npucompose_replay.packed_weights import packed_in
from npucompose_replay.plan import Plan


def eager(subject: Subject) -> Ready:
    module = subject.own()
    return Ready(call=module, module=module)


def by_torch(subject: Subject, backend: str = "inductor", **options: Any) -> Ready:
    module = subject.own()
    compiled = torch.compile(module, fullgraph=True, dynamic=False, backend=backend, options=options or None)
    return Ready(call=compiled, module=module)


def frozen_by_torch(subject: Subject) -> Ready:
    """What `max-autotune` starts from, by torch alone. Dynamo looks at the switch while it traces, so it is on then."""
    module = subject.own()
    options: dict[str, Any] = {"max_autotune": True, "freezing": True}
    compiled = torch.compile(module, fullgraph=True, dynamic=False, options=options)
    with inductor_config.patch(freezing=True):
        compiled(*subject.inputs)
    return Ready(call=compiled, module=module)


def ours(subject: Subject, *overrides: str) -> Ready:
    """Through torch.compile, with everything that keeps a call safe."""
    module = subject.own()
    return Ready(call=npucompose.compile(module, *overrides), module=module)


def detached(subject: Subject, *overrides: str) -> Ready:
    """The recording itself, behind its own front."""
    module = subject.own()
    handle = npucompose.compile(module, *overrides).detach(*subject.inputs)
    captured = handle.captured
    assert isinstance(captured, CapturedGraph)
    floor = None
    if isinstance(captured.executor, Native):
        floor = _floor_of(captured, handle.inputs_of(*subject.inputs))
    pool, packed = captured.facts()["pool_bytes"], packed_bytes(captured.plan, module)
    return Ready(call=handle, module=module, pool_bytes=pool, packed_bytes=packed, floor=floor)


def _floor_of(captured: CapturedGraph, inputs: Sequence[Any]) -> Callable[[], float]:
    """Measures it once; its copy of the recording is made at the first time, for the candidate holds none."""
    floor = cache(lambda: Floor(captured, inputs))
    return lambda: floor().microseconds()


def packed_bytes(plan: Plan, module: torch.nn.Module) -> int:
    """What the weights take that a recording keeps beside the module's own: folded, or packed for a library."""
    own = {storage_of(tensor) for tensor in (*module.parameters(), *module.buffers())}
    kept = {storage_of(root.contents): root.nbytes for root in plan.roots if root.kind == "attribute"}
    return sum(nbytes for storage, nbytes in kept.items() if storage not in own) + sum(
        torch.ops.mkldnn._nbytes(weight) for weight in packed_in(plan)
    )


def aot_inductor(subject: Subject) -> Ready:
    module = subject.own()
    with tempfile.TemporaryDirectory() as folder:
        exported = torch.export.export(module, subject.inputs)
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(Path(folder) / "model.pt2"))
        return Ready(call=torch._inductor.aoti_load_package(package))


def _detached(*overrides: str) -> Callable[[Subject], Ready]:
    return lambda subject: detached(subject, *overrides)


def _ours(*overrides: str) -> Callable[[Subject], Ready]:
    return lambda subject: ours(subject, *overrides)


DETACHED = "npucompose, detached"
MAX_AUTOTUNE = "npucompose max-autotune"
WRAPPED = MAX_AUTOTUNE, f"{MAX_AUTOTUNE}, cpp_wrapper"
"""Inductor's own wrappers around the same kernels."""
RECOMMENDED = f"{MAX_AUTOTUNE}, detached"
EAGER, AOT_INDUCTOR = "eager", "AOTInductor"
INDUCTOR, CPP_WRAPPER, FROZEN = "Inductor", "Inductor cpp_wrapper", "Inductor max-autotune, frozen"
CANDIDATES: Mapping[str, Callable[[Subject], Ready]] = {
    EAGER: eager,
    "aot_eager": partial(by_torch, backend="aot_eager"),
    "npucompose, portable": _detached("mode=reduce-overhead", "target.executor=portable"),
    "npucompose, torch.compile": _ours("mode=reduce-overhead", "target.executor=native"),
    DETACHED: _detached("mode=reduce-overhead", "target.executor=native"),
    INDUCTOR: by_torch,
    CPP_WRAPPER: partial(by_torch, cpp_wrapper=True),
    FROZEN: frozen_by_torch,
    WRAPPED[0]: _ours("mode=max-autotune", "inductor.replay=wrapper"),
    WRAPPED[1]: _ours("mode=max-autotune", "inductor.cpp_wrapper=true"),
    RECOMMENDED: _detached("mode=max-autotune"),
    AOT_INDUCTOR: aot_inductor,
    **RIVALS,
}
"""In the order of the table; npucompose is native where nothing else is said."""
OTHERS = (INDUCTOR, CPP_WRAPPER, FROZEN, AOT_INDUCTOR, *RIVALS)
"""All that npucompose is compared with."""
