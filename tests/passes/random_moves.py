"""Random graphs of permutes, copies, casts, element-wise functions, cat and reductions, and how they are compared."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
SIZES = (2, 3, 4, 5)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64)
UNARY = ("relu", "neg", "abs", "exp", "sigmoid", "tanh")
BINARY = ("add", "mul", "sub", "maximum", "minimum")


class RandomMoves:
    """`RandomMoves(7).module` is a graph of seed 7, with `inputs()` for it."""

    def __init__(self, seed: int, size: int = 16, to_integers: bool = True) -> None:
        """Without `to_integers` no float becomes an integer, where a last bit can grow into a whole number."""
        self.to_integers = to_integers
        self.random = random.Random(seed)
        self.mode = FakeTensorMode()
        self.graph = fx.Graph()
        self.forms: list[tuple[tuple[int, ...], torch.dtype]] = []
        self.values = [self._input() for _ in range(self.random.randint(1, 3))]
        for _ in range(size):
            self.values.append(self._step())
        count = self.random.randint(1, 3)
        self.graph.output(tuple(self.random.sample(self.values[-6:], count)))
        self.module = fx.GraphModule(torch.nn.Module(), self.graph)
        self.module.graph.lint()

    def _input(self) -> fx.Node:
        shape = tuple(self.random.sample(SIZES, self.random.choice((3, 4))))
        dtype = self.random.choice((*FLOATS, *INTEGERS))
        made = self.graph.placeholder(f"x{len(self.forms)}")
        with self.mode:
            made.meta["val"] = torch.empty(shape, dtype=dtype)
        self.forms.append((shape, dtype))
        return made

    def inputs(self) -> list[torch.Tensor]:
        """Values with both zeros, infinities and NaN among them."""
        generator = torch.Generator().manual_seed(self.random.randint(0, 1 << 30))
        made = []
        for shape, dtype in self.forms:
            x = torch.randn(shape, generator=generator) * 3
            if dtype.is_floating_point:
                x.view(-1)[:5] = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")])
            made.append(x.to(dtype))
        return made

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = self.graph.call_function(target, args, kwargs)
        with self.mode:
            made.meta["val"] = target(
                *fx.map_arg(args, lambda n: n.meta["val"]), **fx.map_arg(kwargs, lambda n: n.meta["val"])
            )
        return made

    def _step(self) -> fx.Node:
        pick = self.random.choice
        x = pick([v for v in self.values[-5:] if v.meta["val"].dim() > 1] or self.values[:1])
        value = x.meta["val"]
        rank = value.dim()
        kind = pick(("permute",) * 4 + ("back",) * 3 + ("copy",) * 2 + ("cast",) * 3 + ("unary",) * 4 + ("binary",) * 4
                    + ("cat", "keep", "reduce", "softmax"))  # fmt: skip
        if kind == "permute":
            return self._call(aten.permute.default, x, self.random.sample(range(rank), rank))
        if kind == "back":
            return self._like_an_input(x)
        if kind == "copy":
            return self._call(aten.clone.default, x, memory_format=torch.contiguous_format)
        if kind == "cast":
            return self._call(
                aten._to_copy.default,
                x,
                dtype=pick(FLOATS if value.is_floating_point() and not self.to_integers else (*FLOATS, *INTEGERS)),
            )
        if kind == "unary" or not value.dtype.is_floating_point:
            names = UNARY if value.dtype.is_floating_point else UNARY[:3]
            return self._call(getattr(aten, pick(names)).default, x)
        if kind == "binary":
            return self._binary(x)
        if kind == "cat":
            return self._call(aten.cat.default, [x, x], self.random.randrange(rank))
        if kind == "softmax":
            return self._call(aten._softmax.default, x, self.random.randrange(rank), False)
        dims = self.random.sample(range(rank), self.random.randint(1, 2))
        if kind == "keep":
            return self._call(pick((aten.amax.default, aten.mean.dim, aten.sum.dim_IntList)), x, dims, True)
        return self._call(pick((aten.amin.default, aten.sum.dim_IntList)), x, dims)

    def _like_an_input(self, x: fx.Node) -> fx.Node:
        """Permuted back to sorted sizes, or to those of an input: what cancels has a chance to come up."""
        sizes = list(x.meta["val"].shape)
        return self._call(aten.permute.default, x, sorted(range(len(sizes)), key=sizes.__getitem__))

    def _binary(self, x: fx.Node) -> fx.Node:
        value = x.meta["val"]
        fitting = [v for v in self.values if v.meta["val"].shape == value.shape]
        fitting = [v for v in fitting if v.meta["val"].dtype == value.dtype]
        name = self.random.choice(BINARY)
        overload = "Tensor" if name in ("add", "mul", "sub") else "default"
        return self._call(getattr(getattr(aten, name), overload), x, self.random.choice(fitting))


def run(module: fx.GraphModule, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return fx.Interpreter(module, garbage_collect_values=False).run(*inputs)


def scale(module: fx.GraphModule, inputs: list[torch.Tensor]) -> float:
    """What rounding may make of the graph's values: some units in the last place of the coarsest dtype, at its largest
    finite value."""
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    interpreter.run(*inputs)
    found = [v for v in interpreter.env.values() if isinstance(v, torch.Tensor) and v.is_floating_point() and v.numel()]
    largest = max((v.double().nan_to_num(0.0, 0.0, 0.0).abs().max().item() for v in found), default=0.0)
    coarsest = max((torch.finfo(v.dtype).eps for v in found), default=0.0)
    return 16 * coarsest * largest


def form(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, list[int]]:
    """dtype, shape and the strides that mean something: a dimension of one element has none, and fake tensors choose
    another one for it than real ones."""
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return tensor.dtype, tensor.shape, strides


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Same form and bits; a NaN is a NaN, because a cast that is dropped keeps its payload."""
    if form(a) != form(b):
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    same = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return bool((same | (torch.isnan(a) & torch.isnan(b))).all())
