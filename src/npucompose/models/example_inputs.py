"""Example inputs that a configuration gives: a table of names, or a saved file. Neither runs code of anybody's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from attrs import frozen

from npucompose.errors import ConfigError, MissingExtra
from npucompose.models.base import Inputs, generator
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, Tensor

DType = Literal[
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"
]  # fmt: skip
SUFFIXES = (".pt", ".pth", ".safetensors")


@frozen(kw_only=True)
class InputSpec:
    """A tensor by its dtype, its sizes and the range of its elements, which every step draws anew."""

    dtype: DType = option("float32", "of the tensor")
    sizes: tuple[int, ...] = option(doc="a size for each dimension; []: a tensor of one element without dimensions")
    range: tuple[float, float] | None = option(
        None,
        "from, and up to but without; null: normal numbers, 0 and 1 for integers",
        optional=True,
    )

    def __attrs_post_init__(self) -> None:
        if any(size < 0 for size in self.sizes):
            raise ValueError(f"'sizes' must be at least 0: {list(self.sizes)}")
        if self.range is None:
            return
        low, high = self.range
        if self.dtype == "bool":
            raise ValueError("'range' says nothing of a bool")
        if not low < high:
            raise ValueError(f"'range' must be [from, to] with from below to: {[low, high]}")
        if not self.is_floating_point and (low, high) != (int(low), int(high)):
            raise ValueError(f"'range' of {self.dtype} must be two integers: {[low, high]}")

    @property
    def is_floating_point(self) -> bool:
        return "float" in self.dtype

    def tensor(self, chance: Generator) -> Tensor:
        import torch

        dtype = getattr(torch, self.dtype)
        if not self.is_floating_point:
            low, high = map(int, self.range or (0, 2))
            return torch.randint(low, high, self.sizes, generator=chance).to(dtype)
        if self.range is None:
            return torch.randn(self.sizes, generator=chance).to(dtype)
        low, high = self.range
        return (torch.rand(self.sizes, generator=chance, dtype=torch.float64) * (high - low) + low).to(dtype)


def from_table(table: Mapping[str, InputSpec], seed: int) -> Callable[[int], Inputs]:
    """The inputs of each step; in which order the table names them changes no value."""

    def inputs(step: int) -> Inputs:
        chance = generator(seed, step)
        return {name: table[name].tensor(chance) for name in sorted(table)}

    return inputs


def check_file(name: str, where: str) -> None:
    """ConfigError unless there is such a file, of a kind that can be read; reads nothing of it."""
    if Path(name).suffix not in SUFFIXES:
        raise ConfigError(f"{where}={name}: a file of torch.save (.pt, .pth) or a .safetensors is read, no other.")
    if not Path(name).is_file():
        raise ConfigError(f"{where}={name}: there is no such file.")
    if name.endswith(".safetensors") and importlib.util.find_spec("safetensors") is None:
        raise MissingExtra(f"{where}={name}", "safetensors", "transformers")


def from_file(name: str, where: str) -> Inputs:
    """What the file holds under each name: tensors and, from torch.save, numbers, text, lists and dicts too.

    A pickle is read as torch.load(weights_only=True) reads it, which calls nothing that the file names.
    """
    check_file(name, where)
    try:
        loaded: Any = _loaded(name)
    except Exception as error:  # whatever a reader says of a file that is none
        raise ConfigError(f"{where}={name} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(loaded, Mapping) or not all(isinstance(key, str) for key in cast("Mapping[Any, Any]", loaded)):
        raise ConfigError(f"{where}={name} holds a {type(loaded).__name__}; it must be a dict of forward's arguments.")
    return cast("Inputs", loaded)


def _loaded(name: str) -> Any:
    if name.endswith(".safetensors"):
        from safetensors.torch import load_file  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

        return load_file(name)
    import torch

    return torch.load(name, map_location="cpu", weights_only=True)
