"""Run in a process of its own: each capture program inside torch.npu.graph on the simulated runtime, in a fork."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch

from npu_simulator import install
from npu_simulator.captures import RefusingRuntime
from npucompose.targets.npu_offline import wheel
from simulator_tests.alias_device import alias_device
from tests.capture.programs import Program, programs


def captured(program: Program, device: Any) -> dict[str, Any]:
    """What was raised, the first error first, and what the capture noted."""
    npu: Any = torch.npu  # pyright: ignore[reportAttributeAccessIssue]
    with alias_device(device):
        x = torch.arange(16.0, device="npu").view(4, 4) - 5
        call = program.made()
    graph, stream = npu.NPUGraph(), npu.Stream()
    errors: list[str] = []
    threading.excepthook = lambda given: errors.extend(chain(given.exc_value))
    again = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with npu.graph(graph, stream=stream, capture_error_mode=program.mode), alias_device(device):
                call(x)
        except Exception as caught:  # noqa: BLE001  what a program raises is the answer
            errors += chain(caught)
    noted = list(graph._recording.outside)
    if errors:
        again = capture_again(npu)
    else:
        graph.replay()
    return answer(errors, noted, again, [str(one.message) for one in warned if "error code" in str(one.message)])


def answer(
    errors: Sequence[str], noted: Sequence[str] = (), again: str | None = None, warned: Sequence[str] = ()
) -> dict[str, Any]:
    """What is printed of one program; `again`: why no capture works behind it."""
    return {"errors": errors, "noted": noted, "again": again, "warned": warned}


def chain(error: BaseException | None) -> list[str]:
    """The error, and before it those while whose handling it came: the end of a capture fails behind a mistake."""
    if error is None:
        return []
    return [*chain(error.__cause__ or error.__context__), f"{type(error).__name__}: {error}"]


def capture_again(npu: Any) -> str | None:
    """After a failed capture the next one works; what it raises otherwise."""
    y = torch.zeros(2)
    graph = npu.NPUGraph()
    try:
        with npu.graph(graph):
            z = y + 1
        graph.replay()
        assert z.tolist() == [1, 1]
    except Exception as caught:  # noqa: BLE001
        return f"{type(caught).__name__}: {caught}"
    return None


def forked(program: Program, device: Any, controlled: bool) -> dict[str, Any]:
    """In a process of its own: a capture that stays open is gone with it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            if controlled:
                without(program.rule)
            found = captured(program, device)
        except BaseException as error:  # noqa: BLE001
            found = answer(["outside the capture", *chain(error)])
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else answer(["the process ended"])


def without(rule: str | None) -> None:
    """The runtime no longer knows the rule."""
    refuse = RefusingRuntime.refuse

    def all_others(self: Any, name: str, *said: Any, **more: Any) -> None:
        if name != rule:
            refuse(self, name, *said, **more)

    RefusingRuntime.refuse = all_others  # type: ignore[method-assign]


def main(what: str, *names: str) -> None:
    """`run NAME…`, or `control NAME…`: each without the rule that it breaks."""
    torch.set_num_threads(1)
    device = install(wheel.locate())
    chosen = [programs()[name] for name in names or programs()]
    print(json.dumps({program.name: forked(program, device, what == "control") for program in chosen}))


if __name__ == "__main__":
    main(*sys.argv[1:])
