"""A graph that one call of the model runs several times, where every run returns its results in the same memory."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Overwrites:
    """`Overwrites(runs=3, option="compiler.debug.aclgraph.enable_output_clone")`."""

    runs: int
    """Runs on inputs of the same form, in the first call of the model."""
    option: str
    """What makes copies of the results when it is true: dotted path in the experiment."""

    def words(self, graph: str) -> str:
        return (
            f"{graph} runs {self.runs} times in one call of the model, and TorchAir returns each run's results in the "
            f"same memory: {self.option}=true makes copies"
        )
