"""Modules that were moved: an old name imports the module of the new one, with one warning, until 0.3.

A line of MOVED is all that a move needs; what lies below a name is moved with it.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from npucompose.packages import distribution, extra_of, pip_line

MOVED = {
    "npucompose.accuracy": "npucompose_devtools.accuracy",
    "npucompose.arguments": "npucompose.cli.arguments",
    "npucompose.artefacts": "npucompose.results.artefacts",
    "npucompose.capture.deployment": "npucompose_devtools.capture_sizes.deployment",
    "npucompose.capture.protocol": "npucompose_devtools.protocol",
    "npucompose.capture": "npucompose.npu.capture",
    "npucompose.capture_sizes": "npucompose_devtools.capture_sizes",
    "npucompose.completion": "npucompose.cli.completion",
    "npucompose.executed_caches": "npucompose.private",
    "npucompose.experiment.device_kit": "npucompose_devtools.device_kit",
    "npucompose.file_commands": "npucompose.commands",
    "npucompose.new": "npucompose.cli.new",
    "npucompose.outputs": "npucompose.commands",
    "npucompose.ops.generated": "npucompose_replay.generated",
    "npucompose.passes.dual_batch": "npucompose_extras.dual_batch",
    "npucompose.profiles": "npucompose_devtools.profiles",
    "npucompose.replay": "npucompose_replay",
    "npucompose.results.capture": "npucompose.npu.capture.records",
    "npucompose.results.sinking": "npucompose.npu.static_graph.records",
    "npucompose.schema.options": "npucompose.table.options",
    "npucompose.serving.vllm": "npucompose_vllm",
    "npucompose.sinking": "npucompose.npu.static_graph",
    "npucompose.streams.pool": "npucompose.placement",
    "npucompose.targets.npu_offline.simulator": "npu_simulator",
    "npucompose.targets.npu_offline.simulators": "npucompose.targets.npu_offline",
    "npucompose.targets.torchair": "npucompose.npu.torchair",
}
"""{name until 0.2: name now}; what lies below another name stands before it."""
GONE_IN = "0.3"


def name_now(name: str) -> str | None:
    """`npucompose_vllm.recipe` of `npucompose.serving.vllm.recipe`; None of a module that was not moved."""
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return None


class _Moved(MetaPathFinder, Loader):
    """Before all other finders: a module that is found through a moved package has its new name, and no second copy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("npucompose.") or name_now(fullname) is None:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = name_now(spec.name)
        assert new is not None
        try:
            module = importlib.import_module(new)
        except ModuleNotFoundError as error:
            if (extra := extra_of(new.partition(".")[0])) is None or error.name != new.partition(".")[0]:
                raise
            raise ModuleNotFoundError(
                f"{spec.name} is {new} now, of {distribution(extra)}, which is not installed: {pip_line(extra)}."
            ) from error
        if spec.name in MOVED:
            said = f"{spec.name} is {new} now; the old name goes in {GONE_IN}."
            warnings.warn(said, DeprecationWarning, stacklevel=2)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It was run under its new name; the import that asked for the old one has put its own spec there."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
