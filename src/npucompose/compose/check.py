"""The plain tree against every schema it touches: experiment, compiler options, passes, target, model. One verdict.

All mistakes are reported at once, each with its path. Nothing is built and no torch is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeVar

import attrs
from attrs import evolve, frozen

from npucompose.compose.conf import located
from npucompose.compose.legality import effective_options
from npucompose.compose.legality_case import LegalityCase, judged, scenario_problems, unread_sizes
from npucompose.compose.tree import COMMAND_LINE, DEFAULT, Composed
from npucompose.compose.untrusted_config import address_problems, path_problems
from npucompose.errors import ConfigError, listed, raise_for
from npucompose.models import MODELS
from npucompose.models.base import Model
from npucompose.npu.static_graph.operators import OperatorTable, shipped_table
from npucompose.passes.base import Pass
from npucompose.passes.pipeline import build
from npucompose.registry import Registry
from npucompose.results.effective import Effective, origin
from npucompose.schema.experiment import Choice, Experiment
from npucompose.schema.sections import Extensions
from npucompose.table.structure import classes_of, structure
from npucompose.targets import TARGETS
from npucompose.targets.base import Target
from npucompose.targets.npu_offline.operator_lists import live_lists
from npucompose.targets.npu_offline.option_trees import live_tree
from npucompose.targets.npu_offline.wheel import UnpackedWheel, find
from npucompose.vendor import wheel_operators
from npucompose.vendor.compiler import VERSION, CompilerOptions
from npucompose.vendor.inductor import InductorOptions
from npucompose.vendor.versions import REFERENCE, Doubt, assumed, doubted, known, learn, mode_refused, refused

T = TypeVar("T")
TILING_SINK = "experimental_config.tiling_schedule_optimize"


@frozen(kw_only=True)
class Checked:
    """An experiment whose every part is known, legal and possible on this machine; nothing of it is built yet."""

    experiment: Experiment
    passes: tuple[tuple[str, Pass], ...]
    target: Target
    model: Model | None
    """None when a model comes from elsewhere (npucompose.compile)."""
    effective: tuple[Effective, ...]
    provenance: Mapping[str, str]
    torch_npu: TorchNpu
    """Whose option tree the compiler options were checked against."""
    operators: OperatorTable
    """Which operators' tiling reads values: the project's rows and the experiment's."""


class SectionCache:
    """What the checks of many points share: this machine's torch_npu, sections of their trees that are one object."""

    def __init__(self) -> None:
        self.torch_npu = cache(found_here)
        self._made: dict[tuple[str, int], tuple[Any, Any]] = {}

    def with_sections(self, tree: dict[str, Any]) -> dict[str, Any]:
        """The tree with each section made already that can be made; the problems of the others are told later."""
        made = dict(tree)
        for name, kind in _sections().items():
            section = tree.get(name)
            if isinstance(section, dict):
                key = name, id(section)
                if key not in self._made:
                    self._made[key] = section, gather([], partial(structure, kind, section, name))
                made[name] = self._made[key][1] or section
        return made


@cache
def _sections() -> dict[str, Any]:
    """{field of an experiment: its class or classes}; choices are shaped anew for each point, and are not shared."""
    fields = attrs.fields(attrs.resolve_types(Experiment))
    return {f.name: f.type for f in fields if f.type not in (Choice, Extensions) and classes_of(f.type)}


def _readable(tree: dict[str, Any], problems: Sequence[str]) -> Experiment | None:
    """The experiment without the sections that cannot be read, so that the rest is checked too; None where one of them
    has no default."""
    good, left = dict(tree), len(problems)
    for name in tree:
        found: list[str] = []
        without = {key: value for key, value in good.items() if key != name}
        experiment = gather(found, partial(structure, Experiment, without, ""))
        if experiment is not None:
            return experiment
        if len(found) < left:
            good, left = without, len(found)
    return None


def check(composed: Composed, *, with_model: bool = True, sections: SectionCache | None = None) -> Checked:
    """Everything that can be known to be wrong before anything runs, in one ConfigError; each value that a file says
    with the file and its line."""
    said_by, sink = dict(composed.provenance), f"compiler.{TILING_SINK}"
    if said_by.get(sink, DEFAULT) == DEFAULT:
        said_by[sink] = said_by.get("tiling.schedule", DEFAULT)
    with located(said_by, composed.files):
        return _checked(composed, with_model=with_model, sections=sections)


def _trust_problems(experiment: Experiment, composed: Composed) -> Iterator[str]:
    trusting = composed.provenance.get("trust", DEFAULT)
    if experiment.trust and trusting != COMMAND_LINE:
        said = "" if trusting.partition(",")[0] in composed.files else f" (it comes from {trusting})"
        yield f"'trust' is true{said}, and only the command line itself can say so: add trust=true there."


def _checked(composed: Composed, *, with_model: bool, sections: SectionCache | None) -> Checked:
    sections = sections or SectionCache()
    gather(list(composed.problems), sections.torch_npu)  # before the options are read: they are those of its tree
    problems = list(composed.problems)
    tree = sections.with_sections(shaped(composed.tree, problems))
    unread: list[str] = []
    experiment = gather(unread, lambda: structure(Experiment, tree, "")) or _readable(tree, unread)
    problems += unread
    if experiment is None:
        raise ConfigError(*problems)
    problems += _trust_problems(experiment, composed)
    said_by = partial(origin, composed.provenance)
    problems += address_problems(experiment.executor, said_by, trust=experiment.trust)
    experiment = _with_adapt(_with_tiling(experiment))
    fields = {f.name: getattr(experiment, f.name) for f in attrs.fields(Experiment)}
    of_target: list[str] = []
    target = gather(of_target, lambda: _made(TARGETS, experiment.target, "target"))
    runs = target is not None and target.capabilities(experiment.mode.name).vendor_compiler
    if target is None or runs:  # elsewhere the vendor's compiler writes nothing
        problems += path_problems(experiment.compiler, said_by)
    torch_npu = gather(problems, lambda: torch_npu_of(experiment, sections.torch_npu, runs=runs))
    passes = gather(problems, lambda: build(experiment.passes, fields))
    problems += of_target
    if target is not None:
        fields["device"] = target.capabilities(experiment.mode.name).device
    model = gather(problems, lambda: _made(MODELS, experiment.model, "model", fields)) if with_model else None
    model, said_by_model = _settled(model, experiment, composed.trust_with, problems)
    _pass_problems(passes or (), experiment, composed.trust_with, problems)
    effective, unread_scenario = None, ()
    problems += scenario_problems(experiment, model)
    operators = gather(problems, lambda: shipped_table().with_rows(experiment.sinking.operators))
    if target is not None:
        gather(problems, lambda: shipped_table().product(target.soc))
        gather(problems, lambda: target.check(experiment.mode.name))
        effective = gather(problems, lambda: effective_options(experiment, target, passes or ()))
        asked = LegalityCase(experiment=experiment, target=target)
        unread_scenario = gather(problems, lambda: judged((unread_sizes,), asked)) or ()
    if problems or passes is None or target is None or torch_npu is None or operators is None:
        raise ConfigError(*dict.fromkeys(problems))
    return Checked(
        experiment=experiment,
        passes=passes,
        target=target,
        model=model,
        effective=(*torch_npu.effective(experiment.compiler), *(effective or ()), *unread_scenario),
        provenance=torch_npu.with_version(_complete(experiment, {**composed.provenance, **said_by_model})),
        torch_npu=torch_npu,
        operators=operators,
    )


def gather(problems: list[str], make: Callable[[], T]) -> T | None:
    try:
        return make()
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def shaped(tree: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Choices (`target: {name: cpu, executor: auto}`) as name and options; passes likewise, by label."""
    shaped = dict(tree)
    for group in ("target", "model"):
        section = shaped.get(group)
        if isinstance(section, Mapping):
            options = dict(section)
            name = options.pop("name", None)
            if not isinstance(name, str):
                problems.append(f"'name' is missing @ {group}: it says which {group} this is.")
                shaped.pop(group)
            else:
                shaped[group] = Choice(name=name, options=options)
    passes = shaped.get("passes") or {}
    if isinstance(passes, list):
        problems.append(_listed_passes(passes))
        shaped["passes"] = {}
    elif isinstance(passes, Mapping):
        shaped["passes"] = {
            str(label): _pass_choice(str(label), options, problems) for label, options in passes.items()
        }
    return shaped


def _listed_passes(names: list[Any]) -> str:
    """A list chooses files, which a value cannot."""
    options = ", ".join(f"{name}: {{}}" for name in names)
    chosen = f"- override /passes: [{listed(map(str, names))}]"
    return (
        f"'passes' is a list, which only a defaults list and the command line may hold: write '{chosen}' below "
        f"`defaults:`, or the passes with their options, passes: {{{options}}}."
    )


def _pass_choice(label: str, options: Any, problems: list[str]) -> Choice:
    if options is not None and not isinstance(options, Mapping):
        problems.append(f"this must be a mapping of the pass's options: {options!r} @ passes.{label}")
    rest = dict(options) if isinstance(options, Mapping) else {}
    return Choice(name=str(rest.pop("pass", label)), options=rest)


def _made(registry: Registry[type[T]], choice: Choice, group: str, experiment: Mapping[str, Any] | None = None) -> T:
    if choice.name not in registry and "factory" in choice.options:
        raise ConfigError(
            f"unknown {group} '{choice.name}' @ {group}.name. A {group} that a factory of yours makes has name: python "
            f"and, as reports call it, label: {choice.name}."
        )
    return structure(registry.get(choice.name), dict(choice.options), group, experiment)


def _settled(
    model: Model | None, experiment: Experiment, trust_with: str, problems: list[str]
) -> tuple[Model | None, Mapping[str, str]]:
    """The model, checked, and who says what only its own code says; code is looked at once it is trusted."""
    if model is None:
        return None, {}
    if model.needs_trust and not experiment.trust:
        problems.append(_untrusted(f"model={experiment.model.name}", trust_with))
        return model, {}
    before = len(problems)
    gather(problems, model.check)
    if len(problems) > before:
        return model, {}
    settled, said_by = model.settled()
    return settled, {f"model.{name}": by for name, by in said_by.items()}


def _untrusted(what: str, trust_with: str) -> str:
    return (
        f"{what} imports code that the configuration names, and trust is false. If you trust that code, add "
        f"{trust_with} to the command line (no file can set it)."
    )


def _pass_problems(
    passes: Sequence[tuple[str, Pass]], experiment: Experiment, trust_with: str, problems: list[str]
) -> None:
    for label, a_pass in passes:
        if a_pass.needs_trust and not experiment.trust:
            problems.append(_untrusted(f"passes.{label}", trust_with))
            continue
        gather(problems, a_pass.check)
        for keyword in ("training", "cache"):
            if a_pass.freezes and getattr(experiment.compile, keyword):
                problems.append(
                    f"passes.{label} makes constants of parameters, which compile.{keyword}=true cannot have: "
                    "leave one of the two out."
                )


def _with_tiling(experiment: Experiment) -> Experiment:
    """tiling=sink is the compiler option of that name; the group is its short form."""
    if experiment.tiling.schedule != "sink":
        return experiment
    return attrs.evolve(experiment, compiler=experiment.compiler.with_values({TILING_SINK: True}))


def _with_adapt(experiment: Experiment) -> Experiment:
    """adapt=ascend alone puts the pass that follows the rules in front of the others."""
    if not experiment.adapt.rules or any(choice.name == "adapt" for choice in experiment.passes.values()):
        return experiment
    return attrs.evolve(experiment, passes={"adapt": Choice(name="adapt"), **experiment.passes})


def _complete(experiment: Experiment, provenance: Mapping[str, str]) -> dict[str, str]:
    """An origin for every leaf of the experiment; what no file and no override names is a schema default."""
    origins = dict(provenance)
    named = {path.rsplit(".", cut)[0] for path in origins for cut in range(path.count(".") + 1)}
    for field in attrs.fields(Experiment):
        value = getattr(experiment, field.name)
        if isinstance(value, (CompilerOptions, InductorOptions)):
            names = [f"{field.name}.{path}" for path in value.changed()]
        elif isinstance(value, Extensions):
            names = [
                f"{field.name}.{one}.{f.name}" for one, made in value.named.items() for f in attrs.fields(type(made))
            ]
        elif attrs.has(type(value)) and not isinstance(value, Choice):
            names = [f"{field.name}.{f.name}" for f in attrs.fields(type(value))]
        else:
            names = [field.name]
        for name in names:
            if name not in named:
                origins[name] = DEFAULT
    for label in experiment.passes:
        origins.setdefault(f"passes.{label}.pass", _who_chose(f"passes.{label}", provenance))
    if experiment.tiling.schedule == "sink":
        origins[f"compiler.{TILING_SINK}"] = origins["tiling.schedule"]
    if "adapt" in experiment.passes and "passes.adapt" not in named:
        origins["passes.adapt.pass"] = origins["adapt.name"]
    return origins


def _who_chose(section: str, provenance: Mapping[str, str]) -> str:
    """Where a section that names itself comes from: the file that brought it, not the options set in it afterwards."""
    inside = [by for path, by in provenance.items() if path == section or path.startswith(f"{section}.")]
    return next((by for by in inside if by != COMMAND_LINE), inside[0] if inside else DEFAULT)


# Which torch_npu version's option tree holds here, and what it refuses. torch_npu itself is not imported.

KEY = f"compiler.{VERSION}"


def found_here() -> UnpackedWheel | None:
    """The torch_npu of this machine; from now on its version has the options and the operators that its own files
    declare.
    """
    found = find()
    if found is not None:
        wheel_operators.learn(found.version, partial(live_lists, found.tree))
    with suppress(ConfigError, OSError):  # what cannot be read leaves the version to the table: as it is, or assumed
        if found is not None and (leaves := live_tree(found.tree)) is not None:
            learn(found.version, leaves)
    return found


@frozen(kw_only=True)
class TorchNpu:
    """`TorchNpu(version="2.9.0.post6", by="compiler.torch_npu_version")`."""

    version: str
    """Whose option tree is taken: read from its wheel, known, or assumed."""
    by: str
    """How it was chosen, in words."""
    doubts: tuple[Doubt, ...] = ()
    """Options that only newer versions are known to have, where the tree is assumed."""

    def with_version(self, provenance: Mapping[str, str]) -> dict[str, str]:
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
    if asked is not None and found is not None and runs and known(found.version) != asked:
        raise ConfigError(
            f"{KEY}={asked}, but target={experiment.target.name} runs the genuine classes of torch_npu "
            f"{found.version}, found by {found.by}. Leave {KEY} out, or bring the wheel of {asked}: npucompose fetch "
            f"torch_npu --version {asked}."
        )
    chosen = TorchNpu(version=asked, by=KEY) if asked is not None else _of(found)
    problems = list(refused(experiment.compiler.changed(), chosen.version, chosen.by))
    wrong_mode = mode_refused(experiment.mode.name, chosen.version, chosen.by)
    problems += [wrong_mode] if wrong_mode else []
    if problems and asked is None:
        problems[-1] += f" Another version's options: {KEY}=…."
    chosen = evolve(chosen, doubts=doubted(experiment.compiler.changed(), chosen.version))
    if experiment.strict == "all":
        problems += [f"compiler.{one.path}: {one.why}." for one in chosen.doubts]
    raise_for(problems)
    return chosen


def _of(found: UnpackedWheel | None) -> TorchNpu:
    if found is None:
        return TorchNpu(version=REFERENCE, by="no torch_npu was found")
    return TorchNpu(version=found.version, by=f"found by {found.by}{_assumption(found.version)}")


def _assumption(version: str) -> str:
    """`; its tree was not read, that of 2.12.0.post3 is assumed`."""
    stands_in = assumed(version)
    return f"; its tree was not read, that of {stands_in} is assumed" if stands_in else ""
