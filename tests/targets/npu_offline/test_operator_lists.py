"""What is read of a converter besides that it is there: the conditions of its source under which it raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch._prims_common import type_to_dtype

from npucompose.targets.npu_offline.operator_lists import CONVERTERS, GE_FUNCTIONS, GE_TYPES, TORCHAIR, read_lists
from npucompose.vendor.converter_conditions import asks_for_the_product, guards, holds
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


TYPES = """
def torch_type_to_ge_type(dtype, m=DataType):
    if dtype == torch.int8:
        return m.DT_INT8


class Tensor:
    def __init__(self, node):
        self._node = node
        self._symsize = None
        self._ge_dtype = DataType.DT_UNDEFINED

    @property
    def dtype(self):
        return self._ge_dtype

    @property
    def symsize(self):
        return self._symsize

    @property
    def rank(self):
        if self._symsize is None:
            raise AssertionError()
        return len(self._symsize)
"""
SHARED = """
MOST = 5


def promoted(*tensors, to):
    made = []
    for one in tensors:
        if isinstance(one, ge.Tensor):
            if one.dtype != to:
                one = ge.Twice(one)
            made.append(one)
        else:
            made.append(ge.Twice(one))
    return tuple(made) if len(made) > 1 else made[0]


def demanded(holds, why=None):
    if not holds:
        raise ValueError(why)


@lru_cache
def marked(x):
    raise ValueError(x)
"""


def lists_of(folder: Path, before: str = "", **bodies: str) -> WheelLists:
    """The lists of a wheel whose converters have these bodies, in one file that begins with `before`."""
    custom = folder / CONVERTERS / "custom"
    custom.mkdir(parents=True)
    (folder / GE_FUNCTIONS).write_text(GE)
    (folder / GE_TYPES).parent.mkdir(parents=True)
    (folder / GE_TYPES).write_text(TYPES)
    (folder / TORCHAIR / "shared.py").write_text(SHARED)
    (folder / TORCHAIR / "all_of_it.py").write_text("from torchair.shared import *\n")
    meta = folder / "torch_npu" / "op_plugin" / "meta"
    meta.mkdir(parents=True)
    (meta / "_meta_registrations.py").write_text('NAMES = {\n    290: "torch_npu.hifloat8",\n}\n')
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
        ("    x.desc.dtype = 3\n" + raising("x.dtype == DataType.DT_INT8"), "x.dtype == DataType.DT_INT8"),
        ("    x.own = 3\n" + raising("x.dtype == DataType.DT_INT8"), None),
        ("    if given:\n        return x\n" + raising("x.rank != 4"), "not given and x.rank != 4"),
        ("    if given:\n        return x\n    raise ValueError('no')\n", "not given"),
        ("    k = 1\n    if given:\n        k = 2\n" + raising("x.rank > k"), "x.rank > (2 if given else 1)"),
        ("    for one in (given, named):\n    " + raising("one is None").replace("\n ", "\n     "), "given is None"),
        ("    _check(x, given)\n", "given is not None and x.rank != 3"),
        (raising("_kind(given) == 2"), "given != 'a'"),
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
    assert conditions(tmp_path, body, before)[:1] == ([] if expected is None else [expected])


def loop(over: str, *lines: str) -> str:
    return f"    for one in {over}:\n" + "".join(f"        {line}\n" for line in lines)


REFUSED = "raise ValueError('no')"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (loop("given", "if one is None:", f"    {REFUSED}"), ["any([one is None for one in given])"]),
        (loop("given", f"{REFUSED}"), ["any([True for one in given])"]),
        (loop("given", "if one > 3:", "    continue", f"{REFUSED}"), ["any([not one > 3 for one in given])"]),
        (loop("given", "if one > 3:", "    return x") + raising("named"),
         ["not any([one > 3 for one in given]) and named"]),
        (loop("given", "if one > 3:", "    break") + raising("named"), ["named"]),
        (loop("given", "if one > 3:", "    return x", "break") + raising("named"), ["... and named"]),
        (loop("_unknown(given)", "if one > 3:", f"    {REFUSED}"), []),
        (loop("given", "if one > counted:", f"    {REFUSED}", "counted = one"), []),
        ("    seen = []\n" + loop("given", "seen.append(one + 1)") + raising("4 in seen"),
         ["4 in [one + 1 for one in given]"]),
        ("    seen = []\n" + loop("given", "if one > 1:", "    seen.append(one)") + raising("4 in seen"),
         ["4 in [one for one in given if one > 1]"]),
        ("    seen = []\n" + loop("given", "if one in seen:", f"    {REFUSED}", "seen.append(one)"),
         ["any([one in [one for one in given[:at]] for at, one in enumerate(given)])"]),
        ("    seen = []\n" + loop("given", "seen.append(one)", "seen.append(1)") + raising("4 in seen"), []),
        ("    all_of = 1\n" + loop("given", "all_of *= one") + raising("all_of > 9"),
         ["math.prod([one for one in given]) > 9"]),
        ("    all_of = 2\n" + loop("given", "all_of += one") + raising("all_of > 9"),
         ["2 + sum([one for one in given]) > 9"]),
        ("    all_of = 1\n" + loop("given", "if one:", "    all_of *= one") + raising("all_of > 9"), []),
        (loop("range(2)", "if x.symsize[one] > 3:", f"    {REFUSED}"), ["x.symsize[0] > 3", "x.symsize[1] > 3"]),
        (loop("enumerate([x, given])", "if one[0] and one[1] is None:", f"    {REFUSED}"), ["given is None"]),
        ("    kinds = {'a': given, 'b': named}\n" + loop("kinds.items()", "if one[1] is None:", f"    {REFUSED}"),
         ["given is None", "named is None"]),
        ("    kinds = {'a': given}\n" + raising("kinds.get('a') and kinds.get('b') is None and kinds.get(named)"),
         ["given and {'a': given}.get(named)"]),
        ("    many = [x, given]\n    many[1] = named\n" + raising("many[-1] is None"), ["named is None"]),
    ],
)  # fmt: skip
def test_a_loop_over_an_argument_is_one_condition_on_all_its_rounds(
    tmp_path: Path, body: str, expected: list[str]
) -> None:
    assert conditions(tmp_path, body) == expected


def test_a_variable_of_a_loop_is_not_taken_for_the_argument_of_the_same_name(tmp_path: Path) -> None:
    body = "    most = x.rank\n    for x in given:\n        if x > most:\n            raise ValueError('no')\n"
    (condition,) = conditions(tmp_path, body)
    assert condition == "any([x_ > x.rank for x_ in given])"
    assert holds(condition, {"x": "tensor(torch.int8, [1])", "given": "[1, 2]"}) is True


STAR, NAMED = "from torchair.all_of_it import *\n", "from torchair.shared import MOST as LIMIT, demanded as need\n"


@pytest.mark.parametrize(
    ("before", "body", "expected"),
    [
        (STAR, raising("x.rank > MOST"), "x.rank > 5"),
        (NAMED, raising("x.rank > LIMIT"), "x.rank > 5"),
        (NAMED, "    need(x.rank == 3, 'why')\n", "x.rank != 3"),
        (STAR, "    demanded(x.rank == 3)\n", "x.rank != 3"),
        (STAR, "    need(x.rank == 3)\n", None),
        (STAR, "    marked(x)\n", None),
        ("from torchair.nowhere import *\n", "    demanded(x.rank == 3)\n", None),
        (STAR, "    x = promoted(x, to=meta_outputs.dtype)\n" + raising("x.dtype == DataType.DT_INT8"),
         "isinstance(x, ge.Tensor) and x.dtype == meta_outputs.dtype and (x.dtype == DataType.DT_INT8)"),
        (STAR, "    x, given = promoted(x, given, to=x.dtype)\n" + raising("given is None or given.symsize is None"),
         "isinstance(given, ge.Tensor) and given.dtype == x.dtype and (given is None)"),
        ("", "    y = ge.Twice(x)\n" + raising("y.dtype == DataType.DT_INT8 or y is None"), None),
        ("", "    y = ge.Twice(x)\n" + raising("y.dtype != x.dtype and isinstance(y, Tensor)"),
         "DataType.DT_UNDEFINED != x.dtype"),
        ("", "    y, z = ge.Twice(x)\n" + raising("z is not None and given"), "given"),
        ("", "    y = ge.Twice(x)\n" + raising("y.rank == 3"), None),
        ("", raising("given == torch_npu.hifloat8"), "given == 290"),
        ("", raising("'gmm' in 'gmm_x' and given"), "given"),
        ("", raising("given == torch_npu.other"), None),
        ("", raising("given != sys.maxsize and given > 3"), "given != 9223372036854775807 and given > 3"),
        ("", raising("torch_type_to_ge_type(utils.type_to_dtype(type(given))) == DataType.DT_INT8"),
         "torch_type_to_ge_type(dtype_of(given)) == DataType.DT_INT8"),
        ("", raising("x.rank != 3") + "    if x.rank != 3 and given:\n        raise ValueError('no')\n", "x.rank != 3"),
    ],
)  # fmt: skip
def test_functions_constants_and_tensors_of_the_wheels_other_files_are_followed(
    tmp_path: Path, before: str, body: str, expected: str | None
) -> None:
    assert conditions(tmp_path, body, before)[:1] == ([] if expected is None else [expected])


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
        ("any([d > 3 for d in x.symsize])", True), ("any([d > 4 for d in x.symsize])", None),
        ("all([d > 1 for d in x.symsize])", None), ("all([d > 2 for d in x.symsize])", False),
        ("any([... for d in x.symsize])", None), ("x.symsize == x.symsize", None), ("x.symsize == [2, 1]", False),
        ("x.symsize == [3, 1, 4]", False), ("2 in x.symsize", True), ("7 in x.symsize", None), ("7 in [1, 2]", False),
        ("'gmm' in 'gmm_x'", True), ("'mm_w' not in 'gmm_x'", True),
        ("x.rank == (3 if absent else 3)", True), ("x.rank == (3 if absent else 4)", None),
        ("[d for d in x.symsize][0] == 2", True), ("sum(x.symsize) > 3", None),
        ("math.prod([2, number, 4]) == 8", True),
        ("torch_type_to_ge_type(dtype_of(number)) == DataType.DT_INT8", None),
        ("{'a': number}.get('a') == 1", True), ("{'a': number}.get('b') is None", True),
        ("any([a == d for a, d in enumerate([3, 1])])", True), ("isinstance(x, ge.Tensor)", True),
        ("isinstance(x, torch.Tensor)", False), ("isinstance(layout, torch.dtype)", False),
        ("isinstance(kind, torch.dtype)", True), ("is_arch35() or not is_arch35()", True),
        ("x.rank == 3 if is_arch35() else x.rank == 3", True), ("is_arch35() and number == 1", None),
        ("-number + 3 << 1 == 4 and number % 2", True), ("math.isclose(number, 1.0, rel_tol=1e-09)", True),
    ],
)  # fmt: skip
def test_a_condition_holds_or_does_not_or_is_undecided(condition: str, answer: bool | None) -> None:
    given = {
        "x": TENSOR, "many": LIST, "none": "None", "number": "1", "layout": "torch.strided", "some": "tensor()",
        "kind": "torch.int8",
    }  # fmt: skip
    assert holds(condition, given, {"torch.int8": "DT_INT8", "torch.bfloat16": "DT_BF16", "1": "DT_INT8"}) is answer


def test_a_condition_that_only_the_product_decides_says_so() -> None:
    given = {"number": "1"}
    assert asks_for_the_product("is_arch35() and number == 1", given, {})
    assert not asks_for_the_product("is_arch35() and absent == 1", given, {})
    assert not asks_for_the_product("is_arch35() and absent == 1", {**given, "is_arch35": "True"}, {})


@pytest.mark.parametrize("number", [True, 3, 0.5, 1j])
def test_the_dtype_of_a_number_is_torchs(number: complex) -> None:
    kind = type_to_dtype(type(number))
    assert holds("torch_type_to_ge_type(dtype_of(n)) == DataType.IT", {"n": repr(number)}, {str(kind): "IT"}) is True
    assert holds("torch_type_to_ge_type(dtype_of(n)) == DataType.IT", {"n": "'text'"}, {str(kind): "IT"}) is None
