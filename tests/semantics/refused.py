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

INDUCTORS_OWN: Mapping[str, tuple[str, str]] = {
    "dtypes_and_layouts.special_numbers": ("x * 0 becomes 0, also for an infinite x", ""),
    "in_place.a_swap_in_place": ("two inputs that are swapped through a copy both end as the second", ""),
    "inherited.a_copied_value_that_is_returned": (
        "a value that is copied into an input and returned is that input", "195451",
    ),
    "inherited.a_detached_third_result": (
        "a detached result takes the gradient from the views beside it", "195357",
    ),
    "inherited.a_scattered_slice_of_what_is_cleared": (
        "a later write to an input reaches what was made of it", "198094",
    ),
    "inherited.a_view_of_another_type_before_a_write": (
        "what reads a view of another dtype reads it after a later write", "198101",
    ),
    "inherited.the_deviation_of_large_numbers": ("std and var add up in float32: inf for numbers of 1e30", "197089"),
    "python_features.star_arguments": ("x + 0 comes back as x itself and not as a copy", "197893"),
    "random_numbers.python_random_numbers": ("random.uniform() in the function draws other numbers, or none", ""),
}  # fmt: skip
"""Row -> what torch's Inductor alone, `backend="inductor"`, does otherwise than eager, and PyTorch's issue, if one is
known; so does mode=max-autotune."""

TRACINGS_OWN: Mapping[str, tuple[str, str, bool]] = {
    "inherited.a_draw_that_is_not_read": (
        "random numbers that are drawn and not read are not drawn: later ones are others", "151524", False,
    ),
    "inherited.code_that_is_replaced": ("a method whose `__code__` is replaced stays what it was", "197860", True),
}  # fmt: skip
"""Row -> what torch's tracing alone, `backend="aot_eager"`, does otherwise than eager, the issue, and whether Inductor
does so too; so does every mode, or every mode but max-autotune."""
