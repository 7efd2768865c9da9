"""vLLM: its platform plug-in, compiler, pass manager and static-graph wrapper, all of one recipe.

This module imports nothing of vLLM and no torch: vLLM looks for platforms before its own modules are whole. Read for
vLLM 0.32 (`vllm/platforms/__init__.py`, `vllm/compilation/`).
"""

from __future__ import annotations

CPU = "vllm.platforms.cpu.CpuPlatform"
"""The platform of vLLM's that a recipe acts on."""


def register() -> str | None:
    """The platform class for vLLM's entry-point group `vllm.platform_plugins`; None where vLLM itself finds no CPU.

    Without a recipe that class answers everything as vLLM's own does: vLLM asks for platforms before it has read a
    command line, so that nobody can know yet.
    """
    from vllm.platforms import builtin_platform_plugins  # pyright: ignore[reportMissingImports]

    return f"{__name__}.platform.RecipePlatform" if builtin_platform_plugins["cpu"]() == CPU else None
