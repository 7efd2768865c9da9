"""vLLM's compilation configuration as a recipe: its JSON, its YAML and its command line.

A recipe says for vLLM what docs/serving_vllm.md says: `max-autotune` is Inductor's kernels, `reduce-overhead` those of
eager, each recorded for the sizes of `extensions.vllm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import define

from npucompose.errors import ConfigError
from npucompose.recipe.dialects import Exported, ExportingDialect, Settings
from npucompose.schema.experiment import Experiment
from npucompose.schema.sections import SECTIONS
from npucompose.table.modes import ACLGRAPH, GE, NPUGRAPH_EX
from npucompose.table.structure import nested
from npucompose.vendor.inductor import InductorOptions
from npucompose.vendor.option_specs import shown
from npucompose_extras.engine_dialects import vllm_keys as keys
from npucompose_extras.engine_dialects import whole_sizes, without_option

CONFIG, EAGER = "compilation_config", "eager"
SIZES = "cudagraph_capture_sizes"
BY_OPTION = (SIZES, "max_cudagraph_capture_size")
"""Keys that have an option of their own, too: `--cudagraph-capture-sizes 1 2 4`."""
NO_NOOPS = "passes.remove_noop"
"""vLLM has a pass that does the same."""
WHY_NOT: Mapping[str, str] = {
    "passes": "vLLM's passes are switched by name and it takes no other; with npucompose installed beside it, "
    '`--additional-config \'{"npucompose": "recipe.yaml"}\'` runs them in its pass manager',
    "compiler": "an option of TorchAir's, which compiles for NPUs: `--to vllm-ascend`",
    "fullgraph": "vLLM compiles each model as one graph by itself",
    "logs": "logs are set by environment variables there",
}


@define(kw_only=True)
class _Asked:
    """What a configuration says, with what holds where it says nothing."""

    settings: Settings
    mode: int
    graphs: str
    backend: str
    sizes: list[int] | None

    @classmethod
    def of(cls, settings: Settings) -> _Asked:
        _gathered(settings)
        level = settings.take("optimization_level", default=keys.DEFAULT_LEVEL)
        if level not in keys.OF_LEVEL:
            raise ConfigError(f"-O{shown(level)}: vLLM has the levels 0, 1, 2 and 3.")
        mode, graphs = keys.OF_LEVEL[level]
        said = _take(settings, "mode"), _take(settings, "level")
        mode = next((_mode(one) for one in said if one is not None), mode)
        asked = str(_take(settings, "cudagraph_mode") or graphs).upper().rpartition(".")[2]
        if asked not in keys.GRAPHS:
            raise ConfigError(f"cudagraph_mode={asked}: none of {', '.join(keys.GRAPHS)}.")
        eager = settings.take("enforce_eager", default=False)
        if eager not in (False, "false"):
            mode, asked = 0, keys.NONE
        sizes = _take(settings, SIZES)
        backend = str(_take(settings, "backend") or "inductor")
        return cls(
            settings=settings,
            mode=mode,
            graphs=asked,
            backend=backend,
            sizes=whole_sizes(SIZES, sizes) if sizes not in (None, []) else None,
        )

    @property
    def records(self) -> bool:
        return self.graphs != keys.NONE

    @property
    def fuses(self) -> bool:
        return self.mode > 0 and self.backend == "inductor"

    @property
    def name(self) -> str:
        return GE if self.fuses else ACLGRAPH if self.records else EAGER


class Vllm(ExportingDialect):
    """`compilation_config`, `-O` and `--enforce-eager` of vLLM on any platform."""

    name: ClassVar[str] = "vllm"
    files: ClassVar[str] = "vLLM (compilation_config, or the command line of `vllm serve`)"
    keys: ClassVar[tuple[str, ...]] = (
        CONFIG,
        "enforce_eager",
        "optimization_level",
        *(name for name in keys.KEYS if name not in ("mode", "level", "backend", "cache_dir")),
    )
    priority: ClassVar[int] = -1

    def read(self, settings: Settings) -> None:
        asked = _Asked.of(settings)
        tree: dict[str, Any] = {"mode": {"name": asked.name}, "shapes": _shapes(asked)}
        if inductor := _inductor(asked):
            tree["inductor"] = inductor
        if passes := _passes(settings):
            tree["passes"] = passes
        if asked.records:
            whole = asked.graphs != keys.PIECEWISE
            section: dict[str, Any] = {"graphs": "full" if whole else "piecewise"}
            tree["extensions"] = {"vllm": section}
            if asked.sizes is not None:
                section["sizes"] = asked.sizes
            else:
                settings.notes.append(
                    "vLLM makes a list of sizes by itself; here extensions.vllm.sizes has its default"
                )
        elif asked.sizes is not None:
            settings.line(f"{SIZES}={shown(asked.sizes)}", f"cudagraph_mode={keys.NONE} captures none")
        _said(asked)
        _without_meaning(settings)
        settings.tree = tree

    def export(self, experiment: Experiment) -> Exported:
        return _exported(experiment)


def _gathered(settings: Settings) -> None:
    """Keys of the compilation configuration below its name, wherever they stood: a file may hold nothing else, and the
    sizes have an option of their own."""
    whole = not any(path.partition(".")[0] == CONFIG for path in settings.flat)
    for path in list(settings.flat):
        first = path.partition(".")[0]
        if first in (keys.KEYS if whole else BY_OPTION):
            settings.flat.setdefault(f"{CONFIG}.{path}", settings.flat.pop(path))
    settings.flat.pop(CONFIG, None)


def _take(settings: Settings, name: str) -> Any:
    return settings.flat.pop(f"{CONFIG}.{name}", None)


def _below(settings: Settings, group: str) -> dict[str, Any]:
    """{path below it: value} of a group of the compilation configuration, taken."""
    begin = f"{CONFIG}.{group}"
    settings.flat.pop(begin, None)
    paths = [path for path in settings.flat if path.startswith(f"{begin}.")]
    return {path.removeprefix(f"{begin}."): settings.flat.pop(path) for path in paths}


def _mode(said: Any) -> int:
    name = str(said).upper().rpartition(".")[2]
    number = keys.MODES.index(name) if name in keys.MODES else int(name) if name in ("0", "1", "2", "3") else None
    if number is None:
        raise ConfigError(f"mode={shown(said)}: vLLM's are 0 to 3: {', '.join(keys.MODES)}.")
    return number


def _shapes(asked: _Asked) -> dict[str, Any]:
    """Static where each size is compiled for itself."""
    said: list[Any] = _take(asked.settings, "compile_sizes") or []
    sizes = whole_sizes("compile_sizes", [size for size in said if size != SIZES])
    each = SIZES in said or (bool(sizes) and sizes == asked.sizes)
    if said and not each:
        asked.settings.line(
            f"compile_sizes={shown(said)}",
            "here each size of extensions.vllm.sizes is compiled for itself (shapes=static) or none is",
        )
    return {"name": "static", "dynamic": False} if each else {"name": "auto", "dynamic": None}


def _inductor(asked: _Asked) -> dict[str, Any]:
    """What vLLM sets of Inductor, and what its user does; vLLM tries kernels only where it is asked to."""
    values: dict[str, Any] = {"max_autotune": False} if asked.fuses else {}
    for path, value in _below(asked.settings, "inductor_compile_config").items():
        why = None if asked.fuses else "Inductor compiles nothing"
        try:
            values |= {path: value} if InductorOptions.of_tree(nested({path: value})) and asked.fuses else {}
        except ConfigError as error:
            why = " ".join(str(error).split())
        if why:
            asked.settings.line(f"inductor_compile_config.{path}={shown(value)}", why)
    if asked.fuses and not asked.records:
        values["replay"] = "wrapper"
    return nested(values)


def _passes(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in _below(settings, "pass_config").items():
        if name in ("eliminate_noops", "enable_noop") and value:
            found["remove_noop"] = {}
        elif value in (None, False):
            settings.notes.append(f"pass_config.{name}={shown(value)}: off, and nothing to say")
        else:
            settings.line(f"pass_config.{name}={shown(value)}", keys.OWN_PASS)
    return found


def _said(asked: _Asked) -> None:
    """Lines about values that mean more to vLLM than the recipe says."""
    line, backend = asked.settings.line, f"backend={asked.backend}"
    if asked.mode and asked.backend not in ("inductor", "eager"):
        line(backend, "no compiler of that name is known here: kernels are those of eager")
    if asked.mode and asked.backend == "eager" and not asked.records:
        line(backend, "it traces and runs what it traced, which is eager")
    if asked.mode in (1, 2):
        line(
            f"mode={asked.mode}",
            "vLLM leaves guards and recompilation to torch (1) or drops guards (2); shapes says it",
        )
    if asked.graphs == keys.DECODE:
        line(
            f"cudagraph_mode={keys.DECODE}",
            "a size has one recording here, whether its tokens are decoded or a prompt's",
        )
    if asked.graphs == keys.BOTH:
        line(
            f"cudagraph_mode={keys.BOTH}",
            "batches with a prompt run in pieces there; here a size has one whole recording, and any other number of "
            "tokens runs as extensions.vllm.general says",
        )


def _without_meaning(settings: Settings) -> None:
    """A line for every key of the configuration that is left."""
    for path in [path for path in settings.flat if path.startswith(f"{CONFIG}.")]:
        name, value = path.removeprefix(f"{CONFIG}."), settings.flat.pop(path)
        why = keys.WITHOUT_MEANING.get(name.partition(".")[0], f"{keys.READ_AT} has no such key")
        settings.line(f"{name}={shown(value)}", why)
    if (recipe := settings.flat.pop("additional_config.npucompose", None)) is not None:
        settings.line(
            f"additional_config.npucompose={shown(recipe)}", "vLLM compiles with that recipe, and not with this"
        )


def _exported(experiment: Experiment) -> Exported:
    options: Any = experiment.extensions.section(SECTIONS.get("vllm"))
    mode, config = experiment.mode.name, dict[str, Any]()
    missing = [line for line in without_option(experiment, WHY_NOT) if line["option"] != NO_NOOPS]
    piecewise = options.graphs == "piecewise"
    sizes = sorted(set(options.sizes))
    if mode == GE:
        config = {"mode": 3, "backend": "inductor", "cudagraph_mode": keys.PIECEWISE if piecewise else keys.FULL}
        config |= _exported_inductor(experiment)
        if options.general == "eager":
            why = "with mode=3 vLLM compiles every other number of tokens, too"
            missing.append({"option": "extensions.vllm.general=eager", "why": why})
    elif mode == ACLGRAPH:
        by_itself = {"mode": 3, "backend": "eager"} if piecewise else {"mode": 0}
        config = {**by_itself, "cudagraph_mode": keys.PIECEWISE if piecewise else keys.FULL}
    elif mode == EAGER:
        config = {"mode": 0, "cudagraph_mode": keys.NONE}
    else:
        missing.insert(0, {"option": f"mode={mode}", "why": f"it is for NPUs: `--to vllm-ascend` has {NPUGRAPH_EX}"})
    if config and config["cudagraph_mode"] != keys.NONE:
        if experiment.inductor.replays or mode != GE:
            config[SIZES] = sizes
        else:
            config["cudagraph_mode"] = keys.NONE
        if experiment.shapes.dynamic is False and mode == GE:
            config["compile_sizes"] = sizes
    if config and experiment.passes.get("remove_noop") is not None:
        config["pass_config"] = {"eliminate_noops": True}
    missing += _exported_shapes(experiment)
    sources = dict.fromkeys((f"{CONFIG}.{name}" for name in config), "vllm/config/compilation.py")
    return Exported(
        arguments=keys.json_arguments(compilation_config=config),
        compilation_config=config,
        without_equivalent=missing,
        sources=sources,
        read_at=keys.READ_AT,
    )


def _exported_inductor(experiment: Experiment) -> dict[str, Any]:
    """Inductor's own options that the recipe sets; ours say what vLLM's other keys say."""
    values = {path: value for path, value in experiment.inductor.changed().items() if path != "replay"}
    if values.get("max_autotune") is False:
        del values["max_autotune"]  # as vLLM has it
    else:
        values["max_autotune"] = True
    values.pop("freezing", None)
    return {"inductor_compile_config": values} if values else {}


def _exported_shapes(experiment: Experiment) -> list[dict[str, str]]:
    shapes, found = experiment.shapes, list[dict[str, str]]()
    why = "vLLM decides which sizes are symbols"
    if shapes.mark_static or shapes.mark_dynamic or shapes.dynamic is True:
        found.append({"option": f"shapes={shapes.name}", "why": why})
    return found
