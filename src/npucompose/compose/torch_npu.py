"""Which torch_npu version's option tree holds here, and what it refuses. Imports neither torch nor torch_npu."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from attrs import evolve, frozen

from npucompose.errors import ConfigError
from npucompose.results.effective import Effective
from npucompose.schema.experiment import Experiment
from npucompose.targets.npu_offline.option_trees import live_tree
from npucompose.targets.npu_offline.wheel import UnpackedWheel, find
from npucompose.vendor.compiler import VERSION, CompilerOptions
from npucompose.vendor.versions import REFERENCE, Doubt, assumed, doubted, known, learn, mode_refused, refused

KEY = f"compiler.{VERSION}"


def found_here() -> UnpackedWheel | None:
    """The torch_npu of this machine; from now on its version has the tree that its own files declare."""
    found = find()
    if found is not None:
        _learn(found)
    return found


def _learn(found: UnpackedWheel) -> None:
    """What cannot be read leaves the version to the table: as it is, or assumed."""
    with suppress(ConfigError, OSError):
        leaves = live_tree(found.tree)
        if leaves is not None:
            learn(found.version, leaves)


@frozen(kw_only=True)
class TorchNpu:
    """`TorchNpu(version="2.9.0.post6", by="compiler.torch_npu_version")`."""

    version: str
    """Whose option tree is taken: read from its wheel, known, or assumed."""
    by: str
    """How it was chosen, in words."""
    doubts: tuple[Doubt, ...] = ()
    """Options that only newer versions are known to have, where the tree is assumed."""

    def told(self, provenance: Mapping[str, str]) -> dict[str, str]:
        """Provenance in which the entry of compiler.torch_npu_version says which version a null stands for."""
        if self.by == KEY:
            said = f"{provenance.get(KEY, 'default')}{_assumption(self.version)}"
            return {**provenance, KEY: said} if assumed(self.version) else dict(provenance)
        return {**provenance, KEY: f"{provenance.get(KEY, 'default')}; null is {self.version}: {self.by}"}

    def effective(self, options: CompilerOptions) -> tuple[Effective, ...]:
        """What nobody can say of the options that were asked for."""
        return tuple(
            Effective(option=f"compiler.{one.path}", requested=options[one.path], effective=None, why=one.why)
            for one in self.doubts
        )


def torch_npu_of(experiment: Experiment, finder: Callable[[], UnpackedWheel | None], *, runs: bool = False) -> TorchNpu:
    """The version whose tree is taken; ConfigError with every option of the experiment that it has not.

    `compiler.torch_npu_version` says it; else it is the torch_npu that is found here, whose tree is read from its
    files; else 2.13.0. Of a version that is not known and is not here, the tree of the next older one is assumed.
    `finder` looks for it; `runs` says that what it finds is what compiles.
    """
    asked, found = experiment.compiler.torch_npu_version, finder()
    if asked is not None and found is not None and runs:
        _same(asked, found, experiment.target.name)
    chosen = TorchNpu(version=asked, by=KEY) if asked is not None else _of(found)
    problems = list(refused(experiment.compiler.changed(), chosen.version, chosen.by))
    wrong_mode = mode_refused(experiment.mode.name, chosen.version, chosen.by)
    problems += [wrong_mode] if wrong_mode else []
    if problems and asked is None:
        problems[-1] += f" Another version's options: {KEY}=…."
    chosen = evolve(chosen, doubts=doubted(experiment.compiler.changed(), chosen.version))
    if experiment.strict == "all":
        problems += [f"compiler.{one.path}: {one.why}." for one in chosen.doubts]
    if problems:
        raise ConfigError(*problems)
    return chosen


def _of(found: UnpackedWheel | None) -> TorchNpu:
    if found is None:
        return TorchNpu(version=REFERENCE, by="no torch_npu was found")
    return TorchNpu(version=found.version, by=f"found by {found.by}{_assumption(found.version)}")


def _assumption(version: str) -> str:
    """`; its tree was not read, that of 2.12.0.post3 is assumed`."""
    stands_in = assumed(version)
    return f"; its tree was not read, that of {stands_in} is assumed" if stands_in else ""


def _same(asked: str, found: UnpackedWheel, target: str) -> None:
    if known(found.version) != asked:
        raise ConfigError(
            f"{KEY}={asked}, but target={target} runs the genuine classes of torch_npu {found.version}, found by "
            f"{found.by}. Leave {KEY} out, or bring the wheel of {asked}: npucompose fetch torch_npu --version {asked}."
        )
