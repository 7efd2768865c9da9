"""Calls of a compiled graph, what each gave and left behind, and how far two rows of them are apart."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from attrs import define, field
from torch.utils._pytree import tree_flatten

from npucompose_replay.operands import layout_of

TOLERANCE = {
    torch.float64: 1e-6,
    torch.complex128: 1e-6,
    torch.float32: 2e-4,
    torch.complex64: 2e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 6e-2,
}
"""Relative to the largest number of a tensor, and absolute, where kernels are a compiler's own."""

EXACTLY = ("random numbers", "lies in")
"""What is compared only where bits are."""


@define
class Calls:
    made: list[dict[str, Any]] = field(factory=list)
    """For each call copies of results and inputs afterwards, where results lie, and the state of random numbers."""
    held: list[list[Any]] = field(factory=list)
    """The results themselves, once all calls were made."""
    error: BaseException | None = None


def calls(way: Callable[..., Any], rows: Iterable[Sequence[Any]], *, training: bool) -> Calls:
    """`way` called with each row of inputs; with `training` each result is differentiated."""
    found, results = Calls(), []
    for number, inputs in enumerate(rows):
        torch.manual_seed(number)
        try:
            leaves = tree_flatten(way(*inputs))[0]
            if training:
                _backward(leaves)
        except Exception as error:  # noqa: BLE001 - whatever it raises is what is judged
            found.error = error
            return found
        results.append(leaves)
        seen: dict[str, Any] = {"random numbers": torch.get_rng_state()}
        for i, leaf in enumerate(leaves):
            seen[f"result {i}"], seen[f"result {i} lies in"] = _kept(leaf), _place(leaf, leaves[:i], inputs)
        for i, value in enumerate(inputs):
            seen[f"input {i} afterwards"] = _kept(value)
            if training and isinstance(value, torch.Tensor) and value.is_leaf:
                seen[f"gradient {i}"] = _kept(value.grad)
        found.made.append(seen)
    found.held = [[_kept(leaf) for leaf in leaves] for leaves in results]
    return found


def _backward(leaves: Sequence[Any]) -> None:
    wanted = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [torch.ones_like(leaf) for leaf in wanted])


def _place(leaf: Any, earlier: Sequence[Any], inputs: Sequence[Any]) -> str:
    """Which input a result is, or whose memory it lies in."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or not leaf.numel():
        return ""
    for i, value in enumerate(inputs):
        if value is leaf:
            return f"input {i}"
    for name, row in (("input", inputs), ("result", earlier)):
        for i, value in enumerate(row):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided and _shares(value, leaf):
                return f"memory of {name} {i}"
    return ""


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        return bool(a.untyped_storage().data_ptr()) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return False


def _kept(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if not is_ordinary(leaf):
        try:
            return copy.deepcopy(leaf.detach())
        except Exception:  # noqa: BLE001 - of a tensor of any kind
            return str(type(leaf))
    if _is_gone(leaf):
        return f"a tensor whose memory is gone: {leaf.untyped_storage().nbytes()} bytes are left"
    made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype) if _dense(leaf) else leaf.clone()
    return made.copy_(leaf.detach()) if _dense(leaf) else made


def _is_gone(leaf: torch.Tensor) -> bool:
    """Whether its elements reach beyond its storage: a graph may have given that memory back."""
    if not leaf.numel():
        return False
    last = sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True))
    return (leaf.storage_offset() + last + 1) * leaf.element_size() > leaf.untyped_storage().nbytes()


def _dense(leaf: torch.Tensor) -> bool:
    return not layout_of(leaf).overlaps_itself()


def difference(ours: Calls, theirs: Calls, *, exact: bool) -> str:
    """'' or where the two are apart."""
    for number, (a, b) in enumerate(zip(ours.made, theirs.made, strict=True)):
        if a.keys() != b.keys():
            return f"call {number}: {len(a)} values in place of {len(b)}"
        for name, mine in a.items():
            if (exact or not name.endswith(EXACTLY)) and (words := far(mine, b[name], exact=exact)):
                return f"call {number}, {name}: {words}"
    for number, (a, b) in enumerate(zip(ours.held, theirs.held, strict=True)):
        for i, (mine, other) in enumerate(zip(a, b, strict=True)):
            if words := far(mine, other, exact=exact):
                return f"result {i} of call {number}, held to the end: {words}"
    return ""


def far(a: Any, b: Any, *, exact: bool) -> str:
    """'' or how a value differs."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        same = type(a) is type(b) and (a is b or not isinstance(a, (int, float, str, bool)) or a == b or a != a)
        return "" if same else f"{a!r:.60} where torch has {b!r:.60}"
    if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape or a.device != b.device:
        return f"{a.dtype}{list(a.shape)} where torch has {b.dtype}{list(b.shape)}"
    if not is_ordinary(a):
        return ""
    if _is_gone(a) or _is_gone(b):
        return "a tensor whose memory is gone"
    if exact and layout_of(a).stride != layout_of(b).stride:
        return f"strides {a.stride()} where torch has {b.stride()}"
    a, b = a.detach().resolve_conj().resolve_neg(), b.detach().resolve_conj().resolve_neg()
    if not a.numel() or torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))):
        return ""
    if not (a.is_floating_point() or a.is_complex()):
        return f"{int((a != b).sum())} of {a.numel()} elements differ"
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    special = ~(torch.isfinite(x) & torch.isfinite(y))
    if bool((special & ~((x == y) | (torch.isnan(x) & torch.isnan(y)))).any()):
        return "a number that is none, or infinite, on one side"
    apart = float((x - y).abs().masked_fill(special, 0).max())
    allowed = 0.0 if exact else TOLERANCE.get(a.dtype, 0.0) * (1 + float(y.abs().masked_fill(special, 0).max()))
    return "" if apart <= allowed else f"differs by {apart:.3g}"


def is_ordinary(value: Any) -> bool:
    """A tensor of torch's own class that is plain."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and is_plain(value)


def is_plain(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized


def in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:400]}"
