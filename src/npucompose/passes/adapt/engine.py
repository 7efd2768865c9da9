"""Applies a rule set to a graph: for each node the first rule that matches, then the nodes that it made."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import fx

from npucompose.errors import ConfigError, RejectedError, unknown
from npucompose.graphs.effects import is_getitem
from npucompose.graphs.matching import Arguments, arguments_of, holds, operator_of, packet_of, source_line, value_of
from npucompose.passes.adapt.build import TRAIL, Builder, case_of, replacement
from npucompose.passes.base import Outcome
from npucompose.passes.proof import PartProofs, Promise, part
from npucompose.results.graphs import RuleFacts
from npucompose.schema.adapt import (
    REFERENCE,
    CastAround,
    Compose,
    Dispatch,
    FillArgs,
    LayoutAround,
    Reject,
    Rewriting,
    Rule,
    RuleSet,
    references,
)
from npucompose.schema.capabilities import Capabilities


@frozen(kw_only=True, eq=False)
class Applied:
    """One application of a rule, at the moment when the old call and the new ones both stand in the graph."""

    rule: Rewriting
    node: fx.Node
    made: Sequence[fx.Node]
    results: Sequence[fx.Node]
    """What takes the place of the old call's results, in order."""


@frozen(kw_only=True, eq=False)
class Rejected:
    """A node that a rule of kind `reject` refuses."""

    rule: Reject
    node: fx.Node
    told: str


Seen = Callable[[Applied | Rejected], None]


def apply(graph: fx.Graph, rules: RuleSet, can: Capabilities, *, check: bool = False) -> Outcome:
    """Rewrite in place. Every rejected node is told in one RejectedError; a name that does not exist is ConfigError.

    With `check` each application is held to its rule's contract by itself (PassError names the rule).
    """
    proofs = PartProofs()
    counts, rejected = walk(graph, rules, can, lambda one: _held(one, proofs) if check else None)
    if rejected:
        raise RejectedError(*rejected)
    return _outcome(rules, counts, proofs)


def _held(one: Applied | Rejected, proofs: PartProofs) -> None:
    if isinstance(one, Rejected):
        return
    rule, inputs = one.rule, one.node.all_input_nodes
    contract = rule.contract
    proofs.hold(
        rule.name,
        f"rule '{rule.name}' for {rule.op} (node {one.node.name})",
        part(inputs, [one.node], [one.node]),
        part(inputs, one.made, one.results),
        Promise(exact=contract.bitwise, rtol=contract.rtol, atol=contract.atol, may_refuse=contract.range_check),
    )


def walk(
    graph: fx.Graph, rules: RuleSet, can: Capabilities, see: Seen
) -> tuple[Mapping[str, Counter[str]], Sequence[str]]:
    """Rewrite in place, `see` being told of every step: (what each rule did, a sentence for each rejected node)."""
    table = by_operator(rules)
    counts: dict[str, Counter[str]] = {rule.name: Counter() for rule in rules.rules}
    rejected: list[str] = []
    todo = [node for node in graph.nodes if node.target in table]
    todo.reverse()
    while todo:
        node = todo.pop()
        found = _first(table.get(node.target, ()), node, can)  # pyright: ignore[reportArgumentType, reportCallIssue]
        if found is None:
            continue
        rule, arguments = found
        if isinstance(rule, Reject):
            rejected.append(_told(rule, node, arguments))
            see(Rejected(rule=rule, node=node, told=rejected[-1]))
            continue
        assert isinstance(rule, Rewriting)
        trail = node.meta.get(TRAIL, frozenset()) | {rule.name}
        made = _rewritten(Builder(graph, node, trail, can.asserts), rule, arguments, counts[rule.name], see)
        todo += [new for new in reversed(made) if new.target in table]
    return counts, rejected


def _first(rules: Sequence[Rule], node: fx.Node, can: Capabilities) -> tuple[Rule, Arguments] | None:
    asked = [rule for rule in rules if rule.name not in node.meta.get(TRAIL, ())]
    arguments = arguments_of(node) if asked else {}
    found = next((rule for rule in asked if applies(rule, node, arguments, can)), None)
    return None if found is None else (found, arguments)


def applies(rule: Rule, node: fx.Node, arguments: Arguments, can: Capabilities) -> bool:
    """Everything that `rule.when` names holds; a dispatch also needs a case, and a fake value is needed always."""
    if node.meta.get("val") is None or not holds(rule.when, arguments, can):
        return False
    if isinstance(rule, Dispatch):
        return case_of(arguments.get(rule.by)) in rule.cases
    if not isinstance(rule, (CastAround, LayoutAround)):
        return True
    tensors = [t for name in rule.inputs if isinstance(t := value_of(arguments.get(name)), torch.Tensor)]
    if isinstance(rule, CastAround):  # nothing to cast: the rule would put the same call in the call's place
        return any(tensor.dtype != getattr(torch, rule.compute) for tensor in tensors)
    return any(tensor.dim() == len(rule.perm) for tensor in tensors)


def _rewritten(
    builder: Builder, rule: Rewriting, arguments: Arguments, counts: Counter[str], see: Seen
) -> list[fx.Node]:
    graph, node = builder.graph, builder.node
    results = [_in_form(builder, new, old) for new, old in zip(*_pairs(builder, rule, arguments), strict=True)]
    see(Applied(rule=rule, node=node, made=builder.made, results=results))
    if isinstance(node.meta["val"], (list, tuple)):
        for user in list(node.users):
            assert is_getitem(user), f"{user} reads all results of {node} at once"
            part: Any = user.args[1]
            user.replace_all_uses_with(results[part])
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(results[0])
    graph.erase_node(node)
    counts.update(
        matches=1,
        casts=builder.casts,
        permutes=builder.permutes,
        checked=builder.checked,
        unchecked=builder.unchecked,
    )
    return builder.made


def _pairs(builder: Builder, rule: Rewriting, arguments: Arguments) -> tuple[list[fx.Node], list[Any]]:
    """The results that the rule makes, beside the fake values of those that were there."""
    old = builder.node.meta["val"]
    wanted = list(old) if isinstance(old, (list, tuple)) else [old]
    new = replacement(builder, rule, arguments)
    if len(new) != len(wanted):
        raise ValueError(
            f"adapt rule '{rule.name}' gives {len(new)} results, and {builder.node.target} has {len(wanted)}"
        )
    for made, had in zip(new, wanted, strict=True):
        _same_kind(rule, builder.node, made.meta["val"], had)
    return new, wanted


def _same_kind(rule: Rule, node: fx.Node, made: Any, had: Any) -> None:
    """A rule that changes dtype or rank would break every reader of the result."""
    if not isinstance(had, torch.Tensor):
        return
    if not isinstance(made, torch.Tensor) or (made.dtype, made.dim()) != (had.dtype, had.dim()):
        got = f"{made.dtype} of rank {made.dim()}" if isinstance(made, torch.Tensor) else type(made).__name__
        raise ValueError(
            f"adapt rule '{rule.name}' gives {got} for {node.target} (node {node.name}), which gave {had.dtype} of "
            f"rank {had.dim()}"
        )


def _in_form(builder: Builder, new: fx.Node, old: Any) -> fx.Node:
    """The result with the strides that the old one had: a reader may ask for a view of it."""
    from npucompose.passes.metadata import same_form

    if not isinstance(old, torch.Tensor) or same_form(new.meta["val"], old):
        return new
    if old.is_contiguous():
        return builder.call(torch.ops.aten.clone.default, new, memory_format=torch.contiguous_format)
    if old.dim() == 4 and old.is_contiguous(memory_format=torch.channels_last):
        return builder.call(torch.ops.aten.clone.default, new, memory_format=torch.channels_last)
    empty = builder.call(
        torch.ops.aten.empty_strided.default,
        list(old.shape),
        list(old.stride()),
        dtype=old.dtype,
        device=old.device,
    )
    return builder.call(torch.ops.aten.copy.default, empty, new)


def _told(rule: Reject, node: fx.Node, arguments: Arguments) -> str:
    shown = {name: case_of(value_of(given)) for name, given in arguments.items()}
    line = source_line(node)
    text = rule.message.format(**{**shown, "op": str(node.target), "node": node.name, "source": line or "no source"})
    where = f" at {line}" if line and "{source}" not in rule.message else ""
    who = f" (node {node.name})" if "{node}" not in rule.message else ""
    return f"{node.target}{who}{where} is rejected by adapt rule '{rule.name}': {text}"


def _outcome(rules: RuleSet, counts: Mapping[str, Counter[str]], proofs: PartProofs) -> Outcome:
    used = [rule for rule in rules.rules if isinstance(rule, Rewriting) and counts[rule.name]["matches"]]
    facts = tuple(
        RuleFacts(
            rule=rule.name,
            kind=rule.kind,
            op=rule.op,
            matches=counts[rule.name]["matches"],
            casts=counts[rule.name]["casts"],
            permutes=counts[rule.name]["permutes"],
            unchecked=counts[rule.name]["unchecked"],
            rtol=rule.contract.rtol,
            atol=rule.contract.atol,
            max_abs_err=proofs.errors.get(rule.name),
        )
        for rule in used
    )
    return Outcome(
        matches=sum(fact.matches for fact in facts),
        exact=all(rule.contract.bitwise for rule in used),
        rtol=max((fact.rtol for fact in facts), default=0.0),
        atol=max((fact.atol for fact in facts), default=0.0),
        checks_ranges=any(count["checked"] for count in counts.values()),
        rules=facts,
    )


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
    packet = packet_of(of := name.rpartition(".")[0])
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
    names = [match["name"] for reference in found if (match := REFERENCE.fullmatch(reference.removeprefix("*")))]
    if isinstance(rule, Reject):
        fields = [name for _, name, _, _ in string.Formatter().parse(rule.message) if name]
        names += [name for name in fields if name not in ("op", "node", "source")]
    return names
