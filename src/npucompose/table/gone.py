"""Options that have gone: what there is instead, for the person who still says one, and what a recipe that an earlier
version wrote may say of one. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

GONE = {
    "target.linear": "a product is MKL's or torch's, or Inductor's own kernel where it measures that one faster; other "
    "libraries gained a percent (docs/tunings.md)",
    "target.measuring": "Inductor alone measures, once on a machine, which remembers it; inductor.max_autotune=false "
    "measures nothing",
    "target.measure_ms": "Inductor alone measures, as long as it takes",
}
"""{an option: what there is instead}."""
OF_OTHER_KERNELS = {"linear": ("onednn", "aten")}
"""{a key of `target` that has gone: its values that nothing computes today}; all others asked for what holds now."""


def instead_of(key: str) -> str:
    """A sentence about a key that has gone, with a space before it; '' for every other one."""
    return f" It has gone: {GONE[key]}." if key in GONE else ""


def without_gone(experiment: Mapping[str, Any]) -> Mapping[str, Any]:
    """The experiment of a recipe without options that have gone; those stay that asked for what there is no more."""
    target = experiment.get("target")
    if not isinstance(target, Mapping):
        return experiment
    said = {
        key: value
        for key, value in cast("Mapping[str, Any]", target).items()
        if f"target.{key}" not in GONE or value in OF_OTHER_KERNELS.get(key, ())
    }
    return {**experiment, "target": said}
