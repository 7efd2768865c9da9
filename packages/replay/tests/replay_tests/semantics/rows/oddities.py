"""What is rarely done and must not go wrong: storage that is resized or swapped, inputs freed, results of results."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import nn

from replay_tests.semantics.rows import Compiled, row


@row
def a_result_is_resized(compiled: Compiled):
    f = compiled(lambda x: x + 1)

    def call(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        a = f(x)
        kept = a.clone()
        a.resize_(2, 2)
        return [kept, a, f(y), f(x)]

    return call


@row
def the_storage_of_a_result_is_resized(compiled: Compiled):
    f = compiled(lambda x: x + 1)

    def call(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        a = f(x)
        a.untyped_storage().resize_(0)
        return [f(y), f(x)]

    return call


@row(fast=True)
def a_result_is_set_to_other_memory(compiled: Compiled):
    f = compiled(lambda x: x + 1)

    def call(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        a = f(x)
        a.set_(y.untyped_storage(), 0, (3, 4), (4, 1))
        b = f(x * 2)
        a.zero_()
        return [a, b, f(x), y]

    return call


@row
def a_result_is_reshaped_in_place(compiled: Compiled):
    f = compiled(lambda x: x + 1)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        a = f(x)
        a.t_()
        b = f(x)
        b.unsqueeze_(0)
        return [a, b, f(x)]

    return call


@row
def data_of_a_result_is_set(compiled: Compiled):
    f = compiled(lambda x: x + 1)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        a = f(x)
        kept = a.data
        a.data = torch.zeros(2)
        return [a, kept, f(x * 2)]

    return call


@row
def a_result_is_pickled(compiled: Compiled):
    f = compiled(lambda x: x * 2)

    def call(x: torch.Tensor, y: torch.Tensor) -> Any:
        stream = io.BytesIO()
        torch.save({"a": f(x), "b": f(y)}, stream)
        stream.seek(0)
        return torch.load(stream)

    return call


@row
def a_result_is_deep_copied(compiled: Compiled):
    f = compiled(lambda x: [x * 2, x + 1])

    def call(x: torch.Tensor) -> Any:
        a = copy.deepcopy(f(x))
        b = copy.copy(f(x + 1))
        return [a, b, f(x)]

    return call


@row(fast=True)
def inputs_are_freed_and_their_memory_comes_again(compiled: Compiled):
    f = compiled(lambda x, y: x * 2 + y)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for k in range(5):
            found.append(f(x + k, torch.full((3, 4), float(k))))
        return found

    return call


@row
def an_input_that_lies_in_a_result(compiled: Compiled):
    f, g = compiled(lambda x: torch.cat([x, x * 2])), compiled(lambda x: x + 1)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        whole = f(x)
        part = g(whole[3:])
        return [whole, part, g(whole[:3]), f(part)]

    return call


@row
def a_result_requires_grad_later(compiled: Compiled):
    f = compiled(lambda x: x * 2)

    def call(x: torch.Tensor) -> list[Any]:
        a = f(x).requires_grad_(True)
        (a * a).sum().backward()
        b = f(x)
        return [a, b, b.requires_grad, b.is_leaf]

    return call


@row
def a_result_becomes_a_parameter(compiled: Compiled):
    module = nn.Linear(4, 4).requires_grad_(False)
    f = compiled(lambda x: x.t() @ x)

    def call(x: torch.Tensor) -> torch.Tensor:
        module.weight = nn.Parameter(f(x), requires_grad=False)
        f(x * 2)
        return module(x)

    return call, module


@row
def a_result_becomes_a_buffer(compiled: Compiled):
    module = nn.Module()
    module.register_buffer("table", torch.zeros(3, 4))
    f = compiled(lambda x: x + 1)

    def call(x: torch.Tensor) -> torch.Tensor:
        module.table = f(x)
        return f(x * 2)

    return call, module


@row
def shared_memory(compiled: Compiled):
    f = compiled(lambda x: x * 2)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        x.share_memory_()
        a = f(x)
        a.share_memory_()
        return [a, f(x + 1)]

    return call


@row
def a_parameter_as_input(compiled: Compiled):
    f = compiled(lambda p: p.detach() * 2)
    p = nn.Parameter(torch.ones(3, 4), requires_grad=False)

    def call(x: torch.Tensor) -> torch.Tensor:
        p.copy_(x)
        return f(p)

    return call


@row
def a_buffer_object_as_input(compiled: Compiled):
    f = compiled(lambda b, x: b * x)
    return lambda x: f(nn.Buffer(torch.ones(3, 4)), x)


@row
def the_identity(compiled: Compiled):
    f = compiled(lambda x: x)
    return lambda x: [f(x), f(x) is x]


@row
def a_constant_tensor_returned(compiled: Compiled):
    f = compiled(lambda x: (torch.ones(3), torch.arange(4), x + 1))

    def call(x: torch.Tensor) -> list[Any]:
        a = f(x)
        a[0].add_(5)
        a[1].zero_()
        return [a, f(x)]

    return call


@row
def a_captured_tensor_returned(compiled: Compiled):
    table = torch.ones(4)
    f = compiled(lambda x: (table, x + table))

    def call(x: torch.Tensor) -> list[Any]:
        a = f(x)
        a[0].add_(1)
        return [a, f(x), a[0] is table]

    return call, {"table": table}


@row
def a_detached_input(compiled: Compiled):
    f = compiled(lambda x: x.detach().add_(1))
    return lambda x: [f(x), x]


@row
def compiled_within_a_result_of_itself(compiled: Compiled):
    f = compiled(lambda x, depth: x + 1 if depth == 0 else x * 2)
    return lambda x: f(f(f(x, 0), 1), 0)


@row
def attributes_of_a_tensor(compiled: Compiled):
    f = compiled(lambda x: x * 2)

    def call(x: torch.Tensor) -> Any:
        a = f(x)
        a.tag = "first"
        b = f(x)
        return a.tag, hasattr(b, "tag")

    return call


@row
def eager_code_writes_the_memory_of_a_dropped_result(compiled: Compiled):
    f = compiled(lambda x: x + 1)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        view = f(x)[0]
        others = [torch.full((3, 4), 7.0) for _ in range(3)]
        again = f(x * 2)
        view.fill_(9)
        return [view, *others, again]

    return call
