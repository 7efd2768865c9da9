"""What a script may do with a model once it is compiled: nothing that is read, and nothing that breaks the reading."""

from __future__ import annotations

import ast

from npucompose.recipe.ejected import InputMark, Parts
from npucompose.recipe.reader import reading

SCRIPT = """
import torch, torchair
config = torchair.CompilerConfig()
fast = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
again = fast
fast.eval()
config.debug.run_eagerly = fast
"""


def test_a_compiled_model_is_a_value_of_which_nothing_is_known() -> None:
    facts = reading(ast.parse(SCRIPT)).facts
    assert [(one.dynamic, one.fullgraph) for one in facts.compiles] == [(False, False)]
    assert ["a compiled model" in str(one) for one in facts.unread] == [True]
    assert facts.configs[0].options == {}


def test_a_mark_is_of_all_dimensions_of_a_tensor_unless_it_says_more() -> None:
    mark = InputMark(argument="x")
    assert (mark.dims, mark.nested) == (None, False)
    defaults = {field.name: field.default for field in Parts.__attrs_attrs__}  # type: ignore[attr-defined]
    assert (defaults["marks"], defaults["gears"], defaults["graphs"]) == ((), {}, {})
