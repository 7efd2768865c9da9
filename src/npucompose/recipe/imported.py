"""A script that uses TorchAir becomes the YAML that does the same: only what differs from the defaults."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import yaml
from attrs import frozen

from npucompose.compose.check import gather, shaped
from npucompose.compose.conf import choices_of
from npucompose.compose.tree import compose
from npucompose.errors import ConfigError, listed, raise_for
from npucompose.input_safety import plain_yaml, read_text
from npucompose.machine import gc_paused
from npucompose.passes.pipeline import build
from npucompose.recipe import dialects, header
from npucompose.recipe.compilations import Facts, TooLong, assumption, chosen, compilations, others
from npucompose.recipe.dialects import read_command_line
from npucompose.recipe.reader import reading
from npucompose.recipe.values import CompileCall, Unknown
from npucompose.recipe.vendor_options import Unread, translated
from npucompose.schema.adapt import RuleSet
from npucompose.schema.experiment import Experiment, Shapes
from npucompose.schema.streams import Streams, matches
from npucompose.table.modes import GE
from npucompose.table.structure import flat, structure
from npucompose.targets import TARGETS
from npucompose.targets.vendor_compiled import VendorCompiled
from npucompose.vendor.compiler import EVERY_LEAF, VERSION, CompilerOptions, illegal_in_mode, waiting
from npucompose.vendor.versions import REFERENCE, known

MOST_BYTES = 2 * 2**20
"""Of a script."""
COMMANDS = (".sh", ".txt")
"""Files that hold the command line of an engine."""
INSTEAD: Mapping[str, str] = {
    "streams": "passes=stream_plan with streams=auto or a plan of your own does it from YAML",
    "cores": "passes=core_limit does it from YAML",
    "super kernels": "passes=super_kernel does it from YAML",
}
REQUIREMENTS = "requirements.txt"
NO_PINS: Mapping[str, str] = {}
NAMES = {True: "dynamic", False: "static", None: "auto"}
PYTHON = ".".join(map(str, sys.version_info[:2]))
MOST_SHOWN = 3
"""Lines of a script in which nothing else is found."""
TILING_SINK = "experimental_config.tiling_schedule_optimize"
CHOSEN = ("mode", "shapes", "tiling", "streams", "adapt", "target", "model")
"""Groups of which a file names one choice; the file then holds what differs from that choice."""
STRUCTURED = ("mode", "shapes", "tiling", "streams", "adapt", "compile", "logs")
"""Sections that a class is known for."""


@frozen(kw_only=True)
class Imported:
    """What a script says, as an experiment; `unread` are the lines that say more than could be read."""

    tree: Mapping[str, Any]
    """Sections of an experiment: `{"mode": {"name": "reduce-overhead"}, "compiler": {…}, "shapes": {…}}`."""
    unread: tuple[Unread, ...] = ()
    notes: tuple[str, ...] = ()

    def yaml(self, source: str = "a script") -> str:
        """A file for `conf/experiment/`: `npucompose run --config-dir DIR experiment=NAME` reads it."""
        wanted = dict(self.tree)
        said = {group: _chosen_by(wanted, group) for group in CHOSEN}
        chosen = {group: name for group, name in said.items() if name in choices_of(group)}
        base = compose([f"{group}={name}" for group, name in chosen.items()]).tree
        default = compose([]).tree
        about = [f"what {source} says; npucompose run --config-dir DIR experiment=NAME reads it"]
        about += [f"note: {note}" for note in self.notes]
        about += [f"not read: {line}" for line in self.unread]
        # no text of a script ends its comment and begins a key
        lines = ["# @package _global_", *(f"# {' '.join(line.split())}" for line in about)]
        overrides = [f"  - override /{g}: {n}" for g, n in chosen.items() if g == "mode" or _chosen_by(default, g) != n]
        body = {name: _differing(value, base.get(name)) for name, value in wanted.items()}
        body = {name: value for name, value in body.items() if value not in ({}, None)}
        text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=100) if body else ""
        lines += ["defaults:", *overrides] if overrides else []
        return "\n".join(lines) + ("\n\n" + text if text else "\n")


def import_file(
    path: str | Path,
    *,
    torch_npu_version: str | None = None,
    vllm_ascend_version: str | None = None,
    compilation: int | None = None,
    assume: Sequence[str] = (),
) -> Imported:
    """`import_file("train.py").yaml()`; ConfigError when there is no such file or it is not Python.

    `compilation` is the number of one in a script that compiles several times, from 1 on; `assume` says what conditions
    or names of it are: `("args.fast=True",)`.
    """
    text, name = read_text(Path(path), MOST_BYTES, named=True), str(path)
    command = Path(path).suffix in COMMANDS
    if not command and Path(path).suffix not in (".yaml", ".yml", ".json"):
        if vllm_ascend_version is not None:
            raise ConfigError(f"--vllm-ascend {vllm_ascend_version}: {name} is a script: it says its options itself.")
        return import_script(
            text, name=name, torch_npu_version=torch_npu_version, compilation=compilation, assume=assume
        )
    only_scripts(
        name, {"--torch-npu": torch_npu_version, "--compilation": compilation, "--assume": next(iter(assume), None)}
    )
    beside = Path(path).with_name(REQUIREMENTS)
    pins = {str(beside): read_text(beside, MOST_BYTES)} if beside.is_file() else {}
    read_as = import_command_line if command else import_settings
    return read_as(text, name=name, vllm_ascend_version=vllm_ascend_version, pins=pins)


def only_scripts(name: str, asked: Mapping[str, Any]) -> None:
    """ConfigError for an option that says nothing of settings: {flag: its value, or None}."""
    for flag, value in asked.items():
        if value is not None:
            raise ConfigError(f"{flag} {value}: it is for scripts, and {name} holds settings.")


def import_settings(
    text: str, *, name: str = "the file", vllm_ascend_version: str | None = None, pins: Mapping[str, str] = NO_PINS
) -> Imported:
    """Read the YAML or JSON of a public inference repository: see `dialects`. `pins` are requirements beside it."""
    return _of_settings(dialects.read(plain_yaml(text, name), name, vllm_ascend_version, {name: text, **pins}))


def import_command_line(
    text: str,
    *,
    name: str = "the command line",
    vllm_ascend_version: str | None = None,
    pins: Mapping[str, str] = NO_PINS,
) -> Imported:
    """Read `vllm serve … --compilation-config '{…}' -O3`, or a script in which it stands; nothing of it is run."""
    said = read_command_line(text, name)
    found = _of_settings(dialects.read(said.data, name, vllm_ascend_version, {name: text, **pins}))
    return attrs.evolve(found, notes=(*said.notes, *found.notes), unread=(*said.unread, *found.unread))


def _of_settings(found: dialects.Settings) -> Imported:
    if "mode" in found.tree:
        _checked(found.tree)
        return Imported(tree=found.tree, unread=tuple(found.facts.unread), notes=tuple(found.notes))
    if found.eager:
        notes = (*found.notes, *_in_models(found.facts), "nothing is compiled: mode=eager")
        return Imported(tree={"mode": {"name": "eager"}}, unread=tuple(found.facts.unread), notes=notes)
    joined = _joined(found.facts)
    return attrs.evolve(joined, tree={**joined.tree, **found.tree}, notes=(*joined.notes, *found.notes))


def import_script(
    source: str,
    *,
    name: str = "the script",
    torch_npu_version: str | None = None,
    compilation: int | None = None,
    assume: Sequence[str] = (),
) -> Imported:
    """Read a script's text; nothing of it is run.

    `compilation` says which of several is meant, `assume` what is not certain. `torch_npu_version` says whose option
    names it uses; else the recipe in its header does, else they are 2.13.0's.
    """
    recipe = header.read(source)
    version = _version(recipe, torch_npu_version)
    assumed = dict(map(assumption, assume))
    try:
        with gc_paused():
            read = reading(_parsed(source, name), version or REFERENCE, assumed)
    except (RecursionError, MemoryError):  # the last: deeper than Python's parser goes
        raise ConfigError(f"{name}: its calls or expressions lie too deep in each other.") from None
    except TooLong:
        why = "its functions call one another, or its values depend on one another, too often"
        raise ConfigError(f"{name}: {why}: reading it would not end.") from None
    facts = read.facts
    for text in assumed:
        if text not in read.used:
            known = listed([f"{asked} (line {line})" for asked, line in read.asked.items()]) or "none"
            said = f"--assume {text}={assumed[text]!r}: {name} does not depend on it."
            raise ConfigError(f"{said} Conditions that are not certain: {known}.")
    if not facts.configs:
        lines = "".join(f" {name} says: {line}." for line in facts.unread[:MOST_SHOWN])
        raise ConfigError(
            f"{name}: nothing found. Looked for torchair.CompilerConfig(), npugraph_ex.CompilerConfig() and "
            f'torch.compile(backend="npugraph_ex" | "npu") and cache_compile of either.{lines}'
        )
    found = _joined(facts, recipe, version, compilation)
    notes = [f"assumed: {text}={assumed[text]!r} (line {line})" for text, line in read.used.items()]
    return attrs.evolve(found, notes=(*notes, *found.notes))


def _parsed(source: str, name: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ConfigError(f"{name}{line} is not Python {PYTHON}: {getattr(error, 'msg', error)}.") from None


def _version(recipe: Mapping[str, Any] | None, asked: str | None) -> str | None:
    """The torch_npu version of a script; None where none is said."""
    written = (recipe or {}).get("compiler")
    said = asked or (written.get(VERSION) if isinstance(written, Mapping) else None)
    return None if said is None else known(str(said), "--torch-npu" if asked else f"compiler.{VERSION} of the recipe")


def _joined(
    facts: Facts,
    recipe: Mapping[str, Any] | None = None,
    version: str | None = None,
    compilation: int | None = None,
) -> Imported:
    """The code counts; the recipe in the header says what code cannot, and how the same was written."""
    notes: list[str] = []
    every = compilations(facts)
    said = chosen(every, compilation, notes)
    config, mode = said.config, said.mode
    values, lost = said.options, list[str]()
    if config.package == "torchair" and mode == "npugraph_ex":
        values, lost = translated(values)
    options = CompilerOptions(values=values, torch_npu_version=version)
    wrote = dict(recipe or {})
    tree: dict[str, Any] = {"mode": {"name": mode}} if mode is not None else {}
    if mode is None:
        notes.append("the mode is not certain: choose it with mode=…, or import with --assume or --compilation")
    if recipe is not None and (wrote.get("mode") or {}).get("name") != mode:
        notes.append(f"mode is {mode} in the code and not what the recipe in its header says: the code counts")
    tree |= _shapes(said, wrote, facts, notes)
    tree |= _options(options, wrote, notes)
    fullgraph = {} if isinstance(said.fullgraph, Unknown) else {"fullgraph": said.fullgraph}
    tree["compile"] = {**fullgraph, **({"cache": True} if said.cached else {})}
    logs = {"artifacts": list(facts.artifacts), "levels": dict(facts.levels)}
    if any(logs.values()):
        tree["logs"] = logs
    tree |= {name: wrote[name] for name in ("streams", "adapt", "target", "model", "seed", "strict") if name in wrote}
    hooks = sorted(config.hooks)
    unread = [*facts.unread, *others(facts, every, said)]
    unread += [Unread(line=config.line, code="mode='npugraph_ex'", why=text) for text in lost]
    unread += _collectives(mode, tree, facts)
    notes += _in_models(facts)
    if tree["shapes"].get("gears") and said.dynamic is not True:
        del tree["shapes"]["gears"]
        unread.append(Unread(line=0, code="set_dim_gears(…)", why="gears need torch.compile(dynamic=True)"))
    if wrote.get("passes") and hooks:
        tree["passes"] = wrote["passes"]
        notes.append(
            f"passes {', '.join(map(str, wrote['passes']))} are taken from the recipe; their frozen edits are not read"
        )
    else:
        unread += [_hook(stage, config.hooks[stage]) for stage in hooks]
        if wrote.get("passes"):
            notes.append("the recipe names passes and the code sets no hook: the code counts, and there are none")
    idle = [*illegal_in_mode(options, mode).values()] if mode is not None else []
    if mode is not None and tree["shapes"].get("gears") and mode != GE:
        idle.append(f"gears have no effect in mode={mode}; they take effect in: {GE}.")
    notes += [*idle, *(waiting(options, mode).values() if mode is not None else ())]
    if "strict" not in tree and idle:
        tree["strict"] = "off"
        notes.append("strict is off: the script sets options that have no effect in its mode")
    _checked(tree)
    return Imported(tree=tree, unread=tuple(sorted(dict.fromkeys(unread), key=lambda u: u.line)), notes=tuple(notes))


def _collectives(mode: str | None, tree: dict[str, Any], facts: Facts) -> list[Unread]:
    """patch_for_hcom as the option of the target that it is, where its mode takes it; else its lines."""
    certain = [line for line, _, doubt in facts.hcom if not doubt]
    if mode == GE and certain:
        there = tree.get("target") or {}
        compiles = "name" in there and issubclass(TARGETS.get(there["name"]), VendorCompiled)
        kept = there if compiles else {"name": "npu"}
        tree["target"] = {**kept, "patch_for_hcom": True}
        return []
    why = f"it has no effect in mode={mode or '…, which is not certain'}; it takes effect in: {GE}"
    return [Unread(line=line, code=code, why=doubt if mode == GE else why) for line, code, doubt in facts.hcom]


def _in_models(facts: Facts) -> list[str]:
    """One note for each thing that the model's own code decides: it stays where it is."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for kind, function, line in dict.fromkeys(facts.in_models):
        kinds.setdefault(kind, {}).setdefault(function, []).extend([str(line)] if line else [])
    notes: list[str] = []
    for kind, calls in kinds.items():
        where = ", ".join(f"{name} (line {', '.join(at)})" if at else name for name, at in calls.items())
        instead = f"; {INSTEAD[kind]}" if kind in INSTEAD else ""
        notes.append(f"{kind}: the model's own code does it, {where}, and goes on doing so{instead}")
    return notes


def _hook(stage: str, node: ast.AST) -> Unread:
    code = " ".join(ast.unparse(node).split())
    why = "a pass is Python: make it a pass of npucompose (docs/adding_a_pass.md) and name it in passes"
    return Unread(line=getattr(node, "lineno", 0), code=code[:100], why=f"{why} with stage {stage}")


def _shapes(said: CompileCall, wrote: Mapping[str, Any], facts: Facts, notes: list[str]) -> dict[str, Any]:
    static = list(dict.fromkeys(argument for argument, dims in facts.marks if dims is None))
    dynamic: dict[str, list[int]] = {}
    for argument, dims in facts.marks:
        if dims is not None:
            dynamic[argument] = list(dict.fromkeys((*dynamic.get(argument, ()), *dims)))
    gears = {f"{argument}.{dim}": list(sizes) for argument, found in facts.gears for dim, sizes in found.items()}
    shapes: dict[str, Any] = {
        **({} if isinstance(said.dynamic, Unknown) else {"name": NAMES[said.dynamic], "dynamic": said.dynamic}),
        "mark_static": static,
        "mark_dynamic": dynamic,
        **({"gears": gears} if gears else {}),
    }
    there = wrote.get("shapes")
    if there is None:
        return {"shapes": shapes}
    structure(Shapes, there, "shapes")  # before its patterns and sizes are compared with what the code says
    same = _covers(there.get("mark_static") or [], static) and _covers(there.get("mark_dynamic") or {}, dynamic)
    if there.get("dynamic") == said.dynamic and same and dict(there.get("gears") or {}) == gears:
        return {"shapes": dict(there)}
    notes.append("the shape policy in the code is not what the recipe in its header says: the code counts")
    return {"shapes": shapes}


def _covers(patterns: Sequence[str] | Mapping[str, Any], names: Sequence[str] | Mapping[str, Any]) -> bool:
    """Every name matches a pattern and every pattern a name: `cache_*` and cache_k, cache_v."""
    texts = [str(pattern) for pattern in patterns]
    return all(any(matches(p, n) for p in texts) for n in names) and all(
        any(matches(p, n) for n in names) for p in texts
    )


def _options(asked: CompilerOptions, wrote: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    sink = (wrote.get("tiling") or {}).get("schedule") == "sink"
    if wrote:
        there = _written(wrote.get("compiler") or {})
        if (there.with_values({TILING_SINK: True}) if sink else there) == asked:
            return {name: wrote[name] for name in ("tiling", "compiler") if name in wrote}
        notes.append("the compiler options in the code are not those of the recipe in its header: the code counts")
    sinks = bool(asked[TILING_SINK])
    tree = asked.with_values({TILING_SINK: False}).as_tree(changed_only=True)
    return {"tiling": {"schedule": "sink" if sinks else "host"}, **({"compiler": tree} if tree else {})}


def _written(tree: Mapping[str, Any]) -> CompilerOptions:
    """The options of a recipe. Files that it names need not exist here."""
    values = {path: value for path, value in flat(tree, leaves=EVERY_LEAF).items() if path in EVERY_LEAF or value != {}}
    return CompilerOptions(values=values, torch_npu_version=values.pop(VERSION, None))


def _checked(tree: Mapping[str, Any]) -> None:
    """Every section that a class is known for, structured once: a header that was edited is refused in its words."""
    problems: list[str] = []
    classes = get_type_hints(Experiment)
    there = {name: partial(structure, classes[name], tree[name], name) for name in STRUCTURED if name in tree}
    made = {name: section for name, make in there.items() if (section := gather(problems, make)) is not None}
    passes = shaped({"passes": tree.get("passes")}, problems)["passes"]
    gather(problems, lambda: build(passes, {"mode": None, "streams": Streams(), "adapt": RuleSet(), **made}))
    raise_for(problems)


def _chosen_by(tree: Mapping[str, Any], group: str) -> str:
    return str((tree.get(group) or {}).get("schedule" if group == "tiling" else "name", ""))


def _differing(wanted: Any, base: Any) -> Any:
    """What of `wanted` is not in `base`; None where all is."""
    if isinstance(wanted, Mapping) and isinstance(base, Mapping):
        parts = {key: _differing(value, base[key]) if key in base else value for key, value in wanted.items()}
        nulls = {key for key, value in wanted.items() if value is None and base.get(key) is not None}
        return {key: value for key, value in parts.items() if value is not None or key in nulls} or None
    return None if wanted == base else wanted
