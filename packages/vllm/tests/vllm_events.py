"""What may happen to an engine between and during its answers, in its own process; each gives tokens by name."""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping, Sequence
from typing import Any

Prompts = Mapping[int, Sequence[Any]]
Tokens = dict[str, list[list[int]]]


def nothing(llm: Any, greedy: Any, prompts: Prompts) -> Tokens:
    """{batch: the tokens of each prompt}."""
    return {
        str(batch): [list(one.outputs[0].token_ids) for one in llm.generate(some, greedy, use_tqdm=False)]
        for batch, some in prompts.items()
    }


TIE = 1e-5
"""Two tokens whose logarithms of probability are nearer than this are chosen between by the last bits of float32."""


def with_ties(llm: Any, greedy: Any, prompts: Prompts) -> Tokens:
    """Also, as `ties`, at which tokens of each prompt the two best are a tie."""
    greedy.logprobs = 2
    found: Tokens = {}
    for batch, some in prompts.items():
        answers = [one.outputs[0] for one in llm.generate(some, greedy, use_tqdm=False)]
        found[str(batch)] = [list(one.token_ids) for one in answers]
        found[f"ties, {batch}"] = [_ties(one.logprobs) for one in answers]
    return found


def _ties(steps: Sequence[Mapping[int, Any]]) -> list[int]:
    best = [sorted((one.logprob for one in step.values()), reverse=True)[:2] for step in steps]
    return [place for place, (first, second) in enumerate(best) if first - second < TIE]


def new_weights(llm: Any, greedy: Any, prompts: Prompts) -> Tokens:
    """Weights that are written where they lie, and others that are put in their place elsewhere."""

    def in_place(model: Any) -> None:
        for parameter in model.parameters():
            parameter.data.mul_(1.5 if parameter.dim() > 1 else 0.9)

    def elsewhere(model: Any) -> None:
        for parameter in model.parameters():
            parameter.data = parameter.data.flip(-1).clone() if parameter.dim() > 1 else parameter.data.clone()

    found = {f"before, {name}": tokens for name, tokens in nothing(llm, greedy, prompts).items()}
    for change in (in_place, elsewhere):
        llm.apply_model(change)
        llm.reset_prefix_cache()
        found |= {f"{change.__name__}, {name}": tokens for name, tokens in nothing(llm, greedy, prompts).items()}
    return found


def reloaded(llm: Any, greedy: Any, prompts: Prompts) -> Tokens:
    """vLLM's own reload, of weights as a checkpoint has them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    found = {f"before, {name}": tokens for name, tokens in nothing(llm, greedy, prompts).items()}
    torch.manual_seed(7)
    config = AutoConfig.from_pretrained(llm.llm_engine.model_config.model)
    weights = AutoModelForCausalLM.from_config(config).state_dict()
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(list(weights.items()))})
    llm.reset_prefix_cache()
    return found | {f"after, {name}": tokens for name, tokens in nothing(llm, greedy, prompts).items()}


def one_cancelled(llm: Any, greedy: Any, prompts: Prompts) -> Tokens:
    """The first request of each batch ends after a few steps; then the batch is asked once more, whole."""
    found: Tokens = {}
    for batch, some in prompts.items():
        ids = [f"{batch}-{number}" for number in range(len(some))]
        known = [llm.llm_engine.add_request(name, prompt, greedy) for name, prompt in zip(ids, some, strict=True)]
        ended: dict[str, list[int]] = {}
        for step in range(10_000):
            if step == 6:
                llm.llm_engine.abort_request([known[0]], internal=True)
            if not llm.llm_engine.has_unfinished_requests():
                break
            for one in llm.llm_engine.step():
                if one.finished:
                    ended[one.request_id] = list(one.outputs[0].token_ids)
        found[f"the others, {batch}"] = [tokens for name, tokens in sorted(ended.items()) if name != ids[0]]
        found |= {f"again, {name}": tokens for name, tokens in nothing(llm, greedy, {batch: some}).items()}
    return found


def garbage_in_padding(llm: Any, greedy: Any, prompts: Prompts) -> Tokens:
    """Rows beyond the scheduled tokens hold other tokens at other positions in every step; told is how many."""
    from vllm.forward_context import get_forward_context

    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    drawn, forward, padded = random.Random(3), runner._model_forward, []

    def spoiled(input_ids: Any = None, positions: Any = None, *args: Any, **kwargs: Any) -> Any:
        metadata = get_forward_context().attn_metadata
        if isinstance(metadata, dict) and input_ids is not None:
            real = next(iter(metadata.values())).num_actual_tokens
            for row in range(real, len(input_ids)):
                input_ids[row], positions[row] = drawn.randrange(3, 500), drawn.randrange(500)
                padded.append(row)
        return forward(input_ids, positions, *args, **kwargs)

    runner._model_forward = spoiled
    return {**nothing(llm, greedy, prompts), "padded rows": [[len(padded)]]}


def moved_cache(llm: Any, greedy: Any, prompts: Prompts) -> Tokens:
    """The KV cache of each layer lies elsewhere after the first answers, and what is in its old place is spoiled."""
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    layers = [one for one in runner.compilation_config.static_forward_context.values() if hasattr(one, "kv_cache")]
    print("attention:", {type(layer.impl).__name__ for layer in layers})
    found = {f"before, {name}": tokens for name, tokens in nothing(llm, greedy, prompts).items()}
    left = [layer.kv_cache.data for layer in layers]
    for layer, old in zip(layers, left, strict=True):
        layer.kv_cache.data = old.clone()
        old.fill_(float("nan"))
    return found | {f"after, {name}": tokens for name, tokens in nothing(llm, greedy, prompts).items()}


def slept(llm: Any, greedy: Any, prompts: Prompts) -> Tokens:
    """vLLM's sleep mode, as far as its processors have it: the worker is asked, and its log says that it ignores it."""
    found = {f"before, {name}": tokens for name, tokens in nothing(llm, greedy, prompts).items()}
    for call in ("sleep", "wake_up"):
        llm.collective_rpc(call)
    llm.reset_prefix_cache()
    return found | {f"after, {name}": tokens for name, tokens in nothing(llm, greedy, prompts).items()}


def recordings(llm: Any, greedy: Any, prompts: Prompts) -> Tokens:
    """Beside the tokens, of each recording: its streams, the threads that replay it, its kernels."""
    from npucompose_vllm.pieces import PIECES

    found = nothing(llm, greedy, prompts)
    facts = [one for piece in PIECES for one in piece.recordings()]
    return {**found, "recordings": [[one[name] for name in ("streams", "threads", "kernels")] for one in facts]}


COUNTED: list[int] = []
"""Bytes that torch's allocator gave while an engine recorded, and did not get back."""


def _once_for_all(runner: Any, tokens: int) -> None:
    """What a process keeps after its first step and its first recording, whatever that is of."""
    import torch

    import npucompose

    runner._dummy_run(tokens)
    recorded = torch.compile(torch.nn.Linear(2, 2), backend=npucompose.backend("mode=reduce-overhead"))
    with torch.no_grad():
        recorded(torch.rand(2, 2))


def before_memory() -> None:
    """Have them counted, by torch's profiler: it sees each allocation, and knows nothing of recordings."""
    from npucompose_vllm import worker

    record = worker.record

    def counted(runner: Any, sizes: list[int]) -> None:
        from torch.profiler import ProfilerActivity, profile

        _once_for_all(runner, max(sizes) + 1)
        gc.collect()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            record(runner, sizes)
            gc.collect()
        assert profiler.profiler is not None
        seen = profiler.profiler.kineto_results.events()
        COUNTED.append(sum(event.nbytes() for event in seen if event.name() == "[memory]"))

    worker.record = counted


def memory(llm: Any, greedy: Any, prompts: Prompts) -> Tokens:
    """Beside the tokens: the bytes that vLLM's log gives of the recordings, and those that were counted."""
    from npucompose_vllm.pieces import PIECES, recorded_bytes

    facts = [one for piece in PIECES for one in piece.recordings()]
    return {**nothing(llm, greedy, prompts), "bytes": [[recorded_bytes(facts), *COUNTED]]}
