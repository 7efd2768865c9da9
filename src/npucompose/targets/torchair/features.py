"""TorchAir's functions beside torch.compile (cache_compile, dynamo_export, patch_for_hcom), its account of a run."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from npucompose.errors import ConfigError, listed
from npucompose.results.sinking import NpuFacts
from npucompose.targets.torchair.config import MODES, package, read
from npucompose.vendor.compiler import LEAVES

if TYPE_CHECKING:
    from torch import nn

    from npucompose.models.inputs import Bound
    from npucompose.targets.compilation import Backend
    from npucompose.targets.torchair.target import TorchairTarget


OWN_ARGUMENTS = frozenset({"model", "export_path", "export_name", "dynamic", "config"})
"""What dynamo_export itself takes by keyword (`dynamo_export(*args, model, export_path, …, **kwargs)`)."""
CACHE_FILE = "compiled_module"
"""What cache_compile calls the file of a compiled function, in a folder of its own (`CompiledModel.FILE`)."""
PATCHED = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "all_to_all_single", "all_to_all",
)  # fmt: skip
"""Functions of torch.distributed that patch_for_hcom replaces."""


class Cached:
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
        self._call = package(MODES[backend.mode].package).inference.cache_compile(
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


def patched() -> tuple[str, ...]:
    """Which functions of torch.distributed are TorchAir's by now."""
    import torch.distributed

    found: dict[str, Any] = {name: getattr(torch.distributed, name, None) for name in PATCHED}
    return tuple(
        name for name, function in found.items() if str(getattr(function, "__module__", "")).startswith("torchair.")
    )


def written(folder: Path | None) -> tuple[str, ...]:
    """The files below `folder`, by their path in it."""
    if folder is None or not folder.is_dir():
        return ()
    return tuple(sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()))


def facts(target: TorchairTarget, backend: Backend) -> NpuFacts:
    """The genuine objects' own account, with what the platform counted."""
    from npucompose.targets.torchair import features, ge_graphs
    from npucompose.targets.torchair.ge_graphs import facts as ge_facts

    mine = MODES[backend.mode]
    assert backend.genuine is not None
    return NpuFacts(
        package=mine.package,
        version=target.package_version(),
        platform=target.platform(),
        config=_plain(backend.genuine.config.as_dict()),
        fx_graphs=len(backend.compilations),
        ge_graphs=tuple(ge_facts(loaded) for loaded in ge_graphs.LOADED) if mine.ge else (),
        global_options=ge_graphs.global_options() if mine.ge else {},
        cache=backend.cache,
        patched=features.patched() if target.patch_for_hcom else (),
        files=features.written(backend.folders.files),
        **target.counts(backend.mode),
    )


def _plain(options: Any) -> dict[str, Any]:
    """as_dict() gives one mapping, or a pair of local and global ones."""
    if isinstance(options, tuple):
        return {name: _plain(part) for name, part in zip(("local", "global"), options, strict=True)}
    return {str(key): value if isinstance(value, (bool, int, float)) else str(value) for key, value in options.items()}
