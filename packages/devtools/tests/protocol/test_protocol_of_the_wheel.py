"""The protocol that is checked is the one that runs: TorchAir's calls in their order, and none in scripts and kits."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import npucompose.recipe
import npucompose_devtools.device_kit
from npucompose_devtools.protocol.reading import shape

CALLS = {
    "replay": "replay",
    "wait_event": "wait",
    "graph_task_update_begin": "begin update",
    "updated_func": "update",
    "graph_task_update_end": "end update",
    "record_event": "record",
    "record": "record",
}
CAPTURED = re.compile(r"external_event_\{node\.name\}\.(wait|reset)\(|torch\.npu\.(graph_task_group_begin)\(")


def source(tree: Path, package: str, file: str) -> str:
    return (tree / "torch_npu" / "dynamo" / package / "_acl_concrete_graph" / file).read_text(encoding="utf-8")


def called(code: str) -> list[str]:
    """The calls of CapturedGraphUpdateAndReplay.forward that the protocol has, in the order of the text."""
    classes = [node for node in ast.parse(code).body if isinstance(node, ast.ClassDef)]
    (replayer,) = (node for node in classes if node.name == "CapturedGraphUpdateAndReplay")
    (forward,) = (node for node in replayer.body if isinstance(node, ast.FunctionDef) and node.name == "forward")
    calls = [node for node in ast.walk(forward) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    calls.sort(key=lambda node: node.lineno)
    return [CALLS[node.func.attr] for node in calls if node.func.attr in CALLS]  # type: ignore[union-attr]


@pytest.mark.parametrize("package", ["torchair", "npugraph_ex"])
def test_the_kits_protocol_has_torchairs_calls_in_torchairs_order(package: str, torch_npu_tree: Path) -> None:
    protocol = shape("kit")
    steps = protocol.threads["kit"].steps
    replayed = [step.verb for step in steps if step.verb in CALLS.values()]
    assert replayed == called(source(torch_npu_tree, package, "acl_graph.py"))
    captured = [
        next(filter(None, found)) for found in CAPTURED.findall(source(torch_npu_tree, package, "fx2acl_converter.py"))
    ]
    assert captured == ["wait", "reset", "graph_task_group_begin"]
    assert [step.verb for step in protocol.graphs["model"]] == ["wait", "reset", "run"]


@pytest.mark.parametrize("name", ["main", "draft"])
def test_torchairs_protocol_calls_each_graph_as_the_kit_does(name: str) -> None:
    def of(protocol: str, thread: str, graph: str) -> list[str]:
        steps = shape(protocol).threads[thread].steps
        names = {graph, f"{graph}.attention", f"{name}_set", f"{name}_replayed", "parameters_set", "replayed", ""}
        return [step.verb for step in steps if step.verb in CALLS.values() and step.name in names]

    ends = {"end update"}
    mine, kits = of("torchair", "caller", name), of("kit", "kit", "model")
    assert [verb for verb in mine if verb not in ends] == [verb for verb in kits if verb not in ends]


def test_scripts_and_kits_hold_no_update_of_their_own() -> None:
    recipe, kit = (Path(package.__path__[0]) for package in (npucompose.recipe, npucompose_devtools.device_kit))
    files = [*(recipe / "templates").iterdir(), *(kit / "kit_files").iterdir()]
    texts = {file.name: file.read_text(encoding="utf-8") for file in files if file.is_file()}
    calls = re.compile(r"graph_task_(?:update|group)_\w+\(|ExternalEvent\(|NPUGraph\(\)")
    assert {name: calls.findall(text) for name, text in texts.items() if calls.findall(text)} == {}
    assert len(texts) >= 5
