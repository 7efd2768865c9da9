"""Configurations of engines become recipes, and recipes command lines; what neither can say is a line.

The texts are written by hand after what public deployments set; none is a copy.
"""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from npucompose.cli import main
from npucompose.errors import ConfigError
from npucompose.recipe import Imported, export, import_command_line, import_file
from npucompose.recipe.dialects import read_command_line
from npucompose_extras.engine_dialects import vllm_keys

NEEDS_VLLM = pytest.mark.skipif(
    find_spec("npucompose_vllm") is None, reason="extensions.vllm is a section of npucompose-vllm"
)
DEPLOYED = """
export HF_HOME=/models
nohup vllm serve org/model-8B --host 0.0.0.0 --port 8000 \\
  --tensor-parallel-size 2 --max-num-seqs 64 --no-enable-prefix-caching \\
  --compilation-config '{"mode": 3, "cudagraph_mode": "FULL",
    "cudagraph_capture_sizes": [8, 1, 2, 4], "custom_ops": ["+rms_norm"],
    "pass_config": {"fuse_norm_quant": true, "eliminate_noops": true, "fuse_act_quant": false},
    "inductor_compile_config": {"epilogue_fusion": false, "no_such": 1}}' > serve.log 2>&1 &
sleep 60; curl localhost:8000/health
"""
FUSED = {"name": "max-autotune"}
WHOLE = {"graphs": "full", "sizes": [1, 2, 4]}
TRACED = '{"mode": "VLLM_COMPILE", "backend": "eager", "cudagraph_mode": "PIECEWISE"}'
NAMED = '{"npucompose": "a.yaml"}'


def tree(found: Imported) -> dict[str, Any]:
    return {name: value for name, value in found.tree.items() if name != "shapes"}


def lines(found: Imported) -> str:
    return "\n".join([*found.notes, *map(str, found.unread)])


@pytest.mark.parametrize(("level", "mode"), [("", "eager"), ("level: 0, ", "eager"), ("level: 1, ", "reduce-overhead")])
def test_a_graph_model_without_a_level_is_not_compiled(level: str, mode: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(f"additional_config: {{graph_model_compile_config: {{{level}use_aclgraph: true}}}}\n")
    assert import_file(file).tree["mode"]["name"] == mode


def test_a_deployments_script_becomes_a_recipe_and_lines() -> None:
    found = import_command_line(DEPLOYED)
    assert tree(found) == {
        "mode": FUSED,
        "inductor": {"max_autotune": False, "epilogue_fusion": False},
        "passes": {"remove_noop": {}},
        "extensions": {"vllm": {"graphs": "full", "sizes": [1, 2, 4, 8]}},
    }
    assert found.tree["shapes"]["dynamic"] is None
    said = lines(found)
    for word in (
        "custom_ops=[+rms_norm]: it chooses among vLLM's own operators",
        "pass_config.fuse_norm_quant=true: a pass of vLLM's own",
        "pass_config.fuse_act_quant=false: off",
        "inductor_compile_config.no_such=1",
        "tensor_parallel_size=2",
    ):
        assert word in said
    assert "other commands of the command line are not read: sleep (line 9); curl (line 9)" in said
    assert "the shell's, and not the engine's: nohup >serve.log 2>&1" in said
    assert "line 2: export HF_HOME=/models: YAML sets no environment" in said


@pytest.mark.parametrize(
    ("given", "mode", "vllm"),
    [
        ("-O3", "max-autotune", {"graphs": "full"}),
        ("-O 1", "max-autotune", {"graphs": "piecewise"}),
        ("-O=0", "eager", None),
        ("--optimization-level 0 -cc.cudagraph_mode=FULL", "reduce-overhead", {"graphs": "full"}),
        ("-O3 --enforce-eager", "eager", None),
        ("--compilation-config.mode=3 --cudagraph-capture-sizes 4 1 2", "max-autotune", WHOLE),
        ("--compilation_config.mode 0 -cc.cudagraph_mode FULL", "reduce-overhead", {"graphs": "full"}),
        (f"-cc '{TRACED}'", "reduce-overhead", {"graphs": "piecewise"}),
        ("-cc.cudagraph_capture_sizes+ 1,2 -cc.cudagraph_capture_sizes+=4", "max-autotune", WHOLE),
        ("-O.level=3 -O.cudagraph_mode=FULL", "max-autotune", {"graphs": "full"}),
        ("-O '{\"level\": 3}'", "max-autotune", {"graphs": "full"}),
        ("-cc.mode=3 -cc.cudagraph_mode=NONE", "max-autotune", None),
    ],
)  # fmt: skip
def test_every_way_to_write_an_option_is_read(given: str, mode: str, vllm: dict[str, Any] | None) -> None:
    found = import_command_line(f"vllm serve org/model {given}")
    assert found.tree["mode"]["name"] == mode
    assert found.tree.get("extensions", {}).get("vllm") == vllm
    assert found.tree.get("inductor", {}).get("replay") == ("wrapper" if mode == "max-autotune" and not vllm else None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("-O3", "cudagraph_mode=FULL_AND_PIECEWISE: batches with a prompt run in pieces there"),
        ("-cc.cudagraph_mode=FULL_DECODE_ONLY", "whether its tokens are decoded"),
        ("-cc.mode=2", "mode=2: vLLM leaves guards"),
        ("-cc.backend=openxla", "backend=openxla: no compiler of that name"),
        ("-cc.mode=3 -cc.backend=eager -cc.cudagraph_mode=NONE", "backend=eager: it traces and runs"),
        ("-O0 -cc.cudagraph_capture_sizes=[1]", "cudagraph_capture_sizes=[1]: cudagraph_mode=NONE captures none"),
        ("-O0 -cc.inductor_compile_config.epilogue_fusion=true", "Inductor compiles nothing"),
        ("-cc.compile_sizes=[1,2] --cudagraph-capture-sizes 1", "compile_sizes=[1, 2]: here each size"),
        ("-cc.mode=3 --max-cudagraph-capture-size 64", "max_cudagraph_capture_size=64: vLLM makes a list"),
        ("-O3", "vLLM makes a list of sizes by itself"),
        ("-cc.pass_config.enable_sp=true", "pass_config.enable_sp=true: a pass of vLLM's own"),
        ("-cc.of_a_later_one=1 -O3", "of_a_later_one=1: vllm-project/vllm 0.32.0 has no such key"),
        (f"-O3 --additional-config '{NAMED}'", "additional_config.npucompose=a.yaml: vLLM compiles"),
        ("-cc '{\"mode\": 3}' -cc.cudagraph_mode=FULL", "is given as a whole and by parts"),
        ("-O3 -O1", "--optimization-level is given twice"),
        ("-O3; vllm serve other -O0", "of 2 commands"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_here_is_a_line(given: str, says: str) -> None:
    assert says in lines(import_command_line(f"vllm serve org/model {given}"))


@pytest.mark.parametrize("key", sorted(vllm_keys.WITHOUT_MEANING))
def test_no_key_of_the_configuration_is_passed_over(key: str) -> None:
    assert f"{key}=true: " in lines(import_command_line(f"vllm serve m -O3 -cc.{key}=true"))


def test_sizes_that_are_all_compiled_are_static_shapes() -> None:
    for given in ("[1,2]", '["cudagraph_capture_sizes"]'):
        found = import_command_line(
            f"vllm serve m -cc.mode=3 --cudagraph-capture-sizes 2 1 '-cc.compile_sizes={given}'"
        )
        assert found.tree["shapes"] == {"name": "static", "dynamic": False}


@pytest.mark.parametrize("name", ["alone.json", "whole.json", "engine.yaml", "serve.sh"])
def test_a_file_holds_the_configuration_alone_or_with_others(name: str, tmp_path: Path) -> None:
    config = {"mode": 3, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2]}
    texts = {
        "alone.json": json.dumps(config),
        "whole.json": json.dumps({"compilation_config": config, "model": "m"}),
        "engine.yaml": f"model: m\ncompilation-config: {json.dumps(config)}\n",
        "serve.sh": f"vllm serve m --compilation-config '{json.dumps(config)}'\n",
    }
    path = tmp_path / name
    path.write_text(texts[name])
    assert import_file(path).tree["extensions"] == {"vllm": {"graphs": "full", "sizes": [1, 2]}}


def test_an_ascend_command_line_is_vllm_ascends() -> None:
    found = import_command_line(
        """vllm serve m --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [8, 1],
        "mode": 3}' --additional-config '{"ascend_compilation_config": {"enable_npugraph_ex": true,
        "enable_static_kernel": false, "fuse_muls_add": true}, "multistream_dsa_preprocess": true,
        "enable_cpu_binding": true}'"""
    )
    assert found.tree["mode"]["name"] == "npugraph_ex"
    assert found.tree["extensions"] == {"vllm": {"sizes": [1, 8]}}
    said = lines(found)
    left_out = "left out: model_tag=m, additional_config.enable_cpu_binding=true"
    for word in ("fuse_muls_add=true", "multistream_dsa_preprocess=true", "mode=3: ", left_out):
        assert word in said


def again(folder: Path, found: Imported, to: str) -> Imported:
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / "mine.yaml").write_text(found.yaml())
    exported = export("experiment=mine", to=to, config_dirs=[str(folder)])
    return import_command_line(f"vllm serve m {shlex.join(exported.arguments)}")


@pytest.mark.parametrize(
    "given",
    [
        "-cc.mode=3 -cc.cudagraph_mode=FULL -cc.cudagraph_capture_sizes=[1,2,4]",
        "-cc.mode=3 -cc.cudagraph_mode=PIECEWISE -cc.cudagraph_capture_sizes=[1,2] -cc.compile_sizes=[1,2]",
        "-cc.mode=3 -cc.backend=eager -cc.cudagraph_mode=PIECEWISE -cc.cudagraph_capture_sizes=[3]",
        "-cc.mode=0 -cc.cudagraph_mode=FULL -cc.cudagraph_capture_sizes=[1,8]",
        "-cc.mode=3 -cc.cudagraph_mode=NONE -cc.inductor_compile_config.epilogue_fusion=false",
        "-cc.mode=3 -cc.cudagraph_mode=FULL -cc.pass_config.eliminate_noops=true -cc.cudagraph_capture_sizes=[1] "
        "-cc.inductor_compile_config.max_autotune=true",
        "--enforce-eager",
    ],
)
@NEEDS_VLLM
def test_imported_exported_and_imported_is_the_same_recipe(given: str, tmp_path: Path) -> None:
    first = import_command_line(f"vllm serve m {given}")
    second = again(tmp_path, first, "vllm")
    assert second.tree == first.tree
    assert second.unread == ()


@NEEDS_VLLM
def test_vllm_ascends_too(tmp_path: Path) -> None:
    given = """--compilation-config '{"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 8]}'
        --additional-config '{"ascend_compilation_config": {"enable_npugraph_ex": true}}'"""
    first = import_command_line("vllm serve m " + given.replace("\n", " "))
    assert again(tmp_path, first, "vllm-ascend").tree == first.tree


@NEEDS_VLLM
def test_what_vllm_cannot_be_told_is_named() -> None:
    exported = export(
        "mode=max-autotune", "passes=[cse,remove_noop]", "tiling=sink", "strict=off", "compile.fullgraph=false",
        "logs.artifacts=[graph_code]", "shapes=dynamic", "inductor.max_autotune=false",
        "+extensions={vllm: {general: eager, sizes: [2, 1]}}", to="vllm",
    )  # fmt: skip
    assert exported.compilation_config == {
        "mode": 3, "backend": "inductor", "cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2],
        "pass_config": {"eliminate_noops": True},
    }  # fmt: skip
    assert exported.read_at == "vllm-project/vllm 0.32.0"
    assert [line["option"] for line in exported.without_equivalent] == [
        "passes.cse",
        "compiler.experimental_config.tiling_schedule_optimize=true",
        "compile.fullgraph=false",
        "logs",
        "extensions.vllm.general=eager",
        "shapes=dynamic",
    ]


@pytest.mark.parametrize(
    ("choices", "arguments", "missing"),
    [
        (["mode=eager"], ["--disable-cuda-graph"], []),
        (["mode=reduce-overhead"], [], []),
        (
            ["mode=reduce-overhead", "+extensions={vllm: {sizes: [4, 1], graphs: piecewise}}"],
            ["--cuda-graph-bs", "1", "4"],
            ["extensions.vllm.graphs=piecewise"],
        ),
        (
            ["mode=npugraph_ex", "+extensions={vllm: {sizes: [4, 16, 1]}}", "passes=cse"],
            ["--cuda-graph-bs", "1", "4", "16", "--enable-torch-compile", "--torch-compile-max-bs", "16"],
            ["passes.cse"],
        ),
        (["mode=npugraph_ex"], ["--enable-torch-compile"], []),
        (["mode=max-autotune", "shapes=dynamic"], [], ["mode=max-autotune", "shapes=dynamic"]),
    ],
)
@NEEDS_VLLM
def test_sglangs_arguments_on_an_npu(choices: list[str], arguments: list[str], missing: list[str]) -> None:
    exported = export(*choices, to="sglang")
    assert list(exported.arguments) == ["--device", "npu", "--attention-backend", "ascend", *arguments]
    assert [line["option"] for line in exported.without_equivalent] == missing
    assert exported.read_at.startswith("sgl-project/sglang ")
    assert set(exported.sources) == {word for word in arguments if word.startswith("--")}


def test_the_commands_print_the_lines_beside(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "import", "vllm serve m -O3 -cc.custom_ops=[all]"]) == 0
    printed = capsys.readouterr()
    assert "# what the command line says" in printed.out
    assert "not read: custom_ops=[all]" in printed.err
    assert main(["recipe", "export", "--to", "sglang", "mode=npugraph_ex", "passes=cse"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["command_line"].endswith("--enable-torch-compile")
    assert "no equivalent: passes.cse: " in printed.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--port 8000", "nothing found"),
        ("vllm serve m -O7", "-O7: vLLM has the levels"),
        ("vllm serve m -cc.mode=9", "mode=9: vLLM's are 0 to 3"),
        ("vllm serve m -cc.cudagraph_mode=HALF", "cudagraph_mode=HALF: none of"),
        ("vllm serve m -cc.mode=3 --cudagraph-capture-sizes 1 x", "sizes are whole numbers above 0"),
        ("vllm serve m -O3 --cudagraph-capture-sizes 0", "sizes are whole numbers above 0"),
        ("vllm serve m -cc '{a: [1'", "is not YAML"),
        ("vllm serve m -cc 'x", "a quote ' is not closed: nothing of it is read"),
    ],
)
def test_what_is_no_configuration_is_one_paragraph(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        import_command_line(text)
    assert says in str(refused.value)


def test_a_command_line_is_data_in_pythons_spelling() -> None:
    said = read_command_line("--a-b.c-d 1 --flag --x='{\"y\": [1]}' --n -3 --t yes --f 1.5 --none null", "it")
    assert said.data == {"flag": True, "x": {"y": [1]}, "n": -3, "t": "yes", "f": 1.5, "none": None, "a_b": {"c-d": 1}}


def test_an_option_may_have_eight_parts_and_no_more() -> None:
    def option(parts: int) -> str:
        return "--" + ".".join("abcdefghi"[:parts]) + " 1"

    inner: Any = read_command_line(option(8), "it").data
    for name in "abcdefgh":
        inner = inner[name]
    assert inner == 1
    with pytest.raises(ConfigError, match="has more than 8 parts"):
        read_command_line(option(9), "it")
