"""A checked experiment becomes a CompilerConfig value, a torch.compile backend object and its keywords.

And what Dynamo says when it cannot make a graph, as one paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
from attrs import frozen

from npucompose import ops, private
from npucompose.compose.check import Checked
from npucompose.errors import CompileError, ConfigError, NpuComposeError, first_raised, traced_line
from npucompose.ops.catalogue import of_wheel, shipped
from npucompose.ops.definitions import UnsupportedArgument
from npucompose.ops.functionalised import ALIASED
from npucompose.ops.npu import NoShape, no_meta_function
from npucompose.passes.base import STAGES
from npucompose.passes.pipeline import PassPipeline
from npucompose.results.effective import Effective
from npucompose.schema.experiment import Experiment
from npucompose.targets.backend import Backend
from npucompose.targets.base import NO_FOLDERS, Folders, VendorCompiler
from npucompose.targets.compilers import compiled
from npucompose.targets.npu_offline import wheel
from npucompose.targets.process_groups import exchange
from npucompose.targets.vendor_compiled import VendorCompiled
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
    experiment = checked.experiment
    mode = experiment.mode.name
    private.make_private()
    checked.target.prepare(mode)  # first: a vendor's package wants to define its operators itself
    _define_operators(checked.target.soc)
    ops.define_installed(rule.op for rule in experiment.adapt.rules)
    can = attrs.evolve(checked.target.capabilities(mode), ranks=exchange)
    proving = experiment.check == "per_pass"
    pre, post = (PassPipeline.for_stage(checked.passes, stage, can, check=proving) for stage in STAGES)
    backend = Backend(
        target=checked.target,
        mode=mode,
        compiler=compiled,
        options=experiment.compiler,
        inductor=experiment.inductor,
        pre=pre,
        post=post,
        folders=folders,
        partial=experiment.compile.partial,
        strict=experiment.strict,
        torch_npu=checked.torch_npu.version,
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


def _define_operators(soc: str | None) -> None:
    """Those of the wheel that is found here; of our own list where it is of the same version."""
    try:
        found = wheel.find()
        brought = found is None or found.version == shipped().version
        known = None if found is None or brought else of_wheel(found.tree / "torch_npu", found.version)
    except ConfigError:  # said when a shape is asked for
        known = None
    ops.define(known, locate=wheel.locate, soc=soc)


# What Dynamo says when it cannot make a graph, as one paragraph: the operator or construct and the model's line.

CANNOT = "torch.compile cannot make one graph of the model"
_NO_FAKE = re.compile(r"unsupported operator: ([\w.]+)")
"""What torch says of an operator that torch.library.define made; of one of custom_op it gives its own advice."""


@contextmanager
def translate_torch_errors(debug: bool = False) -> Iterator[None]:
    """Exceptions of Dynamo become CompileError; an error of ours that Dynamo wrapped comes out as it was raised."""
    from torch._dynamo import config
    from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, TorchDynamoException
    from torch._inductor.exc import InductorError
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

    try:
        yield
    except ConstraintViolationError as error:
        lines = str(error).splitlines()[:4]  # from there on it becomes a tutorial
        said = " ".join(line.strip() for line in lines if line.strip())
        raise CompileError(f"shapes.mark_dynamic cannot hold: {said}") from error
    except FailOnRecompileLimitHit as error:
        raise CompileError(
            f"torch.compile has made {config.recompile_limit} versions of one function "
            "(torch._dynamo.config.recompile_limit) and makes no more where compile.fullgraph is true: its shapes or "
            "numbers change too often. shapes=dynamic makes symbols of them; fewer calls in model.sequence show, in "
            "the report's `recompiles`, which arguments they are."
        ) from error
    except TorchDynamoException as error:
        ours = _ours(error)
        if ours is not None:
            raise _located(ours, str(error)) from (error if debug else None)
        if isinstance(error, BackendCompilerFailed):
            inner = error.inner_exception
            if ALIASED in str(inner):
                raise CompileError(_aliased(str(inner))) from inner
            way_out = (
                ". mode=reduce-overhead records such a graph without Inductor"
                if isinstance(error, InductorError)
                else ""
            )
            said = f"{type(inner).__name__}: {_first_line(str(inner))}"
            raise CompileError(f"the backend failed while it compiled the graph: {said}{way_out}") from error
        operator = _NO_FAKE.search(str(error))
        if operator is not None and operator[1].startswith("npu."):
            name = operator[1].removeprefix("npu.").removesuffix(".default")
            raise _located(NoShape(no_meta_function(name), operator=name), str(error)) from error
        raise CompileError(sentence(str(error))) from error
    except IndexError as error:  # Dynamo lets it through as it is, with the model's line
        if "from user code:" not in str(error):
            raise
        raise CompileError(sentence(f"IndexError: {error}")) from error


def _aliased(message: str) -> str:
    """What torch says of an operator that returns its argument, with the model's line."""
    operator = message.partition(ALIASED)[2].partition("(")[0].replace("::", ".")
    where = _quoted(traced_line(re.split(r"\n\n", message.partition("Original traceback:")[2])[0]) or "")
    return (
        f"{CANNOT}{f' at {where}' if where else ''}: torch.ops.{operator} returns an argument that it writes. torch "
        "takes such an operator into a graph only where another stands in for it; there is none, on a device as here."
    )


def _located(error: NpuComposeError, message: str) -> NpuComposeError:
    """What an operator refused while Dynamo traced the model, with the model's line."""
    line = _users_frame(message)
    if line is None or not isinstance(error, (NoShape, UnsupportedArgument)):
        return error
    if isinstance(error, NoShape):
        return NoShape(error.why, operator=error.operator, source=line)
    return UnsupportedArgument(f"{CANNOT} at {_quoted(line)}: {error}")


def _users_frame(message: str) -> str | None:
    """The last frame under "from user code" that is not torch's."""
    trace = re.sub(r'File "[^"]*/torch/_library/[^\n]*\n[^\n]*\n', "", message.partition("from user code:")[2])
    return traced_line(trace)


def _ours(error: BaseException | None) -> NpuComposeError | None:
    """The error of ours in the chain, if there is one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, NpuComposeError):
            found = first_raised(error)
            return found if isinstance(found, NpuComposeError) else error
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return None


def sentence(message: str) -> str:
    """Dynamo's long explanation cut to what is wrong, where, and what it hints at.

    "Unsupported Tensor.item() call with capture_scalar_outputs=False … from user code: File "m.py", line 3, in forward
    return x.item()" becomes "torch.compile cannot make one graph of the model at m.py:3 in forward, `return x.item()`:
    Unsupported Tensor.item() call …".
    """
    where = _quoted(_users_frame(message) or "")
    operator = _NO_FAKE.search(message)
    if operator is not None:
        return (
            f"{CANNOT}{f' at {where}' if where else ''}: the operator {operator[1]} has no fake implementation, which "
            "tells the shapes of its results. Add one with torch.library.register_fake."
        )
    of_operator = _of_fake_tensors(message)
    what = of_operator or _first_line(message)
    hint = None if of_operator else re.search(r"Hint: (.+)", message)
    text = f"{CANNOT}{f' at {where}' if where else ''}: {what}."
    return f"{text} {hint.group(1).strip()}" if hint else text


def _quoted(line: str) -> str:
    """`m.py:3 in forward: x.item()` with the code between marks, so that a sentence can go on after it."""
    place, _, code = line.partition(": ")
    return f"{place}, `{code}`" if code else place


def _of_fake_tensors(message: str) -> str | None:
    """What an operator said when Dynamo asked it for the form of its result; the first line says only that it asked."""
    found = re.search(r"Dynamo failed to run FX node with fake tensors: .*? got \w+\((['\"])(.+?)\1\)", message)
    if found:
        return found[2].rstrip(".")
    wrong = re.search(r"Developer debug context: (\w+) ([\w.]+): ([^\n]+)", message)
    if wrong and "when making fake tensor call" in message:
        return f"the meta function of {wrong[2]} raises {wrong[1]}: {wrong[3].rstrip('.')}"
    return None


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else "no reason given"
