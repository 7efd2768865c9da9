"""CompilerOptions -> the vendor's configuration object: every requested leaf set, every other untouched.

Also TorchAir's functions beside torch.compile: cache_compile, dynamo_export, patch_for_hcom.
"""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from npucompose.errors import ConfigError, listed
from npucompose.table.modes import ACLGRAPH, EAGER, GE, NPUGRAPH_EX
from npucompose.targets.base import ModeSupport
from npucompose.vendor.compiler import EVERY_LEAF, LEAVES, CompilerOptions
from npucompose.vendor.option_specs import PREFIX, OptionSpec

if TYPE_CHECKING:
    from torch import nn

    from npucompose.models.inputs import Bound
    from npucompose.targets.backend import Backend


def node_filter(patterns: tuple[str, ...]) -> Callable[[Any], Any]:
    """f(node) -> node or None, as `debug.data_dump.filter` wants it: `node_filter(("mm", "aten.add*"))`.

    A pattern is compared with the node's name, the whole operator (`aten.mm.default`) and the operator without its
    overload (`aten.mm`).
    """

    def chosen(node: Any) -> Any:
        called = str(node.target)
        names = (node.name, called, called.rpartition(".")[0])
        return node if any(fnmatch.fnmatchcase(name, p) for name in names for p in patterns) else None

    return chosen


DEPRECATED = "mode=reduce-overhead: TorchAir has deprecated it and will drop it; mode=npugraph_ex takes its place."


@frozen(kw_only=True)
class TurnedOn:
    """An option that TorchAir 2.13.0 turns on by itself where another one is given."""

    option: str
    by: str
    why: str


@frozen(kw_only=True)
class TorchairMode(ModeSupport):
    """What TorchAir makes of one of our modes."""

    package: Literal["torchair", "npugraph_ex"] = "torchair"
    """Which of the vendor's two packages compiles, never both in one process."""
    ge: bool = False
    """A graph for GE; otherwise kernels are captured."""
    scope_namespace: str = "air"
    clone_option: str | None = None
    """Without it TorchAir 2.13.0 returns the tensors of its capture again (`AclGraph.reconstruct_outputs`)."""
    deprecated: str = ""
    fusion_option: str = "experimental_config.pattern_fusion_pass"
    """It lets TorchAir apply what `register_replacement` was given."""
    without_in_place: tuple[str, bool] | None = None
    """The option, and its value, that leaves TorchAir's in-place pass out."""
    super_kernel_options: str = ""
    """What the options for super kernels begin with that torch.npu.NPUGraph is given."""
    turned_on: tuple[TurnedOn, ...] = ()


def _leaves(mode: str) -> frozenset[str]:
    """All that act in the mode: each is set on the genuine object. What CANN makes of it only a device shows."""
    return frozenset(path for path, leaf in EVERY_LEAF.items() if mode in leaf.modes)


MODES: Mapping[str, TorchairMode] = {
    GE: TorchairMode(
        options=_leaves(GE),
        trains=True,
        caches=True,
        exports=True,
        ge=True,
        turned_on=(
            TurnedOn(
                option="experimental_config.enable_ref_data",
                by="export.export_mode",
                why="dynamo_export turns it on",
            ),
        ),
    ),
    ACLGRAPH: TorchairMode(
        options=_leaves(ACLGRAPH),
        captures=True,
        caches=True,
        clone_option="debug.aclgraph.enable_output_clone",
        deprecated=DEPRECATED,
        without_in_place=("debug.aclgraph.disable_reinplace_inplaceable_ops_pass", True),
        super_kernel_options="experimental_config.aclgraph._super_kernel_",
        turned_on=(
            TurnedOn(
                option="debug.aclgraph.disable_mempool_reuse_in_same_fx",
                by="aclgraph_config.use_custom_pool",
                why="with a pool of a name TorchAir forces this on, or outputs that are alive could be overwritten",
            ),
        ),
    ),
    NPUGRAPH_EX: TorchairMode(
        options=_leaves(NPUGRAPH_EX),
        captures=True,
        caches=True,
        clone_option="npugraph_ex.clone_output",
        package="npugraph_ex",
        scope_namespace="npugraph_ex",
        fusion_option="npugraph_ex.pattern_fusion_pass",
        without_in_place=("npugraph_ex.inplace_pass", False),
        super_kernel_options="npugraph_ex.super_kernel_",
    ),
    EAGER: TorchairMode(options=_leaves(EAGER), compiles=False),
}
"""mode=max-autotune is TorchAir's GE graph, reduce-overhead and npugraph_ex are captured graphs."""


def torchair_mode(backend: Backend) -> TorchairMode:
    """What TorchAir can do in the mode of a backend, as its target says."""
    found = backend.target.support(backend.mode)
    assert isinstance(found, TorchairMode)
    return found


Hook = Callable[[Any, Any, Any], None]


def torchair_config(options: CompilerOptions, mode: str, before: Hook, after: Hook, files: Path | None = None) -> Any:
    """torchair.CompilerConfig for max-autotune and reduce-overhead; `before` and `after` are its two pass hooks.

    Folders that TorchAir writes into lie below `files`.
    """
    config = package("torchair").CompilerConfig()
    config.mode = mode
    for path, value in _requested(options, files).items():
        if not path.startswith(PREFIX):
            write(config, EVERY_LEAF[path], value)
    config.post_grad_custom_pre_pass = before
    config.post_grad_custom_post_pass = after
    return config


def npugraph_ex_options(
    options: CompilerOptions, before: Hook, after: Hook, files: Path | None = None
) -> dict[str, Any]:
    """What `torch.compile(backend="npugraph_ex", options=…)` takes: a flat mapping."""
    flat = {
        EVERY_LEAF[path].genuine_path: _given(EVERY_LEAF[path], value)
        for path, value in _requested(options, files).items()
        if path.startswith(PREFIX)
    }
    return {**flat, "post_grad_custom_pre_pass": before, "post_grad_custom_post_pass": after}


def _requested(options: CompilerOptions, files: Path | None) -> dict[str, Any]:
    """What was asked for; and where something is written that was asked for, the folder: made here, below `files`."""
    requested = dict(options.changed())
    if files is None:
        return requested
    for path, leaf in EVERY_LEAF.items():
        if leaf.written and leaf.needs and options[leaf.needs]:
            folder = files / (options[path] or "")  # an absolute path stays what it is
            folder.mkdir(parents=True, exist_ok=True)
            requested[path] = str(folder)
    return requested


def npugraph_ex_config(flat: Mapping[str, Any]) -> Any:
    """npugraph_ex.CompilerConfig with a flat mapping's values: the package does the same when it compiles."""
    config = package("npugraph_ex").CompilerConfig()
    config.mode = NPUGRAPH_EX
    for name, value in flat.items():
        _refusing(f"npugraph_ex.{name}", value, lambda name=name, value=value: setattr(config, name, value))
    return config


def package(name: str) -> Any:
    """The genuine `torchair` or `npugraph_ex`, which Target.prepare has made importable. Never both in one process."""
    return importlib.import_module(name)


def write(config: Any, leaf: OptionSpec, value: Any) -> None:
    """Set one leaf by its genuine path: `debug.graph_dump._path`."""
    *groups, name = leaf.genuine_path.split(".")
    at = config
    for group in groups:
        at = getattr(at, group)
    _refusing(leaf.path, value, lambda: setattr(at, name, _given(leaf, value)))


def read(config: Any, leaf: OptionSpec) -> Any:
    """The value that the genuine object holds for a leaf, as YAML would say it; a pool's handle as it is."""
    at = config
    for part in leaf.genuine_path.split("."):
        at = getattr(at, part)
    stored = at.__dict__["_value"] if "_value" in getattr(at, "__dict__", {}) else at
    return tuple(stored) if isinstance(stored, list) else stored


def _given(leaf: OptionSpec, value: Any) -> Any:
    """The value as the vendor's class takes it: a list for a tuple, a function for patterns of names, a pool's handle,
    which needs a device, for its name."""
    if leaf.kind in ("pool", "names") and value is not None:
        return pool(value) if leaf.kind == "pool" else node_filter(value)
    return list(value) if isinstance(value, tuple) else value


@cache
def pool(name: str) -> Any:
    """The graph memory pool of that name, one in a process: captures that name the same pool share its memory."""
    import torch

    npu: Any = torch.npu  # pyright: ignore[reportAttributeAccessIssue]
    return npu.graph_pool_handle()


def _refusing(path: str, value: Any, act: Callable[[], None]) -> None:
    """What the genuine class refuses and our table let through, with the option's path."""
    try:
        act()
    except (ValueError, TypeError, FileNotFoundError, AttributeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"compiler.{path}={value!r}: the genuine class refuses it: {first}") from error


OWN_ARGUMENTS = frozenset({"model", "export_path", "export_name", "dynamic", "config"})
"""What dynamo_export itself takes by keyword (`dynamo_export(*args, model, export_path, …, **kwargs)`)."""
CACHE_FILE = "compiled_module"
"""What cache_compile calls the file of a compiled function, in a folder of its own (`CompiledModel.FILE`)."""


class CachedModule:
    """`module.forward` through cache_compile: compiled and saved at its first call, or loaded.

    TorchAir's own key leaves out shapes and the model's source, so the folder must belong to one experiment alone.
    """

    def __init__(
        self, backend: Backend, module: nn.Module, decompositions: dict[Any, Any], dynamic: bool | None
    ) -> None:
        folder, genuine = backend.folders.cache, backend.genuine
        assert genuine is not None
        if folder is None:
            raise ConfigError("compile.cache=true needs a folder to keep graphs in: `npucompose run` has one.")
        self._backend, self._folder = backend, folder
        self._call = package(torchair_mode(backend).package).inference.cache_compile(
            module.forward,
            config=genuine.config,
            dynamic=bool(dynamic),
            cache_dir=str(folder),
            custom_decompositions=decompositions,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._backend.cache is not None:
            return self._call(*args, **kwargs)
        had, begun = self._saved(), perf_counter()
        self._backend.entered_at.append(begun)
        result = self._call(*args, **kwargs)
        self._backend.charge(0, perf_counter() - begun)
        loaded = had and not self._backend.compilations
        self._backend.cache = "loaded" if loaded else "saved" if self._saved() else "not saved"
        return result

    def _saved(self) -> bool:
        return any(self._folder.rglob(CACHE_FILE))


def export(backend: Backend, module: nn.Module, call: Bound, dynamic: bool | None) -> None:
    """torchair.dynamo_export with the experiment's configuration: export_path_dir and export_name say where to."""
    genuine = backend.genuine
    assert genuine is not None
    if taken := OWN_ARGUMENTS.intersection(call.kwargs):
        raise ConfigError(
            f"torchair.dynamo_export has arguments of its own named {listed(sorted(taken))}, so that an input of that "
            "name cannot reach the model. Rename the parameter of forward, or let it be given by position."
        )
    begun = perf_counter()
    backend.entered_at.append(begun)
    package("torchair").dynamo_export(
        *call.args,
        **call.kwargs,
        model=module,
        export_path=read(genuine.config, LEAVES["export.export_path_dir"]),
        export_name=read(genuine.config, LEAVES["export.export_name"]) or "export",
        dynamic=bool(dynamic),
        config=genuine.config,
    )
    backend.charge(0, perf_counter() - begun)


def patch_for_hcom() -> None:
    """Collectives written with torch.distributed become operators of the graph. For the whole process."""
    import torch.distributed

    if not torch.distributed.is_available():
        raise ConfigError(
            "target.patch_for_hcom=true replaces functions of torch.distributed, and this torch is built without it."
        )
    package("torchair").patch_for_hcom()


def dump_options_into(folder: Path) -> None:
    """TorchAir writes GE's dump options to a file in the working folder, whatever `dump_config.dump_path` says.

    Its module gets a `Path` whose working folder is `folder`; it asks for the working folder there and nowhere else.
    """
    from torchair._ge_concrete_graph import fx2ge_converter  # pyright: ignore[reportMissingImports]

    class Below(type(Path())):
        @classmethod
        def cwd(cls) -> Path:  # pyright: ignore[reportIncompatibleMethodOverride]
            return folder

    fx2ge_converter.Path = Below
