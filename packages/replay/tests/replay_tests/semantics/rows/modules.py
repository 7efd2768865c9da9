"""Modules as modules: modes, hooks, attributes, containers, keyword arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from replay_tests.semantics.rows import Compiled, row


def quiet(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


@row(fast=True)
def train_and_eval_in_turns(compiled: Compiled):
    module = quiet(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    f = compiled(module)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        module.eval()
        calm = f(x)
        module.train()
        return [calm, f(x), f(x)]

    return call, module


@row(fast=True)
def a_forward_hook_changes_the_result(compiled: Compiled):
    module = quiet(nn.Linear(4, 4))
    module.register_forward_hook(lambda _m, _x, y: y * 2)
    return compiled(module)


@row
def a_hook_that_follows_a_flag(compiled: Compiled):
    module = quiet(nn.Linear(4, 4))
    on = [False]
    module.register_forward_hook(lambda _m, _x, y: y + 10 if on[0] else y)
    f = compiled(module)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for value in (False, True, False):
            on[0] = value
            found.append(f(x))
        return found

    return call


@row
def a_pre_hook_changes_the_input(compiled: Compiled):
    module = quiet(nn.Linear(4, 4))
    module.register_forward_pre_hook(lambda _m, x: (x[0] + 1,))
    return compiled(module)


@row
def a_hook_on_an_inner_module_keeps_what_passes(compiled: Compiled):
    module = quiet(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    seen: list[torch.Tensor] = []
    module[0].register_forward_hook(lambda _m, _x, y: seen.append(y))
    return compiled(module), seen


@row
def a_method_beside_forward(compiled: Compiled):
    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).relu()

        def decode(self, z: torch.Tensor) -> torch.Tensor:
            return z @ self.inner.weight

    module = quiet(Coder())
    encode, decode = compiled(module.encode), compiled(module.decode)
    return lambda x: decode(encode(x))


@row
def keyword_arguments_and_defaults(compiled: Compiled):
    class Shift(nn.Module):
        def forward(
            self, x: torch.Tensor, scale: torch.Tensor | None = None, shift: torch.Tensor | None = None
        ) -> torch.Tensor:
            x = x if scale is None else x * scale
            return x if shift is None else x + shift

    f = compiled(Shift())
    return lambda x, y: [f(x), f(x, shift=y), f(x, scale=y), f(x, y, x), f(shift=x, x=y)]


@row
def a_keyword_only_argument(compiled: Compiled):
    class Shift(nn.Module):
        def forward(self, x: torch.Tensor, *, shift: torch.Tensor, use_cache: bool = False) -> torch.Tensor:
            return x + shift if use_cache else x - shift

    f = compiled(Shift())
    return lambda x, y: [f(x, shift=y), f(x, shift=y, use_cache=True)]


@row
def a_flag_is_changed(compiled: Compiled):
    class Switch(nn.Module):
        on = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if self.on else x - 1

    module = Switch()
    f = compiled(module)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        module.on = True
        first = f(x)
        module.on = False
        return [first, f(x)]

    return call


@row
def a_float_attribute_changes_each_time(compiled: Compiled):
    class Scale(nn.Module):
        by = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    module = Scale()
    f = compiled(module)

    def call(x: torch.Tensor) -> torch.Tensor:
        module.by += 0.5
        return f(x)

    return call


@row
def a_list_of_modules(compiled: Compiled):
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            found = []
            for layer in self.layers:
                x = layer(x).relu()
                found.append(x)
            return found

    return compiled(quiet(Stack()))


@row
def a_dict_of_modules_chosen_by_name(compiled: Compiled):
    class Choose(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})

        def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
            return self.experts[name](x)

    f = compiled(quiet(Choose()))
    return lambda x: [f(x, "a"), f(x, "b"), f(x, "a")]


@row
def a_module_shared_by_two(compiled: Compiled):
    shared = quiet(nn.Linear(4, 4))
    f, g = compiled(nn.Sequential(shared, nn.ReLU())), compiled(nn.Sequential(nn.Tanh(), shared))
    return lambda x: f(x) + g(x)


@row(fast=True)
def compiled_twice(compiled: Compiled):
    module = quiet(nn.Linear(4, 4))
    f, g = compiled(module), compiled(module)
    return lambda x, y: [f(x), g(y), f(y), g(x)]


@row
def a_compiled_module_within_another(compiled: Compiled):
    inner = compiled(quiet(nn.Linear(4, 4)))
    return compiled(lambda x: inner(x) + inner(x + 1))


@row(fast=True)
def a_module_that_stays_a_module(compiled: Compiled):
    module = quiet(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    f = compiled(module)

    def call(x: torch.Tensor) -> Any:
        f.eval()
        calm = f(x)
        f.load_state_dict({k: v + 1 for k, v in f.state_dict().items()})
        moved = f(x)
        f.train()
        return calm, moved, f(x), len(list(f.parameters())), f.training

    return call, module


@row
def attributes_of_the_module(compiled: Compiled):
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.width = 4
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight * self.width

        def summary(self) -> str:
            return f"width {self.width}"

    f = compiled(quiet(Named()))

    def call(x: torch.Tensor) -> Any:
        f.width = f.width + 1
        return f(x), f.width, f.summary(), f.weight

    return call


@row
def lazy_modules(compiled: Compiled):
    module = nn.LazyLinear(4)
    module(torch.ones(1, 4))
    return compiled(quiet(module))


@row
def layer_norm_and_residuals(compiled: Compiled):
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    return compiled(quiet(Block()))


@row
def group_norm_in_training(compiled: Compiled):
    return compiled(quiet(nn.GroupNorm(2, 4)))


@row
def a_module_called_with_a_dict(compiled: Compiled):
    class Takes(nn.Module):
        def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {name: value * 2 for name, value in batch.items()}

    f = compiled(Takes())
    return lambda x, y: f({"x": x, "y": y})


@row
def a_function_of_a_module(compiled: Compiled):
    module = quiet(nn.Linear(4, 4))
    f = compiled(lambda m, x: m(x) + 1)
    return lambda x: f(module, x)


@row
def functional_call(compiled: Compiled):
    module = quiet(nn.Linear(4, 4))
    f = compiled(lambda weights, x: torch.func.functional_call(module, weights, (x,)))
    return lambda x: f({"weight": x.t() @ x, "bias": x[0]}, x)


@row
def a_module_with_parameters_in_a_list(compiled: Compiled):
    class Params(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(4) * k) for k in range(3)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for scale in self.scales:
                x = x * scale + 1
            return x

    return compiled(quiet(Params()))
