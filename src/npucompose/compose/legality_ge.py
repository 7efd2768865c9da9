"""What GE makes of its own automatic streams (ge.autoMultistreamParallelMode), as far as its sources and page say.

Facts: GE's sample `multi_stream_autotune` (2026-08-20) and CANN 9.1's page of the option. The strategies with a number
came in 2026-07; since 2026-08 a strategy without its number is refused. Which GE a host has, only the host knows.
"""

from __future__ import annotations

from npucompose.errors import ConfigError
from npucompose.schema.effective import Effective
from npucompose.schema.experiment import Experiment
from npucompose.schema.leaf import GE

MODE = "ge_config.multistream_parallel_mode"
BARE = "LoadBalance"
DOES = {
    "cv": "puts vector kernels beside cube kernels, on two streams",
    "LoadBalance": "covers the graph with paths and merges them, window by window with the times simulated anew",
    "MainStream": "keeps the longest path on one stream and lays what can run beside it on others",
    "WeightedLoadBalance": "does as LoadBalance, with the blocks and microseconds of each kernel from a profile",
}
"""{strategy: what GE does with it}."""


def ge_streams(experiment: Experiment) -> tuple[Effective, ...]:
    """What depends on GE's version (strict=all refuses it), and what `streams.objective=ge` has of what GE would do."""
    if experiment.mode.name != GE:
        return ()
    value = experiment.compiler[MODE]
    found: list[Effective] = []
    if value == BARE:
        why = (
            "GE up to CANN 9.1 takes it without a number and chooses one; since 2026-08 GE refuses it: write "
            f"{BARE}:N, N from 1 to 64"
        )
        found.append(Effective(option=f"compiler.{MODE}", requested=value, effective=None, why=why))
    if experiment.streams.objective == "ge":
        why = _beside_the_option(value)
        found.append(Effective(option="streams.objective", requested="ge", effective="paths, merged by score", why=why))
    problems = [f"{one.option}={one.requested}: {one.why}." for one in found if one.option != "streams.objective"]
    if problems and experiment.strict == "all":
        raise ConfigError(*problems)
    return tuple(found)


def _beside_the_option(value: str | None) -> str:
    """How far the plan of `objective: ge` is what GE itself would do."""
    if value is None:
        return (
            f"compiler.{MODE} is not set, so that GE uses no automatic streams: the plan is what its allocator "
            "of before 2026-07 would do"
        )
    strategy, _, most = value.partition(":")
    streams = f", on at most {most} streams" if most else ""
    return (
        f"with compiler.{MODE}={value} GE {DOES[strategy]}{streams}: the plan is that of GE's allocator of before "
        "2026-07, to compare with, and not this one's"
    )
