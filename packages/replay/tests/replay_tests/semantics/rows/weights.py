"""Weights that change between calls: by a step, by loading, by replacement."""

from __future__ import annotations

import torch
from torch import nn

from replay_tests.semantics.rows import Compiled, row


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


def inference(f, module: nn.Module, change):
    """Call, change the weights, call again; without gradients."""

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            before = f(x)
            change()
            return [before, f(x)]

    return call, module


@row(fast=True)
def an_optimizer_step(compiled: Compiled):
    module = model()
    f = compiled(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step() -> None:
        with torch.enable_grad():
            for p in module.parameters():
                p.grad = torch.ones_like(p)
        optimizer.step()

    return inference(f, module, step)


@row
def adam_takes_steps(compiled: Compiled):
    module = model()
    f = compiled(module)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)

    def step() -> None:
        for p in module.parameters():
            p.grad = p.detach().sign()
        optimizer.step()

    return inference(f, module, step)


@row(fast=True)
def load_state_dict(compiled: Compiled):
    module = model()
    f = compiled(module)
    return inference(
        f, module, lambda: module.load_state_dict({k: v * 1.5 + 0.1 for k, v in module.state_dict().items()})
    )


@row
def load_state_dict_by_assignment(compiled: Compiled):
    module = model()
    f = compiled(module)
    return inference(
        f, module, lambda: module.load_state_dict({k: v * 0.5 for k, v in module.state_dict().items()}, assign=True)
    )


@row(fast=True)
def a_replaced_parameter(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)

    def change() -> None:
        module.weight = nn.Parameter(module.weight.detach() * 2)

    return inference(f, module, change)


@row
def a_parameter_that_is_deleted_and_set(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)

    def change() -> None:
        old = module.weight.detach()
        del module.weight
        module.weight = nn.Parameter(old + 1)

    return inference(f, module, change)


@row
def a_bias_that_is_taken_away(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)
    return inference(f, module, lambda: module.register_parameter("bias", None))


@row(fast=True)
def data_is_set(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)

    def change() -> None:
        module.weight.data = module.weight.data * 3

    return inference(f, module, change)


@row(fast=True)
def copy_into_a_parameter(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)
    return inference(f, module, lambda: module.weight.copy_(torch.eye(4) * module.bias))


@row
def copy_into_data(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)
    return inference(f, module, lambda: module.weight.data.copy_(module.weight.data.flip(0)))


@row
def a_part_of_a_weight_is_written(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)

    def change() -> None:
        module.weight[1:3].zero_()
        module.bias[0] = 5

    return inference(f, module, change)


@row
def a_weight_is_written_through_numpy(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)

    def change() -> None:
        module.weight.detach().numpy()[:] += 1

    return inference(f, module, change)


@row
def vector_to_parameters(compiled: Compiled):
    module = model()
    f = compiled(module)

    def change() -> None:
        flat = nn.utils.parameters_to_vector(module.parameters())
        nn.utils.vector_to_parameters(flat * 0.5, module.parameters())

    return inference(f, module, change)


@row
def initialised_again(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)
    return inference(f, module, module.reset_parameters)


@row
def a_layer_is_replaced(compiled: Compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    f = compiled(module)

    def change() -> None:
        module[0] = nn.Linear(4, 4)

    return inference(f, module, change)


@row
def a_layer_is_added(compiled: Compiled):
    module = nn.Sequential(nn.Linear(4, 4))
    f = compiled(module)
    return inference(f, module, lambda: module.append(nn.Linear(4, 4)))


@row
def tied_weights(compiled: Compiled):
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight = module[0].weight
    f = compiled(module)
    return inference(f, module, lambda: module[0].weight.mul_(1.1))


@row
def weights_are_tied_later(compiled: Compiled):
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    f = compiled(module)

    def change() -> None:
        module[1].weight = module[0].weight

    return inference(f, module, change)


@row
def a_weight_of_another_shape(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)
    sizes = iter((5, 6, 3, 4, 7, 2))

    def change() -> None:
        n = next(sizes)
        module.weight = nn.Parameter(torch.ones(n, 4))
        module.bias = nn.Parameter(torch.arange(float(n)))

    return inference(f, module, change)


@row
def a_weight_of_another_dtype(compiled: Compiled):
    module = nn.Linear(4, 4)
    f = compiled(module)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            first = f(x)
            module.double()
            second = f(x.double())
            module.float()
            return [first, second, f(x)]

    return call, module


@row
def spectral_norm_moves_its_weight(compiled: Compiled):
    module = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    f = compiled(module)

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return f(x)

    return call, module


@row
def weight_norm(compiled: Compiled):
    module = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    f = compiled(module)
    return inference(f, module, lambda: module.parametrizations.weight.original0.mul_(1.5))


@row
def a_plain_tensor_as_weight(compiled: Compiled):
    weight = torch.ones(4, 4)
    f = compiled(lambda x: x @ weight)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        first = f(x)
        weight.add_(x[:, :1].sum())
        return [first, f(x)]

    return call


@row
def an_average_of_weights(compiled: Compiled):
    module = nn.Linear(4, 4)
    average = torch.optim.swa_utils.AveragedModel(module)
    f = compiled(average)

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            module.weight.add_(1)
            average.update_parameters(module)
            return f(x)

    return call, average


@row(fast=True)
def frozen_weights_change_in_evaluation(compiled: Compiled):
    module = model().eval().requires_grad_(False)
    f = compiled(module)

    def change() -> None:
        for p in module.parameters():
            p.add_(0.5)

    return inference(f, module, change)
