"""The rows that are refused, by name, with the sentence that the person gets; every other row is right,
but for what torch itself gets wrong where it makes the kernels.

At most one row in twenty, and none that aot_eager runs: `test_semantics.py` holds both against this table.
"""

from __future__ import annotations

from collections.abc import Mapping

from npucompose.graphs.inherited import inherited_errors

SENTENCES: Mapping[str, str] = {
    "custom_operators.an_operator_without_a_fake": (
        "There was no fake impl registered for <CustomOpDef(semantics::no_fake)>"
    ),
}
"""Row -> words that stand in the sentence."""
REFUSED = tuple(SENTENCES)

TORCHS_OWN = inherited_errors().rows
"""Row -> what torch alone does otherwise than eager (graphs/inherited.yaml)."""
INDUCTORS_OWN = tuple(name for name, error in TORCHS_OWN.items() if error.fused and not error.traced)
"""Rows that torch's Inductor alone, `backend="inductor"`, and therefore mode=max-autotune, gets wrong."""
TRACINGS_OWN = {name: error.fused for name, error in TORCHS_OWN.items() if error.traced}
"""Row -> whether Inductor gets it wrong too, of those that torch's tracing alone, `backend="aot_eager"`, gets wrong; so
does every mode, or every mode but max-autotune."""
