"""The packages of this repository that plug into the core, and what each brings: for the sentence that names one which
is not installed. Knows only words; what is installed is found by entry points (registry.py)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping

from npucompose.version import __version__

PACKAGES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "extras": {
        "model": ("paddle", "transformers", "minilm"),
        "pass": ("dual_batch_overlap",),
        "adapt": ("paddle",),
        "search": ("optuna",),
        "tracker": ("mlflow", "tensorboard", "wandb"),
        "project": ("vllm", "vllm-ascend", "sglang"),
        "dialect": ("cann-recipes-infer", "omni-infer", "vllm-ascend", "vllm", "sglang"),
        "reader of command lines": ("engines",),
    },
    "replay": {"recorder": ("replay",)},
    "devtools": {
        "command": ("compare-dumps", "device-kit", "profile", "protocol", "sizes"),
        "reader of logs and dumps": ("artefacts",),
    },
    "simulator": {"simulator": ("npu",)},
    "vllm": {"section": ("vllm",), "explanation": ("vllm",)},
}
"""{extra of npucompose: {kind of thing: names}}: what a message calls the kind, and the names that it may not know."""


ALONE = {"simulator": "npu-simulator"}
"""Distributions that are not called after npucompose."""


def distribution(extra: str) -> str:
    """`npucompose-extras`, which `pip install 'npucompose[extras]'` brings; it is imported as `npucompose_extras`."""
    return ALONE.get(extra, f"npucompose-{extra}")


def pip_line(extra: str) -> str:
    return f"pip install 'npucompose[{extra}]'"


def not_installed(kind: str, name: str, where: str = "") -> str | None:
    """`model 'minilm' @ model=minilm comes with npucompose-extras, which is not installed: …`; None for what no package
    brings."""
    at = f" @ {where}" if where else ""
    for extra, brought in PACKAGES.items():
        if name in brought.get(kind, ()):
            return f"{kind} '{name}'{at} comes with {distribution(extra)}, which is not installed: {pip_line(extra)}."
    return None


def extra_of(name: str) -> str | None:
    """The extra that brings a distribution; None for one that is not of this repository."""
    return next((extra for extra in PACKAGES if distribution(extra) == name.lower().replace("_", "-")), None)


def other_version(name: str, version: str) -> str | None:
    """Why an installed distribution cannot be used: it is one of ours, of another version than the core."""
    extra = extra_of(name)
    if extra is None or version == __version__:
        return None
    return (
        f"{name} {version} is installed beside npucompose {__version__}, and both must have one version: "
        f"pip install 'npucompose[{extra}]=={__version__}'."
    )


def folder_of(package: str) -> tuple[str, ...]:
    """Where an installed package of Python lies, with a separator behind it; empty for one that is not installed."""
    found = importlib.util.find_spec(package)
    return () if found is None or found.origin is None else (f"{os.path.dirname(found.origin)}{os.sep}",)


def folders() -> tuple[str, ...]:
    """Of the core and its packages, whose lines no message names as a person's own; models and passes of the extras are
    named as those of any other package."""
    packages = [distribution(extra).replace("-", "_") for extra in PACKAGES if extra != "extras"]
    return tuple(folder for package in ("npucompose", "airflow_free", *packages) for folder in folder_of(package))
