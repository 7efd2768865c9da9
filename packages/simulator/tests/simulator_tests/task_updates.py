"""Run in a process of its own: an attention operator in a graph gets new lengths, in each form that servers use.

Prints {form: the lengths for which a replay gave other bits than eager}, and what wrong uses answer.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch

from npu_simulator import install
from npucompose.targets.npu_offline import wheel

DEVICE = install(wheel.locate())

import torch_npu  # noqa: E402  # pyright: ignore[reportMissingImports]

npu: Any = torch.npu  # pyright: ignore[reportAttributeAccessIssue]
fia: Any = torch_npu.npu_fused_infer_attention_score
OPTIONS = {"num_heads": 4, "input_layout": "BNSD", "scale": 0.25}
LENGTHS = ([20, 21], [3, 64], [1, 1])
TENSORS = [torch.randn(2, 4, tokens, 16) for tokens in (1, 64, 64)]


def attention(lengths: list[int], **more: Any) -> Any:
    return fia(*TENSORS, actual_seq_lengths_kv=lengths, **OPTIONS, **more)


def written(lengths: list[int], out: list[torch.Tensor], workspace: torch.Tensor) -> None:
    fia.out(*TENSORS, actual_seq_lengths_kv=lengths, workspace=workspace, out=out, **OPTIONS)


def results() -> list[torch.Tensor]:
    """What vllm-ascend gives: softmax_lse of one number, which is not asked for."""
    return [torch.empty(2, 4, 1, 16), torch.empty(1)]


def workspace() -> torch.Tensor:
    return torch_npu._npu_fused_infer_attention_score_get_max_workspace(
        *TENSORS, actual_seq_lengths_kv=[11, 12], **OPTIONS
    )


def wrong(replay: Callable[[list[int]], torch.Tensor]) -> list[list[int]]:
    """The lengths whose replay is not eager's, each with another query in the same memory."""
    found: list[list[int]] = []
    for lengths in LENGTHS:
        TENSORS[0].copy_(torch.randn_like(TENSORS[0]))
        if not torch.equal(replay(lengths), attention(lengths)[0] * 2):
            found.append(lengths)
    return found


def dispatched(call: Callable[[], torch.Tensor]) -> Callable[[list[int]], torch.Tensor]:
    """auto_dispatch_capture and NPUGraph.update."""
    graph = npu.NPUGraph()
    with npu.graph(graph, auto_dispatch_capture=True):
        result = call() * 2

    def replay(lengths: list[int]) -> torch.Tensor:
        graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lengths}])
        graph.replay()
        return result

    return replay


def by_hand(*, resets: bool = True, in_one_call: bool = False, first: str = "update") -> Any:
    """vllm-ascend's form, the update in a thread of its own: before the replay, or while it stands at the event."""
    graph, event, stream, space = npu.NPUGraph(), npu.ExternalEvent(), npu.Stream(), workspace()
    out = results()
    with npu.graph(graph):
        main = npu.current_stream()
        event.wait(main)
        if resets:
            event.reset(main)
        npu.graph_task_group_begin(main)
        written([11, 12], out, space)
        handle = npu.graph_task_group_end(main)
        result = out[0] * 2
    assert isinstance(handle, torch_npu._C._NPUTaskGroupHandle)

    def update(lengths: list[int]) -> None:
        with npu.stream(stream):
            if in_one_call:
                torch_npu._C._npu_fused_infer_attention_score_out_graph(
                    stream, handle, event, *TENSORS, actual_seq_lengths_kv=lengths, workspace=space, out=out, **OPTIONS
                )
                return
            npu.graph_task_update_begin(stream, handle)
            written(lengths, out, space)
            npu.graph_task_update_end(stream)
            event.record(stream)

    def replay(lengths: list[int]) -> torch.Tensor:
        thread = threading.Thread(target=update, args=(lengths,))
        acts = {"update": lambda: (thread.start(), thread.join()), "replay": graph.replay}
        for name in sorted(acts, key=lambda name: name != first):
            acts[name]()
        return result

    return replay


def default_form() -> torch.Tensor:
    return attention([11, 12])[0]


def out_form() -> torch.Tensor:
    out = results()
    written([11, 12], out, workspace())
    return out[0]


def answer(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:  # noqa: BLE001
        return str(error).splitlines()[0]
    return "nothing"


def wrong_uses() -> dict[str, str]:
    plain, two = npu.NPUGraph(), npu.NPUGraph()
    with npu.graph(plain):
        default_form()
    with npu.graph(two, auto_dispatch_capture=True):
        default_form()
        default_form()
    new = {"actual_seq_lengths_kv": [1, 1]}
    found = {
        "no dispatch": answer(lambda: plain.update([new])),
        "three updates for two": answer(lambda: two.update([new] * 3)),
        "a group outside": answer(lambda: npu.graph_task_group_begin(npu.current_stream())),
        "a result of another shape": answer(lambda: written([1, 1], [torch.empty(3), torch.empty(1)], workspace())),
        "lse of another shape": answer(lambda: fia.out(*TENSORS, softmax_lse_flag=True, out=results(), **OPTIONS)),
    }
    with npu.graph(npu.NPUGraph()):
        found["an update on the capturing stream"] = answer(
            lambda: npu.graph_task_update_begin(
                npu.current_stream(), two.graph_dispatch_mode.graph_dispatch_records[0].handle
            )
        )
    return found


def main() -> None:
    found = {
        "default": wrong(dispatched(default_form)),
        "out": wrong(dispatched(out_form)),
        "by hand": wrong(by_hand()),
        "by hand, the replay first": wrong(by_hand(first="replay")),
        "by hand, without reset": wrong(by_hand(resets=False)),
        "by hand, in one call": wrong(by_hand(in_one_call=True, first="replay")),
    }
    counts = {what: DEVICE.ledger.counts[what] for what in ("capture", "replay", "task_update")}
    genuine = torch_npu.npu._npugraph_handlers.npugraph_handler
    genuine.deepcopy, kept = (
        (lambda value: value.clone() if isinstance(value, torch.Tensor) else value),
        genuine.deepcopy,
    )
    npu.graphs.deepcopy = genuine.deepcopy
    found["negative control: copies of the captured tensors"] = wrong(dispatched(default_form))
    npu.graphs.deepcopy = genuine.deepcopy = kept
    lse = [torch.empty(2, 4, 1, 16), torch.full((1,), 7.0)]
    written([1, 1], lse, workspace())
    longer = attention([20, 21], actual_seq_lengths=[100])[0]
    same = bool(lse[1].item() == 0 and torch.equal(longer, attention([20, 21])[0]))
    print(json.dumps({"wrong": found, "counts": counts, "answers": wrong_uses(), "beside": same}))


if __name__ == "__main__":
    main()
