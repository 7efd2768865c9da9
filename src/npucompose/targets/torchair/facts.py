"""What came out on TorchAir's side, for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npucompose.schema.leaf import GE, NPUGRAPH_EX
from npucompose.schema.record import NpuFacts

if TYPE_CHECKING:
    from npucompose.targets.compilation import Backend
    from npucompose.targets.torchair.target import TorchairTarget


def facts(target: TorchairTarget, backend: Backend) -> NpuFacts:
    """The genuine objects' own account, with what the platform counted."""
    from npucompose.targets.torchair import features, observe
    from npucompose.targets.torchair.listing import facts as ge_facts

    ge = backend.mode == GE
    assert backend.genuine is not None
    return NpuFacts(
        package="npugraph_ex" if backend.mode == NPUGRAPH_EX else "torchair",
        version=target.package_version(),
        platform=target.platform(),
        config=_plain(backend.genuine.config.as_dict()),
        fx_graphs=len(backend.compilations),
        ge_graphs=tuple(ge_facts(loaded) for loaded in observe.LOADED) if ge else (),
        global_options=observe.global_options() if ge else {},
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
