"""All that a notebook needs: `npucompose.compile`, `npucompose.materialize`, `npucompose.backend`.

Choices are Hydra overrides, as on the command line: `compile(model, "mode=reduce-overhead", "passes=stream_plan")`.
Nothing is written to disk and no worker is started: the caller's process compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npucompose.compose.check import Checked, check
from npucompose.compose.dynamo_errors import in_our_words
from npucompose.compose.engine import Materialised
from npucompose.compose.engine import materialize as _materialize
from npucompose.compose.tree import compose
from npucompose.errors import CaptureError, ConfigError
from npucompose.schema.effective import Effective

if TYPE_CHECKING:
    from torch import nn

    from npucompose.targets.compilation import Backend
    from npucompose.targets.detached import DetachedHandle
    from npucompose.targets.recapturing import Recapturing


class CompiledModel:
    """A model compiled as an experiment says; call it as the model itself.

    `materialised` is what the engine made (config, backend, effective options, provenance); `detach(*inputs)` is the
    handle that skips torch.compile's guards, good for the signature of those inputs.
    """

    def __init__(self, model: nn.Module | Callable[..., Any], materialised: Materialised) -> None:
        self.model = model
        self.materialised = materialised
        self._call = (
            model
            if materialised.experiment.mode.name == "eager"
            else materialised.backend.torch_compile(model, **materialised.compile_keywords)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with in_our_words(self.materialised.experiment.debug):
            return self._call(*args, **kwargs)

    @property
    def effective(self) -> tuple[Effective, ...]:
        """Requests that do not take effect as asked."""
        return self.materialised.effective

    def detach(self, *args: Any, **kwargs: Any) -> DetachedHandle:
        """Compile and capture for these inputs (one call is made) and return the handle that replays directly.

        Raises CaptureError when this mode records nothing or the call cannot be mapped to one captured graph. Called
        with another signature, the handle raises SignatureError, which names both; `recapturing()` captures it.
        """
        from npucompose.targets.detached import detach_call

        self._check_captures()
        self(*args, **kwargs)
        return detach_call(self._lowered(), lambda: self(*args, **kwargs), args, kwargs)

    def recapturing(self) -> Recapturing:
        """Detached handles for as many signatures as come: a call of a new one is compiled, captured, then replayed.

        Raises CaptureError when this mode records nothing.
        """
        from npucompose.targets.recapturing import Recapturing

        self._check_captures()
        return Recapturing(self, self._lowered)

    def _check_captures(self) -> None:
        if not self.materialised.pre.can.captures:
            raise CaptureError(f"mode={self.materialised.experiment.mode.name} records nothing that could be detached.")

    def _lowered(self) -> list[Any]:
        return [c.lowered for c in self.materialised.backend.compilations if c.lowered is not None]


def compile(model: nn.Module | Callable[..., Any], *overrides: str, config_dirs: Sequence[str] = ()) -> CompiledModel:
    """`compile(model, "mode=reduce-overhead", "passes=stream_plan")(x)`; ConfigError when the choices are not legal.

    The model is yours: `model=` and `pipeline=` choices have no meaning here and are refused.
    """
    return CompiledModel(model, materialize(*overrides, config_dirs=config_dirs))


def materialize(*overrides: str, config_dirs: Sequence[str] = ()) -> Materialised:
    """The CompilerConfig value, the backend object, the pass pipelines, `effective` and `provenance` of the choices."""
    for override in overrides:
        if override.lstrip("+~").startswith(("model=", "model.", "pipeline=", "pipeline.")):
            raise ConfigError(f"'{override}' has no meaning here: the model is the caller's, and stages are not run.")
    return _materialize(checked(overrides, config_dirs=config_dirs, with_model=False))


def checked(overrides: Sequence[str], *, config_dirs: Sequence[str] = (), with_model: bool = True) -> Checked:
    """Compose and check: every mistake in one ConfigError, nothing built, no torch loaded."""
    return check(compose(overrides, config_dirs=config_dirs), with_model=with_model)


def backend(*overrides: str, config_dirs: Sequence[str] = ()) -> Backend:
    """A torch.compile backend object: `torch.compile(model, backend=npucompose.backend("passes=cse"))`."""
    return materialize(*overrides, config_dirs=config_dirs).backend


def dynamo_backend(
    graph_module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Any:
    """`torch.compile(model, backend="npucompose", options={"mode": "reduce-overhead", "passes": ["cse"]})`.

    Found through torch's entry point; the options are overrides: {"seed": 3} is `seed=3`.
    """
    return backend(*(f"{key}={_text(value)}" for key, value in (options or {}).items()))(graph_module, example_inputs)


def _text(value: Any) -> str:
    """A value as Hydra's override grammar writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_text(v) for v in value) + "]"
    return str(value)
