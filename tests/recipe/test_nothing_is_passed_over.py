"""Every call, argument, option and variable that is about compiling is read, or listed: a count over many scripts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from npucompose.errors import ConfigError
from npucompose.recipe import Imported, import_script
from npucompose.recipe.reader import reading
from tests.recipe.generated import script
from tests.recipe.production import PRODUCTION

HEAD = """
import functools, os, torch, torch_npu, torchair, npugraph_ex
config = torchair.CompilerConfig()
config.experimental_config.frozen_parameter = True
backend = torchair.get_npu_backend(compiler_config=config)
"""
CALLS = {
    "config.as_dict()": "config.as_dict()",
    "config.debug.graph_dump.enable('py')": "config.debug.graph_dump.enable('py')",
    "torchair.CompilerConfig(mode='x')": "no YAML is known for mode of CompilerConfig",
    "torchair.get_npu_backend(config, {})": "no YAML is known for an argument of get_npu_backend",
    "torchair.get_npu_backend(compiler_config=config, aot_config=1)": "aot_config of get_npu_backend",
    "torch.compile(net, None, backend=backend)": "no YAML is known for an argument of torch.compile",
    "torch.compile(net, backend=backend, mode='x')": "no YAML is known for mode of torch.compile",
    "torch.compile(net, backend=backend, **more)": "some arguments of torch.compile are not known",
    "torch.compile(net, backend=backend, name=1, disable=True)": "disable of torch.compile",
    "net.compile(backend=backend, mode='x')": "no YAML is known for mode of",
    "torchair.inference.cache_compile(net.forward, config=config, global_rank=1)": "global_rank of cache_compile",
    "torchair.inference.cache_compile(net.forward, config=config, cache_dir='x')": "no YAML takes cache_dir",
    "torch.npu.npugraph_ex.compile_fx(graph, inputs, {}, decompositions={})": "decompositions of compile_fx",
    "torchair.inference.set_dim_gears(x, {0: [2, 4]}, policy='zip')": "policy of set_dim_gears",
    "torch._dynamo.mark_static(x, 0)": "YAML marks whole tensors",
    "torch._dynamo.mark_dynamic(x, 0, min=2)": "YAML takes plain dimensions",
    "torch._dynamo.mark_unbacked(x, 0)": "no YAML is known for torch._dynamo.mark_unbacked",
    "torchair.dynamo_export(net, x)": "no YAML is known for torchair.dynamo_export",
    "torchair.use_internal_format_weight(net)": "no YAML is known for torchair.use_internal_format_weight",
    "torch.npu.set_compile_mode(jit_compile=True)": "outside of a graph",
    "os.environ['HCCL_BUFFSIZE'] = '1'": "YAML sets no environment",
    "os.environ.setdefault('ASCEND_LAUNCH_BLOCKING', '1')": "YAML sets no environment",
    "os.environ.update({'A': '1', 'TNG_LOG_LEVEL': '0'})": "YAML sets no environment",
    "os.environ.update(more)": "YAML sets no environment",
    "os.environ[name] = '1'": "YAML sets no environment",
    "os.putenv('TASK_QUEUE_ENABLE', '2')": "YAML sets no environment",
    "del os.environ['ASCEND_LAUNCH_BLOCKING']": "YAML sets no environment",
    "torch._dynamo.config.cache_size_limit = 3": "no YAML is known for it",
    "torch.npu.config.allow_internal_format = False": "no YAML is known for it",
    "other.debug.run_eagerly = True": "it is not known which configuration this is",
    "config.debug = other": "a whole sub-configuration is replaced",
    "setattr(config, name, 1)": "the option's name is not a constant",
    "tune(config)": "a configuration is handed to code that is not in this script",
    "serve(backend)": "a backend is handed to code that is not in this script",
    "config.no_such = 1": "no such option",
    "CompilerConfig()": "it is not known where CompilerConfig comes from",
}


def listed(found: Imported) -> str:
    return "\n".join([*found.notes, *map(str, found.unread)])


@pytest.mark.parametrize("line", CALLS)
def test_what_has_no_place_in_yaml_is_listed(line: str) -> None:
    assert CALLS[line] in listed(import_script(f"{HEAD}{line}\n"))


@pytest.mark.parametrize("line", CALLS)
@pytest.mark.parametrize("around", ["if a:\n    {}", "def unused(x):\n    {}", "for x in xs:\n    {}"])
def test_so_it_is_wherever_it_stands(line: str, around: str) -> None:
    found = import_script(f"{HEAD}{around.format(line)}\n")
    assert CALLS[line] in listed(found) or ("graph" in line and "depends" in listed(found))


def settings(text: str) -> Iterator[ast.stmt]:
    """Every assignment to an attribute of a configuration by its name."""
    for node in ast.walk(ast.parse(text)):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Attribute) and "config" in ast.unparse(target):
            yield node


def stated_lines(text: str) -> tuple[set[int], str]:
    """Lines of assignments that hold, and what is listed."""
    facts = reading(ast.parse(text)).facts
    cells = [cell for one in (*facts.configs, *facts.compiles) for cell in one.cells.values()]
    hooks = [hook for one in facts.configs for hook in one.hooks.values()]
    lines = {getattr(getattr(cell, "node", None), "lineno", 0) for cell in cells} | {hook.lineno for hook in hooks}
    return lines, "\n".join(map(str, facts.unread))


@pytest.mark.parametrize("case", [case for case in PRODUCTION if case.suffix == ".py"], ids=lambda case: case.name)
def test_each_assignment_of_a_public_script_holds_or_is_listed(case: object) -> None:
    lines, unread = stated_lines(getattr(case, "text"))  # noqa: B009
    missed = [ast.unparse(s) for s in settings(getattr(case, "text")) if s.lineno not in lines]  # noqa: B009
    assert [code for code in missed if code[:60] not in unread] == []


def test_each_line_that_compiles_is_counted() -> None:
    for seed in range(30):
        text = script(seed)
        try:
            found = {one.node.lineno for one in reading(ast.parse(text)).facts.compiles}
        except ConfigError:
            continue
        calls = [
            n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and ast.unparse(n.func) == "torch.compile"
        ]
        assert {call.lineno for call in calls} <= found, text
