"""One compilation on the NPU, observed: what run_kit.py starts a process of its own for, each time.

Needs torch and torch_npu, nothing else.
"""

# ruff: noqa: B905  a host may have Python 3.9, whose zip has no `strict`

from __future__ import annotations

import copy
import csv
import importlib
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
LAST = 400


class CallCounter:
    """Counts what TorchAir calls of torch.npu. Each call is passed on as it is."""

    def __init__(self) -> None:
        self.counts = {"captures": 0, "replays": 0, "task_updates": 0, "records": 0, "waits": 0}
        self.streams: set[int] = set()
        self.ordered = 0
        self.ge_options: list[dict[str, str]] = []
        self.labels: set[str] = set()
        self._recorded: dict[int, int] = {}
        self._kept: list[Any] = []

    def begin(self) -> None:
        npu: Any = torch.npu  # type: ignore[attr-defined]
        self._wrap(npu, "graph", lambda *_, **__: self._count("captures"))
        self._wrap(npu, "graph_task_update_begin", lambda *_, **__: self._count("task_updates"))
        self._wrap(getattr(npu, "NPUGraph", None), "replay", lambda *_, **__: self._count("replays"))
        self._wrap(npu.Event, "record", self._record)
        self._wrap(npu.Event, "wait", self._wait)
        self._watch_ge()

    def _wrap(self, owner: Any, name: str, note: Callable[..., None]) -> None:
        genuine = getattr(owner, name, None)
        if genuine is None:
            return

        def noted(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return genuine(*args, **kwargs)

        setattr(owner, name, noted)

    def _count(self, name: str) -> None:
        self.counts[name] += 1

    def _on(self, stream: Any) -> int:
        found = stream if stream is not None else torch.npu.current_stream()  # type: ignore[attr-defined]
        number = int(getattr(found, "stream_id", getattr(found, "npu_stream", 0)))
        self.streams.add(number)
        return number

    def _record(self, event: Any, stream: Any = None, *_: Any) -> None:
        self._kept.append(event)  # so that no other event gets its id
        self._recorded[id(event)] = self._on(stream)
        self._count("records")

    def _wait(self, event: Any, stream: Any = None, *_: Any) -> None:
        on = self._on(stream)
        self.ordered += id(event) in self._recorded and self._recorded[id(event)] != on
        self._count("waits")

    def _watch_ge(self) -> None:
        """Every GE graph that is loaded, with its options; where this torch_npu has another inside, nothing is seen."""
        try:
            from torchair.core._backend import TorchNpuGraph  # type: ignore[import-not-found]
        except Exception:  # noqa: BLE001  another version's inside, or npugraph_ex alone
            return
        load = TorchNpuGraph.load

        def noted(graph: Any, ge_graph: Any, options: Any = None, **keywords: Any) -> Any:
            self.ge_options.append({str(key): str(value) for key, value in (options or {}).items()})
            for operator in getattr(ge_graph, "op", ()):
                label = operator.attr["_user_stream_label"].s if "_user_stream_label" in operator.attr else b""
                self.labels |= {label.decode()} if label else set()
            return load(graph, ge_graph, options, **keywords)

        TorchNpuGraph.load = noted


def observe(asked: dict[str, Any]) -> dict[str, Any]:
    """Compile once, as the recipe says or without one of its options, and say what was seen."""
    import torch_npu  # type: ignore[import-not-found]  # noqa: F401

    kit = json.loads((HERE / "kit.json").read_text())
    recipe: Any = importlib.import_module("compiled")
    my_model: Any = importlib.import_module("my_model")
    watch = CallCounter()
    watch.begin()
    held = _without(recipe, kit, asked["without"])
    torch.manual_seed(kit["seed"])
    module, inputs = my_model.make()
    module, inputs = module.to(asked["device"]), _moved(inputs, asked["device"])
    eager = copy.deepcopy(module)
    with torch.no_grad():
        wanted = [_cpu(eager(**copy.deepcopy(inputs))) for _ in range(2)]
        fast = recipe.compiled(module, inputs)
        first = fast(**copy.deepcopy(inputs))
        kept = _tensors(first)
        pointers = [tensor.data_ptr() for tensor in kept]
        outputs = [_cpu(first)]
        second = fast(**copy.deepcopy(inputs))
        reused = any(a == b.data_ptr() for a, b in zip(pointers, _tensors(second)))
        outputs.append(_cpu(second))
    found: dict[str, Any] = {
        **watch.counts,
        "streams": len(watch.streams),
        "ordered": watch.ordered,
        "stream_labels": sorted(watch.labels),
        "ge_graphs": len(watch.ge_options),
        "ge_options": watch.ge_options[0] if watch.ge_options else {},
        "outputs_reused": reused,
        "held": held,
        **_compared(wanted, outputs),
    }
    if asked["calls"]:
        found["times_us"] = _times(eager, fast, inputs, asked["calls"])
    if asked["profile"]:
        found["profile"] = _profiled(fast, inputs, asked["profile"])
    if asked["measure"]:
        found["costs"] = _costs(asked["device"])
    found["device"] = _device(asked["device"])
    return found


def _without(recipe: Any, kit: dict[str, Any], option: str | None) -> dict[str, Any]:
    """{option: the value that the genuine object holds}; `option` is put back to its default before."""
    if hasattr(recipe, "options"):
        genuine = recipe.options
        values = {key: value for key, value in genuine().items() if key != option}
        recipe.options = lambda: dict(values)
        return {key: _plain(value) for key, value in values.items()}
    if not hasattr(recipe, "compiler_config"):
        return {}
    make = recipe.compiler_config

    def configured() -> Any:
        config = make()
        if option is not None:
            _set(config, option, kit["options"][option]["default"])
        return config

    recipe.compiler_config = configured
    config = configured()
    return {path: _plain(_get(config, path)) for path in kit["options"]}


def _set(config: Any, path: str, value: Any) -> None:
    *groups, name = path.split(".")
    for group in groups:
        config = getattr(config, group)
    setattr(config, name, value)


def _get(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = getattr(config, part)
    return getattr(config, "_value", config)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else "an object"


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    return value.to(device) if hasattr(value, "to") else value


def _cpu(value: Any) -> list[Any]:
    return [tensor.detach().cpu().clone() for tensor in _tensors(value)]


def _compared(wanted: list[Any], outputs: list[Any]) -> dict[str, Any]:
    """Whether each call has the bits of eager's, or its values within torch's own tolerance for the dtype."""
    pairs = [pair for w, o in zip(wanted, outputs) for pair in zip(w, o)]
    same_number = all(len(w) == len(o) for w, o in zip(wanted, outputs))
    close, worst = same_number, 0.0
    for a, b in pairs:
        try:
            torch.testing.assert_close(b, a, equal_nan=True)
        except AssertionError:
            close = False
        if a.is_floating_point() and a.shape == b.shape and a.numel():
            worst = max(worst, float((a.double() - b.double()).abs().nan_to_num().max()))
    bitwise = same_number and all(torch.equal(a, b) for a, b in pairs)
    return {"close": close, "bitwise": bitwise, "max_abs_err": worst, "compared": len(pairs)}


def _times(eager: Any, fast: Any, inputs: dict[str, Any], calls: int) -> dict[str, list[float]]:
    """Microseconds of single calls, in turns, each until the device is done."""
    npu: Any = torch.npu  # type: ignore[attr-defined]
    samples: dict[str, list[float]] = {"eager": [], "compiled": []}
    for turn in range(calls + 5):
        for name, call in (("eager", eager), ("compiled", fast)):
            npu.synchronize()
            begun = time.perf_counter_ns()
            with torch.no_grad():
                call(**inputs)
            npu.synchronize()
            if turn >= 5:
                samples[name].append((time.perf_counter_ns() - begun) / 1e3)
    return samples


def _profiled(fast: Any, inputs: dict[str, Any], folder: str) -> dict[str, Any]:
    """{kernel: calls, microseconds, streams} of one call, from torch_npu's own profiler."""
    import torch_npu  # type: ignore[import-not-found]

    profiler: Any = torch_npu.profiler
    npu: Any = torch.npu  # type: ignore[attr-defined]
    activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU]
    handler = profiler.tensorboard_trace_handler(folder)
    with profiler.profile(activities=activities, on_trace_ready=handler), torch.no_grad():
        fast(**inputs)
        npu.synchronize()
    kernels: dict[str, Any] = {}
    for file in Path(folder).rglob("kernel_details.csv"):
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                name = row.get("Type") or row.get("Name") or "?"
                kept = kernels.setdefault(name, {"calls": 0, "us": 0.0, "streams": []})
                kept["calls"] += 1
                kept["us"] += float(row.get("Duration(us)") or 0)
                stream = row.get("Stream ID") or row.get("Stream Id")
                kept["streams"] = sorted({*kept["streams"], stream} - {None, ""})
    if not kernels:
        raise RuntimeError("the profiler left no kernel_details.csv")
    return kernels


def _costs(device: str) -> dict[str, float]:
    """Figures for npucompose's model of the device: one launch, memory bandwidth, the rate of a matrix product."""
    npu: Any = torch.npu  # type: ignore[attr-defined]
    small = torch.ones(8, device=device)
    large = torch.ones(64 * 2**20, device=device)
    square = torch.ones(4096, 4096, device=device, dtype=torch.float16)

    def best(act: Callable[[], Any], times: int) -> float:
        found = []
        for _ in range(5):
            npu.synchronize()
            begun = time.perf_counter()
            for _ in range(times):
                act()
            npu.synchronize()
            found.append((time.perf_counter() - begun) / times)
        return min(found)

    launch = best(lambda: small.add_(1), 500)
    return {
        "launch_us": launch * 1e6,
        "gbytes_s": 2 * large.numel() * 4 / best(large.clone, 5) / 1e9,
        "matmul_gflops": 2 * 4096**3 / best(lambda: square @ square, 5) / 1e9,
    }


def _device(device: str) -> dict[str, Any]:
    import torch_npu  # type: ignore[import-not-found]

    npu: Any = torch.npu  # type: ignore[attr-defined]
    try:
        cann = torch_npu.npu.utils.get_cann_version(module="CANN")
    except Exception as error:  # noqa: BLE001  older versions have no such function
        cann = f"unknown: {type(error).__name__}"
    return {
        "soc": npu.get_device_name(0),
        "count": npu.device_count(),
        "cann": cann,
        "torch": torch.__version__,
        "torch_npu": str(getattr(torch_npu, "__version__", "?")),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "platform": "device" if device.startswith("npu") else "simulated",
    }


def error_words(error: BaseException) -> str:
    """What the first error of a chain said: torch wraps a backend's own."""
    while True:
        inner = getattr(error, "inner_exception", None) or error.__cause__
        if inner is None:
            return " ".join(f"{type(error).__name__}: {error}".split())[:LAST]
        error = inner
