"""Applies a rule set to a graph: for each node the first rule that matches, then the nodes that it made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import fx

from npucompose.errors import RejectedError, raise_for, unknown
from npucompose.graphs.effects import is_getitem
from npucompose.graphs.matching import (
    FORMATS,
    Arguments,
    arguments_of,
    has_layout,
    holds,
    operator_of,
    packet_of,
    source_line,
    value_of,
)
from npucompose.passes.adapt.build import TRAIL, Builder, case_of, replacement
from npucompose.passes.base import Outcome, Promise
from npucompose.passes.metadata import same_form
from npucompose.passes.proof import PartProofs, part
from npucompose.results.graphs import RuleFacts
from npucompose.schema.adapt import (
    REFERENCE,
    CastAround,
    Compose,
    Dispatch,
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
    message: str


Seen = Callable[[Applied | Rejected], None]


def apply(graph: fx.Graph, rules: RuleSet, can: Capabilities, *, check: bool = False) -> Outcome:
    """Rewrite in place. Every rejected node is named in one RejectedError; a name that does not exist is ConfigError.

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
        Promise(exact=contract.bitwise, rtol=contract.rtol, atol=contract.atol, checks_ranges=contract.range_check),
    )


def walk(
    graph: fx.Graph, rules: RuleSet, can: Capabilities, see: Seen
) -> tuple[Mapping[str, Counter[str]], Sequence[str]]:
    """Rewrite in place, `see` being given every step: (what each rule did, a sentence for each rejected node)."""
    table = by_operator(rules)
    counts: dict[str, Counter[str]] = {rule.name: Counter() for rule in rules.rules}
    rejected: list[str] = []
    todo = [node for node in reversed(graph.nodes) if node.target in table]
    while todo:
        node = todo.pop()
        found = _first(table.get(node.target, ()), node, can)  # pyright: ignore[reportArgumentType, reportCallIssue]
        if found is None:
            continue
        rule, arguments = found
        if isinstance(rule, Reject):
            rejected.append(_refusal(rule, node, arguments))
            see(Rejected(rule=rule, node=node, message=rejected[-1]))
            continue
        assert isinstance(rule, Rewriting)
        builder = Builder(graph, node, node.meta.get(TRAIL, frozenset()) | {rule.name}, can.asserts)
        _rewrite(builder, rule, arguments, see)
        counts[rule.name].update(builder.counts, matches=1)
        todo += [new for new in reversed(builder.made) if new.target in table]
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


def _rewrite(builder: Builder, rule: Rewriting, arguments: Arguments, see: Seen) -> None:
    graph, node = builder.graph, builder.node
    value = node.meta["val"]
    several = isinstance(value, (list, tuple))
    old, new = list(value) if several else [value], replacement(builder, rule, arguments)
    if len(new) != len(old):
        raise ValueError(f"adapt rule '{rule.name}' gives {len(new)} results, and {node.target} has {len(old)}")
    results = [_in_form(builder, rule, made, had) for made, had in zip(new, old, strict=True)]
    see(Applied(rule=rule, node=node, made=builder.made, results=results))
    for user in list(node.users) if several else ():
        assert is_getitem(user), f"{user} reads all results of {node} at once"
        part: Any = user.args[1]
        user.replace_all_uses_with(results[part])
        graph.erase_node(user)
    if not several:
        node.replace_all_uses_with(results[0])
    graph.erase_node(node)


def _in_form(builder: Builder, rule: Rule, new: fx.Node, old: Any) -> fx.Node:
    """The result with the strides that the old one had: a reader may ask for a view of it.

    A rule that changes dtype or rank would break every reader of the result.
    """
    made = new.meta["val"]
    if not isinstance(old, torch.Tensor):
        return new
    if not isinstance(made, torch.Tensor) or (made.dtype, made.dim()) != (old.dtype, old.dim()):
        got = f"{made.dtype} of rank {made.dim()}" if isinstance(made, torch.Tensor) else type(made).__name__
        raise ValueError(
            f"adapt rule '{rule.name}' gives {got} for {builder.node.target} (node {builder.node.name}), which gave "
            f"{old.dtype} of rank {old.dim()}"
        )
    if same_form(made, old):
        return new
    for layout, memory_format in FORMATS.items():
        if has_layout(old, layout):
            return builder.call(torch.ops.aten.clone.default, new, memory_format=memory_format)
    shape, strides = list(old.shape), list(old.stride())
    empty = torch.ops.aten.empty_strided.default
    return builder.call(
        torch.ops.aten.copy.default, builder.call(empty, shape, strides, dtype=old.dtype, device=old.device), new
    )


def _refusal(rule: Reject, node: fx.Node, arguments: Arguments) -> str:
    shown = {name: case_of(value_of(given)) for name, given in arguments.items()}
    line = source_line(node)
    text = rule.message.format(**{**shown, "op": str(node.target), "node": node.name, "source": line or "no source"})
    where = f" at {line}" if line and "{source}" not in rule.message else ""
    who = f" (node {node.name})" if "{node}" not in rule.message else ""
    return f"{node.target}{who}{where} is rejected by adapt rule '{rule.name}': {text}"


def _outcome(rules: RuleSet, counts: Mapping[str, Counter[str]], proofs: PartProofs) -> Outcome:
    used = [rule for rule in rules.rules if isinstance(rule, Rewriting) and counts[rule.name]["matches"]]
    facts = [
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
    ]
    checked = any(count["checked"] for count in counts.values())
    return Outcome.from_rules(facts, exact=all(rule.contract.bitwise for rule in used), checks_ranges=checked)


def by_operator(rules: RuleSet) -> dict[torch._ops.OpOverload, list[Rule]]:
    """{operator: its rules, the one to ask first in front}; every name that does not exist in one ConfigError."""
    problems: list[str] = []
    table: dict[torch._ops.OpOverload, list[Rule]] = {}
    for rule in sorted(rules.rules, key=lambda r: -r.priority):
        operator = operator_of(rule.op)
        if operator is None:
            problems.append(_no_operator(rule.op, rule))
            continue
        problems += _unknown_names(rule, operator)
        problems += [_no_operator(call.op, rule) for call in rule.calls if operator_of(call.op) is None]
        table.setdefault(operator, []).append(rule)
    raise_for(problems)
    return table


def _no_operator(name: str, rule: Rule) -> str:
    packet = packet_of(of := name.rpartition(".")[0])
    there = [f"{of}.{overload}" for overload in packet.overloads()] if packet is not None else []
    words = unknown("operator", name, there) if there else f"there is no operator '{name}'."
    return f"{words.removesuffix('.')} @ adapt rule '{rule.name}'."


def _unknown_names(rule: Rule, operator: torch._ops.OpOverload) -> list[str]:
    """Arguments that a rule names and its operator does not have."""
    known = [argument.name for argument in operator._schema.arguments]
    when = rule.when
    used = [
        name for wanted in (when.args, when.dtype, when.rank, when.shape, when.length, when.layout) for name in wanted
    ]
    let = [call.let for call in rule.calls if call.let]
    used += rule.named_arguments
    used += [name for name in _referred(rule) if name.partition("[")[0] not in let]
    return [
        unknown("argument", name, (*known, *let), f"adapt rule '{rule.name}' for {rule.op}")
        for name in dict.fromkeys(name.partition("[")[0] for name in used)
        if name not in known
    ]


def _referred(rule: Rule) -> list[str]:
    found = [reference for call in rule.calls for reference in references((call.args, call.kwargs))]
    found += rule.results if isinstance(rule, Compose) else ()
    return [match["name"] for reference in found if (match := REFERENCE.fullmatch(reference.removeprefix("*")))]
