"""The stage `padding`: rows that hold nobody's request are filled with garbage, and real rows must not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_free.stage import Facts, Stage
from npucompose.errors import ConfigError, listed
from npucompose.results.measured import Garbage, PaddingCheck, PaddingFacts
from npucompose.table.structure import facts_of

if TYPE_CHECKING:
    from npucompose.compose.session import Session
    from npucompose.measure.padding import Call, Rows


class PaddingStage(Stage["Session"]):
    """The model's first call with three kinds of garbage, in eager and compiled, and who reads it."""

    name: ClassVar[str] = "padding"
    needs: ClassVar[tuple[str, ...]] = ("replay",)
    reads: ClassVar[tuple[str, ...]] = ("padding",)

    def run(self, live: Session, progress: Callable[[float], None]) -> Facts:
        from npucompose.measure.padding import KINDS, changed_rows, readers

        rows, inputs = _rows(live), live.inputs(0)
        ways = _ways(live)
        checks: list[PaddingCheck] = []
        for way, call in ways.items():
            right = call(inputs)
            for garbage in KINDS:
                changed = changed_rows(right, call(rows.spoiled(inputs, garbage, live.experiment.seed)), rows)
                checks.append(PaddingCheck(way=way, garbage=garbage, changed=changed))
                progress(len(checks) / (len(ways) * len(KINDS) + 1))
        failed: list[Garbage] = [one.garbage for one in checks if one.way == "eager" and not one.passed]
        found = readers(ways["eager"], inputs, rows, failed[0], live.experiment.seed) if failed else ()
        live.rewind()
        facts = PaddingFacts(rows=rows.rows, real=rows.real, inputs=rows.names, checks=tuple(checks), readers=found)
        return {"padding": facts_of(facts)}


def _rows(live: Session) -> Rows:
    """The inputs that `padding.inputs` names, else all with as many rows as the first of them."""
    import torch

    from npucompose.measure.padding import Rows

    options, inputs = live.experiment.padding, live.inputs(0)
    sizes = {name: len(one) for name, one in inputs.items() if isinstance(one, torch.Tensor) and one.dim()}
    if unknown := [name for name in options.inputs if name not in sizes]:
        raise ConfigError(f"padding.inputs: {listed(unknown)} is no input with rows. Possible: {listed(sizes)}.")
    names = options.inputs or tuple(name for name, size in sizes.items() if size == next(iter(sizes.values())))
    found = {sizes[name] for name in names}
    if len(found) != 1:
        raise ConfigError(f"padding.inputs: {listed(names)} have {listed(map(str, sorted(found)))} rows, not the same.")
    (rows,) = found
    real = options.real if options.real is not None else rows // 2
    if not 0 < real < rows:
        given = f"padding.real={options.real}" if options.real is not None else "half of them"
        raise ConfigError(
            f"padding: {given} of the {rows} rows of {listed(names)} cannot be real: at least one is, and at least "
            "one is not, so that there is padding."
        )
    return Rows(names=names, rows=rows, real=real)


def _ways(live: Session) -> dict[Any, Call]:
    """The model in eager and, where the mode compiles, compiled: by its handle, else through torch.compile."""
    eager = _from_the_first_state(live, live.reference, live.reference)
    if not live.experiment.mode.spec.compiles:
        return {"eager": eager}
    ours = live.compiled if live.detached is None else live.detached
    return {"eager": eager, "compiled": _from_the_first_state(live, ours, live.built.module)}


def _from_the_first_state(live: Session, function: Callable[..., Any], module: Any) -> Call:
    from torch import Tensor
    from torch.utils._pytree import tree_map_only

    from npucompose.compose.comparison import left

    def call(given: Mapping[str, Any]) -> Any:
        live.rewind()
        inputs = live.inputs(0)  # which carry what the shape policy marks
        for name, value in given.items():
            if isinstance(value, Tensor):
                inputs[name].copy_(value)
        result = live.call(function, inputs)
        return tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), left(live, module, result, inputs))

    return call
