"""Does a rule match a node: arguments by name, predicates on fake values. Changes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from npucompose.errors import ConfigError, unknown
from npucompose.passes.metadata import value_of
from npucompose.schema.adapt import (
    REFERENCE,
    CastAround,
    Compose,
    Dispatch,
    FillArgs,
    LayoutAround,
    Reject,
    Rule,
    RuleSet,
    When,
    references,
)
from npucompose.schema.capabilities import Capabilities

Bound = Mapping[str, Any]
"""{argument's name: what the call gives, or the schema's default}; nodes stand as nodes."""


@functools.cache
def operator_of(name: str) -> torch._ops.OpOverload | None:
    """`aten.relu.default` -> the overload; None where nobody has defined it."""
    packet, _, overload = name.rpartition(".")
    found = getattr(_packet(packet), overload, None)
    return found if isinstance(found, torch._ops.OpOverload) else None


def _packet(name: str) -> torch._ops.OpOverloadPacket | None:
    """`aten.relu`; None for what is no operator, as the methods of torch.ops itself."""
    namespace, _, packet = name.partition(".")
    space = getattr(torch.ops, namespace)
    found = getattr(space, packet, None) if isinstance(space, torch._ops._OpNamespace) else None
    return found if isinstance(found, torch._ops.OpOverloadPacket) else None


def bound(node: fx.Node) -> Bound:
    """The arguments of a call by name, defaults filled in."""
    assert isinstance(node.target, torch._ops.OpOverload)
    given: dict[str, Any] = {}
    for index, argument in enumerate(node.target._schema.arguments):
        if index < len(node.args):
            given[argument.name] = node.args[index]
        elif argument.name in node.kwargs:
            given[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            given[argument.name] = argument.default_value
    return given


def argument(arguments: Mapping[str, Any], name: str) -> Any:
    """`x`, or `indices[0]`; None where the list is shorter or no list."""
    base, part, rest = name.partition("[")
    found = arguments.get(base)
    if not part:
        return found
    index = int(rest.removesuffix("]"))
    return found[index] if isinstance(found, (list, tuple)) and index < len(found) else None


def matches(rule: Rule, node: fx.Node, arguments: Bound, can: Capabilities) -> bool:
    """Everything that `rule.when` names holds; a dispatch also needs a case, and a fake value is needed always."""
    if node.meta.get("val") is None or not _surroundings(rule.when, can):
        return False
    when = rule.when
    checks: tuple[tuple[Mapping[str, Any], Callable[[Any, Any], bool]], ...] = (
        (when.length, _has_length),
        (when.args, _equals),
        (when.dtype, _has_dtype),
        (when.rank, _has_rank),
        (when.shape, _has_shape),
        (when.layout, _lies),
    )
    for wanted, holds in checks:
        if not all(holds(value_of(argument(arguments, name)), what) for name, what in wanted.items()):
            return False
    if isinstance(rule, Dispatch):
        return case_of(arguments.get(rule.by)) in rule.cases
    if isinstance(rule, CastAround):  # nothing to cast: the rule would put the same call in the call's place
        wanted = getattr(torch, rule.compute)
        tensors = [value_of(arguments.get(name)) for name in rule.inputs]
        return any(isinstance(t, torch.Tensor) and t.dtype != wanted for t in tensors)
    if isinstance(rule, LayoutAround):
        tensors = [value_of(arguments.get(name)) for name in rule.inputs]
        return any(isinstance(t, torch.Tensor) and t.dim() == len(rule.perm) for t in tensors)
    return True


def case_of(found: Any) -> str:
    """How YAML's keys say a value: max, true, 3."""
    return str(found).lower() if isinstance(found, bool) else str(found)


def _surroundings(when: When, can: Capabilities) -> bool:
    return (not when.device or can.device in when.device) and (not when.mode or can.mode in when.mode)


def _equals(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(found, (list, tuple))
            and len(found) == len(wanted)
            and all(_equals(value_of(a), b) for a, b in zip(found, wanted, strict=True))
        )
    if isinstance(found, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return statically_known_true(found == wanted)  # a guard would bind the graph to this size
    if isinstance(found, torch.Tensor) or wanted is None:
        return found is wanted
    if isinstance(found, torch.dtype):
        return str(found) == f"torch.{wanted}"
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted


def _has_dtype(found: Any, wanted: Any) -> bool:
    if not isinstance(found, torch.Tensor):
        return False
    kind = "floating" if found.is_floating_point() else "complex" if found.is_complex() else "integer"
    return str(found.dtype).removeprefix("torch.") in wanted or (kind in wanted and found.dtype is not torch.bool)


def _has_length(found: Any, wanted: Any) -> bool:
    return isinstance(found, (list, tuple)) and len(found) in wanted


def _has_rank(found: Any, wanted: Any) -> bool:
    return isinstance(found, torch.Tensor) and found.dim() in wanted


def _has_shape(found: Any, wanted: Any) -> bool:
    if not isinstance(found, torch.Tensor) or found.dim() != len(wanted):
        return False
    return all(
        size is None or statically_known_true(have == size) for have, size in zip(found.shape, wanted, strict=True)
    )


def _lies(found: Any, wanted: Any) -> bool:
    if not isinstance(found, torch.Tensor):
        return False
    formats = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    if wanted == "channels_last" and found.dim() != 4:
        return False
    return found.is_contiguous(memory_format=formats[wanted])


def by_operator(rules: RuleSet) -> dict[torch._ops.OpOverload, list[Rule]]:
    """{operator: its rules, the one to ask first in front}; every name that does not exist in one ConfigError."""
    problems: list[str] = []
    table: dict[torch._ops.OpOverload, list[Rule]] = {}
    for rule in sorted(rules.rules, key=lambda r: -r.priority):
        operator = _known(rule.op, rule, problems)
        if operator is None:
            continue
        problems += _unknown_names(rule, operator)
        for name in _made_by(rule):
            _known(name, rule, problems)
        table.setdefault(operator, []).append(rule)
    if problems:
        raise ConfigError(*problems)
    return table


def _known(name: str, rule: Rule, problems: list[str]) -> torch._ops.OpOverload | None:
    found = operator_of(name)
    if found is not None:
        return found
    packet = _packet(of := name.rpartition(".")[0])
    there = [f"{of}.{overload}" for overload in packet.overloads()] if packet is not None else []
    words = unknown("operator", name, there) if there else f"there is no operator '{name}'."
    problems.append(f"{words.removesuffix('.')} @ adapt rule '{rule.name}'.")
    return None


def _made_by(rule: Rule) -> list[str]:
    if isinstance(rule, FillArgs):
        return [rule.to]
    if isinstance(rule, Compose):
        return [step.op for step in rule.steps]
    return [call.op for call in rule.cases.values()] if isinstance(rule, Dispatch) else []


def _unknown_names(rule: Rule, operator: torch._ops.OpOverload) -> list[str]:
    """Arguments that a rule names and its operator does not have."""
    known = [argument.name for argument in operator._schema.arguments]
    when = rule.when
    used = [
        name for wanted in (when.args, when.dtype, when.rank, when.shape, when.length, when.layout) for name in wanted
    ]
    if isinstance(rule, (CastAround, LayoutAround)):
        used += rule.inputs
    if isinstance(rule, LayoutAround):
        used += rule.set
    if isinstance(rule, Dispatch):
        used.append(rule.by)
    let = [step.let for step in rule.steps if step.let] if isinstance(rule, Compose) else []
    used += [name for name in _referred(rule) if name.partition("[")[0] not in let]
    return [
        unknown("argument", name, (*known, *let), f"adapt rule '{rule.name}' for {rule.op}")
        for name in dict.fromkeys(name.partition("[")[0] for name in used)
        if name not in known
    ]


def _referred(rule: Rule) -> list[str]:
    calls: list[Any] = []
    if isinstance(rule, FillArgs):
        calls = [rule.call]
    elif isinstance(rule, Compose):
        calls = list(rule.steps)
    elif isinstance(rule, Dispatch):
        calls = list(rule.cases.values())
    found = [reference for call in calls for reference in references((call.args, call.kwargs))]
    found += list(rule.results) if isinstance(rule, Compose) else []
    names = [match[1] for reference in found if (match := REFERENCE.fullmatch(reference))]
    if isinstance(rule, Reject):
        import string

        fields = [name for _, name, _, _ in string.Formatter().parse(rule.message) if name]
        names += [name for name in fields if name not in ("op", "node", "source")]
    return names
