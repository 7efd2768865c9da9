"""State of a thread or the process that no dispatch key of a tensor shows, and what a recording makes of each.

# Note [State that no key shows]
| state | at each replay |
|---|---|
| modes, transforms of torch.func, vmap, tracers | the call runs as traced: they want to see every operator |
| a tangent of forward-mode AD on an input | the call runs as traced: a recording carries none |
| filling of memory without a value | in the signature of a recording that holds such memory |
| lazy conj and neg bits | in the signature; what a compiler fused reads none, so such graphs are recorded unfused |
| inference mode | results are of the caller's mode; kernels see no other memory |
| autocast | off around a replay: its casts stand in the graph |
| matmul precision, number of threads | kernels set up for others give way to torch's own |
| gradient mode, default dtype and device | Dynamo guards them; a detached handle asks itself (`call_mode`) |
| deterministic algorithms, torch.compile's stance | the same |

executor/src/gate.h and front_values.h are the same for the replayer in C++.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._dynamo import eval_frame
from torch.autograd import forward_ad

Entry = tuple[dict[str, Any], str, Any]
"""(dict of a module, name, what has to stand there)."""


def have_tangents(inputs: Iterable[Any]) -> bool:
    """Whether a tensor carries a tangent of forward-mode AD."""
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in inputs)


def fills_empty_memory() -> bool:
    """Whether `torch.empty` and its like give NaN, or the largest number."""
    if not torch._C._get_deterministic_algorithms():
        return False
    return torch._C._get_deterministic_fill_uninitialized_memory()


def call_mode() -> dict[str, Any]:
    """What of a thread's and the process's state decides what torch.compile makes of a call."""
    autocast = {
        f"torch.autocast({device!r})": torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        for device in ("cpu", "cuda")
    }
    return {
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled(),
        **autocast,
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.are_deterministic_algorithms_enabled()": torch._C._get_deterministic_algorithms(),
        "torch.overrides modes": torch._C._len_torch_function_stack(),
        "torch.compiler.set_stance": _stance(),
    }


def _stance() -> tuple[str, Any]:
    now = eval_frame._stance
    return now.stance, now.backend


def stance_entry() -> Entry:
    """Where torch.compile's stance stands."""
    return eval_frame.__dict__, "_stance", eval_frame._stance
