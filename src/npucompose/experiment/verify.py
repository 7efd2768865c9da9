"""`npucompose recipe lock | show | verify`: a lock against another one, or against a run here and now: what is the
same, what differs, does the result hold?
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import frozen

from airflow_free.store import Store
from npucompose import commands
from npucompose.compose.tree import COMMAND_LINE, Composed, compose
from npucompose.errors import ConfigError, NpuComposeError, visible
from npucompose.experiment.job import Job, check_claims
from npucompose.experiment.lock import EXCLUDED, Locked, read
from npucompose.experiment.orchestrator import default_store
from npucompose.experiment.run import LOCKED, run_experiment
from npucompose.input_safety import read_text
from npucompose.results import premises
from npucompose.results.graphs import counted
from npucompose.results.measured import Numerics
from npucompose.results.record import EXIT_STATUS
from npucompose.table.structure import facts_of
from npucompose.vendor.option_specs import shown
from npucompose.version import __version__

Kernels = Literal["locked", "measured"]
DECIDING = ("configuration", "graphs", "numerics", "speedup", "expectations")
"""What has to agree. Another machine has another device and may have other versions: those are told."""
ORIGIN = "recipe.lock.yaml"
ORDER = "(order)"
KERNELS = "target.kernels"
"""What of a configuration only says what was chosen: compared as what was in fact chosen, apart."""


@frozen(kw_only=True)
class LockDifference:
    """`Difference(part="versions", field="torch", locked="2.13.0", here="2.14.0")`."""

    part: str
    field: str
    locked: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.part}.{self.field}: locked {_short(self.locked)}, here {_short(self.here)}"


@frozen(kw_only=True)
class LockVerdict:
    compared: Mapping[str, int]
    """{part: how many values were compared}."""
    differences: tuple[LockDifference, ...]

    @property
    def holds(self) -> bool:
        return not any(d.part in DECIDING for d in self.differences)


def job_of(locked: Locked, *, trust: bool = False) -> Job:
    """The locked experiment, checked on this machine as any other; only the command line can trust."""
    tree = {**locked.experiment, "trust": trust}
    provenance = dict.fromkeys(locked.experiment, ORIGIN) | ({"trust": COMMAND_LINE} if trust else {})
    try:
        return Job.from_composed(Composed(tree=tree, provenance=provenance, trust_with="--trust"))
    except ConfigError as error:
        raise ConfigError(*error.problems, *_of_another_version(locked)) from error


def _of_another_version(locked: Locked) -> Iterator[str]:
    """Why a recipe that was legal once may not be, where another version wrote it."""
    by = locked.versions.get("npucompose")
    if by and by != __version__:
        yield (
            f"The recipe was locked with npucompose {by} and this is {__version__}: where an option has gone, "
            f"CHANGELOG.md says what took its place; npucompose {by} verifies it as it is."
        )


def completed(locked: Locked, *, trust: bool = False) -> Locked:
    """The recipe with the options that are newer than it, at the defaults that they have here; what it says stays.

    ConfigError where this version or this machine cannot do what it says.
    """
    here = job_of(locked, trust=trust).ingredients.values
    known = {name: value for name, value in here.items() if name not in EXCLUDED}
    return attrs.evolve(locked, experiment=_over(known, locked.experiment))


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above`, and what only `below` has; in the order of `above`, which counts where passes are named."""
    both = {
        name: _over(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
        for name, value, under in ((name, value, below.get(name)) for name, value in above.items())
    }
    return both | {name: value for name, value in below.items() if name not in above}


def run_again(locked: Locked, *, trust: bool = False, kernels: Kernels = "locked") -> Locked:
    """The same experiment run here, with a store of its own so that nothing is taken from an earlier run; computed by
    the kernels that the recipe names, or by those that are chosen here."""
    locked = locked if kernels == "locked" else locked.without_measured()
    job = job_of(locked, trust=trust)
    with tempfile.TemporaryDirectory(prefix="npucompose-verify-") as folder:
        return lock(job, store=Store(Path(folder)))


def lock(job: Job, *, store: Store) -> Locked:
    """Run it and lock what came of it; NpuComposeError when it did not go to its end."""
    with tempfile.TemporaryDirectory(prefix="npucompose-lock-") as folder:
        report = run_experiment(job, Path(folder), store=store)
    if report.exit_status not in LOCKED:
        raise NpuComposeError(f"{report.status}: {report.error}")
    return Locked.from_report(job.ingredients, report)


def compared(locked: Locked, here: Locked, *, tolerance: float) -> LockVerdict:
    """`tolerance` is the part of the locked speed-up that may be missing: 0.2 takes 1.6 for 2.0."""
    there, here_now = _parts(locked), _parts(here)
    differences = [
        LockDifference(part=part, field=name, locked=then.get(name), here=now.get(name))
        for part, then, now in ((part, there[part], here_now[part]) for part in there)
        for name in dict.fromkeys([*then, *now])
        if then.get(name) != now.get(name) and not _said_by_others(name, then, now)
        if not (part == "graphs" and _lies_in(name, locked.lacks))
    ]
    return LockVerdict(
        compared={part: len(values) for part, values in there.items() if values or here_now[part]},
        differences=(
            *differences,
            *_numerics(locked, here),
            *_speedup(locked, here, tolerance),
            *_expectations(locked, here),
        ),
    )


def _parts(side: Locked) -> dict[str, dict[str, Any]]:
    experiment = {name: value for name, value in side.experiment.items() if name not in EXCLUDED}
    graphs = {g.id: {name: value for name, value in facts_of(g).items() if name != "winners"} for g in side.graphs}
    return {
        "configuration": {n: v for n, v in _leaves(experiment) if not _lies_in(n, (KERNELS,))},
        "kernels": {one.key: one.winner for graph in side.graphs for one in graph.winners},
        "graphs": dict(_leaves(graphs)),
        "versions": dict(side.versions),
        "device": dict(side.device),
        "sources": dict(side.sources),
    }


def _leaves(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value); an empty mapping is a value, and so is the order of a mapping's names."""
    for name, value in tree.items():
        path = f"{at}.{name}" if at else str(name)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value
    if tree and all(isinstance(value, Mapping) for value in tree.values()):
        yield f"{at}.{ORDER}".lstrip("."), list(tree)


def _said_by_others(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """An empty mapping, or the order of a mapping, that only one side has: what it holds on the other side is named."""
    if name in then and name in now:
        return False
    value = then.get(name, now.get(name))
    return name.endswith(ORDER) or (value == {} and any(other.startswith(f"{name}.") for other in (*then, *now)))


def _lies_in(name: str, facts: Collection[str]) -> bool:
    """`graph_0.partition.segments` lies in `graph_0.partition`."""
    return any(name == fact or name.startswith(f"{fact}.") for fact in facts)


def unjudged(locked: Locked, here: Locked) -> dict[str, Any]:
    """{fact of a graph: what it is here} of what the version that wrote the recipe did not know yet."""
    return {name: value for name, value in _parts(here)["graphs"].items() if _lies_in(name, locked.lacks)}


def _numerics(locked: Locked, here: Locked) -> Iterator[LockDifference]:
    """What held there has to hold here: the comparison with eager, and equality of bits where there was one."""
    for name in ("passed", "bitwise"):
        then, now = (getattr(side.result.numerics, name, None) for side in (locked, here))
        if then and not now:
            yield LockDifference(part="numerics", field=name, locked=True, here=now)


def _speedup(locked: Locked, here: Locked, tolerance: float) -> Iterator[LockDifference]:
    """A faster machine breaks no promise; what was not measured there promises nothing."""
    then, now = (b.speedup if (b := side.result.benchmark) is not None else {} for side in (locked, here))
    for name, value in then.items():
        found = now.get(name)
        if found is None or found < value * (1 - tolerance):
            yield LockDifference(part="speedup", field=name, locked=value, here=found)


def _expectations(locked: Locked, here: Locked) -> Iterator[LockDifference]:
    """An expectation that held there and does not here; what this run could not find out does not hold."""
    missed_there = {one.name for one in locked.result.expectations if not one.held}
    if here.result.status == "expect_failed" and not here.result.expectations and locked.result.status == "ok":
        yield LockDifference(part="expectations", field="status", locked="ok", here="expect_failed")
    if locked.result.status == "expect_failed" and not locked.result.expectations:
        return  # which ones held there, nobody wrote down
    for one in here.result.expectations:
        if not one.held and one.name not in missed_there:
            got = f"{_short(one.got)}, wanted {_short(one.wanted)}"
            yield LockDifference(part="expectations", field=one.name, locked="held", here=got)


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= 60 else f"{text[:12]}…"


CHOICES = ("mode", "shapes", "tiling", "streams", "target", "model")


def described(locked: Locked) -> str:
    """What a person wants to know of a recipe first."""
    return visible("\n".join(_lines(locked)) + "\n")


def _lines(locked: Locked) -> Iterator[str]:
    yield " · ".join(f"{group}={_choice(locked.experiment.get(group))}" for group in CHOICES)
    passes = locked.experiment.get("passes")
    yield f"passes: {', '.join(map(str, passes)) if isinstance(passes, Mapping) and passes else 'none'}"
    yield f"configuration {locked.configuration[:12]}"
    for graph in locked.graphs:
        nodes = f"{graph.nodes_before} -> {graph.nodes_after} nodes"
        yield f"graph {graph.id}: {graph.fx}, {nodes}, {graph.fingerprint[:12]}"
    yield "locked with " + ", ".join(f"{name} {version}" for name, version in locked.versions.items())
    yield "on " + ", ".join(f"{name}: {value}" for name, value in locked.device.items())
    yield "sources: " + ", ".join(f"{name} {sha[:12]}" for name, sha in locked.sources.items())
    numerics, benchmark = locked.result.numerics, locked.result.benchmark
    yield f"result: {locked.result.status}, " + (f"equals eager: {_equal(numerics)}" if numerics else "not compared")
    if benchmark is not None:
        speed = ", ".join(f"{value:.2f}x {name}" for name, value in benchmark.speedup.items())
        yield f"measured: p50 {benchmark.p50_us:.1f} µs of {len(benchmark.samples_us)} samples, {speed}"


def _choice(section: Any) -> str:
    """Of a choice: its label, its name; tiling calls it its schedule."""
    if not isinstance(section, Mapping):
        return str(None)
    return str(section.get("label") or section.get("name", section.get("schedule")))


def _equal(numerics: Numerics) -> str:
    if numerics.bitwise:
        return "bit for bit"
    return "within its tolerance" if numerics.passed else "no"


def _without_a_count(locked: Locked) -> Iterator[tuple[str, str]]:
    """(part, what is said where nothing differs) of the result."""
    absent = "not in the recipe"
    asked = locked.result.expectations or any(v is not None for v in (locked.experiment.get("expect") or {}).values())
    yield "numerics", "hold" if locked.result.numerics else absent
    yield "speedup", "holds" if locked.result.benchmark else absent
    yield (
        "expectations",
        ("as in the recipe" if locked.result.status == "expect_failed" else "hold") if asked else absent,
    )


def judged(verdict: LockVerdict, locked: Locked, here: Locked, newer: Mapping[str, Any] | None = None) -> str:
    """Each part with how many values were compared, each difference on a line of its own, the verdict last.

    `newer` is {option that the recipe does not have: its default here}.
    """
    lines: list[str] = []
    agreeing = {part: f"the same ({count} values)" for part, count in verdict.compared.items()}
    agreeing |= dict(_without_a_count(locked))
    for part, words in agreeing.items():
        own = [d for d in verdict.differences if d.part == part]
        differ = f"{len(own)} of {verdict.compared[part]} differ" if part in verdict.compared else "differ"
        lines += [f"{part}: {differ if own else words}", *(f"  {difference}" for difference in own)]
    if newer:
        lines += [f"newer than the recipe: {counted(len(newer), 'option')}, at the default of this version"]
        lines += [f"  {name}={_short(value)}" for name, value in newer.items()]
    if others := [one for graph in here.graphs for one in graph.winners if one.here is not None]:
        lines += [f"kernels of the recipe: {counted(len(others), 'choice')} that this machine would make otherwise"]
        lines += [f"  {one.words}" for one in others]
    if facts := unjudged(locked, here):
        lines += [f"not judged: {counted(len(facts), 'fact')} that the version of the recipe did not know"]
        lines += [f"  {name}={_short(value)}" for name, value in facts.items()]
    others = sorted({d.part for d in verdict.differences if d.part not in DECIDING})
    also = f" (and {', '.join(others)} differ)" if others else ""
    lines.append(f"the recipe {'holds' if verdict.holds else 'does not hold'} here{also}: {here.result.status}")
    return visible("\n".join(lines) + "\n")


def act_lock(arguments: argparse.Namespace) -> int:
    """`npucompose recipe lock`: run it, write the file."""
    composed = compose(arguments.overrides, config_dirs=arguments.config_dir, environment=arguments.env)
    locked = lock(Job.from_composed(composed), store=default_store())
    commands.write(arguments.out, locked.text())
    print(f"{locked.result.status}; written: {arguments.out}")
    return EXIT_STATUS[locked.result.status]


def act_show(arguments: argparse.Namespace) -> int:
    """`npucompose recipe show`."""
    print(described(read(arguments.lock)), end="")
    return 0


def act_verify(arguments: argparse.Namespace) -> int:
    """`npucompose recipe verify`: 1 where the recipe does not hold here."""
    if not 0 <= arguments.tolerance < 1:
        raise ConfigError(f"--tolerance must be at least 0 and below 1: {arguments.tolerance}.")
    locked = read(arguments.lock)
    if arguments.against and Path(arguments.against).suffix == ".json":
        return _against_a_device(locked, Path(arguments.against), trust=arguments.trust)
    if arguments.against:
        here = read(Path(arguments.against))
    else:
        here = run_again(locked, trust=arguments.trust, kernels=arguments.kernels)
    wanted, found = (_comparable(side, trust=arguments.trust) for side in (locked, here))
    verdict = compared(wanted, found, tolerance=arguments.tolerance)
    print(judged(verdict, locked, here, newer(locked, wanted)), end="")
    return 0 if verdict.holds else 1


def _comparable(locked: Locked, *, trust: bool) -> Locked:
    """Completed where this version can; what cannot be done here is compared as it was written, word for word."""
    try:
        return completed(locked, trust=trust)
    except ConfigError:
        return locked


def newer(locked: Locked, wanted: Locked) -> dict[str, Any]:
    """{option: default} of what the completed recipe says and the written one does not."""
    said, now = dict(_leaves(locked.experiment)), dict(_leaves(wanted.experiment))
    return {name: value for name, value in now.items() if name not in said and not name.endswith(ORDER)}


def _against_a_device(locked: Locked, file: Path, *, trust: bool) -> int:
    """Exit status 2 with every refuted claim that the recipe rests on; else what was proven, and 0."""
    results = premises.read(file, read_text(file, named=True))
    job = job_of(locked, trust=trust)
    check_claims(job.checked.experiment, job.ingredients.values, [results])
    print(premises.judged(job.checked.experiment, results), end="")
    return 0
