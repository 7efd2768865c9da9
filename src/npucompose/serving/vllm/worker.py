"""vLLM's CPU worker, which records every size before vLLM decides how much memory the KV cache gets."""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger  # pyright: ignore[reportMissingImports]
from vllm.v1.worker.cpu_worker import CPUWorker  # pyright: ignore[reportMissingImports]

from npucompose.serving.vllm.pieces import PIECES, recorded_bytes
from npucompose.serving.vllm.recipe import recipe_of

logger = init_logger("vllm.npucompose")


class RecipeWorker(CPUWorker):
    def init_device(self) -> None:
        super().init_device()
        runner, recipe = self.model_runner, recipe_of(self.vllm_config.additional_config)
        most = self.scheduler_config.max_num_batched_tokens
        sizes = [] if recipe is None else recipe.sizes_within(most)[0]
        warm_up = runner.warming_up_model

        def recorded() -> None:
            warm_up()
            record(runner, sizes)

        runner.warming_up_model = recorded


def record(runner: Any, sizes: list[int]) -> None:
    """Run each size as often as its recording takes: once to be recorded, once to be called without AOTAutograd."""
    for size in sorted(sizes, reverse=True):
        for _ in range(2):
            runner._dummy_run(size)
    facts = [one for piece in PIECES for one in piece.recordings()]
    took, took_mib = sum(one["seconds"] for one in facts), recorded_bytes(facts) / 2**20
    logger.info(
        "Recorded %d sizes, %s, as %d graphs: %.2f s, %.1f MiB beside the weights.",
        len(sizes),
        sizes,
        len(facts),
        took,
        took_mib,
    )
