"""Which torch_npu version's option tree holds here, and what it refuses. Imports neither torch nor torch_npu."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.schema.compiler import VERSION
from npucompose.schema.experiment import Experiment
from npucompose.schema.versions import REFERENCE, mode_refused, nearest, refused
from npucompose.targets.npu_offline.wheel import Found, find

KEY = f"compiler.{VERSION}"
RUN_THE_GENUINE = ("npu", "npu_offline")
"""Targets on which the torch_npu that is found is the one that runs, whatever the YAML says."""


def found_here() -> Found | None:
    """The torch_npu of this machine."""
    return find()


@frozen(kw_only=True)
class TorchNpu:
    """`TorchNpu(version="2.9.0.post6", by="compiler.torch_npu_version")`."""

    version: str
    """One whose option tree is known."""
    by: str
    """How it was chosen, in words."""

    def told(self, provenance: Mapping[str, str]) -> dict[str, str]:
        """Provenance in which the entry of compiler.torch_npu_version says which version a null stands for."""
        if self.by == KEY:
            return dict(provenance)
        return {**provenance, KEY: f"{provenance.get(KEY, 'default')}; null is {self.version}: {self.by}"}


def torch_npu_of(experiment: Experiment, finder: Callable[[], Found | None]) -> TorchNpu:
    """The version whose tree is taken; ConfigError with every option of the experiment that it has not.

    `compiler.torch_npu_version` says it; else it is the torch_npu that is found here (of a version that is not known,
    the tree of the next older one); else 2.13.0. `finder` looks for it.
    """
    asked, found = experiment.compiler.torch_npu_version, finder()
    if asked is not None and found is not None and experiment.target.name in RUN_THE_GENUINE:
        _same(asked, found, experiment.target.name)
    chosen = TorchNpu(version=asked, by=KEY) if asked is not None else _of(found)
    problems = list(refused(experiment.compiler.changed(), chosen.version, chosen.by))
    wrong_mode = mode_refused(experiment.mode.name, chosen.version, chosen.by)
    problems += [wrong_mode] if wrong_mode else []
    if problems and asked is None:
        problems[-1] += f" Another version's options: {KEY}=…."
    if problems:
        raise ConfigError(*problems)
    return chosen


def _of(found: Found | None) -> TorchNpu:
    if found is None:
        return TorchNpu(version=REFERENCE, by="no torch_npu was found")
    version = nearest(found.version)
    known = "" if version == found.version else f" as {found.version}, whose tree is not known"
    return TorchNpu(version=version, by=f"found by {found.by}{known}")


def _same(asked: str, found: Found, target: str) -> None:
    if nearest(found.version) != asked:
        raise ConfigError(
            f"{KEY}={asked}, but target={target} runs the genuine classes of torch_npu {found.version}, found by "
            f"{found.by}. Leave {KEY} out, or bring the wheel of {asked}: npucompose fetch torch_npu --version {asked}."
        )
