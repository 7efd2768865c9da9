"""What torch has of each ATen operator: `python -m tools.torch_operators FILE` writes it as JSON, for the torch that is
installed.

torch's own list (native_functions.yaml, which torch brings for its code generator) says which operators are composites,
and of which a structured one is made. What the others call is tried: each is called with tensors of a device that has
nothing but a fallback, which notes the operators that reach it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from npucompose.input_safety import yaml_loader
from npucompose.vendor.wheel_operators import CPU, IMPLICIT, NOWHERE, OPEN

LIST = Path("packaged", "ATen", "native", "native_functions.yaml")
_EXPLICIT = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def listed() -> str:
    """The text of the installed torch's list."""
    spec = importlib.util.find_spec("torchgen")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / LIST).read_text(encoding="utf-8")


def kinds(text: str) -> dict[str, str]:
    """{operator: IMPLICIT and OPEN, CPU, NOWHERE, what it calls, or OPEN where the list does not say what it calls}."""
    found: dict[str, str] = {}
    for entry in yaml.load(text, Loader=yaml_loader()):
        name = entry["func"].partition("(")[0]
        found[f"aten::{name}"] = _kind(entry)
        for variant in str(entry.get("autogen", "")).split(","):
            if variant.strip():  # what torch's code generator makes of it: the operator, and a copy
                found[f"aten::{variant.strip()}"] = f"{name} {'copy_' if 'out' in variant else 'clone'}"
    return dict(sorted(found.items()))


def _kind(entry: Mapping[str, Any]) -> str:
    keys = {key.strip() for keys in entry.get("dispatch", {}) for key in keys.split(",")}
    if keys.intersection(_EXPLICIT):
        return OPEN
    if "CompositeImplicitAutograd" in keys or not (keys or entry.get("structured_delegate")):
        return f"{IMPLICIT} {OPEN}"
    if entry.get("structured_delegate"):
        return str(entry["structured_delegate"])
    return CPU if "CPU" in keys else NOWHERE


def called(composites: Sequence[str], calls: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(composite, what it calls) for those with a made-up call; OPEN behind it where the call did not come to its
    end."""
    from tools.operator_calls import in_a_child

    device = _Device(composites)
    for name, call in calls.items():
        said = in_a_child(lambda name=name, call=call: f"{device.called_by(name, call)}\n")
        yield name, said.strip() if said else OPEN


class _Device:
    """A device whose only kernels note that they were called: for every operator that is no composite, and for each
    composite but the one that is looked at."""

    def __init__(self, composites: Sequence[str]) -> None:
        import torch
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend("npu")
        self.torch = torch
        self._acc: Any = getattr(torch._C, "_acc")  # noqa: B009  not in torch's stubs
        self.seen: list[str] = []
        self.fallback = torch.library.Library("_", "IMPL")
        self.fallback.fallback(self._note, "PrivateUse1")
        self.kernels = {name: self._kernel(name) for name in composites}

    def _kernel(self, name: str) -> Any:
        library = self.torch.library.Library("aten", "IMPL")
        library.impl(name.removeprefix("aten::"), self._noting(name), "PrivateUse1")
        return library

    def _noting(self, name: str) -> Any:
        from tools.operator_calls import overload

        operator = overload(name)
        return lambda *args, **keywords: self._note(operator, *args, **keywords)

    def called_by(self, name: str, call: Any) -> str:
        """The operators that reach the device while `name` runs, each once, in their order."""
        from torch.utils._pytree import tree_map

        from tools.operator_calls import overload

        if held := self.kernels.pop(name, None):
            held._destroy()
        self.seen.clear()
        operator = overload(name)
        args, keywords = tree_map(self._there, (call.args, dict(call.keywords)))
        if any(argument.name == "device" and argument.kwarg_only for argument in operator._schema.arguments):
            keywords["device"] = self.torch.device("npu")
        try:
            with self.torch.no_grad():
                operator(*args, **keywords)
            end = ""
        except Exception:  # noqa: BLE001  what it does with results that are none
            end = OPEN
        seen = [one.removeprefix("aten::") for one in dict.fromkeys(self.seen)]
        if held:
            self.kernels[name] = self._kernel(name)
        return " ".join([*seen, end]).strip()

    def _note(self, operator: Any, *args: Any, **keywords: Any) -> Any:
        """Note the call, and give results of the shapes that it has on the CPU, with tensors of ones."""
        from torch.utils._pytree import tree_map

        self.seen.append(operator.name())
        given = [one for one in args if isinstance(one, self.torch.Tensor)]
        if operator._schema.name in ("aten::copy_", "aten::_copy_from"):
            return given[0]
        if operator._schema.name in ("aten::as_strided", "aten::as_strided_"):
            return self._there(self.torch.ones(args[1], dtype=given[0].dtype))
        kinds = [str(argument.type) for argument in operator._schema.arguments]
        here = [self._here(one, kind) for one, kind in zip(tree_map(self._here, args), kinds, strict=False)]
        made = operator(*here, **tree_map(self._here, keywords))
        if operator._schema.is_mutable and isinstance(made, self.torch.Tensor):
            return keywords.get("out", given[0] if given else made)
        return tree_map(self._there, made)

    def _there(self, value: Any) -> Any:
        if isinstance(value, self.torch.Tensor):
            return self._acc.create_empty_tensor(value.shape, value.dtype)
        return self.torch.device("npu") if isinstance(value, self.torch.device) else value

    def _here(self, value: Any, kind: str = "") -> Any:
        """Zeros where they may be indices. A number that stands for a tensor reaches a kernel in Python as a number."""
        if isinstance(value, self.torch.Tensor) and not kind:
            make = self.torch.ones if value.dtype.is_floating_point else self.torch.zeros
            square = value.dim() > 1 and value.shape[-1] == value.shape[-2] and value.dtype.is_floating_point
            made = make(value.shape, dtype=value.dtype)
            return made + self.torch.eye(value.shape[-1]) if square else made
        if kind == "Tensor" and isinstance(value, (bool, int, float, complex)):
            return self.torch.tensor(value)
        return self.torch.device("cpu") if isinstance(value, self.torch.device) else value


def without_meta(kinds: Mapping[str, str]) -> list[str]:
    """Those of the operators of which torch cannot tell the shape of the result without running them."""
    import torch
    import torch._decomp
    import torch._meta_registrations
    import torch._subclasses.fake_impls as fake

    from tools.operator_calls import overload

    def own(name: str) -> bool:
        operator = overload(name)
        return (
            torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")
            or torch._C.DispatchKey.Meta in operator.py_kernels
            or operator in torch._decomp.decomposition_table
            or operator in fake.op_implementations_dict
        )

    def has(name: str) -> bool:
        kind = kinds[name]
        if own(name) or kind.startswith(IMPLICIT):
            return True
        return kind not in (CPU, NOWHERE) and all(own(f"aten::{one}") for one in kind.split() if one != OPEN)

    return [name for name in kinds if not has(name)]


def decided_by_data(names: Iterable[str]) -> list[str]:
    """Those of the operators whose result is a number, or has a size, that only data decide: by torch's own tags."""
    import torch

    from tools.operator_calls import overload

    tags = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    return [name for name in names if tags & set(overload(name).tags)]


def decomposed(calls: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(operator, what torch's decomposition of it calls), where torch has one."""
    from torch._decomp import decomposition_table

    from tools.operator_calls import in_a_child, overload

    table: Mapping[Any, Any] = decomposition_table
    for name, call in calls.items():
        if overload(name) in table:
            yield name, in_a_child(lambda name=name, call=call: _traced(name, call)) or OPEN


def _traced(name: str, call: Any) -> str:
    import torch
    from torch._decomp import decomposition_table
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._pytree import tree_flatten, tree_unflatten

    from tools.operator_calls import overload

    operator: Any = overload(name)
    leaves, tree = tree_flatten((call.args, dict(call.keywords)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def called(*given: torch.Tensor) -> Any:
        left = iter(given)
        args, keywords = tree_unflatten([next(left) if isinstance(x, torch.Tensor) else x for x in leaves], tree)
        return operator(*args, **keywords)

    mine = {operator: decomposition_table[operator]}
    try:
        with torch.no_grad():
            graph = make_fx(called, decomposition_table=mine, tracing_mode="fake")(*tensors).graph
    except Exception:  # noqa: BLE001  a decomposition may refuse what the operator takes
        return OPEN
    found = (node.target for node in graph.nodes if node.op == "call_function")
    return " ".join(dict.fromkeys(str(one).removeprefix("aten.") for one in found if hasattr(one, "_schema")))


def read() -> dict[str, Any]:
    """{version, kinds, without_meta, decompositions} of the installed torch."""
    import torch

    from tools import operator_calls

    found = kinds(listed())
    known = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    found = {name: kind for name, kind in found.items() if name in known}
    found |= dict.fromkeys(sorted(known - set(found)), CPU)  # registered by hand: kernels of quantised LSTMs
    open_ones = [name for name, kind in found.items() if kind == OPEN]
    implicit = [name for name, kind in found.items() if kind.startswith(IMPLICIT)]
    composites = [name for name, kind in found.items() if kind not in (CPU, NOWHERE) and name not in set(implicit)]
    calls = operator_calls.isolated(list(operator_calls.safe(list(found))))
    traced = {name: said for name, said in decomposed(calls) if not said.endswith(OPEN)}
    made = {*composites, *implicit}
    tried = dict(called(composites, {name: call for name, call in calls.items() if name in made}))
    for name, said in tried.items():
        if name in implicit:
            found[name] = f"{IMPLICIT} {said}".strip()
        elif name in open_ones or not said.endswith(OPEN):
            found[name] = said
    return {
        "version": torch.__version__.partition("+")[0],
        "kinds": found,
        "without_meta": without_meta(found),
        "decided_by_data": decided_by_data(found),
        "decompositions": traced,
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(read()), encoding="utf-8")  # operators print too
