"""What an option that was asked for demands of the caller, where nobody checks it: a sentence each, for `explain`."""

from __future__ import annotations

from collections.abc import Mapping

from npucompose.schema.experiment import Experiment
from npucompose.schema.leaf import ACLGRAPH, GE, NPUGRAPH_EX

_FROZEN = (
    "TorchAir reads parameters, and inputs marked static, where they lay at the first call: values written in place "
    "are followed, a parameter that is moved (.to, .data) or replaced later is not, and nobody checks."
)
IMPLIED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "experimental_config.frozen_parameter": ((GE, ACLGRAPH), _FROZEN),
    "npugraph_ex.frozen_parameter": ((NPUGRAPH_EX,), _FROZEN),
}
"""{option of `compiler`: the modes that it acts in, the sentence}; the options are switches."""


def implied_by(experiment: Experiment) -> tuple[str, ...]:
    """`compiler.….frozen_parameter=true: TorchAir reads parameters where …` for each that was switched on."""
    return tuple(
        f"compiler.{path}=true: {sentence}"
        for path, (modes, sentence) in IMPLIED.items()
        if experiment.compiler[path] and experiment.mode.name in modes
    )
