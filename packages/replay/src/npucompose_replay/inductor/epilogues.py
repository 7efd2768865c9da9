"""What Inductor's templates for products compute in passing: a GELU with a tanh as a sigmoid.

Knows what oneDNN's activations are in Inductor's own operators (torch/_inductor/codegen/cpp_utils.py,
create_epilogue_with_attr, as mkldnn_lowerings.py calls it; torch 2.13); without that function a GELU stays as it is.

# Note [A template's GELU]
A product with a GELU behind it, which oneDNN would compute in passing, is a contest of oneDNN and a template that
computes the GELU itself, and the latter's tanh took a fifth of its time (64x384 by 384x1536 on a Zen 5: 422 us, and 337
without; oneDNN takes 345). x * (1 + tanh(z)) / 2 is x * sigmoid(2 z): Note [A tanh that is a sigmoid] in
known_forms.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import ir, mkldnn_lowerings
from torch._inductor.virtualized import ops

from npucompose_replay.inductor.cache import replaced

TWICE, CUBE = 2 * 0.7978845608028654, 0.044715
"""2 * sqrt(2 / pi), and the part of the cube, in `x * sigmoid(TWICE * (x + CUBE * x ** 3))`."""
IDENTITY = "gelu as a sigmoid"
"""Of the kernels that are measured and kept."""


@contextlib.contextmanager
def gelu_as_a_sigmoid() -> Iterator[None]:
    """In the templates that Inductor makes kernels of inside. See Note [A template's GELU]."""
    module: Any = mkldnn_lowerings
    torchs = getattr(module, "create_epilogue_with_attr", None)
    if torchs is None:
        yield
        return

    def epilogue(buffer: Any, attr: str, **how: Any) -> Any:
        if (attr, how.get("algorithm")) != ("gelu", "tanh") or buffer.get_dtype() != torch.float32:
            return torchs(buffer, attr, **how)
        return _gelu(buffer)

    with replaced(module, "create_epilogue_with_attr", epilogue):
        yield


def _gelu(buffer: Any) -> ir.Pointwise:
    loaded = buffer.make_loader()

    def computed(index: Any) -> Any:
        x = loaded(index)
        cube, twice = (ops.constant(number, torch.float32) for number in (CUBE, TWICE))
        return x * ops.sigmoid(twice * (x + cube * x * x * x))

    return ir.Pointwise(device=buffer.get_device(), dtype=torch.float32, inner_fn=computed, ranges=buffer.get_size())
