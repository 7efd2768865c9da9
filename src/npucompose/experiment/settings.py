"""Every value of a checked experiment with who said it: those of its key, and those that decide no result."""

from __future__ import annotations

from airflow_free.keys import plain
from npucompose.compose.check import Checked
from npucompose.experiment.run import NOT_IN_A_KEY, values_of
from npucompose.schema.flat import flat
from npucompose.schema.setting import Setting, settings


def settings_of(checked: Checked) -> tuple[Setting, ...]:
    """One for each leaf of the experiment, the compiler's options whole."""
    experiment = checked.experiment
    values = {**values_of(checked), **{name: plain(getattr(experiment, name)) for name in NOT_IN_A_KEY}}
    values["compiler"] = experiment.compiler.as_tree()
    return settings(flat(values), checked.provenance, checked.effective)
