"""materialize: a checked experiment becomes a CompilerConfig value, a torch.compile backend object and its keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from npucompose.compose.check import Checked
from npucompose.passes.base import STAGES
from npucompose.passes.pipeline import PassPipeline
from npucompose.results.effective import Effective
from npucompose.schema.experiment import Experiment
from npucompose.targets.base import NO_FOLDERS, Folders, VendorCompiler
from npucompose.targets.compilation import Backend
from npucompose.targets.optional import VendorCompiled
from npucompose.vendor.compiler import CompilerOptions


@frozen(kw_only=True, eq=False)
class Materialised:
    """All that `torch.compile(model, backend=m.backend, **m.compile_keywords)` needs, and the account of it."""

    experiment: Experiment
    config: CompilerOptions
    """TorchAir's CompilerConfig tree as a value: every requested leaf set, every other at its default."""
    backend: Backend
    genuine: VendorCompiler | None
    """The genuine CompilerConfig and backend object on targets npu and npu_offline; None elsewhere and in eager."""
    pre: PassPipeline
    post: PassPipeline
    compile_keywords: Mapping[str, Any]
    effective: tuple[Effective, ...]
    """Requests that do not take effect as asked."""
    provenance: Mapping[str, str]
    """{dotted option: command line | conf/…yaml | default}."""


def materialize(checked: Checked, folders: Folders = NO_FOLDERS) -> Materialised:
    """Build config, pipelines and backend. Loads torch; compiles nothing yet. A vendor's files go into `folders`."""
    from npucompose import ops

    experiment = checked.experiment
    mode = experiment.mode.name
    checked.target.prepare(mode)  # first: a vendor's package wants to define its operators itself
    ops.define()
    can = checked.target.capabilities(mode)
    proving = experiment.check == "per_pass"
    pre, post = (PassPipeline.for_stage(checked.passes, stage, can, check=proving) for stage in STAGES)
    backend = Backend(
        target=checked.target,
        mode=mode,
        options=experiment.compiler,
        inductor=experiment.inductor,
        pre=pre,
        post=post,
        folders=folders,
        partial=experiment.compile.partial,
        strict=experiment.strict,
    )
    if isinstance(checked.target, VendorCompiled):
        backend.genuine = checked.target.vendor_compiler(backend)
    return Materialised(
        experiment=experiment,
        config=experiment.compiler,
        backend=backend,
        genuine=backend.genuine,
        pre=pre,
        post=post,
        compile_keywords={"fullgraph": experiment.compile.fullgraph, "dynamic": experiment.shapes.dynamic},
        effective=checked.effective,
        provenance=checked.provenance,
    )
