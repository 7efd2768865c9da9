"""What is read of a converter besides that it is there: the guards that its whole body begins with."""

from __future__ import annotations

from pathlib import Path

from npucompose.targets.npu_offline.operator_lists import CONVERTERS, read_lists

CONVERTER = '''
@register_fx_node_ge_converter(torch.ops.npu.{name}.default)
def convert(x, given=None, needed=None, counted=3, *, named=None, meta_outputs=None):
    """NB: a document"""
{body}
    return x
'''


def lists_of(folder: Path, **bodies: str) -> tuple[dict[str, str], dict[str, str]]:
    """(guards on arguments, guards on the product) of converters with these bodies."""
    custom = folder / CONVERTERS / "custom"
    custom.mkdir(parents=True)
    for name, body in bodies.items():
        (custom / f"{name}.py").write_text(CONVERTER.format(name=name, body=body))
    lists = read_lists(folder)
    return dict(lists.refuses), dict(lists.not_arch35)


def test_a_guard_on_whether_an_argument_is_given_is_read(tmp_path: Path) -> None:
    body = (
        '    if needed is None:\n        raise ValueError(f"needed is missing")\n'
        '    if named is not None:\n        raise RuntimeError("named is", "not taken")\n'
        '    if counted is None:\n        raise ValueError("it has another default")\n'
        '    if given > 3:\n        raise ValueError("a value is asked for")\n'
        '    if given is None:\n        x = 3\n'
        '    if x:\n        if given is None:\n            raise ValueError("not always")\n'
    )  # fmt: skip
    found, product = lists_of(tmp_path, f=body)
    assert found == {"npu::f": "(needed is None) or (named is not None) or (counted is None) or (given > 3)"}
    assert product == {}


def test_a_guard_on_the_product_is_read_in_both_forms(tmp_path: Path) -> None:
    first = '    if not is_arch35():\n        raise RuntimeError("on 950 alone")\n'
    found, product = lists_of(tmp_path, first=first, neither="    if is_arch35():\n        x = 3\n")
    assert (found, product) == ({}, {"npu::first": "on 950 alone"})
