"""What vLLM-Ascend can say is exported, what it cannot is named."""

from __future__ import annotations

from typing import Any

import pytest

from npucompose.cli import main
from npucompose.recipe import export
from npucompose.vendor.compiler import LEAVES
from npucompose_extras.engine_dialects.vllm_ascend import FIXED, MODES, OPTIONS
from tests.answers import answer

FIXED_AS_THERE = [
    "compiler.npugraph_ex.force_eager=true",
    "compiler.npugraph_ex.inplace_pass=false",
    "compiler.npugraph_ex.clone_input=false",
]


def test_npugraph_ex_with_static_kernels_has_keys_for_all_of_it() -> None:
    exported = export(
        "mode=npugraph_ex",
        "shapes=auto",
        "compiler.npugraph_ex.static_kernel_compile=true",
        "compiler.npugraph_ex._vllm_aclnn_static_kernel_sym_range=[1,8,16]",
        *FIXED_AS_THERE,
    )
    assert exported.additional_config == {
        "ascend_compilation_config": {"enable_npugraph_ex": True, "enable_static_kernel": True}
    }
    assert exported.compilation_config == {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 8, 16]}
    assert exported.without_equivalent == ()


@pytest.mark.parametrize(
    ("overrides", "additional", "compilation"),
    [
        (
            ["mode=reduce-overhead"],
            {"ascend_compilation_config": {"enable_npugraph_ex": False}},
            {"cudagraph_mode": "FULL"},
        ),
        (["mode=eager"], {}, {"cudagraph_mode": "NONE"}),
        (["mode=max-autotune"], {}, {}),
    ],
)
def test_modes(overrides: list[str], additional: dict[str, Any], compilation: dict[str, Any]) -> None:
    exported = export(*overrides)
    assert (exported.additional_config, exported.compilation_config) == (additional, compilation)


def test_everything_without_an_equivalent_is_named_with_a_reason() -> None:
    exported = export(
        "mode=max-autotune",
        "tiling=sink",
        "passes=[cse,stream_plan]",
        "compile.fullgraph=false",
        "logs.artifacts=[graph_code]",
    )
    named = {item["option"]: item["why"] for item in exported.without_equivalent}
    assert list(named) == [
        "mode=max-autotune",
        "compiler.experimental_config.tiling_schedule_optimize=true",
        "passes.cse",
        "passes.stream_plan",
        "shapes=static",
        "compile.fullgraph=false",
        "logs",
    ]
    assert "multistream_overlap_shared_expert" in named["passes.stream_plan"]
    assert all(named.values())


def test_what_vllm_ascend_always_sets_is_named_where_the_experiment_wants_otherwise() -> None:
    named = [item["option"] for item in export("mode=npugraph_ex", "shapes=auto").without_equivalent]
    assert named == [
        "compiler.npugraph_ex.force_eager=false",
        "compiler.npugraph_ex.inplace_pass=true",
        "compiler.npugraph_ex.clone_input=true",
    ]


def test_every_row_names_a_known_option_and_its_source() -> None:
    assert all(row.option in LEAVES for row in OPTIONS)
    assert set(FIXED) <= set(LEAVES)
    assert all(row.source.endswith(".py") or ".md" in row.source or ".py" in row.source for row in (*MODES, *OPTIONS))


def test_the_command_prints_json_and_refuses_other_projects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "export", "--to", "vllm-ascend", "mode=npugraph_ex"]) == 0
    printed = answer(capsys.readouterr().out)
    assert printed["compilation_config"] == {"cudagraph_mode": "FULL"}
    assert set(printed["sources"]) == {
        "compilation_config.cudagraph_mode",
        "additional_config.ascend_compilation_config.enable_npugraph_ex",
    }
    assert main(["recipe", "export", "--to", "tvm"]) == 2
    assert "unknown project 'tvm'" in capsys.readouterr().err


def test_what_it_always_sets_is_no_key_of_another_mode() -> None:
    """In a mode without npugraph_ex its fixed values say nothing: an option of that package has no key there."""
    exported = export("mode=reduce-overhead", "strict=off", "compiler.npugraph_ex.force_eager=true")
    assert "compiler.npugraph_ex.force_eager=true" in [item["option"] for item in exported.without_equivalent]
    there = export("mode=npugraph_ex", "shapes=auto", *FIXED_AS_THERE)
    assert there.without_equivalent == ()
