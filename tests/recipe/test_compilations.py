"""Options that a script hands to TorchAir's own helper or to torch.compile, and scripts that compile several times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose.recipe import import_script
from tests.recipe.importing import compiler, read

EX = "import torch, npugraph_ex as nge\nfrom npugraph_ex.configs.compiler_config import _process_kwargs_options\n"
AIR = "import torch, torchair\nfrom torchair.configs.npugraphex_config import _process_kwargs_options\n"
TWO = """
import torch, torchair
def backend(mode):
    config = torchair.CompilerConfig()
    config.mode = mode
    return torchair.get_npu_backend(compiler_config=config)
prefill = torch.compile(model, backend=backend("max-autotune"), dynamic=True)
decode = torch.compile(model, backend=backend("reduce-overhead"), dynamic=False, fullgraph=True)
"""


def test_options_by_torchairs_own_helper_are_the_configurations() -> None:
    found = read(f"""{EX}
config = nge.CompilerConfig()
_process_kwargs_options(config, {{"options": {{"force_eager": True, "inplace_pass": False}}}})
backend = nge.get_npu_backend(compiler_config=config)
""")
    assert compiler(found) == {"npugraph_ex": {"force_eager": True, "inplace_pass": False}}
    assert found.unread == ()


def test_the_helper_handed_on_as_an_argument_is_followed() -> None:
    found = read(f"""{EX}
def configure(config, helper=None):
    options = {{"force_eager": True}}
    if helper is not None:
        helper(config, {{"options": options}})
    else:
        config.mode = "reduce-overhead"
config = nge.CompilerConfig()
configure(config, helper=_process_kwargs_options)
model = torch.compile(model, backend=nge.get_npu_backend(compiler_config=config))
""")
    assert compiler(found) == {"npugraph_ex": {"force_eager": True}}
    assert found.unread == ()


def test_torchairs_helper_turns_the_names_into_its_own() -> None:
    found = read(f"""{AIR}
config = torchair.CompilerConfig()
config.mode = "reduce-overhead"
_process_kwargs_options(config, {{"options": {{"force_eager": True, "inplace_pass": False, "no_such": 1}}}})
backend = torchair.get_npu_backend(compiler_config=config)
""")
    assert compiler(found) == {
        "debug": {"run_eagerly": True, "aclgraph": {"disable_reinplace_inplaceable_ops_pass": True}}
    }
    assert [line.code for line in found.unread] == ["options['no_such']"]


@pytest.mark.parametrize("backend", ["'npu'", "torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())"])
def test_options_of_torch_compile_reach_torchair_by_their_names_there(backend: str) -> None:
    found = read(f"{AIR}model = torch.compile(model, backend={backend}, options={{'frozen_parameter': True}})\n")
    assert compiler(found) == {"experimental_config": {"frozen_parameter": True}}


def test_options_of_torch_compile_are_added_to_a_backends_own() -> None:
    found = read(f"""{EX}
config = nge.CompilerConfig()
config.clone_input = False
backend = nge.get_npu_backend(compiler_config=config)
model = torch.compile(model, backend=backend, options={{"static_kernel_compile": True}})
""")
    assert compiler(found) == {"npugraph_ex": {"clone_input": False, "static_kernel_compile": True}}


@pytest.mark.parametrize(("call", "why"), [
    ("_process_kwargs_options(other, {'options': {}})", "which configuration this is"),
    ("_process_kwargs_options(config, given)", "its options are not a dict of this script"),
    ("_process_kwargs_options(config, {'options': given})", "its options are not a dict of this script"),
])  # fmt: skip
def test_options_that_are_not_known_are_lines(call: str, why: str) -> None:
    found = read(f"{EX}\nconfig = nge.CompilerConfig()\n{call}\n")
    assert compiler(found) == {}
    assert [line for line in found.unread if why in line.why]


@pytest.mark.parametrize(("number", "mode", "dynamic"), [
    (None, "max-autotune", True), (1, "max-autotune", True), (2, "reduce-overhead", False),
])  # fmt: skip
def test_every_compilation_is_listed_and_the_one_that_is_asked_for_is_told(
    number: int | None, mode: str, dynamic: bool
) -> None:
    found = import_script(TWO, compilation=number)
    assert (found.tree["mode"]["name"], found.tree["shapes"]["dynamic"]) == (mode, dynamic)
    assert found.tree["compile"]["fullgraph"] is not dynamic
    listed = next(note for note in found.notes if note.startswith(f"of 2 compilations, number {number or 1} is told"))
    assert "1: line 7: torch.compile(mode=max-autotune, dynamic=True, fullgraph=False)" in listed
    assert "2: line 8: torch.compile(mode=reduce-overhead, dynamic=False, fullgraph=True)" in listed
    other = 2 if number in (None, 1) else 1
    assert any(f"this one by --compilation {other}" in line.why for line in found.unread)


@pytest.mark.parametrize("number", [0, -1, 3])
def test_a_number_that_no_compilation_has_is_refused_with_the_list(number: int) -> None:
    with pytest.raises(ConfigError, match=rf"--compilation {number}: .* it has 1: line 7: .*; 2: line 8: "):
        import_script(TWO, compilation=number)


def test_backends_that_nothing_compiles_with_are_counted_too() -> None:
    script = f"""{AIR}
for_ge = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())
config = torchair.CompilerConfig()
config.mode = "reduce-overhead"
captured = torchair.get_npu_backend(compiler_config=config)
"""
    assert import_script(script).tree["mode"]["name"] == "max-autotune"
    assert import_script(script, compilation=2).tree["mode"]["name"] == "reduce-overhead"


def test_the_command_takes_the_number(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "two.py").write_text(TWO)
    assert main(["recipe", "import", str(tmp_path / "two.py"), "--compilation", "2"]) == 0
    assert "override /mode: reduce-overhead" in capsys.readouterr().out
    assert main(["recipe", "import", str(tmp_path / "two.py"), "--compilation", "5"]) == 2
    assert "it has 1: line 7" in " ".join(capsys.readouterr().err.split())


def test_one_compilation_reached_twice_is_one(tmp_path: Path) -> None:
    script = f"""{AIR}
def build():
    return torch.compile(model, backend="npu", dynamic=False)
a = build()
b = build()
"""
    found = import_script(script)
    assert json.dumps(found.tree)
    assert not [note for note in found.notes if "compilations" in note]
