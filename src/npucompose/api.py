"""All that a notebook needs: `npucompose.compile`, `npucompose.materialize`, `npucompose.backend`.

Choices are Hydra overrides, as on the command line: `compile(model, "mode=reduce-overhead", "passes=stream_plan")`.
Nothing is written to disk and no worker is started: the caller's process compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast, overload

from attrs import evolve

from npucompose import recorder
from npucompose.compose.check import Checked, check
from npucompose.compose.engine import Materialised
from npucompose.compose.engine import materialize as _materialize
from npucompose.compose.tree import Composed, compose, composer_of
from npucompose.errors import ConfigError
from npucompose.machine import full_collections_put_off
from npucompose.schema.experiment import Shapes

if TYPE_CHECKING:
    from torch import nn

    from npucompose.compiled import CompiledFunction, CompiledModel, CompiledModule
    from npucompose.recorder import FrozenWeights
    from npucompose.targets.backend import Backend, Notices

Overrides = str | Sequence[str]
"""One choice, or a list of choices."""
OF_A_RUN = ("model=", "model.", "pipeline=", "pipeline.", "scenario=", "scenario.")
"""Choices without a meaning where the model is the caller's and no stage runs."""
OWN_SHAPES = "npucompose.compile"
"""The provenance of `shapes` where `compile` decides."""


@overload
def compile(  # pyright: ignore[reportOverlappingOverload]: a module is callable too
    model: nn.Module, *overrides: Overrides, config_dirs: Sequence[str] = ()
) -> CompiledModule: ...
@overload
def compile(model: Callable[..., Any], *overrides: Overrides, config_dirs: Sequence[str] = ()) -> CompiledFunction: ...
def compile(model: nn.Module | Callable[..., Any], *overrides: Overrides, config_dirs: Sequence[str] = ()) -> Any:
    """`compile(model, "mode=reduce-overhead", "passes=stream_plan")(x)`; ConfigError when the choices are not legal.

    What comes back is a module where a module is given, as from torch.compile; of a model that is compiled already the
    original is compiled. The model is yours: `model=` and `pipeline=` choices have no meaning here and are refused.
    """
    if not callable(model):
        raise ConfigError(f"npucompose.compile takes a module or a function first, then its choices; given {model!r}.")
    return _compiled_again(tuple(_choices(overrides)), tuple(config_dirs), model)


@full_collections_put_off()
def _compiled_again(overrides: Sequence[str], config_dirs: Sequence[str], model: Callable[..., Any]) -> CompiledModel:
    """A function of its own, so that pickle finds it."""
    from npucompose.compiled import compiled

    again = partial(_compiled_again, overrides, config_dirs)
    return compiled(model, _building(materialize(*overrides, config_dirs=config_dirs)), again)


def _building(made: Materialised) -> Materialised:
    """The same, and what its graphs need is built while the caller does other things."""
    if made.backend.records:
        made.backend.target.start_build(made.backend.mode)
    return made


def materialize(*overrides: Overrides, config_dirs: Sequence[str] = ()) -> Materialised:
    """The CompilerConfig value, the backend object, the pass pipelines, `effective` and `provenance` of the choices."""
    return _materialised(overrides, partial(compose, config_dirs=config_dirs))


@full_collections_put_off()
def _materialised(overrides: Sequence[Any], composed: Callable[[Sequence[str]], Composed]) -> Materialised:
    return _materialize(with_own_shapes(check(composed(caller_choices(overrides)), with_model=False)))


def caller_choices(overrides: Sequence[Any]) -> tuple[str, ...]:
    """Choices for a model of the caller's, lists of them spread out; ConfigError for one that is about a run."""
    choices = tuple(_choices(overrides))
    for choice in choices:
        if choice.lstrip("+~").startswith(OF_A_RUN):
            raise ConfigError(f"'{choice}' has no meaning here: the model is the caller's, and stages are not run.")
    return choices


def _choices(overrides: Sequence[Any]) -> Iterator[str]:
    """Each choice; lists of them are spread out."""
    for override in overrides:
        if isinstance(override, str):
            yield override
        elif isinstance(override, (list, tuple)):
            yield from _choices(cast("Sequence[Any]", override))
        else:
            raise ConfigError(f"a choice is a text like 'mode=reduce-overhead'; given {override!r}.")


def with_own_shapes(made: Checked, *, growing: bool = False) -> Checked:
    """Where nobody chose `shapes` and each signature is recorded here anyway: shapes=auto.

    A recording is as static as can be, whatever graph it is made of; a graph for each shape on top of it would only
    cost a compilation each. `growing` says that sizes or numbers change with every call: then shapes=auto also where
    nothing is recorded, because torch would soon make no more graphs.
    """
    chosen = made.provenance["shapes.name"] != "conf/shapes/static.yaml"
    wanted = growing or made.target.capabilities(made.experiment.mode.name).captures
    if chosen or not (wanted and made.target.detaches) or made.experiment.shapes != Shapes():
        return made
    return evolve(
        made,
        experiment=evolve(made.experiment, shapes=Shapes(name="auto", dynamic=None)),
        provenance={**made.provenance, "shapes.name": OWN_SHAPES, "shapes.dynamic": OWN_SHAPES},
    )


@full_collections_put_off()
def checked(overrides: Sequence[str], *, config_dirs: Sequence[str] = (), with_model: bool = True) -> Checked:
    """Compose and check: every mistake in one ConfigError, nothing built, no torch loaded."""
    return check(compose(overrides, config_dirs=config_dirs), with_model=with_model)


def backend(*overrides: Overrides, config_dirs: Sequence[str] = ()) -> Backend:
    """A torch.compile backend object: `torch.compile(model, backend=npucompose.backend("passes=cse"))`."""
    return _building(materialize(*overrides, config_dirs=config_dirs)).backend


def dynamo_backend(
    graph_module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Any:
    """`torch.compile(model, backend="npucompose", options={"mode": "reduce-overhead", "passes": ["cse"]})`.

    Found through torch's entry point; the options are overrides: {"seed": 3} is `seed=3`.
    """
    choices = [f"{key}={_text(value)}" for key, value in (options or {}).items()]
    made = _materialised(choices, composer_of().compose).backend
    if made.target.support(made.mode).fuses:
        made.frozen = _watching(made.inductor.frozen_weights)
    made.notices = _notices()
    return made(graph_module, example_inputs)


@cache
def _watching(policy: str) -> FrozenWeights:
    """One for all graphs of `backend="npucompose"`: the next graph of a model is compiled by another backend object."""
    return recorder.needed("weights cannot be frozen").frozen_weights(policy, shared=True)


@cache
def _notices() -> Notices:
    """torch asks for a backend by its name for each graph anew: all of them together warn once."""
    from npucompose.targets.backend import Notices

    return Notices()


def _reset() -> None:
    _notices().reset()


dynamo_backend.reset = _reset  # type: ignore[attr-defined]  torch._dynamo.reset() calls it


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
