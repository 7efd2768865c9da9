"""What a simulated capture says of each call that a model may make: one page of calls, with what is refused of them."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from npucompose.npu.capture.simulated.devices import simulated
from npucompose.npu.capture.simulated.machine import Places, SimulatedMachine, place_of_device
from npucompose.npu.capture.simulated.runtime import CaptureRuntime
from npucompose.npu.capture.simulated.watch import called, watching

COPIES = """
r = x.cpu()
r = h.cpu()
r = x.tolist()
r = h.tolist()
r = x.numpy().shape
r = x.cuda()
r = h.cuda()
r = h.cuda(non_blocking=True)
r = p.cuda(non_blocking=True)
r = h.to("npu")
r = h.to("npu:0", torch.float64)
r = h.to("npu", torch.float64, True)
r = h.to("npu", non_blocking=True)
r = p.to("npu", non_blocking=True)
r = h.to(device="cuda")
r = h.to(x)
r = x.to(h)
r = x.to("cpu")
r = x.to("cpu", non_blocking=True)
r = x.to("npu")
r = x.to(torch.float64)
r = h.to(torch.float64)
r = h.to("cpu", torch.float64)
r = x.to(x.device)
r = x.device, h.device, h.to("npu").device
r = h.pin_memory()
r = h.is_pinned(), p.is_pinned(), x.is_pinned()
r = x.copy_(h)
r = x.copy_(h, True)
r = x.copy_(p, True)
r = x.copy_(p, non_blocking=True)
r = x.copy_(h[0, 0])
r = h.copy_(x)
r = p.copy_(x, True)
r = h[0, 0].copy_(x[0, 0])
r = x.copy_(x + 1)
r = h.copy_(h + 1)
"""
MADE = """
r = torch.zeros(2)
r = torch.zeros(2, device="cpu")
r = torch.zeros(2, device="npu")
r = torch.zeros(2, device=x.device)
r = torch.zeros(2, pin_memory=True)
r = torch.zeros(2, device="npu", pin_memory=True)
r = torch.empty(2, device="npu")
r = torch.arange(3, device="npu") + 1
r = torch.zeros_like(x)
r = torch.zeros_like(h)
r = x.new_zeros(2)
r = x.new_empty(2)
r = torch.tensor([1, 2])
r = torch.tensor([1, 2], device="npu")
r = torch.tensor([1, 2], device="cpu")
r = torch.tensor([1, 2], pin_memory=True)
r = torch.as_tensor(h)
r = torch.as_tensor(x)
r = torch.as_tensor(h, device="npu")
r = torch.as_tensor(x, device="npu")
r = torch.as_tensor([1.0], device="npu")
r = torch.asarray([1.0])
r = x.new_tensor([1.0])
r = h.new_tensor([1.0])
r = h.new_tensor([1.0], device="npu")
r = x.new_tensor([1.0], device="cpu")
r = torch.nn.functional.one_hot(i)
r = torch.nn.functional.one_hot(i, 4)
r = torch.nn.functional.one_hot(i, num_classes=4)
r = torch.rand(2, device="npu", generator=g)
r = torch.rand(2, device="npu", generator=torch.default_generator)
r = torch.bernoulli(x / 16, generator=g)
"""
KERNELS = """
r = x + 1
r = x.t()
r = h + 1
r = x + h
r = x + h[0, 0]
r = x[0] * 2
r = x.max().item()
r = bool(x.sum() > 0)
r = h.max().item()
r = torch.equal(x, x)
r = torch.equal(h, h)
r = str(x.sum())
r = f"{x.sum()}"
r = str(h.sum())
r = torch.nonzero(x)
r = torch.nonzero(h)
r = x[x > 0]
r = x[i]
r = x[i.cpu()]
r = x[h.long()[0]]
r = x.masked_fill(x > 0, 0.0)
x[x > 0] = 1.0
x[x > 0] = x[x > 0].clone()
x[i] = 1.0
x[h.long()[0]] = 1.0
r = torch.index_put(x, (i,), x[0])
x.resize_(2, 2)
x.set_(x.clone())
r = torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))
r = torch.cond(False, lambda y: y + 1, lambda y: y - 1, (x,))
r = torch.manual_seed(1) is None
r = twice(x)
"""
STREAMS = """
torch.npu.synchronize()

torch.cuda.synchronize()

torch.npu.empty_cache()

r = torch.npu.is_current_stream_capturing(), torch.npu.is_available(), torch.npu.device_count()

r = torch.npu.current_device(), torch.npu.set_device(0), torch.npu.graph_pool_handle()

torch.npu.manual_seed(1)

torch.cuda.manual_seed_all(1)

side = torch.npu.Stream()
with torch.npu.stream(side):
    r = x + 1

side = torch.npu.Stream()
side.wait_stream(torch.npu.current_stream())
with torch.npu.stream(side):
    r = x + 1

side = torch.npu.Stream()
side.wait_stream(torch.npu.current_stream())
with side:
    r = x + 1
torch.npu.current_stream().wait_stream(side)
r = r + 1

with torch.npu.stream(None):
    r = x + 1

with torch.npu.stream(torch.npu.default_stream()):
    r = x + 1

side = torch.npu.Stream()
torch.npu.set_stream(side)
r = x + 1

event = torch.npu.current_stream().record_event()
side = torch.npu.Stream()
side.wait_event(event)
with torch.npu.stream(side):
    r = x + 1
    event.record()
event.wait()
r = r + 1

side = torch.npu.Stream()
event = side.record_event()
torch.npu.current_stream().wait_event(event)

torch.npu.Event().wait()

event = torch.npu.ExternalEvent()
event.record(torch.npu.Stream())
event.wait()
event.reset()

event = torch.npu.Event(graph_external=True)
event.record(torch.npu.Stream())
event.wait()

event = torch.npu.Event(external=True)
event.record(torch.npu.Stream())
event.wait()

event = torch.npu.Event()
event.record(torch.npu.default_stream())

event = torch.npu.current_stream().record_event()
event.wait(torch.npu.default_stream())

event = torch.npu.current_stream().record_event()
r = event.query()
event.synchronize()

event = torch.npu.Event()
r = event.query()
event.synchronize()

r = torch.npu.current_stream().query()
torch.npu.current_stream().synchronize()

side = torch.npu.Stream()
r = side.query()
side.synchronize()

graph = torch.npu.NPUGraph()
graph.capture_begin()
graph.capture_end()

with torch.npu.stream(torch.npu.Stream()):
    torch.npu.NPUGraph().capture_end()

torch.npu.NPUGraph().replay()

with torch.npu.graph(torch.npu.NPUGraph()):
    r = x + 1

stream = torch.npu.current_stream()
torch.npu.graph_task_group_begin(stream)
r = x + 1
torch.npu.graph_task_group_end(stream)

torch.npu.graph_task_group_end(torch.npu.current_stream())

torch.npu.graph_task_group_begin(torch.npu.current_stream())

stream = torch.npu.current_stream()
torch.npu.graph_task_group_begin(stream)
torch.npu.graph_task_group_begin(stream)
torch.npu.graph_task_group_end(None)

torch.npu.graph_task_group_begin(torch.npu.Stream())

torch.npu.graph_task_update_begin(torch.npu.current_stream(), 1)
torch.npu.graph_task_update_end(None)

torch.npu.graph_task_update_begin(torch.npu.Stream(), 1)

torch.npu._subscribe_report(0)
torch.npu._launch_host_func(None, print)
torch.npu._unsubscribe_report(0)
"""
COLLECTIVES = """
torch.distributed.all_reduce(x)
r = x + 1

work = torch.distributed.all_reduce(x, async_op=True)
r = x + 1

work = torch.distributed.all_reduce(x, async_op=True)
r = work.wait()

work = torch.distributed.all_gather_into_tensor(x, x, async_op=True)
r = work.is_completed()
work.wait()

work = torch.distributed.isend(x, 0)

work = torch.distributed.irecv(x, 0)
r = work.wait()

torch.distributed.send(x, 0)

torch.distributed.barrier()

r = torch.distributed.get_rank(), torch.distributed.get_world_size(), torch.distributed.is_initialized()

with torch.npu.stream(torch.npu.Stream()):
    torch.distributed.all_reduce(x)
"""
THREADS = """
thread(lambda: x.cpu())

thread(lambda: x.sum().item())

thread(lambda: x + 1)

thread(lambda: torch.nonzero(x))

r = len((x.cpu(), h.cuda(non_blocking=True), x.sum().item()))
"""


@torch.library.custom_op("watched_calls::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return (x + x.max().item()).clone()


def page(code: str, mode: Any = "global") -> str:
    """The code, what came of it, what was refused, and how many tasks each stream has."""
    import threading

    def thread(act: Callable[[], object]) -> None:
        started = threading.Thread(target=act)
        started.start()
        started.join()

    torch.manual_seed(0)
    machine = SimulatedMachine(CaptureRuntime(mode=mode))
    linecache.cache["model.py"] = (len(code), None, code.splitlines(keepends=True), "model.py")
    names: dict[str, Any] = {"torch": torch, "g": torch.Generator(), "twice": twice, "thread": thread}
    with simulated(machine):
        names |= {"x": torch.arange(16.0).reshape(4, 4), "i": torch.tensor([0, 2])}
        names |= {"h": torch.ones(4, 4), "p": torch.ones(4, 4)}
        machine.places.moved(nn.Module())
        machine.places.put(names["h"], "host")
        machine.places.put(names["p"], "pinned")
        why_not = called(machine, lambda: exec(compile(code, "model.py", "exec"), names))
    del linecache.cache["model.py"]
    lines = [textwrap.indent(code.strip(), ">>> ", lambda _: True)]
    if "r" in names:
        made = names["r"]
        lines.append(f"    {machine.places.of(made)}" if isinstance(made, torch.Tensor) else f"    {made!r}")
    for one in machine.runtime.refusals:
        file, _, where = (one.source or "nowhere").partition(" ")[0].partition(":")
        where = where if file == "model.py" else file
        lines.append(f"    {one.rule}{'' if one.sure else ' (perhaps)'}: {one.what} @ {where}")
    if why_not is not None:
        lines.append(f"    not to its end: {why_not}")
    used = sorted(line.partition(" ")[0].removeprefix("model.py:") for line in machine.used)
    tasks = ", ".join(f"{count} on stream {stream}" for stream, count in sorted(machine.runtime.tasks.items()))
    lines.append(f"    tasks: {tasks or 'none'}{f'; lines that are not traced: {chr(32).join(used)}' if used else ''}")
    return "\n".join(lines)


@pytest.mark.parametrize("name", ["copies", "made", "kernels"])
def test_what_is_said_of_each_call_of_torch(name: str, golden: Callable[[str, str], None]) -> None:
    calls = {"copies": COPIES, "made": MADE, "kernels": KERNELS}[name].strip().splitlines()
    golden(f"capture/calls_{name}.txt", "\n".join(map(page, calls)) + "\n")


@pytest.mark.parametrize("name", ["streams", "collectives"])
def test_what_is_said_of_streams_and_collectives(name: str, golden: Callable[[str, str], None]) -> None:
    parts = {"streams": STREAMS, "collectives": COLLECTIVES}[name].strip().split("\n\n")
    golden(f"capture/calls_{name}.txt", "\n\n".join(map(page, parts)) + "\n")


def test_what_the_modes_say_of_two_threads(golden: Callable[[str, str], None]) -> None:
    pages = [
        f"# {mode}\n" + "\n".join(page(code, mode) for code in THREADS.strip().split("\n\n"))
        for mode in ("global", "thread_local", "relaxed")
    ]
    golden("capture/calls_threads.txt", "\n\n".join(pages) + "\n")


@pytest.mark.parametrize(
    ("device", "place"),
    [(None, None), ("cpu", "host"), ("npu", "device"), ("npu:1", "device"), ("cuda", "device"), (0, "device"),
     ("privateuseone:0", "device"), ("meta", "host"), (torch.device("cpu"), "host"),
     (torch.device("cpu", 0), "device")],
)  # fmt: skip
def test_a_device_is_a_place(device: Any, place: str | None) -> None:
    assert place_of_device(device) == place


def test_a_copy_to_the_other_side_is_a_tensor_of_its_own() -> None:
    machine = SimulatedMachine(CaptureRuntime())
    weight = nn.Parameter(torch.ones(2))
    with simulated(machine), watching(machine):
        copied = weight.cpu()
    assert (copied.requires_grad, copied.grad_fn) == (False, None)
    assert copied.data_ptr() != weight.data_ptr()


def test_what_a_model_holds_goes_with_it_and_what_lies_beside_stays() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("buffer", torch.ones(2))
            self.view = self.buffer[:1]  # type: ignore[index]
            self.plain, self.made = torch.ones(2), torch.ones(2)
            self.listed = {"a": [torch.ones(2)], "b": "text"}
            self.inner = nn.ModuleList([nn.Linear(2, 2)])
            self.inner[0].scale = torch.ones(2)

    model, places = Model(), Places()
    places.put(model.weight, "host")
    places.put(model.buffer, "pinned")
    places.put(model.made, "device")
    places.moved(model)
    assert [places.of(one) for one in (model.weight, model.buffer, model.view, model.made)] == ["device"] * 4  # type: ignore[arg-type]
    inner: Any = model.inner[0]
    assert [places.of(one) for one in (model.plain, model.listed["a"][0], inner.scale)] == ["host"] * 3  # type: ignore[arg-type]
    assert places.of(inner.weight) == "device"
    assert places.of(torch.eye(2).to_sparse()) == "device"
    places.put(model.plain, "device")
    assert not places.on_host(model.plain)
