"""The rows that are refused, by name, with the sentence that the person gets; every other row is right,
but for what torch itself gets wrong where it makes the kernels.

At most one row in twenty, and none that aot_eager runs: `test_semantics.py` holds both against this table.
"""

from __future__ import annotations

from collections.abc import Mapping

SENTENCES: Mapping[str, str] = {
    "custom_operators.an_operator_without_a_fake": (
        "There was no fake impl registered for <CustomOpDef(semantics::no_fake)>"
    ),
}
"""Row -> words that stand in the sentence."""
REFUSED = tuple(SENTENCES)

INDUCTORS_OWN: Mapping[str, str] = {
    "dtypes_and_layouts.special_numbers": "x * 0 becomes 0, also for an infinite x",
    "in_place.a_swap_in_place": "two inputs that are swapped through a copy both end as the second",
    "python_features.star_arguments": "x + 0 comes back as x itself and not as a copy",
    "random_numbers.python_random_numbers": "random.uniform() in the function draws other numbers, or none",
}
"""Row -> what torch's Inductor alone, `backend="inductor"`, does otherwise than eager; so does mode=max-autotune."""
