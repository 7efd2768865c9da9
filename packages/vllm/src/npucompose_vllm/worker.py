"""vLLM's CPU worker, which records every size before vLLM decides how much memory the KV cache gets, and keeps a trace
of the steps where one is asked for."""

from __future__ import annotations

from typing import Any

from vllm.forward_context import get_forward_context  # pyright: ignore[reportMissingImports]
from vllm.logger import init_logger  # pyright: ignore[reportMissingImports]
from vllm.v1.worker.cpu_worker import CPUWorker  # pyright: ignore[reportMissingImports]

from npucompose_vllm.configuration import BACKEND
from npucompose_vllm.forward import RecordedForward, inner_model
from npucompose_vllm.pieces import PIECES, foretold_bytes, recorded_bytes
from npucompose_vllm.recipe import recipe_of
from npucompose_vllm.steps import StepTrace, trace_of

logger = init_logger("vllm.npucompose")


class RecipeWorker(CPUWorker):
    trace: StepTrace | None = None

    def init_device(self) -> None:
        super().init_device()
        config = self.vllm_config
        if self.rank == 0:
            self.trace = trace_of(config.additional_config)
        recipe = recipe_of(config.additional_config)
        if recipe is not None and config.compilation_config.backend == BACKEND:
            self._record_first(recipe.sizes_within(self.scheduler_config.max_num_batched_tokens)[0])

    def execute_model(self, scheduler_output: Any) -> Any:
        if self.trace is not None:
            self.trace.came(scheduler_output.total_num_scheduled_tokens)
        return super().execute_model(scheduler_output)

    def _record_first(self, sizes: list[int]) -> None:
        runner = self.model_runner
        warm_up = runner.warming_up_model

        def recorded() -> None:
            warm_up()
            record(runner, sizes)
            if len(PIECES) == 1 and inner_model(runner.model) is not None:
                runner._model_forward = RecordedForward(runner, sizes, lambda: get_forward_context().skip_compiled)

        runner.warming_up_model = recorded


def record(runner: Any, sizes: list[int]) -> None:
    """Run each size as often as its recording takes: once to be recorded, once to be called without AOTAutograd."""
    foretold = foretold_bytes(PIECES, sizes)
    if foretold is not None:
        logger.info("Recording %d sizes, %s: %.1f MiB foretold from the graphs.", len(sizes), sizes, foretold / 2**20)
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
