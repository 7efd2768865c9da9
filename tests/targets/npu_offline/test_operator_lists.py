"""What is read of a converter besides that it is there: the conditions of its source under which it raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from npucompose.targets.npu_offline.operator_lists import CONVERTERS, GE_FUNCTIONS, GE_TYPES, read_lists
from npucompose.vendor.converter_conditions import guards, holds
from npucompose.vendor.wheel_operators import WheelLists

CONVERTER = '''
@register_fx_node_ge_converter(torch.ops.npu.{name}.default)
def convert(x, given=None, needed=None, counted=3, *, named=None, meta_outputs=None):
    """NB: a document"""
{body}
    return x
'''


GE = """
def Twice(x: Tensor, *, k: int = 1, node_name=None):  # as it comes
    pass


def Long(
    x,
    y: int,
) -> Tensor:
"""


def lists_of(folder: Path, before: str = "", **bodies: str) -> WheelLists:
    """The lists of a wheel whose converters have these bodies, in one file that begins with `before`."""
    custom = folder / CONVERTERS / "custom"
    custom.mkdir(parents=True)
    (folder / GE_FUNCTIONS).write_text(GE)
    (folder / GE_TYPES).parent.mkdir(parents=True)
    (folder / GE_TYPES).write_text(
        "def torch_type_to_ge_type(dtype, m=DataType):\n    if dtype == torch.int8:\n        return m.DT_INT8\n"
    )
    text = "".join(CONVERTER.format(name=name, body=body) for name, body in bodies.items())
    (custom / "all.py").write_text(before + text)
    return read_lists(folder)


def conditions(folder: Path, body: str, before: str = "") -> list[str]:
    return list(guards(lists_of(folder, before, f=body).refuses.get("npu::f", "")))


def raising(test: str) -> str:
    return f"    if {test}:\n        raise ValueError('no')\n"


def test_a_guard_is_read_until_a_statement_sets_its_argument(tmp_path: Path) -> None:
    body = (
        raising("needed is None") + raising("named is not None") + "    counted = counted or 4\n"
        + raising("given > 3") + "    x = ge.Twice(x)\n" + raising("x.rank == 2") + raising("counted is None")
        + "    if given:\n        if named == 'a':\n            raise ValueError('not always')\n"
    )  # fmt: skip
    assert conditions(tmp_path, body) == [
        "needed is None", "named is not None", "given > 3", "(counted or 4) is None", "given and named == 'a'",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (raising("x.rank != 4"), "x.rank != 4"),
        (raising("len(given) != 2"), "len(given) != 2"),
        (raising("isinstance(given, (list, Tensor))"), "isinstance(given, (list, Tensor))"),
        (raising("x.dtype not in TAKEN"), "x.dtype not in [DataType.DT_INT8, DataType.DT_BF16]"),
        (raising("_unknown(x)"), None),
        (raising("given and _unknown(x)"), "given and ..."),
        ("    kind = x.dtype\n" + raising("kind == DataType.DT_INT8"), "x.dtype == DataType.DT_INT8"),
        ("    a, b = given\n" + raising("a > 3"), None),
        ("    x.desc.dtype = 3\n" + raising("x.dtype == DataType.DT_INT8"), None),
        ("    if given:\n        return x\n" + raising("x.rank != 4"), "not given and x.rank != 4"),
        ("    if given:\n        return x\n    raise ValueError('no')\n", "not given"),
        ("    k = 1\n    if given:\n        k = 2\n" + raising("x.rank > k"), "x.rank > (2 if given else 1)"),
        ("    for one in (given, named):\n    " + raising("one is None").replace("\n ", "\n     "), "given is None"),
        ("    for one in given:\n    " + raising("one is None").replace("\n ", "\n     "), None),
        ("    _check(x, given)\n", "given is not None and x.rank != 3"),
        (raising("_kind(given) == 2"), "(1 if given == 'a' else 2) == 2"),
        ("    if not is_arch35():\n        return\n", "not is_arch35() and results != 0"),
        (raising("not is_arch35()"), "not is_arch35()"),
        ("    if is_arch35():\n        return x\n    raise ValueError('no')\n", "not is_arch35()"),
        ("    if given:\n        x = ge.Twice(x, n=3)\n", "given and 'ge.Twice takes no n'"),
        ("    x = ge.Long(x, y=3)\n", None),
    ],
)  # fmt: skip
def test_what_a_converter_asks_before_it_raises_becomes_a_condition_on_its_arguments(
    tmp_path: Path, body: str, expected: str | None
) -> None:
    before = (
        "TAKEN = {DataType.DT_INT8, DataType.DT_BF16}\n\n\ndef _check(tensor, kind=None):\n    if kind is None:\n"
        "        return\n    if tensor.rank != 3:\n        raise ValueError('no')\n\n\n"
        "def _kind(text):\n    if text == 'a':\n        return 1\n    return 2\n"
    )
    found = conditions(tmp_path, body, before)
    assert found[:1] == (
        [] if expected is None else [expected.replace("given is not None and", "not given is None and")]
    )


def test_a_converter_that_cannot_but_raise_is_one_that_only_raises(tmp_path: Path) -> None:
    lists = lists_of(
        tmp_path,
        broken="    y = ge.Twice(x, n=3)\n",
        raises="    raise ValueError('not yet')\n    y = 3\n",
        good="    y = 3\n",
    )
    assert lists.converters == {
        "npu::broken": "its converter is broken: ge.Twice takes no n",
        "npu::raises": "every way through its converter raises",
        "npu::good": "",
    }
    assert (dict(lists.refuses), dict(lists.ge_types)) == ({}, {"torch.int8": "DT_INT8"})


TENSOR, LIST = "tensor(torch.int8, [2, ..., 4])", "[1, tensor(torch.bfloat16, [])]"


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("x.rank != 3", False), ("x.rank == 3 and x.dtype == DataType.DT_INT8", True), ("x.symsize[2] > 3", True),
        ("x.symsize[1] > 3", None), ("x.symsize[1] > 3 and x.rank == 2", False),
        ("x.symsize[1] > 3 or x.rank == 3", True),
        ("all([isinstance(d, int) for d in x.symsize])", False), ("any([d == 2 for d in x.symsize[0:1]])", True),
        ("len(many) != 2", False), ("many[1].dtype in [DataType.DT_BF16]", True), ("isinstance(many, Tensor)", False),
        ("isinstance(x, Tensor)", True), ("x is None", False), ("x == many", None), ("absent is None", None),
        ("...", None),
        ("is_arch35() and x.rank == 3", None), ("is_arch35() and x.rank == 2", False), ("none is None", True),
        ("torch_dtype_value_to_ge_type(number) == DataType.DT_INT8", True),
        ("torch_dtype_value_to_ge_type(77) == 1", None),
        ("layout != torch.strided", False), ("none.rank == 3", None), ("x.rank < (2 if none is None else 4)", False),
        ("{DataType.DT_INT8: 1}[x.dtype] == 1", True), ("'ge.Twice takes no n'", True), ("some.rank == 3", None),
        ("-number + 3 << 1 == 4 and number % 2", True), ("math.isclose(number, 1.0, rel_tol=1e-09)", True),
    ],
)  # fmt: skip
def test_a_condition_holds_or_does_not_or_is_undecided(condition: str, answer: bool | None) -> None:
    given = {
        "x": TENSOR, "many": LIST, "none": "None", "number": "1", "layout": "torch.strided", "some": "tensor()",
    }  # fmt: skip
    assert holds(condition, given, {"torch.int8": "DT_INT8", "torch.bfloat16": "DT_BF16", "1": "DT_INT8"}) is answer
