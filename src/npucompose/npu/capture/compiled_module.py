"""The module that stands as `torch_npu._C` under the simulated capture, where torch_npu is at hand.

What breaks a rule is refused from every caller. A model's own call of what no table has gives a finding; the Python of
the wheel is handed what it always is.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from npucompose.npu.capture.calls import calls
from npucompose.npu.capture.lines import is_models
from npucompose.npu.capture.npu_module import Unknown, by_table
from npucompose.npu.capture.streams import Api


class CompiledModule(ModuleType):
    """`CompiledModule(api, torch_npu._C)`."""

    def __init__(self, api: Api, below: Any) -> None:
        super().__init__("torch_npu._C")
        own = {
            "_graph_task_group_begin": api.group_begin,
            "_graph_task_group_end": api.group_end,
            "_graph_task_update_begin": api.update_begin,
            "_graph_task_update_end": api.update_end,
            "_launch_host_func": api.host_function,
            "_launch_host_func_pending": api.host_function,
            "_npu_isCurrentStreamCapturing": lambda: api.runtime.capture_of(api.machine.stream) is not None,
        }
        self.__dict__.update(own, _api=api, _below=below)

    def __getattr__(self, name: str) -> Any:
        api, below = self.__dict__["_api"], self.__dict__["_below"]
        row, whole = calls().compiled.get(name), f"torch_npu._C.{name}"
        asked_by_a_model = is_models(sys._getframe(1).f_code.co_filename)
        if row is not None and row.rule is not None:
            return by_table(api, whole, row)
        if not asked_by_a_model or name.startswith("__"):
            return getattr(below, name)
        if row is None:
            return Unknown(api, whole, "no table of torch_npu's functions has it")
        return by_table(api, whole, row) if row.unknown is not None else getattr(below, name)
