"""Run as a process of its own, on either platform: what TorchAir's generated code calls of torch.npu, in order.

`watched.py TARGET updates MODE` is one model with three lengths, `watched.py TARGET order MODE` a plan of two streams.
One line of JSON: {"calls": ["capture graph 1", "record event 1 on stream 2", "replay graph 1", …], …}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from npucompose import api
from npucompose.compose.session import Session


def watch(calls: list[str]) -> None:
    """Wrap the calls that record, replay, update and order; nothing of them is changed."""
    npu: Any = torch.npu  # type: ignore[attr-defined]
    numbers: dict[int, int] = {}
    kept: list[Any] = []

    def number(of: Any) -> int:
        kept.append(of)  # so that no other object gets its id
        return numbers.setdefault(id(of), len(numbers) + 1)

    def on(stream: Any) -> str:
        return f"stream {(stream or npu.current_stream()).stream_id}"

    _before(npu, "graph", lambda graph, *_, **__: calls.append(f"capture graph {number(graph)}"))
    _before(npu, "graph_task_update_begin", lambda *_: calls.append("update task"))
    _before(npu.NPUGraph, "replay", lambda graph: calls.append(f"replay graph {number(graph)}"))
    _before(npu.Event, "record", lambda e, s=None: calls.append(f"record event {number(e)} on {on(s)}"))
    _before(npu.Event, "wait", lambda e, s=None: calls.append(f"wait event {number(e)} on {on(s)}"))


def _before(owner: Any, name: str, tell: Callable[..., None]) -> None:
    genuine = getattr(owner, name)

    def told(*args: Any, **kwargs: Any) -> Any:
        tell(*args, **kwargs)
        return genuine(*args, **kwargs)

    setattr(owner, name, told)


def updates(target: str, mode: str) -> dict[str, Any]:
    from simulator_tests.three_replays import wrong_steps

    return {"wrong": wrong_steps(mode, target)}


def order(target: str, mode: str) -> dict[str, Any]:
    session = Session(
        api.checked([*_chosen(target, mode), "model=mm_abs_sub", "passes=stream_plan", "streams=mm_abs_sub"])
    )
    got, wanted = (session.call(f, session.inputs(0)) for f in (session.compiled, session.reference))
    (compilation,) = session.compilations
    return {"equal": torch.equal(got, wanted), "events": len(compilation.plan.events)}


def _chosen(target: str, mode: str) -> list[str]:
    return [f"target={target}", f"mode={mode}"]


def main(target: str, what: str, mode: str) -> None:
    api.checked(_chosen(target, mode)).target.prepare(mode)
    calls: list[str] = []
    watch(calls)
    found = {"updates": updates, "order": order}[what](target, mode)
    print("\n" + json.dumps({**found, "calls": calls}))


if __name__ == "__main__":
    main(*sys.argv[1:])
