"""Inductor's kernels: sums of a product stay in registers, blocks are larger on AMD, a small product has one thread."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
from torch._inductor import config as inductor_config
from torch._inductor import cpp_builder
from torch._inductor.codegen.cpp_utils import GemmBlocking

import npucompose
from npucompose.machine import compiler
from npucompose_replay.inductor import kernels as inductor_kernels
from npucompose_replay.inductor.kernels import GCC, cpp_gemm_template, made_our_way

FLAGS = [f"-{flag}" for flag in GCC]


def ours(compiler: str) -> list[str]:
    """Of the flags that Inductor gives a compiler."""
    found: list[str] = cpp_builder._get_os_related_cpp_cflags(compiler)
    return [f"-{flag}" for flag in found if f"-{flag}" in FLAGS]


def test_gcc_is_given_the_flags_inside_only_and_clang_never() -> None:
    assert ours("g++") == []
    with made_our_way():
        assert ours("/usr/bin/g++-13") == ours("g++") == FLAGS
        assert ours("clang++") == []
    assert ours("g++") == []


@pytest.mark.skipif("g++" not in str(compiler()), reason="the flags are for g++")
def test_a_model_s_kernels_are_built_with_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    commands: list[str] = []
    told = cpp_builder.CppBuilder.get_command_line

    def noted(builder: Any) -> str:
        commands.append(told(builder))
        return commands[-1]

    monkeypatch.setattr(cpp_builder.CppBuilder, "get_command_line", noted)
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softplus()).eval()
    x = torch.ones(2, 8)
    with torch.no_grad():
        said = ("mode=max-autotune", "inductor.replay=wrapper", "inductor.fx_graph_cache=false")
        found = npucompose.compile(model, *said)(x)
        torch.testing.assert_close(found, model(x))
    kernels = [command for command in commands if ".main." in command or "CPU_CAPABILITY" in command]
    assert kernels
    assert all(flag in command for command in kernels for flag in FLAGS)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that Inductor counts for each product, of two."""
    seen: list[int] = []

    def add_choices(cls: Any, choices: Any, layout: Any, operands: Any, **named: Any) -> str:
        assert cls is cpp_gemm_template.CppGemmTemplate
        assert choices == ["a choice"]
        seen.append(cpp_gemm_template.parallel_num_threads())
        return f"{len(operands)} operands, {named}"

    monkeypatch.setattr(cpp_gemm_template, "parallel_num_threads", lambda: 2)
    monkeypatch.setattr(cpp_gemm_template.CppGemmTemplate, "add_choices", classmethod(add_choices))
    return seen


def asked(rows: Any, inner: int, columns: int, *others: tuple[int, ...], **named: Any) -> Any:
    sizes = [(rows, inner), *others, (inner, columns)]
    operands = [SimpleNamespace(get_size=lambda given=given: given) for given in sizes]
    return cpp_gemm_template.CppGemmTemplate.add_choices(
        ["a choice"], SimpleNamespace(size=(rows, columns)), operands, **named
    )  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("sizes", "threads"),
    [
        pytest.param((64, 64, 64), 1, id="small"),
        pytest.param((127, 64, 64), 1, id="just small"),
        pytest.param((128, 64, 64), 2, id="a million operations"),
        pytest.param((1, 127, 128), 1, id="a row by a small matrix"),
        pytest.param((1, 128, 128), 2, id="a row by a matrix that takes longer to read"),
        pytest.param((sympy.Symbol("s0"), 64, 64), 2, id="a number of rows that is a symbol"),
    ],
)
def test_a_small_product_is_left_to_one_thread(sizes: Any, threads: int, counted: list[int]) -> None:
    with made_our_way():
        assert asked(*sizes) == "2 operands, {}"
    assert counted == [threads]


def test_packed_weights_are_not_what_a_small_product_reads(counted: list[int]) -> None:
    with made_our_way():
        asked(64, 64, 64, (1_459_233, 1), input_indices=[0, 2])
        asked(64, 64, 64, (1_459_233, 1))
    assert counted == [1, 2]


def test_afterwards_every_product_is_shared(counted: list[int]) -> None:
    with made_our_way():
        pass
    asked(8, 8, 8)
    assert counted == [2]


@pytest.mark.parametrize(
    ("cpu", "asked_for", "whole", "cut", "expected"),
    [
        pytest.param("AMD EPYC", None, (25, 16, 2048), (8, 1, 307), (16, 1, 512), id="larger ones"),
        pytest.param("AMD EPYC", None, (8, 16, 384), (4, 1, 307), (8, 1, 384), id="not larger than the product"),
        pytest.param("AMD EPYC", None, (64, 16, 2048), (42, 2, 614), (42, 2, 614), id="inductors are larger"),
        pytest.param("Intel(R) Xeon(R)", None, (25, 16, 2048), (8, 1, 307), (8, 1, 307), id="not measured there"),
        pytest.param("AMD EPYC", "8,1,307", (25, 16, 2048), (8, 1, 307), (8, 1, 307), id="somebody asks for others"),
    ],
)
def test_on_amds_processors_a_template_multiplies_larger_blocks(
    monkeypatch: pytest.MonkeyPatch, cpu: str, asked_for: str | None, whole: Any, cut: Any, expected: Any
) -> None:
    """Blocks are counted in tiles of 8 rows, one term and 32 columns."""
    template: Any = cpp_gemm_template.CppGemmTemplate
    monkeypatch.setattr(inductor_kernels, "cpu_model", lambda: cpu)
    monkeypatch.setattr(template, "_cache_blocking", lambda product, threads: GemmBlocking(*cut))
    product: Any = SimpleNamespace(
        thread_blocking=lambda threads: GemmBlocking(*whole), register_blocking=GemmBlocking(8, 32, 1)
    )
    with inductor_config.patch({"cpp.gemm_cache_blocking": asked_for}), made_our_way():
        found = template._cache_blocking(product, 2)
    assert (found.block_m, found.block_n, found.block_k) == expected
