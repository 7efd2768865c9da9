"""Random programs, as text that a person can read and run: helpers reached several times, graph breaks, results kept,
fed back and written, views returned, custom operators with state, weights and shapes that change, two threads.

Every value is a matrix of n rows and 4 columns, so that any statement may use any value; results may be views of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from hypothesis import strategies as st

from replay_tests.semantics.harness import CALLS
from replay_tests.semantics.rows import Row, custom_operators, threads
from replay_tests.semantics.ways import BY_ID, Way

PURE = (
    "{a} * 2 + 1",
    "{a} + {b}",
    "{a} - {b}",
    "{a}.sin()",
    "{a}.relu()",
    "linear({a})",
    "{a} @ square",
    "{a}.softmax(-1) + {b}",
    "{a}.flip(0)",
    "{a} - {a}.mean(0)",
    "torch.where({a} > 0, {a}, {b})",
    "torch.cat([{a}[1:], {b}[:1]])",
    "{a}[:]",
    "{a}.view(-1, 4)",
    "{a}.detach()",
    "torch.ops.semantics.through_numpy({a})",
)
WRITES = (
    "{a}.add_(1)",
    "{a}.mul_({b})",
    "{a}.copy_({b} * 0.5)",
    "{a}[1:].sub_(1)",
    "{a}[:, 0].fill_(2)",
    "{a}.t().mul_(0.5)",
    "torch.ops.semantics.adds_one({a})",
)
BREAKS = (
    "torch._dynamo.graph_break()",
    "if {a}.sum().item() > 1e9: raise ValueError",
    'print("between")',
)
WITH_STATE = (
    "{new} = {a} + state['buffer']",
    "state['buffer'].add_({a}.mean(0))",
    "state['buffer'] = state['buffer'] * 0.5 + {a}[0]",
    "{new} = torch.ops.semantics.counts({a})",
    "{new} = torch.ops.semantics.remembers({a})",
    "{new} = torch.ops.semantics.keeps({a})",
    "{new} = {a} + torch.randn(4)",
    "{new} = torch.nn.functional.dropout({a}, 0.5)",
)
KEEPS = ("state['kept'].append({a})", "state['kept'] = [*state['kept'][-1:], {a}[1:]]")
RETURNED = ("{a}", "{a}", "{a}[1:]", "{a}.t()", "{a}[:, ::2]", "{a}.view(-1)", "{a}.sum(0)")
CHANGES = (
    "linear.weight.add_(0.1)",
    "linear.weight = torch.nn.Parameter(linear.weight * 0.9, requires_grad=False)",
    "linear.weight.data = linear.weight.data + 0.1",
    "linear.load_state_dict({k: v * 0.9 for k, v in linear.state_dict().items()})",
    "square.mul_(0.9)",
)
AT_ONCE = ("target.when_new=at_once",)
"""Every call after the first of a shape is a replay."""
SIZES = ((3,), (3,), (2, 3), (3, 3, 5, 5, 3), (4, 1, 4))
NAMED = (
    *("backend-reduce-overhead-native",) * 2,
    "compile-reduce-overhead-native",
    "backend-reduce-overhead-portable",
    "compile-reduce-overhead-portable",
)
WAYS = tuple(BY_ID[name] for name in NAMED)
UNTIMED = ("inductor.max_autotune=null",)
"""What is timed is not looked at, and timing it takes longest."""
FUSED_WAYS = tuple(
    evolve(BY_ID[name], more=(*AT_ONCE, *UNTIMED)) for name in ("backend-max-autotune", "compile-max-autotune")
)


@frozen
class Program:
    """`source` defines `make(compiled)`; call k gets two matrices of `sizes[k % len(sizes)]` rows."""

    source: str
    sizes: tuple[int, ...]
    way: Way

    def __repr__(self) -> str:
        """What Hypothesis prints of one that fails."""
        return f"{self.way.id}, rows in turns: {self.sizes}\n{self.source}"

    def row(self) -> Row:
        space: dict[str, Any] = {"torch": torch, "begin": custom_operators.begin, "side_by_side": threads.side_by_side}
        exec(compile(self.source, "<program>", "exec"), space)
        return Row(theme="fuzz", name="program", make=space["make"], inputs=self.inputs, recording=AT_ONCE)

    def inputs(self, k: int) -> tuple[torch.Tensor, ...]:
        rows = self.sizes[k % len(self.sizes)]
        return torch.randn(rows, 4), torch.randn(rows, 4)


class _Body:
    """Statements of one function, made as Hypothesis draws them; `names` are the matrices that there are so far."""

    def __init__(self, draw: Any, names: Sequence[str]) -> None:
        self.draw, self.names, self.lines = draw, list(names), list[str]()

    def one_of(self, choices: Sequence[str]) -> str:
        return self.draw(st.sampled_from(choices))

    def name(self) -> str:
        return self.one_of(self.names[::-1])  # the newest is the simplest

    def new(self) -> str:
        self.names.append(f"v{len(self.names)}")
        return self.names[-1]

    def add(self, template: str) -> None:
        a, b = self.name(), self.name()
        if "{new}" in template:
            self.lines.append(template.format(a=a, b=b, new=self.new()))
        else:
            self.lines.append(template.format(a=a, b=b))

    def assign(self, templates: Sequence[str]) -> None:
        self.add("{new} = " + self.one_of(templates))


@st.composite
def programs(draw: Any, ways: Sequence[Way] = WAYS) -> Program:
    """Most are whole functions that are compiled; in some only the helpers are, or both."""
    parallel = draw(st.integers(0, 7)) == 7
    count = draw(st.integers(1, 2))
    helpers = [_helper(draw, alone=parallel) for _ in range(count)]
    main = _main(draw, count, alone=parallel)
    compiled = draw(st.sampled_from(("main", "helpers", "both")))
    lines = [
        "def make(compiled):",
        "    linear = torch.nn.Linear(4, 4).requires_grad_(False)",
        "    square = torch.eye(4) * 0.5 + 0.1",
        "    state = {'buffer': torch.zeros(4), 'kept': [], 'last': None, 'operators': begin()}",
    ]
    for k, helper in enumerate(helpers):
        lines += ["", f"    def h{k}(x, y):", *_indented(helper, 8)]
        if compiled != "main":
            lines.append(f"    h{k} = compiled(h{k})")
    lines += ["", "    def main(x, y):", *_indented(main, 8)]
    if compiled != "helpers":
        lines.append("    main = compiled(main)")
    lines += ["", "    def call(x, y):", *_indented(_driver(draw, parallel), 8), "    return call, state", ""]
    sizes = draw(st.sampled_from(SIZES))
    return Program("\n".join(lines), sizes, draw(st.sampled_from(ways)))


def _helper(draw: Any, *, alone: bool) -> list[str]:
    body = _Body(draw, ("x", "y"))
    body.assign(PURE)
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.integers(0, 9))
        if kind < 5:
            body.assign(PURE)
        elif kind < 7:
            body.add(body.one_of(WRITES))
        elif kind < 9 or alone:
            body.add(body.one_of(BREAKS))
        else:
            body.add(body.one_of(WITH_STATE))
    if draw(st.integers(0, 5)) == 5:
        body.add("if {a}.sum().item() > 0: return {b}")
    body.add("return {a}")
    return body.lines


def _main(draw: Any, helpers: int, *, alone: bool) -> list[str]:
    body = _Body(draw, ("x", "y"))
    calls = tuple(f"h{k}({{a}}, {{b}})" for k in range(helpers))
    body.assign(calls)
    body.assign(calls)
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.integers(0, 9))
        if kind < 4:
            body.assign(calls)
        elif kind < 5:
            body.add("for _ in range(2): {a} = " + body.one_of(calls))
        elif kind < 6:
            body.assign(PURE)
        elif kind < 7:
            body.add(body.one_of(WRITES))
        elif kind < 8 or alone:
            body.add(body.one_of(BREAKS))
        elif kind < 9:
            body.add(body.one_of(KEEPS))
        else:
            body.add(body.one_of(WITH_STATE))
    returned = [body.one_of(RETURNED).format(a=body.name()) for _ in range(draw(st.integers(1, 3)))]
    return [*body.lines, f"return [{', '.join(returned)}]"]


def _driver(draw: Any, parallel: bool) -> list[str]:
    """What is done around the compiled code in each call."""
    if parallel:
        return ["return side_by_side(lambda z: main(z, z + 1), [x + k for k in range(6)])"]
    lines: list[str] = []
    if draw(st.integers(0, 2)) == 2:
        lines.append(draw(st.sampled_from(CHANGES)))
    if draw(st.integers(0, 2)) == 2:
        lines += [
            "if state['last'] is not None and state['last'].shape == x.shape: y = state['last']",
            "results = main(x, y)",
            "state['last'] = results[0]",
        ]
    else:
        lines.append("results = main(x, y)")
    again = draw(st.integers(0, 5))
    if again == 2:
        lines.append("state['kept'].append(results[-1])")
    if again == 3:
        lines.append("results[-1].add_(1)")
    if again == 4:
        lines.append("return [results, main(y, x)]")
    return [*lines, "return results"]


def _indented(lines: Sequence[str], by: int) -> list[str]:
    return [" " * by + line for line in lines]


assert max(len(sizes) for sizes in SIZES) <= CALLS, "every size comes up"
