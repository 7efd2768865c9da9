"""Which of Inductor's options act, and where it is an error to ask for one that does not."""

from __future__ import annotations

from collections.abc import Mapping

from npucompose.errors import ConfigError
from npucompose.schema.effective import Effective
from npucompose.schema.experiment import Experiment
from npucompose.schema.inductor import WHERE
from npucompose.schema.leaf import GE, shown
from npucompose.targets.base import Target

OF_DEVICES: Mapping[str, str] = {
    "triton": "cuda", "cutlass": "cuda", "cuda": "cuda", "rocm": "another GPU", "xpu": "another GPU",
    "mtia": "another device", "halide": "another compiler",
}  # fmt: skip
"""{group of options: where it acts}; all others act on the CPU, and on a GPU for what runs on the host."""
FREEZING = ("freezing", "frozen_weights", "cpp.weight_prepack")


def inductor_options(experiment: Experiment, target: Target) -> tuple[Effective, ...]:
    """Options of `inductor` that do not take effect; ConfigError for those that the mode or `strict` refuses."""
    mode, strict = experiment.mode.name, experiment.strict
    problems: list[str] = []
    found: list[Effective] = []
    for path, value in experiment.inductor.changed().items():
        why, refused_by = _why(path, experiment, target)
        if not why:
            continue
        if strict in refused_by and mode != "eager":
            problems.append(f"{WHERE}.{path}={shown(value)} {why}.")
        found.append(Effective(option=f"{WHERE}.{path}", requested=value, effective=None, why=why))
    if problems:
        raise ConfigError(*problems)
    return tuple(found)


def _why(path: str, experiment: Experiment, target: Target) -> tuple[str, tuple[str, ...]]:
    """(the end of a sentence, which `strict` refuses it)."""
    mode = experiment.mode.name
    if mode == "eager":
        return "is not acting: eager compiles nothing", ()
    if mode != GE:
        return f"does not act in mode={mode}, which does not use Inductor; it acts in: {GE}", ("mode", "all")
    if not target.support(mode).fuses:
        return f"has no meaning on target={target.name}, whose compiler is not Inductor", ("all",)
    elsewhere = OF_DEVICES.get(path.partition(".")[0])
    if elsewhere not in (None, target.name):
        return f"has no meaning on target={target.name}; it acts on {elsewhere}", ("all",)
    if path in FREEZING and experiment.compile.training:
        return "is not acting: weights that are trained cannot be constants", ("all",)
    if path == "frozen_weights" and not experiment.inductor.settings().get("freezing"):
        return "is not acting: inductor.freezing is off, and no weight is frozen", ("mode", "all")
    return "", ()
