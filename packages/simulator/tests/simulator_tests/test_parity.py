"""The simulator is no more and no less than torch_npu: its names, signatures and constants are those of the wheel.

What the wheel has not, the simulator has not; what a model or TorchAir can reach and the simulator lacks is in
simulator/lacking.py, with the sentence a user gets.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

from npu_simulator import lacking
from npucompose.machine import cache_dir
from npucompose.ops.catalogue import dtype_numbers
from simulator_tests.processes import in_a_process
from simulator_tests.wheel_names import Wheel, signature
from tests.npu.needs import offline

VERSIONS = ("2.13.0", "2.14.0")
CORE = ("torchair.core._torchair", "torchair.core._npu_graph_executor", "torchair.core._npu_utils")
FILLED = {
    "torch_npu.npu": {"default_generators", "_cached_device_count"},
    "torch_npu": {"unsupported_dtype"},
}
"""State that torch_npu's C++, or a call of its Python, fills in; besides numbers of types, by the wheel's headers."""
COMPILED = frozenset({"_NPUTaskGroupHandle", "_npu_fused_infer_attention_score_out_graph", "CheckAclnnAvaliable"})
"""Names of compiled modules that only scripts ask for: Ascend/pytorch 9e73e708, torch_npu/csrc/npu/Graph.cpp 502, 610;
texts of the wheel's libtorch_npu.so; Ascend/torchair fced8842, torchair/core/npu_wrapper.cpp 43."""
NATIVE = {
    "StreamBase": {"priority", "priority_range"},
    "EventBase": set[str](),
    "GraphBase": {
        "begin_capture_to_if_node", "enable_debug_mode", "end_capture_to_conditional_node",
        "get_currently_capturing_graph", "register_generator_state",
    },
}  # fmt: skip
"""Methods of the compiled classes that scripts call and the wheel's classes do not (Ascend/pytorch 9e73e708ab93,
torch_npu/csrc/npu/Stream.cpp:144, 150, Graph.cpp:808 to 871)."""


def trees() -> list[Any]:
    """The unpacked wheels of the cache; one that is not there is skipped by name: `npucompose fetch torch_npu`."""
    found = {version: sorted((cache_dir() / "torch_npu").glob(f"{version}-*")) for version in VERSIONS}
    marks: dict[str, list[pytest.MarkDecorator]] = {v: [pytest.mark.slow] if v != VERSIONS[0] else [] for v in VERSIONS}
    for version, places in found.items():
        if not places:
            marks[version].append(pytest.mark.skip(reason=f"npucompose fetch torch_npu --version {version}"))
    return [pytest.param(found[v][0] if found[v] else Path(), id=v, marks=marks[v]) for v in VERSIONS]


BOTH = pytest.mark.parametrize("tree", trees())
_SURFACES: dict[tuple[Path, tuple[str, ...]], dict[str, Any]] = {}


def surface(tree: Path, *how: str) -> dict[str, Any]:
    if (tree, how) not in _SURFACES:
        _SURFACES[tree, how] = in_a_process("surface.py", str(tree), *how)
    return _SURFACES[tree, how]


def invented(tree: Path, live: dict[str, Any]) -> list[str]:
    """Names of the simulated runtime that the wheel's sources neither bind nor ask for."""
    wheel, found = Wheel(tree), list[str]()
    filled = {**FILLED, "torch_npu": {*FILLED["torch_npu"], *dtype_numbers(tree / "torch_npu")}}
    operators = (wheel.root / "csrc/aten/npu_native_functions_by_codegen.yaml").read_text(encoding="utf-8")
    for module, names in live["modules"].items():
        if module == "torch_npu._C":
            known = {*wheel.asked("torch_npu._C", ("**/*.py",)), *COMPILED}
        elif module in CORE:
            known = {*wheel.asked(module, ("dynamo/torchair/**/*.py",)), *COMPILED}
        elif module == "torch_npu._C._cd":
            known = {"DType"}
        else:
            known = {*wheel.names(module), *filled.get(module, ())} | ({"_C"} if module == "torch_npu" else set())
        extra = sorted(set(names) - known)
        extra = [name for name in extra if name not in wheel.set_from_outside(module)] if extra else []
        found += [f"{module}.{name}" for name in extra if f"func: {name}(" not in operators]
    for base, names in live["bases"].items():
        asked = {"StreamBase": "Stream", "EventBase": "Event", "GraphBase": "NPUGraph"}[base]
        known = _members_asked(wheel, asked) | set(live["inherited"]) | NATIVE[base]
        found += [f"{base}.{name}" for name in sorted(set(names) - known)]
    return found


def _members_asked(wheel: Wheel, cls: str) -> set[str]:
    """What the classes that the wheel makes of a compiled one ask it for."""
    found: set[str] = set()
    for module in ("torch_npu.npu.streams", "torch_npu.npu.graphs"):
        tree = wheel.tree_of(module)
        for node in () if tree is None else tree.body:
            if isinstance(node, ast.ClassDef) and cls in node.name:
                found |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return found


def differing(tree: Path, live: dict[str, Any]) -> list[str]:
    """Functions with other parameters or defaults, and constants with other values, than the wheel's text says."""
    wheel, found = Wheel(tree), list[str]()
    for module, names in live["modules"].items():
        for name, value in names.items():
            members = value.get("members", {}).items() if value.get("module") == module else ()
            for full, one in ((name, value), *((f"{name}.{inner}", m) for inner, m in members)):
                written = wheel.function(module, full)
                if one["kind"] != "function" or written is None or (written.decorator_list and one["home"] == "wheel"):
                    continue
                if not _same(one["signature"], signature(written)):
                    found.append(f"{module}.{full}: {one['signature']} and not {signature(written)}")
        for name, value in wheel.constants(module).items():
            if name in names and names[name]["kind"] == "constant" and names[name]["value"] != repr(value):
                found.append(f"{module}.{name} = {names[name]['value']} and not {value!r}")
    return found + _calls_that_do_not_fit(wheel, live)


def _same(live: list[Any], written: list[tuple[str, str]]) -> bool:
    """A default that is no literal is only known to be there."""
    return len(live) == len(written) and all(
        a[0] == b[0] and (a[1] == b[1] or (b[1] == "?" and a[1])) for a, b in zip(live, written, strict=True)
    )


def _calls_that_do_not_fit(wheel: Wheel, live: dict[str, Any]) -> list[str]:
    """Compiled functions have no text: what the wheel's Python calls them with has to fit."""
    found: list[str] = []
    for name, calls in wheel.asked("torch_npu._C").items():
        ours = live["modules"]["torch_npu._C"].get(name, {})
        if ours.get("kind") != "function":
            continue
        empty = inspect.Parameter.empty
        parameters = [
            inspect.Parameter(row.split()[0], getattr(inspect.Parameter, row.split()[1]), default=default or empty)
            for row, default in ours["signature"]
        ]
        for call in calls:
            if call is None or any(type(arg).__name__ == "Starred" for arg in call.args):
                continue
            try:
                inspect.Signature(parameters).bind(*call.args, **{k.arg: k for k in call.keywords if k.arg})
            except TypeError as error:
                found.append(f"torch_npu._C.{name}: {error}")
    return found


@offline
@BOTH
def test_the_simulated_runtime_invents_no_name_and_changes_no_signature_default_or_constant(tree: Path) -> None:
    live = surface(tree)
    assert len(live["modules"]) > 40
    assert invented(tree, live) == []
    assert differing(tree, live) == []


@offline
@pytest.mark.slow
def test_a_name_that_is_added_and_a_signature_that_is_changed_are_found() -> None:
    tree = trees()[0].values[0]
    live = surface(tree, "invent")
    assert invented(tree, live) == ["torch_npu.npu.fake_record_stream"]
    assert [line.partition(":")[0] for line in differing(tree, live)] == ["torch_npu.npu.set_stream_limit"]


@offline
@BOTH
def test_what_the_wheel_asks_the_compiled_module_for_is_here_or_listed_as_lacking(tree: Path) -> None:
    asked = set(Wheel(tree).asked("torch_npu._C"))
    here = set(surface(tree)["modules"]["torch_npu._C"])
    listed = {name for names in lacking.LACKING.values() for name in names if "." not in name}
    assert asked - here - lacking.SUBMODULES == set()
    assert listed - asked - lacking.SUBMODULES == set()
    assert len(asked & (here - listed)) > 60


def test_what_is_lacking_is_told_in_a_sentence_that_names_it() -> None:
    assert lacking.sentence("_npu_stress_detect") == (
        "target=npu_offline has no torch_npu._C._npu_stress_detect: there is no device that could fail, be watched, "
        "stopped or tested. It is there on an NPU (target=npu)."
    )
    names = [name for names in lacking.LACKING.values() for name in names]
    assert len(names) == len(set(names))
    for name in names:
        assert lacking.reason(name)
    assert lacking.reason("_npu_synchronize") is None
