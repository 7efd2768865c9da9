"""The module that stands as `torch.npu` under the simulated capture: every name of the wheel's, by the table of calls.

A name that breaks a rule refuses it; a name whose place in a capture no source says, or that no table has, gives a
finding `unknown_call` where it is used, and an answer that a model can go on with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from npucompose.npu.capture.rules import CaptureCall, calls
from npucompose.npu.capture.simulated.generators import Seeds
from npucompose.npu.capture.simulated.streams import Api
from npucompose.vendor.devices import device_of


class Unknown:
    """What an unknown function, or its answer, stands for: it may be called, entered, asked for attributes."""

    def __init__(self, api: Api, name: str, why: str) -> None:
        self._api, self._name, self._why = api, name, why

    def _use(self) -> Unknown:
        what = f"{self._name}: {self._why}"
        self._api.runtime.refuse("unknown_call", what, self._api.line(), sure=False)
        return self

    def __call__(self, *args: Any, **_: Any) -> Any:
        return self._use()

    def __enter__(self) -> Any:
        return self._use()

    def __exit__(self, *_: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(self._api, f"{self._name}.{name}", self._why)

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Any:
        return iter(())


_FILES = ("graphs", "memory", "random", "streams", "utils")
"""Modules below torch.npu, whose public names it has itself."""


class NpuModule(ModuleType):
    """`torch.npu`: its own names, and an `Unknown` for every other. What uses it is noted where torch itself has none:
    torch.compile cannot trace it then."""

    def __init__(self, api: Api, names: Mapping[str, Any]) -> None:
        super().__init__("torch.npu")
        self.__dict__.update(names, _api=api, _traceable=hasattr(torch, "npu"))
        self.__dict__.update(dict.fromkeys(_FILES, self))

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and not self._traceable:
            self._api.line()
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module 'torch.npu' has no attribute {name!r}")
        return Unknown(self.__dict__["_api"], f"torch.npu.{name}", "no table of torch_npu's functions has it")


def npu_module(api: Api, seeds: Seeds) -> NpuModule:
    """The module of one machine."""
    written = {**shared(api, seeds, "torch.npu"), **_own(api)}
    made = {name: by_table(api, f"torch.npu.{name}", row) for name, row in calls().npu.items() if name not in written}
    return NpuModule(api, {**made, **written})


def shared(api: Api, seeds: Seeds, of: str) -> dict[str, Any]:
    """What stands in `torch.npu` and, by the same names, in `torch.cuda`."""

    def manual_seed(seed: int) -> None:
        api.line()
        seeds.manual_seed(int(seed))

    return {
        "Stream": api.Stream,
        "Event": api.Event,
        "ExternalEvent": lambda *_, **__: api.Event(external=True),
        "stream": api.on,
        "StreamContext": api.on,
        "current_stream": api.current_stream,
        "default_stream": api.default_stream,
        "set_stream": api.set_stream,
        "is_current_stream_capturing": lambda: api.runtime.capture_of(api.machine.stream) is not None,
        "synchronize": _refusing(api, f"{of}.synchronize", "synchronise"),
        "empty_cache": _refusing(api, f"{of}.empty_cache", "synchronise"),
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed,
        "initial_seed": seeds.initial_seed,
        "get_rng_state": seeds.get_rng_state,
        "set_rng_state": seeds.set_rng_state,
        "get_rng_state_all": seeds.get_rng_state_all,
        "set_rng_state_all": seeds.set_rng_state_all,
    }


def accelerator(api: Api) -> dict[str, Any]:
    """What `torch.accelerator` answers on a machine with an NPU."""
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device_index": lambda: 0,
        "set_device_index": lambda device: None,
        "current_stream": api.current_stream,
        "set_stream": api.set_stream,
        "synchronize": _refusing(api, "torch.accelerator.synchronize", "synchronise"),
    }


def by_table(api: Api, name: str, row: CaptureCall) -> Any:
    """What stands for a function by its row."""
    if row.rule is not None:
        return _refusing(api, name, row.rule)
    if row.unknown is not None:
        return Unknown(api, name, row.unknown)
    return lambda *_, **__: row.gives


def _refusing(api: Api, name: str, rule: str) -> Callable[..., None]:
    """A function that breaks the rule; `torch.npu.synchronize` in an open capture, on whatever stream."""

    def refuse(*_: Any, **__: Any) -> None:
        api.runtime.refuse(rule, f"{name}()", api.line())

    return refuse


def _own(api: Api) -> dict[str, Any]:
    """What `torch.npu` alone has."""
    soc = device_of(None)
    cores = {"cube_core_num": soc.cube, "vector_core_num": soc.vector}
    memory = soc.memory or 0

    def set_task_queue_enable(mode: Any) -> None:
        api.runtime.task_queue = int(mode)

    return {
        "SyncLaunchStream": api.Stream,
        "NPUGraph": api.NPUGraph,
        "graph": api.graph,
        "graph_pool_handle": lambda: (0, 1),
        "graph_task_group_begin": api.group_begin,
        "graph_task_group_end": api.group_end,
        "graph_task_update_begin": api.update_begin,
        "graph_task_update_end": api.update_end,
        "_launch_host_func": api.host_function,
        "_launch_host_func_pending": api.host_function,
        "set_task_queue_enable": set_task_queue_enable,
        "get_task_queue_enable": lambda: api.runtime.task_queue,
        "device": lambda *_: nullcontext(),
        "device_of": lambda *_: nullcontext(),
        "get_device_name": lambda *_: soc.name,
        "get_device_properties": lambda *_: SimpleNamespace(
            name=soc.name, total_memory=memory, L2_cache_size=soc.l2, multi_processor_count=soc.vector, **cores
        ),
        "mem_get_info": lambda *_: (memory, memory),
        "get_device_limit": lambda *_: dict(cores),
        "get_stream_limit": lambda *_: dict(cores),
        "enable_deterministic_with_backward": lambda tensor: tensor,
        "disable_deterministic_with_backward": lambda tensor: tensor,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16, torch.float32],
        "get_autocast_dtype": lambda: torch.float16,
        "amp": SimpleNamespace(
            autocast=lambda enabled=True, dtype=torch.float16, **_: torch.autocast("npu", dtype, enabled=enabled)
        ),
        "config": SimpleNamespace(allow_internal_format=False),
        "matmul": SimpleNamespace(allow_hf32=False),
        "conv": SimpleNamespace(allow_hf32=True),  # torch_npu/npu/npu_config.py: on until ALLOW_CONV_HF32 disables it
    }
