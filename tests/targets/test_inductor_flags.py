"""Inductor's kernels are built with flags that keep the sums of a product in registers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import cpp_builder

import npucompose
from npucompose.machine import compiler
from npucompose.targets.inductor_flags import GCC, registers_used

FLAGS = [f"-{flag}" for flag in GCC]


def ours(compiler: str) -> list[str]:
    """Of the flags that Inductor gives a compiler."""
    found: list[str] = cpp_builder._get_os_related_cpp_cflags(compiler)
    return [f"-{flag}" for flag in found if f"-{flag}" in FLAGS]


def test_gcc_is_given_the_flags_inside_only_and_clang_never() -> None:
    assert ours("g++") == []
    with registers_used():
        assert ours("/usr/bin/g++-13") == ours("g++") == FLAGS
        assert ours("clang++") == []
    assert ours("g++") == []


@pytest.mark.skipif("g++" not in str(compiler()), reason="the flags are for g++")
def test_a_model_s_kernels_are_built_with_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPUCOMPOSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
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
        found = npucompose.compile(model, "mode=max-autotune", "inductor.replay=wrapper")(x)
        torch.testing.assert_close(found, model(x))
    kernels = [command for command in commands if ".main." in command or "CPU_CAPABILITY" in command]
    assert kernels
    assert all(flag in command for command in kernels for flag in FLAGS)
