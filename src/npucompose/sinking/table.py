"""The operator table: which operators' tiling reads values, and where it can sink; and for which TorchAir has no GE
converter, with what it converts in their place. Loads no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from attrs import evolve, frozen

from npucompose.errors import ConfigError, unknown
from npucompose.schema.experiment import Operator
from npucompose.table.options import option
from npucompose.table.structure import structure
from npucompose.vendor import devices
from npucompose.vendor.devices import Product

_NAME = re.compile(r"\w+::\w+")
FILE = Path(__file__).with_name("operators.yaml")
ADAPTED = frozenset(
    f"aten.{name}"
    for name in (
        "all.dim", "amax.default", "amin.default", "clamp_max.default", "count_nonzero.dim_IntList", "dot.default",
        "erfc.default", "exp2.default", "frac.default", "hardshrink.default", "index_copy.default", "index_put.default",
        "isnan.default", "isneginf.default", "isposinf.default", "logical_xor.default", "mv.default",
        "silu_backward.default", "softplus.default", "trunc.default",
    )
)  # fmt: skip
"""Operators without a converter that adapt=ascend replaces; a test compares it with that file."""
SCALAR = ("aten._local_scalar_dense.default", "aten.item.default")
ON_DEVICE = "torchair.ops.npu_fused_infer_attention_score, which takes them as a tensor"
NUMBERS = (
    "numbers that the caller gives: a list[int] as an argument of forward, which shapes=dynamic makes symbols; "
    f"for attention also {ON_DEVICE}"
)


@frozen(kw_only=True)
class OperatorTable:
    """The rows of operators.yaml and those that an experiment adds, with the families of socs.yaml."""

    version: int
    products: Mapping[str, Product] = option(factory=dict)
    operators: Mapping[str, Operator] = option(factory=dict)
    unconverted: Mapping[str, str] = option(factory=dict)
    """{operator that turns data into a number, and that TorchAir has no converter for: where that stands}."""

    @staticmethod
    def own() -> OperatorTable:
        """The table that this version ships."""
        return _own()

    def with_rows(self, rows: Mapping[str, Operator]) -> OperatorTable:
        """The table with an experiment's rows, which replace those of the same name; ConfigError for a wrong one."""
        rows = {name.replace(".", "::", 1): row for name, row in rows.items()}
        problems = [
            f"'{name}' @ sinking.operators is no operator's name: write namespace.operator or namespace::operator."
            for name in rows
            if not _NAME.fullmatch(name)
        ]
        for name, row in rows.items():
            for product in row.products or ():
                if product not in self.products:
                    where = f"sinking.operators.{name}.products"
                    problems.append(unknown("product", product, tuple(self.products), where))
        if problems:
            raise ConfigError(*problems)
        return evolve(self, operators={**self.operators, **rows}) if rows else self

    def row(self, operator: str) -> Operator | None:
        """`row("npu::npu_incre_flash_attention")`; None when the table does not know the operator."""
        return self.operators.get(operator)

    def of_ge(self, ge_type: str) -> Operator | None:
        """The first row whose GE operator this is."""
        return next((row for row in self.operators.values() if row.ge == ge_type), None)

    def product(self, name: str | None) -> str | None:
        """The family of a device's name: `product("Ascend910B3")` is "ascend910b"; ConfigError for an unknown name."""
        return devices.SocTable(families=self.products).family(name)

    def sinks(self, row: Operator, family: str | None) -> bool | None:
        """Whether this operator's tiling sinks on this product; None where nobody can tell."""
        if row.sinks is False:
            return False
        if family is None:
            return None
        if row.products is not None and family not in row.products:
            return False
        of_product = self.products[family].sinks
        return False if of_product is False else None if None in (of_product, row.sinks) else True


@cache
def _own() -> OperatorTable:
    data: Any = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    made = structure(OperatorTable, data, "sinking/operators.yaml")
    return evolve(made, products=devices.table().families)


def taken_instead(operator: str) -> str:
    """What TorchAir converts in place of `aten.softplus.default`, as far as that is known."""
    if is_scalar(operator):
        return NUMBERS
    if operator in ADAPTED:
        return f"adapt=ascend  # its rules make operators with a converter of {operator.rpartition('.')[0]}"
    name = operator.rpartition(".")[0]
    ways = "mode=npugraph_ex, which captures operators and converts none"
    return f"target.decompose=[{name}]  # torch takes it apart; or {ways}" if _decomposes(operator) else ways


def is_scalar(operator: str) -> bool:
    """Whether it turns data into a number; the name may lack `.default`."""
    return any(operator in (full, full.removesuffix(".default")) for full in SCALAR)


def _decomposes(operator: str) -> bool:
    from torch._decomp import decomposition_table

    return any(str(known) == operator for known in decomposition_table)
